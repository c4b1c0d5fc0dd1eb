"""The one strict border between JSON text and typed values (PURE).

Whatever a peer sends, the only errors that leave here are JsonSyntaxError (not
UTF-8, not JSON, too deep) and JsonShapeError (well-formed, but not as declared).
Both name the field and what was expected, and never repeat the value. Syntax
comes before shape: a text with both faults is a JsonSyntaxError (F9).

Refused as malformed: NaN and Infinity, trailing characters, a byte order mark,
lone surrogate escapes (F16), raw control characters in strings. A number beyond
the range of its type (1e400) is a fault of shape. Of repeated member names the
last one wins. NUL is text like any other here.

msgspec checks a `Raw` value, and any member it skips, for syntax only, not for
UTF-8, range or depth: a decoder here checks the UTF-8 of the whole payload, and
`check_value` and `check_object` the rest for what is kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any, Generic, NoReturn, TypeVar, overload

import msgspec
from msgspec import Raw

from cortextx.core.forms import in_words
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError, LocalProtocolError

T = TypeVar("T")

DECLARED = "one of the declared values"
"""What is expected of a value where only some are right; `core.choices` says which."""
Text = bytes | memoryview | Raw
"""JSON text as bytes."""

MAX_DEPTH = 100
"""Arrays and objects within one another in a value that is kept as text (I40)."""


class Decoder(Generic[T]):
    """A reusable decoder for one type; all its work on the value is msgspec's."""

    __slots__ = ("_decode",)

    @overload
    def __init__(self: Decoder[Any]) -> None: ...
    @overload
    def __init__(self: Decoder[T], type: type[T]) -> None: ...
    @overload
    def __init__(self: Decoder[Any], type: Any) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        self._decode: Callable[[Text], T] = msgspec.json.Decoder(type).decode

    def decode(self, data: Text, *, utf8_checked: bool = False) -> T:
        """Decode one JSON text; raises JsonSyntaxError or JsonShapeError.

        `utf8_checked` says that `data` is known to be UTF-8, as a part of a
        payload that was checked whole.
        """
        if not utf8_checked:
            check_utf8(data)
        try:
            return self._decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            _refuse(data, error)


def decode(data: Text, type: Any = Any) -> Any:
    """Decode one JSON text as `type`; see `Decoder`, which keeps its type for mypy."""
    return _decoder(type).decode(data)


def convert(values: Any, type: type[T]) -> T:
    """Give values that are parsed already a type, as `decode` does; raises JsonShapeError."""
    try:
        return msgspec.convert(values, type)
    except msgspec.ValidationError as error:
        raise _translate(error) from None


def encode(value: Any) -> bytes:
    """Encode a value as compact JSON in UTF-8; NaN and infinities become null.

    Raises LocalProtocolError for a lone surrogate, nesting too deep, or a value
    that JSON does not know.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(f"not expressible as JSON ({type(error).__name__})") from None


def check_utf8(data: Text) -> None:
    """Raise JsonSyntaxError unless all of `data` is UTF-8 (no surrogates)."""
    if isinstance(data, bytes) and data.isascii():
        return
    decode_text(data)


def decode_text(data: Text) -> str:
    """Return `data` as text; raises JsonSyntaxError unless all of it is UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise JsonSyntaxError("$", "UTF-8") from None


def check_value(raw: Text, depth: int = MAX_DEPTH) -> None:
    """Check a value that is kept as text: syntax, UTF-8, numbers in range, depth."""
    data = bytes(raw)
    _value.decode(data)
    check_depth(data, depth)


def check_object(raw: Text, depth: int = MAX_DEPTH) -> None:
    """As `check_value`, for what must be an object."""
    data = bytes(raw)
    _object.decode(data)
    check_depth(data, depth)


