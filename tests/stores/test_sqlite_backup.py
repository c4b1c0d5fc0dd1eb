"""Backup of a store in use, its restoration, the check of a file, and upgrades."""

from __future__ import annotations

import os
import sqlite3
import stat
from typing import Any

from twisted.internet.threads import deferToThread

from cortextx.errors import StoreClosed, StoreError
from cortextx.interfaces.fleet import EntryFilter
from cortextx.stores import sqlite_file
from cortextx.stores.sqlite import SqliteStore
from cortextx.stores.sqlite_backup import backup, restore, verify
from tests.stores.suite import HOST, run_of, seqs
from tests.stores.test_sqlite import OnDisk, exists, size_of, write


def damage(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * 2048)


class BackupTests(OnDisk):
    """A backup is one state of the store, and a store again."""

    async def filled(self, last: int = 2000) -> SqliteStore:
        store = await self.with_host()
        for first in range(1, last, 500):
            await store.append([run_of(first, first + 499)])
        return store

    async def test_a_backup_is_made_beside_appends_and_holds_one_state(self) -> None:
        store = await self.filled()
        target = self.mktemp()
        copying = deferToThread(backup, store.path, target)
        for first in range(2001, 4001, 100):
            await store.append([run_of(first, first + 99)])
        made = await copying
        self.assertEqual(made.size, size_of(target))
        self.assertEqual(stat.S_IMODE(os.stat(target).st_mode), 0o600)
        found = verify(target)
        self.assertEqual((found.faults, found.entries), ((), made.entries))
        self.assertGreaterEqual(found.entries, 2000)
        self.assertEqual(found.head, found.entries)
        self.assertFalse(exists(target + "-wal") or exists(target + ".partial"))

    async def test_a_store_backs_up_and_checks_itself(self) -> None:
        store = await self.filled(1000)
        target = self.mktemp()
        made = await store.backup(target)
        self.assertEqual((made.entries, made.hosts, made.head), (1000, 1, 1000))
        self.assertTrue((await store.verify()).sound)
        await self.fails(StoreError, store.backup(target))

    async def test_stopping_gives_up_what_is_long(self) -> None:
        """The store is closed only after its backup has ended."""
        store = await self.filled()
        target = self.mktemp()
        answers: list[object] = []
        store.backup(target).addBoth(answers.append)
        await store.stop()
        self.assertEqual(len(answers), 1)
        self.assertFalse(exists(target + ".partial"))
        await self.fails(StoreClosed, store.backup(target))
        await self.fails(StoreClosed, store.verify())

    async def test_a_check_can_be_given_up(self) -> None:
        store = await self.filled()
        with self.assertRaises(StoreError):
            verify(store.path, carry_on=lambda: False)

    async def test_a_backup_that_is_given_up_leaves_nothing(self) -> None:
        store = await self.filled()
        target = self.mktemp()
        with self.assertRaises(StoreError):
            backup(store.path, target, lambda done: False)
        self.assertFalse(exists(target) or exists(target + ".partial"))

    async def test_nothing_is_overwritten(self) -> None:
        store = await self.filled(500)
        target = self.mktemp()
        write(target, b"mine")
        with self.assertRaises(StoreError):
            backup(store.path, target)
        self.assertEqual(size_of(target), 4)

    async def test_a_restored_store_goes_on_from_the_backup(self) -> None:
        """F26: what came after it is sent again or noted as a gap; the old file is kept."""
        store = await self.filled(1000)
        target, aside = self.mktemp(), self.mktemp()
        backup(store.path, target)
        await store.append([run_of(1001, 1500)])
        await store.stop()
        restore(target, store.path, aside)
        again = await self.open(store.path)
        (row,) = await again.find(HOST)
        self.assertEqual((row.accepted_seq, await again.head()), (1000, 1000))
        (answer,) = await again.append([run_of(1501, 1501)])
        self.assertEqual(answer.gap, (1001, 1500))
        page = await again.search(EntryFilter(text="message"), 2)
        self.assertEqual(seqs(page.entries), [1501, 1000])
        self.assertEqual(verify(aside).entries, 1500)

    async def test_a_damaged_backup_replaces_nothing(self) -> None:
        store = await self.filled()
        target = self.mktemp()
        backup(store.path, target)
        await store.stop()
        damage(target, size_of(target) // 2)
        found = verify(target)
        self.assertFalse(found.sound)
        before = size_of(store.path)
        with self.assertRaises(StoreError):
            restore(target, store.path, self.mktemp())
        self.assertEqual(size_of(store.path), before)
        self.assertTrue(verify(store.path).sound)

    async def test_what_our_tables_say_of_one_another_is_checked(self) -> None:
        store = await self.filled(1000)
        await store.stop()
        for sql, words in (
            ("UPDATE segments SET rows = rows + 1", "entries where"),
            ("UPDATE segments SET rows = rows - 1, last_id = 999", "outside"),
            ("UPDATE hosts SET accepted_seq = 10", "above its accepted_seq"),
        ):
            connection = sqlite3.connect(store.path)
            connection.execute(sql)
            connection.commit()
            connection.close()
            self.assertIn(words, " ".join(verify(store.path, deep=False).faults))

    async def test_what_is_no_database_of_ours_is_an_error(self) -> None:
        text = self.mktemp()
        write(text, b"no database" * 500)
        self.assertFalse(verify(text).sound)
        connection = sqlite3.connect(self.mktemp())
        connection.close()
        for path in (self.mktemp(), "/proc/nowhere"):
            with self.assertRaises(StoreError):
                verify(path)


class UpgradeTests(OnDisk):
    """A database of schema 1 becomes one of today, with all that is in it."""

    async def test_from_schema_1(self) -> None:
        path = self.mktemp()
        steps = sqlite_file.upgrades()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
        connection.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at)")
        connection.executescript(steps[1])
        for statement in sqlite_file.segment_layout(1, 1):
            connection.execute(statement)
        self.fill(connection)
        connection.close()
        store = await self.open(path)
        (gap,) = await store.gaps(HOST)
        self.assertEqual((gap.first, gap.last, gap.detected_at, gap.cause), (1, 2, 9, None))
        (answer,) = await store.append([run_of(4, 5)])
        self.assertEqual((answer.up_to_seq, answer.gap), (5, None))
        page = await store.search(EntryFilter(text="message"), 9, newest_first=False)
        self.assertEqual(seqs(page.entries), [3, 4, 5])
        await store.stop()
        self.assertEqual(verify(path).version, max(steps))

    def fill(self, connection: sqlite3.Connection) -> None:
        """One host, one entry, one gap, as the first program would have left them."""

        def run(sql: str, *values: Any) -> None:
            connection.execute(sql, values)

        run("INSERT INTO schema_version VALUES (1, 1)")
        run(
            "INSERT INTO hosts (name, host_id, state, created_at, accepted_seq)"
            " VALUES ('alpha', ?, 'active', 1, 3)",
            HOST,
        )
        run("INSERT INTO gaps (host, first, last, detected_at) VALUES (1, 1, 2, 9)")
        run("INSERT INTO segments VALUES (1, 1, 'open', 20000, 1, 1, 1, 3000, 3000, 0)")
        run(
            "INSERT INTO logs_000001 VALUES"
            " (1, 1, 3, 3000, 0, 3000, 6, NULL, NULL, NULL, 'message 3', 'journald', NULL)"
        )
