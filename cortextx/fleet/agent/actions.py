"""What the agent's link machine asks its adapter to do (PURE).

The link's inputs answer a list of these, to be carried out in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortextx.fleet.contract import AgentConfig


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a WebSocket to the server; answer with `connected` or `peer_lost`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send one text message."""

    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Beat:
    """Send agent.heartbeat with the wall time and the buffer's depth and size (§4.2)."""

    push_lag_seq: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection; the adapter still answers with `peer_lost`."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class StoreToken:
    """Store a token atomically and durably; answer with `token_stored` (§3).

    `replaced` is kept beside it, for a server that was restored from a backup (A56).
    """

    token: str = field(repr=False)
    replaced: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeleteToken:
    """Delete the stored token and the one before (§3.7, §4.3)."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Tell the buffer what the server has; answer with `adopted` (§7, F2, F26)."""

    accepted_seq: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read the entries from seq `first` on; answer with `batch_read` (maybe empty)."""

    first: int
    max_entries: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """All up to `acked` is durable on the server: the buffer may drop it."""

    acked: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Entry `seq` was refused alone, for good: keep it apart, go on past it (F25)."""

    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Configure:
    """The server's configuration is this now (F18, F22); `pushed` by a config.update."""

    config: AgentConfig
    pushed: bool = False


@dataclass(frozen=True, slots=True)
class RefuseConfig:
    """The server sent a configuration that is not usable, which changes nothing (A58)."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Run a probe; answer with `probe_done` and the same `ticket` (§4.6).

    `args` is JSON, `seconds` its time-out. CancelProbes takes it back.
    """

    ticket: int
    probe: str
    args: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelProbes:
    """The connection whose probes these were has gone: nobody is to be answered (F27)."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Take this host's samples; answer with `gathered` (§4.5)."""


@dataclass(frozen=True, slots=True)
class PauseSources:
    """Let the sources rest: nothing can be sent for long (F34)."""


@dataclass(frozen=True, slots=True)
class ResumeSources:
    """Let the sources run."""


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Call `time_passed` at `at` (seconds, the reactor's clock); None: not at all."""

    at: float | None


@dataclass(frozen=True, slots=True)
class Say:
    """Log for the operator; `level` is info, warn or critical. No secret is in `text`."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class ReportRestored:
    """Tell the server, in an entry of this host's own, that it lost what it had acked: the
    seqs `first` to `last` are not in the database that was restored there (F26, F37)."""

    first: int
    last: int


Action = (
    Connect | Send | Beat | Close | StoreToken | DeleteToken | Adopt | ReadBatch | Truncate
    | SetAside | Configure | RefuseConfig | RunProbe | CancelProbes | Gather
    | PauseSources | ResumeSources | SetDeadline | Say | ReportRestored
)  # fmt: skip
