"""The fleet server: who is connected, who may connect, and what was seen of them.

It stands between the connections (`fleet.server.protocol`), the registry and the
ingest writer. It knows of one live session a host (F14) and carries out what an
operator asks for: issue, rotate, revoke, forget (F6–F8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from cortextx.core.budgets import Gauge
from cortextx.errors import ConfigError
from cortextx.fleet.contract import CloseCode, Code
from cortextx.fleet.invitation import Invitation, write_invitation
from cortextx.fleet.server import tokens
from cortextx.fleet.server.ingest import IngestWriter
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.interfaces.fleet import Presence

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from cortextx.fleet.contract import Heartbeat, HelloParams
    from cortextx.fleet.server.protocol import AgentSocket
    from cortextx.fleet.server.settings import ServerSettings
    from cortextx.fleet.server.tokens import Mint, Verdict
    from cortextx.interfaces.fleet import (
        Candidates,
        HostRecord,
        IHostRegistry,
        ILogStore,
        LogBatch,
    )

CLONE_SUPERSESSIONS = 5
"""More supersessions than this within CLONE_SECONDS point to a clone (F14)."""
CLONE_SECONDS = 60.0
GOODBYE_SECONDS = 1.0
"""How long a stopping server waits for the answer to its closes."""
RESTARTED = "the server went away"


@dataclass(slots=True)
class Live:
    """A host's live session."""

    socket: AgentSocket
    session_id: str
    since: int


@dataclass(frozen=True, slots=True)
class Issued:
    """A pending row and its one-time token, which is shown once."""

    record: HostRecord
    token: str = field(repr=False)
    invitation: str = field(repr=False)


