"""What `cortextx doctor` looks at of the server: configuration, ports, certificate, hosts."""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from cortextx.app.cli.client import Row, calling
from cortextx.app.cli.faults import NotReachable, Refused
from cortextx.app.cli.findings import Finding, note, ok, wrong
from cortextx.app.cli.invocation import Invocation
from cortextx.app.cli.processes import SERVER, Place, running_pid
from cortextx.app.config import load
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.server.settings import ServerSettings, ServerTable, check

CONNECT_SECONDS = 3.0
SOON = 7 * 86_400.0
"""Seconds: a token that ends within that is worth a note."""
RENEW_DAYS = 30
MANY_BATCHES = 200
_TCP = re.compile(r"^(?:tcp4?|tls|ssl):(?:port=)?(\d+)(?::|$)")
_INTERFACE = re.compile(r":interface=([0-9.]+)")


def server_configuration(invocation: Invocation) -> Iterator[Finding]:
    """It can be read, and says nothing that cannot be."""
    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        return
    settings = _settings(directory)
    check(settings, directory.config_file(SERVER))
    yield ok("server configuration", f"listens on {', '.join(settings.server.listen)}")


def server_process(invocation: Invocation) -> Iterator[Finding]:
    """It runs, answers, and can take what it has to; if it does not run, it could."""
    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        yield note("server", "none is set up in this state directory")
        return
    pid = running_pid(Place(directory.path, SERVER))
    settings = _settings_if_good(directory)
    if pid is None:
        call = f"`{calling(directory.path)} up`"
        yield wrong("server", "it does not run", f"start it: {call}, or systemctl start {SERVER}")
        if settings is not None:
            yield from _ports(settings)
        return
    with invocation.server() as client:
        status = client.one("server.status")
    yield ok("server", f"runs (pid {pid}), {status.get('live_hosts')} hosts connected")
    for address in status.get("listen") or []:
        yield _reachable(str(address))
    if settings is not None:
        yield from _open_files(pid, settings.server.max_connections)
    yield from _health(status)


def certificate(invocation: Invocation) -> Iterator[Finding]:
    """It is for the right name, and not about to end."""
    from cortextx.app import certificates

    directory = StateDir(invocation.state_dir)
    if not _is_here(directory):
        return
    settings = _settings_if_good(directory)
    # Where the configuration cannot be read, what it would take if it said nothing.
    table = settings.server if settings is not None else ServerTable()
    files = certificates.tls_files(directory, table.tls_certificate, table.tls_key)
    speaks = any(endpoint.startswith("tls:") for endpoint in table.listen)
    if settings is None:
        speaks = os.path.exists(files.certificate)
    if not speaks:
        return
    shown = certificates.show(files)
    days = shown.days_left(dt.datetime.fromtimestamp(invocation.now(), dt.UTC))
    own = table.tls_certificate is None
    hint = "`cortextx server tls renew`" if own else "renew it, then `cortextx server reload`"
    if days < 0:
        yield wrong("certificate", "it has ended: no agent connects", hint)
    elif days < RENEW_DAYS and own:
        yield wrong("certificate", f"it ends in {days} days", hint)
    elif days < RENEW_DAYS:
        yield note("certificate", f"it ends in {days} days", hint)
    else:
        yield ok("certificate", f"good for {days} days, for {', '.join(shown.names)}")
    name = _host_of(table.public_url)
    if name and not any(certificates.covers(held, name) for held in shown.names):
        yield wrong(
            "certificate", f"it is not for {name}, which public_url names",
            f"`cortextx server tls renew --name {name} …`, with all the names that agents use",
        )  # fmt: skip


def hosts(invocation: Invocation) -> Iterator[Finding]:
    """What the server knows to be amiss with its hosts."""
    try:
        with invocation.server() as client:
            found, _ = client.call("agent.list")
            tokens, _ = client.call("token.list")
    except (NotReachable, Refused):
        # Whoever looked at the process has said so.
        return
    amiss = False
    for row in found:
        for finding in (*_of_host(row), *_of_token(row, invocation.now())):
            amiss = True
            yield finding
    if not amiss and found:
        yield ok("hosts", f"{len(found)}, nothing amiss")
    for row in tokens:
        left = _seconds_left(row.get("expires_at"), invocation.now())
        if row.get("revoked_at") is None and left is not None and 0 < left < SOON:
            said = f"the API token {row.get('name')} ends in {left / 86_400:.1f} days"
            yield note("tokens", said, "`cortextx server token add` makes another")


def _of_host(row: Row) -> Iterator[Finding]:
    name = str(row.get("name"))
    about = f"host {name}"
    who = row.get("host_id") or name
    clone = row.get("probable_clone")
    if clone:
        yield wrong(
            about, f"two machines seem to share its identity: {', '.join(clone['addresses'])}",
            f"enrol one anew: `cortextx agent issue --host {name}-2`, then"
            " `cortextx agent enroll --force` there",
        )  # fmt: skip
    if row.get("clock_off"):
        yield wrong(about, f"its clock is {row.get('clock_skew_seconds')} s off", "set its clock")
    if row.get("heartbeat_overdue"):
        yield wrong(about, "it is connected, and sends no heartbeats", "look at its agent's log")
    if row.get("gap_count") or row.get("lost_entries"):
        said = f"{row.get('lost_entries') or 0} entries lost, {row.get('gap_count') or 0} gaps"
        yield note(about, said, f"`cortextx audit {who}` says which, and why")
    if row.get("state") == "active" and not row.get("connected"):
        said = f"not connected since {row.get('last_seen') or 'it enrolled'}"
        reason = row.get("last_disconnect_reason")
        yield note(about, f"{said} ({reason})" if reason else said, "`cortextx doctor` there")


