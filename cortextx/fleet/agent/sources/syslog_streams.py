"""Syslog over TCP and TLS: bounded connections that are read as fast as the buffer takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IHandshakeListener, IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import Certificate, CertificateOptions, trustRootFromCertificates
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.core.budgets import LeakyBucket
from cortextx.errors import ConfigError
from cortextx.fleet.agent.sources.custom_settings import SyslogSettings, TlsFiles, shown_peer
from cortextx.fleet.agent.sources.syslog_framing import FramingFault, SyslogFramer

if TYPE_CHECKING:
    from cortextx.fleet.agent.sources.syslog_listeners import SyslogSource

HANDSHAKE_SECONDS = 10.0
QUIET_SECONDS = 60.0
"""A connection that was quiet for so long makes room for another when all are taken."""
CLOSE_SECONDS = 2.0
RELOAD_SECONDS = 60.0
"""How often changed certificates are looked for, when somebody connects."""


class Streams:
    """The connections of one listener. While they `rest`, none is read."""

    log = Logger()

    def __init__(self, reactor: Any, owner: SyslogSource, settings: SyslogSettings) -> None:
        self.reactor = reactor
        self.owner = owner
        self.settings = settings
        self.resting = False
        self.open: set[Connection] = set()
        self.counters = {"connections": 0, "refused_connections": 0, "framing_faults": 0,
                         "failed_handshakes": 0, "idle_closed": 0}  # fmt: skip
        self._closed: Deferred[None] | None = None

    def factory(self) -> Any:
        """What accepts connections; raises ConfigError for certificates that do not do."""
        plain = Accepting(self)
        if self.settings.tls is None:
            return plain
        creator = Certificates(self.settings.tls, self.reactor.seconds)
        wrapped = TLSMemoryBIOFactory(creator, False, plain)
        wrapped.noisy = False
        return wrapped

    def has_room(self) -> bool:
        """Whether one more may come; the quietest goes if all are taken."""
        if len(self.open) < self.settings.max_connections:
            return True
        quietest = min(self.open, key=lambda connection: connection.heard)
        if self.reactor.seconds() - quietest.heard < QUIET_SECONDS:
            return False
        self.counters["idle_closed"] += 1
        quietest.abort()
        self.open.discard(quietest)
        return True

    def rest(self, resting: bool) -> None:
        """Read nothing for now, or go on."""
        self.resting = resting
        for connection in list(self.open):
            connection.read_or_not()

    def ended(self, connection: Connection) -> None:
        """A connection has gone."""
        self.open.discard(connection)
        if not self.open and self._closed is not None:
            closed, self._closed = self._closed, None
            closed.callback(None)

    def close(self) -> Deferred[None]:
        """Close all connections; fires when all have gone."""
        if not self.open:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._closed = done
        for connection in list(self.open):
            connection.end()
        return done


class Accepting(Factory):
    """Lets senders in that may send and for whom there is room."""

    noisy = False

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def buildProtocol(self, addr: Any) -> Protocol:
        """A connection, or what ends it at once."""
        streams = self._streams
        peer = shown_peer(addr.host)
        if not streams.settings.admits(peer):
            streams.owner.refused()
            return Refused()
        if not streams.has_room():
            streams.counters["refused_connections"] += 1
            return Refused()
        return Connection(streams, peer)


class Refused(Protocol):
    """Ends a connection at once."""

    transport: Any

    def connectionMade(self) -> None:
        self.transport.abortConnection()


@implementer(IHandshakeListener)
class Connection(Protocol):
    """One sender's stream."""

    transport: Any

    def __init__(self, streams: Streams, peer: str) -> None:
        settings = streams.settings
        self.peer = peer
        self.heard = streams.reactor.seconds()
        self._streams = streams
        self._framer = SyslogFramer(settings.framing, settings.part_bytes)
        self._encoder = streams.owner.encoder()
        self._bucket = (
            LeakyBucket(settings.rate, max(1.0, settings.rate)) if settings.rate else None
        )
        self._reading = True
        self._waits: Any = None
        self._deadline: Any = None
        self._ending = False

    def connectionMade(self) -> None:
        """A sender has come."""
        self._streams.open.add(self)
        self._streams.counters["connections"] += 1
        if hasattr(self.transport, "setTcpKeepAlive"):
            self.transport.setTcpKeepAlive(True)
        if self._streams.settings.tls is not None:
            self._deadline = self._streams.reactor.callLater(HANDSHAKE_SECONDS, self.abort)
        else:
            self._watch()
        self.read_or_not()

    def handshakeCompleted(self) -> None:
        """TLS is up."""
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None
        self._watch()

    def dataReceived(self, data: bytes) -> None:
        """Take bytes."""
        self.heard = self._streams.reactor.seconds()
        try:
            frames, fault = self._framer.feed(data), None
        except FramingFault as error:
            frames, fault = error.frames, error
        if frames:
            self._streams.owner.take(self._encoder, frames, len(data), self.peer)
            if self._bucket is not None:
                self._pay(len(frames))
        if fault is not None:
            self._streams.counters["framing_faults"] += 1
            self._streams.log.warn(
                "{name}: {peer}: {fault}; the connection is closed",
                name=self._streams.owner.name, peer=self.peer, fault=str(fault),
            )  # fmt: skip
            self.abort()

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        """The sender has gone, perhaps within a message."""
        for timer in (self._waits, self._deadline):
            if timer is not None and timer.active():
                timer.cancel()
        if reason is not None and reason.check(SSL.Error):
            self._streams.counters["failed_handshakes"] += 1
            self._streams.log.info(
                "{name}: {peer}: TLS failed", name=self._streams.owner.name, peer=self.peer
            )
        frames = self._framer.close()
        if frames:
            self._streams.owner.take(self._encoder, frames, 0, self.peer)
        self._streams.ended(self)

    def read_or_not(self) -> None:
        """Read if nothing speaks against it."""
        reading = not (self._streams.resting or self._waits is not None) or self._ending
        if reading is self._reading:
            return
        self._reading = reading
        if reading:
            self.transport.resumeProducing()
        else:
            self.transport.pauseProducing()

    def abort(self) -> None:
        """End it at once."""
        self.transport.abortConnection()

    def end(self) -> None:
        """Say goodbye; one that does not answer is aborted."""
        self._ending = True
        self.read_or_not()
        self.transport.loseConnection()
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = self._streams.reactor.callLater(CLOSE_SECONDS, self.abort)

    def _pay(self, count: int) -> None:
        """Wait until the sender's rate allows what it sent."""
        assert self._bucket is not None
        self._waits = None
        wait = self._bucket.take(count, self._streams.reactor.seconds())
        if wait:
            self._waits = self._streams.reactor.callLater(wait, self._pay, count)
        self.read_or_not()

    def _watch(self) -> None:
        """Look from time to time whether the sender was quiet for too long."""
        limit = self._streams.settings.idle_secs
        if not limit:
            return
        left = limit - (self._streams.reactor.seconds() - self.heard)
        if left > 0 or not self._reading:
            self._deadline = self._streams.reactor.callLater(max(left, 1.0), self._watch)
            return
        self._streams.counters["idle_closed"] += 1
        self.transport.loseConnection()
        self._deadline = self._streams.reactor.callLater(CLOSE_SECONDS, self.abort)


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """A listener's certificate, read again when its files change."""

    log = Logger()

    def __init__(self, files: TlsFiles, seconds: Callable[[], float]) -> None:
        self._files = files
        self._seconds = seconds
        self._seen = self._looks()
        self._context = tls_context(files)
        self._looked = seconds()

    def serverConnectionForTLS(self, protocol: object) -> SSL.Connection:
        """A server's side of a new TLS connection."""
        if self._seconds() - self._looked >= RELOAD_SECONDS:
            self._looked = self._seconds()
            looks = self._looks()
            if looks != self._seen:
                try:
                    self._context, self._seen = tls_context(self._files), looks
                except ConfigError as error:
                    self.log.error("the new certificate is not used: {why}", why=str(error))
        return SSL.Connection(self._context, None)

    def _looks(self) -> list[tuple[int, int]]:
        found = []
        for path in (self._files.certificate, self._files.key, self._files.client_ca):
            try:
                facts = os.stat(path) if path else None
            except OSError:
                facts = None
            found.append((facts.st_mtime_ns, facts.st_ino) if facts else (0, 0))
        return found


def tls_context(files: TlsFiles) -> SSL.Context:
    """OpenSSL's settings with Twisted's defaults; raises ConfigError."""
    where = files.certificate
    try:
        with open(files.certificate, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
        where = files.key
        with open(files.key, "rb") as file:
            key: Any = load_pem_private_key(file.read(), None)
        trust = None
        if files.client_ca is not None:
            where = files.client_ca
            with open(files.client_ca, "rb") as file:
                found = x509.load_pem_x509_certificates(file.read())
            trust = trustRootFromCertificates(
                [Certificate(crypto.X509.from_cryptography(one)) for one in found]
            )
        first, *rest = map(crypto.X509.from_cryptography, chain)
        options = CertificateOptions(
            privateKey=crypto.PKey.from_cryptography_key(key),
            certificate=first,
            extraCertChain=rest,
            trustRoot=trust,
        )
        context: SSL.Context = options.getContext()
    except OSError as error:
        raise ConfigError(where, "tls", f"a readable file ({error.strerror})") from None
    except (ValueError, TypeError):
        raise ConfigError(where, "tls", "PEM: certificates, a key without password") from None
    except SSL.Error:
        raise ConfigError(where, "tls", "the key that belongs to the certificate") from None
    return context
