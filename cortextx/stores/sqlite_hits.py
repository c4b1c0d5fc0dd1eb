# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""The hits of a search, in the order of time over all segments.

Streams of hits, one a segment (or one a segment and host), each in the order of
(ts, id), are merged; a stream is only started when its segment's range of time
can hold the next hit. How a stream finds its hits:

- no text: it walks an index on time;
- few hits of the text in the segment's index: it takes them all and sorts them;
- many: it walks the index on time in growing pieces and asks the full-text index
  which rows of the piece match, so that a common word never sorts a million rows;
- rows that are not indexed yet (F38): likewise, by the full-text index in memory;
- where an index or a page cannot be read: the table is walked around the damage.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from cortextx.stores.sqlite_damage import is_damage
from cortextx.stores.sqlite_plan import (
    Key,
    Plan,
    SegmentView,
    after_values,
    hint_condition,
    json_array,
    time_conditions,
)
from cortextx.stores.sqlite_statements import Statements

FEW = 2000
"""Up to this many hits of a segment are taken and sorted at once."""
FIRST_PIECE = 1000
LAST_PIECE = 256_000
"""Rows of the pieces in which the index on time is walked; each four times the last."""
HOST_STREAMS = 8
"""Up to this many hosts are walked by (host, ts), each on its own."""


