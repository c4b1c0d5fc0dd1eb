"""The agent's WebSocket: Autobahn's client as an adapter for the link machine.

Autobahn frames, masks and answers pings and closes; all else is the link's. Its
timers are off (they would use the global reactor): time comes from the link's
deadline, and a close that the server does not finish ends in an abort here.
`log`, `state` and `factory.isServer` are Autobahn's own names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from autobahn.twisted.websocket import WebSocketClientFactory, WebSocketClientProtocol
from twisted.internet.defer import CancelledError
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from txaio.tx import make_logger
from zope.interface import implementer

from cortextx.errors import CortexError
from cortextx.fleet.contract import MAX_FRAME_BYTES, SUBPROTOCOL, CloseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

SUPERSEDED = b"superseded"
"""Why a server closes a session that a newer one replaces (F14)."""
CONNECT_SECONDS = 20.0
"""How long the TCP part of connecting may take, over all addresses of the host."""
CLOSE_SECONDS = 5.0
"""How long the server may take to finish a close."""
_REASON_BYTES = 123
_MAX_WORDS = 200
_REFUSED = re.compile(r"upgrade failed \[(\d{3})\]")


class Hears(Protocol):
    """What hears of one connection: `lost` comes once, last, whatever happened."""

    def opened(self) -> None:
        """The WebSocket is open and the subprotocol confirmed."""

    def message(self, payload: bytes, binary: bool) -> None:
        """A whole message came; a text need not be UTF-8."""

    def pinged(self) -> None:
        """The server pinged."""

    def full(self) -> None:
        """The transport holds enough; send no more for now."""

    def ready(self) -> None:
        """The transport takes more."""

    def lost(self, why: str) -> None:
        """The connection is gone, or never came to be."""


@implementer(IPushProducer)
class AgentConnection(WebSocketClientProtocol):
    """One connection. It is the transport's producer, to hear when it is full."""

    log = make_logger(level="error")
    transport: Any
    _logger = Logger()

    def __init__(self, reactor: Any, hears: Hears) -> None:
        super().__init__()
        self._reactor = reactor
        self._hears = hears
        self._why: str | None = None
        self._is_over = False
        self._was_open = False
        self._closing = False
        self._abort_call: IDelayedCall | None = None

    def send(self, payload: bytes) -> None:
        """Send one text message, unless the connection is ending."""
        if not self._closing and self.state == self.STATE_OPEN:
            self.sendMessage(payload, False)

    def close(self, code: int, reason: str) -> None:
        """Begin to close; `lost` follows, after an abort if the server is slow."""
        if self._closing or self._is_over:
            return
        self._closing = True
        self._abort_later()
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code, reason.encode()[:_REASON_BYTES], isReply=False)
        else:
            self.transport.abortConnection()

    def onConnect(self, response: Any) -> None:
        if response.protocol != SUBPROTOCOL:
            self._why = f"the server does not confirm the subprotocol {SUBPROTOCOL}"
            self.close(1002, "")

    def onOpen(self) -> None:
        if self._closing:
            return
        self._was_open = True
        self.transport.registerProducer(self, True)
        self._tell(self._hears.opened)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if not self._closing:
            self._tell(self._hears.message, payload, isBinary)

    def onPing(self, payload: bytes) -> None:
        super().onPing(payload)
        if not self._closing:
            self._tell(self._hears.pinged)

    def onCloseFrame(self, code: Any, reasonRaw: Any) -> Any:
        if self._why is None and not self._closing:
            said = " superseded" if code == CloseCode.NORMAL and reasonRaw == SUPERSEDED else ""
            self._why = f"the server closed the connection ({code or 'no code'}{said})"
        self._closing = True
        self._abort_later()
        return super().onCloseFrame(code, reasonRaw)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        # Autobahn would say the same in many more words.
        if self._why is None and isinstance(reason.value, CortexError):
            self._why = _plain(str(reason.value))
        super().connectionLost(reason)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        if self._is_over:
            return
        self._is_over = self._closing = True
        call, self._abort_call = self._abort_call, None
        if call is not None:
            call.cancel()
        if self._why is None and not self._was_open:
            self._why = _not_opened(reason or "", self.factory)
        self._tell(self._hears.lost, self._why or _plain(reason) or "it broke off")

    def _fail_connection(self, code: int = 1002, reason: str = "") -> None:
        # Autobahn's own refusals: a broken frame, a message too big (RFC 6455 §7.1.7).
        if self._why is None:
            self._why = f"the server breaks the WebSocket protocol ({code})"
        self._closing = True
        self._abort_later()
        super()._fail_connection(code, "")

    def pauseProducing(self) -> None:
        self._tell(self._hears.full)

    def resumeProducing(self) -> None:
        self._tell(self._hears.ready)

    def stopProducing(self) -> None:
        pass

    def _tell(self, hears: Callable[..., None], *details: Any) -> None:
        """Nothing that goes wrong beyond this line may reach Autobahn, which would hide it."""
        try:
            hears(*details)
        except Exception:
            self._logger.failure("a fault in the agent's handling of its connection")
            self.transport.abortConnection()

    def _abort_later(self) -> None:
        if self._abort_call is None and not self._is_over:
            self._abort_call = self._reactor.callLater(CLOSE_SECONDS, self._abort)

    def _abort(self) -> None:
        self._abort_call = None
        self.transport.abortConnection()


