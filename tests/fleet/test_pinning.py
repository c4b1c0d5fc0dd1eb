"""An agent with a pinned CA takes the server of that CA, and no other (F40).

Real handshakes between OpenSSL's two sides in memory. Each forgery is one that
somebody could try who has seen the CA's certificate, which is public.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import tempfile
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.certificates import init, renew
from cortextx.app.statedir import StateDir
from cortextx.fleet.agent.pinning import NotTheServer, PinnedServer
from cortextx.fleet.pin import ca_pin

Certificate = x509.Certificate
Key = ec.EllipticCurvePrivateKey
DAY = dt.timedelta(days=1)


class Client:
    """What Twisted's TLS protocol is to the creator of a connection."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.factory = self
        self.wrappedFactory = None

    def failVerification(self, failure: Failure) -> None:
        assert isinstance(failure.value, NotTheServer)
        self.refusals.append(str(failure.value))


class Pinning(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = dt.datetime.now(dt.UTC)
        self.ca, self.chain, self.key = self.authority(self.now)
        self.pin = ca_pin(self.ca.public_bytes(Encoding.DER))

    def authority(
        self, now: dt.datetime, then: dt.datetime | None = None
    ) -> tuple[Certificate, list[Certificate], Key]:
        """A CA made at `now`, and a server's chain and key, renewed at `then` if that is given."""
        above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, above, ignore_errors=True)
        directory = StateDir(os.path.join(above, "s"))
        init(directory, ["localhost", "127.0.0.1"], now)
        if then is not None:
            renew(directory, [], then)
        files = {}
        for name in ("server.pem", "server.key", "ca.pem", "ca.key"):
            with open(directory.join("server", "tls", name), "rb") as file:
                files[name] = file.read()
        key: Any = load_pem_private_key(files["server.key"], None)
        self.ca_key: Any = load_pem_private_key(files["ca.key"], None)
        [ca] = x509.load_pem_x509_certificates(files["ca.pem"])
        return ca, x509.load_pem_x509_certificates(files["server.pem"]), key

    def handshake(
        self, chain: list[Certificate], key: Key, host: str = "localhost", pin: str | None = None
    ) -> list[str]:
        """The reasons why the client refuses; none if both sides are done."""
        context = SSL.Context(SSL.TLS_METHOD)
        first, *rest = map(crypto.X509.from_cryptography, chain)
        context.use_certificate(first)
        for certificate in rest:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(crypto.PKey.from_cryptography_key(key))
        server = SSL.Connection(context, None)
        server.set_accept_state()
        told = Client()
        client = PinnedServer(host, pin or self.pin).clientConnectionForTLS(told)
        client.set_connect_state()
        done = set()
        for _ in range(10):
            for side, other in ((client, server), (server, client)):
                try:
                    side.do_handshake()
                    done.add(side)
                except SSL.WantReadError:
                    pass
                except SSL.Error:
                    self.assertNotEqual(told.refusals, [], "refused without a word")
                    self.assertNotIn(client, done)
                    return told.refusals
                with contextlib.suppress(SSL.WantReadError):
                    other.bio_write(side.bio_read(65_536))
        self.assertEqual(done, {client, server})
        self.assertEqual(told.refusals, [])
        return []

    def forged(self, issuer: Certificate, signer: Key, key: Key) -> Certificate:
        """A certificate for localhost that says `issuer` made it, signed with `signer`."""
        known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        alternative = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - DAY)
            .not_valid_after(self.now + DAY)
            .add_extension(alternative, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known),
                critical=False,
            )
            .sign(signer, hashes.SHA256())
        )

    def test_the_server(self) -> None:
        """The server of the pinned CA is taken, by its name and by its address."""
        self.assertEqual(self.handshake(self.chain, self.key), [])
        self.assertEqual(self.handshake(self.chain, self.key, host="127.0.0.1"), [])

    def test_a_renewed_certificate(self) -> None:
        """A new certificate of the same CA is taken without anything new at the agent."""
        ca, chain, key = self.authority(self.now - 300 * DAY, then=self.now)
        pin = ca_pin(ca.public_bytes(Encoding.DER))
        self.assertEqual(self.handshake(chain, key, pin=pin), [])

    def test_another_ca(self) -> None:
        """A server with a CA of its own that is not the pinned one is refused."""
        _, chain, key = self.authority(self.now)
        self.assertIn("not the one", self.handshake(chain, key)[0])

    def test_another_ca_with_the_pinned_one_behind(self) -> None:
        """The pinned CA's certificate at the end of a chain that it is no part of helps nobody."""
        _, chain, key = self.authority(self.now)
        self.assertNotEqual(self.handshake([*chain, self.ca], key), [])
        self.assertNotEqual(self.handshake([chain[0], self.ca], key), [])

    def test_a_forged_signature(self) -> None:
        """A certificate that names the pinned CA as its maker, down to the key's id, but was
        signed with another key is refused, with the CA's own certificate behind it too."""
        key = ec.generate_private_key(ec.SECP256R1())
        forged = self.forged(self.ca, key, key)
        self.assertIn("signature", self.handshake([forged, self.ca], key)[0])

    def test_the_same_with_the_right_signature(self) -> None:
        """The forgery's twin, signed by the CA, is taken: it is the signature that counts."""
        key = ec.generate_private_key(ec.SECP256R1())
        ca, _, _ = self.authority(self.now)
        pin = ca_pin(ca.public_bytes(Encoding.DER))
        made = self.forged(ca, self.ca_key, key)
        self.assertEqual(self.handshake([made, ca], key, pin=pin), [])

    def test_a_certificate_of_a_certificate(self) -> None:
        """The server's key cannot make certificates, though the CA has signed it."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.forged(self.chain[0], self.key, key)
        self.assertNotEqual(self.handshake([made, *self.chain], key), [])

    def test_self_signed(self) -> None:
        """A certificate that nobody but itself vouches for is refused, even the CA's own
        presented as the server's."""
        self.assertNotEqual(self.handshake([self.ca], self.ca_key), [])

    def test_without_the_ca(self) -> None:
        """A server that does not send its CA along is refused, and the reason says so."""
        self.assertIn("CA", self.handshake(self.chain[:1], self.key)[0])

    def test_another_name(self) -> None:
        """A certificate of the pinned CA for another name is refused."""
        for host in ("logs.example", "127.0.0.2", "localhost.example"):
            self.assertIn(host, self.handshake(self.chain, self.key, host=host)[0])

    def test_its_time(self) -> None:
        """A certificate that has ended, or has not begun, is refused and says so."""
        for now, word in ((self.now - 500 * DAY, "expired"), (self.now + 500 * DAY, "not valid")):
            ca, chain, key = self.authority(now)
            pin = ca_pin(ca.public_bytes(Encoding.DER))
            self.assertIn(word, self.handshake(chain, key, pin=pin)[0])
