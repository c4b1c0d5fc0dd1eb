"""What a server session asks its adapter to do (PURE).

A session's inputs answer a list of these, to be carried out in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cortextx.fleet.contract import Heartbeat, HelloParams, MetricsParams
    from cortextx.fleet.server.probes import ProbeOutcome
    from cortextx.interfaces.fleet import LogBatch


@dataclass(frozen=True, slots=True)
class Send:
    """Send one text message."""

    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a WebSocket ping with this payload (at most 125 bytes)."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection; nothing follows. `record` goes to last_disconnect_reason."""

    code: int
    reason: str
    record: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Have the registry judge a hello; answer with `hello_judged`."""

    hello: HelloParams


@dataclass(frozen=True, slots=True)
class Ingest:
    """Give a batch to the ingest writer; answer with `stored` or `not_stored` by `key`."""

    key: int
    batch: LogBatch


@dataclass(frozen=True, slots=True)
class Measure:
    """Have samples stored; answer with `measured` or `not_measured` by `key` (F24).

    `size` bytes are reserved for them until then.
    """

    key: int
    host_id: str
    metrics: MetricsParams
    size: int


@dataclass(frozen=True, slots=True)
class ProbeDone:
    """The probe that was asked with `key` is over (§4.7)."""

    key: int
    outcome: ProbeOutcome


@dataclass(frozen=True, slots=True)
class Opened:
    """The host is authenticated: supersede its older session, if any (F14)."""

    host_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat came, when all up to `accepted_seq` was stored of the host's."""

    heartbeat: Heartbeat
    accepted_seq: int


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Call `time_passed` at `at` (seconds, the reactor's clock); None: not at all."""

    at: float | None


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Read no more from the socket until ResumeReading."""


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from the socket again."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a peer's fault; `text` holds nothing that the peer sent."""

    text: str


Action = (
    Send | Ping | Close | Judge | Ingest | Measure | ProbeDone | Opened | Beat | SetDeadline
    | PauseReading | ResumeReading | Warn
)  # fmt: skip
