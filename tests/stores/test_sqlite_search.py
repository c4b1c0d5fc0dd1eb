"""Segments and searching, without threads: the same answers as the reference store.

The reference looks at every entry; here segments, indexed and unindexed rows,
rare and common words, walks by time and by host take different ways, whose
bounds are made small so that a few dozen entries go through all of them.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.interfaces.fleet import EntryFilter, LogBatch, StoredEntry
from cortextx.stores import sqlite_hits, sqlite_search
from cortextx.stores.memory import MemoryStore
from cortextx.stores.sqlite_file import open_reader, open_writer
from cortextx.stores.sqlite_hosts import HostTable
from cortextx.stores.sqlite_rows import COARSE, MOST_ROWS, statement_sizes
from cortextx.stores.sqlite_search import Reader
from cortextx.stores.sqlite_segments import DAY, SegmentLimits, SegmentTables
from tests.stores.suite import HOST, NOON_US, OTHER, batch, entry, run_of, seqs

SEARCHES = st.builds(
    EntryFilter,
    text=st.sampled_from(
        ["", "", "a", "b", "a b", '"a b"', "rare", "a rare", "***", "a ***", "B", "nowhere", "é"]
    ),
    hosts=st.sampled_from([(), (), ("alpha",), (OTHER,), ("alpha", "beta")]),
    apps=st.sampled_from([(), (), (), ("sshd",), ("sshd", "cron")]),
    sources=st.sampled_from([(), (), (), ("journald",), ("file:*",), ("file:/x", "journald")]),
    severity_max=st.sampled_from([None, None, None, 3, 4, 6]),
    since=st.sampled_from([None, None, NOON_US + 5_000_000]),
    until=st.sampled_from([None, None, NOON_US + 12_000_000]),
)
ENTRIES = st.fixed_dictionaries(
    {
        "second": st.integers(0, 20),
        "message": st.sampled_from(
            ["a", "a b", "b a", "a x b", "c", "A B", "a *** b", "x-a-b", "rare a", "é a"]
        ),
        "app_name": st.sampled_from([None, "sshd", "cron"]),
        "source": st.sampled_from(["journald", "file:/x", "file:/y"]),
        "severity": st.sampled_from(["err", "warning", "info", "debug"]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.just("index"),
        st.tuples(st.sampled_from([HOST, OTHER]), st.lists(ENTRIES, min_size=1, max_size=9)),
    ),
    min_size=1,
    max_size=12,
)


class Direct:
    """A store's tables and a reader of them, on this thread."""

    def __init__(self, path: str, limits: SegmentLimits | None = None) -> None:
        self.connection = open_writer(path, NOON_US)
        self.limits = limits or SegmentLimits()
        self.segments = SegmentTables(self.connection, lambda: 0.0, self.limits)
        self.hosts = HostTable(self.connection, self.segments.host_changed)
        self.reader_connection = open_reader(path)
        self.reader = Reader(self.reader_connection)

    def reload(self) -> None:
        self.segments = SegmentTables(self.connection, lambda: 0.0, self.limits)

    def enrol(self) -> None:
        self.hosts.issue("alpha", HOST, b"a" * 32, NOON_US, NOON_US)
        self.hosts.issue("beta", OTHER, b"b" * 32, NOON_US, NOON_US)

    def index_all(self) -> None:
        while self.segments.index_chunk():
            pass

    def rows(self, sql: str) -> list[Any]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.reader_connection.close()
        self.connection.close()


class DirectCase(SynchronousTestCase):
    def direct(self, limits: SegmentLimits | None = None) -> Direct:
        store = Direct(self.mktemp(), limits)
        self.addCleanup(store.close)
        store.enrol()
        return store


