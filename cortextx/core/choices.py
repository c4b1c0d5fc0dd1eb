"""Which values a declared field may have, where it may have a few only (PURE).

msgspec says that a value is none of them; whoever has to correct it wants to read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from msgspec import inspect

MOST = 32
"""Values that are listed; beyond, a list helps nobody."""
_STEP = re.compile(r"\.(?P<name>\w+)|\[[^\]]*\]")


@cache
def choices(kind: Any, field: str) -> tuple[str, ...]:
    """The values that `field` of a type may have, as `$.order` or `$.rows[0].kind`; none where
    it is free."""
    found: list[inspect.Type] = [inspect.type_info(kind)]
    for step in _STEP.finditer(field):
        found = list(_below(found, step["name"]))
    values: list[str] = []
    for each in _members(found):
        if isinstance(each, inspect.LiteralType):
            values += map(str, each.values)
        elif isinstance(each, inspect.EnumType):
            values += [str(member.value) for member in each.cls]
    return tuple(values) if len(values) <= MOST else ()


def one_of(kind: Any, field: str) -> str | None:
    """The same in words, as what is expected; None where it is free."""
    values = choices(kind, field)
    return f"one of {', '.join(values)}" if values else None


def _below(types: Iterable[inspect.Type], name: str | None) -> Iterator[inspect.Type]:
    """What stands in a member of that name, or in the items of an array."""
    for each in _members(types):
        if isinstance(each, inspect.StructType):
            yield from (one.type for one in each.fields if one.encode_name == name)
        elif name is None and isinstance(each, inspect.CollectionType | inspect.VarTupleType):
            yield each.item_type
        elif name is None and isinstance(each, inspect.DictType):
            yield each.value_type


def _members(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for each in types:
        if isinstance(each, inspect.Metadata):
            yield from _members([each.type])
        elif isinstance(each, inspect.UnionType):
            yield from _members(each.types)
        else:
            yield each
