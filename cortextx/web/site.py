"""The one web site of a server: /ws/agent, /healthz, and what `web.mount` adds.

Each request has bounds before any resource sees it: its head 16 KiB and 5 s in
all, however slowly it drips in (F3), its body 64 KiB and 30 s; only who may send a body
has it kept (`web.bodies`).

An upgrade takes the connection away from twisted.web. Three things must not be
forgotten there: bytes that came in one piece with the request's head belong to
the WebSocket, the HTTP channel must stop being the transport's producer, and
its timers must stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.web import http, server
from twisted.web.resource import IResource

from cortextx.core import jsontext
from cortextx.errors import in_words
from cortextx.web.bodies import Body, BodyGate, Unjudged
from cortextx.web.problems import CONTENT_TYPE, unavailable
from cortextx.web.refusals import NotThere, Refusing

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IProtocol
    from twisted.python.failure import Failure

HEAD_BYTES = 16_384
"""The longest request line and headers (F3)."""
HEAD_SECONDS = 5.0
"""From the connection, or a later request's first byte, to the end of its head (F3)."""
BODY_BYTES = 65_536
BODY_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""How long a connection may stay open between two requests."""
UNREAD_SECONDS = 30.0
"""How long a client may take nothing of an answer before its next request is looked at."""
HEALTH_SECONDS = 5.0
"""How long the store may take to show that it answers."""


class BoundedChannel(http.HTTPChannel):
    """One HTTP connection, with the bounds of this module."""

    transport: Any
    factory: Any
    totalHeadersSize = HEAD_BYTES
    MAX_LENGTH = HEAD_BYTES

    def __init__(self) -> None:
        super().__init__()
        self._due: IDelayedCall | None = None
        self._between = False
        self._answered: http.Request | None = None
        self._judging: Deferred[bool] | None = None
        self._refused = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self._must_go_on_within(HEAD_SECONDS)

    def dataReceived(self, data: bytes) -> None:
        if self._between:
            self._between = False
            self._must_go_on_within(HEAD_SECONDS)
        super().dataReceived(data)

    def allHeadersReceived(self) -> None:
        self._must_go_on_within(BODY_SECONDS)
        if self.length is None or self.length > BODY_BYTES:
            self.transport.write(
                b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            self.loseConnection()
            return
        super().allHeadersReceived()
        if self.length:
            self._judge_body(self.requests[-1])

    def _judge_body(self, request: Any) -> None:
        gate = self.factory.body_gate(self._path)
        if gate is None:
            request.content.drop()
            return
        self._judging = gate.admits_body(request.requestHeaders)
        request.content.judge_by(self._judging, self.factory.unjudged, self._too_much)

    def _too_much(self) -> None:
        """Bodies of strangers take all the room that there is for them."""
        problem = unavailable("too many requests are being looked at; try again")
        body = jsontext.encode(problem.body())
        self._refused = True
        self.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
            b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (CONTENT_TYPE, len(body), body)
        )
        self.loseConnection()

    def allContentReceived(self) -> None:
        self.stop_timer()
        if self._refused:
            return
        super().allContentReceived()

    def requestDone(self, request: http.Request) -> None:
        if self._waitingForTransport:
            # Else a client that sends requests and reads nothing has answers pile up.
            self._answered = request
            self._must_go_on_within(UNREAD_SECONDS)
            return
        # What came behind this request, while it was answered, begins the next one.
        self._between = not self._dataBuffer
        if not self._between:
            self._must_go_on_within(HEAD_SECONDS)
        super().requestDone(request)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        request, self._answered = self._answered, None
        if request is not None:
            self.stop_timer()
            self.requestDone(request)

    def connectionLost(self, reason: Any = None) -> None:
        self.stop_timer()
        self._answered = None
        if self._judging is not None:
            self._judging.cancel()
        self.factory.open_channels.discard(self)
        super().connectionLost(reason)

    def take_over(self) -> tuple[Any, bytes]:
        """Give up the transport, during a request's rendering; returns it and the
        bytes that came behind that request."""
        transport, self.transport = self.transport, None
        self.factory.open_channels.discard(self)
        self.stop_timer()
        self.setTimeout(None)
        transport.unregisterProducer()
        return transport, self.clearLineBuffer()

    def stop_timer(self) -> None:
        """Stop waiting for the rest of a request."""
        due, self._due = self._due, None
        if due is not None and due.active():
            due.cancel()

    def _must_go_on_within(self, seconds: float) -> None:
        self.stop_timer()
        self._due = self.callLater(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._due = None
        self.transport.abortConnection()


class QuietRequest(server.Request):
    """A request whose answer does not tell who serves it, and whose body may be dropped."""

    def gotLength(self, length: int | None) -> None:
        self.content = Body()

    def setHeader(self, name: bytes, value: bytes) -> None:
        if name.lower() != b"server":
            super().setHeader(name, value)


class BoundedSite(server.Site):
    """A site whose connections are bounded, in number too; it keeps no access log."""

    protocol = BoundedChannel  # type: ignore[assignment]
    requestFactory = QuietRequest
    displayTracebacks = False
    noisy = False

    def __init__(self, resource: IResource, reactor: Any, max_connections: int) -> None:
        super().__init__(resource, reactor=reactor, timeout=IDLE_SECONDS)
        self._max_connections = max_connections
        self.open_channels: set[BoundedChannel] = set()
        self.unjudged = Unjudged()

    def body_gate(self, path: bytes) -> BodyGate | None:
        """Who judges whether a request with this path may have a body; None if nobody does."""
        first = path.partition(b"?")[0].lstrip(b"/").partition(b"/")[0]
        found: object = self.resource.getStaticEntity(unquote_to_bytes(first))
        return found if isinstance(found, BodyGate) else None

    def buildProtocol(self, addr: Any) -> Any:
        if len(self.open_channels) >= self._max_connections:
            return None
        channel = super().buildProtocol(addr)
        self.open_channels.add(channel)
        return channel

    def log(self, request: http.Request) -> None:
        """Log nothing: probes of /healthz would drown the rest."""

    def close_connections(self) -> None:
        """Drop the HTTP connections that are open; upgraded ones are not among them."""
        for channel in list(self.open_channels):
            channel.transport.abortConnection()


class WebSocketFactory(Protocol):
    """What makes the protocols of upgraded connections."""

    def buildProtocol(self, addr: Any) -> IProtocol:
        """A protocol that reads an HTTP upgrade request first."""


class Upgrade(Refusing):
    """Hands a connection over to a WebSocket protocol, which judges the request itself."""

    isLeaf = False

    def __init__(self, factory: WebSocketFactory) -> None:
        super().__init__()
        self._factory = factory

    def render(self, request: Any) -> Any:
        channel = request.channel
        if channel.transport is None or not isinstance(channel, BoundedChannel):
            request.setResponseCode(426)
            return b""
        if request.content.read(1) or request.requestHeaders.hasHeader(b"Transfer-Encoding"):
            request.setResponseCode(http.BAD_REQUEST)
            request.setHeader(b"Connection", b"close")
            return b""
        head = [request.method + b" " + request.uri + b" " + request.clientproto]
        for name, values in request.requestHeaders.getAllRawHeaders():
            head.append(name + b": " + b",".join(values))
        transport, behind = channel.take_over()
        protocol = self._factory.buildProtocol(transport.getPeer())
        wrapper = transport if isinstance(transport, ProtocolWrapper) else transport.protocol
        if isinstance(wrapper, ProtocolWrapper):
            # TLS, or a policy around the connection.
            wrapper.wrappedProtocol = protocol
        else:
            transport.protocol = protocol
        protocol.makeConnection(transport)
        protocol.dataReceived(b"\r\n".join([*head, b"", b""]))
        if behind:
            protocol.dataReceived(behind)
        return server.NOT_DONE_YET


class Health(Protocol):
    """Who knows whether the server works."""

    def is_healthy(self) -> Deferred[None]:
        """Fires if the store answers, fails if it does not."""


class Healthz(Refusing):
    """GET /healthz: 200 `ok` if the store answers, 503 if it does not, or too late."""

    isLeaf = False
    log = Logger()

    def __init__(self, reactor: Any, health: Health) -> None:
        super().__init__()
        self._reactor = reactor
        self._health = health

    def render_GET(self, request: Any) -> Any:
        request.setHeader(b"Content-Type", b"text/plain; charset=utf-8")
        request.setHeader(b"Cache-Control", b"no-store")
        gone = False

        def went(_: object) -> None:
            nonlocal gone
            gone = True

        def answered(healthy: bool) -> None:
            if gone:
                return
            if not healthy:
                request.setResponseCode(http.SERVICE_UNAVAILABLE)
            body = b"ok\n" if healthy else b"the store does not answer\n"
            request.setHeader(b"Content-Length", b"%d" % len(body))
            request.write(body)
            request.finish()

        def failed(failure: Failure) -> None:
            why = in_words(failure.value)
            self.log.warn("/healthz: the store does not answer: {why}", why=why)
            answered(False)

        request.notifyFinish().addBoth(went)
        asked = self._health.is_healthy().addTimeout(HEALTH_SECONDS, self._reactor)
        asked.addCallbacks(lambda _: answered(True), failed)
        asked.addErrback(lambda failure: self.log.failure("/healthz failed", failure))
        return server.NOT_DONE_YET


def make_site(
    reactor: Any,
    agents: WebSocketFactory,
    health: Health,
    max_connections: int,
    more: Mapping[bytes, IResource] | None = None,
) -> BoundedSite:
    """The site with everything mounted; `more` by the first part of its paths."""
    root = NotThere()
    ws = NotThere()
    ws.putChild(b"agent", Upgrade(agents))
    root.putChild(b"ws", ws)
    root.putChild(b"healthz", Healthz(reactor, health))
    for name, resource in (more or {}).items():
        root.putChild(name, resource)
    return BoundedSite(root, reactor, max_connections)
