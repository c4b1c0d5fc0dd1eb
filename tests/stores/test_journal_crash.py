"""A log on a simulated disk: what crashes, full disks and failed syncs leave of it (I12, I13)."""

from __future__ import annotations

import errno
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import SessionDamaged, StoreError, StoreFull
from cortextx.stores.journal import FileJournal
from cortextx.stores.journal_disk import LOG
from cortextx.stores.journal_lanes import Lanes
from cortextx.stores.journal_log import Log
from cortextx.stores.journal_retention import begin
from cortextx.stores.journal_tail import Caches
from cortextx.testing.disk import CrashState
from tests.stores.journal_suite import KEY, Inline, SimulatedSession, line, lines


def opened(disk: SimulatedSession) -> Log:
    log = Log(lambda: disk, "log")
    log.open()
    return log


def held(log: Log) -> list[bytes]:
    return list(log.read(0, 10**6, 10**9).lines)


class CrashTests(SynchronousTestCase):
    def check(self, state: CrashState, all_lines: list[bytes]) -> bool:
        """Whether the log opens; either way nothing of what was promised is gone."""
        first, head = state.marks[-1] if state.marks else (1, 0)
        try:
            log = opened(SimulatedSession(state.files))
        except SessionDamaged as fault:
            whole = state.files[LOG][: fault.offset]
            good = whole.split(b"\n")[:-1]
            self.assertTrue(whole.endswith(b"\n") or not whole)
            begun = 1 if not good or good[0] in all_lines[:1] else first
            promised = all_lines[begun - 1 : head]
            self.assertEqual(good[: len(promised)], promised, state.kept)
            return False
        self.assertGreaterEqual(log.state.head, head, state.kept)
        self.assertEqual(held(log), all_lines[log.state.first - 1 : log.state.head], state.kept)
        return True

    def test_whatever_a_crash_keeps_of_appends_what_was_promised_is_there(self) -> None:
        disk = SimulatedSession()
        log = opened(disk)
        written = []
        for first, count in ((1, 1), (2, 3), (5, 2)):
            these = lines(first, count, "é")
            log.append(first, these)
            written.extend(these)
            disk.mark((1, log.state.head))
        opening = [self.check(state, written) for state in disk.crash_states()]
        self.assertIn(True, opening)
        self.assertIn(False, opening)  # torn ends are refused, not mended

    def test_a_crash_in_a_rewrite_leaves_the_one_log_or_the_other(self) -> None:
        # I38
        disk = SimulatedSession()
        log = opened(disk)
        written = lines(1, 6)
        log.append(1, written)
        disk.mark((1, 6))
        begin(log, 4)
        disk.mark((4, 6))
        log.append(7, [line(7)])
        disk.mark((4, 7))
        firsts = set()
        for state in disk.crash_states():
            if self.check(state, [*written, line(7)]) and state.marks:
                firsts.add((state.marks[-1], opened(SimulatedSession(state.files)).state.first))
        self.assertIn(((1, 6), 1), firsts)
        self.assertIn(((1, 6), 4), firsts)
        self.assertEqual({first for mark, first in firsts if mark[0] == 4}, {4})

    def test_what_a_killed_writer_left_unsynced_is_synced_before_it_is_served(self) -> None:
        # I12: the next slave publishes nothing that a power cut could still take.
        disk = SimulatedSession({LOG: line(1) + b"\n"})
        disk.open(LOG).write_at(len(line(1)) + 1, [line(2) + b"\n"])
        self.assertEqual(opened(disk).state.head, 2)
        for files in disk.crash_now():
            self.assertEqual(opened(SimulatedSession(files)).state.head, 2)


class FaultTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.disk = SimulatedSession()
        self.log = opened(self.disk)
        self.log.append(1, lines(1, 2))

    def test_a_full_disk_takes_nothing_in_part_and_the_next_append_may_succeed(self) -> None:
        # I13: truncated to the writer's own last durable offset.
        before = self.disk.files()[LOG]
        self.disk.capacity = len(before) + 10
        self.assertRaises(StoreFull, self.log.append, 3, lines(3, 2))
        self.assertEqual(self.disk.files()[LOG], before)
        for files in self.disk.crash_now():
            self.assertEqual(opened(SimulatedSession(files)).state.head, 2)
        self.disk.capacity = 2**30
        self.log.append(3, lines(3, 2))
        self.assertEqual(held(self.log), lines(1, 4))

    def test_a_write_that_fails_otherwise_leaves_the_log_as_it_was(self) -> None:
        self.disk.fail("write")
        self.assertRaises(StoreError, self.log.append, 3, lines(3, 2))
        self.log.append(3, lines(3, 2))
        self.assertEqual(held(opened(SimulatedSession(self.disk.files()))), lines(1, 4))

    def test_a_failed_sync_ends_everything_and_names_the_place(self) -> None:
        # I13: not retried, nothing of its group published.
        end = len(self.disk.files()[LOG])
        self.disk.fail("sync")
        fault = self.assertRaises(SessionDamaged, self.log.append, 3, lines(3, 2))
        self.assertEqual(fault.offset, end)
        self.assertEqual(self.log.state.head, 2)
        syncs = len(self.disk.log)
        self.assertRaises(SessionDamaged, self.log.append, 3, lines(3, 2))
        self.assertRaises(SessionDamaged, self.log.read, 0, 1, 1)
        self.assertEqual(len(self.disk.log), syncs)

    def test_a_write_that_cannot_be_taken_back_ends_everything(self) -> None:
        self.disk.fail("write", errno.ENOSPC)
        self.disk.fail("truncate")
        self.assertRaises(SessionDamaged, self.log.append, 3, lines(3, 2))
        self.assertRaises(SessionDamaged, self.log.append, 3, lines(3, 2))

    def test_a_rewrite_that_finds_no_room_leaves_the_log_as_it_was(self) -> None:
        self.disk.capacity = len(self.disk.files()[LOG]) + 10
        self.assertRaises(StoreFull, begin, self.log, 2)
        self.assertEqual(list(self.disk.files()), [LOG])
        self.assertEqual(held(self.log), lines(1, 2))

    def test_an_unreadable_log_is_damaged_not_empty(self) -> None:
        disk = SimulatedSession(self.disk.files())
        disk.make_unreadable(LOG, 0, 1)
        self.assertRaises(SessionDamaged, opened, disk)
        self.assertTrue(disk.closed)  # and its lock is free again

    def test_a_log_that_cannot_be_opened_for_want_of_descriptors_is_not_damaged(self) -> None:
        for code in (errno.EMFILE, errno.ENFILE):
            disk = SimulatedSession(self.disk.files())
            disk.fail("open", code)
            self.assertRaises(StoreFull, opened, disk)
            self.assertTrue(disk.closed)
            self.assertEqual(held(opened(disk)), lines(1, 2))


