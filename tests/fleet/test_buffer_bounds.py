"""The agent's buffer at its bounds, over failing disks, and past poison (F19, F25)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import (
    LocalProtocolError,
    StoreClosed,
    StoreError,
    StoreFull,
)
from cortextx.fleet.agent.buffer import Batch, Buffer, BufferLimits
from cortextx.fleet.agent.buffer_set_aside import SIDE_FILE
from cortextx.fleet.agent.buffer_state import RESERVE
from cortextx.fleet.agent.disk import RealDisk
from cortextx.testing.disk import SimulatedDisk
from tests.fleet.buffer_life import TINY, Writer, body, everything, segments


class BoundsTests(SynchronousTestCase):
    """F19, A40: bounded, and whatever goes is counted with its exact range."""

    def test_pressure_rises_at_soft_and_hard_and_falls_with_acks(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        seen = [writer.buffer.pressure]
        while writer.buffer.evicted == 0:
            writer.put(1)
            if writer.buffer.pressure != seen[-1]:
                seen.append(writer.buffer.pressure)
            if seen[-1] == "ok":
                self.assertLess(writer.buffer.size, TINY.soft)
        self.assertEqual(seen[:2], ["ok", "soft"])
        writer.buffer.truncate(writer.buffer.last)
        self.assertEqual(writer.buffer.pressure, "ok")

    def test_a40_past_hard_the_oldest_go_with_exact_ranges(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        for _ in range(200):
            writer.put(2)
            self.assertLess(writer.buffer.size, TINY.hard + 400)
        buffer = writer.buffer
        lost = [n for x in buffer.losses() for n in range(x.first, x.last + 1)]
        self.assertEqual(lost, list(range(1, len(lost) + 1)))
        self.assertEqual({x.reason for x in buffer.losses()}, {"evicted"})
        self.assertEqual((buffer.evicted, buffer.depth), (len(lost), 400 - len(lost)))
        batch = buffer.read(1, 1, 1000)
        self.assertEqual(batch, Batch(len(lost) + 1, [body(len(lost) + 1)]))
        self.assertEqual(set(everything(buffer)), set(range(len(lost) + 1, 401)))
        self.assertEqual(len(segments(writer.disk)), len(set(segments(writer.disk))))

    def test_who_can_wait_is_refused_instead(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        with self.assertRaises(StoreFull):
            for number in range(1, 200):
                writer.buffer.append([body(number)], {}, may_evict=False)
        self.assertEqual(writer.buffer.evicted, 0)

    def test_acked_entries_are_no_loss(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        writer.put(3)
        writer.buffer.truncate(2)
        while writer.buffer.evicted == 0:
            writer.put(1)
        self.assertEqual(writer.buffer.losses()[0].first, 3)

    def test_a_new_buffer_evicts_before_it_is_numbered_too_F2(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        while writer.buffer.evicted == 0:
            writer.put(1)
        self.assertEqual(writer.buffer.losses(), [])
        writer.buffer.adopt(1000)
        [loss] = writer.buffer.losses()
        self.assertEqual(loss.first, 1001)
        self.assertEqual(writer.buffer.read(1001, 1, 1).first, loss.last + 1)

    def test_what_the_agent_reports_is_carried_over_F37(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        own = b'"message":"a gap","source":"custom:cortextx"}'
        writer.buffer.append([own], {"file:n": b"1"})
        writer.buffer.sync()
        for _ in range(100):
            writer.buffer.append([body(1)], {})
            writer.buffer.sync()
        self.assertGreater(writer.buffer.evicted, 0)
        self.assertEqual(list(everything(writer.buffer).values()).count(own), 1)

    def test_little_free_disk_stops_growth_but_gives_nothing_up_for_others_F19(self) -> None:
        disk = SimulatedDisk(capacity=10**6)
        limits = BufferLimits(soft=400_000, hard=600_000, min_free=50_000, segment=4000, cache=0)
        writer = Writer(disk, limits)
        writer.buffer.adopt(0)
        while writer.buffer.size < 60_000:
            writer.put(20)
        self.assertEqual(writer.buffer.pressure, "ok")
        disk.create("other").write_at(0, [bytes(disk.free() - 40_000)])
        self.assertEqual(writer.buffer.pressure, "hard")
        for _ in range(40):
            writer.put(20)
        self.assertGreater(writer.buffer.evicted, 0)
        self.assertGreater(writer.buffer.size, 52_000)
        self.assertLess(writer.buffer.size, 64_000)

    def test_a_small_buffer_works_on_a_disk_that_is_nearly_full(self) -> None:
        """Then of all times the logs are wanted."""
        limits = BufferLimits(soft=40_000, hard=60_000, min_free=10**6, segment=4000, cache=0)
        writer = Writer(SimulatedDisk(capacity=200_000), limits)
        writer.put(20)
        self.assertEqual(writer.buffer.pressure, "ok")

    def test_a_disk_without_room_is_pressure_however_small_the_buffer(self) -> None:
        """After a write that found no room the pressure is hard until there is room, and the
        fault is told until a write succeeds (F19)."""
        disk = SimulatedDisk(capacity=200_000)
        limits = BufferLimits(soft=40_000, hard=60_000, min_free=100, segment=4000, cache=0)
        buffer = Buffer.open(disk, limits)
        self.assertEqual((buffer.pressure, buffer.full), ("ok", None))
        disk.capacity -= disk.free() - 50
        self.assertRaises(StoreFull, buffer.append, [body(1)] * 20, {})
        self.assertEqual(buffer.pressure, "hard")
        self.assertIsNotNone(buffer.full)
        disk.capacity = 200_000
        self.assertEqual(buffer.pressure, "ok")
        self.assertIsNotNone(buffer.full)
        buffer.append([body(1)] * 20, {})
        self.assertEqual((buffer.pressure, buffer.full), ("ok", None))

    def test_many_unreported_evictions_join_into_one_range(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        for _ in range(500):
            writer.put(3)
        buffer = writer.buffer
        self.assertLessEqual(len(buffer.losses()), 65)
        self.assertEqual(sum(x.count for x in buffer.losses()), buffer.evicted)
        self.assertEqual(1500, buffer.evicted + buffer.depth)


class FailureTests(SynchronousTestCase):
    def test_a_full_disk_stores_nothing_in_part_and_the_next_may_succeed(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(2)
        size = writer.buffer.size
        used = sum(map(len, writer.disk.files().values()))
        writer.disk.capacity = used + 30
        self.assertRaises(StoreFull, writer.put, 4)
        self.assertEqual((writer.buffer.size, writer.buffer.last, writer.count), (size, 2, 2))
        writer.disk.capacity = 10**9
        writer.put(4)
        self.assertEqual(set(everything(writer.buffer)), set(range(1, 7)))
        writer.reopen()
        self.assertEqual(set(everything(writer.buffer)), set(range(1, 7)))
        self.assertEqual(writer.buffer.recovery.cut, 0)

    def test_a_write_that_fails_otherwise_is_told_until_one_succeeds(self) -> None:
        """As in a directory that nothing may be created in; a block without entries, which
        needs no new segment, does not end it."""
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        writer.disk.fail("create", errno.EPERM)
        with self.assertRaises(StoreError):
            for _ in range(200):
                writer.put(1)
        self.assertIn("cannot be written", writer.buffer.full or "")
        writer.buffer.append([], {"file:x": b"1"})
        self.assertIn("cannot be written", writer.buffer.full or "")
        writer.put(1)
        self.assertIsNone(writer.buffer.full)

    def test_a_directory_that_was_removed_is_told(self) -> None:
        """What is written into the open segment then is nowhere."""
        place = self.mktemp()
        os.mkdir(place)
        buffer = Buffer.open(RealDisk(place))
        self.addCleanup(buffer.close)
        buffer.append([body(1)], {})
        buffer.sync()
        self.assertEqual((buffer.pressure, buffer.full), ("ok", None))
        shutil.rmtree(place)
        self.assertEqual(buffer.pressure, "ok")  # it is below its floor; asking looks
        self.assertIn("removed", buffer.full or "")

    def test_a_full_disk_at_a_new_segment_leaves_none(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(7)
        names = segments(writer.disk)
        for operation in ("write", "create"):
            writer.disk.fail(operation, errno.ENOSPC)
            self.assertRaises(StoreFull, writer.put, 7)
            self.assertEqual(segments(writer.disk), names)
        writer.put(7)
        self.assertEqual(set(everything(writer.buffer)), set(range(1, 15)))

    def test_acks_free_room_even_on_a_disk_without_a_byte_left(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        for _ in range(5):
            writer.put(7)
        many = len(segments(writer.disk))
        writer.disk.capacity = sum(map(len, writer.disk.files().values()))
        writer.buffer.truncate(30)
        self.assertLess(len(segments(writer.disk)), many)
        self.assertEqual(set(everything(writer.buffer)), set(range(31, 36)))
        writer.disk.capacity = 10**9
        writer.put(14)
        writer.buffer.truncate(45)
        self.assertIn(RESERVE, writer.disk.names())

    def test_where_all_is_acked_a_full_disk_gives_the_newest_segment_back_F19(self) -> None:
        """An empty segment with the same checkpoints takes its place, and writing goes on."""
        limits = BufferLimits(soft=400_000, hard=600_000, min_free=0, segment=90_000, cache=0)
        writer = Writer(SimulatedDisk(), limits)
        writer.buffer.adopt(0)
        while writer.buffer.size < 60_000:
            writer.put(20)
        count = writer.count
        writer.disk.capacity -= writer.disk.free()
        self.assertRaises(StoreFull, writer.put, 20)
        self.assertEqual(writer.buffer.pressure, "hard")
        writer.buffer.truncate(count)
        writer.put(20)
        self.assertEqual((writer.buffer.pressure, writer.buffer.full), ("ok", None))
        self.assertLess(writer.buffer.size, 4000)
        writer.reopen()
        self.assertEqual(set(everything(writer.buffer)), set(range(count + 1, count + 21)))
        self.assertEqual((writer.buffer.losses(), writer.count), ([], count + 20))

    def test_a_crash_while_it_is_given_back_loses_nothing_F19(self) -> None:
        limits = BufferLimits(soft=400_000, hard=600_000, min_free=0, segment=90_000, cache=0)
        writer = Writer(SimulatedDisk(), limits)
        writer.buffer.adopt(0)
        while writer.buffer.size < 40_000:
            writer.put(500)
        count = writer.count
        writer.reopen()
        writer.buffer.truncate(count)
        self.assertTrue(writer.buffer.relieve())
        writer.put(1)
        for state in writer.disk.crash_states(16):
            buffer = Buffer.open(state.disk(), limits)
            self.assertEqual((buffer.losses(), buffer.recovery.notes), ([], ()), state.kept)
            self.assertGreaterEqual(buffer.last, count, state.kept)
            self.assertIn(buffer.checkpoints()["file:n"], (b"%d" % count, b"%d" % (count + 1)))

    def test_acks_that_could_not_be_written_free_their_room_later_F19(self) -> None:
        """Neither the reserve nor room for a new state was there when the ack came."""
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        for _ in range(5):
            writer.put(7)
        writer.disk.unlink(RESERVE)
        writer.disk.capacity = sum(map(len, writer.disk.files().values()))
        for _ in range(3):
            writer.disk.fail("create", errno.ENOSPC)
        self.assertRaises(StoreFull, writer.buffer.truncate, 35)
        self.assertGreater(len(segments(writer.disk)), 1)
        writer.disk.fail("create", errno.ENOSPC)  # what is left of those before
        for _ in range(3):
            writer.buffer.relieve()
        self.assertEqual(len(segments(writer.disk)), 1)
        writer.reopen()
        self.assertEqual((writer.buffer.losses(), writer.buffer.acked), ([], 35))

    def test_without_a_reserve_the_copy_of_the_state_makes_room_for_it(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        for _ in range(5):
            writer.put(7)
        writer.buffer.truncate(15)
        writer.disk.unlink(RESERVE)
        writer.disk.capacity = sum(map(len, writer.disk.files().values())) + 20
        many = len(segments(writer.disk))
        writer.buffer.truncate(35)
        self.assertLess(len(segments(writer.disk)), many)

    def test_a_failed_sync_ends_writing_until_reopened(self) -> None:
        for operation in ("sync", "sync_directory"):
            writer = Writer(SimulatedDisk())
            if operation == "sync":
                writer.put(2)
            kept = writer.count
            writer.disk.fail(operation)
            self.assertRaises(StoreError, writer.put, 2)
            self.assertIn("sync failed", writer.buffer.broken or "")
            self.assertRaises(StoreClosed, writer.put, 1)
            self.assertEqual(writer.buffer.last, kept)
            writer.buffer.close()
            writer.reopen()
            self.assertEqual((writer.buffer.last, writer.count), (kept, kept))
            writer.put(1)

    def test_a_broken_buffer_still_sends_what_is_durable(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(4)
        writer.disk.fail("sync")
        self.assertRaises(StoreError, writer.put, 2)
        self.assertEqual(set(everything(writer.buffer)), {1, 2, 3, 4})
        writer.buffer.truncate(2)
        self.assertEqual(writer.buffer.adopt(3), (3, 4, False))

    def test_a_failed_write_that_cannot_be_undone_ends_writing(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(2)
        writer.disk.fail("write")
        writer.disk.fail("truncate")
        self.assertRaises(StoreError, writer.put, 2)
        self.assertRaises(StoreClosed, writer.put, 2)
        writer.reopen()
        self.assertEqual(writer.buffer.last, 2)

    def test_every_failing_operation_leaves_a_buffer_that_reopens_whole(self) -> None:
        """One failure at any place of a busy life: what was promised is there."""
        for step in self.failures():
            with self.subTest(step=step):
                self.survive(*step)

    def failures(self) -> Iterator[tuple[str, int]]:
        for operation, most in (
            ("write", 14), ("sync", 16), ("truncate", 2), ("create", 10), ("open", 6),
            ("rename", 12), ("unlink", 6), ("sync_directory", 12),
        ):  # fmt: skip
            for after in range(most):
                yield operation, after

    def survive(self, operation: str, after: int) -> None:
        disk = SimulatedDisk()
        writer = Writer(disk, TINY)
        disk.fail(operation, errno.EIO, after)
        promised = acked = 0
        steps: list[Callable[[], object]] = [lambda: writer.buffer.adopt(0)]
        for _ in range(6):
            steps += [lambda: writer.put(3), lambda: writer.put(4)]
            steps += [lambda: writer.buffer.truncate(max(0, writer.buffer.last - 6))]
        steps.insert(5, lambda: writer.buffer.set_aside(writer.buffer.last, "poison"))
        for step in steps:
            with contextlib.suppress(StoreError, LocalProtocolError):
                step()
            promised, acked = writer.buffer.last, writer.buffer.acked
        buffer = Buffer.open(SimulatedDisk(disk.files()), TINY)
        if not buffer.numbered:
            buffer.adopt(0)
        self.assertEqual(buffer.last, promised)
        self.assertLessEqual(buffer.acked, acked)
        found = everything(buffer)
        losses = buffer.losses()
        self.assertLessEqual({loss.reason for loss in losses}, {"evicted", "set_aside"})
        lost = {n for loss in losses for n in range(loss.first, loss.last + 1)}
        for number in range(acked + 1, promised + 1):
            if number in found:
                self.assertEqual(found[number], body(number))
            else:
                self.assertIn(number, lost)


class SetAsideTests(SynchronousTestCase):
    """F25: a poison entry is passed, counted, and can be looked at."""

    def setUp(self) -> None:
        self.writer = Writer(SimulatedDisk())
        self.writer.put(6)
        self.writer.buffer.adopt(10)

    def test_a47_reading_goes_on_past_it(self) -> None:
        buffer = self.writer.buffer
        self.assertTrue(buffer.set_aside(13, "-32602"))
        self.assertEqual(buffer.read(12, 10, 10_000), Batch(12, [body(2)]))
        self.assertEqual(buffer.read(13, 10, 10_000), Batch(14, [body(4), body(5), body(6)]))
        self.assertEqual((buffer.depth, buffer.set_aside_count), (5, 1))
        self.writer.reopen()
        self.assertEqual(self.writer.buffer.read(13, 10, 10_000).first, 14)
        [loss] = self.writer.buffer.losses()
        self.assertEqual((loss.first, loss.last, loss.reason, loss.detail),
                         (13, 13, "set_aside", "-32602"))  # fmt: skip

    def test_it_can_be_inspected_after_its_segment_is_gone(self) -> None:
        buffer = self.writer.buffer
        buffer.set_aside(13, "-32602")
        for _ in range(4):
            self.writer.put(7)
        buffer.truncate(buffer.last)
        self.writer.reopen()
        [entry] = self.writer.buffer.set_aside_entries()
        self.assertEqual((entry.seq, entry.reason, entry.body), (13, "-32602", body(3)))
        self.assertEqual(self.writer.buffer.set_aside_count, 1)

    def test_the_last_entry_may_be_poison(self) -> None:
        buffer = self.writer.buffer
        buffer.set_aside(16, "x")
        self.assertEqual(buffer.read(16, 5, 1000), Batch(17, []))
        self.writer.put(1)
        self.assertEqual(buffer.read(16, 5, 1000).first, 17)
        buffer.truncate(17)
        self.assertEqual(buffer.depth, 0)

    def test_what_is_not_there_cannot_be_set_aside(self) -> None:
        buffer = self.writer.buffer
        buffer.truncate(12)
        self.assertFalse(buffer.set_aside(12, "x"))
        self.assertFalse(buffer.set_aside(99, "x"))
        self.assertTrue(buffer.set_aside(13, "x"))
        self.assertFalse(buffer.set_aside(13, "x"))
        self.assertEqual(buffer.set_aside_count, 1)

    def test_the_side_file_is_lines_of_json_whatever_the_entry_is(self) -> None:
        self.writer.buffer.append([b'"message":"\xff\\"'], {})
        self.writer.buffer.sync()
        for seq in (11, 17):
            self.writer.buffer.set_aside(seq, 'bad "bytes"')
        lines = self.writer.disk.files()[SIDE_FILE].splitlines()
        self.assertEqual([json.loads(line)["seq"] for line in lines], [11, 17])
        self.assertEqual([e.seq for e in self.writer.buffer.set_aside_entries()], [11, 17])
        self.assertEqual([e.seq for e in self.writer.buffer.set_aside_entries(1)], [17])
