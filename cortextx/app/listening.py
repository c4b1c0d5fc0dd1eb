"""Where a server listens: Twisted's endpoints, and `tls:PORT:interface=ADDRESS` of ours.

A `tls:` endpoint shows the certificate of `[server] tls_certificate`, else the one
that `cortextx server tls init` made, and shows a new one from the next connection
on when it is told to reload. In front of everything stands the gate: a source
that comes too often is cut off before a handshake costs anything (A52).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IProtocolFactory
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.ssl import CertificateOptions
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from cortextx.app.certificates import RENEW_DAYS, Shown, TlsFiles, show
from cortextx.errors import ConfigError

OURS = "tls:"
HTTP_1_1 = b"http/1.1"
CHECKED_KINDS = ("tcp", "tcp4", "tcp6", "ssl", "tls", "unix")
COMPLAINT_SECONDS = 60.0
"""How often the log says that sources come too often."""


@implementer(IOpenSSLServerConnectionCreator)
class ServerTls:
    """The certificate that `tls:` endpoints show; `shown` is None until it is loaded."""

    log = Logger()

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._context: SSL.Context | None = None
        self.shown: Shown | None = None

    def prepare(self) -> Prepared:
        """Read the files, and answer what puts them in use; raises ConfigError."""
        return Prepared(self, show(self._files), _context(self._files))

    def use(self, shown: Shown, context: SSL.Context) -> None:
        """Show this to who connects from now on."""
        self.shown, self._context = shown, context
        self.warn_if_ending()

    def warn_if_ending(self) -> None:
        """Say so in the log where less than RENEW_DAYS are left."""
        if self.shown is None:
            return
        days = self.shown.days_left(dt.datetime.now(dt.UTC))
        if days < RENEW_DAYS:
            self.log.error(
                "the certificate {path} ends in {days} days: `cortextx server tls renew`",
                path=self.shown.certificate,
                days=days,
            )

    def serverConnectionForTLS(self, protocol: object) -> SSL.Connection:
        """A server's side of a new TLS connection."""
        if self._context is None:
            raise RuntimeError("no certificate is loaded")
        return SSL.Connection(self._context, None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A certificate that was read and is not in use; calling this puts it in use."""

    tls: ServerTls
    shown: Shown
    context: SSL.Context

    def __call__(self) -> None:
        self.tls.use(self.shown, self.context)


def _context(files: TlsFiles) -> SSL.Context:
    """An OpenSSL context with Twisted's defaults; raises ConfigError."""
    where = files.certificate
    try:
        with open(files.certificate, "rb") as file:
            chain = x509.load_pem_x509_certificates(file.read())
        where = files.key
        with open(files.key, "rb") as file:
            key: Any = load_pem_private_key(file.read(), None)
        first, *rest = map(crypto.X509.from_cryptography, chain)
        options = CertificateOptions(
            privateKey=crypto.PKey.from_cryptography_key(key),
            certificate=first,
            extraCertChain=rest,
        )
        context: SSL.Context = options.getContext()
        # In place of Twisted's, which cannot serve a connection that is not of its own making.
        context.set_alpn_select_callback(chosen_protocol)
    except OSError as error:
        raise ConfigError(where, "tls", f"a readable file ({error.strerror})") from None
    except (ValueError, TypeError):
        raise ConfigError(
            where, "tls", "a certificate and a key without password, in PEM"
        ) from None
    except SSL.Error:
        raise ConfigError(where, "tls", "the key that belongs to the certificate") from None
    return context


def chosen_protocol(_connection: SSL.Connection, offered: Sequence[bytes]) -> Any:
    """What of a client's ALPN offers is spoken here (RFC 7301): HTTP/1.1, or nothing is said.

    A client that offers other protocols only goes on without: it may mean HTTP/1.1 all the same.
    """
    return HTTP_1_1 if HTTP_1_1 in offered else SSL.NO_OVERLAPPING_PROTOCOLS


class Gate(ServerFactory):
    """Lets connections from a source that `admits` refuses go no further.

    `inner` may have no protocol for a connection either: both are aborted, which
    is something that TLS and other wrappers would not survive to be told as None.
    """

    noisy = False
    log = Logger()

    def __init__(
        self,
        inner: IProtocolFactory,
        admits: Callable[[str | None, float], bool] | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._inner = inner
        self._admits = admits
        self._seconds = seconds
        self._complained: float | None = None
        self._refused = 0

    def doStart(self) -> None:
        self._inner.doStart()
        super().doStart()

    def doStop(self) -> None:
        self._inner.doStop()
        super().doStop()

    def buildProtocol(self, addr: Any) -> Any:
        """The inner protocol, or one that aborts."""
        now = self._seconds()
        host = getattr(addr, "host", None)
        if self._admits is not None and not self._admits(host, now):
            self._complain(host, now)
            return Refused()
        return self._inner.buildProtocol(addr) or Refused()

    def _complain(self, host: object, now: float) -> None:
        self._refused += 1
        if self._complained is None or now - self._complained >= COMPLAINT_SECONDS:
            self.log.warn(
                "{count} connections refused, the last from {host}: one source may make"
                " connections_per_minute",
                count=self._refused,
                host=host,
            )
            self._complained, self._refused = now, 0


class Refused(Protocol):
    """Ends its connection at once."""

    transport: Any

    def connectionMade(self) -> None:
        self.transport.abortConnection()


async def listen(
    reactor: Any,
    description: str,
    site: IProtocolFactory,
    tls: ServerTls,
    admits: Callable[[str | None, float], bool] | None,
) -> Any:
    """Listen on an endpoint; answers the port. `admits` judges a source's rate, if it is to be.

    Raises ConfigError for what is no endpoint, or is one that cannot be had.
    """
    factory: IProtocolFactory = Gate(site)
    try:
        if description.startswith(OURS):
            if tls.shown is None:
                tls.prepare()()
            factory = TLSMemoryBIOFactory(tls, False, factory, reactor)
        gate = Gate(factory, admits, reactor.seconds)
        return await serverFromString(reactor, _plain(description)).listen(gate)
    except CannotListenError as error:
        why = f"an address that is free ({error.socketError})"
        raise ConfigError("server.listen", description, why) from None
    except (ValueError, TypeError, KeyError, OSError) as error:
        why = f"an endpoint that can be listened on ({error})"
        raise ConfigError("server.listen", description, why) from None


def check_endpoint(description: str, tls: ServerTls) -> None:
    """See that `listen` would understand an endpoint and have its certificate, listening on
    nothing; raises ConfigError. Kinds that ask the surroundings (systemd:) are left alone."""
    kind = description.partition(":")[0]
    if kind not in CHECKED_KINDS:
        return
    if description.startswith(OURS):
        tls.prepare()
    try:
        serverFromString(None, _plain(description))
    except Exception as error:
        why = f"an endpoint that can be listened on ({error})"
        raise ConfigError("server.listen", description, why) from None


def _plain(description: str) -> str:
    """The endpoint of Twisted's that is below one of ours."""
    if not description.startswith(OURS):
        return description
    # Twisted tells addresses of the two families apart by the endpoint's kind.
    kind = "tcp6" if "\\:" in description else "tcp"
    return f"{kind}:{description.removeprefix(OURS)}"