class OverlapTests(SynchronousTestCase):
    """A failed append among others that wait; a journal that runs on one thread."""

    def setUp(self) -> None:
        self.disk = SimulatedSession()
        self.reactor = Inline()
        self.lanes = Lanes(self.reactor)
        log = Log(lambda: self.disk, "log")
        self.journal = FileJournal(KEY, log, self.lanes, Caches(), lambda _: None)
        self.journal.open()
        self.settle()

    def settle(self) -> None:
        self.lanes.work()
        while self.reactor.run():
            self.lanes.work()

    def test_appends_that_wait_share_syncs(self) -> None:
        # The first two go at once, for a writer may be idle; the rest is one group.
        before = len(self.disk.log)
        calls = [self.journal.append(first, lines(first, 2)) for first in range(1, 101, 2)]
        self.settle()
        for call in calls:
            self.successResultOf(call)
        kinds = [type(operation).__name__ for operation in self.disk.log[before:]]
        expected = ["Created", "Written", "Synced", "DirectorySynced", "Written", "Synced"]
        self.assertEqual(kinds, expected)

    def test_after_a_failure_what_was_called_before_it_was_told_fails_and_then_it_goes_on(
        self,
    ) -> None:
        self.disk.capacity = 0
        first = self.journal.append(1, lines(1, 2))
        self.lanes.work()  # it has failed, and nobody knows yet
        self.disk.capacity = 2**30
        second = self.journal.append(3, lines(3, 2))
        again: list[Any] = []
        first.addErrback(lambda fault: again.append(self.journal.append(1, lines(1, 3))))
        self.settle()
        self.failureResultOf(second, StoreError)
        self.successResultOf(again[0])
        self.assertEqual(self.journal.head, 3)
        self.assertEqual(self.disk.files()[LOG].count(b"\n"), 3)

    def test_a_retry_in_the_errback_follows_the_durable_head(self) -> None:
        self.settle()
        self.append_well(1, 2)
        self.disk.capacity = 0
        failed = [self.journal.append(3, lines(3, 1)), self.journal.append(4, lines(4, 1))]
        self.settle()
        for call in failed:
            self.failureResultOf(call, StoreFull)
        self.disk.capacity = 2**30
        self.append_well(3, 1)

    def append_well(self, first: int, count: int) -> None:
        call = self.journal.append(first, lines(first, count))
        self.settle()
        self.successResultOf(call)

    def test_after_a_failed_sync_every_call_fails(self) -> None:
        # I13
        self.append_well(1, 2)
        self.disk.fail("sync")
        call = self.journal.append(3, lines(3, 1))
        self.settle()
        self.failureResultOf(call, SessionDamaged)
        calls = [self.journal.append(3, lines(3, 1)), self.journal.read(0, 1, 100)]
        self.settle()
        for call in calls:
            self.failureResultOf(call, SessionDamaged)


class KilledTests(SynchronousTestCase):
    """A process that was killed while it wrote; the system went on (I13)."""

    def setUp(self) -> None:
        self.disk = SimulatedSession()
        opened(self.disk).append(1, lines(1, 2))
        self.whole = self.disk.files()[LOG]
        self.torn = b"\n".join(lines(3, 200))[:-1]

    def killed(self, note: int | None, torn: bytes) -> SimulatedSession:
        disk = SimulatedSession({LOG: self.whole + torn})
        disk.note = note
        return disk

    def test_a_long_write_is_noted_until_it_is_durable(self) -> None:
        notes: list[int | None] = []
        log = opened(self.disk)
        disk = self.disk
        file = log._now.file
        assert file is not None
        write, sync = file.write_at, file.sync
        file.write_at = lambda at, parts: (notes.append(disk.note), write(at, parts))[1]  # type: ignore
        file.sync = lambda: (notes.append(disk.note), sync())[1]  # type: ignore
        log.append(3, lines(3, 200))
        end = len(self.whole)
        self.assertEqual([*notes, self.disk.note], [end, end, None])

    def test_the_note_goes_with_a_write_that_is_taken_back(self) -> None:
        log = opened(self.disk)
        self.disk.capacity = len(self.whole) + 5000
        self.assertRaises(StoreFull, log.append, 3, lines(3, 200))
        self.assertIsNone(self.disk.note)

    def test_its_torn_line_is_taken_back_and_whole_lines_stay(self) -> None:
        log = opened(self.killed(len(self.whole), self.torn))
        self.assertEqual(held(log), lines(1, 201))
        self.assertGreater(log.taken_back, 0)

    def test_without_its_note_nothing_is_taken_back(self) -> None:
        disk = self.killed(None, self.torn)
        self.assertRaises(SessionDamaged, opened, disk)
        self.assertEqual(disk.files()[LOG], self.whole + self.torn)

    def test_damage_before_the_noted_place_is_damage(self) -> None:
        disk = self.killed(len(self.whole), self.torn)
        disk.damage(LOG, 3, b"\x00")
        self.assertRaises(SessionDamaged, opened, disk)

    def test_a_log_that_is_shorter_than_noted_is_damaged(self) -> None:
        disk = SimulatedSession({LOG: self.whole[:-3]})
        disk.note = len(self.whole)
        self.assertRaises(SessionDamaged, opened, disk)
