"""TLS towards a server that has a CA of its own: trusted is the pinned one, and no other (F40).

Such a server sends its CA's certificate along in the handshake. OpenSSL builds
and checks the chain as always (signatures, dates, purposes), with no trusted
root at all; the one complaint that is let pass is that the root is not known,
and only for the very certificate that the pin names. So nothing has to be
fetched or stored before, and a renewed server certificate needs nothing here.

This module costs an agent the memory of OpenSSL: it is imported only for wss://.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL
from service_identity import VerificationError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import optionsForClientTLS, trustRootFromCertificates
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.errors import CortexError
from cortextx.fleet.pin import ca_pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from OpenSSL.crypto import X509

_UNKNOWN_ROOT = 19
"""X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN: the chain is whole, its root is not in the store."""
_WORDS = {
    2: "the CA's certificate is not sent along with the server's",
    7: "a signature in the server's certificate chain is wrong",
    9: "the server's certificate is not valid yet (or this machine's clock is wrong)",
    10: "the server's certificate has expired (or this machine's clock is wrong)",
    18: "the server's certificate is not from the CA that this host was enrolled with",
    _UNKNOWN_ROOT: "the server's CA is not the one that this host was enrolled with",
    20: "the server's certificate is not from the CA that this host was enrolled with",
}
"""OpenSSL's X509_V_ERR_… in words."""


class NotTheServer(CortexError):
    """Whoever answered cannot show that it is the server of this agent's enrolment."""


@implementer(IOpenSSLClientConnectionCreator)
class PinnedServer:
    """Makes TLS connections to `host`, which has to show a certificate for that name from
    the CA of `pin`."""

    def __init__(self, host: str, pin: str) -> None:
        self._usual = optionsForClientTLS(host, trustRoot=trustRootFromCertificates([]))
        self._host = host
        self._pin = pin

    def clientConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """A connection with everything that is usual, but our judgement of certificates."""
        connection: SSL.Connection = self._usual.clientConnectionForTLS(protocol)
        connection.set_verify(
            SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
            judge(self._host, self._pin, protocol.failVerification),
        )
        return connection


def judge(
    host: str, pin: str, refuse: Callable[[Failure], None]
) -> Callable[[SSL.Connection, X509, int, int, int], bool]:
    """OpenSSL's callback for each certificate of a chain, and for each complaint about one.

    An exception in it counts as a refusal. `refuse` is told why, once at least.
    """
    service = _service(host)

    def no(why: str) -> bool:
        refuse(Failure(NotTheServer(why)))
        return False

    def verify(_: SSL.Connection, certificate: X509, fault: int, depth: int, good: int) -> bool:
        if not good:
            if fault != _UNKNOWN_ROOT or depth == 0 or _pin_of(certificate) != pin:
                return no(_WORDS.get(fault, f"the server's certificate is not good ({fault})"))
            return True
        if depth == 0:
            try:
                verify_service_identity(extract_patterns(certificate), [service], [])
            except (VerificationError, ValueError):
                return no(f"the server's certificate is not for {host}")
        return True

    return verify


def _pin_of(certificate: X509) -> str:
    return ca_pin(certificate.to_cryptography().public_bytes(Encoding.DER))


def _service(host: str) -> Any:
    if isIPAddress(host) or isIPv6Address(host):
        return IPAddress_ID(host)
    return DNS_ID(host.encode("idna").decode("ascii"))
