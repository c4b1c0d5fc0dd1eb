"""Whether this host has what the sources of a configuration name: `--check` asks.

An agent that runs does not end for any of it: a source that cannot run waits or fails,
and its status says so. What is looked at is looked at with the rights of whoever asks.
"""

from __future__ import annotations

import os
import pwd
import ssl
from collections.abc import Callable

from cortextx.errors import ConfigError
from cortextx.fleet.agent.settings import AgentSettings
from cortextx.fleet.agent.tables import SourceTable

Fault = tuple[str, str]
"""A member of a source's table, and what is expected of it."""


def check_runnable(settings: AgentSettings, where: str) -> None:
    """Raise ConfigError for the first source that could not run, with its member and name."""
    for at, source in enumerate(settings.sources):
        look = _LOOKS.get(source.type or source.kind)
        fault = None if look is None else look(source)
        if fault is not None:
            member, expected = fault
            raise ConfigError(where, f"sources[{at}].{member}", f"{expected} ({source.title})")


def _exec(source: SourceTable) -> Fault | None:
    program = source.command[0]
    if not os.path.exists(program):
        return "command", f"a program that is there, not {program}"
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        return "command", f"a program that may be run, not {program}"
    if source.directory is not None and not os.path.isdir(source.directory):
        return "directory", f"a directory that is there, not {source.directory}"
    if source.user is None:
        return None
    try:
        person = pwd.getpwnam(source.user)
    except KeyError:
        return "user", f"a user of this host, not {source.user!r}"
    if os.geteuid() not in (0, person.pw_uid):
        return "user", f"nobody but the agent's own user, as it is not root: not {source.user!r}"
    return None


def _journald(source: SourceTable) -> Fault | None:
    if source.directory is not None and not os.path.isdir(source.directory):
        return "directory", f"a directory that is there, not {source.directory}"
    return None


def _tls(source: SourceTable) -> Fault | None:
    paths = {name: getattr(source, name) for name in ("certificate", "key", "client_ca")}
    for name, path in paths.items():
        if path is None:
            continue
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            return name, f"a file that can be read, not {path} ({error.strerror})"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key with a password would be asked for at the terminal else.
        context.load_cert_chain(paths["certificate"], paths["key"], password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError):
        return "certificate", "a PEM file with a certificate that belongs to `key`"
    if paths["client_ca"] is not None:
        try:
            context.load_verify_locations(paths["client_ca"])
        except (ssl.SSLError, OSError):
            return "client_ca", "a PEM file with a CA's certificate"
    return None


def _unix(source: SourceTable) -> Fault | None:
    above = os.path.dirname(source.listen or "")
    if not os.path.isdir(above):
        return "listen", f"the path of a socket in a directory that is there, not {above}"
    return None


_LOOKS: dict[str, Callable[[SourceTable], Fault | None]] = {
    "exec": _exec,
    "journald": _journald,
    "syslog-tls": _tls,
    "syslog-unix": _unix,
}
