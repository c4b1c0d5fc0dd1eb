"""Pins of a server's own CA: which one an agent trusts, in a line of text (F40; PURE).

`sha256:` and the SHA-256 of the CA certificate's DER form in hexadecimal, which
`openssl x509 -in ca.pem -outform der | sha256sum` prints too.
"""

from __future__ import annotations

import hashlib
import re

from cortextx.errors import ConfigError

_PIN = re.compile(r"sha256:[0-9a-f]{64}")


def ca_pin(der: bytes) -> str:
    """The pin of a certificate, from its DER form."""
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def check_pin(pin: str, where: str, field: str = "ca_pin") -> str:
    """The pin in lower case, if it can be one; raises ConfigError with `where`."""
    found = pin.strip().lower()
    if _PIN.fullmatch(found) is None:
        raise ConfigError(where, field, "sha256: and 64 hexadecimal digits")
    return found
