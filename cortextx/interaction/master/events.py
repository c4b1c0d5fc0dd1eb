"""What an application is told of a session: one `Event`, with typed content (PURE).

The contents that come from the slave are those of `interaction.data`, named here
once more so that an application imports them from one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cortextx.core.exchange import Accepted as Approved
from cortextx.core.exchange import (
    Invoke,
    Notify,
    Origin,
    Rejected,
    RequestApproval,
    RequestInput,
    Result,
    Scope,
    Value,
)
from cortextx.interaction.data import (
    Accepted,
    Command,
    CommandResolved,
    Delta,
    Done,
    Error,
    Gap,
    Message,
    Opaque,
    SessionState,
    Started,
    Tool,
)
from cortextx.interaction.v2 import Capability
from cortextx.interfaces.sessions import Mode

__all__ = [
    "Accepted",
    "Approved",
    "Attached",
    "Command",
    "CommandLost",
    "CommandResolved",
    "Content",
    "Delta",
    "Detached",
    "Disconnected",
    "Done",
    "Error",
    "Event",
    "Gap",
    "Invoke",
    "Message",
    "Notify",
    "Opaque",
    "Origin",
    "Place",
    "Rejected",
    "RequestApproval",
    "RequestInput",
    "Result",
    "SessionState",
    "Started",
    "Tool",
    "Value",
    "Warned",
]

INTERACT: tuple[Capability, ...] = (
    "input",
    "observe",
    "status",
    "cancel",
    "command_result",
    "replay",
)
OBSERVE: tuple[Capability, ...] = ("observe", "status", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which session, and how it is attached to.

    `after` is the newest seq that the application has dealt with: 0 for all that is
    retained, None for what comes from now on (I9). Without `capabilities` it is the
    usual ones of the mode; `invoke` is not among them.
    """

    agent: str
    session: str = "default"
    scope: Scope = "private"
    space: str | None = None
    owner: int | None = None
    mode: Mode = "interact"
    capabilities: tuple[Capability, ...] = ()
    after: int | None = None

    @property
    def asks_for(self) -> tuple[Capability, ...]:
        """The capabilities to ask for."""
        return self.capabilities or (INTERACT if self.mode == "interact" else OBSERVE)

    @property
    def sees_all(self) -> bool:
        """Whether it is to get the facts of others' requests, and so every seq."""
        return "observe" in self.asks_for


@dataclass(frozen=True, slots=True)
class Attached:
    """The session is there: facts up to `head` are replay. `resumed`: once more."""

    replay_from: int
    head: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone, and is being made anew; deltas of the meantime are lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Detached:
    """The attachment is over, the last event of it. `code` is one of I7, or `closed`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CommandLost:
    """A command can be answered no more, as its connection is gone (I11)."""

    command_id: str


@dataclass(frozen=True, slots=True)
class Warned:
    """The slave complained of something that nobody waits for an answer to."""

    code: str
    message: str


Content = (
    Accepted
    | Started
    | Delta
    | Message
    | Tool
    | Command
    | CommandResolved
    | SessionState
    | Error
    | Done
    | Gap
    | Opaque
    | Attached
    | Disconnected
    | Detached
    | CommandLost
    | Warned
)

Effect = Literal["none", "new", "unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in a session.

    A durable fact has a `seq`; what has none is live only. `is_replay`: it is older
    than the attachment (I41). `is_own`: it belongs to a request of this attachment's.
    `effect` is of a Command: `unknown` says that its side effect was begun before and
    may have happened, so that it must not be carried out blindly.
    """

    content: Content = field(repr=True)
    seq: int | None = None
    request_id: str | None = None
    run_id: str | None = None
    command_id: str | None = None
    is_replay: bool = False
    is_own: bool = False
    effect: Effect = "none"
