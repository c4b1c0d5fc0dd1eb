"""The SQLite store passes the suite of all stores, and keeps its own promises."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from cortextx.errors import BadQuery, SchemaTooNew, StoreClosed, StoreError, StoreFull
from cortextx.interfaces.fleet import EntryFilter, Presence
from cortextx.stores import sqlite_file
from cortextx.stores.sqlite import SqliteSettings, SqliteStore
from tests.stores.suite import (
    HASH,
    HOST,
    NOON_US,
    OTHER,
    LogStoreSuite,
    batch,
    entry,
    run_of,
    seqs,
)
from tests.stores.suite_records import RecordsSuite

DEFAULTS = SqliteSettings()


def exists(path: str) -> bool:
    return os.path.exists(path)


def size_of(path: str) -> int:
    return os.path.getsize(path)


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


class OnDisk(TestCase):
    """Makes stores on disk, with their real threads."""

    timeout = 20

    def open(self, path: str, settings: SqliteSettings = DEFAULTS) -> Deferred[SqliteStore]:
        store = SqliteStore(reactor, path, settings)
        self.addCleanup(store.stop)
        return store.start().addCallback(lambda _: store)

    async def with_host(self, settings: SqliteSettings = DEFAULTS) -> SqliteStore:
        store = await self.open(self.mktemp(), settings)
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        return store

    async def fails(self, error: type[Exception], call: Any) -> Exception:
        try:
            await call
        except error as raised:
            return raised
        raise AssertionError(f"{error.__name__} was not raised")


class SqliteStoreTests(LogStoreSuite, OnDisk):
    """The suite."""

    def make_store(self) -> Deferred[SqliteStore]:
        return self.open(self.mktemp() + "/store.db")


class SqliteRecordsTests(RecordsSuite, OnDisk):
    """The suite of what is kept beside logs."""

    def make_store(self) -> Deferred[SqliteStore]:
        return self.open(self.mktemp() + "/store.db")


class OpeningTests(OnDisk):
    """Opening and closing."""

    async def test_nothing_is_opened_before_start(self) -> None:
        path = self.mktemp()
        store = SqliteStore(reactor, path)
        await self.fails(StoreClosed, store.append([run_of(1, 1)]))
        await self.fails(StoreClosed, store.head())
        await store.stop()
        self.assertFalse(exists(path))

    async def test_only_the_owner_can_read_the_files(self) -> None:
        path = self.mktemp() + "/server/store.db"
        store = await self.open(path)
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        for name in (path, path + "-wal", path + "-shm"):
            self.assertEqual(stat.S_IMODE(os.stat(name).st_mode), 0o600, name)

    async def test_everything_is_there_after_a_restart(self) -> None:
        path = self.mktemp()
        store = await self.open(path)
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        await store.append([run_of(3, 9)])
        await store.stop()
        store = await self.open(path)
        self.assertEqual(await store.head(), 7)
        self.assertEqual([(gap.first, gap.last) for gap in await store.gaps()], [(1, 2)])
        (answer,) = await store.append([run_of(8, 10)])
        self.assertEqual((answer.up_to_seq, answer.stored), (10, 1))
        page = await store.search(EntryFilter(text="message"), 99, newest_first=False)
        self.assertEqual(seqs(page.entries), list(range(3, 11)))
        self.assertEqual([e.id for e in page.entries], list(range(1, 9)))

    async def test_a_closed_store_says_so(self) -> None:
        store = await self.with_host()
        await store.stop()
        await self.fails(StoreClosed, store.append([run_of(1, 1)]))
        await self.fails(StoreClosed, store.search(EntryFilter(), 1))
        await self.fails(StoreClosed, store.list_hosts())
        await self.fails(StoreClosed, store.head())
        await store.stop()

    async def test_stopping_finishes_what_was_asked_of_the_writer(self) -> None:
        """An append that was put is answered before the store is closed."""
        store = await self.with_host()
        answers: list[Any] = []
        appending = store.append([run_of(1, 50)]).addBoth(answers.append)
        await store.stop()
        await appending
        self.assertEqual(answers[0][0].up_to_seq, 50)

    async def test_a_newer_schema_is_refused_and_left_alone(self) -> None:
        path = self.mktemp()
        await (await self.open(path)).stop()
        with sqlite3.connect(path) as connection:
            connection.execute("INSERT INTO schema_version VALUES (999, 0)")
        connection.close()
        error = await self.fails(SchemaTooNew, SqliteStore(reactor, path).start())
        self.assertIn("999", str(error))

    async def test_an_older_schema_is_upgraded(self) -> None:
        """Every numbered file is applied once, in order, each in one transaction."""
        path = self.mktemp()
        store = await self.open(path)
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        await store.stop()
        real = sqlite_file.upgrades()
        last = max(real)
        more = real | {last + 1: "CREATE TABLE a (x);", last + 2: "CREATE TABLE b (x);"}
        self.patch(sqlite_file, "upgrades", lambda: more)
        store = await self.open(path)
        self.assertEqual(len(await store.find("alpha")), 1)
        await store.stop()
        connection = sqlite3.connect(path)
        versions = [v for (v,) in connection.execute("SELECT version FROM schema_version")]
        connection.execute("SELECT * FROM a, b")
        connection.close()
        self.assertEqual(versions, [*sorted(real), last + 1, last + 2])

    async def test_an_upgrade_that_fails_changes_nothing(self) -> None:
        path = self.mktemp()
        await (await self.open(path)).stop()
        real = sqlite_file.upgrades()
        broken = real | {max(real) + 1: "CREATE TABLE a (x); CREATE TABLE a (x);"}
        self.patch(sqlite_file, "upgrades", lambda: broken)
        await self.fails(StoreError, SqliteStore(reactor, path).start())
        connection = sqlite3.connect(path)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        connection.close()
        self.assertNotIn("a", tables)

    async def test_a_file_that_is_not_ours_is_refused_and_left_alone(self) -> None:
        text, foreign = self.mktemp(), self.mktemp()
        write(text, b"not a database at all" * 100)
        connection = sqlite3.connect(foreign)
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
        connection.close()
        for path in (text, foreign, "/proc/nowhere/store.db"):
            await self.fails(StoreError, SqliteStore(reactor, path).start())
        connection = sqlite3.connect(foreign)
        self.assertEqual(list(connection.execute("SELECT name FROM sqlite_master")), [("theirs",)])
        connection.close()

    async def test_what_cannot_be_changed_later_is_set_at_birth(self) -> None:
        """Without incremental vacuum, retention could never make the file smaller."""
        store = await self.with_host()
        connection = sqlite3.connect(store.path)
        vacuum = connection.execute("PRAGMA auto_vacuum").fetchone()
        mode = connection.execute("PRAGMA journal_mode").fetchone()
        connection.close()
        self.assertEqual((vacuum, mode), ((2,), ("wal",)))


class FailingTests(OnDisk):
    """What goes wrong leaves nothing behind."""

    async def test_a_full_store_stores_nothing_in_part_and_recovers(self) -> None:
        """StoreFull; accepted_seq stays with the entries; the same call succeeds later."""
        store = await self.with_host(SqliteSettings(max_bytes=600_000))
        stored = 0
        while True:
            wanted = [run_of(stored + 1, stored + 500)]
            try:
                await store.append(wanted)
            except StoreFull:
                break
            stored += 500
        self.assertGreater(stored, 0)
        self.assertEqual((await store.find(HOST))[0].accepted_seq, stored)
        self.assertEqual(await store.head(), stored)
        page = await store.search(EntryFilter(text="message"), 1)
        self.assertEqual(seqs(page.entries), [stored])
        await self.fails(StoreFull, store.append(wanted))
        await store._writer.put(
            lambda writer: writer._connection.execute("PRAGMA max_page_count = 100000") and None
        )
        (answer,) = await store.append(wanted)
        self.assertEqual((answer.up_to_seq, answer.stored), (stored + 500, 500))
        self.assertEqual(await store.head(), stored + 500)

    async def test_an_entry_that_cannot_be_stored_takes_nothing_with_it(self) -> None:
        """The batches beside it in the transaction are not stored either (ILogStore)."""
        store = await self.with_host()
        bad = batch(HOST, [entry(3), entry(4, severity="no such")])
        await self.fails(StoreError, store.append([run_of(1, 2), bad]))
        self.assertEqual((await store.search(EntryFilter(), 9)).entries, [])
        (answer,) = await store.append([run_of(1, 4)])
        self.assertEqual((answer.up_to_seq, answer.stored), (4, 4))
        self.assertEqual(await store.head(), 4)

    async def test_a_fault_in_a_decision_changes_no_row(self) -> None:
        store = await self.with_host()

        def decide(candidates: Any) -> Any:
            raise ZeroDivisionError

        await self.fails(ZeroDivisionError, store.judge(HOST, HASH, decide))
        await self.fails(ZeroDivisionError, store.update(HOST, decide))
        await store.seen([Presence(host_id=HOST, last_seen=9)])
        self.assertEqual((await store.find(HOST))[0].last_seen, 9)

    async def test_what_is_lost_in_all_cannot_overflow(self) -> None:
        """F31: gaps of a peer that jumps through all numbers must not break its row."""
        store = await self.with_host()
        await store.issue("beta", OTHER, b"o" * 32, NOON_US, NOON_US)
        top = 2**63 - 1
        await store.append([run_of(top, top)])
        await store.update(HOST, lambda row: replace(row, hostname="x"))
        row = (await store.find(HOST))[0]
        self.assertEqual((row.lost_entries, row.accepted_seq), (top - 1, top))


class ForgottenTests(OnDisk):
    """A forgotten host's entries stay."""

    async def test_what_a_forgotten_host_sent_is_still_found(self) -> None:
        store = await self.with_host()
        await store.append([run_of(2, 3)])
        await store.forget(HOST)
        for ref in ("alpha", HOST):
            page = await store.search(EntryFilter(hosts=(ref,)), 9)
            self.assertEqual([(e.host, e.host_id) for e in page.entries], [("alpha", HOST)] * 2)
        self.assertEqual(len(await store.gaps(HOST)), 1)

    async def test_the_same_id_may_come_back_and_starts_anew(self) -> None:
        store = await self.with_host()
        await store.append([run_of(1, 3)])
        await store.forget(HOST)
        row = await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        self.assertEqual(row.accepted_seq, 0)
        (answer,) = await store.append([run_of(1, 2)])
        self.assertEqual(answer.stored, 2)
        page = await store.search(EntryFilter(hosts=(HOST,)), 9)
        self.assertEqual(len(page.entries), 5)


