# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Reading: searches in the order of time, tails in the order of arrival, the rest.

All reads of one call see one state of the database, and never wait for the writer.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from cortextx.errors import BadQuery
from cortextx.interfaces.fleet import (
    EntryFilter,
    Histogram,
    HostRecord,
    SearchPage,
    StoredEntry,
    TailPage,
)
from cortextx.stores import sqlite_counts, sqlite_hosts
from cortextx.stores.sqlite_damage import Damage, is_damage, is_sound, mended
from cortextx.stores.sqlite_file import snapshot
from cortextx.stores.sqlite_hits import Hits
from cortextx.stores.sqlite_plan import (
    ENTRY,
    Key,
    Plan,
    SegmentView,
    hint_condition,
    json_array,
    make_plan,
    time_conditions,
)
from cortextx.stores.sqlite_statements import Statements

T = TypeVar("T")

MOST_ENTRIES = 1000
"""Entries of one page; a greater limit is cut to it."""
PAGE_BYTES = 4 * 1024 * 1024
"""A page ends early after about this many characters of messages and metadata."""
TAIL_BYTES = 1024 * 1024
"""The same for a page of a tail."""
TAIL_WINDOW = 20_000
"""Ids that a tail looks at in one statement."""
TAIL_LOOK = 200_000
"""Ids that one call of tail looks at before it answers what it has."""

_CURSOR = re.compile(r"([no])(-?\d{1,19})\.(\d{1,19})\Z")
_FETCH_ROWS = 100


