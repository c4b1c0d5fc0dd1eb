"""The member `data` of v2 frames, one type a kind (PURE; I7, I16, I20).

`build` puts a frame together and `read` takes its data apart. Members that are
not declared are ignored; the optional ones are left out where they say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from cortextx.core import exchange
from cortextx.core.exchange import Origin, RunStatus, Scope, is_identifier
from cortextx.core.jsontext import Decoder, encode
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonError
from cortextx.interaction.correlation import Correlation, Kind
from cortextx.interaction.faults import MAX_FRAME_BYTES, Code, IllegalFrame, ShapeFault
from cortextx.interaction.names import is_name
from cortextx.interaction.v2 import ABI, MAX_SEQ, WITH_SESSION, Body, Capability, Frame, Side
from cortextx.interfaces.sessions import Mode

MAX_EVENT_BYTES = 65_536
"""Bytes of an input's `event` object in its compact form."""

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class Hello(Struct, frozen=True):
    """What the master speaks, best first; `master_id` is a claim and no authority."""

    versions: tuple[str, ...] = ()
    fallback_versions: tuple[str, ...] = ()
    master_id: str | None = None


class Limits(Struct, frozen=True, kw_only=True):
    """The data of welcome: what one connection may use (I16); bytes of encoded frames."""

    max_attachments: Positive
    max_pending_requests_per_attachment: Positive
    max_pending_commands_per_attachment: Positive
    max_unacked_events_per_attachment: Positive
    max_outbound_bytes_per_attachment: Positive
    max_outbound_bytes_per_connection: Positive
    max_replay_events_per_batch: Positive
    max_frame_bytes: Positive = MAX_FRAME_BYTES


DEFAULT_LIMITS = Limits(
    max_attachments=64,
    max_pending_requests_per_attachment=32,
    max_pending_commands_per_attachment=16,
    max_unacked_events_per_attachment=1024,
    max_outbound_bytes_per_attachment=1 << 20,
    max_outbound_bytes_per_connection=8 << 20,
    max_replay_events_per_batch=256,
)


class Attach(Struct, frozen=True, omit_defaults=True):
    """Which session, and from where on: without a cursor from the head (I9).

    `space` names the space of a shared session; `owner` is the UID that a
    delegated host acts for (I15).
    """

    agent: str
    scope: Scope
    space: str | None = None
    after_session_seq: Count | None = None
    owner: Annotated[int, Meta(ge=0, lt=2**32)] | None = None

    def __post_init__(self) -> None:
        _check_place(self.agent, self.scope, self.space)
        if (self.after_session_seq or 0) > MAX_SEQ:
            raise IllegalFrame(f"expected after_session_seq of at most {MAX_SEQ}")


class Attached(Struct, frozen=True, omit_defaults=True):
    """What was attached: `replay_from` is the first seq that will come."""

    agent: str
    scope: Scope
    replay_from: Positive
    head: Count
    space: str | None = None

    def __post_init__(self) -> None:
        _check_place(self.agent, self.scope, self.space)


class Detach(Struct, frozen=True):
    """Nothing more to say."""


class Ack(Struct, frozen=True):
    """Nothing more to say: the seq stands in the frame."""


class Gap(Struct, frozen=True):
    """The seqs that are not there any more, both inclusive."""

    from_seq: Positive
    to_seq: Positive
    reason: str

    def __post_init__(self) -> None:
        if self.from_seq > self.to_seq:
            raise IllegalFrame("expected from_seq not beyond to_seq")


class Input(Struct, frozen=True, omit_defaults=True):
    """The user's words; `event` is an object of at most MAX_EVENT_BYTES."""

    text: str
    event: Raw | UnsetType = UNSET
    cwd: str | None = None
    workspace: str | None = None

    def __post_init__(self) -> None:
        check_event(self.event)


class StatusRequest(Struct, frozen=True):
    """Nothing more to say."""


class SessionState(Struct, frozen=True):
    """How the session is doing, as the slave says it."""

    status: str
    phase: str | None = None
    step: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    head: Count = 0


class Cancel(Struct, frozen=True):
    """Nothing more to say."""


class Accepted(Struct, frozen=True):
    """Nothing more to say."""


class Started(Struct, frozen=True):
    """The run executes, with this model where there is one."""

    model: str | None = None


class Delta(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="delta"):
    """A piece of text as it comes; `part` of `parts` where it was split (I33)."""

    text: str
    part: Positive | None = None
    parts: Positive | None = None


class Message(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="message"):
    """A whole message, or `part` of `parts` of it (I33)."""

    role: str
    text: str
    part: Positive | None = None
    parts: Positive | None = None


class Tool(Struct, frozen=True, tag_field="type", tag="tool"):
    """A tool call came into a state."""

    call_id: str
    name: str
    state: str


class CommandResolved(Struct, frozen=True, tag_field="type", tag="command"):
    """How a command ended; durable. `reason` says why it was rejected by us (I39)."""

    command_id: str
    effect_id: str | None
    state: str
    reason: str | UnsetType = UNSET


class Opaque(Struct, frozen=True):
    """An event of a type that we do not know: to be acknowledged, and not shown."""

    type: str


class Command(Struct, frozen=True):
    """What the run wants of its origin; an effect is carried out once for its id."""

    command: exchange.Command
    effect_id: str | None = None

    def __post_init__(self) -> None:
        _check_effect(self.effect_id)