def check_depth(data: bytes, limit: int = MAX_DEPTH) -> None:
    """Raise JsonSyntaxError if well-formed JSON nests deeper than `limit`."""
    # A level takes two bytes, and most values have few of them: no walk then.
    if len(data) <= 2 * limit or data.count(b"{") + data.count(b"[") <= limit:
        return
    brackets = _STRING.sub(b"", data).translate(_STEPS, _NOT_BRACKETS)
    # A text of one string has no brackets but those inside it.
    if max(accumulate(step - 1 for step in brackets), default=0) > limit:
        raise _too_deep(limit)


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes.maketrans(b"[{]}", b"\x02\x02\x00\x00")
_WHERE = re.compile(r" - at `(?P<path>\$(?:\.\w+|\[(?:\d+|\.\.\.)\])*)`\Z", re.ASCII)
_MEMBER = re.compile(r"Object missing required field `(?P<name>\w+)`\Z", re.ASCII)
_EXPECTED = re.compile(r"Expected `(?P<types>[\w| ]+)`(?P<rest>.*)\Z", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)\Z")
_MAX_PATH = 200
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
    "datetime": "an RFC 3339 date-time",
    "uuid": "a UUID",
    "bytes": "a base64 string",
}


def _refuse(data: Text, error: Exception) -> NoReturn:
    """Raise our error for msgspec's, looking for a syntax fault behind a shape fault."""
    if isinstance(error, msgspec.ValidationError):
        try:
            _syntax.decode(data)
        except (msgspec.DecodeError, RecursionError) as deeper:
            error = deeper
    raise _translate(error) from None


def _translate(error: Exception) -> JsonError:
    if isinstance(error, RecursionError):
        return _too_deep(MAX_DEPTH)
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return _shape_error(text)
    if "UTF-8" in text:
        return JsonSyntaxError("$", "UTF-8")
    byte = _BYTE.search(text)
    if byte is not None:
        return JsonSyntaxError("$", f"well-formed JSON (fault at byte {byte[1]})")
    return JsonSyntaxError("$", "one complete JSON value")


def _shape_error(text: str) -> JsonShapeError:
    where = _WHERE.search(text)
    path = "$" if where is None else where["path"]
    what = text if where is None else text[: where.start()]
    if len(path) > _MAX_PATH:
        path = "$"
    member = _MEMBER.match(what)
    if member is not None:
        return JsonShapeError(f"{path}.{member['name']}", "a value (the member is required)")
    return JsonShapeError(path, _in_words(what))


def _in_words(what: str) -> str:
    """Say msgspec's complaint in words of ours; it may quote the peer after a backquote."""
    if " matching regex " in what:
        return in_words(what).removeprefix("Expected ")
    expected = _EXPECTED.match(what)
    if expected is not None:
        names = (name.strip() for name in expected["types"].split("|"))
        kinds = " or ".join(_WORDS.get(name, name) for name in names)
        rest = expected["rest"]
        if rest.startswith(" with a timezone"):
            return "an RFC 3339 date-time with an offset"
        return kinds if rest.startswith(", got") else kinds + rest
    if what.startswith("expected "):
        # From a check of ours, which says itself what it wants.
        return what.removeprefix("expected ")
    if what.startswith("Object contains unknown field"):
        return "no undeclared members"
    if what.startswith(("Invalid enum value", "Invalid value")):
        return DECLARED
    if what.startswith("Invalid RFC3339"):
        return "an RFC 3339 date-time"
    if "out of range" in what:
        return "a number in range"
    return "a value of the declared form"


def _too_deep(limit: int) -> JsonSyntaxError:
    return JsonSyntaxError("$", f"nesting of at most {limit} levels")


@lru_cache(maxsize=128)
def _decoder(type: Any) -> Decoder[Any]:
    return Decoder(type)


_encode = msgspec.json.Encoder().encode
_syntax = msgspec.json.Decoder(Raw)
_value: Decoder[Any] = Decoder()
_object: Decoder[dict[str, Any]] = Decoder(dict[str, Any])