class SameAsTheReferenceTests(DirectCase):
    """Whatever is stored, indexed or not, is found as the reference store finds it."""

    def setUp(self) -> None:
        self.patch(sqlite_hits, "FEW", 3)
        self.patch(sqlite_hits, "FIRST_PIECE", 2)
        self.patch(sqlite_hits, "LAST_PIECE", 8)
        self.patch(sqlite_hits, "HOST_STREAMS", 1)
        self.patch(sqlite_search, "TAIL_WINDOW", 4)

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        steps=STEPS,
        chunk=st.integers(1, 12),
        searches=st.lists(SEARCHES, min_size=1, max_size=6),
        limit=st.sampled_from([1, 2, 5, 50]),
        newest_first=st.booleans(),
    )
    def test_searches_and_tails(
        self, steps: Any, chunk: int, searches: Any, limit: int, newest_first: bool
    ) -> None:
        store = self.direct(SegmentLimits(rows=10, daily=False))
        reference = MemoryStore()
        for name, host in (("alpha", HOST), ("beta", OTHER)):
            self.successResultOf(reference.issue(name, host, b"", 0, 0))
        marks = {HOST: 0, OTHER: 0}
        for step in steps:
            if step == "index":
                store.segments._chunk = chunk
                store.segments.index_chunk()
                continue
            host, made = step
            given = [_entry(marks[host] + n, members) for n, members in enumerate(made, 1)]
            marks[host] += len(given)
            answers = store.segments.append([batch(host, given)])
            self.assertEqual(answers, self.successResultOf(reference.append([batch(host, given)])))
        for which in searches:
            expected = _all_pages(
                lambda cursor, which=which: self.successResultOf(
                    reference.search(which, limit, newest_first, cursor)
                )
            )
            found = _all_pages(
                lambda cursor, which=which: store.reader.search(which, limit, newest_first, cursor)
            )
            self.assertEqual(found, expected, which)
            tailed: list[StoredEntry] = []
            after = 0
            while after < store.segments.head:
                page = store.reader.tail(which, after, limit)
                tailed += page.entries
                self.assertGreater(page.cursor, after)
                after = page.cursor
            self.assertEqual(tailed, sorted(expected, key=lambda stored: stored.id), which)
        store.close()


def _entry(seq: int, members: dict[str, Any]) -> Any:
    given = dict(members)
    ts = datetime(2026, 5, 16, 12, tzinfo=UTC) + timedelta(seconds=given.pop("second"))
    return entry(seq, ts=ts, **given)


def _all_pages(ask: Any) -> list[StoredEntry]:
    found: list[StoredEntry] = []
    cursor = None
    while True:
        page = ask(cursor)
        found += page.entries
        cursor = page.cursor
        if cursor is None:
            return found


