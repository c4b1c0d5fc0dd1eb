"""What an agent runs of what its server asks for (PURE, F18, F41).

Effective are the server's log sources that `allow_sources` covers, and all that
the agent's own configuration declares. A server's file source is a glob and so
is what is allowed: it is covered if one allowed glob matches whatever it matches.

What runs is put in groups, one for each source object: files that are read alike
are one source, so that no file is read twice; all else is a group of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec

from cortextx.fleet.agent.sources.glob_forms import glob_fault
from cortextx.fleet.agent.sources.journal_settings import matches_of
from cortextx.fleet.agent.tables import SourceTable

if TYPE_CHECKING:
    from cortextx.fleet.contract import LogSourceConfig

AVAILABLE = frozenset({"file", "journald", "docker", "custom"})
"""The kinds of source that this version can run, on a host that has what they need."""
DOCKER_SOCKET = "/var/run/docker.sock"
"""Where a server's Docker source, and one that names no other, finds its daemon."""
FILES = "files"
"""The group of the files that are read from their start, as nothing else is said."""
FROM_END = "files-from-end"
_ANY_DEPTH = "\x00/\x00"
"""Stands for a `**` of a server's glob: only a `**` of ours covers it."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EffectiveSource:
    """One source that is to run: `table` says how, as if this host had declared it.

    `note` says what of a server's wish is not carried out.
    """

    kind: str
    name: str
    table: SourceTable
    origin: Literal["server", "local"]
    note: str | None = None

    @property
    def path(self) -> str | None:
        """A file source's glob."""
        return self.table.path


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One source that does not run, and why, in words."""

    kind: str
    name: str
    origin: Literal["server", "local"]
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs and what does not."""

    run: tuple[EffectiveSource, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """What one source object reads; a key of what runs, so a change of it is a restart.

    `name` is part of the checkpoints' keys and stays the same whatever else changes.
    A group of files has the tables of all its globs, which are alike in all but those
    (`tables[0]` says how); others have one table. A file must match one of `allowed`
    (F18) and none of `excluded`, which other groups read.
    """

    kind: str
    name: str
    tables: tuple[SourceTable, ...]
    allowed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def table(self) -> SourceTable:
        """How it is read."""
        return self.tables[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """The globs of a group of files."""
        return tuple(table.path or "" for table in self.tables)


def groups(run: Iterable[EffectiveSource], allow: Iterable[str]) -> tuple[SourceGroup, ...]:
    """The groups that read what is to run.

    A file source that says how to read its files is a group of its own and has them
    for itself, in the order of declaration; the others have what is left.
    """
    sources = tuple(run)
    files = [source for source in sources if source.kind == "file"]
    others = [source for source in sources if source.kind != "file"]
    local = tuple(source.path or "" for source in files if source.origin == "local")
    allowed = (*local, *(entry[5:] for entry in allow if entry.startswith("file:")))
    shared: dict[str, list[SourceTable]] = {FROM_END: [], FILES: []}
    wanted: list[tuple[str, list[SourceTable]]] = []
    for source in files:
        if _is_special(source.table):
            wanted.append((f"files-of-{quote(source.name, safe='/ ')}", [source.table]))
        else:
            shared[FROM_END if source.table.start == "end" else FILES].append(source.table)
    made: list[SourceGroup] = []
    taken: tuple[str, ...] = ()
    for name, tables in (*wanted, *shared.items()):
        if tables:
            group = SourceGroup("file", name, tuple(tables), allowed, (*tables[0].exclude, *taken))
            made.append(group)
            taken += group.paths
    made += (SourceGroup(source.kind, source.name, (source.table,)) for source in others)
    return tuple(made)


def _is_special(table: SourceTable) -> bool:
    """Whether a file source says how its files are read."""
    plain = SourceTable(kind="file", path=table.path, name=table.name, start=table.start)
    return table != plain


def plan(
    asked: Iterable[LogSourceConfig],
    allow: Iterable[str],
    local: Iterable[SourceTable],
    lacking: Mapping[str, str] = _NOTHING,
) -> Plan:
    """Decide what runs (F18); `lacking` says of a kind why this host cannot run it.

    The same glob is run once, as the local one if there is one; so is a journal, and a
    Docker daemon. Where the local one reads it otherwise than the server asks, the
    server's is left out with that reason.
    """
    planned = _Planned(tuple(allow), lacking)
    for table in local:
        planned.declared(table)
    for source in asked:
        planned.asked(source)
    return Plan(tuple(planned.run.values()), tuple(planned.left_out))


class _Planned:
    """A plan that is being made."""

    def __init__(self, allow: tuple[str, ...], lacking: Mapping[str, str]) -> None:
        self._allow = allow
        self._lacking = lacking
        self._names: set[str] = set()
        self.run: dict[str, EffectiveSource] = {}
        self.left_out: list[LeftOut] = []

    def declared(self, table: SourceTable) -> None:
        """The agent's own configuration has this."""
        why = self._lacking.get(table.kind)
        if why is not None:
            self.left_out.append(LeftOut(table.kind, table.title, "local", why))
            return
        at = table.path if table.kind == "file" else f"{table.kind} {table.title}"
        self._names.add(table.title)
        self.run[at or ""] = EffectiveSource(table.kind, table.title, table, "local")

    def asked(self, source: LogSourceConfig) -> None:
        """The server asks for this."""
        path = None if source.path is msgspec.UNSET else source.path
        name = path or source.kind
        why = _refusal(source.kind, path, self._allow) or self._lacking.get(source.kind)
        table, note = _as_table(source, path)
        instead = self._instead_of(table)
        if instead is not None:
            if _reads_all_of(instead.table, table):
                return
            why = f"the server's own {instead.name!r} comes first, and reads otherwise"
            if instead.origin == "local":
                why = f"{instead.name!r} of [[sources]] here stands for it, and reads otherwise"
        elif why is None and name in self._names:
            why = f"a source of [[sources]] here is called {name!r} already"
        if why is not None:
            self.left_out.append(LeftOut(source.kind, name, "server", why))
            return
        self._names.add(name)
        at = path if source.kind == "file" else source.kind
        self.run[at or ""] = EffectiveSource(source.kind, name, table, "server", note)

    def _instead_of(self, table: SourceTable) -> EffectiveSource | None:
        """What runs already and reads the same file globs, custom source, journal or daemon."""
        if table.kind in ("file", "custom"):
            at = table.path or ""
            return self.run.get(at if table.kind == "file" else f"custom {at}")
        return next(
            (source for source in self.run.values() if _place(source.table) == _place(table)), None
        )


def _place(table: SourceTable) -> tuple[str | None, ...]:
    """Which journal or daemon a table reads."""
    if table.kind == "docker":
        return (table.kind, table.socket or DOCKER_SOCKET)
    return (table.kind, table.directory, table.namespace)


def _reads_all_of(local: SourceTable, asked: SourceTable) -> bool:
    """Whether what a server asks for is read, and nothing of it left out by this host's own
    choice; from when on is this host's business."""
    if local.kind == "file":
        return not local.exclude
    if local.kind == "custom":
        return True
    chosen = ("units", "identifiers", "matches", "priority_max", "include", "exclude")
    own = [getattr(local, name) for name in chosen]
    return not any(own) or own == [getattr(asked, name) for name in chosen]


def _as_table(source: LogSourceConfig, path: str | None) -> tuple[SourceTable, str | None]:
    """A server's wish as a table, and what of it is not carried out."""
    filter = source.filter or None
    if filter is None:
        return SourceTable(kind=source.kind, path=path), None
    if source.kind == "journald":
        with suppress(ValueError):
            return SourceTable(kind="journald", matches=matches_of(filter)), None
    if source.kind == "docker":
        return SourceTable(kind="docker", include=(filter,)), None
    note = "the server's filter is not known here: nothing is filtered"
    return SourceTable(kind=source.kind, path=path), note


def is_pattern(text: str) -> bool:
    """Whether `text` is an entry of `allow_sources` (F41)."""
    if text in ("journald", "docker"):
        return True
    kind, _, rest = text.partition(":")
    return (kind == "file" and rest.startswith("/")) or (kind == "custom" and bool(rest))


def covers(allowed: str, path: str) -> bool:
    """Whether the allowed glob matches whatever the glob (or path) `path` matches.

    It may say no where that is too hard to see, never yes where it is not so.
    """
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\x00" in path:
        return False
    text = "/".join(_ANY_DEPTH if part == "**" else part for part in parts)
    return _pattern(allowed).fullmatch(text) is not None


def _refusal(kind: str, path: str | None, allowed: tuple[str, ...]) -> str | None:
    """Why a server's source does not run, or None."""
    if kind == "file":
        if path is None:
            return "the server named no path"
        globs = (entry.removeprefix("file:") for entry in allowed if entry.startswith("file:"))
        if not any(covers(glob, path) for glob in globs):
            return "not covered by allow_sources of this agent"
        fault = glob_fault(path)
        if fault is not None:
            return f"not a glob that can be used: {fault}"
    elif kind == "custom":
        return "custom sources are declared by the agent only"
    elif kind not in allowed:
        return "not in allow_sources of this agent"
    return None


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    r"""A glob as a pattern: `**` as a component is any depth, `*` and `?` stay in one.

    Neither `*` nor `?` matches the stand-in for a server's `**`, and `?` matches
    no `*`, which stands for more than one character.
    """
    out: list[str] = []
    parts = glob.split("/")[1:]
    for at, part in enumerate(parts):
        if part == "**":
            # At the end it is what lies below, not the directory itself.
            out.append("(?:/[^/]+)" + ("+" if at == len(parts) - 1 else "*"))
            continue
        piece = re.escape(part).replace(r"\*", "[^/\x00]*").replace(r"\?", "[^/\x00*]")
        out.append("/" + piece)
    return re.compile("".join(out), re.DOTALL)
