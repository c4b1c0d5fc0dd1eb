"""What sessions, channels and runtimes say to each other, as types (PURE).

`Command`, `Result`, `Origin` and `Event` have one shape in both interaction ABIs,
on the channel socket and between a session and its runtime; envelopes and
correlation are those protocols' own. `core.flatlines` reads and writes the flat
event lines of deployed peers.

Members that are not declared are ignored. A `Raw` member is the sender's text,
checked by `decode_*` here; where one of these types is part of a bigger frame,
whoever decodes the frame calls `jsontext.check_value` on it once. A `Raw` keeps
the whole frame in memory until it is copied (`Raw.copy`).
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Raw, Struct

from cortextx.core.jsontext import Decoder, Text, check_value

Scope = Literal["private", "shared", "temp"]
RunStatus = Literal["completed", "cancelled", "error", "interrupted"]
"""How a run ended (I20). A v1 peer may say others."""

MAX_ID_BYTES = 128
"""Bytes of an identifier (I2)."""
MAX_V1_ID_BYTES = 256
"""Bytes of an identifier of a v1 peer (I25)."""
MAX_METADATA_BYTES = 65_536
"""Bytes of all names and values of an origin's metadata together."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_identifier(text: str) -> bool:
    """Whether `text` is 1 to 128 bytes of UTF-8 without control characters (I2)."""
    return 0 < len(text.encode()) <= MAX_ID_BYTES and _CONTROL.search(text) is None


def is_v1_identifier(text: str) -> bool:
    """Whether `text` is 1 to 256 bytes of UTF-8 without NUL (I25)."""
    return 0 < len(text.encode()) <= MAX_V1_ID_BYTES and "\x00" not in text


class Origin(Struct, frozen=True):
    """Where an input comes from: it describes, it grants nothing.

    A v1 peer may send parts of any length; `strict` says whether v2 takes it.
    """

    transport: Annotated[str, Meta(min_length=1)]
    endpoint: str | None = None
    identity: str | None = None
    conversation: str | None = None
    thread: str | None = None
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        size = sum(len(name.encode()) + len(text.encode()) for name, text in self.metadata.items())
        if size > MAX_METADATA_BYTES:
            raise ValueError(f"expected metadata of at most {MAX_METADATA_BYTES} bytes")

    @property
    def strict(self) -> bool:
        """Whether every part that is given is an identifier (I2)."""
        parts = (self.transport, self.endpoint, self.identity, self.conversation, self.thread)
        return all(part is None or is_identifier(part) for part in parts)


class RequestInput(Struct, frozen=True, tag_field="type", tag="request_input"):
    """Ask the user for words."""

    prompt: str


class RequestApproval(Struct, frozen=True, tag_field="type", tag="request_approval"):
    """Ask the user to let a tool run with these arguments."""

    tool: str
    arguments: Raw


class Notify(Struct, frozen=True, tag_field="type", tag="notify"):
    """Tell the user something."""

    level: str
    text: str


class Invoke(Struct, frozen=True, tag_field="type", tag="invoke"):
    """Have the frontend do something by name."""

    name: str
    payload: Raw


Command = RequestInput | RequestApproval | Notify | Invoke
"""What a session asks of the frontend whose run it is."""


class Choice(Struct, frozen=True):
    """One of the answers to choose from."""

    id: str
    label: str


class RequestChoice(Struct, frozen=True, tag_field="type", tag="request_choice"):
    """Ask the user to choose; on the channel socket only."""

    question: str
    choices: list[Choice]
    multiple: bool = False


ChannelCommand = RequestInput | RequestApproval | Notify | Invoke | RequestChoice
"""What a channel host asks of a driver."""


class Accepted(Struct, frozen=True, tag_field="type", tag="accepted"):
    """The command was carried out, or approved."""


class Rejected(Struct, frozen=True, tag_field="type", tag="rejected"):
    """The command was refused, and why."""

    reason: str


class Value(Struct, frozen=True, tag_field="type", tag="value"):
    """The command's answer."""

    payload: Raw


Result = Accepted | Rejected | Value
"""The answer to a command."""


class _Event(Struct, frozen=True, tag_field="type"):
    """What every event has: the id of the request that it answers."""

    identifiers: ClassVar[tuple[str, ...]] = ("request_id",)
    request_id: str

    def __post_init__(self) -> None:
        for name in self.identifiers:
            if not is_v1_identifier(getattr(self, name)):
                raise ValueError(f"expected {name} of 1 to {MAX_V1_ID_BYTES} bytes without NUL")


class _RunEvent(_Event, frozen=True):
    """An event of one run."""

    identifiers: ClassVar[tuple[str, ...]] = ("request_id", "run")
    run: str


class RunAccepted(_Event, frozen=True, tag="accepted"):
    """A request became a run of a session."""

    identifiers: ClassVar[tuple[str, ...]] = ("request_id", "session", "run")
    session: str
    run: str


class RunStarted(_RunEvent, frozen=True, tag="started"):
    """The run began to execute, with this model where there is one."""

    model: str | None = None


class Delta(_RunEvent, frozen=True, tag="delta"):
    """A piece of text as it comes; never durable."""

    text: str


class Message(_RunEvent, frozen=True, tag="message"):
    """A whole message."""

    role: str
    text: str


class ToolCall(_RunEvent, frozen=True, tag="tool"):
    """A tool call came into a state, "requested" at first."""

    call_id: str
    name: str
    state: str


class CommandIssued(_RunEvent, frozen=True, tag="command"):
    """The run wants something of its frontend and waits for a result."""

    identifiers: ClassVar[tuple[str, ...]] = ("request_id", "run", "command_id")
    command_id: str
    command: Command


class SessionStatus(_Event, frozen=True, tag="status"):
    """How a session is doing."""

    session: str
    status: str
    phase: str | None = None
    step: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


class Failure(_Event, frozen=True, kw_only=True, tag="error"):
    """A request or run failed; `code` is an errno name as `EINVAL` (in v2 one of I7)."""

    run: str | None = None
    code: str
    message: str
    retryable: bool


class RunDone(_RunEvent, frozen=True, tag="done"):
    """The run has ended; the last event of its stream."""

    status: str


Event = (
    RunAccepted
    | RunStarted
    | Delta
    | Message
    | ToolCall
    | CommandIssued
    | SessionStatus
    | Failure
    | RunDone
)
"""What a request's stream carries, as in a v1 event frame."""


def decode_command(raw: Text) -> Command:
    """Decode one of the four commands; raises JsonSyntaxError or JsonShapeError."""
    check_value(raw)
    return _command.decode(raw, utf8_checked=True)


def decode_result(raw: Text) -> Result:
    """Decode a command's result; raises JsonSyntaxError or JsonShapeError."""
    check_value(raw)
    return _result.decode(raw, utf8_checked=True)


def decode_event(raw: Text) -> Event:
    """Decode an event as a v1 frame carries it; raises JsonSyntaxError or JsonShapeError."""
    check_value(raw)
    return _event.decode(raw, utf8_checked=True)


_command: Decoder[Command] = Decoder(Command)
_result: Decoder[Result] = Decoder(Result)
_event: Decoder[Event] = Decoder(Event)
