"""Makes the custom source that a table asks for: a syslog listener, a command, stdin."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from twisted.internet.defer import Deferred

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.custom_settings import (
    ExecSettings,
    StdinSettings,
    SyslogSettings,
    TlsFiles,
    place_of,
)
from cortextx.fleet.agent.sources.stamps import zone_named
from cortextx.fleet.agent.sources.syslog_framing import PART_BYTES

if TYPE_CHECKING:
    from cortextx.fleet.agent.tables import SourceTable
    from cortextx.interfaces.fleet import ILogSource

Settings = SyslogSettings | ExecSettings | StdinSettings


def custom_source(
    reactor: Any,
    name: str,
    settings: Settings,
    put: Callable[..., Deferred[Any]],
    checkpoints: Callable[[], Mapping[str, bytes]] = dict,
    *,
    compose: Callable[..., bytes | None] = encode_body,
    wall: Callable[[], float] = time.time,
) -> ILogSource:
    """A source for these settings, not started yet; only its own type's code is imported."""
    if isinstance(settings, SyslogSettings):
        from cortextx.fleet.agent.sources.syslog_listeners import SyslogSource

        return SyslogSource(reactor, name, settings, put, checkpoints, compose=compose, wall=wall)
    if isinstance(settings, ExecSettings):
        from cortextx.fleet.agent.sources.exec import ExecSource

        return ExecSource(reactor, name, settings, put, checkpoints, compose=compose, wall=wall)
    from cortextx.fleet.agent.sources.stdin import StdinSource

    return StdinSource(reactor, name, settings, put, checkpoints, compose=compose, wall=wall)


def settings_of(table: SourceTable) -> Settings:
    """What a checked table of kind custom says; raises ValueError if it was not checked."""
    zone = zone_named(table.timezone or "local")
    part_bytes = min(table.max_line_bytes or PART_BYTES, PART_BYTES)
    form = table.format or "auto"
    if table.type == "exec":
        return ExecSettings(
            command=table.command,
            directory=table.directory or "/",
            environment=tuple(
                (name, value) for name, _, value in (p.partition("=") for p in table.environment)
            ),
            user=table.user,
            restart_secs=table.restart_secs or 10.0,
            format=form,
            zone=zone,
            part_bytes=part_bytes,
        )
    if table.type == "stdin":
        return StdinSettings(format=form, zone=zone, part_bytes=part_bytes)
    if table.type is None or table.listen is None:
        raise ValueError("a listener has a type and an address")
    transport = cast('Literal["udp", "tcp", "tls", "unix"]', table.type.removeprefix("syslog-"))
    address, port = ("", 0) if transport == "unix" else place_of(table.listen)
    tls = None
    if transport == "tls":
        tls = TlsFiles(table.certificate or "", table.key or "", table.client_ca)
    defaults = SyslogSettings("udp")
    return SyslogSettings(
        transport=transport,
        address=address,
        port=port,
        path=table.listen if transport == "unix" else "",
        zone=zone,
        allow=tuple(ipaddress.ip_network(network) for network in table.allow),
        rate=table.rate or 0.0,
        part_bytes=part_bytes,
        receive_buffer=table.receive_buffer or defaults.receive_buffer,
        socket_mode=int(table.socket_mode or "0666", 8),
        max_connections=table.max_connections or defaults.max_connections,
        framing=table.framing or "auto",
        idle_secs=table.idle_secs or 0.0,
        tls=tls,
    )
