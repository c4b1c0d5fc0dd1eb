"""JSON-RPC 2.0 envelopes of the fleet protocol, both ways (PURE; §2, F9, F30).

`parse` reads the envelope of one WebSocket text message and leaves params,
result and error data as the sender's text (`Raw`), to be decoded by whoever
knows their type. Members that JSON-RPC does not name are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from cortextx.core.jsontext import Decoder, encode
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError, RemoteProtocolError
from cortextx.fleet.contract import Code

T = TypeVar("T")
Id = str | int | float
"""What correlates a response with its request; it is echoed as it came."""

NO_PARAMS = Raw()
"""The params of a message that has none."""


class ErrorBody(Struct, frozen=True):
    """The `error` member of a response; `data` is NO_PARAMS where absent."""

    code: int
    message: str
    data: Raw = NO_PARAMS


@dataclass(frozen=True, slots=True)
class Request:
    """A call that wants a response. Its params may hold a secret: no repr (F23)."""

    id: Id
    method: str
    params: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Notification:
    """A call that gets no response (§4.2, F30)."""

    method: str
    params: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: either `result` or `error` is set.

    `id` is None only beside an error: the peer could not tell what it refuses.
    """

    id: Id | None
    result: Raw | None = field(default=None, repr=False)
    error: ErrorBody | None = None


Message = Request | Notification | Response


class EnvelopeError(RemoteProtocolError):
    """A message is not JSON (-32700) or its envelope is wrong (-32600).

    `id` is the request's where it could be told, `method` likewise; `field` and
    `expected` say what is wrong, without the peer's words.
    """

    def __init__(
        self, code: Code, id: Id | None, expected: str, field: str = "$", method: str | None = None
    ) -> None:
        super().__init__(f"{code.title}: {field}: expected {expected}")
        self.code = code
        self.id = id
        self.field = field
        self.expected = expected
        self.method = method


class _Envelope(Struct):
    jsonrpc: Literal["2.0"]
    id: Id | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class _Refusal(Struct):
    """The one envelope whose id may be null."""

    jsonrpc: Literal["2.0"]
    error: ErrorBody
    id: None
    method: UnsetType = UNSET
    result: UnsetType = UNSET


_envelope = Decoder(_Envelope)
_refusal = Decoder(_Refusal)
_members = Decoder(dict[str, Raw])
_id: Decoder[Id] = Decoder(Id)
_text = Decoder(str)


def parse(payload: bytes, *, utf8_checked: bool = False) -> Message:
    """Read one message; raises EnvelopeError (-32700 or -32600, F9, F30)."""
    try:
        envelope = _envelope.decode(payload, utf8_checked=utf8_checked)
    except JsonSyntaxError as error:
        raise EnvelopeError(Code.PARSE_ERROR, None, error.expected, error.field) from None
    except JsonShapeError as error:
        return _null_response(payload, error)
    if envelope.method is not UNSET:
        if envelope.result is not UNSET or envelope.error is not UNSET:
            raise _invalid(envelope, "a request or a response, not both")
        params = NO_PARAMS if envelope.params is UNSET else envelope.params
        if envelope.id is UNSET:
            return Notification(envelope.method, params)
        return Request(envelope.id, envelope.method, params)
    if envelope.id is UNSET:
        raise _invalid(envelope, "a method, or a response's id")
    if envelope.error is not UNSET and envelope.result is UNSET:
        return Response(envelope.id, None, envelope.error)
    if envelope.result is not UNSET and envelope.error is UNSET:
        return Response(envelope.id, envelope.result)
    raise _invalid(envelope, "a method, a result or an error, and one of them only")


def _null_response(payload: bytes, fault: JsonShapeError) -> Response:
    """Read a response whose id is null, or raise the error for `fault`."""
    try:
        return Response(None, None, _refusal.decode(payload).error)
    except JsonError:
        pass
    try:
        members = _members.decode(payload)
    except JsonError:
        raise EnvelopeError(Code.INVALID_REQUEST, None, fault.expected, fault.field) from None
    raise EnvelopeError(
        Code.INVALID_REQUEST,
        _member(_id, members, "id"),
        fault.expected,
        fault.field,
        _member(_text, members, "method"),
    )


def _member(decoder: Decoder[T], members: dict[str, Raw], name: str) -> T | None:
    try:
        return decoder.decode(members[name])
    except (JsonError, KeyError):
        return None


def _invalid(envelope: _Envelope, expected: str) -> EnvelopeError:
    id = None if envelope.id is UNSET else envelope.id
    method = None if envelope.method is UNSET else envelope.method
    return EnvelopeError(Code.INVALID_REQUEST, id, expected, "$", method)


def decode_params(raw: Raw, type: type[T]) -> T:
    """Decode params, a result or error data as `type`.

    Raises JsonShapeError with the path of the fault from `$`, the params
    themselves (or JsonSyntaxError for what only a full decode shows).
    """
    if not len(raw):
        raise JsonShapeError("$", "an object (params are missing)")
    key: Any = type
    decoded: T = _decoder(key).decode(raw, utf8_checked=True)
    return decoded


@lru_cache(maxsize=64)
def _decoder(type: Any) -> Decoder[Any]:
    return Decoder(type)


def request(id: Id, method: str, params: Any) -> bytes:
    """Encode a request; `params` is a Struct, a dict or Raw text."""
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: Any) -> bytes:
    """Encode a notification."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def result(id: Id, value: Any) -> bytes:
    """Encode a successful response."""
    return encode({"jsonrpc": "2.0", "id": id, "result": value})


def error(id: Id | None, code: Code, data: Any = None) -> bytes:
    """Encode an error response; its message is the code's title and nothing else."""
    body: dict[str, Any] = {"code": int(code), "message": code.title}
    if data is not None:
        body["data"] = data
    return encode({"jsonrpc": "2.0", "id": id, "error": body})
