"""Many values around a schema's bounds, made from one good example.

For every member, everywhere in the example: left out, of each other type, at its
bounds and one beyond, each word of an enumeration and none of them, and a member
that the schema does not name. What each is worth is for `jsonschema` to say.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]
Variant = tuple[str, Any]

OTHERS: tuple[Any, ...] = (None, True, 7, -1, 1.5, "x", "", [], {}, [1], {"x": 1})
"""One value of each type, and some empty ones."""


def variants(schema: dict[str, Any], example: Any) -> Iterator[Variant]:
    """Name and value of each variant of a whole example."""
    yield "as it is", example
    for path, part, inner in _parts(schema, example, ()):
        for name, value in _around(part, inner):
            yield f"{_shown(path)} {name}", _put(example, path, value)
        if isinstance(inner, dict) and "properties" in part:
            for member in part["properties"]:
                if member in inner:
                    yield f"{_shown(path)} without {member}", _without(example, (*path, member))
            yield f"{_shown(path)} with one more", _put(example, (*path, "not_named"), 1)


def _parts(schema: dict[str, Any], value: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    yield path, schema, value
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from _parts(part, value[name], (*path, name))
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for name in value:
                yield from _parts(extra, value[name], (*path, name))
    elif isinstance(value, list) and value and "items" in schema:
        yield from _parts(schema["items"], value[0], (*path, 0))


def _around(schema: dict[str, Any], value: Any) -> Iterator[Variant]:
    for other in OTHERS:
        yield f"is {other!r}", other
    for word in schema.get("enum", ()):
        yield f"is {word!r}", word
    for bound in ("minimum", "maximum"):
        if bound in schema:
            for step in (-1, 0, 1):
                yield f"is {bound} {step:+}", schema[bound] + step
    for bound in ("minLength", "maxLength"):
        if bound in schema:
            for size in {max(0, schema[bound] + step) for step in (-1, 0, 1)}:
                yield f"has {size} characters", "é" * size
    for bound in ("minItems", "maxItems"):
        if bound in schema and isinstance(value, list) and value:
            for size in {max(0, schema[bound] + step) for step in (-1, 0, 1)}:
                yield f"has {size} items", _items(value[0], size)
    yield from ((f"is {text!r}", text) for text in _texts(schema))


def _items(item: Any, count: int) -> list[Any]:
    items = [copy.deepcopy(item) for _ in range(count)]
    for place, one in enumerate(items):
        if isinstance(one, dict) and "seq" in one:
            one["seq"] += place
    return items


def _texts(schema: dict[str, Any]) -> tuple[str, ...]:
    if schema.get("format") == "date-time":
        return (
            "2026-08-09T06:30:00Z", "2026-08-09T06:30:00.123456+05:30", "2026-08-09",
            "2026-08-09T06:30:00", "06:30:00Z", "1786257000", "2026-08-09T06:30Z",
        )  # fmt: skip
    if schema.get("format") == "uuid":
        return (
            "6F1C2D3E-4A5B-4C6D-8E7F-A0B1C2D3E4F5", "6f1c2d3e4a5b4c6d8e7fa0b1c2d3e4f5",
            "{6f1c2d3e-4a5b-4c6d-8e7f-a0b1c2d3e4f5}", "6f1c2d3e-4a5b-4c6d-8e7f-a0b1c2d3e4f",
            "6f1c2d3e-4a5b-4c6d-8e7f-a0b1c2d3e4fg",
        )  # fmt: skip
    if "pattern" in schema:
        return "1.2.3", "1.2.3-rc.1", "1.2.3+b", "1.2", "v1.2.3", "1.2.3.4", "1.2.x"
    if "oneOf" in schema:
        return (
            "journald", "file:/x", "docker:web", "custom:a", "file:", "docker", "Journald",
            "journald:x", "kmsg", " file:/x", "exec:ls",
        )  # fmt: skip
    return ()


def _put(value: Any, path: Path, new: Any) -> Any:
    """A copy with one place changed."""
    if not path:
        return new
    changed = copy.copy(value)
    if isinstance(changed, list):
        changed[path[0]] = _put(value[path[0]], path[1:], new)
    else:
        changed[path[0]] = _put(value.get(path[0]), path[1:], new)
    return changed


def _without(value: Any, path: Path) -> Any:
    changed = copy.copy(value)
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _without(value[path[0]], path[1:])
    return changed


def _shown(path: Path) -> str:
    return ".".join(str(part) for part in path) or "$"
