"""One agent's WebSocket: Autobahn's bytes to a ServerSession, its actions back.

Autobahn frames and unmasks, answers pings and echoes closes; everything else is
the session's. Its timers are off (they would use the global reactor): time
comes from the session's deadline and from here. Close codes that it would not
send by `sendClose` go out by `sendCloseFrame`; a connection that we close is
aborted if the peer does not answer in time.

`log`, `state` and `factory.server` are Autobahn's own names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.types import ConnectionDeny
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from txaio.tx import make_logger
from zope.interface import implementer

from cortextx.fleet import contract
from cortextx.fleet.contract import CloseCode
from cortextx.fleet.server import actions
from cortextx.fleet.server.probes import LOST

if TYPE_CHECKING:
    from datetime import datetime

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from cortextx.fleet.contract import AgentConfig
    from cortextx.fleet.server.actions import Action
    from cortextx.fleet.server.admission import Admission
    from cortextx.fleet.server.probes import ProbeCall
    from cortextx.fleet.server.session import ServerSession, ShutdownReason
    from cortextx.fleet.server.shared import Fleet
    from cortextx.fleet.server.tokens import Verdict
    from cortextx.interfaces.fleet import Appended

PATH = "/ws/agent"
CLOSE_SECONDS = 5.0
"""How long a peer may take to answer our close, and to read what was sent before it."""
STRANGER_SECONDS = 1.0
PATIENCE: dict[int, float] = {CloseCode.HANDSHAKE_TIMEOUT: STRANGER_SECONDS}
"""The same by close code: a peer that said no hello in time has nothing to read."""
_REASON_BYTES = 123
_ADDRESS_CHARS = 64


@implementer(IPushProducer)
class AgentSocket(WebSocketServerProtocol):
    """One connection. It is the transport's producer, so that a peer which does
    not read what it is sent is read no further, and dropped after a while."""

    log = make_logger(level="error")
    transport: Any
    _logger = Logger()

    def __init__(self, reactor: Any, fleet: Fleet) -> None:
        super().__init__()
        self._reactor = reactor
        self._fleet = fleet
        self._session: ServerSession | None = None
        self._todo: deque[Action] = deque()
        self._carrying_out = False
        self._ending = False
        self._record: str | None = None
        # F3: bytes fed since the upgrade, and those of the first text message's payload.
        self._counting = False
        self._fed = 0
        self._hello_payload = 0
        self._reading_held = False
        self._unread = False
        self._deadline: float | None = None
        self._deadline_call: IDelayedCall | None = None
        self._unread_call: IDelayedCall | None = None
        self._close_call: IDelayedCall | None = None

    @property
    def remote_address(self) -> str:
        """The peer's address as host:port; what a trusted proxy said of it, without a port."""
        kind, _, rest = str(self.peer or "").partition(":")
        known = rest if kind in ("tcp", "tcp4", "tcp6", "unix") else f"{kind}:{rest}".rstrip(":")
        return "".join(char for char in known if char.isprintable())[:_ADDRESS_CHARS]

    @property
    def forwarded(self) -> bool:
        """Whether a proxy that is trusted said where the peer is."""
        told = "x-forwarded-for" in (self.http_headers or {})
        return told and bool(self.factory.trustXForwardedFor)

    @property
    def source(self) -> str | None:
        """Where the peer is: an IP address, a proxy's word for it, or None on a Unix socket."""
        return str(self.peer) if self.forwarded else getattr(self.transport.getPeer(), "host", None)

    # What the fleet tells.

    def stored(self, key: int, appended: Appended) -> None:
        """A batch is durable (F10)."""
        if self._session is not None:
            now, wall = self._reactor.seconds(), self._fleet.wall()
            self._carry_out(self._session.stored(key, appended, now, wall))

    def not_stored(self, key: int, error: Exception) -> None:
        """A batch was not stored (F33)."""
        if self._session is not None:
            self._carry_out(self._session.not_stored(key, error, self._reactor.seconds()))

    def measured(self, key: int, outcome: tuple[int, int] | Exception) -> None:
        """So many samples are stored, so many dropped for good (F24); or the store failed."""
        if self._session is not None:
            self._carry_out(self._session.measured(key, outcome))

    def probe(self, key: int, call: ProbeCall) -> None:
        """Have the host run a probe; the fleet hears what came of it by `key` (§4.6)."""
        if self._session is None or self._ending:
            self._fleet.probe_over(key, LOST)
        else:
            self._carry_out(self._session.probe_asked(key, call, self._reactor.seconds()))

    def configured(self, config: AgentConfig, apply_after: datetime | None) -> None:
        """The host is to do as `config` says (§4.8)."""
        if self._session is not None and not self._ending:
            now = self._reactor.seconds()
            self._carry_out(self._session.configured(config, apply_after, now))

    def superseded(self) -> None:
        """A newer session of this host is there (F14)."""
        if self._session is not None:
            self._carry_out(self._session.superseded())

    def revoked(self) -> None:
        """The host is revoked (F8)."""
        if self._session is not None:
            self._carry_out(self._session.revoked())

    def shut_down(self, reason: ShutdownReason, drain_seconds: int) -> None:
        """The server stops, or lets go of this host."""
        if self._session is not None:
            now = self._reactor.seconds()
            self._carry_out(self._session.shut_down(reason, drain_seconds, now))

    def close(self, code: int, reason: str, record: str) -> None:
        """Close now, whatever the session thinks; it hears of it as of a lost peer."""
        self._end(code, reason, record)

    def abort(self, record: str) -> None:
        """Drop the connection at once."""
        if not self._ending:
            self._session_ended(record)
        self.transport.abortConnection()

    # What Autobahn tells.

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        super().connectionMade()

    def onConnect(self, request: Any) -> str:
        if request.path != PATH:
            raise ConnectionDeny(404)
        if contract.SUBPROTOCOL not in request.protocols:
            raise ConnectionDeny(400)
        refusal = self.factory.refusal(self)
        if refusal is not None:
            raise ConnectionDeny(refusal)
        return contract.SUBPROTOCOL

    def onOpen(self) -> None:
        self._counting = True
        # What came in one piece with the upgrade request waits in `data`.
        self._fed = len(self.data)
        self._session = self._fleet.session(self)
        self._carry_out(self._session.opened(self._reactor.seconds()))

    def dataReceived(self, data: bytes) -> None:
        try:
            if not self._counting:
                super().dataReceived(data)
                return
            self._fed += len(data)
            super().dataReceived(data)
            if self._counting:
                # The hello is not complete, so all that came counts, a half header too.
                self._count(self._fed)
        except Exception:
            self._failed("a fault in the server's handling of a connection")

    def onFrameBegin(self) -> None:
        if self._counting:
            self._count(self._fed - len(self.data))
        super().onFrameBegin()

    def onMessageFrameBegin(self, length: int) -> None:
        super().onMessageFrameBegin(length)
        if not self._counting:
            if self.message_is_binary and self._session is not None and not self._ending:
                # At the first fragment's header: nothing of it need be kept (§2, F9).
                self._carry_out(self._session.binary_received())
        elif not self.message_is_binary:
            # The announced size counts, so that an oversize hello ends at its header.
            self._count(self._fed - len(self.data), announced=self.message_data_total_length)

    def onMessageFrameData(self, payload: bytes) -> None:
        if self._counting:
            if self.message_is_binary:
                self._count(self._fed - len(self.data))
            else:
                self._hello_payload += len(payload)
        super().onMessageFrameData(payload)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        session = self._session
        if session is None or self._ending:
            return
        try:
            if isBinary:
                self._carry_out(session.binary_received())
                return
            self._counting = False
            now, wall = self._reactor.seconds(), self._fleet.wall()
            self._carry_out(session.text_received(payload, now, wall))
        except Exception:
            self._failed("a fault in the server's handling of a message")

    def onPong(self, payload: bytes) -> None:
        if self._session is not None and not self._ending:
            now = self._reactor.seconds()
            self._carry_out(self._session.pong_received(bytes(payload), now))

    def onCloseFrame(self, code: Any, reasonRaw: Any) -> Any:
        handled = super().onCloseFrame(code, reasonRaw)
        self._session_ended(f"{1005 if code is None else code} closed by the host")
        return handled

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        session, self._session = self._session, None
        self._ending = True
        for call in (self._deadline_call, self._unread_call, self._close_call):
            if call is not None and call.active():
                call.cancel()
        self._deadline_call = self._unread_call = self._close_call = None
        if session is None:
            return
        for action in session.peer_lost():
            if isinstance(action, actions.ProbeDone):
                self._fleet.probe_over(action.key, action.outcome)
        self._fleet.gone(self, self._record or "connection lost")

    def _max_message_size_exceeded(self, msg_size: int, max_msg_size: int, reason: str) -> None:
        # Autobahn's hook: what follows of the message is thrown away as it comes (F31), even
        # where the session closes only after the verdict on a hello (F30).
        self.failedByMe = True
        if self._session is not None and not self._ending:
            self._carry_out(self._session.too_big())

    def _fail_connection(self, code: int = 1002, reason: str = "") -> None:
        # Autobahn's own refusals: a broken frame or a bad close (RFC 6455 §7.1.7).
        super()._fail_connection(code, "protocol error")
        self._session_ended(f"{code} protocol error")

    def _closeConnection(self, abort: bool = False) -> None:
        # Never at once: what was written, a close frame above all, goes out first.
        self.transport.loseConnection()
        self._abort_later()

    def sendHttpErrorResponse(self, code: int, reason: str, responseHeaders: Any = None) -> None:
        """Refuse an upgrade; nothing that the peer sent comes back in the answer."""
        lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}"]
        lines += [f"{name}: {value}" for name, value in responseHeaders or ()]
        if code == 426:
            lines += ["Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines += ["Content-Length: 0", "Connection: close", "", ""]
        self.sendData("\r\n".join(lines).encode("ascii", "replace"))

    # What the transport tells: the peer does not read (style: backpressure both ways).

    def pauseProducing(self) -> None:
        self._unread = True
        self._hold_or_read()
        if self._unread_call is None and self._close_call is None:
            self._unread_call = self._reactor.callLater(
                self._fleet.slow_peer_seconds, self._stayed_unread
            )

    def resumeProducing(self) -> None:
        self._unread = False
        self._hold_or_read()
        call, self._unread_call = self._unread_call, None
        if call is not None:
            call.cancel()

    def stopProducing(self) -> None:
        pass

    # Carrying out.

    def _carry_out(self, todo: Iterable[Action]) -> None:
        self._todo.extend(todo)
        if self._carrying_out:
            # An action's effect came back at once: it follows what is being done.
            return
        self._carrying_out = True
        try:
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._carrying_out = False

    def _do(self, action: Action) -> None:
        match action:
            case actions.Send(payload):
                if not self._ending and self.state == self.STATE_OPEN:
                    self.sendMessage(payload, False)
            case actions.Ingest(key, batch):
                # Even from a connection that is ending: its bytes are reserved by now.
                self._fleet.ingest(self, key, batch)
            case actions.Measure():
                self._fleet.measure(self, action)
            case actions.ProbeDone(key, outcome):
                self._fleet.probe_over(key, outcome)
            case actions.SetDeadline(at):
                self._set_deadline(at)
            case actions.Ping(payload):
                if not self._ending:
                    self.sendPing(payload)
            case actions.Beat(heartbeat, accepted_seq):
                self._fleet.beat(self, heartbeat, accepted_seq)
            case actions.Close(code, reason, record):
                self._end(code, reason, record)
            case actions.Judge(hello):
                judged = self._fleet.judge(self, hello).addCallback(self._judged)
                judged.addErrback(self._judging_failed)
            case actions.Opened(host_id, session_id):
                self._fleet.opened(self, host_id, session_id)
            case actions.PauseReading():
                self._reading_held = True
                self._hold_or_read()
            case actions.ResumeReading():
                self._reading_held = False
                self._hold_or_read()
            case actions.Warn(text):
                self._logger.warn("{peer}: {text}", peer=self.remote_address, text=text)

    def _judged(self, judged: tuple[Verdict, AgentConfig | None]) -> None:
        if self._session is not None:
            now, wall = self._reactor.seconds(), self._fleet.wall()
            self._carry_out(self._session.hello_judged(judged[0], now, wall, judged[1]))

    def _judging_failed(self, failure: Failure) -> None:
        self._logger.failure("a hello could not be judged", failure)
        self._end(CloseCode.INTERNAL_ERROR, "internal error", "1011 internal error")

    def _count(self, consumed: int, announced: int = 0) -> None:
        """Tell the session the bytes so far before the hello is complete (F3)."""
        session, payload = self._session, self._hello_payload
        if session is not None and not self._ending:
            self._carry_out(session.wire_counted(consumed - payload, max(payload, announced)))

    def _set_deadline(self, at: float | None) -> None:
        self._deadline = at
        call = self._deadline_call
        if at is None or self._ending:
            self._deadline_call = None
            if call is not None:
                call.cancel()
            return
        now = self._reactor.seconds()
        if call is not None:
            if call.getTime() <= at:
                # It fires early and looks again: cheaper than a new call for every beat.
                return
            call.cancel()
        self._deadline_call = self._reactor.callLater(max(0.0, at - now), self._time_passed)

    def _time_passed(self) -> None:
        self._deadline_call = None
        session, at = self._session, self._deadline
        if session is None or at is None or self._ending:
            return
        now = self._reactor.seconds()
        if now < at:
            self._set_deadline(at)
            return
        self._deadline = None
        try:
            self._carry_out(session.time_passed(now))
        except Exception:
            self._failed("a fault in the server's handling of a deadline")

    def _stayed_unread(self) -> None:
        self._unread_call = None
        self._logger.warn(
            "{peer} did not read what it was sent for {seconds} s and is dropped",
            peer=self.remote_address,
            seconds=self._fleet.slow_peer_seconds,
        )
        self.abort("not reading what it is sent")

    def _failed(self, what: str) -> None:
        self._logger.failure("{peer}: {what}", peer=self.remote_address, what=what)
        if self._session is None:
            self.transport.abortConnection()
        else:
            self._end(CloseCode.INTERNAL_ERROR, "internal error", "1011 internal error")

    def _end(self, code: int, reason: str, record: str) -> None:
        if self._ending:
            return
        self._session_ended(record, PATIENCE.get(code, CLOSE_SECONDS))
        # What still comes is thrown away, and nothing more is buffered.
        self.failedByMe = True
        self.sendCloseFrame(int(code), reason.encode()[:_REASON_BYTES], isReply=False)

    def _session_ended(self, record: str, seconds: float = CLOSE_SECONDS) -> None:
        """Nothing goes out any more but a close; read on, to see the peer's."""
        self._ending = True
        self._fleet.hello_over(self)
        self._counting = False
        if self._record is None:
            self._record = record
        self._set_deadline(None)
        self._reading_held = False
        self._hold_or_read()
        self._abort_later(seconds)

    def _abort_later(self, seconds: float = CLOSE_SECONDS) -> None:
        if self._close_call is None:
            self._close_call = self._reactor.callLater(seconds, self._abort)

    def _abort(self) -> None:
        self._close_call = None
        self.transport.abortConnection()

    def _hold_or_read(self) -> None:
        if self._reading_held or (self._unread and not self._ending):
            self.transport.pauseProducing()
        else:
            self.transport.resumeProducing()


class AgentSocketFactory(WebSocketServerFactory):
    """Makes AgentSockets, set as §2 wants it."""

    log = make_logger(level="error")
    noisy = False

    def __init__(
        self,
        reactor: Any,
        fleet: Fleet,
        *,
        max_connections: int = 0,
        trust_forwarded_for: int = 0,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(server=None, reactor=reactor)
        self._fleet = fleet
        self._admission = admission
        self.setProtocolOptions(
            webStatus=False,
            utf8validateIncoming=False,
            maxFramePayloadSize=contract.MAX_FRAME_BYTES,
            maxMessagePayloadSize=contract.MAX_FRAME_BYTES,
            failByDrop=False,
            openHandshakeTimeout=0,
            closeHandshakeTimeout=0,
            autoPingInterval=0,
            autoPingTimeout=0,
            perMessageCompressionAccept=lambda offers: None,
            tcpNoDelay=True,
            maxConnections=max_connections,
            trustXForwardedFor=trust_forwarded_for,
            allowNullOrigin=True,
        )

    def refusal(self, socket: AgentSocket) -> int | None:
        """The HTTP status that an upgrade is refused with for its source's sake (A52)."""
        admission = self._admission
        if admission is None:
            return None
        now, source, told = self.reactor.seconds(), socket.source, socket.forwarded
        # Without a proxy the rate was judged before the connection cost anything.
        if self.trustXForwardedFor and not admission.admits(source, now, forwarded=told):
            return 429
        return None if admission.admits_hello(source, forwarded=told) else 503

    def buildProtocol(self, addr: object) -> AgentSocket:
        socket = AgentSocket(self.reactor, self._fleet)
        socket.factory = self
        return socket
