# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Retention in slices, on the writer's thread: what goes, goes without stalling appends.

A pass is a generator; each step of it is one short transaction of about
`SLICE_SECONDS`. A segment that is to go is first marked `dropping`, which hides
it from readers, and then taken apart: dropped in one stroke, a million rows
would hold the writer for seconds. Then the file is made smaller, page by page.

A segment that is thinned or trimmed is copied: what stays of it into a new table
that is `dropping` until it is whole; then the two change places in one transaction.
So a process that dies leaves nothing but a segment to drop.

What is too much goes first: a bound of size is looked at after every append, and
comes between the slices of whatever else is under way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from cortextx.stores.retention import (
    Retention,
    SegmentAge,
    before,
    expired,
    to_thin,
    too_many,
)
from cortextx.stores.sqlite_file import segment_layout, transaction
from cortextx.stores.sqlite_known import forget_older
from cortextx.stores.sqlite_metrics import MetricTables
from cortextx.stores.sqlite_rows import COLUMNS
from cortextx.stores.sqlite_segments import LAYOUT, MAX_INTEGER, SegmentTables

SLICE_SECONDS = 0.03
"""How long a slice should hold up the appends behind it."""
LOAD_SHARE = 2.0
"""Under load the writer rests from retention this many times a slice's length."""
PASS_SECONDS = 30.0
"""The pause between two passes."""
PRESS_PART = 32
"""Beyond the bound by this part of it, appends have to wait for what is dropped."""
RECORDS_SECONDS = 600.0
"""The pause between two looks at what is kept beside entries."""
SERIES_AT_ONCE = 2000
MOST_SEGMENTS = 400
"""Segments that one statement can ask; with more, forgotten hosts keep their rows."""
_INDEXES = ("seq", "ts", "host_ts", "warning")
_SECONDARY = (
    ("probe_records", "finished_at", "probes"),
    ("acts", "at", "acts"),
    ("gaps", "detected_at", "gaps"),
)


class Slices:
    """How many rows or pages a slice takes, so that it lasts SLICE_SECONDS."""

    def __init__(self, clock: Callable[[], float], size: int, most: int) -> None:
        self._clock = clock
        self._most = most
        self._began = 0.0
        self.size = size

    def begin(self) -> int:
        """The size of the next slice."""
        self._began = self._clock()
        return self.size

    def end(self) -> None:
        """Learn from the slice that has been done."""
        took = max(1e-4, self._clock() - self._began)
        fitting = int(self.size * min(2.0, SLICE_SECONDS / took))
        self.size = max(32, min(fitting, self._most))


