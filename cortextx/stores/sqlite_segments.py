# ruff: noqa: S608 - names of tables and columns are our own, values are bound.
"""Log segments: the catalogue, appending to the newest one, and its full-text index.

A segment is a table and its FTS5 index for a UTC day of arrival, a million rows or
so many bytes, whichever ends first, so that retention can drop it whole. All of it
runs on the writer's thread and connection; every public method is one transaction.

The index is fed after the ack, in transactions of its own (F38): in the ack's
transaction it would halve the rate. Its merging is left to idle moments.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cortextx.core.delivery import place
from cortextx.core.marks import OWN_SOURCE
from cortextx.interfaces.fleet import Appended, Gap, LogBatch
from cortextx.stores.restored import CAUSE
from cortextx.stores.sqlite_file import segment_layout, transaction
from cortextx.stores.sqlite_gaps import ahead, note_gap, note_marks, note_restored, settle
from cortextx.stores.sqlite_known import KnownValues
from cortextx.stores.sqlite_rows import APP_COLUMN, SOURCE_COLUMN, WIDTH, flatten, insert

DAY = 86_400_000_000
"""Microseconds."""
LAYOUT = 1
"""The layout of new segments: `schema/segment_<layout>.sql`."""
MAX_INTEGER = 2**63 - 1
BYTES_BESIDE = 200
"""What an entry is taken to have beside its message where a batch does not say its size."""
CHUNK_SECONDS = 0.06
"""How long one chunk of indexing should hold up the appends behind it."""
CHUNK_ROWS = (16, 16_384)
"""The fewest and most rows of a chunk; messages of 64 KiB make it small."""
MERGE_PAGES = 128
"""Pages that one step of merging writes."""
MERGE_AFTER = 16
"""Index transactions after which an idle moment is used to merge."""
MERGE_AT_LATEST = 400
"""Index transactions after which merging waits for no idle moment."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Where a segment ends: `rows`, `bytes` of entries as they came on the wire, or the
    UTC day of arrival when `daily`."""

    rows: int = 1_000_000
    daily: bool = True
    bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the catalogue, as far as the writer needs it."""

    number: int
    state: str
    day: int
    first_id: int
    last_id: int
    rows: int
    indexed_to: int
    bytes: int = 0

    @property
    def logs(self) -> str:
        """The name of its table."""
        return f"logs_{self.number:06d}"

    @property
    def fts(self) -> str:
        """The name of its full-text index."""
        return f"fts_{self.number:06d}"

    @property
    def backlog(self) -> int:
        """Rows that the full-text index does not hold yet."""
        return self.last_id - self.indexed_to


@dataclass(slots=True)
class _Pass:
    """What one append transaction has done so far; nothing of it holds before COMMIT.

    `closed` are segments that it filled; the times are those of `segment` alone.
    """

    segment: Segment
    closed: list[Segment] = field(default_factory=list)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: list[Appended] = field(default_factory=list)
    lowest: int = MAX_INTEGER
    highest: int = -MAX_INTEGER
    received: int = 0


