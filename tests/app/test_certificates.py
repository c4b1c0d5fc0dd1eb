"""The server's own CA and certificate: made once, renewed at will, private (F40)."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import stat
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import certificates
from cortextx.app.certificates import Shown, covers, init, renew, show, tls_files
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.pin import ca_pin, check_pin

NOW = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
NAMES = ["logs.example", "192.0.2.7", "2001:db8::1"]


class Certificates(SynchronousTestCase):
    def setUp(self) -> None:
        above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, above, ignore_errors=True)
        self.directory = StateDir(os.path.join(above, "s"))
        self.at = self.directory.join("server", "tls")

    def init(self) -> Shown:
        return init(self.directory, NAMES, NOW)

    def load(self, name: str) -> list[x509.Certificate]:
        with open(os.path.join(self.at, name), "rb") as file:
            return x509.load_pem_x509_certificates(file.read())

    def pair(self) -> list[bytes]:
        """Key and certificate as they are on the disk."""
        return [Path(self.at, name).read_bytes() for name in ("server.key", "server.pem")]

    def test_the_chain(self) -> None:
        """The certificate is for the names given, made by the CA, which stands behind it in
        the same file; the pin is the CA's."""
        shown = self.init()
        leaf, behind = self.load("server.pem")
        [ca] = self.load("ca.pem")
        self.assertEqual(behind, ca)
        leaf.verify_directly_issued_by(ca)
        self.assertEqual(shown.names, ("logs.example", "192.0.2.7", "2001:db8::1"))
        self.assertEqual(shown.ca_pin, ca_pin(ca.public_bytes(Encoding.DER)))
        self.assertEqual(shown.days_left(NOW), certificates.SERVER_DAYS)
        self.assertGreater(ca.not_valid_after_utc, NOW + dt.timedelta(days=7000))

    def test_a_renewal_that_fails_changes_nothing(self) -> None:
        """Where the second of two files cannot be written, the first is not put in place
        either: key and certificate still belong together."""
        self.init()
        before = self.pair()
        os.mkdir(os.path.join(self.at, "server.pem.new"))
        self.assertRaises(ConfigError, renew, self.directory, [], NOW)
        self.assertEqual(self.pair(), before)
        self.assertNotIn("server.key.new", os.listdir(self.at))

    def test_covering(self) -> None:
        """A name covers itself in any case, a wildcard one label of it, an address itself."""
        for held, name in (
            ("logs.example", "LOGS.example."),
            ("*.example", "logs.example"),
            ("2001:db8::1", "[2001:db8::1]"),
        ):
            self.assertTrue(covers(held, name), held)
        for held, name in (("*.example", "a.b.example"), ("logs.example", "x.example")):
            self.assertFalse(covers(held, name), held)

    def test_all_is_private(self) -> None:
        """Files are 0600 in a directory of 0700, whatever the umask."""
        before = os.umask(0)
        try:
            self.init()
        finally:
            os.umask(before)
        self.assertEqual(stat.S_IMODE(os.stat(self.at).st_mode), 0o700)
        for name in os.listdir(self.at):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.at, name)).st_mode), 0o600)

    def test_a_ca_is_not_replaced(self) -> None:
        """A second init is refused and changes nothing: it would lock every host out."""
        self.init()
        before = self.load("server.pem")
        error = self.assertRaises(ConfigError, self.init)
        self.assertIn("renew", str(error))
        self.assertEqual(self.load("server.pem"), before)

    def test_an_init_that_was_cut_off_is_done_again(self) -> None:
        """Without the CA's file, which is written last, init begins anew."""
        self.init()
        os.unlink(os.path.join(self.at, "ca.pem"))
        self.init()
        leaf, ca = self.load("server.pem")
        leaf.verify_directly_issued_by(ca)
        self.assertEqual(self.load("ca.pem"), [ca])

    def test_a_renewal_keeps_the_pin(self) -> None:
        """A renewed certificate has another key, a later end, the old names and the same
        CA; with names given it has those."""
        first = self.init()
        [old, _] = self.load("server.pem")
        later = NOW + dt.timedelta(days=300)
        again = renew(self.directory, [], later)
        [new, _] = self.load("server.pem")
        self.assertEqual((again.names, again.ca_pin), (first.names, first.ca_pin))
        self.assertEqual(again.not_after, later + dt.timedelta(days=certificates.SERVER_DAYS))
        forms = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.assertNotEqual(
            old.public_key().public_bytes(*forms), new.public_key().public_bytes(*forms)
        )
        self.assertEqual(renew(self.directory, ["other.example"], later).names, ("other.example",))

    def test_a_certificate_does_not_outlive_its_ca(self) -> None:
        """Near the CA's end a certificate ends with it; after it there is none to be had."""
        made = self.init()
        assert made.ca_not_after is not None
        late = renew(self.directory, [], made.ca_not_after - dt.timedelta(days=5))
        self.assertEqual(late.not_after, made.ca_not_after)
        after = made.ca_not_after + dt.timedelta(days=1)
        self.assertRaises(ConfigError, renew, self.directory, [], after)

    def test_without_a_ca(self) -> None:
        """Renewing or showing what is not there says how to make it."""
        for act in (
            lambda: renew(self.directory, [], NOW),
            lambda: show(tls_files(self.directory, None, None)),
        ):
            self.assertIn("tls init", str(self.assertRaises(ConfigError, act)))

    def test_names(self) -> None:
        """A name that no certificate can have is refused by name, none at all too, and
        before anything is made."""
        for names in (["a b"], ["https://x"], [""], []):
            self.assertRaises(ConfigError, init, self.directory, names, NOW)
        self.assertFalse(os.path.exists(self.at))
        made = init(self.directory, ["LOGS.example.", "[::1]", "bücher.example", "::1"], NOW)
        self.assertEqual(made.names, ("logs.example", "::1", "xn--bcher-kva.example"))

    def test_damaged_files(self) -> None:
        """What is no certificate or no key is told by its path, without a traceback."""
        self.init()
        for name in ("ca.pem", "ca.key"):
            path = os.path.join(self.at, name)
            with open(path, "rb") as file:
                kept = file.read()
            with open(path, "wb") as file:
                file.write(b"-----BEGIN NONSENSE-----\n")
            error = self.assertRaises(ConfigError, renew, self.directory, [], NOW)
            self.assertIn(name, str(error))
            with open(path, "wb") as file:
                file.write(kept)

    def test_keys_are_of_a_usual_kind(self) -> None:
        """P-256, which every TLS library speaks."""
        self.init()
        for certificate in self.load("server.pem"):
            key = certificate.public_key()
            assert isinstance(key, ec.EllipticCurvePublicKey)
            self.assertEqual(key.curve.name, "secp256r1")


class Pins(SynchronousTestCase):
    def test_what_is_a_pin(self) -> None:
        """sha256: and 64 digits, in either case; nothing else."""
        pin = ca_pin(b"der")
        self.assertEqual(check_pin(f" {pin.upper()} ", "x"), pin)
        for bad in ("", "sha256:", pin[:-1], pin + "0", pin.replace("sha256", "sha1")):
            self.assertRaises(ConfigError, check_pin, bad, "x")
