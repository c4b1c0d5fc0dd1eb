"""Forms of the names and origins under which the HTTP API may be asked (PURE; F20)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from cortextx.errors import ConfigError

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
_ORIGIN = re.compile(r"https?://(?P<host>\[[^\]]*\]|[^\[\]:/@?#\s]+)(?::(?P<port>\d{1,5}))?/?")
HOST_FORM = "names or addresses as logs.example.org, without scheme, port or path"
ORIGIN_FORM = "origins as https://console.example.org or http://10.0.0.1:3000, without a path"


def check_pages(hosts: Sequence[str], origins: Sequence[str], where: str) -> None:
    """Raise ConfigError for a name or an origin that no request could have."""
    for host in hosts:
        if not is_host(host):
            raise ConfigError(where, "server.allowed_hosts", f"{HOST_FORM}, not {host!r}")
    for origin in origins:
        if not is_origin(origin):
            raise ConfigError(where, "server.allowed_origins", f"{ORIGIN_FORM}, not {origin!r}")


def is_host(text: str) -> bool:
    """Whether this is a name in its ASCII form, or an address; IPv6 in brackets or not."""
    if text.startswith("[") and text.endswith("]"):
        return _is_address(text[1:-1], 6)
    if re.fullmatch(r"[\d.]+", text):
        return _is_address(text, 4)
    return _NAME.fullmatch(text) is not None or _is_address(text, 6)


def is_origin(text: str) -> bool:
    """Whether a browser may send this as Origin; a slash at its end is taken too."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        return False
    return is_host(found["host"]) and int(found["port"] or 1) in range(1, 65_536)


def _is_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