class FleetServer:
    """All that the connections share. `wall` gives µs UTC, `version` is HelloResult's.

    Who listens for it fills in `addresses`, and `own_url`, which invitations
    name where no `public_url` is configured.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        store: ILogStore,
        registry: IHostRegistry,
        settings: ServerSettings,
        *,
        mint: Mint,
        wall: Callable[[], int],
        version: str,
    ) -> None:
        self._reactor = reactor
        self.store = store
        self.registry = registry
        self.settings = settings
        self.version = version
        self.wall = wall
        self._mint = mint
        table = settings.server
        self.slow_peer_seconds = table.slow_peer_secs
        self.gauge = Gauge(table.ingest_soft_bytes, table.ingest_hard_bytes)
        self.writer = IngestWriter(store, self.gauge)
        self.addresses: list[str] = []
        self.own_url: str | None = None
        self._session_settings = SessionSettings(
            min_agent_version=table.min_agent_version,
            server_version=version,
            agent_config=settings.agent_config,
            hello_max_bytes=table.hello_max_bytes,
        )
        self._policy = tokens.TokenPolicy(table.rotation_grace_secs)
        self._sockets: dict[AgentSocket, str | None] = {}
        self._live: dict[str, Live] = {}
        self._supersessions: dict[str, deque[float]] = {}
        self._seen: dict[tuple[str, str | None], Presence] = {}
        self._flush_call: IDelayedCall | None = None
        self._stopping = False
        self._all_gone: list[Deferred[None]] = []

    # Life.

    async def start(self) -> None:
        """Note that hosts whose row says active are not connected to this process."""
        stale = [
            Presence(
                host_id=record.host_id,
                session_id=record.session_id,
                state="disconnected",
                last_disconnect_reason=RESTARTED,
            )
            for record in await self.registry.list_hosts()
            if record.state == "active" and record.host_id is not None
        ]
        if stale:
            await self.registry.seen(stale)

    async def stop(self) -> None:
        """Say goodbye to all (§4.3), wait for what they pushed, and write what was seen.

        Takes `stop_drain_secs` and some seconds at most.
        """
        self._stopping = True
        drain = self.settings.server.stop_drain_secs
        for socket in list(self._sockets):
            socket.shut_down("ServerReload", drain)
        # The sessions close themselves when their drain ends.
        await self._wait_for_sockets(drain + GOODBYE_SECONDS)
        # What they pushed is stored, and acked where somebody still listens.
        await self.writer.close()
        for socket in list(self._sockets):
            socket.abort("server reload")
        await self._wait_for_sockets(GOODBYE_SECONDS)
        await self.flush_presence()

    async def healthy(self) -> None:
        """Raises unless the store answers."""
        await self.store.head()

    def is_healthy(self) -> Deferred[None]:
        """`healthy` for the web site."""
        return Deferred.fromCoroutine(self.healthy())

    @property
    def connections(self) -> int:
        """The number of open WebSocket connections, authenticated or not."""
        return len(self._sockets)

    def live(self, host_id: str | None) -> Live | None:
        """The live session of a host."""
        return None if host_id is None else self._live.get(host_id)

    @property
    def live_count(self) -> int:
        """The number of hosts with a live session."""
        return len(self._live)

    # What the connections ask (`protocol.Fleet`).

    def session(self, socket: AgentSocket) -> ServerSession:
        """The machine of a new connection."""
        self._sockets[socket] = None
        if self._stopping:
            self._reactor.callLater(
                0, socket.close, CloseCode.NORMAL, "server reload", "server reload"
            )
        return ServerSession(self._session_settings, self.gauge)

    def judge(self, socket: AgentSocket, hello: HelloParams) -> Deferred[Verdict]:
        """Judge a hello in the registry's transaction (F5, F6, F29); never fails."""
        wall, address = self.wall(), socket.remote_address

        def decide(candidates: Candidates) -> tuple[Verdict, HostRecord | None]:
            return tokens.judge_hello(candidates, hello, wall, self._policy, self._mint, address)

        def failed(failure: Failure) -> Verdict:
            self.log.failure("the registry could not judge a hello", failure)
            return tokens.Refused(
                Code.INTERNAL_ERROR, "the registry failed", CloseCode.INTERNAL_ERROR
            )

        judged = self.registry.judge(hello.host_id, tokens.hash_token(hello.token), decide)
        return judged.addErrback(failed)

    def ingest(self, socket: AgentSocket, key: int, batch: LogBatch) -> None:
        """Give a batch to the writer."""
        self.writer.submit(socket, key, batch)
        live = self._live.get(batch.host_id)
        if live is not None:
            self._note(Presence(host_id=batch.host_id, last_seen=batch.received_at), live)

    def opened(self, socket: AgentSocket, host_id: str, session_id: str) -> None:
        """A session is active: the older one of the same host, if any, must go (F14)."""
        older = self._live.get(host_id)
        live = self._live[host_id] = Live(socket, session_id, self.wall())
        self._sockets[socket] = host_id
        self.log.info(
            "{host_id} connected from {peer}", host_id=host_id, peer=socket.remote_address
        )
        self._note(Presence(host_id=host_id, last_seen=live.since), live)
        if older is not None and older.socket is not socket:
            older.socket.superseded()
            self._superseded(host_id)

    def beat(self, socket: AgentSocket, heartbeat: Heartbeat) -> None:
        """Note a heartbeat (§4.2); it is written with the next flush."""
        host_id = self._sockets.get(socket)
        live = self.live(host_id)
        if host_id is None or live is None or live.socket is not socket:
            return
        now = self.wall()
        sent = round(heartbeat.ts.timestamp() * 1e6)
        lag = heartbeat.push_lag_seq
        self._note(
            Presence(
                host_id=host_id,
                last_seen=now,
                queue_depth=heartbeat.queue_depth,
                buffer_bytes=heartbeat.buffer_bytes,
                push_lag_seq=lag if isinstance(lag, int) else None,
                clock_skew=sent - now,
            ),
            live,
        )

    def gone(self, socket: AgentSocket, record: str) -> None:
        """A connection is over."""
        host_id = self._sockets.pop(socket, None)
        live = self.live(host_id)
        if host_id is not None and live is not None and live.socket is socket:
            del self._live[host_id]
            self.log.info("{host_id} disconnected: {why}", host_id=host_id, why=record)
            self._note(
                Presence(host_id=host_id, state="disconnected", last_disconnect_reason=record),
                live,
            )
        if not self._sockets:
            waits, self._all_gone = self._all_gone, []
            for wait in waits:
                wait.callback(None)

    # What an operator asks.

    async def issue(self, name: str, host_id: str | None, expires_in: float | None) -> Issued:
        """Make a pending row, its one-time token and its invitation (F6, F29)."""
        hours = self.settings.server.one_time_token_hours
        seconds = hours * 3600 if expires_in is None else expires_in
        token = self._mint.token()
        now = self.wall()
        record = await self.registry.issue(
            name, host_id, tokens.hash_token(token), now + round(seconds * 1e6), now
        )
        invitation = write_invitation(Invitation(self.public_url(), token, host_id))
        return Issued(record, token, invitation)

    async def rotate(self, host_id: str, now: bool, expire_in: float | None) -> HostRecord:
        """Have a host get a fresh token at its next hello, which `now` brings about (F7)."""
        expires_at = None if expire_in is None else self.wall() + round(expire_in * 1e6)
        record = await self.registry.update(
            host_id, lambda row: tokens.rotation_asked(row, expires_at)
        )
        live = self.live(host_id)
        if now and live is not None:
            live.socket.close(CloseCode.NORMAL, "rotate", "closed for a token rotation")
        return record

    async def revoke(self, host_id: str) -> HostRecord:
        """Refuse a host from now on, and cut its session at once (F8)."""
        record = await self.registry.update(host_id, tokens.revoked)
        live = self.live(host_id)
        if live is not None:
            live.socket.revoked()
        self.log.warn("{host_id} is revoked", host_id=host_id)
        return record

    async def forget(self, host_id: str) -> None:
        """Remove a host's row; a live session is let go."""
        await self.registry.forget(host_id)
        live = self.live(host_id)
        if live is not None:
            live.socket.shut_down("Decommission", 0)
        self._supersessions.pop(host_id, None)

    def public_url(self) -> str:
        """Where agents connect: as configured, else where we listen; raises ConfigError."""
        url = self.settings.server.public_url or self.own_url
        if url is None:
            raise ConfigError("configuration", "server.public_url", "a URL that agents can reach")
        return url

    # Presence: collected, and written now and then in one go.

    def flush_presence(self) -> Deferred[None]:
        """Write what was seen; fires when it is written, or was not and will be tried again."""
        if self._flush_call is not None:
            self._flush_call.cancel()
            self._flush_call = None
        seen, self._seen = self._seen, {}
        if not seen:
            done: Deferred[None] = Deferred()
            done.callback(None)
            return done

        def failed(failure: Failure) -> None:
            self.log.warn("what was seen of hosts could not be written: {why}", why=failure.value)
            for key, presence in seen.items():
                newer = self._seen.get(key)
                self._seen[key] = presence if newer is None else _merged(presence, newer)
            if not self._stopping:
                self._flush_later()

        return self.registry.seen(list(seen.values())).addErrback(failed)

    def _note(self, presence: Presence, live: Live) -> None:
        presence = replace(presence, session_id=live.session_id)
        key = (presence.host_id, presence.session_id)
        older = self._seen.get(key)
        self._seen[key] = presence if older is None else _merged(older, presence)
        self._flush_later()

    def _flush_later(self) -> None:
        if self._flush_call is None:
            self._flush_call = self._reactor.callLater(
                self.settings.server.presence_flush_secs, self._flush
            )

    def _flush(self) -> None:
        self._flush_call = None
        self.flush_presence()

    def _superseded(self, host_id: str) -> None:
        now = self._reactor.seconds()
        recent = self._supersessions.setdefault(host_id, deque(maxlen=CLONE_SUPERSESSIONS + 1))
        recent.append(now)
        if len(recent) > CLONE_SUPERSESSIONS and now - recent[0] <= CLONE_SECONDS:
            recent.clear()
            self.log.warn(
                "{host_id} superseded itself more than {count} times in a minute: two machines"
                " probably use one token (a cloned image?); enrol one of them anew (F14)",
                host_id=host_id,
                count=CLONE_SUPERSESSIONS,
            )

    async def _wait_for_sockets(self, seconds: float) -> None:
        if not self._sockets:
            return
        gone: Deferred[None] = Deferred()
        self._all_gone.append(gone)
        gone.addTimeout(seconds, self._reactor)
        await DeferredList([gone], consumeErrors=True)


def _merged(older: Presence, newer: Presence) -> Presence:
    """Both in one: what the newer one knows, else what the older one knew."""
    known = {
        name: value
        for name in Presence.__dataclass_fields__
        if (value := getattr(newer, name)) is not None
    }
    return replace(older, **known)
