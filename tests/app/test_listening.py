"""The gate in front of the site, and the certificate that `tls:` endpoints show."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import tempfile
from typing import Any

from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource

from cortextx.app.certificates import init, renew, tls_files
from cortextx.app.listening import Gate, Refused, ServerTls, listen
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.web.site import HEAD_SECONDS, BoundedSite

AWAY = IPv4Address("TCP", "192.0.2.7", 1)


class Site(Factory):
    """A factory that has a protocol, or has not."""

    protocol = Protocol
    started = 0
    full = False

    def startFactory(self) -> None:
        self.started += 1

    def stopFactory(self) -> None:
        self.started -= 1

    def buildProtocol(self, addr: Any) -> Any:
        return None if self.full else super().buildProtocol(addr)


class Tcp(StringTransport):
    def setTcpNoDelay(self, enabled: bool) -> None:
        pass


class Gates(SynchronousTestCase):
    def setUp(self) -> None:
        self.site = Site()

    def test_who_is_let_in(self) -> None:
        """A source that is admitted gets the site's protocol; another is aborted at once, as
        is one that the site has no room for."""
        admitted = True
        gate = Gate(self.site, lambda host, now: admitted)
        self.assertIsInstance(gate.buildProtocol(AWAY), Protocol)
        admitted = False
        refused = gate.buildProtocol(AWAY)
        self.assertIsInstance(refused, Refused)
        transport = StringTransport()
        refused.makeConnection(transport)
        self.assertTrue(transport.disconnecting or transport.aborting)
        admitted = self.site.full = True
        self.assertIsInstance(gate.buildProtocol(AWAY), Refused)

    def test_the_log_is_not_flooded(self) -> None:
        """However many are refused, the log says it once a minute, with their number."""
        now = 0.0
        gate = Gate(self.site, lambda host, at: False, lambda: now)
        with capturedLogs() as events:
            for _ in range(100):
                gate.buildProtocol(AWAY)
            now = 60.0
            gate.buildProtocol(AWAY)
        self.assertEqual([event["count"] for event in events], [1, 100])

    def test_the_site_starts_and_stops_with_it(self) -> None:
        """What the gate is in front of is told of the port."""
        gate = Gate(self.site)
        gate.doStart()
        self.assertEqual(self.site.started, 1)
        gate.doStop()
        self.assertEqual(self.site.started, 0)


class Tls(SynchronousTestCase):
    def setUp(self) -> None:
        above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, above, ignore_errors=True)
        self.directory = StateDir(os.path.join(above, "s"))
        self.tls = ServerTls(tls_files(self.directory, None, None))
        self.now = dt.datetime.now(dt.UTC)

    def shown(self) -> str:
        """The certificate that a connection made now would show, by its end."""
        connection = self.tls.serverConnectionForTLS(object())
        certificate = connection.get_certificate()
        assert certificate is not None
        return str(certificate.to_cryptography().not_valid_after_utc)

    def listen(self, description: str) -> Any:
        self.reactor = MemoryReactorClock()
        return Deferred.fromCoroutine(listen(self.reactor, description, Site(), self.tls, None))

    def test_a_renewal_shows_at_the_next_connection(self) -> None:
        """Prepared and put in use, a renewed certificate is what the next connection shows;
        prepared only, it is not."""
        init(self.directory, ["localhost"], self.now)
        self.tls.prepare()()
        first = self.shown()
        renew(self.directory, [], self.now + dt.timedelta(days=30))
        use = self.tls.prepare()
        self.assertEqual(self.shown(), first)
        use()
        self.assertGreater(self.shown(), first)

    def test_a_pair_that_does_not_match_changes_nothing(self) -> None:
        """A key that belongs to another certificate, or files that are none, are told and
        what is in use stays (A59)."""
        init(self.directory, ["localhost"], self.now)
        self.tls.prepare()()
        first = self.shown()
        at = self.directory.join("server", "tls")
        shutil.copy(os.path.join(at, "ca.key"), os.path.join(at, "server.key"))
        self.assertIn("belongs", str(self.assertRaises(ConfigError, self.tls.prepare)))
        with open(os.path.join(at, "server.key"), "wb") as file:
            file.write(b"nonsense")
        self.assertRaises(ConfigError, self.tls.prepare)
        os.unlink(os.path.join(at, "server.key"))
        self.assertRaises(ConfigError, self.tls.prepare)
        self.assertEqual(self.shown(), first)

    def test_a_handshake_that_never_ends_is_cut(self) -> None:
        """The 5 s for the HTTP head run from the connection, whatever of a TLS handshake comes
        in them (F3)."""
        init(self.directory, ["localhost"], self.now)
        clock = MemoryReactorClock()
        site = BoundedSite(Resource(), clock, 10)
        listening = listen(clock, "tls:1:interface=127.0.0.1", site, self.tls, None)
        self.successResultOf(Deferred.fromCoroutine(listening))
        factory = clock.tcpServers[0][1]
        hello = bytes.fromhex("1603010200010001fc0303")
        for sent in (b"", hello[:3], hello):
            transport = Tcp()
            protocol = factory.buildProtocol(AWAY)
            protocol.makeConnection(transport)
            for place in range(len(sent)):
                protocol.dataReceived(sent[place : place + 1])
            clock.advance(HEAD_SECONDS - 0.125)
            self.assertFalse(transport.disconnected, sent)
            clock.advance(0.125)
            self.assertTrue(transport.disconnected, sent)

    def agreed(self, *offered: bytes) -> bytes:
        """The protocol that a TLS handshake agrees on with a client that offers these."""
        init(self.directory, ["localhost"], self.now)
        self.tls.prepare()()
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        if offered:
            context.set_alpn_protos(list(offered))
        client, server = SSL.Connection(context, None), self.tls.serverConnectionForTLS(object())
        client.set_connect_state()
        server.set_accept_state()
        for _ in range(4):
            for one, other in ((client, server), (server, client)):
                with contextlib.suppress(SSL.WantReadError):
                    one.do_handshake()
                with contextlib.suppress(SSL.WantReadError):
                    other.bio_write(one.bio_read(65_536))
        self.assertEqual(client.get_state_string(), b"SSL negotiation finished successfully")
        return bytes(client.get_alpn_proto_negotiated())

    def test_alpn_chooses_http_1_1(self) -> None:
        """A client that offers several protocols (RFC 7301), as curl does, gets http/1.1."""
        self.assertEqual(self.agreed(b"h2", b"http/1.1"), b"http/1.1")

    def test_alpn_of_others_is_declined(self) -> None:
        """One that offers none of ours goes on without, as one does that offers nothing."""
        self.assertEqual(self.agreed(b"h2"), b"")

    def test_no_alpn(self) -> None:
        """A client without ALPN is served as ever."""
        self.assertEqual(self.agreed(), b"")

    def test_an_ending_certificate_is_complained_of(self) -> None:
        """Less than a month before its end the log says so, and how to renew."""
        init(self.directory, ["localhost"], self.now - dt.timedelta(days=380))
        with capturedLogs() as events:
            self.tls.prepare()()
        self.assertIn("tls renew", events[0]["log_format"])

    def test_endpoints(self) -> None:
        """tls:PORT listens by TCP with the certificate that was made; IPv6 addresses too."""
        init(self.directory, ["localhost"], self.now)
        self.successResultOf(self.listen("tls:8600:interface=127.0.0.1"))
        [(port, _, _, interface)] = self.reactor.tcpServers
        self.assertEqual((port, interface), (8600, "127.0.0.1"))
        self.successResultOf(self.listen("tls:8600:interface=\\:\\:1"))
        self.assertEqual(self.reactor.tcpServers[0][3], "::1")
        assert self.tls.shown is not None
        self.assertEqual(self.tls.shown.names, ("localhost",))

    def test_without_a_certificate(self) -> None:
        """A tls: endpoint without one says how to make it, and nothing listens."""
        failure = self.failureResultOf(self.listen("tls:8600"), ConfigError)
        self.assertIn("tls init", str(failure.value))
        self.assertEqual(self.reactor.tcpServers, [])

    def test_what_is_no_endpoint(self) -> None:
        """A port that is none, an option that is none: told as server.listen's fault."""
        init(self.directory, ["localhost"], self.now)
        for description in ("tls:x", "tls:1:nonesuch=2", "nonesuch:1"):
            failure = self.failureResultOf(self.listen(description), ConfigError)
            self.assertIn("server.listen", str(failure.value))
