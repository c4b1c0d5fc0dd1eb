"""The settings of an agent, as its TOML file has them, and their checks (PURE).

[server]
url = "wss://logs.example/ws/agent"     # else the invitation's
ca_pin = "sha256:…"                     # likewise; "" trusts the system's authorities
[agent]
allow_sources = ["journald", "file:/var/log/**"]
allow_probes = ["host.info", "disk.*"]
allow_insecure = false
[[sources]]
kind = "file"
path = "/srv/app/*.log"
name = "app"
start = "end"
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from cortextx.errors import ConfigError
from cortextx.fleet.agent.policy import is_pattern
from cortextx.fleet.agent.probes.catalogue import allowed as allowed_probes
from cortextx.fleet.agent.rules import compile_rules
from cortextx.fleet.agent.tables import Place, check_source, place_listened_at
from cortextx.fleet.agent.tables import RuleTable as RuleTable
from cortextx.fleet.agent.tables import SourceTable as SourceTable
from cortextx.fleet.invitation import check_url
from cortextx.fleet.pin import check_pin

DEFAULT_ALLOW = ("journald", "file:/var/log/**")
"""What a server may ask for unless told otherwise: the journal and the log directories (F18)."""

DEFAULT_PROBES = (
    "host.info",
    "disk.usage",
    "disk.largest",
    "mem.*",
    "cpu.top",
    "systemd.*",
    "time.sync",
)
"""The probes that a server may run unless told otherwise (F18): not those that reach into
the network, read logs or talk to Docker (S3, S7)."""

_Mib = Annotated[int, Meta(ge=32, le=1_048_576)]


class ServerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[server]`: where the server is, if not where the invitation said.

    `ca_pin` names the server's own CA (F40); an empty one sets the invitation's
    aside, for a server that has a certificate of a public authority by now.
    """

    url: str | None = None
    ca_pin: str | None = None


class AgentTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[agent]`.

    `allow_sources` and `allow_probes` bound what a server may ask for (F18, F41),
    `probe_file_roots` what `file.tail` may read (S2). `allow_insecure` permits ws://
    to other hosts than this one (F20). The buffer's bounds are in MiB (F19).
    `stop_drain_secs` is how long a stopping agent waits for its last answers.
    """

    allow_sources: tuple[str, ...] = DEFAULT_ALLOW
    allow_probes: tuple[str, ...] = DEFAULT_PROBES
    probe_file_roots: tuple[str, ...] = ("/var/log",)
    allow_insecure: bool = False
    buffer_soft_mib: _Mib = 256
    buffer_hard_mib: _Mib = 512
    stop_drain_secs: Annotated[float, Meta(ge=0, le=60)] = 2.0


class AgentSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    server: ServerTable = ServerTable()
    agent: AgentTable = AgentTable()
    sources: tuple[SourceTable, ...] = ()
    rules: tuple[RuleTable, ...] = ()


def check(settings: AgentSettings, where: str) -> None:
    """Check what types cannot say; raises ConfigError with the field."""
    if settings.server.url is not None:
        check_transport(settings.server.url, settings.agent.allow_insecure, where)
    if settings.server.ca_pin:
        check_pin(settings.server.ca_pin, where, "server.ca_pin")
    for pattern in settings.agent.allow_probes:
        if not allowed_probes([pattern]):
            expected = f"names of probes, or globs of them as disk.*, not {pattern!r}"
            raise ConfigError(where, "agent.allow_probes", expected)
    for root in settings.agent.probe_file_roots:
        if not root.startswith("/") or "\x00" in root:
            raise ConfigError(where, "agent.probe_file_roots", f"absolute paths, not {root!r}")
    for allowed in settings.agent.allow_sources:
        if not is_pattern(allowed):
            expected = f"journald, docker, file:/GLOB or custom:NAME, not {allowed!r}"
            raise ConfigError(where, "agent.allow_sources", expected)
    if settings.agent.buffer_hard_mib < settings.agent.buffer_soft_mib + 8:
        expected = "at least 8 more than buffer_soft_mib"
        raise ConfigError(where, "agent.buffer_hard_mib", expected)
    _check_sources(settings.sources, where)
    compile_rules(settings.rules, where)


def _check_sources(sources: tuple[SourceTable, ...], where: str) -> None:
    names: set[str] = set()
    listening: list[tuple[SourceTable, Place]] = []
    reads_stdin: str | None = None
    for at, source in enumerate(sources):
        field = f"sources[{at}]"
        try:
            check_source(source, where, field)
        except ConfigError as error:
            if source.name is None:
                raise
            # A number alone is hard to find in a long file.
            expected = f"{error.expected} ({source.name})"
            raise ConfigError(where, error.field, expected) from None
        name = source.title
        if name in names:
            raise ConfigError(where, f"{field}.name", f"another name than {name!r}, which is taken")
        names.add(name)
        if source.type == "stdin":
            if reads_stdin is not None:
                expected = f"one source of standard input at most: {reads_stdin!r} reads it"
                raise ConfigError(where, f"{field}.type", expected)
            reads_stdin = name
        place = place_listened_at(source)
        for other, taken in listening:
            if place is not None and place.overlaps(taken):
                expected = f"an address of its own, not {source.listen}: {other.title!r} has it"
                raise ConfigError(where, f"{field}.listen", expected)
        if place is not None:
            listening.append((source, place))


def check_available(settings: AgentSettings, where: str, lacking: Mapping[str, str]) -> None:
    """Raise ConfigError for a source of a kind for which this host is `lacking` something.

    An agent that runs leaves such a source out and says so.
    """
    for at, source in enumerate(settings.sources):
        if source.kind in lacking:
            expected = f"a kind that can run here: {lacking[source.kind]}"
            raise ConfigError(where, f"sources[{at}].kind", expected)


def check_transport(url: str, allow_insecure: bool, where: str, field: str = "server.url") -> None:
    """See that tokens and logs do not travel in the clear (F20); raises ConfigError, which
    blames `field` of `where`."""
    try:
        check_url(url, where)
    except ConfigError as error:
        raise ConfigError(where, field, error.expected) from None
    parts = urlsplit(url)
    if parts.scheme == "ws" and not allow_insecure and not _is_loopback(parts.hostname or ""):
        expected = (
            "wss:// for another host than this one; ws:// would send token and logs in the"
            " clear, and needs `allow_insecure = true` in [agent]"
        )
        raise ConfigError(where, field, expected)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
