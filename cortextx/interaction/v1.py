"""Frames of `cortexfs.interaction/v1`: one request a connection, and its events (PURE).

A frame is an envelope around one request or event. Event lines may carry the flat
members of older peers beside it (I6), which a reader of frames ignores; requests
of those peers are read by `interaction.flat`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from cortextx.core.exchange import (
    MAX_V1_ID_BYTES,
    Event,
    Failure,
    Origin,
    Result,
    RunDone,
    Scope,
    is_v1_identifier,
)
from cortextx.core.flatlines import decode_flat, flat_members
from cortextx.core.jsontext import Decoder, check_value
from cortextx.core.jsontext import encode as encode_json
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError, LocalProtocolError
from cortextx.interaction.data import check_event
from cortextx.interaction.faults import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    FrameFault,
    FramingFault,
    IllegalFrame,
    RequestFault,
    content,
)

Abi = Literal["cortexfs.interaction/v1"]
ABI: Abi = "cortexfs.interaction/v1"

Form = Literal["both", "framed", "flat"]
"""How event lines are written (I6)."""


class _Request(Struct, frozen=True, tag_field="type"):
    """What every request has: the id that its events carry."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id",)
    request_id: str

    def __post_init__(self) -> None:
        for name in self.bounded:
            text = getattr(self, name)
            if text is not None and text is not UNSET and not is_v1_identifier(text):
                raise IllegalFrame(f"expected {name} of 1 to {MAX_V1_ID_BYTES} bytes without NUL")


class Input(_Request, frozen=True, tag="input"):
    """Run the session's agent with these words; `agent` as in I24."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id", "session", "agent")
    session: str
    scope: Scope
    input: str
    origin: Origin
    event: Raw | UnsetType = UNSET
    cwd: str | None = None
    workspace: str | None = None
    agent: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        _Request.__post_init__(self)
        if "\x00" in self.input:
            raise IllegalFrame("expected input without NUL")
        check_event(self.event)


class Resume(_Request, frozen=True, tag="resume"):
    """Replay what the session recorded after this event; `after` as in I26."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id", "session", "after", "agent")
    session: str
    after: str | None = None
    agent: str | UnsetType = UNSET


class Status(_Request, frozen=True, tag="status"):
    """Say how the session is doing."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id", "session", "agent")
    session: str
    agent: str | UnsetType = UNSET


class Cancel(_Request, frozen=True, tag="cancel"):
    """Cancel a run."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id", "run", "agent")
    run: str
    agent: str | UnsetType = UNSET


class CommandResult(_Request, frozen=True, tag="command_result"):
    """Answer a command, on the connection whose run asked."""

    bounded: ClassVar[tuple[str, ...]] = ("request_id", "session", "command_id")
    session: str
    command_id: str
    result: Result


Request = Input | Resume | Status | Cancel | CommandResult
"""What a client sends; nothing else comes from it."""


class _Requested(Struct, frozen=True, tag_field="direction", tag="request"):
    value: Request


class _Happened(Struct, frozen=True, tag_field="direction", tag="event"):
    value: Event


class _Frame(Struct, frozen=True):
    abi: Abi
    payload: _Requested | _Happened


class Reply(Struct, frozen=True):
    """An event line as a client reads it, with the seq of a durable one (I26)."""

    event: Event
    session_seq: int | None = None


class _Outline(Struct):
    abi: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    session_seq: int | None = None


class _PayloadOutline(Struct):
    value: dict[str, Raw]


_frame: TolerantDecoder[_Frame] = TolerantDecoder(_Frame)
_outline = Decoder(_Outline)
_payload = Decoder(_PayloadOutline)
_text = Decoder(str)


def decode(line: bytes) -> Request | Event:
    """Read the frame of one line, newline included; raises FramingFault or RequestFault."""
    return parse(content(line))


def decode_request(line: bytes) -> Request:
    """As `decode`, for a line of a client."""
    value = decode(line)
    if isinstance(value, Request):
        return value
    raise RequestFault("$.payload.direction", "request", value.request_id)


