"""Odd but legal forms of JSON that deployed peers accept, made plain (PURE, I42).

Such a peer may write an object of a fixed shape as an array of its values in the
order of its fields (the tag first where there is one; fields at the end may be
left out only where they have a default other than null), and a word out of a fixed
list as an object with that one key and null. We never send either; this module is
tried only on a text that was refused for its shape, and answers the plain text.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from cortextx.core.jsontext import Decoder, Text, decode, encode
from cortextx.errors import JsonShapeError

T = TypeVar("T")


class TolerantDecoder(Generic[T]):
    """A Decoder that takes the odd forms too.

    In a text that has one, `Raw` members are rewritten: the same value in other
    characters. The error for a text that stays wrong is that of its plain form.
    """

    __slots__ = ("_plain", "_shape")

    def __init__(self, type: Any) -> None:
        self._plain: Decoder[T] = Decoder(type)
        self._shape = inspect.type_info(type)

    def decode(self, data: Text, *, utf8_checked: bool = False) -> T:
        """Decode one JSON text; raises JsonSyntaxError or JsonShapeError."""
        try:
            return self._plain.decode(data, utf8_checked=utf8_checked)
        except JsonShapeError:
            value = decode(data)
            plain = _plain(value, self._shape)
            if plain == value:
                raise
        return self._plain.decode(encode(plain), utf8_checked=True)


def _plain(value: Any, shape: inspect.Type) -> Any:
    """Rewrite the odd forms in `value`, only as far as `shape` says what stands where."""
    match shape:
        case inspect.Metadata():
            return _plain(value, shape.type)
        case inspect.UnionType():
            return _plain_of_union(value, shape)
        case inspect.StructType():
            return _plain_struct(value, shape)
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            return [_plain(item, shape.item_type) for item in value]
        case inspect.LiteralType():
            return _plain_word(value, shape.values)
    return value


def _plain_word(value: Any, words: tuple[Any, ...]) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        [(word, content)] = value.items()
        if content is None and word in words:
            return word
    return value


def _plain_struct(value: Any, shape: inspect.StructType) -> Any:
    names = [field.encode_name for field in shape.fields]
    if isinstance(value, list):
        left_out = shape.fields[max(0, len(value) - (shape.tag_field is not None)) :]
        if any(field.required or field.default is None for field in left_out):
            return value
        if shape.tag_field is not None:
            names = [shape.tag_field, *names]
        if len(value) > len(names):
            return value
        value = dict(zip(names, value, strict=False))
    if not isinstance(value, dict):
        return value
    types = {field.encode_name: field.type for field in shape.fields}
    return {
        name: _plain(item, types[name]) if name in types else item for name, item in value.items()
    }


def _plain_of_union(value: Any, shape: inspect.UnionType) -> Any:
    structs = [member for member in shape.types if isinstance(member, inspect.StructType)]
    for struct in structs:
        if len(structs) == 1 or _tag_of(value, struct.tag_field) == struct.tag:
            return _plain_struct(value, struct)
    for member in shape.types:
        plain = _plain(value, member)
        if plain is not value:
            return plain
    return value


def _tag_of(value: Any, tag_field: str | None) -> Any:
    if isinstance(value, list):
        return value[0] if value else msgspec.UNSET
    if isinstance(value, dict) and tag_field is not None:
        return value.get(tag_field, msgspec.UNSET)
    return msgspec.UNSET
