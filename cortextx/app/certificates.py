"""A CA and a certificate of the server's own, for installations without a public one (F40).

They live in DIR/server/tls, which is private: `ca.pem` and `ca.key`, `server.pem`
(the certificate and the CA's behind it, so that agents see both) and
`server.key`. Agents trust the CA by its pin; the server's certificate can be
made anew at any time without their noticing. Nothing here imports Twisted: the
command line uses it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.pin import ca_pin

CA_DAYS = 7300
"""Twenty years: a new CA means that every host has to be enrolled again."""
SERVER_DAYS = 397
BACKDATED = dt.timedelta(hours=1)
"""A clock that is a little behind must not find a new certificate to be of tomorrow."""
RENEW_DAYS = 30
"""With fewer days left, `doctor` and the server's log say that it is time to renew."""
CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "server.pem", "server.key"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of a certificate (with its chain) and its key; `ca_path` if the CA is ours."""

    certificate: str
    key: str
    ca_path: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to know of a server's certificate. Times are UTC."""

    names: tuple[str, ...]
    not_before: dt.datetime
    not_after: dt.datetime
    issuer: str
    certificate: str
    ca_pin: str | None
    ca_not_after: dt.datetime | None

    def days_left(self, now: dt.datetime) -> int:
        """Whole days until it ends; negative if it has."""
        return (self.not_after - now).days


def tls_files(directory: StateDir, certificate: str | None, key: str | None) -> TlsFiles:
    """Those of the settings, else our own; they need not exist."""
    if certificate is not None and key is not None:
        return TlsFiles(certificate, key)
    at = tls_dir(directory)
    return TlsFiles(*(os.path.join(at, name) for name in (CERTIFICATE, KEY, CA)))


def tls_dir(directory: StateDir) -> str:
    """Where our own are kept."""
    return directory.join("server", "tls")


def init(directory: StateDir, names: Iterable[str], now: dt.datetime) -> Shown:
    """Make a CA and a certificate for `names`; raises ConfigError where there is a CA already."""
    wanted = checked_names(names)
    if not wanted:
        raise ConfigError("tls", "name", "a host name or an IP address that agents connect to")
    directory.prepare("server")
    at = tls_dir(directory)
    try:
        os.makedirs(at, mode=0o700, exist_ok=True)
        os.chmod(at, 0o700)
        with _alone(at):
            if os.path.exists(os.path.join(at, CA)):
                raise ConfigError(
                    at, CA, "no CA yet: another one would lock every enrolled host out;"
                    " `cortextx server tls renew` makes a new certificate from this one",
                )  # fmt: skip
            ca, ca_key = _make_ca(now)
            _issue(at, ca, ca_key, wanted, now)
            # The CA is last: where it stands, all the rest does too.
            whole = ca.public_bytes(serialization.Encoding.PEM)
            _write(at, {CA_KEY: _key_pem(ca_key), CA: whole})
    except OSError as error:
        raise _refused(at, error) from None
    return show(tls_files(directory, None, None))


def renew(directory: StateDir, names: Iterable[str], now: dt.datetime) -> Shown:
    """Make a new key and certificate from the same CA, for `names`, or those of the old one.

    A server that runs goes on with the old ones until it is told to reload.
    Raises ConfigError.
    """
    at = tls_dir(directory)
    wanted = checked_names(names)
    try:
        with _alone(at):
            ca = _load(os.path.join(at, CA))[0]
            ca_key = _load_key(os.path.join(at, CA_KEY))
            if ca.not_valid_after_utc <= now:
                raise ConfigError(at, CA, "a CA that has not ended: make a new one, and enrol anew")
            wanted = wanted or _names(os.path.join(at, CERTIFICATE))
            _issue(at, ca, ca_key, wanted, now)
    except FileNotFoundError:
        raise ConfigError(at, CA, "a CA: `cortextx server tls init` makes one") from None
    except OSError as error:
        raise _refused(at, error) from None
    return show(tls_files(directory, None, None))


