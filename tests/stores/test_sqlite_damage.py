"""A database file with inverted bytes: what can be read is, the rest is counted."""

from __future__ import annotations

import os
import random
import sqlite3

from twisted.internet import reactor
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.errors import UnknownEntry
from cortextx.interfaces.fleet import EntryFilter, StoredEntry
from cortextx.stores.sqlite import SqliteStore
from cortextx.stores.sqlite_backup import CopyDamaged, backup, verify
from cortextx.stores.sqlite_damage import Damage, is_damage
from cortextx.stores.sqlite_file import open_reader, open_writer
from cortextx.stores.sqlite_hosts import HostTable
from cortextx.stores.sqlite_search import Reader
from cortextx.stores.sqlite_segments import SegmentLimits, SegmentTables
from tests.stores.suite import HASH, HOST, NOON_US, batch, entry

COUNT = 1000
MARK = "the entry number "


def message(seq: int) -> str:
    return f"{MARK}{seq:06d} " + "which says some words " * 5


def make(path: str, indexed: bool = True) -> None:
    """A store of COUNT entries that was stopped cleanly."""
    connection = open_writer(path, NOON_US)
    segments = SegmentTables(connection, lambda: 0.0, SegmentLimits())
    hosts = HostTable(connection, segments.host_changed)
    hosts.issue("alpha", HOST, HASH, NOON_US, NOON_US)
    made = [entry(seq, message=message(seq)) for seq in range(1, COUNT + 1)]
    segments.append([batch(HOST, made)])
    while indexed and segments.index_chunk():
        pass
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def invert(path: str, at: int, count: int = 40) -> None:
    """Invert bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        data = file.read(count)
        file.seek(at)
        file.write(bytes(255 - byte for byte in data))


def place_of(path: str, text: str) -> int:
    """Where a text stands in the file, for the first time."""
    with open(path, "rb") as file:
        return file.read().index(text.encode())


def tail(reader: Reader, which: EntryFilter, limit: int) -> list[StoredEntry]:
    """All that tailing brings; it must come to the end."""
    found: list[StoredEntry] = []
    at = 0
    while at < COUNT:
        page = reader.tail(which, at, limit)
        assert page.cursor > at
        found, at = found + list(page.entries), page.cursor
    return found


def search(reader: Reader, which: EntryFilter, limit: int, newest_first: bool) -> list[StoredEntry]:
    """All pages of a search."""
    found: list[StoredEntry] = []
    cursor = None
    for _ in range(3 * COUNT):
        page = reader.search(which, limit, newest_first, cursor)
        found, cursor = found + list(page.entries), page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


class Damaged(SynchronousTestCase):
    def open(self, path: str) -> tuple[Reader, Damage]:
        damage = Damage()
        connection = open_reader(path)
        self.addCleanup(connection.close)
        return Reader(connection, damage), damage

    def test_a_damaged_text(self) -> None:
        """An entry whose text is no UTF-8 is shown with replacement characters, wherever it
        stands in a page, and all others as they are; it is counted once, and logged once."""
        path = self.mktemp()
        make(path)
        invert(path, place_of(path, message(500)) + 30)
        reader, damage = self.open(path)
        with capturedLogs() as logs:
            for limit in (1, 7, 1000):
                found = tail(reader, EntryFilter(), limit)
                self.assertEqual([one.seq for one in found], list(range(1, COUNT + 1)))
                wrong = [one.seq for one in found if one.message != message(one.seq)]
                self.assertEqual(wrong, [500])
            self.assertIn("\ufffd", found[499].message)
            for newest_first in (True, False):
                found = search(reader, EntryFilter(), 100, newest_first)
                self.assertEqual(len(found), COUNT)
        self.assertEqual(damage.rows, 1)
        self.assertEqual(len([one for one in logs if "is damaged" in one["log_format"]]), 1)
        self.assertEqual(len(reader.context(500, 3, 3, False)), 7)

    def test_a_backup_of_a_damaged_store_fails(self) -> None:
        """It says which segment is damaged; the copy is kept, under a name that tells."""
        for number, at in enumerate((0, 1)):
            path, target = self.mktemp(), self.mktemp()
            make(path)
            if at:
                [page, *_] = self.pages(path, 13, "logs_000001")
                invert(path, (page - 1) * 4096, 100)
            else:
                invert(path, place_of(path, message(500)) + 30)
            error = self.assertRaises(CopyDamaged, backup, path, target)
            said = " ".join(error.faults)
            self.assertIn(("segment 1: 1 entries are damaged", "logs_000001")[number], said)
            self.assertIn(error.kept, str(error))
            self.assertEqual(error.kept, target + ".damaged")
            self.assertTrue(os.path.exists(error.kept))
            self.assertFalse(os.path.exists(target) or os.path.exists(target + ".partial"))

    def pages(self, path: str, kind: int, owner: str) -> list[int]:
        """The numbers of the pages of a table or index that are of a kind."""
        connection = sqlite3.connect(path)
        try:
            [(root,)] = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = ?", (owner,)
            )
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        finally:
            connection.close()
        with open(path, "rb") as file:
            data = file.read()
        first = (root - 1) * size
        if data[first] == kind:
            return [root]
        cells = int.from_bytes(data[first + 3 : first + 5], "big")
        found = []
        for cell in range(cells):
            at = first + 12 + 2 * cell
            place = first + int.from_bytes(data[at : at + 2], "big")
            found.append(int.from_bytes(data[place : place + 4], "big"))
        return [page for page in found if data[(page - 1) * size] == kind]

    def test_a_damaged_page(self) -> None:
        """Entries on a page that cannot be read are left out, and only those."""
        for indexed in (True, False):
            path = self.mktemp()
            make(path, indexed)
            page = self.pages(path, 13, "logs_000001")[5]
            invert(path, (page - 1) * 4096, 12)
            reader, damage = self.open(path)
            text = EntryFilter(text="words")
            for which in (EntryFilter(), text, EntryFilter(hosts=(HOST,))):
                for found in (
                    tail(reader, which, 100),
                    search(reader, which, 100, True),
                    search(reader, which, 100, False)[::-1],
                ):
                    seqs = sorted(one.seq for one in found)
                    lost = set(range(1, COUNT + 1)) - set(seqs)
                    self.assertEqual(len(seqs), len(set(seqs)))
                    self.assertTrue(0 < len(lost) < 40, lost)
                    self.assertEqual(max(lost) - min(lost) + 1, len(lost))
                    self.assertEqual(damage.rows, len(lost))

    def test_a_check_finds_it(self) -> None:
        """A deep check of the file finds texts that are damaged; a sound file has none."""
        path = self.mktemp()
        make(path)
        self.assertEqual(verify(path).faults, ())
        invert(path, place_of(path, message(500)) + 30)
        self.assertEqual(verify(path).faults, ("segment 1: 1 entries are damaged",))

    def test_dropped_entries_are_no_damage(self) -> None:
        """Entries that retention dropped out of a segment are not counted, nor missed."""
        path = self.mktemp()
        make(path)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("DELETE FROM logs_000001 WHERE id % 3 = 1")
        connection.close()
        reader, damage = self.open(path)
        left = [seq for seq in range(1, COUNT + 1) if seq % 3 != 1]
        for which in (EntryFilter(), EntryFilter(hosts=(HOST,))):
            for limit in (10, 1000):
                self.assertEqual([one.seq for one in tail(reader, which, limit)], left)
        self.assertEqual(damage.rows, 0)
        self.assertNotIn("damaged", " ".join(verify(path).faults))

    def test_a_damaged_index(self) -> None:
        """Where an index cannot be read nothing is left out of searches."""
        for owner in ("logs_000001_ts", "logs_000001_host_ts"):
            path = self.mktemp()
            make(path)
            page = self.pages(path, 10, owner)[0]
            invert(path, (page - 1) * 4096, 12)
            reader, damage = self.open(path)
            for which in (EntryFilter(), EntryFilter(hosts=(HOST,)), EntryFilter(text="words")):
                for newest_first in (True, False):
                    found = search(reader, which, 300, newest_first)
                    self.assertEqual(sorted(one.seq for one in found), list(range(1, COUNT + 1)))
            self.assertEqual(damage.rows, 0)

    def test_what_counts_and_looks_around_goes_on_too(self) -> None:
        """A histogram counts, and a context shows, what can be read, whichever page is damaged:
        of the entries or of an index; what is left out is counted as damaged."""
        for kind, owner in (
            (13, "logs_000001"), (10, "logs_000001_ts"), (10, "logs_000001_seq"),
            (10, "logs_000001_host_ts"),
        ):  # fmt: skip
            path = self.mktemp()
            make(path)
            pages = self.pages(path, kind, owner)
            invert(path, (pages[len(pages) // 2] - 1) * 4096, 12)
            reader, damage = self.open(path)
            whole = range(1, COUNT + 1)
            lost = set(whole) - {one.seq for one in tail(reader, EntryFilter(), 100)}
            for which in (EntryFilter(), EntryFilter(text="words"), EntryFilter(hosts=(HOST,))):
                counts = reader.histogram(which, 7).counts
                self.assertIn(sum(counts), (COUNT, COUNT - len(lost)), (owner, which))
            for seq in (1, 50, 500, COUNT):
                if seq in lost:
                    with self.assertRaises(UnknownEntry):
                        reader.context(seq, 3, 3, False)
                    continue
                for same_source in (False, True):
                    found = [one.seq for one in reader.context(seq, 60, 60, same_source)]
                    self.assertIn(seq, found)
                    self.assertEqual(found, sorted(set(found) - lost))
                    inside = set(range(max(1, seq - 20), min(COUNT, seq + 20) + 1)) - lost
                    self.assertLessEqual(inside, set(found), (owner, seq))
            self.assertEqual(damage.rows, len(lost))

    def test_damage_anywhere_in_the_entries(self) -> None:
        """Wherever among the entries bytes are damaged, tails and searches come to their
        end, and bring most of what is there."""
        whole = self.mktemp()
        make(whole)
        with open(whole, "rb") as file:
            data = file.read()
        pages = self.pages(whole, 13, "logs_000001")
        chance = random.Random(5)
        for _ in range(40):
            path = self.mktemp()
            with open(path, "wb") as file:
                file.write(data)
            invert(path, (chance.choice(pages) - 1) * 4096 + chance.randrange(4056))
            reader, _ = self.open(path)
            for found in (
                tail(reader, EntryFilter(), 100),
                search(reader, EntryFilter(), 100, True),
                tail(reader, EntryFilter(text="words"), 100),
            ):
                self.assertGreater(len(found), COUNT - 80)
            os.unlink(path)

    def test_what_is_damage(self) -> None:
        """A query that was interrupted, or a wrong one, is no damage."""
        connection = sqlite3.connect(":memory:")
        self.addCleanup(connection.close)
        with self.assertRaises(sqlite3.Error) as wrong:
            connection.execute("SELECT nothing")
        self.assertFalse(is_damage(wrong.exception))
        with self.assertRaises(sqlite3.Error) as text:
            connection.execute("SELECT CAST(x'ff' AS TEXT)").fetchone()
        self.assertTrue(is_damage(text.exception))
        with self.assertRaises(sqlite3.Error) as blob:
            connection.execute("SELECT json_array(x'ff')").fetchone()
        self.assertTrue(is_damage(blob.exception))
        self.assertFalse(is_damage(ValueError()))


class DamagedStore(TestCase):
    """The store with its threads."""

    timeout = 20

    async def test_it_is_counted(self) -> None:
        """What any of its threads found damaged is in its statistics."""
        path = self.mktemp()
        make(path)
        invert(path, place_of(path, message(500)) + 30)
        store = SqliteStore(reactor, path)
        self.addCleanup(store.stop)
        await store.start()
        self.assertEqual((await store.stats()).damaged, 0)
        self.assertEqual(len((await store.tail(EntryFilter(), 0, COUNT)).entries), COUNT)
        self.assertEqual(len((await store.search(EntryFilter(), COUNT)).entries), COUNT)
        self.assertEqual((await store.stats()).damaged, 1)
