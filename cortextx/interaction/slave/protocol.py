"""A connection to the slave: bytes to lines, the first line's verdict, machine to transport.

The kernel says who the peer is before anything is answered. The first line decides
which machine serves the connection (I5); both have the same inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.core.framing import LineFramer
from cortextx.errors import FrameTooLong
from cortextx.interaction.data import Error
from cortextx.interaction.faults import MAX_FRAME_BYTES, Code
from cortextx.interaction.opening import OpensRequest, OpensStream, Refused, decide, refuse_too_long
from cortextx.interaction.slave.actions import (
    Close,
    ConnectionAction,
    Deliver,
    Facts,
    Fetch,
    LeaveSession,
    Mute,
    OpenSession,
    ReadPage,
    Told,
)
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.listen import peer_of
from cortextx.interaction.slave.live import LiveSession
from cortextx.interaction.slave.v1_service import V1Connection

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from cortextx.interaction.slave.service import SlaveService
    from cortextx.interfaces.sessions import Peer


class PeerOf(Protocol):
    """How the peer of a transport is told; tests have their own."""

    def __call__(self, transport: Any) -> Peer:
        """The peer."""


@implementer(IHalfCloseableProtocol, IPushProducer)
class SlaveProtocol(TwistedProtocol):
    """See the module. It is a Reader of its sessions."""

    log = Logger()

    def __init__(self, service: SlaveService, peer_of: Callable[[Any], Peer] = peer_of) -> None:
        self.transport: Any = None
        self._service = service
        self._reactor = service.reactor
        self._peer_of = peer_of
        self._peer: Peer | None = None
        self._framer = LineFramer(MAX_FRAME_BYTES)
        self._begin = b""
        self._machine: Connection | V1Connection | None = None
        self._sessions: dict[int, LiveSession] = {}
        self._todo: deque[ConnectionAction] = deque()
        self._is_busy = False
        self._is_closed = False
        self._timer: IDelayedCall | None = None
        self._linger: IDelayedCall | None = None
        self.gone: Deferred[None] = Deferred()

    # From the transport

    def connectionMade(self) -> None:
        self._peer = self._peer_of(self.transport)
        if not self._service.admit(self, self._peer):
            self._is_closed = True
            self.transport.abortConnection()
            return
        self.transport.registerProducer(self, True)
        self._timer = self._reactor.callLater(self._service.settings.hello_seconds, self._late)

    def dataReceived(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._machine is None and len(self._begin) < 64:
            self._begin += data[: 64 - len(self._begin)]
        lines: Sequence[bytes]
        too_long = False
        try:
            lines = self._framer.feed(data)
        except FrameTooLong as fault:
            lines, too_long = fault.lines, True
        for line in lines:
            self._line_received(line)
        if too_long and not self._is_closed:
            self._line_too_long()

    def readConnectionLost(self) -> None:
        """The peer writes no more: a v1 client may go on reading (I35)."""
        if self._machine is None:
            self._close()
        else:
            self._step(self._machine.input_ended())

    def writeConnectionLost(self) -> None:
        self._step([] if self._machine is None else self._machine.peer_lost())

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._is_closed = True
        self._cancel_timers()
        if self._machine is not None:
            self._step(self._machine.peer_lost())
        self._service.dismiss(self)
        self.gone.callback(None)

    def pauseProducing(self) -> None:
        if self._machine is not None:
            self._machine.paused(self._reactor.seconds())

    def resumeProducing(self) -> None:
        if self._machine is not None:
            self._machine.resumed()
            self._step([])

    def stopProducing(self) -> None:
        self.pauseProducing()

    # Lines

    def _line_received(self, line: bytes) -> None:
        if self._is_closed:
            return
        if self._machine is not None:
            self._step(self._machine.line_received(line, self._reactor.seconds()))
            return
        assert self._peer is not None
        opening = decide(line + b"\n", self._service.settings.form)
        match opening:
            case OpensStream(frame=frame):
                self._opened()
                stream = self._service.connection(self._peer)
                self._machine = stream
                self._step(stream.opened(frame))
            case OpensRequest(request=request):
                self._opened()
                once = self._service.v1_connection(self._peer)
                self._machine = once
                self._step(once.opened(request))
            case Refused():
                self._refuse(opening)

    def _line_too_long(self) -> None:
        if self._machine is not None:
            self._step(self._machine.line_too_long())
        else:
            self._refuse(refuse_too_long(self._begin))

    def _refuse(self, refused: Refused) -> None:
        if refused.answer:
            self.transport.write(refused.answer)
        self._close()

    def _opened(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Reader

    def session_opened(self, asker: int, first: int, head: int) -> None:
        """See live.Reader."""
        if self._machine is not None:
            now = self._reactor.seconds()
            self._step(self._machine.session_opened(asker, first, head, now))

    def session_failed(self, asker: int, error: Error) -> None:
        """See live.Reader."""
        self._sessions.pop(asker, None)
        if self._machine is not None:
            self._step(self._machine.session_failed(asker, error))

    def head_moved(self, asker: int, head: int) -> None:
        """See live.Reader."""
        if self._machine is not None:
            self._step(self._machine.head_moved(asker, head, self._reactor.seconds()))

    def told(self, told: Told) -> None:
        """See live.Reader."""
        if self._machine is not None:
            self._step(self._machine.told(told, self._reactor.seconds()))

    # Actions

    def _step(self, actions: Sequence[ConnectionAction]) -> None:
        """Carry out actions and write what there is, until neither leads to more."""
        self._todo.extend(actions)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._work()
        except Exception:
            self.log.failure("a connection failed")
            self._abort()
        finally:
            self._is_busy = False
        self._set_timer()

    def _work(self) -> None:
        machine = self._machine
        while True:
            while self._todo:
                self._act(self._todo.popleft())
            if machine is None or self._is_closed:
                return
            wrote = self._write(machine)
            self._todo.extend(machine.output_sent(self._reactor.seconds()))
            if not self._todo and (machine.is_paused or not wrote):
                return

    def _write(self, machine: Connection | V1Connection) -> bool:
        wrote = False
        while not machine.is_paused:
            data = machine.data_to_send()
            if not data:
                break
            wrote = True
            self.transport.write(data)
        return wrote

    def _act(self, action: ConnectionAction) -> None:
        match action:
            case OpenSession(asker=asker) if self._service.is_stopping:
                self.session_failed(asker, Error.of(Code.BUSY, "the slave stops"))
            case OpenSession(asker=asker, key=key):
                session = self._service.session(key)
                if session is None:
                    message = "too many sessions are open"
                    self.session_failed(asker, Error.of(Code.LIMIT_EXCEEDED, message))
                else:
                    self._sessions[asker] = session
                    session.join(asker, self)
            case LeaveSession(asker=asker):
                left = self._sessions.pop(asker, None)
                if left is not None:
                    left.leave(asker)
            case Mute(asker=asker):
                if asker in self._sessions:
                    self._sessions[asker].mute(asker)
            case Deliver(asker=asker, item=item):
                if asker in self._sessions:
                    self._sessions[asker].deliver(item)
            case ReadPage(asker=asker, after=after, max_lines=lines, max_bytes=size):
                if asker in self._sessions:
                    self._read(asker, self._sessions[asker].read(after, lines, size))
            case Fetch(asker=asker, seqs=seqs):
                if asker in self._sessions:
                    found = Deferred.fromCoroutine(self._sessions[asker].fetch(seqs))
                    found.addCallback(partial(self._fetched, asker))
                    found.addErrback(partial(self._read_failed, asker))
            case Close(abort=True):
                self._abort()
            case Close():
                self._close()

    def _read(self, asker: int, facts: Deferred[Facts] | Facts) -> None:
        if isinstance(facts, Facts):
            self._page_read(asker, facts)
        else:
            facts.addCallback(partial(self._page_read, asker))
            facts.addErrback(partial(self._read_failed, asker))

    def _page_read(self, asker: int, facts: Facts) -> None:
        if self._machine is not None:
            self._step(self._machine.page_read(asker, facts, self._reactor.seconds()))

    def _fetched(self, asker: int, facts: Facts) -> None:
        if self._machine is not None:
            self._step(self._machine.fetched(asker, facts))

    def _read_failed(self, asker: int, failure: Failure) -> None:
        session = self._sessions.pop(asker, None)
        if session is None or self._machine is None:
            return
        if not session.is_closing:
            self.log.failure("a session's log could not be read", failure)
        session.leave(asker)
        error = Error.of(Code.SESSION_IO, "the session's log cannot be read")
        self._step(self._machine.session_failed(asker, error))

    # The end

    def shut_down(self) -> None:
        """Say no more than what is on its way, and close."""
        self._step([])
        self._close()

    def abort(self) -> None:
        """Close at once."""
        self._abort()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._cancel_timers()
        self.transport.unregisterProducer()
        self.transport.loseConnection()
        slow = self._service.settings.slow_seconds
        self._linger = self._reactor.callLater(slow, self.transport.abortConnection)

    def _abort(self) -> None:
        self._is_closed = True
        if self.transport is not None:
            self.transport.abortConnection()

    def _late(self) -> None:
        self._timer = None
        self._close()

    def _set_timer(self) -> None:
        deadline = None if self._machine is None or self._is_closed else self._machine.deadline
        if self._machine is None:
            return
        if self._timer is not None:
            active = self._timer.active()
            if active and deadline is not None and self._timer.getTime() <= deadline:
                return
            if active:
                self._timer.cancel()
            self._timer = None
        if deadline is not None:
            wait = max(0.0, deadline - self._reactor.seconds())
            self._timer = self._reactor.callLater(wait, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        if self._machine is not None and not self._is_closed:
            self._step(self._machine.time_passed(self._reactor.seconds()))

    def _cancel_timers(self) -> None:
        for call in (self._timer, self._linger):
            if call is not None and call.active():
                call.cancel()
        self._timer = self._linger = None


class SlaveFactory(ServerFactory):
    """Makes the service's connections."""

    noisy = False

    def __init__(self, service: SlaveService) -> None:
        self._service = service

    def buildProtocol(self, addr: object) -> SlaveProtocol:
        return SlaveProtocol(self._service)
