"""The fleet server: who is connected, who may connect, and what was seen of them.

It stands between the connections (`fleet.server.protocol`), the registry and the
ingest writer. It knows of one live session a host (F14) and carries out what an
operator asks for: issue, rotate, revoke, forget (F6–F8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.logger import Logger

from cortextx.core.budgets import Gauge
from cortextx.errors import ConfigError, in_words
from cortextx.fleet.contract import CloseCode, Code
from cortextx.fleet.invitation import Invitation, write_invitation
from cortextx.fleet.server import tokens
from cortextx.fleet.server.admission import Admission
from cortextx.fleet.server.clones import CloneWatch
from cortextx.fleet.server.following import Following
from cortextx.fleet.server.host_configs import HostConfigs
from cortextx.fleet.server.ingest import IngestWriter
from cortextx.fleet.server.invitations import Issued, pending_row
from cortextx.fleet.server.metering import Meter
from cortextx.fleet.server.presence import Lags, PresenceBook
from cortextx.fleet.server.probe_router import ProbeRouter
from cortextx.fleet.server.quota import Quotas
from cortextx.fleet.server.restored import note_acked
from cortextx.fleet.server.rows import MAX_SKEW, micros
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.fleet.server.settings import limits
from cortextx.fleet.server.succession import Live, Succession
from cortextx.interfaces.fleet import Presence
from cortextx.interfaces.fleet_records import IAuditLog, IConfigs, IMetricStore, IProbeRecords

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from cortextx.fleet.contract import AgentConfig, Heartbeat, HelloParams
    from cortextx.fleet.server.actions import Measure
    from cortextx.fleet.server.clones import CloneReport
    from cortextx.fleet.server.probes import ProbeOutcome
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

GOODBYE_SECONDS = 1.0
"""How long a stopping server waits for the answer to its closes."""
RESTARTED = "the server went away"


class FleetServer:
    """All that the connections share. `wall` gives µs UTC, `version` is HelloResult's.

    A `store` that has more roles than logs (`interfaces.fleet_records`) is used for
    them too; without one, samples are dropped and configs cannot be set.

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
        self.following = Following(store, reactor.seconds)
        self.addresses: list[str] = []
        self.own_url: str | None = None
        self.ca_pin: str | None = None
        """The pin of our own CA, for invitations to a server that has one (F40)."""
        self.store_made_at: int | None = None
        """When the store's file was made, µs UTC, if that is known."""
        self.store_warning: str | None = None
        """What is to be said of how it was made."""
        self.admission = Admission(limits(table))
        self._session_settings = SessionSettings(
            min_agent_version=table.min_agent_version,
            server_version=version,
            agent_config=settings.agent_config,
            hello_max_bytes=table.hello_max_bytes,
        )
        self._policy = tokens.TokenPolicy(table.rotation_grace_secs)
        self.quotas = Quotas(table.quota_entries_per_sec)
        self.clones = CloneWatch()
        self.lags = Lags()
        self.meter = Meter(
            IMetricStore(store, None), self.gauge, reactor.seconds, table.quota_samples_per_sec
        )
        self._acts = IAuditLog(store, None)
        self.probes = ProbeRouter(self._live_socket, IProbeRecords(store, None), wall)
        self.configs = HostConfigs(
            IConfigs(store, None),
            lambda: self.settings.agent_config,
            lambda: {host_id: live.socket for host_id, live in self._live.items()},
            wall,
        )
        self._greeted: dict[AgentSocket, tuple[AgentConfig, int]] = {}
        self._sockets: dict[AgentSocket, str | None] = {}
        self._live: dict[str, Live] = {}
        self._succession = Succession(
            self._live, self.writer, registry, self.clones, reactor.seconds, wall, self._cloned
        )
        self._presence = PresenceBook(
            reactor, registry, lambda: self.settings.server.presence_flush_secs
        )
        self._stopping = False
        self._all_gone: list[Deferred[None]] = []

    # Life.

    async def start(self) -> None:
        """Note that hosts whose row says active are not connected to this process.

        Where the disk is full it is noted later.
        """
        for record in await self.registry.list_hosts():
            if record.state == "active" and record.host_id is not None:
                self._presence.note(
                    Presence(
                        host_id=record.host_id,
                        session_id=record.session_id,
                        state="disconnected",
                        last_disconnect_reason=RESTARTED,
                    )
                )
        await self._presence.flush()

    async def stop(self) -> None:
        """Say goodbye to all (§4.3), wait for what they pushed, and write what was seen.

        Takes `stop_drain_secs` and some seconds at most.
        """
        self._stopping = True
        self._presence.close()
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

    def apply(self, settings: ServerSettings) -> None:
        """Go on with other settings: at once, or with a session's next start (A59).

        What is fixed while a server runs must be as before (`app.reload`).
        """
        table = settings.server
        self.settings = settings
        self.slow_peer_seconds = table.slow_peer_secs
        self.gauge.soft, self.gauge.hard = table.ingest_soft_bytes, table.ingest_hard_bytes
        self.admission.limits = limits(table)
        self.quotas.change(table.quota_entries_per_sec)
        self.meter.change(table.quota_samples_per_sec)
        self._policy = tokens.TokenPolicy(table.rotation_grace_secs)
        self._session_settings = replace(
            self._session_settings,
            min_agent_version=table.min_agent_version,
            agent_config=settings.agent_config,
            hello_max_bytes=table.hello_max_bytes,
        )
        told = self.configs.defaults_changed()
        told.addErrback(lambda failure: self.log.failure("hosts could not be told", failure))

    async def healthy(self) -> None:
        """Raises unless the store answers."""
        await self.store.head()

    def is_healthy(self) -> Deferred[None]:
        """`healthy` for the web site."""
        return Deferred.fromCoroutine(self.healthy())

    @property
    def unready(self) -> str | None:
        """Why no work should be sent here, for /readyz; None if it may."""
        if self._stopping:
            return "the server is stopping"
        if self.writer.failing:
            return "the store takes no entries"
        return "the store can write nothing" if self._presence.failing else None

    @property
    def connections(self) -> int:
        """The number of open WebSocket connections, authenticated or not."""
        return len(self._sockets)

    def live(self, host_id: str | None) -> Live | None:
        """The live session of a host."""
        return None if host_id is None else self._live.get(host_id)

    def heartbeat_overdue(self, host_id: str | None) -> bool:
        """Whether a live host sent no heartbeat for two intervals and a half (A53): its
        agent hangs, though its pongs come (F21)."""
        live, told = self.live(host_id), self.configs.last_told(host_id)
        if live is None or told is None:
            return False
        since = max(live.since, live.last_beat or 0, told.at)
        return self.wall() - since > 2_500_000 * told.config.heartbeat_interval_secs

    def warnings(self, damaged: int, excess: int = 0) -> list[str]:
        """What an operator should look at, of a store with so many damaged entries and so
        many bytes beyond its bound."""
        found = [self.store_warning] if self.store_warning else []
        if damaged:
            found.append(
                f"{damaged} entries are damaged in the store's file: `cortextx server verify`"
            )
        if excess:
            found.append(
                f"the store holds {excess / 2**20:.0f} MiB more than max_mib allows, though the"
                " oldest entries are gone: samples, probe results, acts and gaps go by the days"
                " in [store]"
            )
        return found

    @property
    def live_count(self) -> int:
        """The number of hosts with a live session."""
        return len(self._live)

    # What the connections ask (`shared.Fleet`).

    def session(self, socket: AgentSocket) -> ServerSession:
        """The machine of a new connection."""
        self._sockets[socket] = None
        self.admission.hello_began(socket, socket.source, forwarded=socket.forwarded)
        if self._stopping:
            self._reactor.callLater(
                0, socket.close, CloseCode.NORMAL, "server reload", "server reload"
            )
        return ServerSession(self._session_settings, self.gauge, self.quotas)

    def hello_over(self, socket: AgentSocket) -> None:
        """It makes room for another, though the connection may still be closing (A52)."""
        self.admission.hello_over(socket)

    def judge(
        self, socket: AgentSocket, hello: HelloParams
    ) -> Deferred[tuple[Verdict, AgentConfig | None]]:
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
        return judged.addErrback(failed).addCallback(
            lambda verdict: Deferred.fromCoroutine(self._greeting(socket, hello, verdict))
        )

    async def _greeting(
        self, socket: AgentSocket, hello: HelloParams, verdict: Verdict
    ) -> tuple[Verdict, AgentConfig | None]:
        """A good hello is answered with the host's own config (§4.1)."""
        if not isinstance(verdict, tokens.Accepted):
            return verdict, None
        await note_acked(self.store, verdict, hello.resume_from_seq or 0, self.wall())
        preferred = hello.capabilities.max_batch_entries
        config = await self.configs.for_hello(verdict.host_id, preferred)
        if socket in self._sockets:
            self._greeted[socket] = config, preferred
            digest = tokens.hash_token(hello.token)
            verdict, ending = await self._succession.settled(socket, verdict, digest)
            if ending:
                self._reactor.callLater(0, self._cut, socket)
        return verdict, config

    def ingest(self, socket: AgentSocket, key: int, batch: LogBatch) -> None:
        """Give a batch to the writer."""
        self.writer.submit(socket, key, batch)
        live = self._live.get(batch.host_id)
        if live is not None:
            self._note(Presence(host_id=batch.host_id, last_seen=batch.received_at), live)

    def opened(self, socket: AgentSocket, host_id: str, session_id: str) -> None:
        """A session is active: the older one of the same host, if any, must go (F14)."""
        self._succession.supersede(host_id, socket)
        config, preferred = self._greeted.pop(socket)
        live = self._live[host_id] = Live(socket, session_id, self.wall())
        self.configs.told(host_id, config, preferred)
        self._sockets[socket] = host_id
        self.admission.hello_over(socket)
        self.log.info(
            "{host_id} connected from {peer}", host_id=host_id, peer=socket.remote_address
        )
        self._note(Presence(host_id=host_id, last_seen=live.since), live)

    def measure(self, socket: AgentSocket, asked: Measure) -> None:
        """Have samples stored, as far as somebody stores them (F24)."""
        now, live = self.wall(), self._live.get(asked.host_id)
        if live is not None:
            self._note(Presence(host_id=asked.host_id, last_seen=now), live)
        self.meter.submit(socket, asked, now)

    def probe_over(self, key: int, outcome: ProbeOutcome) -> None:
        """A probe is over (§4.7)."""
        self.probes.over(key, outcome)

    def beat(self, socket: AgentSocket, heartbeat: Heartbeat, accepted_seq: int) -> None:
        """Note a heartbeat (§4.2); it is written with the next flush."""
        host_id = self._sockets.get(socket)
        live = self.live(host_id)
        if host_id is None or live is None or live.socket is not socket:
            return
        now = live.last_beat = self.wall()
        skew = micros(heartbeat.ts) - now
        if abs(skew) > MAX_SKEW and not live.skew_told:
            live.skew_told = True
            self.log.warn(
                "{host_id}: its clock is {seconds:+.0f} s from ours",
                host_id=host_id,
                seconds=skew / 1e6,
            )
        lag = heartbeat.push_lag_seq
        if isinstance(lag, int):
            self.lags.told(host_id, accepted_seq, lag)
        self._note(
            Presence(
                host_id=host_id,
                last_seen=now,
                queue_depth=heartbeat.queue_depth,
                buffer_bytes=heartbeat.buffer_bytes,
                push_lag_seq=lag if isinstance(lag, int) else None,
                clock_skew=skew,
            ),
            live,
        )

    def gone(self, socket: AgentSocket, record: str) -> None:
        """A connection is over."""
        host_id = self._sockets.pop(socket, None)
        self.admission.hello_over(socket)
        self._greeted.pop(socket, None)
        live = self.live(host_id)
        if host_id is not None and live is not None and live.socket is socket:
            del self._live[host_id]
            self.configs.gone(host_id)
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
        expires_at, hashed = now + round(seconds * 1e6), tokens.hash_token(token)
        record, replaced = await pending_row(self.registry, name, host_id, hashed, expires_at, now)
        url = self.public_url()
        pin = self.ca_pin if url.startswith("wss://") else None
        invitation = write_invitation(Invitation(url, token, host_id, pin))
        return Issued(record, token, invitation, replaced)

    async def rotate(self, host_id: str, now: bool, expire_in: float | None) -> HostRecord:
        """Have a host get a fresh token at its next hello, which `now` brings about (F7).

        `expire_in` does so too: left alone, a connected host would take no new token
        before its old one ends, and be locked out by the next restart.
        """
        expires_at = None if expire_in is None else self.wall() + round(expire_in * 1e6)
        record = await self.registry.update(
            host_id, lambda row: tokens.rotation_asked(row, expires_at)
        )
        live = self.live(host_id)
        if live is not None and (now or (expire_in is not None and record.rotation_pending)):
            self._cut(live.socket)
        return record

    def _cut(self, socket: AgentSocket) -> None:
        socket.close(CloseCode.NORMAL, "rotate", "closed for a token rotation")

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
        self.clones.forget(host_id)
        self.lags.forget(host_id)

    def public_url(self) -> str:
        """Where agents connect: as configured, else where we listen; raises ConfigError."""
        url = self.settings.server.public_url or self.own_url
        if url is None:
            raise ConfigError("configuration", "server.public_url", "a URL that agents can reach")
        return url

    def flush_presence(self) -> Deferred[None]:
        """Write what was seen of hosts; fires when that is done, or will be tried again."""
        return self._presence.flush()

    def _note(self, presence: Presence, live: Live) -> None:
        self._presence.note(replace(presence, session_id=live.session_id))

    def record_act(
        self, actor: str, act: str, subject: str, details: Mapping[str, Any]
    ) -> Deferred[None]:
        """Write down an administrative act (S8); what cannot be written down is logged."""
        if self._acts is None:
            return succeed(None)
        recorded = self._acts.record_act(actor, act, subject, details, self.wall())

        def failed(failure: Failure) -> None:
            self.log.error(
                "{actor} did {act} to {subject}, which could not be recorded: {why}",
                actor=actor,
                act=act,
                subject=subject,
                why=in_words(failure.value),
            )

        return recorded.addCallbacks(lambda _: None, failed)

    def _cloned(self, host_id: str, report: CloneReport) -> None:
        self.log.warn(
            "{host_id} superseded itself too often within a minute ({addresses}): two machines"
            " probably use one token (a cloned image?); enrol one of them anew (F14)",
            host_id=host_id,
            addresses=report.addresses,
        )
        details = {"supersessions": report.supersessions, "addresses": list(report.addresses)}
        self.record_act("server", "host.probable_clone", host_id, details)

    def _live_socket(self, host_id: str) -> AgentSocket | None:
        live = self._live.get(host_id)
        return None if live is None else live.socket

    async def _wait_for_sockets(self, seconds: float) -> None:
        if not self._sockets:
            return
        gone: Deferred[None] = Deferred()
        self._all_gone.append(gone)
        gone.addTimeout(seconds, self._reactor)
        await DeferredList([gone], consumeErrors=True)