class SegmentTables:
    """The segments as their only writer sees them."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float],
        limits: SegmentLimits = SegmentLimits(),
    ) -> None:
        self._connection = connection
        self._clock = clock
        self.limits = limits
        """Where segments end; it may be changed between two appends."""
        self._hosts: dict[str, tuple[int, int]] = {}
        # It may hold more hosts than have any: what is noted may be settled since.
        self._ahead = ahead(connection)
        self._known = KnownValues(connection)
        self._open: Segment | None = None
        self._behind: deque[Segment] = deque()
        self._chunk = 4096
        self._index_runs: dict[str, int] = {}
        self.head = 0
        self._load()

    @property
    def backlog(self) -> int:
        """Rows that are not in the full-text index yet."""
        backlog = sum(segment.backlog for segment in self._behind)
        return backlog + (0 if self._open is None else self._open.backlog)

    @property
    def newest(self) -> int | None:
        """The number of the segment that is written to; None before the first."""
        return None if self._open is None else self._open.number

    def host_changed(self, host_id: str | None) -> None:
        """Forget what was remembered of a host whose registry row was written."""
        if host_id is not None:
            self._hosts.pop(host_id, None)

    def append(self, batches: Sequence[LogBatch]) -> list[Appended]:
        """Store the new entries of all batches, accepted_seq and gaps (F10, F11, F13)."""
        if not batches:
            return []
        try:
            with transaction(self._connection):
                done = _Pass(self._segment_for(batches[0].received_at))
                for batch in batches:
                    self._append_batch(done, batch)
                self._note_segment(done)
                self._note_hosts(done)
        except BaseException:
            self._hosts.clear()
            self._known.forget()
            raise
        self._committed(done)
        return done.results

    def restored(self, host_id: str, acked: int, now: int) -> Gap | None:
        """See ILogStore."""
        known = self._host(host_id)
        if known is None or acked <= known[1]:
            return None
        key, accepted = known
        with transaction(self._connection):
            new = note_restored(self._connection, key, accepted, acked, now)
        self._ahead.add(key)
        return Gap(host_id, new[0][0], new[-1][1], now, CAUSE) if new else None

    def index_chunk(self) -> int:
        """Feed the next rows to the full-text index; the number of rows fed."""
        segment = self._behind[0] if self._behind else self._open
        if segment is None or not segment.backlog:
            return 0
        began = self._clock()
        upto = min(segment.last_id, segment.indexed_to + self._chunk)
        with transaction(self._connection):
            self._connection.execute(
                f"INSERT INTO {segment.fts} (rowid, message)"
                f" SELECT id, message FROM {segment.logs} WHERE id > ? AND id <= ?",
                (segment.indexed_to, upto),
            )
            self._connection.execute(
                "UPDATE segments SET indexed_to = ? WHERE number = ?", (upto, segment.number)
            )
        self._index_runs[segment.fts] = self._index_runs.get(segment.fts, 0) + 1
        fed = upto - segment.indexed_to
        self._indexed(replace(segment, indexed_to=upto))
        self._pace(fed, self._clock() - began)
        return fed

    def merge_due(self, idle: bool) -> bool:
        """Whether a full-text index is in enough pieces for a step of merging."""
        limit = MERGE_AFTER if idle else MERGE_AT_LATEST
        return any(runs >= limit for runs in self._index_runs.values())

    def merge_step(self) -> None:
        """Merge some of the pieces of the index that has most of them."""
        fts = max(self._index_runs, key=self._index_runs.__getitem__)
        before = self._connection.total_changes
        with transaction(self._connection):
            self._connection.execute(
                f"INSERT INTO {fts} ({fts}, rank) VALUES ('merge', ?)",
                (MERGE_PAGES,),
            )
        if self._connection.total_changes - before < 2:
            # FTS5's own sign that nothing is left to merge.
            del self._index_runs[fts]

    def _load(self) -> None:
        segments = [
            Segment(*row)
            for row in self._connection.execute(
                "SELECT number, state, day, first_id, last_id, rows, indexed_to, bytes"
                " FROM segments WHERE state <> 'dropping' ORDER BY first_id, number"
            )
        ]
        (last,) = self._connection.execute(
            "SELECT coalesce(max(last_id), 0) FROM segments"
        ).fetchone()
        self.head = last
        # How many pieces an index is in is not known; one step of merging finds out.
        self._index_runs = {segment.fts: MERGE_AFTER for segment in segments[-2:]}
        if segments and segments[-1].state == "open":
            self._open = segments.pop()
        self._behind.extend(segment for segment in segments if segment.backlog)

    def _segment_for(self, received_at: int) -> Segment:
        segment = self._open
        day = received_at // DAY
        if segment is not None and not segment.rows:
            return segment
        # A clock that steps back must not open a segment a batch: hence "later day".
        if (
            segment is not None
            and not self._is_full(segment)
            and not (self.limits.daily and day > segment.day)
        ):
            return segment
        return self._new_segment(day, self.head)

    def _is_full(self, segment: Segment) -> bool:
        return segment.rows >= self.limits.rows or segment.bytes >= self.limits.bytes

    def leave(self, number: int) -> None:
        """Have nothing more to do with a segment; if it is the open one, begin another."""
        if self._open is not None and self._open.number == number:
            with transaction(self._connection):
                opened = self._new_segment(self._open.day, self.head)
            self._open = opened
        kept = [segment for segment in self._behind if segment.number != number]
        self._behind = deque(kept)
        self._index_runs.pop(f"fts_{number:06d}", None)
        self._known.forget()

    def _new_segment(self, day: int, head: int) -> Segment:
        """Begin a segment behind the entry `head`, in the open transaction."""
        self._connection.execute("UPDATE segments SET state = 'closed' WHERE state = 'open'")
        number = self._connection.execute(
            "INSERT INTO segments (layout, state, day, first_id, last_id, indexed_to)"
            " VALUES (?, 'open', ?, ?, ?, ?)",
            (LAYOUT, day, head + 1, head, head),
        ).lastrowid
        assert number is not None
        for statement in segment_layout(LAYOUT, number):
            self._connection.execute(statement)
        return Segment(number, "open", day, head + 1, head, 0, head)

    def _append_batch(self, done: _Pass, batch: LogBatch) -> None:
        known = self._host(batch.host_id)
        if known is None:
            done.results.append(Appended(0, 0, unknown_host=True))
            return
        key, accepted = done.marks.get(batch.host_id, known)
        placed = place(accepted, batch.seq_start, len(batch.entries))
        stored = len(batch.entries) - placed.skip
        if stored:
            if done.segment.rows and self._is_full(done.segment):
                self._roll(done)
            segment = done.segment
            entries = batch.entries[placed.skip :] if placed.skip else batch.entries
            values, lowest, highest = flatten(entries, segment.last_id + 1, key, batch.received_at)
            insert(self._connection, segment.logs, values)
            sources = values[SOURCE_COLUMN::WIDTH]
            self._known.note(segment.number, "source", sources)
            self._known.note(segment.number, "app", values[APP_COLUMN::WIDTH])
            size = batch.size or sum(BYTES_BESIDE + len(one.message) for one in batch.entries)
            done.segment = replace(
                segment,
                last_id=segment.last_id + stored,
                rows=segment.rows + stored,
                bytes=segment.bytes + size * stored // len(batch.entries),
            )
            done.lowest = min(done.lowest, lowest)
            done.highest = max(done.highest, highest)
            done.received = max(done.received, batch.received_at)
            done.marks[batch.host_id] = (key, placed.high_water)
        missing = [] if placed.gap is None else [placed.gap]
        if stored and key in self._ahead:
            missing = settle(self._connection, key, accepted, placed.gap, placed.high_water)
        for run in missing:
            note_gap(self._connection, key, run, batch.received_at)
        if stored and OWN_SOURCE in sources:
            own = [entry for entry in entries if entry.source == OWN_SOURCE]
            note_marks(self._connection, key, own, batch.received_at)
        done.results.append(Appended(placed.high_water, stored, placed.gap))

    def _host(self, host_id: str) -> tuple[int, int] | None:
        known = self._hosts.get(host_id)
        if known is None:
            known = self._connection.execute(
                "SELECT key, accepted_seq FROM hosts WHERE host_id = ? AND forgotten_at IS NULL",
                (host_id,),
            ).fetchone()
            if known is not None:
                self._hosts[host_id] = known
        return known

    def _roll(self, done: _Pass) -> None:
        """Go on in a new segment, as the one before is full."""
        self._note_segment(done)
        full = done.segment
        done.closed.append(full)
        done.segment = self._new_segment(full.day, full.last_id)
        done.lowest, done.highest, done.received = MAX_INTEGER, -MAX_INTEGER, 0

    def _note_segment(self, done: _Pass) -> None:
        if done.lowest > done.highest:
            return
        segment = done.segment
        self._connection.execute(
            "UPDATE segments SET last_id = ?1, rows = ?2, min_ts = min(coalesce(min_ts, ?3), ?3),"
            " max_ts = max(coalesce(max_ts, ?4), ?4),"
            " last_received = max(coalesce(last_received, ?5), ?5), bytes = ?6 WHERE number = ?7",
            (
                segment.last_id,
                segment.rows,
                done.lowest,
                done.highest,
                done.received,
                segment.bytes,
                segment.number,
            ),
        )

    def _note_hosts(self, done: _Pass) -> None:
        if not done.marks:
            return
        marks = [value for mark in done.marks.values() for value in mark]
        self._connection.execute(
            f"WITH marks (host, seq) AS (VALUES {','.join(['(?,?)'] * len(done.marks))})"
            " UPDATE hosts SET accepted_seq = marks.seq FROM marks WHERE key = marks.host",
            marks,
        )

    def _committed(self, done: _Pass) -> None:
        previous, self._open = self._open, done.segment
        left = list(done.closed)
        # It may have been closed before the first entry, or filled by this very append.
        if previous is not None and previous.number not in {
            segment.number for segment in (*done.closed, done.segment)
        }:
            left.insert(0, previous)
        self._behind.extend(segment for segment in left if segment.backlog)
        self.head = done.segment.last_id
        self._hosts.update(done.marks)

    def _indexed(self, segment: Segment) -> None:
        if not self._behind:
            self._open = segment
        elif segment.backlog:
            self._behind[0] = segment
        else:
            self._behind.popleft()

    def _pace(self, rows: int, seconds: float) -> None:
        fewest, most = CHUNK_ROWS
        fitting = int(rows * CHUNK_SECONDS / seconds) if seconds > 0 else most
        self._chunk = max(fewest, min(most, fitting, self._chunk * 2))
