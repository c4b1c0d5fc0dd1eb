"""The shape of the HTTP API: routes, their parameters, and how a request finds one (PURE).

A route is declared once: method, path, who may, which parameters and body it
takes, what it answers. Dispatch and the OpenAPI document both come from it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Struct, inspect

from cortextx.core import jsontext
from cortextx.core.choices import one_of
from cortextx.errors import JsonError
from cortextx.web.problems import Problem, not_allowed, not_found, wrong

if TYPE_CHECKING:
    from cortextx.web.guard import Principal, Role
    from cortextx.web.sse import EventSink

MAX_PARAMETERS = 200
MAX_SEGMENT = 512
_INTEGER = re.compile(r"-?\d{1,19}\Z", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,19})?\Z", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of query parameters; a tuple is a parameter that may be repeated."""


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of request bodies."""


class NoParams(Params, frozen=True):
    """For routes that take none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as a route's function gets it; `names` are the path's parts by name.

    A stream's has `events` to write to, and `still_allowed`, which raises Problem
    once the token is not good any more.
    """

    principal: Principal
    names: Mapping[str, str]
    params: Any
    body: Any = None
    last_event_id: str | None = None
    events: EventSink | None = None
    still_allowed: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation. `path` has parts in braces, as /hosts/{host}.

    `answer` is the type of the answer's body (None for an answer without one),
    `stream` that it is a stream of server-sent events instead, `searches` that it may
    take the store long, so that a token has few of them at a time; `text` says what it
    is for, `names` of which types the path's named parts are, if not any text.
    """

    method: str
    path: str
    role: Role
    name: str
    run: Callable[[Call], Awaitable[Any]]
    answer: Any = None
    params: type[Params] = NoParams
    body: type[Body] | None = None
    status: int = 200
    stream: bool = False
    searches: bool = False
    text: str = ""
    names: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """The path's parts."""
        return tuple(self.path.strip("/").split("/"))


@dataclass(frozen=True, slots=True)
class Routes:
    """All routes; several with one path differ by method."""

    routes: Sequence[Route] = field(default_factory=tuple)

    def find(self, method: str, parts: Sequence[str]) -> tuple[Route, dict[str, str]]:
        """The route of a request; raises Problem 404, or 405 for another method's path."""
        allowed: list[str] = []
        for route in self.routes:
            names = _match(route.parts, parts)
            if names is None:
                continue
            if route.method == method or (method == "HEAD" and route.method == "GET"):
                return route, names
            allowed.append(route.method)
        if not allowed:
            raise not_found("resource")
        if "GET" in allowed:
            allowed.append("HEAD")
        raise not_allowed(allowed)


def path_parts(segments: Sequence[bytes]) -> tuple[str, ...]:
    """The parts of a path, percent-decoded already; raises Problem for what is not text."""
    if any(len(segment) > MAX_SEGMENT for segment in segments):
        raise not_found("resource")
    try:
        return tuple(str(segment, "utf-8") for segment in segments)
    except UnicodeDecodeError:
        raise wrong("path", "UTF-8") from None


def parameters(query: str, kind: type[Params]) -> Any:
    """Query parameters as a struct; raises Problem 400 that names the one at fault."""
    try:
        unquote_to_bytes(query).decode("utf-8")
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
        )
    except UnicodeDecodeError:
        raise wrong("query", "percent-encoded UTF-8") from None
    except ValueError:
        raise wrong("query", f"at most {MAX_PARAMETERS} parameters") from None
    shapes = _shapes(kind)
    values: dict[str, Any] = {}
    for name, text in pairs:
        shape = shapes.get(name)
        if shape is None:
            raise wrong(name[:64], "no such parameter here")
        if shape.repeated:
            values.setdefault(name, []).append(shape.value(text))
        elif name in values:
            raise wrong(name, "to be given once")
        else:
            values[name] = shape.value(text)
    try:
        return jsontext.convert(values, kind)
    except JsonError as error:
        raise _wrong(error, kind) from None


def body_of(content: bytes, content_type: str | None, kind: type[Body]) -> Any:
    """A request's JSON body as a struct; raises Problem 400 or 415."""
    media = (content_type or "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem(415, "unsupported_media_type", "the body must be application/json")
    try:
        return jsontext.decode(content, kind)
    except JsonError as error:
        raise _wrong(error, kind) from None


def _wrong(error: JsonError, kind: Any) -> Problem:
    """What is wrong; where only some values are right, which."""
    expected = error.expected
    if expected == jsontext.DECLARED:
        expected = one_of(kind, error.field) or expected
    return wrong(error.field.removeprefix("$."), expected)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one query parameter is written."""

    repeated: bool
    integer: bool
    number: bool
    boolean: bool

    def value(self, text: str) -> Any:
        """The value to be checked; what is not as expected stays text, and is refused so."""
        if self.integer and _INTEGER.match(text):
            return int(text)
        if self.number and _NUMBER.match(text):
            return float(text)
        if self.boolean:
            return _BOOLEANS.get(text, text)
        return text


@cache
def _shapes(kind: type[Params]) -> dict[str, Shape]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {each.encode_name: _shape(each.type) for each in info.fields}


def _shape(type: inspect.Type) -> Shape:
    types = type.types if isinstance(type, inspect.UnionType) else (type,)
    kinds = {each.__class__ for each in types}
    return Shape(
        repeated=inspect.VarTupleType in kinds,
        integer=inspect.IntType in kinds,
        number=inspect.FloatType in kinds,
        boolean=inspect.BoolType in kinds,
    )


def _match(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names


def parameter_fields(kind: type[Params]) -> tuple[msgspec.inspect.Field, ...]:
    """The declared query parameters of a route, for its description."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields
