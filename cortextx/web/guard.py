"""Who may speak to the HTTP API: expected Host, own Origin, a Bearer token and its role (PURE).

A page in somebody's browser that has a name of its own resolve to our address
(DNS rebinding) sends its own name as Host: only names that we know are served.
An address as Host needs no name, so it is no such attack. A request that has an
Origin must come from our own pages; one with a Bearer token may have none (S5).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from cortextx.web.problems import Problem

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
"""Each may do what the ones before it may (S8)."""
REALM = 'Bearer realm="cortextx"'
TOKEN_CHARS = 512

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@\s]+)(?::(?P<port>\d{1,5}))?\Z")
_BEARER = re.compile(r"bearer +(?P<token>[A-Za-z0-9._~+/=-]+) *\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the name and role of an API token."""

    name: str
    role: Role

    @property
    def actor(self) -> str:
        """As the audit of administrative acts names it."""
        return f"token:{self.name}"

    def may(self, role: Role) -> bool:
        """Whether this role includes `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)


class Guard:
    """The names and origins under which a server is known."""

    def __init__(self, names: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check_host(self, host: str | None) -> None:
        """Raise Problem 400 for a Host that is none, 421 for one that is not ours."""
        found = None if host is None else _HOST.match(host)
        if found is None:
            raise Problem(400, "bad_host", "one Host header with a name or address is needed")
        name = found["name"].lower().rstrip(".")
        if name not in self._names and not _is_address(name):
            raise Problem(
                421,
                "unexpected_host",
                "this server does not answer under that name",
                hint="add it to allowed_hosts in the table [server] of the server's configuration",
            )

    def check_origin(self, origin: str | None, host: str) -> None:
        """Raise Problem 403 for an Origin that is neither ours nor allowed.

        Behind a TLS terminator our own scheme is not known, so either is taken.
        """
        if origin is None:
            return
        origin = origin.lower()
        scheme, _, authority = origin.partition("://")
        if scheme in ("http", "https") and authority == host.lower():
            return
        if origin in self._origins:
            return
        raise Problem(
            403,
            "unexpected_origin",
            "requests from pages of another origin are not answered",
            hint="add it to allowed_origins in the table [server] of the server's configuration",
        )


def bearer(authorization: str | None) -> str:
    """The token of an Authorization header; raises Problem 401."""
    found = None if authorization is None else _BEARER.match(authorization)
    if found is None or len(found["token"]) > TOKEN_CHARS:
        raise unauthorized("an Authorization header with a Bearer token is needed")
    return found["token"]


def unauthorized(detail: str) -> Problem:
    """Who are you?"""
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": REALM})


def check_role(principal: Principal, role: Role) -> None:
    """Raise Problem 403 unless the principal's role includes `role`."""
    if not principal.may(role):
        raise Problem(403, "forbidden", f"this needs a token of the role {role}")


def guard_of(public_url: str | None, hosts: Collection[str], origins: Collection[str]) -> Guard:
    """The guard of a server that is known at `public_url` (a ws or wss URL).

    Never raises: a URL that is none names nothing, and requests are still answered.
    """
    names, pages = list(hosts), list(origins)
    try:
        url = urlsplit(public_url or "")
        name = url.hostname
    except ValueError:
        name = None
    if name:
        names.append(name)
        pages.append(f"{'https' if url.scheme == 'wss' else 'http'}://{url.netloc}")
    return Guard(names, pages)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
