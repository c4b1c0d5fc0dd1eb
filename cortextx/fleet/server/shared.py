"""What one agent's connection needs of the server as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from cortextx.fleet.contract import AgentConfig, Heartbeat, HelloParams
    from cortextx.fleet.server.actions import Measure
    from cortextx.fleet.server.probes import ProbeOutcome
    from cortextx.fleet.server.protocol import AgentSocket
    from cortextx.fleet.server.session import ServerSession
    from cortextx.fleet.server.tokens import Verdict
    from cortextx.interfaces.fleet import LogBatch


class Fleet(Protocol):
    """What a connection needs of the server as a whole."""

    slow_peer_seconds: float

    def wall(self) -> int:
        """Now, in µs UTC."""

    def session(self, socket: AgentSocket) -> ServerSession:
        """The machine of a new connection."""

    def hello_over(self, socket: AgentSocket) -> None:
        """No good hello comes from this connection any more; may be said again."""

    def judge(
        self, socket: AgentSocket, hello: HelloParams
    ) -> Deferred[tuple[Verdict, AgentConfig | None]]:
        """Have a hello judged; fires with the host's own config, if it has one. Never fails."""

    def ingest(self, socket: AgentSocket, key: int, batch: LogBatch) -> None:
        """Have a batch stored; `socket` hears of it."""

    def measure(self, socket: AgentSocket, asked: Measure) -> None:
        """Have samples stored; `socket` hears of it."""

    def probe_over(self, key: int, outcome: ProbeOutcome) -> None:
        """A probe that a connection was asked for is over."""

    def opened(self, socket: AgentSocket, host_id: str, session_id: str) -> None:
        """The connection is a host's session now (F14)."""

    def beat(self, socket: AgentSocket, heartbeat: Heartbeat, accepted_seq: int) -> None:
        """A heartbeat came, when all up to `accepted_seq` was stored."""

    def gone(self, socket: AgentSocket, record: str) -> None:
        """The connection is over; `record` says why."""
