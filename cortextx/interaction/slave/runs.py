"""One accepted run as the session machine keeps it, and what makes its output fit (PURE)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from blake3 import blake3

from cortextx.core import exchange
from cortextx.core.exchange import Command, Invoke, Notify, RequestApproval, RequestInput, Result
from cortextx.core.jsontext import encode
from cortextx.core.mending import mend_text, mend_value
from cortextx.interaction.data import Message, Tool
from cortextx.interaction.parts import DATA_BYTES_BOTH, split
from cortextx.interaction.slave.actions import InputAsked

MAX_WORD = 256
"""Characters of a role, a tool's name or state, and what else is no text."""
REMEMBERED = 256
"""Commands of a session whose answers are known, so that they may be repeated."""

RunState = Literal["queued", "running", "cancelling", "over"]


@dataclass(slots=True, eq=False)
class Pending:
    """A command that waits for its answer until `deadline`."""

    command_id: str
    effect_id: str | None
    token: object
    deadline: float


@dataclass(slots=True, eq=False)
class Run:
    """A run from acceptance until done. `origin` is None once it cannot be asked."""

    run_id: str
    item: InputAsked
    accepted: int
    origin: int | None
    listener: int | None
    state: RunState = "queued"
    started: bool = False
    paused: bool = False
    kill_due: bool = False
    commands: int = 0
    steps: int = 0
    pending: dict[str, Pending] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """How a command ended: whose it was, what was answered, and whether in time."""

    origin: int | None
    digest: bytes
    expired: bool


class Resolutions:
    """The newest commands that were resolved."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Resolved] = OrderedDict()

    def note(self, command_id: str, resolved: Resolved) -> None:
        """Remember one; the oldest is forgotten."""
        self._known[command_id] = resolved
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def find(self, command_id: str) -> Resolved | None:
        """One that is remembered."""
        return self._known.get(command_id)


def digest_of(result: Result) -> bytes:
    """What tells one answer from another, whatever its white space is."""
    value = msgspec.json.decode(encode(result))
    return blake3(msgspec.json.encode(value, order="deterministic")).digest(length=16)


def messages_of(role: str, text: str) -> tuple[list[Message], bool]:
    """The messages that say this, each fit for a frame; and whether it was mended (I33, I40)."""
    clean, mended = mend_text(text)
    said, odd = mend_text(role[:MAX_WORD])
    return split(Message(said, clean), DATA_BYTES_BOTH), mended or odd


def tool_of(call: exchange.ToolCall) -> tuple[Tool, bool]:
    """The fact of a tool call."""
    words = [mend_text(text[:MAX_WORD]) for text in (call.call_id, call.name, call.state)]
    return Tool(*(text for text, _ in words)), any(mended for _, mended in words)


def mended_command(command: Command) -> Command:
    """The same command, so that any reader can decode it (I40)."""
    match command:
        case RequestApproval(tool, arguments):
            return RequestApproval(mend_text(tool)[0], mend_value(bytes(arguments))[0])
        case Invoke(name, payload):
            return Invoke(mend_text(name)[0], mend_value(bytes(payload))[0])
        case RequestInput(prompt):
            return RequestInput(mend_text(prompt)[0])
        case Notify(level, text):
            return Notify(mend_text(level)[0], mend_text(text)[0])


def waiting_of(runs: Sequence[Run], asker: int) -> int:
    """How many of these runs an asker began (v2: pending requests)."""
    return sum(run.item.asker == asker for run in runs)
