"""The frames of `cortexfs.channel.socket/v1`, and who may send which (PURE).

A frame is one line of JSON. `decode` and `encode` stand side by side: what one
gives the other takes. Odd but legal forms are read (I42) and never sent. Syntax
comes before shape: a text with both faults is a FramingFault.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NoReturn, get_args

from msgspec import Struct

from cortextx.channel.abilities import Abilities, ActionFlags, CapabilityFlags
from cortextx.channel.effects import ControlAction, Effect
from cortextx.channel.faults import FrameFault, FramingFault, ShapeFault
from cortextx.channel.values import (
    Health,
    InboundMessage,
    IncomingEvent,
    LifecycleEvent,
    MessageTarget,
    OutboundMessage,
    Receipt,
    check_bounded,
    check_target,
    is_bounded,
)
from cortextx.core import jsontext
from cortextx.core.exchange import ChannelCommand, Result
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError, LocalProtocolError

ABI = "cortexfs.channel.socket/v1"
MAX_FRAME_BYTES = 256 * 1024
"""Bytes of an encoded frame, its newline included: the limit of a LineFramer."""
MAX_DEPTH = 127
"""Arrays and objects within one another in a frame; a value of ours in it has at most 100."""


class _Frame(Struct, frozen=True, tag_field="type"):
    """What every frame has: its type."""


class _Request(_Frame, frozen=True):
    """A frame with a request id: one to be answered, or an answer."""

    request_id: str

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)


class Hello(_Request, frozen=True, tag="hello", omit_defaults=True):
    """A driver says which channel it is and what it can do; it replaces an older one.

    The channel may be any bounded value here: whether it is a channel's name is
    `route.is_channel`, and for the host to refuse.
    """

    channel: str
    capabilities: CapabilityFlags
    actions: ActionFlags = {}

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("channel", self.channel)

    @property
    def abilities(self) -> Abilities:
        """What this driver may be asked for."""
        return Abilities.declared(self.capabilities, self.actions)


class ControlHello(_Request, frozen=True, tag="control_hello"):
    """A controller joins a channel; its driver stays."""

    channel: str

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("channel", self.channel)


class Start(_Request, frozen=True, tag="start"):
    """The driver is to connect to its platform."""


class Stop(_Request, frozen=True, tag="stop"):
    """The driver is to disconnect."""


class Inbound(_Frame, frozen=True, tag="inbound"):
    """A message from the platform."""

    event_id: str
    message: InboundMessage

    def __post_init__(self) -> None:
        check_bounded("event_id", self.event_id)


class InboundEvent(_Frame, frozen=True, tag="inbound_event"):
    """Something else that happened on the platform."""

    event_id: str
    event: IncomingEvent

    def __post_init__(self) -> None:
        check_bounded("event_id", self.event_id)


class _Message(_Request, frozen=True):
    """A message for the driver to send."""

    message: OutboundMessage

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_target("message.target", self.message.target)


class Deliver(_Message, frozen=True, tag="deliver"):
    """The answer to an inbound."""


class Outbound(_Message, frozen=True, tag="outbound"):
    """A message that answers none; the driver says when it was sent by a receipt."""


class EffectFrame(_Request, frozen=True, tag="effect"):
    """Something to do on the platform, of what the driver's actions declare."""

    target: MessageTarget
    effect: Effect

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_target("target", self.target)


class CommandFrame(_Request, frozen=True, tag="command", omit_defaults=True):
    """A question of a session's to the user, for a driver that has commands."""

    session: str
    command_id: str
    command: ChannelCommand
    target: MessageTarget | None = None

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("session", self.session)
        check_bounded("command_id", self.command_id)
        check_target("target", self.target)


class CommandResult(_Request, frozen=True, tag="command_result"):
    """The answer to a command: all three ids are the command's."""

    session: str
    command_id: str
    result: Result

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("session", self.session)
        check_bounded("command_id", self.command_id)


class ControlRequest(_Request, frozen=True, tag="control_request"):
    """A controller's wish, which the host checks and forwards."""

    action: ControlAction


class ControlResponse(_Request, frozen=True, tag="control_response", omit_defaults=True):
    """Whether a controller's wish was accepted; `error` is a code."""

    accepted: bool
    error: str | None = None

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("error", self.error)


class ReceiptFrame(_Request, frozen=True, tag="receipt"):
    """The platform has the message of this request."""

    receipt: Receipt


class HealthRequest(_Request, frozen=True, tag="health_request"):
    """How is it going?"""


class HealthResponse(_Request, frozen=True, tag="health_response"):
    """How it is going, because it was asked."""

    health: Health


class HealthFrame(_Frame, frozen=True, tag="health"):
    """How it is going, unasked."""

    health: Health


class LifecycleFrame(_Frame, frozen=True, tag="event"):
    """What became of a connection."""

    event: LifecycleEvent