def _of_token(row: Row, now: float) -> Iterator[Finding]:
    """A token that ends before its host has another: it is locked out then (F7)."""
    name, host_id, at = str(row.get("name")), row.get("host_id"), row.get("token_expires_at")
    about, left = f"host {name}", _seconds_left(at, now)
    if left is None:
        return
    if row.get("state") == "never_connected":
        if left <= 0:
            said = f"its invitation ended unused at {at}"
            yield note(about, said, f"issue another, or `cortextx agent forget {host_id or name}`")
        return
    again = (
        f"`cortextx agent issue --host {name} --host-id {host_id}`, then"
        " `cortextx agent enroll --force` there"
    )
    if left <= 0:
        said = f"its token ended at {at}, and it had taken no new one: it is locked out"
        yield wrong(about, said, again)
    elif row.get("connected"):
        said = f"its token ends at {at}, and it has taken no new one"
        yield wrong(about, said, f"`cortextx agent rotate {host_id} --now`")
    else:
        said = f"its token ends at {at}: if it does not connect before, it is locked out"
        yield note(about, said, f"start its agent; when it is too late: {again}")


def _health(status: Row) -> Iterator[Finding]:
    ingest: dict[str, Any] = status.get("ingest") or {}
    admission: dict[str, Any] = status.get("admission") or {}
    if ingest.get("failed_commits"):
        said = f"{ingest['failed_commits']} commits failed since it started"
        yield wrong("store", said, "its log says why; is the disk full?")
    for text in status.get("warnings") or []:
        yield wrong("store", str(text))
    if (ingest.get("waiting_batches") or 0) > MANY_BATCHES:
        yield note("store", f"{ingest['waiting_batches']} batches wait: the disk is too slow")
    if ingest.get("quota_refusals"):
        said = f"{ingest['quota_refusals']} pushes were beyond their host's quota"
        yield note("ingest", said, "raise quota_entries_per_sec in [server], if that is meant")
    refused = (admission.get("refused_connections") or 0) + (admission.get("refused_hellos") or 0)
    if refused:
        said = f"{refused} connections were refused before they authenticated"
        yield note(
            "admission", said, "the server's log says from where; see connections_per_minute"
        )


def _is_here(directory: StateDir) -> bool:
    """Whether this state directory is a server's."""
    return os.path.exists(directory.config_file(SERVER)) or os.path.isdir(directory.join("server"))


def _settings(directory: StateDir) -> ServerSettings:
    default = directory.config_file(SERVER)
    return load(ServerSettings, default_path=default, environ=os.environ)


def _settings_if_good(directory: StateDir) -> ServerSettings | None:
    """None where they cannot be read, which `server_configuration` tells."""
    try:
        return _settings(directory)
    except ConfigError:
        return None


def _host_of(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None


def _ports(settings: ServerSettings) -> Iterator[Finding]:
    """Whether a server that does not run could listen where it is to."""
    for endpoint in settings.server.listen:
        found = _TCP.match(endpoint)
        if found is None or found[1] == "0":
            continue
        interface = _INTERFACE.search(endpoint)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((interface[1] if interface else "", int(found[1])))
            except OSError as error:
                hint = {
                    errno.EADDRINUSE: "another process listens there: end it, or listen elsewhere",
                    errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE",
                    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
                }.get(error.errno or 0)
                yield wrong("port", f"{endpoint} cannot be had: {error.strerror}", hint)
            else:
                yield ok("port", f"{endpoint} is free")


def _reachable(address: str) -> Finding:
    """Whether a connection comes about where the server says that it listens."""
    try:
        if address.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(address)
        else:
            host, _, port = address.rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        said = f"{address} takes no connection: {error.strerror or error}"
        return wrong("port", said, "is a packet filter in between, or the server stuck?")
    return ok("port", f"{address} takes connections")


def _open_files(pid: int, connections: int) -> Iterator[Finding]:
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as file:
            line = next(each for each in file if each.startswith("Max open files"))
        most = line.split()[3]
    except (OSError, StopIteration, IndexError):
        return
    if most.isdecimal() and int(most) < connections + 256:
        yield wrong(
            "open files", f"{most} at most, and max_connections is {connections}",
            "raise LimitNOFILE in the unit, or lower max_connections",
        )  # fmt: skip


def _seconds_left(at: Any, now: float) -> float | None:
    try:
        return dt.datetime.fromisoformat(str(at)).timestamp() - now
    except ValueError:
        return None


LOOKS = (server_configuration, server_process, certificate, hosts)