def show(files: TlsFiles) -> Shown:
    """What a server shows to those who connect; raises ConfigError where that is nothing."""
    try:
        found = _load(files.certificate)[0]
        ca = None if files.ca_path is None else _load(files.ca_path)[0]
    except FileNotFoundError as error:
        raise ConfigError(
            str(error.filename), "certificate", "a file: `cortextx server tls init` makes one"
        ) from None
    except OSError as error:
        raise _refused(files.certificate, error) from None
    return Shown(
        names=tuple(_names_of(found)),
        not_before=found.not_valid_before_utc,
        not_after=found.not_valid_after_utc,
        issuer=found.issuer.rfc4514_string(),
        certificate=files.certificate,
        ca_pin=None if ca is None else ca_pin(ca.public_bytes(serialization.Encoding.DER)),
        ca_not_after=None if ca is None else ca.not_valid_after_utc,
    )


def own_names() -> list[str]:
    """What this machine is called, and what it is called by itself."""
    names = [socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1"]
    return list(dict.fromkeys(name for name in names if name))


def covers(held: str, name: str) -> bool:
    """Whether a certificate's name is good for a host's name or address (RFC 6125)."""
    if held.startswith("*."):
        return name.partition(".")[2].lower() == held[2:].lower()
    return held.strip("[]").lower() == name.strip("[]").rstrip(".").lower()


def checked_names(names: Iterable[str]) -> list[str]:
    """Names and addresses as a certificate has them; raises ConfigError for what is neither."""
    found: dict[str, None] = {}
    for name in names:
        try:
            found[str(ipaddress.ip_address(name.strip("[]")))] = None
            continue
        except ValueError:
            pass
        try:
            ascii_name = name.strip().rstrip(".").encode("idna").decode("ascii").lower()
        except UnicodeError:
            ascii_name = ""
        if not ascii_name or not all(c.isalnum() or c in "-.*_" for c in ascii_name):
            raise ConfigError("tls", "name", f"a host name or an IP address, not {name!r}")
        found[ascii_name] = None
    return list(found)


def _make_ca(now: dt.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The name holds the key's id, so that two CAs of one host are never mixed up.
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "CortexTX"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"CortexTX CA {identity.digest.hex()[:16]}"),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identity, critical=False)
    )
    return made.sign(key, hashes.SHA256()), key


def _issue(
    at: str,
    ca: x509.Certificate,
    ca_key: CertificateIssuerPrivateKeyTypes,
    names: list[str],
    now: dt.datetime,
) -> None:
    """Make the server's key and certificate, and put both in place."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(subject, ca.subject, key, now, SERVER_DAYS, ca.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(list(map(_general, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    chain = made.public_bytes(pem) + ca.public_bytes(pem)
    # A reload between the two finds a pair that does not match, and keeps what it has.
    _write(at, {KEY: _key_pem(key), CERTIFICATE: chain})


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    days: int,
    at_most: dt.datetime | None = None,
) -> x509.CertificateBuilder:
    end = now + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end if at_most is None else min(end, at_most))
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(path: str) -> list[str]:
    return _names_of(_load(path)[0])


def _names_of(certificate: x509.Certificate) -> list[str]:
    try:
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(n.value) for n in held.value if isinstance(n, x509.DNSName | x509.IPAddress)]


def _load(path: str) -> list[x509.Certificate]:
    with open(path, "rb") as file:
        try:
            return x509.load_pem_x509_certificates(file.read(1_048_576))
        except ValueError:
            raise ConfigError(path, "certificate", "certificates in PEM form") from None


def _load_key(path: str) -> CertificateIssuerPrivateKeyTypes:
    with open(path, "rb") as file:
        try:
            key = serialization.load_pem_private_key(file.read(65_536), None)
        except (ValueError, TypeError):
            raise ConfigError(path, "key", "a private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(path, "key", "the key that `cortextx server tls init` made")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@contextlib.contextmanager
def _alone(at: str) -> Iterator[None]:
    """Keep two that make certificates apart."""
    held = os.open(os.path.join(at, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(at: str, files: Mapping[str, bytes]) -> None:
    """Put files in place, private and whole, durably: all of them, or none on a full disk."""
    beside = {name: os.path.join(at, f"{name}.new") for name in files}
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        for name, content in files.items():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside[name])
            with open(os.open(beside[name], flags, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        for left in beside.values():
            with contextlib.suppress(OSError):
                os.unlink(left)
        raise
    for name in files:
        os.rename(beside[name], os.path.join(at, name))
    descriptor = os.open(at, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(at: str, error: OSError) -> ConfigError:
    return ConfigError(at, "tls", f"files that can be read and written ({error.strerror})")
