"""The simulated disk keeps the promises of a real one, and no more than them."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreError
from cortextx.fleet.agent.disk import RealDisk, read_whole, remove, replace
from cortextx.testing.disk import SimulatedDisk


def left(disk: SimulatedDisk, name: str) -> set[bytes | None]:
    """What any crash at the end of the log may leave of a file (None: nothing)."""
    return {files.get(name) for files in disk.crash_now()}


class CrashStateTests(SynchronousTestCase):
    def test_a_name_is_durable_only_after_the_directory_is_synced(self) -> None:
        disk = SimulatedDisk()
        file = disk.create("a")
        file.write_at(0, [b"one"])
        file.sync()
        self.assertEqual(left(disk, "a"), {None, b"one"})
        disk.sync_directory()
        self.assertEqual(left(disk, "a"), {b"one"})

    def test_an_unsynced_write_may_be_whole_absent_torn_or_zeros(self) -> None:
        disk = SimulatedDisk({"a": b"ab"})
        disk.open("a").write_at(2, [b"cd", b"ef"])
        self.assertEqual(
            left(disk, "a"),
            {b"ab", b"abcdef", b"abcd", b"abcde", b"ab\0\0\0\0", b"ab\0\0ef"},
        )

    def test_later_writes_may_survive_earlier_ones(self) -> None:
        disk = SimulatedDisk({"a": b""})
        file = disk.open("a")
        file.write_at(0, [b"1"])
        file.write_at(1, [b"2"])
        self.assertIn(b"\x002", left(disk, "a"))
        file.sync()
        self.assertEqual(left(disk, "a"), {b"12"})

    def test_a_rename_is_whole_or_not_at_all(self) -> None:
        disk = SimulatedDisk({"a": b"old"})
        replace(disk, "a", b"new")
        everything = {state.files.get("a") for state in disk.crash_states()}
        self.assertEqual(everything, {b"old", b"new"})
        self.assertEqual(left(disk, "a"), {b"new"})

    def test_a_rename_of_what_was_not_synced_may_leave_rubbish(self) -> None:
        """It can catch the usual mistake: rename without a sync before it."""
        disk = SimulatedDisk({"a": b"old"})
        disk.create("b").write_at(0, [b"new"])
        disk.rename("b", "a")
        disk.sync_directory()
        self.assertIn(b"", left(disk, "a"))

    def test_removals_and_truncations_are_pending_too(self) -> None:
        disk = SimulatedDisk({"a": b"abc", "b": b"x"})
        disk.open("a").truncate(1)
        disk.unlink("b")
        self.assertEqual(left(disk, "a"), {b"abc", b"a"})
        self.assertEqual(left(disk, "b"), {b"x", None})

    def test_marks_come_with_the_states_behind_them(self) -> None:
        disk = SimulatedDisk()
        disk.create("a")
        disk.sync_directory()
        disk.mark("promised")
        states = list(disk.crash_states())
        for state in states:
            self.assertEqual("promised" in state.marks, state.at >= 2)
        self.assertEqual([s.files for s in states if s.marks], [{"a": b""}])

    def test_many_pending_operations_stay_within_the_limit(self) -> None:
        disk = SimulatedDisk({"a": b""})
        file = disk.open("a")
        for at in range(12):
            file.write_at(at, [b"x"])
        at_end = disk.crash_now(limit=50)
        self.assertGreater(len(at_end), 20)
        self.assertLess(len(at_end), 50 * 5)


class FaultTests(SynchronousTestCase):
    def test_a_full_disk_takes_what_fits(self) -> None:
        disk = SimulatedDisk(capacity=10)
        file = disk.create("a")
        with self.assertRaises(OSError) as caught:
            file.write_at(0, [b"x" * 12])
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertEqual(file.size(), 10)
        self.assertEqual(disk.free(), 0)
        file.write_at(0, [b"y" * 10])  # overwriting needs no room

    def test_a_failure_told_to_happens_once_and_in_its_turn(self) -> None:
        disk = SimulatedDisk()
        file = disk.create("a")
        disk.fail("sync", errno.EIO, after=1)
        file.sync()
        self.assertRaises(OSError, file.sync)
        file.sync()

    def test_unreadable_places_read_as_zeros_when_salvaged(self) -> None:
        disk = SimulatedDisk({"a": b"x" * 10_000})
        disk.make_unreadable("a", 5000, 5001)
        data = read_whole(disk.open("a"), 10_000)
        self.assertEqual(data, b"x" * 4096 + bytes(4096) + b"x" * (10_000 - 8192))


class RealDiskTests(SynchronousTestCase):
    def test_does_what_the_role_says(self) -> None:
        disk = RealDisk(self.mktemp())
        self.addCleanup(disk.close)
        file = disk.create("a")
        self.addCleanup(file.close)
        self.assertRaises(FileExistsError, disk.create, "a")
        file.write_at(0, [b"abc", b"", b"def"])
        file.sync()
        file.truncate(5)
        self.assertEqual((file.read_at(1, 100), file.size(), disk.size("a")), (b"bcde", 5, 5))
        replace(disk, "a", b"new", previous="b")
        self.assertEqual(sorted(disk.names()), ["a", "b"])
        other = disk.open("b")
        self.addCleanup(other.close)
        self.assertEqual(other.read_at(0, 10), b"abcde")
        remove(disk, "b")
        remove(disk, "b")
        disk.sync_directory()
        self.assertEqual(disk.names(), ["a"])
        self.assertGreater(disk.free(), 0)
        self.assertRaises(FileNotFoundError, disk.open, "b")

    def test_is_private_and_locked_against_a_second_opening(self) -> None:
        path = self.mktemp()
        disk = RealDisk(path)
        disk.create("a").close()
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o700)
        self.assertEqual(os.stat(os.path.join(path, "a")).st_mode & 0o777, 0o600)
        self.assertRaises(StoreError, RealDisk, path)
        disk.close()
        RealDisk(path).close()

    def test_follows_no_link(self) -> None:
        path = self.mktemp()
        disk = RealDisk(path)
        self.addCleanup(disk.close)
        os.symlink("/etc/hostname", os.path.join(path, "a"))
        self.assertRaises(OSError, disk.open, "a")