class CommandResult(Struct, frozen=True, omit_defaults=True):
    """The answer to a command."""

    result: exchange.Result
    effect_id: str | None = None

    def __post_init__(self) -> None:
        _check_effect(self.effect_id)


class Error(Struct, frozen=True):
    """What went wrong (I7); a peer may use codes that we do not know."""

    code: str
    message: str
    retryable: bool

    @classmethod
    def of(cls, code: Code, message: str) -> Error:
        """An error of ours."""
        return cls(code.value, message, code.retryable)


class Done(Struct, frozen=True, omit_defaults=True):
    """How the run ended."""

    status: RunStatus
    error: Error | None = None


Data = (
    Hello
    | Limits
    | Attach
    | Attached
    | Detach
    | Ack
    | Gap
    | Input
    | StatusRequest
    | SessionState
    | Cancel
    | Accepted
    | Started
    | Delta
    | Message
    | Tool
    | CommandResolved
    | Command
    | CommandResult
    | Done
    | Error
)

KINDS: Mapping[type, tuple[Side, Kind]] = {
    Hello: ("master", "hello"),
    Limits: ("slave", "welcome"),
    Attach: ("master", "attach"),
    Attached: ("slave", "attached"),
    Detach: ("master", "detach"),
    Ack: ("master", "ack"),
    Gap: ("slave", "gap"),
    Input: ("master", "input"),
    StatusRequest: ("master", "status"),
    SessionState: ("slave", "status"),
    Cancel: ("master", "cancel"),
    Accepted: ("slave", "accepted"),
    Started: ("slave", "started"),
    Delta: ("slave", "event"),
    Message: ("slave", "event"),
    Tool: ("slave", "event"),
    CommandResolved: ("slave", "event"),
    Command: ("slave", "command"),
    CommandResult: ("master", "command_result"),
    Done: ("slave", "done"),
    Error: ("slave", "error"),
}
"""Which frame a type of data makes."""

_EVENT = ("slave", "event")
_events: TolerantDecoder[Any] = TolerantDecoder(Delta | Message | Tool | CommandResolved)
_EVENT_TYPES = frozenset({"delta", "message", "tool", "command"})
_opaque = Decoder(Opaque)
_decoders: Mapping[tuple[Side, Kind], TolerantDecoder[Any]] = {
    sort: TolerantDecoder(type) for type, sort in KINDS.items() if sort != _EVENT
}


def build(
    data: Data,
    correlation: Correlation,
    *,
    session_seq: int | None = None,
    capabilities: tuple[Capability, ...] = (),
    mode: Mode | None = None,
    session: str | None = None,
    origin: Origin | None = None,
) -> Frame:
    """The frame that carries `data`; with a seq, except on an ack, it is durable.

    Raises IllegalFrame for what the ABI forbids.
    """
    side, kind = KINDS[type(data)]
    return Frame(
        abi=ABI,
        correlation=correlation,
        session_seq=session_seq,
        event=Body(
            side=side,
            kind=kind,
            capabilities=capabilities,
            mode=mode,
            session=session,
            origin=origin,
            durable=session_seq is not None and kind != "ack",
            data=Raw(encode(data)),
        ),
    )


def read(frame: Frame) -> Data | Opaque:
    """Take a frame's data apart; raises ShapeFault with the frame's correlation."""
    body = frame.event
    if body.kind in WITH_SESSION and not is_name(body.session or ""):
        raise ShapeFault("$.event.session", "a name (I41)", frame.correlation)
    try:
        if body.kind != "event":
            data: Data = _decoders[body.side, body.kind].decode(body.data, utf8_checked=True)
            return data
        opaque = _opaque.decode(body.data, utf8_checked=True)
        if opaque.type not in _EVENT_TYPES:
            return opaque
        event: Data = _events.decode(body.data, utf8_checked=True)
        return event
    except JsonError as fault:
        field = fault.field.replace("$", "$.event.data", 1)
        raise ShapeFault(field, fault.expected, frame.correlation) from None


def fault_frame(fault: ShapeFault) -> Frame | None:
    """The error frame for a fault, where it may be answered at all (I23)."""
    if fault.correlation is None:
        return None
    return build(Error.of(Code.BAD_FRAME, str(fault)), fault.correlation)


def selected_version(hello: Hello) -> str | None:
    """The version to speak with this master, or None (`unsupported_version`)."""
    return ABI if ABI in hello.versions else None


def check_event(event: Raw | UnsetType) -> None:
    """Raise IllegalFrame unless an input's event is an object within bounds, null or absent."""
    if event is UNSET or bytes(event).strip() == b"null":
        return
    try:
        size = len(encode(_object.decode(event)))
    except JsonError:
        raise IllegalFrame("expected event to be an object") from None
    if size > MAX_EVENT_BYTES:
        raise IllegalFrame(f"expected an event of at most {MAX_EVENT_BYTES} bytes")


_object: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


def _check_place(agent: str, scope: Scope, space: str | None) -> None:
    if not is_name(agent):
        raise IllegalFrame("expected agent to be a name (I41)")
    if space is not None and (scope != "shared" or not is_name(space)):
        raise IllegalFrame("expected space to be a name, and only in scope shared")


def _check_effect(effect_id: str | None) -> None:
    if effect_id is not None and not is_identifier(effect_id):
        raise IllegalFrame("expected effect_id of 1 to 128 bytes without control characters")
