# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Reading beside searches: histograms, the surroundings of an entry, how much there is."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cortextx.errors import BadQuery, UnknownEntry
from cortextx.interfaces.fleet import Histogram, StoreStats
from cortextx.stores.retention import DAY
from cortextx.stores.sqlite_damage import is_damage, readable
from cortextx.stores.sqlite_plan import (
    Plan,
    SegmentView,
    hint_condition,
    json_array,
    time_conditions,
)
from cortextx.stores.sqlite_statements import Statements

MOST_BUCKETS = 1000
MOST_AROUND = 500
"""Entries before and after an entry that one answer has."""
AROUND_LOOK = 50_000
"""Rows that are looked at for them, where only one source is meant."""
HISTOGRAM_SECONDS = 3.0
"""The time after which a histogram is answered as far as it has come."""
PIECE = 200_000
"""Ids that one statement counts, so that the time can be kept."""
DAMAGED_PIECE = 4096
"""Ids that are looked at at a time where an index cannot be read."""


def histogram(
    statements: Statements,
    plan: Plan,
    segments: Sequence[SegmentView],
    buckets: int,
    clock: Callable[[], float] = time.monotonic,
) -> Histogram:
    """Count matches by time, the newest segments first, until time is up."""
    if not 1 <= buckets <= MOST_BUCKETS:
        raise BadQuery("buckets", f"a number from 1 to {MOST_BUCKETS}")
    start, until = _range(plan, segments)
    step = max(1, -(-(until - start) // buckets))
    counts = [0] * buckets
    until_when = clock() + HISTOGRAM_SECONDS
    bounds = {**plan.values, "start": start, "step": step, "since": start, "until": until}
    meant = [s for s in segments if s.max_ts >= start and s.min_ts < until]
    for segment in reversed(meant):
        for low, high in reversed(_pieces(segment, plan)):
            if clock() > until_when:
                return Histogram(start, step, counts, False, segment.max_ts + 1)
            for bucket, count in _counted(statements, plan, segment, low, high, bounds):
                if bucket >= 0:
                    counts[min(bucket, buckets - 1)] += count
    return Histogram(start, step, counts)


def around(
    statements: Statements,
    segments: Sequence[SegmentView],
    entry_id: int,
    before: int,
    after: int,
    same_source: bool,
) -> list[tuple[SegmentView, int]]:
    """The entry, and what its host sent around it, in the order of seq."""
    for field, number in (("before", before), ("after", after)):
        if not 0 <= number <= MOST_AROUND:
            raise BadQuery(field, f"a number from 0 to {MOST_AROUND}")
    home = next((s for s in segments if s.first_id <= entry_id <= s.last_id), None)
    row = None if home is None else _origin(statements, home, entry_id)
    if home is None or row is None:
        raise UnknownEntry(f"no entry has the id {entry_id}")
    host, seq, source = row
    wanted = source if same_source else None
    earlier = _beside(statements, segments[::-1], host, seq, before, wanted, back=True)
    later = _beside(statements, segments, host, seq, after, wanted, back=False)
    return [*reversed(earlier), (home, entry_id), *later]


def stats(connection: sqlite3.Connection, path: str) -> StoreStats:
    """How much is stored."""
    entries, segments, unindexed = connection.execute(
        "SELECT coalesce(sum(rows), 0), count(*), coalesce(sum(last_id - indexed_to), 0)"
        " FROM segments WHERE state <> 'dropping'"
    ).fetchone()
    (hosts,) = connection.execute(
        "SELECT count(*) FROM hosts WHERE forgotten_at IS NULL"
    ).fetchone()
    (gaps,) = connection.execute("SELECT count(*) FROM gaps").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    return StoreStats(
        entries=entries,
        segments=segments,
        size=sum(_size(path + suffix) for suffix in ("", "-wal", "-shm")),
        free=free * page,
        oldest=_oldest(connection),
        unindexed=unindexed,
        hosts=hosts,
        gaps=gaps,
        disk_free=disk.f_bavail * disk.f_frsize,
    )


def _oldest(connection: sqlite3.Connection) -> int | None:
    """When the first of the entries that are held came, µs UTC: a look at one row.

    Where that row cannot be read, the beginning of its segment's day.
    """
    first = connection.execute(
        "SELECT number, day FROM segments WHERE state <> 'dropping' AND rows > 0"
        " ORDER BY first_id, number LIMIT 1"
    ).fetchone()
    if first is None:
        return None
    number, day = first
    try:
        row = connection.execute(
            f"SELECT received_at FROM logs_{number:06d} ORDER BY id LIMIT 1"
        ).fetchone()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        row = None
    return int(row[0]) if row and isinstance(row[0], int) else int(day) * DAY


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _range(plan: Plan, segments: Sequence[SegmentView]) -> tuple[int, int]:
    lowest = min((s.min_ts for s in segments), default=0)
    highest = max((s.max_ts for s in segments), default=0)
    start, until = plan.values["since"], plan.values["until"]
    if start <= -(2**62):
        start = lowest
    if until >= 2**62:
        until = highest + 1
    return start, max(start, until)


def _pieces(segment: SegmentView, plan: Plan) -> list[tuple[int, int]]:
    """Parts of a segment's ids, (from, to]; the full-text index holds each whole or not at all."""
    if not plan.text.match:
        return [(segment.first_id - 1, segment.last_id)]
    pieces = []
    split = min(max(segment.indexed_to, segment.first_id - 1), segment.last_id)
    for first, last in ((segment.first_id - 1, split), (split, segment.last_id)):
        while first < last:
            upto = min(first + PIECE, last)
            pieces.append((first, upto))
            first = upto
    return pieces


def _counted(
    statements: Statements,
    plan: Plan,
    segment: SegmentView,
    low: int,
    high: int,
    bounds: dict[str, Any],
) -> list[list[int]]:
    """As `_count`; where an index or a page cannot be read, by the rows that can."""
    try:
        return _count(statements, plan, segment, low, high, bounds)
    except (sqlite3.Error, msgspec.DecodeError) as error:
        if not is_damage(error):
            raise
    start, until, step = bounds["since"], bounds["until"], bounds["step"]
    keys = statements.around_damage(segment, plan, low + 1, high)
    return [[(ts - start) // step, 1] for ts, _ in keys if start <= ts < until]


def _origin(
    statements: Statements, home: SegmentView, entry_id: int
) -> tuple[int, int, str] | None:
    """An entry's host, seq and source; None where there is none. Raises UnknownEntry for
    one that stands on a page that cannot be read."""
    try:
        row = statements.connection.execute(
            f"SELECT host, seq, CAST(source AS BLOB) FROM {home.logs} WHERE id = ?", (entry_id,)
        ).fetchone()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        statements.damage.note([entry_id], error)
        raise UnknownEntry(f"the entry {entry_id} is damaged and cannot be read") from None
    if row is None:
        return None
    return row[0], row[1], bytes(row[2] or b"").decode("utf-8", "replace")


def _count(
    statements: Statements,
    plan: Plan,
    segment: SegmentView,
    low: int,
    high: int,
    bounds: dict[str, Any],
) -> list[list[int]]:
    where = f"l.id > :low AND l.id <= :high{plan.where}{plan.where_host}"
    where += time_conditions(None, 1)
    values = {**bounds, "low": low, "high": high}
    table = f"{segment.logs} l NOT INDEXED"
    if not plan.text.match:
        # Without further conditions these indexes answer alone.
        index = "_ts" if plan.hosts is None else "_host_ts"
        if plan.warnings and plan.hosts is None:
            index = "_warning"
            where += " AND l.severity <= 4"
        table = f"{segment.logs} l INDEXED BY {segment.logs}{index}"
    elif high <= segment.indexed_to:
        table = (
            f"(SELECT rowid FROM {segment.fts} WHERE {segment.fts} MATCH :match"
            f" AND rowid > :low AND rowid <= :high) m CROSS JOIN {segment.logs} l ON l.id = m.rowid"
        )
        values["match"] = plan.text.match
    else:
        ids: list[int] = statements.json(
            f"SELECT json_group_array(l.id) FROM {table} WHERE {where}{hint_condition(plan.text)}",
            values,
        )
        matching = statements.matching(segment, plan.text.match, ids, indexed=False)
        where += " AND l.id IN (SELECT value FROM json_each(:matching))"
        values["matching"] = json_array(sorted(matching))
    found: list[list[int]] = statements.json(
        "SELECT json_group_array(json_array(bucket, n)) FROM"
        f" (SELECT (l.ts - :start) / :step AS bucket, count(*) AS n FROM {table}"
        f" WHERE {where} GROUP BY bucket)",
        values,
    )
    return found


def _beside(
    statements: Statements,
    segments: Sequence[SegmentView],
    host: int,
    seq: int,
    wanted: int,
    source: str | None,
    *,
    back: bool,
) -> list[tuple[SegmentView, int]]:
    """Up to `wanted` entries of a host before or after a seq, the nearest first."""
    found: list[tuple[SegmentView, int]] = []
    sign, order = ("<", "DESC") if back else (">", "ASC")
    left = AROUND_LOOK
    for segment in segments:
        if len(found) >= wanted or left <= 0:
            break
        sql = (
            "SELECT json_group_array(json_array(seq, id)) FROM ("
            f"SELECT l.seq AS seq, l.id AS id FROM (SELECT seq, id, source FROM {segment.logs}"
            f" INDEXED BY {segment.logs}_seq WHERE host = :host AND seq {sign} :seq"
            f" ORDER BY seq {order} LIMIT :look) l WHERE :source IS NULL OR l.source = :source"
            f" ORDER BY l.seq {order} LIMIT :wanted)"
        )
        values = {
            "host": host,
            "seq": seq,
            "source": source,
            "look": left if source else wanted,
            "wanted": wanted - len(found),
        }
        try:
            rows: list[list[int]] = statements.json(sql, values)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            if not is_damage(error):
                raise
            rows = _beside_damage(statements, segment, values, back=back)
        left -= AROUND_LOOK // 8 if source else 0
        found += [(segment, entry_id) for _, entry_id in sorted(rows, reverse=back)]
    return found


def _beside_damage(
    statements: Statements, segment: SegmentView, values: dict[str, Any], *, back: bool
) -> list[list[int]]:
    """As the statement of `_beside`, by walking the table around what cannot be read.

    A host's ids grow with its seqs, so that the walk goes away from the entry.
    """
    connection, sign = statements.connection, "<" if back else ">"

    def ask(low: int, high: int) -> list[list[int]]:
        statements.check()
        at = "l.id = :low" if low == high else "l.id >= :low AND l.id <= :high"
        rows = connection.execute(
            f"SELECT l.seq, l.id FROM {segment.logs} l NOT INDEXED WHERE {at}"
            f" AND l.host = :host AND l.seq {sign} :seq"
            " AND (:source IS NULL OR l.source = :source) ORDER BY l.id",
            {**values, "low": low, "high": high},
        ).fetchall()
        return [[seq, entry_id] for seq, entry_id in rows if type(seq) is int]

    found: list[list[int]] = []
    first, last = segment.first_id, segment.last_id
    looked = 0
    while first <= last and len(found) < values["wanted"] and looked < AROUND_LOOK:
        low, high = first, min(last, first + DAMAGED_PIECE - 1)
        if back:
            low, high = max(first, last - DAMAGED_PIECE + 1), last
        found += readable(low, high, ask, statements.damage)
        looked += high - low + 1
        first, last = (first, low - 1) if back else (high + 1, last)
    return sorted(found, reverse=back)[: values["wanted"]]
