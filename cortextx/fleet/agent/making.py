"""Makes the sources of an agent, one maker a kind, each with its own imports.

A source's code is imported when the first source of its kind is made: an agent that
reads files only never holds the code for Docker or for syslog. `lacking` says, before
that and without it, of which kinds this host has not what they need.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.tables import seconds_of

if TYPE_CHECKING:
    from cortextx.fleet.agent.policy import SourceGroup
    from cortextx.fleet.agent.tables import SourceTable
    from cortextx.interfaces.fleet import ILogSource

Compose = Callable[..., "bytes | None"]
"""Has the keyword signature of `entries.encode_body`; None: a rule dropped the entry."""
JOURNALCTL = "journalctl"
DOCKER_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class Parts:
    """What every source is made of, beside its settings.

    `put(bodies, checkpoints, can_wait=True)` is the buffer's; `checkpoints` is what it
    keeps now. `compose_for(kind, name)` answers how a source writes its entries.
    `state_dir` is never read as a log (A35).
    """

    reactor: Any
    put: Callable[..., Any]
    checkpoints: Mapping[str, bytes]
    state_dir: str
    compose_for: Callable[[str, str], Compose] = lambda kind, name: encode_body
    wall: Callable[[], float] = time.time


def make_source(group: SourceGroup, parts: Parts) -> ILogSource:
    """The source of a group; raises whatever says that it cannot be."""
    return MAKERS[group.kind](group, parts)


def lacking() -> dict[str, str]:
    """Of each kind that this host cannot run, why.

    A Docker source is not among them: it waits for a daemon that is not there yet.
    """
    if shutil.which(JOURNALCTL) is None:
        return {"journald": f"this host has no {JOURNALCTL}"}
    return {}


def able(sockets: Iterable[str] = ()) -> list[str]:
    """The kinds that this host can run now, as its hello says (§8).

    `sockets` are those of the configured Docker sources, beside the usual one.
    """
    without = set(lacking())
    if not any(map(os.path.exists, (DOCKER_SOCKET, *sockets))):
        without.add("docker")
    return [kind for kind in MAKERS if kind not in without]


def _file(group: SourceGroup, parts: Parts) -> ILogSource:
    from cortextx.fleet.agent.sources.file import FileSource
    from cortextx.fleet.agent.sources.file_settings import FileSettings
    from cortextx.fleet.agent.sources.globs import glob_test
    from cortextx.fleet.agent.sources.inheriting import inherited
    from cortextx.fleet.agent.sources.multiline import Multiline
    from cortextx.fleet.agent.sources.rotation import TailSettings
    from cortextx.fleet.agent.sources.stamps import zone_named

    table = group.table
    rule, tail = table.multiline, TailSettings()
    multiline = None
    if rule is not None:
        multiline = Multiline(
            rule.start, rule.continue_, rule.max_lines, rule.max_bytes, rule.timeout_secs
        )
    settings = FileSettings(
        paths=group.paths,
        allowed=group.allowed,
        excluded=(parts.state_dir,),
        exclude=group.excluded,
        zone=zone_named(table.timezone or "local"),
        format=table.format or "auto",
        tail=replace(
            tail,
            start=table.start or "start",
            encoding=table.encoding or tail.encoding,
            multiline=multiline,
            max_files=table.max_files or tail.max_files,
            partial_after=tail.partial_after if table.partial_secs is None else table.partial_secs,
        ),
    )
    wanted, left = glob_test(group.paths), glob_test(group.excluded)
    found = inherited(parts.checkpoints, group.name, lambda path: wanted(path) and not left(path))
    return _made(FileSource, group, settings, parts, found)


def _journald(group: SourceGroup, parts: Parts) -> ILogSource:
    from cortextx.fleet.agent.sources.journal_settings import DAY_SECONDS, JournalSettings
    from cortextx.fleet.agent.sources.journal_source import JournalSource

    table = group.table
    settings = JournalSettings(
        units=table.units,
        identifiers=table.identifiers,
        matches=table.matches,
        priority_max=table.priority_max,
        directory=table.directory,
        namespace=table.namespace,
        start=table.start or "start",
        since_secs=_since(table, DAY_SECONDS),
    )
    return _made(JournalSource, group, settings, parts)


def _docker(group: SourceGroup, parts: Parts) -> ILogSource:
    from cortextx.fleet.agent.sources.docker_settings import (
        DAY_SECONDS,
        LABELS,
        SOCKET,
        DockerSettings,
    )
    from cortextx.fleet.agent.sources.docker_source import DockerSource

    table = group.table
    settings = DockerSettings(
        socket=table.socket or SOCKET,
        include=table.include,
        exclude=table.exclude,
        labels=table.labels or LABELS,
        form=table.format or "auto",
        start=table.start or "start",
        since_secs=_since(table, DAY_SECONDS),
    )
    return _made(DockerSource, group, settings, parts)


def _custom(group: SourceGroup, parts: Parts) -> ILogSource:
    from cortextx.fleet.agent.sources.custom import custom_source, settings_of

    return _made(custom_source, group, settings_of(group.table), parts)


def _since(table: SourceTable, default: float) -> float:
    return default if table.since is None else float(seconds_of(table.since))


def _made(
    kind: Callable[..., Any],
    group: SourceGroup,
    settings: Any,
    parts: Parts,
    found: Mapping[str, bytes] | None = None,
) -> ILogSource:
    checkpoints = dict(parts.checkpoints if found is None else found)
    source: ILogSource = kind(
        parts.reactor,
        group.name,
        settings,
        parts.put,
        lambda: checkpoints,
        compose=parts.compose_for(group.kind, group.name),
        wall=parts.wall,
    )
    return source


MAKERS: dict[str, Callable[[SourceGroup, Parts], ILogSource]] = {
    "file": _file,
    "journald": _journald,
    "docker": _docker,
    "custom": _custom,
}
"""By kind."""
