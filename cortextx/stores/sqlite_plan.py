"""A filter made ready for SQL: conditions, values, hosts, and bounds of time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cortextx.errors import UnknownHost
from cortextx.interfaces.fleet import EntryFilter
from cortextx.stores.sqlite_text import TextQuery, check_text, read_text

Key = tuple[int, int]
"""(ts, id)."""
ENTRY = (
    "l.id, h.host_id, h.name, l.seq, l.ts, l.ts_offset, l.received_at, l.severity, l.facility,"
    " l.app_name, l.process_id, l.message, l.source, l.metadata"
)
"""The columns of an entry (`l`) and its host (`h`), in the order of StoredEntry."""
WARNING = 4
"""Severities up to this have an index on time of their own."""
_NON_ASCII = "l.message GLOB '*[^' || char(1) || '-' || char(127) || ']*'"


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment that holds entries, as the reader's snapshot shows it."""

    number: int
    first_id: int
    last_id: int
    min_ts: int
    max_ts: int
    indexed_to: int

    @property
    def logs(self) -> str:
        """The name of its table."""
        return f"logs_{self.number:06d}"

    @property
    def fts(self) -> str:
        """The name of its full-text index."""
        return f"fts_{self.number:06d}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A filter made ready: SQL conditions on `l`, their values, hosts and text."""

    conditions: tuple[str, ...]
    values: dict[str, Any]
    hosts: tuple[int, ...] | None
    text: TextQuery
    warnings: bool

    @property
    def where(self) -> str:
        """All conditions, each after an AND."""
        return "".join(f" AND {condition}" for condition in self.conditions)

    @property
    def where_host(self) -> str:
        """The condition on hosts, where they are not walked one by one."""
        if self.hosts is None:
            return ""
        return " AND l.host IN (SELECT value FROM json_each(:hosts))"


def make_plan(
    connection: sqlite3.Connection, which: EntryFilter, has_token: Callable[[str], bool]
) -> Plan:
    """Make a filter ready; raises BadQuery for a text that is none, and UnknownHost."""
    for member, texts in (("host", which.hosts), ("app", which.apps), ("source", which.sources)):
        for value in texts:
            check_text(member, value)
    conditions: list[str] = []
    values: dict[str, Any] = {}
    text = read_text(which.text, has_token)
    for number, pattern in enumerate(text.literals):
        conditions.append(f"l.message LIKE :literal{number} ESCAPE '\\'")
        values[f"literal{number}"] = pattern
    for number, pattern in enumerate(text.hints):
        values[f"hint{number}"] = pattern
    if which.apps:
        conditions.append("l.app_name IN (SELECT value FROM json_each(:apps))")
        values["apps"] = json_array(which.apps)
    if which.sources:
        conditions.append(_source_condition(which.sources, values))
    if which.severity_max is not None:
        conditions.append("l.severity <= :severity")
        values["severity"] = _within(which.severity_max)
    hosts = _host_keys(connection, which.hosts) if which.hosts else None
    if hosts is not None:
        values["hosts"] = json_array(hosts)
    values["since"] = _within(-(2**63) if which.since is None else which.since)
    values["until"] = _within(2**63 - 1 if which.until is None else which.until)
    warnings = which.severity_max is not None and which.severity_max <= WARNING
    return Plan(tuple(conditions), values, hosts, text, warnings)


def time_conditions(after: Key | None, sign: int) -> str:
    """The conditions on time; `+` keeps all but the tightest bounds from steering the walk."""
    if after is None:
        return " AND l.ts >= :since AND l.ts < :until"
    if sign < 0:
        return " AND l.ts >= :since AND +l.ts < :until AND (l.ts, l.id) < (:after_ts, :after_id)"
    return " AND +l.ts >= :since AND l.ts < :until AND (l.ts, l.id) > (:after_ts, :after_id)"


def after_values(after: Key | None) -> dict[str, int]:
    """The values that `time_conditions` needs for a cursor."""
    return {} if after is None else {"after_ts": after[0], "after_id": after[1]}


def json_array(values: Sequence[Any]) -> str:
    """Values as a JSON array, for json_each."""
    return msgspec.json.encode(values).decode()


def hint_condition(text: TextQuery) -> str:
    """A sieve for rows that are to be put through the full-text index in memory."""
    if not text.hints:
        return ""
    every = " AND ".join(f"l.message LIKE :hint{n} ESCAPE '\\'" for n in range(len(text.hints)))
    return f" AND (({every}) OR {_NON_ASCII})"


def _within(moment: int) -> int:
    return max(-(2**63), min(moment, 2**63 - 1))


def _source_condition(sources: Sequence[str], values: dict[str, Any]) -> str:
    whole = [source for source in sources if not source.endswith("*")]
    starts = [source[:-1] for source in sources if source.endswith("*")]
    values["sources"] = json_array(whole)
    values["starts"] = json_array(starts)
    return (
        "(l.source IN (SELECT value FROM json_each(:sources)) OR EXISTS (SELECT 1"
        " FROM json_each(:starts) s WHERE substr(l.source, 1, length(s.value)) = s.value))"
    )


def _host_keys(connection: sqlite3.Connection, refs: Sequence[str]) -> tuple[int, ...]:
    keys: set[int] = set()
    for ref in refs:
        rows = connection.execute(
            "SELECT key FROM hosts WHERE host_id = ?1 UNION SELECT key FROM hosts WHERE name = ?1",
            (ref,),
        ).fetchall()
        if not rows:
            raise UnknownHost(f"no host is {ref!r}")
        keys.update(key for (key,) in rows)
    return tuple(sorted(keys))
