"""What is kept for how long, as rules and in a database file."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.stores.retention import (
    DAY,
    Cut,
    Retention,
    SegmentAge,
    expired,
    to_thin,
    too_many,
)
from cortextx.stores.sqlite_backup import verify
from cortextx.stores.sqlite_file import open_writer
from cortextx.stores.sqlite_metrics import MetricTables
from cortextx.stores.sqlite_retention import PASS_SECONDS, RetentionWork
from cortextx.stores.sqlite_segments import SegmentLimits, SegmentTables
from tests.stores.suite import HOST, NOON_US, batch, entry
from tests.stores.suite_records import Sample

HOUR = 3600.0
HOUR_US = 3_600_000_000


MIB = 1024 * 1024


def ages(*newest: int) -> list[SegmentAge]:
    """Segments whose newest entries came at these times."""
    return [SegmentAge(n, 10, at // DAY, at, None) for n, at in enumerate(newest, 1)]


def sizes(*mib: int) -> list[SegmentAge]:
    """Segments whose entries have so many MiB."""
    return [SegmentAge(n, 10, 0, 1, None, size * MIB) for n, size in enumerate(mib, 1)]


class RuleTests(SynchronousTestCase):
    """The rules alone."""

    def test_a_segment_goes_when_its_newest_entry_is_too_old(self) -> None:
        now = 10 * HOUR_US
        rules = Retention(entries=2 * HOUR)
        segments = ages(1, 8 * HOUR_US - 1, 8 * HOUR_US)
        self.assertEqual(expired(segments, rules, now), [1, 2])
        self.assertEqual(expired(segments, Retention(), now), [])

    def test_a_segment_of_an_older_program_ends_with_its_day(self) -> None:
        """Schema 1 did not note when entries came."""
        old = SegmentAge(1, 1, 0, None, None)
        self.assertEqual(expired([old], Retention(entries=1.0), DAY), [])
        self.assertEqual(expired([old], Retention(entries=1.0), DAY + 1_000_001), [1])

    def test_too_many_bytes_cost_the_oldest_but_never_the_newest(self) -> None:
        rules = Retention(max_bytes=64 * MIB)
        self.assertEqual(too_many(sizes(*[4] * 17), rules, 65 * MIB), Cut(1))
        self.assertEqual(too_many(sizes(*[4] * 17), rules, 64 * MIB), None)
        self.assertEqual(too_many(sizes(2), Retention(max_bytes=2 * MIB), 3 * MIB), None)
        self.assertEqual(too_many(sizes(*[4] * 17), Retention(), 10**12), None)

    def test_a_new_bound_trims_what_came_before_it(self) -> None:
        """A segment from before there was a bound is most of what there is, so its newest
        entries stay, were it the one that is written to."""
        rules = Retention(max_bytes=64 * MIB)
        for segments in (sizes(300), sizes(300, 1)):
            cut = too_many(segments, rules, sum(one.bytes for one in segments))
            assert cut is not None
            self.assertEqual(cut.number, 1)
            self.assertAlmostEqual(cut.keep, 48 / 300, places=1)
        self.assertEqual(too_many(sizes(300, 300), rules, 600 * MIB), Cut(1))

    def test_what_is_beside_entries_does_not_cost_all_of_them(self) -> None:
        """Entries keep a quarter of the bound, however many samples or gaps there are."""
        rules = Retention(max_bytes=64 * MIB)
        self.assertEqual(too_many(sizes(*[4] * 5), rules, 500 * MIB), Cut(1))
        self.assertEqual(too_many(sizes(*[4] * 4), rules, 500 * MIB), None)

    def test_segments_are_a_small_part_of_the_bound(self) -> None:
        self.assertEqual(Retention(max_bytes=64 * MIB).segment_bytes, 4 * MIB)
        self.assertEqual(Retention(max_bytes=MIB).segment_bytes, MIB)
        self.assertEqual(Retention().segment_bytes, None)
        self.assertEqual(Retention(max_bytes=64 * MIB).spare, 4 * MIB)

    def test_the_strictest_of_the_rules_that_apply_thins(self) -> None:
        rules = Retention(lesser=((4, HOUR), (2, 5 * HOUR)))
        now = 10 * HOUR_US
        self.assertEqual(to_thin(ages(7 * HOUR_US, now), rules, now), (1, 4))
        self.assertEqual(to_thin(ages(HOUR_US, now), rules, now), (1, 2))
        self.assertEqual(to_thin(ages(now, now), rules, now), None)
        self.assertEqual(to_thin(ages(7 * HOUR_US), rules, now), (1, 4), "the newest ages too")
        thinned = [replace(ages(HOUR_US)[0], kept_severity=2), *ages(now)]
        self.assertEqual(to_thin(thinned, rules, now), None)


class Bench:
    """A database whose writer the test plays itself, with clocks of its own."""

    def __init__(self, path: str, rows: int = 100) -> None:
        self.path = path
        self.now = NOON_US
        self.seconds = 0.0
        self.connection = open_writer(path, NOON_US)
        self.limits = SegmentLimits(rows)
        self.segments = SegmentTables(self.connection, lambda: self.seconds, self.limits)
        self.metrics = MetricTables(self.connection)
        self.connection.execute(
            "INSERT INTO hosts (name, host_id, state, created_at) VALUES ('a', ?, 'active', 0)",
            (HOST,),
        )
        self.seq = 0

    def reopen(self) -> None:
        """Go on as a process that starts does, with nothing of the file in memory."""
        self.connection.close()
        self.connection = open_writer(self.path, NOON_US)
        self.segments = SegmentTables(self.connection, lambda: self.seconds)
        self.metrics = MetricTables(self.connection)

    def append(self, count: int, **members: Any) -> None:
        first = self.seq + 1
        self.seq += count
        entries = [entry(seq, **members) for seq in range(first, self.seq + 1)]
        size = sum(200 + len(one.message) for one in entries)
        self.segments.append([replace(batch(HOST, entries, self.now), size=size)])
        while self.segments.index_chunk():
            pass

    def work(self, retention: Retention) -> RetentionWork:
        return RetentionWork(
            self.connection,
            self.segments,
            self.metrics,
            retention,
            lambda: self.now,
            lambda: self.seconds,
        )

    def run(self, retention: Retention) -> int:
        """One pass; the number of its slices."""
        work = self.work(retention)
        slices = 0
        work.step()
        while work.working:
            work.step()
            slices += 1
        return slices

    def column(self, sql: str) -> list[Any]:
        return [value for (value,) in self.connection.execute(sql)]


class PassTests(SynchronousTestCase):
    """One pass at a time over a real file."""

    def setUp(self) -> None:
        self.bench = Bench(self.mktemp())
        self.addCleanup(lambda: self.bench.connection.close())

    def test_old_segments_go_with_everything_that_is_theirs(self) -> None:
        bench = self.bench
        bench.append(100, app_name="old")
        bench.now += 3 * HOUR_US
        bench.append(50, app_name="new")
        bench.reopen()
        bench.run(Retention(entries=HOUR))
        self.assertEqual(bench.column("SELECT number FROM segments"), [2])
        left = bench.column("SELECT name FROM sqlite_master WHERE name LIKE '%000001%'")
        self.assertEqual(left, [])
        self.assertEqual(bench.column("SELECT value FROM known_values WHERE kind = 'app'"), ["new"])
        self.assertEqual(bench.column("PRAGMA integrity_check"), ["ok"])

    def test_even_the_newest_segment_grows_too_old_and_ids_go_on(self) -> None:
        """A tail's cursor stays good: no id is used twice."""
        bench = self.bench
        bench.append(10)
        bench.now += 3 * HOUR_US
        bench.run(Retention(entries=HOUR))
        self.assertEqual(bench.column("SELECT rows FROM segments"), [0])
        bench.append(1)
        self.assertEqual(bench.segments.head, 11)
        again = SegmentTables(bench.connection, lambda: 0.0)
        self.assertEqual(again.head, 11)

    def test_the_file_shrinks_but_for_what_is_kept_free(self) -> None:
        bench = self.bench
        for _ in range(5):
            bench.append(100, message="x" * 3000)
        (before,) = bench.column("PRAGMA page_count")
        bench.run(Retention(max_bytes=600_000, keep_free=40_960))
        (after,), (free,) = bench.column("PRAGMA page_count"), bench.column("PRAGMA freelist_count")
        self.assertLess(after, before * 0.6)
        self.assertEqual(free, 600_000 // 16 // 4096, "not all of keep_free of so small a bound")
        self.assertLessEqual((after - free) * 4096, 600_000)
        self.assertEqual(bench.column("PRAGMA integrity_check"), ["ok"])

    def test_a_pass_comes_in_slices_with_rests_under_load(self) -> None:
        bench = self.bench
        work = bench.work(Retention(entries=HOUR))
        bench.append(100)
        bench.now += 3 * HOUR_US
        self.assertFalse(work.due(idle=True))
        bench.seconds = 1.0
        self.assertTrue(work.due(idle=False))
        work._clock = iter([1.0, 1.01, 1.02, 1.04]).__next__
        work.step()
        self.assertTrue(work.working)
        self.assertFalse(work.due(idle=False))
        self.assertTrue(work.due(idle=True))
        self.assertGreater(bench.run(Retention(entries=HOUR)), 5)

    def test_a_pass_that_broke_off_is_taken_up_again(self) -> None:
        """Also by another process: what was hidden stays hidden, and is dropped."""
        bench = self.bench
        bench.append(100)
        bench.append(5)
        bench.now += 3 * HOUR_US
        work = bench.work(Retention(entries=HOUR))
        for _ in range(5):
            work.step()
        states = bench.column("SELECT state FROM segments")
        self.assertIn("dropping", states)
        bench.reopen()
        bench.run(Retention())
        self.assertNotIn("dropping", bench.column("SELECT state FROM segments"))
        self.assertEqual(bench.column("SELECT sum(rows) FROM segments"), [0])

    def test_wherever_a_pass_breaks_off_the_next_one_ends_it(self) -> None:
        """After every slice the file is sound, and a new process finishes the work."""
        rules = Retention(entries=2 * HOUR, lesser=((4, HOUR),), keep_free=0)
        for broken in range(1, 40):
            bench = Bench(self.mktemp(), rows=60)
            bench.append(60)
            bench.now += HOUR_US * 3 // 2
            bench.append(40)
            bench.append(20, severity="crit")
            bench.now += HOUR_US * 5 // 4
            bench.append(5)
            work = bench.work(rules)
            ended = bool([work.step() for _ in range(broken)]) and not work.working
            bench.connection.close()
            self.assertEqual(verify(bench.path).faults, ())
            bench.reopen()
            bench.run(rules)
            bench.append(5)
            bench.connection.close()
            found = verify(bench.path)
            self.assertEqual((found.faults, found.entries, found.head), ((), 30, 130), broken)
            if ended:
                break
        self.assertTrue(ended)

    def test_an_error_ends_the_pass_and_a_later_one_goes_on(self) -> None:
        bench = self.bench
        bench.append(100)
        bench.append(5)
        bench.now += 3 * HOUR_US
        work = bench.work(Retention(entries=HOUR))
        work.step()
        bench.connection.execute("PRAGMA query_only = ON")
        with self.assertRaises(sqlite3.Error):
            work.step()
        self.assertFalse(work.working)
        bench.connection.execute("PRAGMA query_only = OFF")
        self.assertFalse(work.due(idle=True))
        bench.seconds += PASS_SECONDS
        self.assertTrue(work.due(idle=True))
        while work.step():
            pass
        self.assertEqual(bench.column("SELECT sum(rows) FROM segments"), [0])

    def test_thinning_keeps_what_is_severe_and_its_text(self) -> None:
        """By severity: ids, seqs and words stay, the lesser entries go."""
        bench = self.bench
        bench.append(60, message="hay")
        bench.append(40, message="needle", severity="err")
        bench.now += 3 * HOUR_US
        bench.append(10)
        rules = Retention(lesser=((4, HOUR),))
        bench.run(rules)
        rows = bench.connection.execute(
            "SELECT number, state, first_id, last_id, rows, kept_severity FROM segments"
            " ORDER BY first_id"
        ).fetchall()
        self.assertEqual(rows, [(3, "closed", 1, 100, 40, 4), (2, "open", 101, 110, 10, None)])
        text = "SELECT count(*) FROM fts_000003 WHERE fts_000003 MATCH 'needle'"
        self.assertEqual(bench.column(text), [40])
        self.assertEqual(bench.column("SELECT min(id) FROM logs_000003"), [61])
        bench.run(rules)
        self.assertEqual(len(bench.column("SELECT number FROM segments")), 2)

    def test_samples_and_records_have_their_own_times(self) -> None:
        bench = self.bench
        bench.metrics.store(HOST, bench.now, [Sample("old", 1.0), Sample("new", 1.0)], bench.now)
        bench.connection.execute("INSERT INTO acts VALUES (1, ?, '', '', '', '{}')", (bench.now,))
        bench.connection.execute(
            "INSERT INTO gaps (host, first, last, detected_at) VALUES (1, 1, 2, ?)", (bench.now,)
        )
        bench.now += 3 * HOUR_US
        bench.metrics.store(HOST, bench.now, [Sample("new", 2.0)], bench.now)
        bench.run(Retention(metrics=HOUR, acts=2 * HOUR, gaps=None))
        self.assertEqual(bench.column("SELECT name FROM metric_series"), ["new"])
        self.assertEqual(bench.column("SELECT value FROM metric_points"), [2.0])
        self.assertEqual(bench.column("SELECT count(*) FROM acts"), [0])
        self.assertEqual(bench.column("SELECT count(*) FROM gaps"), [1])
        stored = bench.metrics.store(HOST, bench.now, [Sample("old", 3.0)], bench.now)
        self.assertEqual(stored.accepted, 1)
        self.assertEqual(bench.column("SELECT count(*) FROM metric_series"), [2])

    def test_samples_go_by_when_they_came(self) -> None:
        """F24: one from a host whose clock is years ahead goes as the others do, and one from
        a host whose clock is behind stays as long."""
        bench = self.bench
        for ts in (NOON_US + 1000 * DAY, NOON_US - 1000 * DAY):
            bench.metrics.store(HOST, ts, [Sample("load", 1.0)], bench.now)
        bench.run(Retention(metrics=HOUR))
        self.assertEqual(bench.column("SELECT count(*) FROM metric_points"), [2])
        bench.now += 3 * HOUR_US
        bench.metrics.store(HOST, NOON_US + 2000 * DAY, [Sample("load", 1.0)], bench.now)
        bench.run(Retention(metrics=HOUR))
        self.assertEqual(bench.column("SELECT ts FROM metric_points"), [NOON_US + 2000 * DAY])
        self.assertEqual(bench.column("SELECT count(*) FROM metric_series"), [1])

    def test_a_segment_ends_at_its_bytes_within_one_append_too(self) -> None:
        """However much comes in one transaction, no segment is much larger than the limit, and
        each knows its own entries' times."""
        bench = self.bench
        bench.segments.limits = SegmentLimits(bytes=10_000)
        batches = [
            replace(batch(HOST, [entry(n, message="x" * 4000)], NOON_US + n), size=4200)
            for n in range(1, 11)
        ]
        bench.segments.append(batches)
        found = bench.connection.execute(
            "SELECT rows, first_id, last_id, last_received - ?, bytes FROM segments ORDER BY 2",
            (NOON_US,),
        ).fetchall()
        self.assertEqual([row[:4] for row in found], [
            (3, 1, 3, 3), (3, 4, 6, 6), (3, 7, 9, 9), (1, 10, 10, 10),
        ])  # fmt: skip
        self.assertEqual(found[0][4], 12_600)
        self.assertEqual(bench.segments.backlog, 10)
        while bench.segments.index_chunk():
            pass
        self.assertEqual(bench.segments.backlog, 0)
        bench.connection.close()
        self.assertEqual(verify(bench.path).faults, ())
        bench.connection = open_writer(bench.path, NOON_US)

    def test_the_bound_of_size_comes_first(self) -> None:
        """An append may make a pass begin, or come between its slices; what is being thinned
        when it has to go, goes."""
        bench = self.bench
        for _ in range(3):
            bench.append(100, message="x" * 6000)
        bench.now += 3 * HOUR_US
        bench.append(100, message="x" * 6000)
        bench.append(1)
        rules = Retention(max_bytes=16 * MIB, lesser=((3, HOUR),), keep_free=0)
        work = bench.work(rules)
        self.assertFalse(work.due(idle=True))
        work.step()
        bench.seconds = PASS_SECONDS - 1
        self.assertTrue(work.working)
        for _ in range(4):
            work.step()
        work.retention = replace(rules, max_bytes=2 * MIB)
        self.assertTrue(work.pressing and work.due(idle=False))
        while work.working:
            work.step()
        (first,) = bench.column("SELECT min(first_id) FROM segments WHERE rows > 0")
        self.assertGreater(first, 200)
        (pages,), (free,) = bench.column("PRAGMA page_count"), bench.column("PRAGMA freelist_count")
        self.assertLess((pages - free) * 4096, 2 * MIB)
        self.assertFalse(work.due(idle=False))
        for _ in range(4):
            bench.append(100, message="x" * 6000)
        self.assertTrue(work.due(idle=False), "at once, not with the next pass")
        bench.connection.close()
        self.assertEqual(verify(bench.path).faults, ())
        bench.connection = open_writer(bench.path, NOON_US)

    def test_a_new_bound_keeps_the_newest_entries_of_one_segment(self) -> None:
        """The one that is written to included: it is copied in part, and writing goes on."""
        bench = Bench(self.mktemp(), rows=10_000)
        bench.append(1500, message="some words " * 600)
        (before,) = bench.column("PRAGMA page_count")
        self.assertGreater(before * 4096, 10 * MIB)
        bench.run(Retention(max_bytes=3 * MIB, keep_free=0))
        (rows,), (after,) = bench.column("SELECT sum(rows) FROM segments"), bench.column(
            "PRAGMA page_count"
        )  # fmt: skip
        self.assertGreater(rows, 100)
        self.assertLess(after * 4096, 3 * MIB)
        bench.append(1)
        self.assertEqual(bench.segments.head, 1501)
        (text,) = bench.column("SELECT number FROM segments WHERE rows > 1")
        words = f"SELECT count(*) FROM fts_{text:06d} WHERE fts_{text:06d} MATCH 'words'"
        self.assertEqual(bench.column(words), [rows])
        bench.connection.close()
        self.assertEqual(verify(bench.path).faults, ())

    def test_where_nothing_more_can_go_it_is_said_and_left_alone(self) -> None:
        """Not every append begins another pass in vain."""
        bench = self.bench
        bench.append(20)
        bench.metrics.store(HOST, NOON_US, [Sample(f"s{n}", 1.0) for n in range(1500)], NOON_US)
        work = bench.work(Retention(max_bytes=65_536, keep_free=0))
        work.step()
        while work.working:
            work.step()
        self.assertGreater(work.excess, 0)
        self.assertEqual(bench.column("SELECT sum(rows) FROM segments"), [20])
        bench.append(1)
        self.assertFalse(work.due(idle=False))

    def test_a_forgotten_host_goes_with_the_last_that_points_to_it(self) -> None:
        bench = self.bench
        bench.append(10)
        bench.connection.execute("UPDATE hosts SET forgotten_at = 1")
        bench.run(Retention())
        self.assertEqual(bench.column("SELECT count(*) FROM hosts"), [1])
        bench.now += 3 * HOUR_US
        bench.run(Retention(entries=HOUR))
        self.assertEqual(bench.column("SELECT count(*) FROM hosts"), [0])