class RetentionWork:
    """Carries out a Retention; `step` is to be called when `due`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        segments: SegmentTables,
        metrics: MetricTables,
        retention: Retention,
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._segments = segments
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._rows = Slices(clock, 4096, 100_000)
        self._blobs = Slices(clock, 512, 20_000)
        self._points = Slices(clock, 4096, 100_000)
        self._pages = Slices(clock, 256, 8192)
        self._steps: Iterator[int] | None = None
        self._rest_until = 0.0
        self._next_pass = clock() + 1.0
        self._next_records = 0.0
        self._freeing = False
        self._at_floor: int | None = None
        self.retention = retention
        self.dropped = 0
        """Segments that were dropped since the start."""
        self.excess = 0
        """Bytes beyond the bound when a pass last ended with nothing more to drop."""

    def look(self) -> None:
        """Begin a pass soon, because the rules have changed."""
        self._next_pass = self._clock()
        self._next_records = 0.0
        self._at_floor = None

    @property
    def working(self) -> bool:
        """Whether a pass is under way."""
        return self._steps is not None

    def due(self, idle: bool) -> bool:
        """Whether a step should be done now."""
        if self._steps is None:
            return self._clock() >= self._next_pass or self._over() > 0
        return idle or self._clock() >= self._rest_until or self.pressing

    @property
    def pressing(self) -> bool:
        """Whether there is so much too much that appends should wait for it to go."""
        most = self.retention.max_bytes
        return most is not None and self._over() > most // PRESS_PART

    def patience(self) -> float:
        """Seconds until there is something to do, if nothing else comes."""
        if self._steps is not None:
            return 0.0
        return max(0.0, self._next_pass - self._clock())

    def step(self) -> int:
        """Do one slice; about how many bytes it wrote. After an error the pass is over."""
        began = self._clock()
        steps = self._pass() if self._steps is None else self._steps
        self._steps = None
        self._next_pass = began + PASS_SECONDS
        written = next(steps, None)
        if written is None:
            return 0
        self._steps = steps
        ended = self._clock()
        self._rest_until = ended + LOAD_SHARE * (ended - began)
        return written

    def _pass(self) -> Iterator[int]:
        yield from self._bound()
        for written in self._rules():
            yield written
            if not self._freeing:
                yield from self._bound()
        self.excess = max(0, self._used() - self._limit()) if self._at_floor is not None else 0

    def _rules(self) -> Iterator[int]:
        now = self._now()
        for number in expired(self._ages(), self.retention, now):
            self._hide(number)
            yield 4096
        yield from self._drop_hidden()
        while (thin := to_thin(self._ages(), self.retention, now)) is not None:
            number, level = thin
            yield from self._copy(number, level)
            yield from self._drop_hidden()
        if self._clock() >= self._next_records:
            self._next_records = self._clock() + RECORDS_SECONDS
            yield from self._old_metrics(now)
            yield from self._old_records(now)
        yield from self._shrink()

    def _bound(self) -> Iterator[int]:
        """Have the oldest entries go while there is too much."""
        while self._over() > 0:
            cut = too_many(self._ages(), self.retention, self._used())
            if cut is None:
                # Until there is another segment, nothing can be done.
                self._at_floor = self._segments.newest
                return
            if cut.keep:
                yield from self._copy(cut.number, None, cut.keep)
            else:
                self._hide(cut.number)
                yield 4096
            # What a pass is copying is left to it.
            yield from self._drop(cut.number)

    def _over(self) -> int:
        """Bytes beyond the bound, 0 if nothing can be done about them."""
        if self.retention.max_bytes is None or self._at_floor == self._segments.newest:
            return 0
        self._at_floor = None
        return max(0, self._used() - self._limit())

    def _limit(self) -> int:
        return 0 if self.retention.max_bytes is None else self.retention.max_bytes

    def _ages(self) -> list[SegmentAge]:
        rows = self._connection.execute(
            "SELECT number, rows, day, last_received, kept_severity, bytes FROM segments"
            " WHERE state <> 'dropping' ORDER BY first_id, number"
        ).fetchall()
        return [SegmentAge(*row) for row in rows]

    def _pragma(self, name: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(value)

    def _used(self) -> int:
        """Bytes of the file that hold something."""
        pages = self._pragma("page_count") - self._pragma("freelist_count")
        return pages * self._pragma("page_size")

    def _hide(self, number: int) -> None:
        self._segments.leave(number)
        with transaction(self._connection):
            self._connection.execute(
                "UPDATE segments SET state = 'dropping' WHERE number = ?", (number,)
            )

    def _drop_hidden(self) -> Iterator[int]:
        for (number,) in self._connection.execute(
            "SELECT number FROM segments WHERE state = 'dropping' ORDER BY number"
        ).fetchall():
            yield from self._drop(number)

    def _drop(self, number: int) -> Iterator[int]:
        self._freeing = True
        try:
            yield from self._take_apart(number)
        finally:
            self._freeing = False
        self.dropped += 1

    def _take_apart(self, number: int) -> Iterator[int]:
        logs, fts = f"logs_{number:06d}", f"fts_{number:06d}"
        there = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")}
        if f"{fts}_data" in there:
            # Its first rows say what the index is: without them it cannot even be dropped.
            yield from self._empty(f"{fts}_data", self._blobs, 10)
            with transaction(self._connection):
                self._connection.execute(f"DROP TABLE {fts}")
            yield 65_536
        for index in _INDEXES:
            if f"{logs}_{index}" in there:
                with transaction(self._connection):
                    self._connection.execute(f"DROP INDEX {logs}_{index}")
                yield 262_144
        if logs in there:
            yield from self._empty(logs, self._rows, 0)
        with transaction(self._connection):
            self._connection.execute(f"DROP TABLE IF EXISTS {logs}")
            self._connection.execute("DELETE FROM segments WHERE number = ?", (number,))
            forget_older(self._connection)
        yield 65_536

    def _empty(self, table: str, slices: Slices, above: int) -> Iterator[int]:
        """Delete all rows of a table whose `id`, its key, is above this, some at a time."""
        while True:
            size = slices.begin()
            with transaction(self._connection):
                # Rows by the key, from its start: whole pages become free one after another.
                gone = self._connection.execute(
                    f"DELETE FROM {table} WHERE id > {above} AND id <= coalesce((SELECT id"
                    f" FROM {table} WHERE id > {above} ORDER BY id LIMIT 1 OFFSET {size}),"
                    f" {MAX_INTEGER})"
                ).rowcount
            slices.end()
            yield 64 * gone + 65_536
            if gone <= size:
                return

    def _copy(self, number: int, level: int | None, keep: float = 1.0) -> Iterator[int]:
        """Replace a segment by one that holds only what is severe enough, or the newest
        part (`keep`) of its ids; the old one is then to drop."""
        if number == self._segments.newest:
            self._segments.leave(number)
        with transaction(self._connection):
            day, first, last, received, kept = self._connection.execute(
                "SELECT day, first_id, last_id, last_received, kept_severity FROM segments"
                " WHERE number = ?",
                (number,),
            ).fetchone()
            first = last + 1 - max(1, int((last + 1 - first) * keep))
            copy = self._connection.execute(
                "INSERT INTO segments (layout, state, day, first_id, last_id, indexed_to,"
                " last_received, kept_severity) VALUES (?, 'dropping', ?, ?, ?, ?, ?, ?)",
                (LAYOUT, day, first, last, last, received, kept if level is None else level),
            ).lastrowid
            assert copy is not None
            for statement in segment_layout(LAYOUT, copy):
                self._connection.execute(statement)
        yield 65_536
        source, target, fts = f"logs_{number:06d}", f"logs_{copy:06d}", f"fts_{copy:06d}"
        columns = ", ".join(COLUMNS)
        at = first - 1
        while at < last:
            if not self._is_held(number):
                # The bound of size came first.
                return
            upto = min(last, at + self._rows.begin())
            with transaction(self._connection):
                self._connection.execute(
                    f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}"
                    " WHERE id > ? AND id <= ? AND severity <= ?",
                    (at, upto, MAX_INTEGER if level is None else level),
                )
                self._connection.execute(
                    f"INSERT INTO {fts} (rowid, message) SELECT id, message FROM {target}"
                    " WHERE id > ? AND id <= ?",
                    (at, upto),
                )
            self._rows.end()
            yield 400 * (upto - at)
            at = upto
        if not self._is_held(number):
            return
        self._segments.leave(number)
        with transaction(self._connection):
            rows, lowest, highest = self._connection.execute(
                f"SELECT count(*), min(ts), max(ts) FROM {target}"
            ).fetchone()
            self._connection.execute(
                "UPDATE segments SET state = 'dropping' WHERE number = ?", (number,)
            )
            if not rows:
                # Nothing stays of it: the copy is to drop, too.
                return
            self._connection.execute(
                "UPDATE segments SET state = 'closed', rows = ?1, min_ts = ?2, max_ts = ?3,"
                " bytes = (SELECT s.bytes * ?1 / max(1, s.rows) FROM segments s"
                " WHERE s.number = ?4) WHERE number = ?5",
                (rows, lowest, highest, number, copy),
            )
        yield 65_536

    def _is_held(self, number: int) -> bool:
        """Whether a segment is still there and not to be dropped."""
        row = self._connection.execute(
            "SELECT 1 FROM segments WHERE number = ? AND state <> 'dropping'", (number,)
        ).fetchone()
        return row is not None

    def _old_metrics(self, now: int) -> Iterator[int]:
        """Remove the points that came too long ago, whatever time they carry, then the
        series that have none any more; some series a slice."""
        if self.retention.metrics is None:
            return
        limit = before(now, self.retention.metrics)
        gone = size = 1
        while gone >= size:
            size = self._points.begin()
            with transaction(self._connection):
                gone = self._connection.execute(
                    "DELETE FROM metric_points WHERE (series, ts) IN (SELECT series, ts"
                    " FROM metric_points WHERE received_at < ? ORDER BY received_at LIMIT ?)",
                    (limit, size),
                ).rowcount
            if gone:
                self._points.end()
            yield 96 * gone + 16_384
        after = -1
        while True:
            keys = [
                key
                for (key,) in self._connection.execute(
                    "SELECT key FROM metric_series WHERE key > ? ORDER BY key LIMIT ?",
                    (after, SERIES_AT_ONCE),
                )
            ]
            if not keys:
                return
            with transaction(self._connection):
                self._connection.execute(
                    "DELETE FROM metric_series WHERE key > ? AND key <= ? AND NOT EXISTS"
                    " (SELECT 1 FROM metric_points WHERE series = key)",
                    (after, keys[-1]),
                )
            self._metrics.forget()
            after = keys[-1]
            yield 65_536

    def _old_records(self, now: int) -> Iterator[int]:
        for table, column, rule in _SECONDARY:
            age: float | None = getattr(self.retention, rule)
            if age is None:
                continue
            gone = 1
            while gone:
                with transaction(self._connection):
                    gone = self._connection.execute(
                        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table}"
                        f" WHERE {column} < ? LIMIT 500)",
                        (before(now, age),),
                    ).rowcount
                yield 128 * gone
        yield from self._forgotten_hosts()

    def _forgotten_hosts(self) -> Iterator[int]:
        """Remove the rows of forgotten hosts to which nothing points any more."""
        ages = self._ages()
        if len(ages) > MOST_SEGMENTS:
            return
        held = " UNION ALL ".join(
            ["SELECT 1 FROM gaps WHERE host = ?1"]
            + [f"SELECT 1 FROM {table} WHERE host = ?1" for table in ("metric_series",
               "probe_records")]
            + [f"SELECT 1 FROM logs_{age.number:06d} WHERE host = ?1" for age in ages]
        )  # fmt: skip
        for (key,) in self._connection.execute(
            "SELECT key FROM hosts WHERE forgotten_at IS NOT NULL LIMIT 1000"
        ).fetchall():
            with transaction(self._connection):
                if not self._connection.execute(f"SELECT EXISTS ({held})", (key,)).fetchone()[0]:
                    self._connection.execute("DELETE FROM hosts WHERE key = ?", (key,))
            yield 4096

    def _shrink(self) -> Iterator[int]:
        """Give what is free back to the disk, but for `keep_free` bytes."""
        page = self._pragma("page_size")
        spare = self.retention.spare // page
        while (free := self._pragma("freelist_count") - spare) > 0:
            pages = min(free, self._pages.begin())
            # One step frees one page; `execute` would do just one.
            self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")
            self._pages.end()
            yield pages * page