class ErrorFrame(_Frame, frozen=True, kw_only=True, tag="error"):
    """Something failed: the request of this id, or nothing that has one."""

    request_id: str | None = None
    code: str
    message: str
    retryable: bool

    def __post_init__(self) -> None:
        check_bounded("request_id", self.request_id)
        check_bounded("code", self.code)


Frame = (
    Hello
    | ControlHello
    | Start
    | Stop
    | Inbound
    | InboundEvent
    | Deliver
    | Outbound
    | EffectFrame
    | CommandFrame
    | CommandResult
    | ControlRequest
    | ControlResponse
    | ReceiptFrame
    | HealthRequest
    | HealthResponse
    | HealthFrame
    | LifecycleFrame
    | ErrorFrame
)
Kinds = frozenset[type[Any]]
"""Types of frames."""

ALL: Kinds = frozenset(get_args(Frame))
_EITHER: Kinds = frozenset({HealthRequest, HealthResponse, LifecycleFrame, ErrorFrame})
FROM_DRIVER: Kinds = _EITHER | {
    Hello, Inbound, InboundEvent, CommandResult, ReceiptFrame, HealthFrame
}  # fmt: skip
TO_DRIVER: Kinds = _EITHER | {Start, Stop, Deliver, Outbound, EffectFrame, CommandFrame}
FROM_CONTROLLER: Kinds = _EITHER | {ControlHello, ControlRequest}
TO_CONTROLLER: Kinds = _EITHER | {ControlResponse}


class _Envelope(Struct, frozen=True):
    abi: Literal["cortexfs.channel.socket/v1"]
    frame: Frame


def decode(text: bytes, allowed: Kinds = ALL) -> Frame:
    """Decode a line as a LineFramer gives it, without its newline.

    `allowed` are the types that its sender may send. Raises FramingFault where it
    is not JSON within the bounds and ShapeFault where it is not such a frame.
    """
    if len(text) >= MAX_FRAME_BYTES:
        raise too_long()
    if not text or b"\n" in text:
        raise FramingFault("$", "one JSON value on one line")
    try:
        jsontext.check_value(text, MAX_DEPTH)
        frame = _envelope.decode(text, utf8_checked=True).frame
    except JsonError as error:
        _refuse(text, error)
    if type(frame) not in allowed:
        raise ShapeFault("$.frame.type", "a frame for its sender to send", _request_id(text))
    return frame


def decode_line(line: bytes, allowed: Kinds = ALL) -> Frame:
    """As `decode`, for a line with its newline: exactly one, at its end."""
    if len(line) > MAX_FRAME_BYTES:
        raise too_long()
    if not line.endswith(b"\n"):
        raise FramingFault("$", "a newline behind the frame")
    return decode(line[:-1], allowed)


def encode(frame: Frame) -> bytes:
    """Encode a frame as one line with its newline.

    Raises LocalProtocolError for a frame that exceeds 256 KiB, and for text that
    is not to be expressed in UTF-8.
    """
    body = jsontext.encode(frame)
    if b"\n" in body:
        # Only between the tokens of a value that is kept as text: white space there.
        body = body.replace(b"\n", b" ")
    line = b'{"abi":"%s","frame":%s}\n' % (ABI.encode(), body)
    if len(line) > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of more than {MAX_FRAME_BYTES} bytes")
    return line


def too_long() -> FramingFault:
    """The fault of a line that exceeds the bound, complete or not."""
    return FramingFault("$", f"a frame of at most {MAX_FRAME_BYTES} bytes", too_long=True)


def refusal(fault: FrameFault) -> ErrorFrame:
    """The error that tells a peer of a fault of its own."""
    return ErrorFrame(
        request_id=fault.request_id if isinstance(fault, ShapeFault) else None,
        code="EMSGSIZE" if isinstance(fault, FramingFault) and fault.too_long else "EINVAL",
        message=str(fault),
        retryable=False,
    )


_PLACE = re.compile(r"(?P<place>[a-z_]+(?:\.[a-z_]+)*): (?P<expected>.*)", re.DOTALL)
_envelope: TolerantDecoder[_Envelope] = TolerantDecoder(_Envelope)


def _refuse(text: bytes, error: JsonError) -> NoReturn:
    if isinstance(error, JsonSyntaxError):
        raise FramingFault(error.field, error.expected) from None
    field, expected = error.field, error.expected
    place = _PLACE.fullmatch(expected)
    if place is not None:
        # A check of ours, made on the whole value (see IllegalValue).
        field, expected = f"{field}.{place['place']}", place["expected"]
    raise ShapeFault(field, expected, _request_id(text)) from None


def _request_id(text: bytes) -> str | None:
    """What an answer to a refused frame may name."""
    try:
        value: Any = jsontext.decode(text)
    except JsonShapeError:
        return None
    frame = value.get("frame") if isinstance(value, dict) else None
    if isinstance(frame, dict):
        for name in ("request_id", "event_id"):
            found = frame.get(name)
            if isinstance(found, str) and is_bounded(found):
                return found
    return None