class SegmentTests(DirectCase):
    """Where segments begin and end."""

    def numbers(self, store: Direct) -> list[tuple[int, str, int, int, int]]:
        return store.rows("SELECT number, state, first_id, last_id, rows FROM segments")

    def test_a_segment_ends_with_its_rows(self) -> None:
        store = self.direct(SegmentLimits(rows=10))
        for first in (1, 6, 11, 16):
            store.segments.append([run_of(first, first + 4)])
        self.assertEqual(self.numbers(store), [(1, "closed", 1, 10, 10), (2, "open", 11, 20, 10)])

    def test_a_segment_ends_with_the_day_of_arrival(self) -> None:
        """Not with the day of the entries, which may be any."""
        store = self.direct()
        for seq, at in ((1, NOON_US), (2, NOON_US + DAY // 3), (3, NOON_US + DAY // 2)):
            store.segments.append([batch(HOST, [entry(seq)], at)])
        self.assertEqual([row[4] for row in self.numbers(store)], [2, 1])

    def test_a_clock_that_steps_back_opens_no_segment(self) -> None:
        """A46."""
        store = self.direct()
        for seq, at in ((1, NOON_US), (2, NOON_US - 3 * DAY), (3, NOON_US)):
            store.segments.append([batch(HOST, [entry(seq)], at)])
        self.assertEqual(len(self.numbers(store)), 1)

    def test_the_range_of_time_is_that_of_the_entries(self) -> None:
        store = self.direct()
        store.segments.append([run_of(5, 9)])
        store.segments.append([run_of(1, 2, OTHER)])
        second = 1_000_000
        self.assertEqual(
            store.rows("SELECT min_ts, max_ts FROM segments"),
            [(NOON_US + second, NOON_US + 9 * second)],
        )

    def test_ids_are_never_used_twice(self) -> None:
        """A64: also when an append failed, and after a restart."""
        store = self.direct()
        store.segments.append([run_of(1, 3)])
        with self.assertRaises(KeyError):
            store.segments.append([batch(HOST, [entry(4), entry(5, severity="no")])])
        store.reload()
        store.segments.append([run_of(4, 5)])
        page = store.reader.tail(EntryFilter(), 0, 9)
        self.assertEqual([(e.id, e.seq) for e in page.entries], [(n, n) for n in range(1, 6)])

    def test_duplicates_alone_write_nothing(self) -> None:
        """F11."""
        store = self.direct()
        store.segments.append([run_of(1, 3)])
        before = self.numbers(store)
        (answer,) = store.segments.append([run_of(1, 3)])
        self.assertEqual((answer.up_to_seq, answer.stored, before), (3, 0, self.numbers(store)))

    def test_host_and_seq_are_unique(self) -> None:
        """A fault of ours that stored an entry twice would be caught by the database."""
        store = self.direct()
        store.segments.append([run_of(1, 3)])
        store.rows("UPDATE hosts SET accepted_seq = 0")
        store.segments.host_changed(HOST)
        with self.assertRaises(sqlite3.IntegrityError):
            store.segments.append([run_of(1, 3)])
        self.assertEqual(self.numbers(store)[0][4], 3)


class IndexTests(DirectCase):
    """The full-text index and what is not in it yet (F38)."""

    def test_what_is_not_indexed_is_found(self) -> None:
        store = self.direct()
        store.segments.append(
            [batch(HOST, [entry(1, "Straße überall"), entry(2, "10.0.0.1 down")])]
        )
        for text, expected in (("strasse", []), ("UBERALL", [1]), ("10.0.0.1", [2]), ("0.1", [2])):
            for indexed in ("before", "after"):
                if indexed == "after":
                    store.index_all()
                page = store.reader.search(EntryFilter(text=text), 9, False, None)
                self.assertEqual(seqs(page.entries), expected, (text, indexed))

    def test_indexing_goes_on_where_it_was_after_a_restart(self) -> None:
        store = self.direct(SegmentLimits(rows=10))
        for first in (1, 11, 21):
            store.segments.append([run_of(first, first + 9)])
        store.segments._chunk = 7
        store.segments.index_chunk()
        self.assertEqual(store.segments.backlog, 23)
        store.reload()
        self.assertEqual(store.segments.backlog, 23)
        store.index_all()
        self.assertEqual(store.segments.backlog, 0)
        self.assertEqual(
            store.rows("SELECT number, last_id = indexed_to FROM segments"),
            [(1, 1), (2, 1), (3, 1)],
        )
        for number in (1, 2, 3):
            store.rows(
                f"INSERT INTO fts_{number:06d} (fts_{number:06d}, rank) VALUES"
                " ('integrity-check', 1)"
            )

    def test_merging_comes_to_an_end_and_loses_nothing(self) -> None:
        store = self.direct()
        for seq in range(1, 41):
            store.segments.append([run_of(seq, seq)])
            store.index_all()
        self.assertTrue(store.segments.merge_due(idle=True))
        self.assertFalse(store.segments.merge_due(idle=False))
        for _ in range(100):
            if not store.segments.merge_due(idle=True):
                break
            store.segments.merge_step()
        self.assertFalse(store.segments.merge_due(idle=True))
        page = store.reader.search(EntryFilter(text="message"), 99, False, None)
        self.assertEqual(seqs(page.entries), list(range(1, 41)))


class RowTests(DirectCase):
    """How entries become rows."""

    def test_nul_is_stored_as_a_replacement_character(self) -> None:
        """F16: in every text, and in metadata, where it is an escape."""
        store = self.direct()
        made = entry(
            1,
            "a\0b",
            facility="\0",
            app_name="x\0",
            process_id="\0y",
            metadata=Raw(rb'{"k":"\u0000","b":"\\u0000","c":"\\\u0000"}'),
        )
        store.segments.append([batch(HOST, [made])])
        (stored,) = store.reader.search(EntryFilter(), 9, True, None).entries
        self.assertEqual(
            (stored.message, stored.facility, stored.app_name, stored.process_id),
            ("a\ufffdb", "\ufffd", "x\ufffd", "\ufffdy"),
        )
        self.assertEqual(stored.metadata, '{"k":"\ufffd","b":"\\\\u0000","c":"\\\\\ufffd"}')

    def test_statements_have_few_sizes(self) -> None:
        """Large prepared statements are few; every number of rows is covered."""
        sizes: set[int] = set()
        for rows in range(0, 3 * MOST_ROWS, 7):
            made = list(statement_sizes(rows))
            self.assertEqual(sum(made), rows)
            sizes.update(size for size in made if size >= COARSE)
        self.assertLessEqual(len(sizes), MOST_ROWS // COARSE + 1)

    def test_batches_of_any_size_are_stored(self) -> None:
        store = self.direct()
        store.segments.append([run_of(1, 1), run_of(2, 130), run_of(131, 2399)])
        self.assertEqual(store.rows("SELECT count(*), max(seq) FROM logs_000001"), [(2399, 2399)])

    def test_a_batch_needs_no_list(self) -> None:
        """Entries may be any sequence; the store keeps no reference to it."""
        store = self.direct()
        store.segments.append([LogBatch(HOST, 1, (entry(1), entry(2)), NOON_US)])
        self.assertEqual(store.segments.head, 2)
