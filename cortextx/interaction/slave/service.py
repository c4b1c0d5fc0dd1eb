"""The slave: a socket, the sessions that are open, and what serves them.

Hundreds of sessions live side by side in one process, each with its machine and
journal (I19). A session is opened by who asks for it first, and unloaded when it
is idle; until its lock is released, whoever asks next waits (B19).
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from cortextx.errors import ConfigError
from cortextx.interaction import v1
from cortextx.interaction.data import DEFAULT_LIMITS, Limits
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.listen import SlavePort, prepare_place
from cortextx.interaction.slave.live import Agent, LiveSession, LiveSettings, settings_of
from cortextx.interaction.slave.protocol import SlaveFactory, SlaveProtocol
from cortextx.interaction.slave.session import SessionMachine
from cortextx.interaction.slave.v1_service import V1Connection
from cortextx.interfaces.sessions import IPeerPolicy, ISessionJournal, Peer, SessionKey

STOP_SECONDS = 5.0
"""How long stopping waits for connections and runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveSettings:
    """How the slave behaves; times in seconds. `mode` and `group` are the socket's."""

    default_agent: str = "echo"
    form: v1.Form = "both"
    limits: Limits = DEFAULT_LIMITS
    slow_seconds: float = 10.0
    hello_seconds: float = 30.0
    max_connections: int = 1024
    max_sessions: int = 1024
    mode: int = 0o600
    group: int | None = None
    live: LiveSettings = field(default_factory=LiveSettings)


class SlaveService(Service):
    """See the module. `durable` is given facts once they are on disk (derived files)."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        path: str,
        agents: Mapping[str, Agent],
        open_journal: Callable[[SessionKey], ISessionJournal],
        policy: IPeerPolicy,
        settings: SlaveSettings,
        *,
        durable: Callable[[SessionKey, int, Sequence[bytes]], None] | None = None,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
        mint: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.reactor = reactor
        self.path = path
        self.settings = settings
        self.sessions: dict[SessionKey, LiveSession] = {}
        self.connections: set[SlaveProtocol] = set()
        self._agents = agents
        self._open_journal = open_journal
        self._policy = policy
        self._durable = durable
        self._wall = wall
        self._mint = mint
        self._askers = itertools.count(1)
        self._port: SlavePort | None = None
        self._mode = settings.mode
        self.is_stopping = False

    def startService(self) -> None:
        """Listen; raises ConfigError if that cannot be."""
        settings = self.settings
        prepare_place(self.path, is_open=self.is_open)
        port = SlavePort(self.path, SlaveFactory(self), self.reactor, self._mode, settings.group)
        try:
            port.startListening()
        except (CannotListenError, OSError) as error:
            expected = f"a place to listen ({error})"
            raise ConfigError(self.path, "the socket", expected) from None
        self._port = port
        super().startService()

    def stopService(self) -> Deferred[None]:
        """Close the socket, say goodbye, end the runs, close the journals."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    @property
    def is_open(self) -> bool:
        """Whether others than the socket's owner may connect, as far as its mode goes."""
        return bool(self._mode & 0o066)

    def set_mode(self, mode: int) -> None:
        """Change the socket's mode, as the rules have changed."""
        self._mode = mode
        if self._port is not None:
            self._port.set_mode(mode)

    async def _stop(self) -> None:
        """Runs end first, so that who follows one is told how it ended."""
        self.is_stopping = True
        port, self._port = self._port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        for session in list(self.sessions.values()):
            session.stopping()
        ended = [maybeDeferred(agent.runtime.stop) for agent in self._agents.values()]
        ended = [each.addTimeout(STOP_SECONDS, self.reactor) for each in ended]
        await DeferredList(ended, consumeErrors=True)
        for session in list(self.sessions.values()):
            session.close()
        closed = [_follow(session.closed) for session in self.sessions.values()]
        await DeferredList(closed, consumeErrors=True)
        gone = [connection.gone for connection in self.connections]
        for connection in list(self.connections):
            connection.shut_down()
        abort = self.reactor.callLater(STOP_SECONDS, self._abort)
        await DeferredList(gone, consumeErrors=True)
        if abort.active():
            abort.cancel()

    def _abort(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # For connections

    def admit(self, connection: SlaveProtocol, peer: Peer) -> bool:
        """Whether this peer is served at all (I15)."""
        if self.is_stopping:
            return False
        if len(self.connections) >= self.settings.max_connections:
            self.log.warn("too many connections: uid {uid} is turned away", uid=peer.uid)
            return False
        if not self._policy.may_connect(peer):
            self.log.warn("uid {uid} may not connect", uid=peer.uid)
            return False
        self.connections.add(connection)
        return True

    def dismiss(self, connection: SlaveProtocol) -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    def connection(self, peer: Peer) -> Connection:
        """The machine of a v2 stream."""
        settings = self.settings
        return Connection(
            peer, self._policy, self._next_asker, settings.limits, settings.slow_seconds
        )

    def v1_connection(self, peer: Peer) -> V1Connection:
        """The machine of one v1 request."""
        return V1Connection(
            peer,
            self._policy,
            self._next_asker,
            default_agent=self.settings.default_agent,
            find_run=self._find_run,
            fresh_id=f"req-{self._mint()}",
            form=self.settings.form,
            slow_seconds=self.settings.slow_seconds,
        )

    def session(self, key: SessionKey) -> LiveSession | None:
        """The session, opened if it is not; None where no more can be open.

        Beyond `max_sessions` one that is at rest is unloaded for it, if there is one.
        """
        found = self.sessions.get(key)
        if found is not None and not found.is_closing:
            return found
        if sum(not session.is_closing for session in self.sessions.values()) >= (
            self.settings.max_sessions
        ):
            resting = next((each for each in self.sessions.values() if each.is_at_rest), None)
            if resting is None:
                self.log.warn(
                    "{count} sessions are open, and no more may", count=len(self.sessions)
                )
                return None
            resting.close()
        agent = self._agents[key.agent]
        limits = self.settings.limits
        bounds = settings_of(
            agent,
            self.settings.live,
            max_pending_requests=limits.max_pending_requests_per_attachment,
            max_pending_commands=limits.max_pending_commands_per_attachment,
        )
        made = LiveSession(
            self.reactor,
            key,
            self._open_journal,
            agent,
            self.settings.live,
            machine=SessionMachine(key, bounds, self._mint, self._wall),
            elsewhere=self._is_claimed_elsewhere,
            durable=self._durable,
        )
        self.sessions[key] = made
        _follow(made.closed).addCallback(lambda _: self._closed(made))
        made.start(None if found is None else _follow(found.closed))
        return made

    def _closed(self, session: LiveSession) -> None:
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]

    def _is_claimed_elsewhere(self, asking: LiveSession, request_id: str) -> bool:
        """I21: as far as sessions that are open here know."""
        return any(
            other.machine.knows(request_id)
            for other in self.sessions.values()
            if other is not asking
            and other.key.agent == asking.key.agent
            and other.key.owner == asking.key.owner
        )

    def _find_run(self, agent: str, run: str, peer: Peer) -> SessionKey | None:
        for session in self.sessions.values():
            if session.key.agent == agent and session.machine.ledger.run(run) is not None:
                return session.key
        return None

    def _next_asker(self) -> int:
        return next(self._askers)


def _follow(deferred: Deferred[None]) -> Deferred[None]:
    """A Deferred that fires when another does, which goes on as it was."""
    follower: Deferred[None] = Deferred()

    def tell(result: Any) -> Any:
        follower.callback(None)
        return result

    deferred.addBoth(tell)
    return follower