class Reader:
    """Reads on one connection of its own, for one thread at a time.

    `damage` is told of entries that can only be mended or left out.
    """

    def __init__(self, connection: sqlite3.Connection, damage: Damage | None = None) -> None:
        self._connection = connection
        self._statements = Statements(connection)
        if damage is not None:
            self._statements.damage = damage

    def guard(self, check: Callable[[], None]) -> None:
        """Have `check` called before every statement; it raises to give up."""
        self._statements.check = check

    def search(
        self, which: EntryFilter, limit: int, newest_first: bool, cursor: str | None
    ) -> SearchPage:
        """See ILogStore."""
        limit = _checked(limit)
        after = None if cursor is None else _read_cursor(cursor, newest_first)
        with snapshot(self._connection):
            plan = make_plan(self._connection, which, self._statements.has_token)
            search = Hits(self._statements, plan, limit, newest_first, after)
            hits = list(search.hits(self._segments()))
            more = len(hits) > limit
            entries, taken = self._entries([(segment, key[1]) for key, segment in hits[:limit]])
        if taken < min(limit, len(hits)):
            more = True
        if not more:
            return SearchPage(entries, None)
        # Of the last one that was looked at, whether it could be read or not.
        ts, entry_id = hits[taken - 1][0]
        return SearchPage(entries, f"{'n' if newest_first else 'o'}{ts}.{entry_id}")

    def tail(self, which: EntryFilter, after: int, limit: int) -> TailPage:
        """See ILogStore."""
        limit = _checked(limit)
        with snapshot(self._connection):
            plan = make_plan(self._connection, which, self._statements.has_token)
            found: list[tuple[SegmentView, int]] = []
            segments, head = self._segments(), self._head()
            # A cursor from beyond the head comes from another life of this store.
            at = min(max(after, 0), head)
            stop = at + TAIL_LOOK
            for segment in segments:
                at = max(at, min(segment.first_id - 1, head))
                while at < segment.last_id and len(found) < limit and at < stop:
                    upto = min(segment.last_id, at + TAIL_WINDOW)
                    ids = self._window(plan, segment, at, upto, limit - len(found))
                    found += [(segment, entry_id) for entry_id in ids]
                    at = upto
            entries, taken = self._entries(found, TAIL_BYTES)
        if taken < len(found) or len(found) == limit:
            at = found[taken - 1][1]
        return TailPage(entries, at)

    def oldest(self) -> int:
        """See ILogStore."""
        with snapshot(self._connection):
            segments = self._segments()
            return segments[0].first_id if segments else self._head() + 1

    def histogram(self, which: EntryFilter, buckets: int) -> Histogram:
        """See ILogStore."""
        with snapshot(self._connection):
            plan = make_plan(self._connection, which, self._statements.has_token)
            return sqlite_counts.histogram(self._statements, plan, self._segments(), buckets)

    def context(
        self, entry_id: int, before: int, after: int, same_source: bool
    ) -> list[StoredEntry]:
        """See ILogStore. What is large is left out at the end (PAGE_BYTES)."""
        with snapshot(self._connection):
            hits = sqlite_counts.around(
                self._statements, self._segments(), entry_id, before, after, same_source
            )
            return self._entries(hits)[0]

    def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask something else of one state of the database."""
        with snapshot(self._connection):
            return question(self._connection)

    def find(self, ref: str) -> list[HostRecord]:
        """See IHostRegistry."""
        return sqlite_hosts.find(self._connection, ref)

    def list_hosts(self) -> list[HostRecord]:
        """See IHostRegistry."""
        return sqlite_hosts.list_hosts(self._connection)

    def _entries(
        self, hits: Sequence[tuple[SegmentView, int]], most: int = PAGE_BYTES
    ) -> tuple[list[StoredEntry], int]:
        """The entries of these hits in this order, or of the first of them (`most`), and
        of how many; what is damaged is mended, or left out."""
        found: list[StoredEntry] = []
        size = 0
        for start in range(0, len(hits), _FETCH_ROWS):
            part = hits[start : start + _FETCH_ROWS]
            rows: dict[int, StoredEntry] = {}
            for segment in {segment.number: segment for segment, _ in part}.values():
                ids = [entry_id for owner, entry_id in part if owner.number == segment.number]
                rows |= self._rows(segment, ids)
            for taken, (_, entry_id) in enumerate(part, start + 1):
                entry = rows.get(entry_id)
                if entry is not None:
                    found.append(entry)
                    size += len(entry.message) + len(entry.metadata or "")
                if size > most:
                    return found, taken
        return found, len(hits)

    def _rows(self, segment: SegmentView, ids: Sequence[int]) -> dict[int, StoredEntry]:
        """These entries of a segment, by their ids."""
        table = f"{segment.logs} l JOIN hosts h ON h.key = l.host"
        try:
            rows = self._statements.json(
                f"SELECT json_group_array(json_array({ENTRY})) FROM {table}"
                " WHERE l.id IN (SELECT value FROM json_each(:ids))",
                {"ids": json_array(ids)},
            )
        except (sqlite3.Error, msgspec.DecodeError) as error:
            if not is_damage(error):
                raise
            rows = []
        found = {row[0]: StoredEntry(*row) for row in rows if is_sound(row)}
        if len(found) < len(ids):
            sql = f"SELECT {ENTRY} FROM {table} WHERE l.id = :id"
            for entry_id in ids:
                if entry_id not in found:
                    self._statements.check()
                    entry = mended(self._connection, sql, entry_id, self._statements.damage)
                    if entry is not None:
                        found[entry_id] = entry
        return found

    def _head(self) -> int:
        """The id of the newest entry that was ever stored."""
        row = self._connection.execute("SELECT coalesce(max(last_id), 0) FROM segments").fetchone()
        return int(row[0])

    def _segments(self) -> list[SegmentView]:
        rows = self._connection.execute(
            "SELECT number, first_id, last_id, min_ts, max_ts, indexed_to FROM segments"
            " WHERE state <> 'dropping' AND rows > 0 ORDER BY first_id"
        )
        return [SegmentView(*row) for row in rows]

    def _window(
        self, plan: Plan, segment: SegmentView, after: int, upto: int, limit: int
    ) -> list[int]:
        """The matching ids above `after` up to `upto`, in order, `limit` at most."""
        try:
            ids = self._fast_window(plan, segment, after, upto, limit)
            if len(ids) == limit or self._statements.complete(segment, after + 1, upto):
                return [entry_id for entry_id in ids if after < entry_id <= upto]
        except (sqlite3.Error, msgspec.DecodeError) as error:
            if not is_damage(error):
                raise
        keys = self._statements.around_damage(segment, plan, after + 1, upto)
        return [entry_id for _, entry_id in keys][:limit]

    def _fast_window(
        self, plan: Plan, segment: SegmentView, after: int, upto: int, limit: int
    ) -> list[int]:
        values = {**plan.values, "match": plan.text.match, "limit": limit}
        where = f"l.id > :after AND l.id <= :upto{plan.where}{plan.where_host}"
        where += time_conditions(None, 1)
        if not plan.text.match:
            return _ids(self._statements, segment, where, values | {"after": after, "upto": upto})
        found: list[int] = []
        split = min(max(segment.indexed_to, after), upto)
        if after < split:
            matching = (
                f" AND l.id IN (SELECT rowid FROM {segment.fts} WHERE {segment.fts} MATCH :match"
                " AND rowid > :after AND rowid <= :upto)"
            )
            found = _ids(
                self._statements,
                segment,
                where + matching,
                values | {"after": after, "upto": split},
            )
        if split < upto and len(found) < limit:
            likely = _ids(
                self._statements,
                segment,
                where + hint_condition(plan.text),
                values | {"after": split, "upto": upto, "limit": upto - split},
            )
            matches = self._statements.matching(segment, plan.text.match, likely, indexed=False)
            found += sorted(matches)
        return found[:limit]


def _checked(limit: int) -> int:
    if limit < 1:
        raise BadQuery("limit", "a number of at least 1")
    return min(limit, MOST_ENTRIES)


def _read_cursor(cursor: str, newest_first: bool) -> Key:
    found = _CURSOR.match(cursor)
    if found is None or (found[1] == "n") is not newest_first:
        raise BadQuery("cursor", "the cursor of a page of this search")
    ts, entry_id = int(found[2]), int(found[3])
    if not -(2**63) <= ts < 2**63 or entry_id >= 2**63:
        raise BadQuery("cursor", "the cursor of a page of this search")
    return ts, entry_id


def _ids(
    statements: Statements, segment: SegmentView, where: str, values: dict[str, Any]
) -> list[int]:
    ids: list[int] = statements.json(
        "SELECT json_group_array(id) FROM (SELECT l.id AS id"
        f" FROM {segment.logs} l NOT INDEXED WHERE {where} ORDER BY l.id LIMIT :limit)",
        values,
    )
    return sorted(ids)