def parse(text: bytes) -> Request | Event:
    """Read what a `LineFramer` cut out: a line without its newline, not too long."""
    try:
        check_value(text, MAX_DEPTH)
        value = _frame.decode(text, utf8_checked=True).payload.value
    except JsonSyntaxError as fault:
        raise FramingFault(fault.field, fault.expected) from None
    except JsonShapeError as fault:
        raise RequestFault(fault.field, fault.expected, _request_id(text)) from None
    wrong = _wrong_path(value)
    if wrong is not None:
        raise RequestFault(f"$.payload.value.{wrong}", _PATH, value.request_id)
    return value


def decode_reply(line: bytes, request_id: str) -> Reply | None:
    """Read an event line of any form, in answer to `request_id` (I6).

    None for a flat line of a type that a client skips. Raises FramingFault, and
    RequestFault also for the answer to another request.
    """
    text = content(line)
    try:
        outline = _outline.decode(text)
        if outline.abi is UNSET:
            event = decode_flat(text, request_id)
            return None if event is None else Reply(event, outline.session_seq)
    except JsonSyntaxError as fault:
        raise FramingFault(fault.field, fault.expected) from None
    except JsonShapeError as fault:
        raise RequestFault(fault.field, fault.expected, request_id) from None
    value = parse(text)
    if isinstance(value, Request) or value.request_id != request_id:
        raise RequestFault("$.payload", "an event of the request that is answered", request_id)
    return Reply(value, outline.session_seq)


def ends_stream(event: Event) -> bool:
    """Whether the stream of an input ends with this event."""
    return isinstance(event, RunDone) or (isinstance(event, Failure) and not event.retryable)


def encode_request(request: Request) -> bytes:
    """The line of a request; raises LocalProtocolError if it or a path is too long."""
    wrong = _wrong_path(request)
    if wrong is not None:
        raise LocalProtocolError(f"{wrong}: expected {_PATH}")
    return _line(_enveloped("request", request))


def encode_event(event: Event, form: Form = "both", session_seq: int | None = None) -> bytes:
    """The line of an event; `session_seq` where it is durable (I6, I26).

    Raises LocalProtocolError if it is too long: `both` holds the text twice.
    """
    members: dict[str, Any] = {} if form == "flat" else _enveloped("event", event)
    if form != "framed":
        members |= flat_members(event)
    if session_seq is not None:
        members["session_seq"] = session_seq
    return _line(members)


def answer_fault(fault: FrameFault, form: Form = "both") -> bytes:
    """The error line for a request that was refused.

    Flat where the request's id could not be told: a frame could not carry it.
    """
    request_id = fault.request_id if isinstance(fault, RequestFault) else None
    too_long = isinstance(fault, FramingFault) and fault.too_long
    failure = Failure(
        request_id or "-",
        code="EMSGSIZE" if too_long else "EINVAL",
        message=str(fault),
        retryable=False,
    )
    return encode_event(failure, "flat" if request_id is None else form)


_PATH = f"a path of 1 to {MAX_V1_ID_BYTES} bytes without NUL"


def _wrong_path(value: Request | Event) -> str | None:
    """The path of an input that a frame may not carry; a flat request may."""
    if isinstance(value, Input):
        for name in ("cwd", "workspace"):
            path = getattr(value, name)
            if path is not None and not is_v1_identifier(path):
                return name
    return None


def _enveloped(direction: str, value: Request | Event) -> dict[str, Any]:
    return {"abi": ABI, "payload": {"direction": direction, "value": value}}


def _line(members: dict[str, Any]) -> bytes:
    text = encode_json(members)
    if b"\n" in text:  # between the tokens of a kept text
        text = msgspec.json.format(text, indent=-1)
    if len(text) >= MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {len(text) + 1} bytes is too long")
    return text + b"\n"


def _request_id(text: bytes) -> str | None:
    """The id of the request at fault, if it is one; only a frame of ours is searched."""
    try:
        outline = _outline.decode(text)
        if outline.abi is UNSET or outline.payload is UNSET or _text.decode(outline.abi) != ABI:
            return None
        raw = _payload.decode(outline.payload).value.get("request_id", Raw())
        request_id = _text.decode(raw)
    except JsonError:
        return None
    return request_id if is_v1_identifier(request_id) else None