class AskingTests(OnDisk):
    """Questions that are no good, or too much."""

    async def test_questions_that_no_store_can_answer_are_bad_queries(self) -> None:
        store = await self.with_host()
        for which in (
            EntryFilter(text="\ud800"),
            EntryFilter(hosts=("\ud800",)),
            EntryFilter(apps=("\ud800",)),
            EntryFilter(sources=("\ud800",)),
            EntryFilter(text="x" * 5000),
        ):
            await self.fails(BadQuery, store.search(which, 1))
            await self.fails(BadQuery, store.tail(which, 0, 1))
        await self.fails(BadQuery, store.search(EntryFilter(), 0))
        await store.search(EntryFilter(since=-(2**70), until=2**70, severity_max=2**70), 1)

    async def test_a_long_text_of_many_words_is_searched(self) -> None:
        """A62."""
        store = await self.with_host()
        words = [f"w{number}" for number in range(190)]
        await store.append([batch(HOST, [entry(1, " ".join(words)), entry(2, "w1 w2")])])
        page = await store.search(EntryFilter(text=" ".join(words)), 9)
        self.assertEqual(seqs(page.entries), [1])

    async def test_a_cursor_from_beyond_the_head_starts_at_the_head(self) -> None:
        """A64: the tail of a store that was restored from a backup goes on."""
        store = await self.with_host()
        await store.append([run_of(1, 3)])
        page = await store.tail(EntryFilter(), 1000, 9)
        self.assertEqual((list(page.entries), page.cursor), ([], 3))

    async def test_a_gap_from_a_hello_is_known_after_a_restart(self) -> None:
        """F26: what is pushed of it then is still taken from it."""
        store = await self.with_host()
        await store.append([run_of(1, 3)])
        await store.restored(HOST, 9, NOON_US)
        await store.stop()
        again = await self.open(store.path)
        await again.append([run_of(4, 6)])
        await again.append([run_of(10, 10)])
        found = [(gap.first, gap.last) for gap in await again.gaps(HOST)]
        self.assertEqual(found, [(7, 9)])

    async def test_a_page_of_huge_entries_ends_early_and_goes_on(self) -> None:
        store = await self.with_host()
        await store.append([batch(HOST, [entry(n, "x" * 60_000) for n in range(1, 301)])])
        got: list[int] = []
        cursor = None
        while True:
            page = await store.search(EntryFilter(), 1000, False, cursor)
            got += seqs(page.entries)
            self.assertLess(len(page.entries), 250)
            cursor = page.cursor
            if cursor is None:
                break
        self.assertEqual(got, list(range(1, 301)))
        tailed: list[int] = []
        after = 0
        while after < 300:
            part = await store.tail(EntryFilter(), after, 1000)
            tailed += seqs(part.entries)
            after = part.cursor
        self.assertEqual(tailed, got)