class Attempt:
    """One connection from its first packet to its end, for the link's Connect."""

    def __init__(self, hears: Hears, connecting: Deferred[AgentConnection]) -> None:
        self._hears = hears
        self._connection: AgentConnection | None = None
        self._connecting = connecting
        connecting.addCallbacks(self._made, self._not_made)
        connecting.addErrback(lambda failure: Logger().failure("connecting failed", failure))

    def send(self, payload: bytes) -> None:
        """Send one text message."""
        if self._connection is not None:
            self._connection.send(payload)

    def close(self, code: int, reason: str) -> None:
        """End it; `lost` follows."""
        if self._connection is None:
            self._connecting.cancel()
        else:
            self._connection.close(code, reason)

    def _made(self, connection: AgentConnection) -> None:
        self._connection = connection

    def _not_made(self, failure: Failure) -> None:
        self._hears.lost(_in_words(failure))


class Connector:
    """Connects to one server, for wss:// by TLS: with the platform's trust roots, or with
    the one CA that `ca_pin` names (F40)."""

    def __init__(self, reactor: Any, url: str, user_agent: str, ca_pin: str | None = None) -> None:
        self._reactor = reactor
        self._url = url
        self._user_agent = user_agent
        self._ca_pin = ca_pin

    def connect(self, hears: Hears) -> Attempt:
        """Begin to connect."""
        factory = AgentConnectionFactory(self._reactor, self._url, self._user_agent, hears)
        return Attempt(hears, self._endpoint().connect(factory))

    def _endpoint(self) -> Any:
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        secure = parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
        endpoint = HostnameEndpoint(self._reactor, host, port, timeout=CONNECT_SECONDS)
        if not secure:
            return endpoint
        if self._ca_pin is not None:
            from cortextx.fleet.agent.pinning import PinnedServer

            return wrapClientTLS(PinnedServer(host, self._ca_pin), endpoint)
        from twisted.internet.ssl import optionsForClientTLS

        return wrapClientTLS(optionsForClientTLS(host), endpoint)


class AgentConnectionFactory(WebSocketClientFactory):
    """Makes the one AgentConnection of an attempt (§2)."""

    noisy = False
    log = make_logger(level="error")

    def __init__(self, reactor: Any, url: str, user_agent: str, hears: Hears) -> None:
        super().__init__(url, protocols=[SUBPROTOCOL], useragent=user_agent, reactor=reactor)
        self._hears = hears
        self.setProtocolOptions(
            maxFramePayloadSize=MAX_FRAME_BYTES,
            maxMessagePayloadSize=MAX_FRAME_BYTES,
            utf8validateIncoming=False,
            failByDrop=False,
            tcpNoDelay=True,
            openHandshakeTimeout=0,
            closeHandshakeTimeout=0,
            serverConnectionDropTimeout=0,
            autoPingInterval=0,
            perMessageCompressionOffers=[],
        )

    def buildProtocol(self, addr: object) -> AgentConnection:
        connection = AgentConnection(self.reactor, self._hears)
        connection.factory = self
        return connection


def _not_opened(reason: str, factory: WebSocketClientFactory) -> str | None:
    """What Autobahn says of a WebSocket that never opened, with what may be wrong in the URL;
    None for what it says well enough, as of a certificate."""
    answer = _REFUSED.search(reason)
    if answer is not None and answer[1] == "404":
        at = _plain(factory.path)
        return f"the server has nothing at {at} (HTTP 404): is the path of the URL /ws/agent?"
    if answer is not None:
        return f"the server, or a proxy before it, answers HTTP {answer[1]} and no WebSocket"
    if "peer dropped" not in reason:
        return None
    where = _plain(f"{factory.host}:{factory.port}")
    if factory.isSecure:
        return f"{where} ended the TLS handshake or the WebSocket's: it may be no wss:// (TLS) port"
    return f"{where} ended the connection before the WebSocket was open: it may want wss:// (TLS)"


def _in_words(failure: Failure) -> str:
    if failure.check(CancelledError):
        return "no connection in time"
    if failure.check(DNSLookupError):
        return "the server's name is not known"
    if failure.check(ConnectError):
        return _plain(failure.getErrorMessage()) or failure.value.__class__.__name__
    return _plain(f"{failure.value.__class__.__name__}: {failure.getErrorMessage()}")


def _plain(text: str | None) -> str:
    """Text from outside on one line, printable and bounded, for a log."""
    shown = "".join(c if c.isprintable() and c.isascii() else "?" for c in text or "")
    return shown[:_MAX_WORDS]
