"""One live session a host: a newer one takes over from the older (F14).

What the older session had pushed may still wait for the store when the newer one
is judged. It is stored, or refused, before the newer one is told accepted_seq: a
host that numbers anew from there (F2) would else have fresh entries taken for ones
that are stored already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cortextx.fleet.server.tokens import REVOKED

if TYPE_CHECKING:
    from cortextx.fleet.server.clones import CloneReport, CloneWatch
    from cortextx.fleet.server.ingest import IngestWriter
    from cortextx.fleet.server.protocol import AgentSocket
    from cortextx.fleet.server.tokens import Accepted, Verdict
    from cortextx.interfaces.fleet import Candidates, HostRecord, IHostRegistry


@dataclass(slots=True)
class Live:
    """A host's live session; times in µs UTC, `last_beat` None before the first heartbeat.

    One that is superseded stays until its connection is gone, but takes nothing any more.
    """

    socket: AgentSocket
    session_id: str
    since: int
    last_beat: int | None = None
    skew_told: bool = False
    superseded: bool = False


class Succession:
    """Ends older sessions among `live` (by host id). `cloned` is told of what looks like two
    machines with one token; `seconds` are the reactor's, `wall` is µs UTC."""

    def __init__(
        self,
        live: Mapping[str, Live],
        writer: IngestWriter,
        registry: IHostRegistry,
        clones: CloneWatch,
        seconds: Callable[[], float],
        wall: Callable[[], int],
        cloned: Callable[[str, CloneReport], None],
    ) -> None:
        self._live = live
        self._writer = writer
        self._registry = registry
        self._clones = clones
        self._seconds = seconds
        self._wall = wall
        self._cloned = cloned

    def supersede(self, host_id: str, socket: AgentSocket) -> None:
        """End the host's live session, if it is not that of `socket`: its further frames are
        ignored."""
        older = self._live.get(host_id)
        if older is None or older.superseded or older.socket is socket:
            return
        older.superseded = True
        report = self._clones.superseded(
            host_id,
            older.socket.remote_address,
            socket.remote_address,
            self._seconds(),
            self._wall(),
        )
        older.socket.superseded()
        if report is not None:
            self._cloned(host_id, report)

    async def settled(
        self, socket: AgentSocket, verdict: Accepted, digest: bytes
    ) -> tuple[Verdict, bool]:
        """The verdict with the accepted_seq that holds when its session opens, which must be
        at once; and whether its token has been told to expire since it was judged, so that
        the session has to be cut like a live one (F7). One that was revoked since is
        refused (F8). Waits for the commit in flight and what is queued of the host.
        `digest` is its token's. Raises what the registry does.
        """
        host_id = verdict.host_id
        while True:
            self.supersede(host_id, socket)
            await self._writer.none_of(host_id)
            # Behind every append that was begun, and without a write.
            row = await self._registry.judge(host_id, digest, _owner)
            live = self._live.get(host_id)
            if self._writer.holds(host_id) or (live is not None and not live.superseded):
                # Another hello of the host was faster, and its session may push already.
                continue
            if row is None:
                return verdict, False
            if row.state == "revoked":
                return REVOKED, False
            ending = row.rotation_pending and row.token_expires_at is not None
            return replace(verdict, accepted_seq=row.accepted_seq), ending


def _owner(candidates: Candidates) -> tuple[HostRecord | None, None]:
    return candidates.owner, None
