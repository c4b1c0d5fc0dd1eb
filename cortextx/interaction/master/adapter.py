"""The machine, its connection and its clock: what carries out the machine's actions.

It keeps who waits for what; `Master` and `Session` are what applications see of it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from cortextx.core.backoff import FullJitter
from cortextx.errors import SessionRefused, SlaveUnavailable
from cortextx.interaction.data import Error
from cortextx.interaction.master.actions import (
    ATTACH,
    Action,
    Close,
    Connect,
    Lost,
    Opened,
    Outcome,
    Over,
    Ready,
    Settled,
    Write,
)
from cortextx.interaction.master.effects import Effect, EffectRecord, MemoryEffects
from cortextx.interaction.master.link import Link, why_not
from cortextx.interaction.master.machine import MasterMachine
from cortextx.interaction.master.peer import expected_uids

CONNECT_SECONDS = 10
CLOSE_SECONDS = 5.0


class Adapter:
    """See the module."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        path: str,
        *,
        master_id: str,
        slave_uids: Collection[int] | None,
        effects: EffectRecord,
        backoff: FullJitter | None,
        mint: Callable[[], str],
        uid_of: Callable[[Any], int],
    ) -> None:
        self.machine = MasterMachine(
            mint=mint,
            random=random.random,
            master_id=master_id,
            effects=effects,
            backoff=backoff,
        )
        self.wakers: dict[int, Callable[[], None]] = {}
        self._reactor = reactor
        self._path = path
        self._effects = effects
        self._trusted = expected_uids(slave_uids)
        self._uid_of = uid_of
        self._link: Link | None = None
        self._closing: dict[Link, Deferred[None]] = {}
        self._attempt: Deferred[Any] | None = None
        self._waiting: dict[tuple[int, str], deque[Deferred[Outcome]]] = {}
        self._connecting: list[Deferred[None]] = []
        self._todo: deque[Action] = deque()
        self._is_busy = False
        self._timer: Any = None

    @property
    def now(self) -> float:
        """Seconds of the reactor's clock."""
        return float(self._reactor.seconds())

    def connect(self) -> Deferred[None]:
        """Fires when a slave has welcomed us, and fails at the first no."""
        if self.machine.state == "open":
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._connecting.remove)
        self._connecting.append(waiting)
        if self.machine.state == "over":
            self._tell_connecting(SlaveUnavailable("the master is closed"))
        self.do(self.machine.connect())
        return waiting

    def wait(self, key: int, id: str) -> Deferred[Outcome]:
        """The next outcome under this id; who cancels it wants no more of what was asked."""

        def given_up(_: Deferred[Outcome]) -> None:
            self._waiting.pop((key, id), None)
            if id == ATTACH:
                self.do(self.machine.detach(key))
            else:
                self.do(self.machine.forget(key, id))

        waiting: Deferred[Outcome] = Deferred(given_up)
        self._waiting.setdefault((key, id), deque()).append(waiting)
        return waiting

    def note(self, effect: Effect) -> Deferred[None]:
        """Have an effect recorded, in a thread where that takes a disk's time."""
        if isinstance(self._effects, MemoryEffects):
            self._effects.note(effect)
            return succeed(None)
        pool = self._reactor.getThreadPool()
        return deferToThreadPool(self._reactor, pool, self._effects.note, effect)

    def closed(self) -> Deferred[None]:
        """Fires when no connection is left."""
        waiting: Deferred[None] = Deferred()
        if not self._closing:
            return succeed(None)
        for gone in list(self._closing.values()):
            gone.addCallback(lambda _: None if waiting.called else waiting.callback(None))
        return waiting

    # From the connection

    def link_made(self, link: Link) -> None:
        """See link.Owner."""
        self._attempt = None
        if self.machine.state != "connecting":  # it was closed meanwhile
            link.transport.abortConnection()
            return
        self._link = link
        self.do(self.machine.connected(self.now))

    def link_refused(self, link: Link, uid: int) -> None:
        """See link.Owner."""
        self._attempt = None
        names = ", ".join(map(str, sorted(self._trusted)))
        message = f"{self._path}: the slave runs as UID {uid}, expected was {names}"
        self.do(self.machine.refused("unauthenticated", message))

    def data_received(self, link: Link, data: bytes) -> None:
        """See link.Owner."""
        if link is self._link:
            self.do(self.machine.data_received(data, self.now))

    def link_lost(self, link: Link, reason: str) -> None:
        """See link.Owner."""
        if link is self._link:
            self._link = None
            self.do(self.machine.peer_lost(reason, self.now))
        closing = self._closing.pop(link, None)
        if closing is not None:
            closing.callback(None)

    # Actions

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out what the machine wants."""
        self._todo.extend(actions)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._todo:
                self._act(self._todo.popleft())
        finally:
            self._is_busy = False
        self._set_timer()

    def _act(self, action: Action) -> None:
        match action:
            case Write(lines=lines):
                if self._link is not None:
                    self._link.transport.write(lines)
            case Ready(key=key):
                if key in self.wakers:
                    self.wakers[key]()
            case Settled():
                self._settle(action)
            case Connect():
                self._connect()
            case Close(abort=abort):
                self._close_link(abort)
            case Opened():
                self._tell_connecting(None)
            case Lost(reason=reason) | Over(reason=reason):
                self._tell_connecting(SlaveUnavailable(reason))

    def _tell_connecting(self, error: SlaveUnavailable | None) -> None:
        waiting, self._connecting = self._connecting, []
        for each in waiting:
            if error is None:
                each.callback(None)
            else:
                each.errback(error)

    def _settle(self, action: Settled) -> None:
        key = (action.key, action.id)
        waiting = self._waiting.get(key)
        if not waiting:
            return
        first = waiting.popleft()
        outcome = action.outcome
        if isinstance(outcome, Error):
            refusal = SessionRefused(outcome.code, outcome.message, outcome.retryable)
            for each in (first, *waiting):
                each.errback(refusal)
            waiting.clear()
        else:
            first.callback(outcome)
        if not waiting:
            self._waiting.pop(key, None)

    def _connect(self) -> None:
        factory = Factory.forProtocol(lambda: Link(self, self._trusted, self._uid_of))
        factory.noisy = False
        endpoint = UNIXClientEndpoint(self._reactor, self._path, CONNECT_SECONDS)
        attempt = endpoint.connect(factory)
        self._attempt = attempt
        attempt.addCallbacks(lambda _: None, self._not_connected)
        attempt.addErrback(lambda failure: self.log.failure("connecting failed", failure))

    def _not_connected(self, failure: Failure) -> None:
        reason = f"{self._path}: {why_not(failure.value)}"
        self.do(self.machine.peer_lost(reason, self.now))

    def _close_link(self, abort: bool) -> None:
        link, self._link = self._link, None
        if link is None:
            if self._attempt is not None:
                self._attempt.cancel()
                self._attempt = None
            return
        gone: Deferred[None] = Deferred()
        self._closing[link] = gone
        if abort:
            link.transport.abortConnection()
            return
        link.transport.loseConnection()
        late = self._reactor.callLater(CLOSE_SECONDS, link.transport.abortConnection)
        gone.addCallback(lambda _: late.cancel() if late.active() else None)

    def _set_timer(self) -> None:
        deadline = self.machine.deadline
        if self._timer is not None and self._timer.active():
            if deadline is not None and self._timer.getTime() == deadline:
                return
            self._timer.cancel()
        self._timer = None
        if deadline is not None:
            wait = max(0.0, deadline - self.now)
            self._timer = self._reactor.callLater(wait, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self.do(self.machine.time_passed(self.now))
