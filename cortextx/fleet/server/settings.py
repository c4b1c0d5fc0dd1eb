"""The settings of the fleet server, as its TOML file has them, and F20's check (PURE).

[server]
listen = ["tcp:8600:interface=127.0.0.1"]
tls_terminated_externally = false
public_url = "wss://logs.example/ws/agent"
…
[agent_config]              # what every host is told (§4.1)
heartbeat_interval_secs = 30
…
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from msgspec import Meta, Struct

from cortextx.core.jsontext import decode, encode
from cortextx.errors import ConfigError, JsonShapeError
from cortextx.fleet import contract
from cortextx.fleet.invitation import check_url
from cortextx.fleet.server.admission import AdmissionLimits, networks
from cortextx.fleet.server.configs import checked
from cortextx.fleet.server.keeping import StoreTable
from cortextx.fleet.server.pages import check_pages
from cortextx.fleet.server.quota import ENTRIES_PER_SECOND, SAMPLES_PER_SECOND

DEFAULT_LISTEN = "tcp:8600:interface=127.0.0.1"
"""Loopback only, so that a first start is safe; 8600 is the port of the docs."""

_KINDS_WITH_PORT = ("tcp", "tcp4", "tcp6", "ssl", "tls")
_Bytes = Annotated[int, Meta(ge=1_048_576, le=2**40)]
_Semver = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?\Z")]


class ServerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[server]`.

    `listen` holds Twisted endpoint strings. `public_url` is what invitations
    name; without one the actual address is taken. `ingest_soft_bytes` and
    `ingest_hard_bytes` bound what waits for the store (F9: -32020, then -32007).
    `quota_entries_per_sec` is what one host may push on the average (-32030), 0: anything;
    `quota_samples_per_sec` what it may push of samples, beyond which they are dropped (F24).
    `slow_peer_secs` is how long a peer may leave what it was sent unread.
    `trust_forwarded_for` is the number of proxies in front whose X-Forwarded-For
    is believed. `stop_drain_secs` is how long a stopping server lets agents finish.
    `connections_per_minute` bounds those of one source address (0: any number),
    `hellos_in_flight` those of all that have not authenticated yet, and
    `hellos_in_flight_per_source` those of one address among them (0: any number);
    the networks in `limit_exempt` are bound by none of it (A52). `tls_certificate` (with its
    chain) and `tls_key` are what `tls:` endpoints show instead of what
    `cortextx server tls init` made. `allowed_hosts` are further names under which
    the HTTP API answers (that of `public_url`, localhost and addresses need not be
    named), `allowed_origins` further origins of pages that may use it;
    `metrics_public` lets /metrics be read without a token. `api_answer_bytes` bounds
    what the HTTP API holds of answers that their clients have not taken yet,
    `api_tails` its streams, each for a token too; `api_searches_per_token` the
    searches, histograms and contexts of one token at a time.
    """

    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    tls_terminated_externally: bool = False
    allow_insecure: bool = False
    public_url: str | None = None
    min_agent_version: _Semver | None = None
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    trust_forwarded_for: Annotated[int, Meta(ge=0, le=8)] = 0
    hello_max_bytes: Annotated[int, Meta(ge=1024, le=contract.MAX_FRAME_BYTES)] = (
        contract.HELLO_MAX_BYTES
    )
    ingest_soft_bytes: _Bytes = 32 * 1_048_576
    ingest_hard_bytes: _Bytes = 64 * 1_048_576
    quota_entries_per_sec: Annotated[int, Meta(ge=0, le=10_000_000)] = ENTRIES_PER_SECOND
    quota_samples_per_sec: Annotated[int, Meta(ge=0, le=10_000_000)] = SAMPLES_PER_SECOND
    rotation_grace_secs: Annotated[float, Meta(ge=1, le=86_400)] = contract.ROTATION_GRACE
    one_time_token_hours: Annotated[float, Meta(gt=0, le=8_760)] = 24.0
    presence_flush_secs: Annotated[float, Meta(ge=0.1, le=60)] = 3.0
    slow_peer_secs: Annotated[float, Meta(ge=1, le=600)] = 30.0
    stop_drain_secs: Annotated[int, Meta(ge=0, le=60)] = 2
    connections_per_minute: Annotated[int, Meta(ge=0, le=1_000_000)] = 600
    hellos_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    hellos_in_flight_per_source: Annotated[int, Meta(ge=0, le=1_000_000)] = 100
    limit_exempt: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    tls_certificate: str | None = None
    tls_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    metrics_public: bool = False
    api_answer_bytes: _Bytes = 64 * 1_048_576
    api_answer_bytes_per_token: _Bytes = 16 * 1_048_576
    api_tails: Annotated[int, Meta(ge=0, le=100_000)] = 200
    api_tails_per_token: Annotated[int, Meta(ge=0, le=100_000)] = 50
    api_searches_per_token: Annotated[int, Meta(ge=1, le=64)] = 8


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `agent_config` is what every host is told to do (§4.1, F18)."""

    server: ServerTable = ServerTable()
    agent_config: contract.AgentConfig = contract.DEFAULT_AGENT_CONFIG
    store: StoreTable = StoreTable()


def check(settings: ServerSettings, where: str = "configuration") -> None:
    """Raise ConfigError for settings that contradict one another, or F20."""
    server = settings.server
    if server.ingest_soft_bytes > server.ingest_hard_bytes:
        raise ConfigError(where, "server.ingest_soft_bytes", "at most ingest_hard_bytes")
    try:
        limits(server)
    except ValueError as error:
        raise ConfigError(where, "server.limit_exempt", f"networks ({error})") from None
    if (server.tls_certificate is None) != (server.tls_key is None):
        raise ConfigError(where, "server.tls_key", "a file, where tls_certificate is one")
    if not server.listen:
        raise ConfigError(where, "server.listen", "at least one endpoint")
    if server.public_url is not None:
        _check_public_url(server.public_url, where)
    check_pages(server.allowed_hosts, server.allowed_origins, where)
    _check_agent_config(settings.agent_config, where)
    for endpoint in server.listen:
        if not looks_like_endpoint(endpoint):
            expected = f"an endpoint, as {DEFAULT_LISTEN}, not {endpoint!r}"
            raise ConfigError(where, "server.listen", expected)
        if not (
            server.tls_terminated_externally or server.allow_insecure or is_safe_to_bind(endpoint)
        ):
            raise ConfigError(
                where,
                "server.listen",
                f"a loopback address, not {endpoint!r}: tokens and logs would cross the network"
                " in the clear. Put a TLS terminator in front and set"
                " tls_terminated_externally = true, or set allow_insecure = true",
            )


def _check_public_url(url: str, where: str) -> None:
    try:
        check_url(url, where)
    except ConfigError as error:
        raise ConfigError(where, "server.public_url", f"{error.expected}, not {url!r}") from None


def _check_agent_config(config: contract.AgentConfig, where: str) -> None:
    """The same bounds as for what an operator sets at run time."""
    try:
        checked(decode(encode(config), dict[str, Any]))
    except JsonShapeError as error:
        field = "agent_config" + error.field.removeprefix("$")
        raise ConfigError(where, field, error.expected) from None


def limits(server: ServerTable) -> AdmissionLimits:
    """The bounds before authentication; raises ValueError for a network that is none."""
    return AdmissionLimits(
        server.connections_per_minute,
        server.hellos_in_flight,
        networks(server.limit_exempt),
        server.hellos_in_flight_per_source,
    )


def is_safe_to_bind(endpoint: str) -> bool:
    """Whether an endpoint string is loopback only, a Unix socket, or has TLS itself (F20)."""
    kind, _, rest = endpoint.replace("\\:", "\0").partition(":")
    if kind in ("unix", "ssl", "tls"):
        return True
    if kind not in ("tcp", "tcp4", "tcp6"):
        # systemd:, fd: and plugins hand us a socket whose address we do not know.
        return False
    for part in rest.split(":"):
        name, given, value = part.partition("=")
        if given and name == "interface":
            return is_loopback(value.replace("\0", ":"))
    return False


def looks_like_endpoint(endpoint: str) -> bool:
    """Whether a text has the form of an endpoint string, kind:…, and is no HOST:PORT.

    Kinds that plugins of Twisted bring are not known here.
    """
    kind, colon, rest = endpoint.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z_]\w*", kind):
        return False
    return kind in _KINDS_WITH_PORT or not re.fullmatch(r"\d+", rest)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine for certain."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