class Hits:
    """One page of one search over all segments."""

    def __init__(
        self, statements: Statements, plan: Plan, limit: int, newest_first: bool, after: Key | None
    ) -> None:
        self._statements = statements
        self._plan = plan
        self._wanted = limit + 1
        self._sign = -1 if newest_first else 1
        self._after = after

    def hits(self, segments: Sequence[SegmentView]) -> Iterator[tuple[Key, SegmentView]]:
        """The first hits in order, one more than the page holds if there are so many."""
        sign = self._sign
        # Of each stream its next key; of one not started yet, a bound no hit can precede.
        heap: list[tuple[Key, int, Iterator[Key] | None]] = []
        makers: list[tuple[SegmentView, Callable[[], Iterator[Key]]]] = []
        for segment in segments:
            if self._outside(segment):
                continue
            bound = segment.max_ts if sign < 0 else segment.min_ts
            for maker in self._streams(segment):
                heap.append(((sign * bound, -(2**63)), len(makers), None))
                makers.append((segment, maker))
        heapq.heapify(heap)
        found = 0
        while heap and found < self._wanted:
            key, number, stream = heap[0]
            segment, maker = makers[number]
            if stream is None:
                stream = maker()
            else:
                found += 1
                yield (sign * key[0], sign * key[1]), segment
            following = next(stream, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, number, stream))

    def _outside(self, segment: SegmentView) -> bool:
        values = self._plan.values
        if segment.max_ts < values["since"] or segment.min_ts >= values["until"]:
            return True
        if self._after is None:
            return False
        if self._sign < 0:
            return segment.min_ts > self._after[0]
        return segment.max_ts < self._after[0]

    def _streams(self, segment: SegmentView) -> Iterator[Callable[[], Iterator[Key]]]:
        parts: list[bool | None] = [None]
        if self._plan.text.match:
            parts = [True] if segment.first_id <= segment.indexed_to else []
            if segment.indexed_to < segment.last_id:
                parts.append(False)
        hosts: Sequence[int | None] = [None]
        if self._plan.hosts is not None and len(self._plan.hosts) <= HOST_STREAMS:
            hosts = self._plan.hosts
        for indexed in parts:
            if indexed is None:
                for host in hosts:
                    yield lambda host=host: self._walk(segment, host, None)  # type: ignore[misc]
            elif indexed:
                yield lambda: self._by_text(segment, hosts)
            else:
                yield lambda: self._walk(segment, None, False)

    def _by_text(self, segment: SegmentView, hosts: Sequence[int | None]) -> Iterator[Key]:
        try:
            return self._by_index(segment, hosts)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
        return self._around_damage(segment, None, True, self._after)

    def _by_index(self, segment: SegmentView, hosts: Sequence[int | None]) -> Iterator[Key]:
        ids = self._statements.json(
            f"SELECT json_group_array(rowid) FROM (SELECT rowid FROM {segment.fts}"
            f" WHERE {segment.fts} MATCH :match LIMIT {FEW + 1})",
            {"match": self._plan.text.match},
        )
        if len(ids) > FEW:
            return heapq.merge(*(self._walk(segment, host, True) for host in hosts))
        plan = self._plan
        rows = self._statements.json(
            "SELECT json_group_array(json_array(l.ts, l.id))"
            f" FROM json_each(:ids) i CROSS JOIN {segment.logs} l ON l.id = i.value"
            f" WHERE true{plan.where}{plan.where_host}{time_conditions(self._after, self._sign)}",
            {**plan.values, **after_values(self._after), "ids": json_array(ids)},
        )
        return iter(sorted((self._sign * ts, self._sign * entry_id) for ts, entry_id in rows))

    def _walk(self, segment: SegmentView, host: int | None, indexed: bool | None) -> Iterator[Key]:
        """Hits in order of (ts, id); without text, or proved by one of the text indexes."""
        text = self._plan.text
        piece = FIRST_PIECE if text.match else min(self._wanted, LAST_PIECE)
        after = self._after
        while True:
            try:
                rows = self._piece(segment, host, indexed, after, piece)
                if text.match:
                    ids = [entry_id for _, entry_id in rows]
                    matches = self._statements.matching(segment, text.match, ids, bool(indexed))
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                yield from self._around_damage(segment, host, indexed, after)
                return
            for ts, entry_id in rows:
                if not text.match or entry_id in matches:
                    yield (self._sign * ts, self._sign * entry_id)
            if len(rows) < piece:
                return
            after = rows[-1]
            piece = min(piece * 4, LAST_PIECE)

    def _around_damage(
        self, segment: SegmentView, host: int | None, indexed: bool | None, after: Key | None
    ) -> Iterator[Key]:
        first, last = segment.first_id, segment.last_id
        if indexed:
            last = min(last, segment.indexed_to)
        elif indexed is False:
            first = segment.indexed_to + 1
        keys = self._statements.around_damage(segment, self._plan, first, last, host)
        signed = sorted((self._sign * ts, self._sign * entry_id) for ts, entry_id in keys)
        behind = None if after is None else (self._sign * after[0], self._sign * after[1])
        return (key for key in signed if behind is None or key > behind)

    def _piece(
        self,
        segment: SegmentView,
        host: int | None,
        indexed: bool | None,
        after: Key | None,
        piece: int,
    ) -> list[Key]:
        plan = self._plan
        where = plan.where + time_conditions(after, self._sign)
        if host is not None:
            where += " AND l.host = :host"
        else:
            where += plan.where_host
        if indexed is False:
            # Few, so they are sorted rather than picked out of the index on time.
            index = "NOT INDEXED"
            where += f" AND l.id > {segment.indexed_to}{hint_condition(plan.text)}"
        elif host is not None:
            index = f"INDEXED BY {segment.logs}_host_ts"
        elif plan.warnings:
            index = f"INDEXED BY {segment.logs}_warning"
            where += " AND l.severity <= 4"
        else:
            index = f"INDEXED BY {segment.logs}_ts"
        order = "DESC" if self._sign < 0 else "ASC"
        rows = self._statements.json(
            "SELECT json_group_array(json_array(ts, id)) FROM (SELECT l.ts AS ts, l.id AS id"
            f" FROM {segment.logs} l {index} WHERE true{where}"
            f" ORDER BY l.ts {order}, l.id {order} LIMIT {piece})",
            {**plan.values, **after_values(after), "host": host},
        )
        return sorted(((ts, entry_id) for ts, entry_id in rows), reverse=self._sign < 0)
