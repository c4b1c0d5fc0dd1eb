"""What the master's machine asks of its adapter (PURE)."""

from __future__ import annotations

from dataclasses import dataclass, field

from cortextx.interaction.data import CommandResolved, Done, Error, SessionState
from cortextx.interaction.master.events import Attached


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection and see who answers; then `connected`, `peer_lost` or `failed`."""


@dataclass(frozen=True, slots=True)
class Write:
    """Send these lines."""

    lines: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is of no more use; nothing of it is to be reported any more."""

    abort: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The slave has welcomed us."""


@dataclass(frozen=True, slots=True)
class Lost:
    """There is no connection; another is tried for after `seconds`."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The inbox of this attachment has something to take."""

    key: int


@dataclass(frozen=True, slots=True)
class RunAccepted:
    """An input became a run."""

    run_id: str


ATTACH = ""
"""The id under which it is settled that an attachment is attached, or never will be."""

Outcome = Attached | RunAccepted | Done | SessionState | CommandResolved | Error


@dataclass(frozen=True, slots=True)
class Settled:
    """What an attachment asked for under `id` has this outcome.

    An input has two: RunAccepted and Done. An Error is the last in any case.
    """

    key: int
    id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing more comes of the whole machine."""

    reason: str


Action = Connect | Write | Close | Opened | Lost | Ready | Settled | Over
