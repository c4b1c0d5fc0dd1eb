"""What an agent runs of what its server asks for (PURE, F18, F41).

Effective are the server's log sources that `allow_sources` covers, and all that
the agent's own configuration declares. A server's file source is a glob and so
is what is allowed: it is covered if one allowed glob matches whatever it matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from cortextx.fleet.agent.settings import SourceTable
    from cortextx.fleet.contract import LogSourceConfig

AVAILABLE = frozenset({"file"})
"""The kinds of source that this version can run."""
_ANY_DEPTH = "\x00/\x00"
"""Stands for a `**` of a server's glob: only a `**` of ours covers it."""


@dataclass(frozen=True, slots=True)
class EffectiveSource:
    """One source that is to run; `path` is its glob, `start` where a new file begins (F41)."""

    kind: str
    name: str
    path: str | None
    start: Literal["start", "end"]
    origin: Literal["server", "local"]


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
class FileGroup:
    """The files that are read as one source, so that no file is read twice.

    A file must match one of `allowed` too (F18).
    """

    name: str
    paths: tuple[str, ...]
    allowed: tuple[str, ...]
    start: Literal["start", "end"]


def groups(run: Iterable[EffectiveSource], allow: Iterable[str]) -> tuple[FileGroup, ...]:
    """The groups that read what is to run: one for each `start`.

    The names are keys of checkpoints, so they stay the same whatever the paths are.
    """
    sources = tuple(run)
    local = tuple(source.path or "" for source in sources if source.origin == "local")
    allowed = (*local, *(entry[5:] for entry in allow if entry.startswith("file:")))
    made = []
    for start, name in (("start", "files"), ("end", "files-from-end")):
        paths = tuple(source.path or "" for source in sources if source.start == start)
        if paths:
            made.append(FileGroup(name, paths, allowed, start))  # type: ignore[arg-type]
    return tuple(made)


def plan(
    asked: Iterable[LogSourceConfig], allow: Iterable[str], local: Iterable[SourceTable]
) -> Plan:
    """Decide what runs (F18). The same glob is run once, as the local one if there is one."""
    allowed = tuple(allow)
    run: dict[str, EffectiveSource] = {}
    left_out: list[LeftOut] = []
    for table in local:
        name = table.name or table.path or table.kind
        if table.kind in AVAILABLE:
            run[table.path or ""] = EffectiveSource(
                table.kind, name, table.path, table.start, "local"
            )
        else:
            left_out.append(LeftOut(table.kind, name, "local", _not_available(table.kind)))
    names = {source.name for source in run.values()}
    for source in asked:
        path = None if source.path is msgspec.UNSET else source.path
        if path is not None and path in run:
            continue
        name = path or source.kind
        why = _refusal(source.kind, path, allowed)
        if why is not None:
            left_out.append(LeftOut(source.kind, name, "server", why))
        elif path is not None and name not in names:
            names.add(name)
            run[path] = EffectiveSource(source.kind, name, path, "start", "server")
    return Plan(tuple(run.values()), tuple(left_out))


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
    elif kind == "custom":
        return "custom sources are declared by the agent only"
    elif kind not in allowed:
        return "not in allow_sources of this agent"
    return None if kind in AVAILABLE else _not_available(kind)


def _not_available(kind: str) -> str:
    return f"sources of kind {kind} are not available in this version"


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
