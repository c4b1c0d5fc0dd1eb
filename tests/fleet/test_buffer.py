"""The fourth of the riskiest pieces: the agent's buffer, on a disk that may crash anywhere."""

from __future__ import annotations

import errno

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import (
    LocalProtocolError,
    StoreError,
    StoreFull,
)
from cortextx.fleet.agent.buffer import Batch, Buffer, BufferLimits
from cortextx.testing.disk import CrashState, SimulatedDisk
from tests.fleet.buffer_life import ROOMY, TINY, Writer, body, everything, segments


class CrashTests(SynchronousTestCase):
    """Early test 4 of the design: every prefix of the operations, with subsets of the unsynced."""

    def check(self, state: CrashState, reached: int, limits: BufferLimits = ROOMY) -> Buffer:
        """What was promised is there, once, agreeing with its checkpoint; and it goes on.

        `reached` is the newest position ever written.
        """
        where = f"crash at {state.at}, kept {state.kept}"
        disk = state.disk()
        buffer = Buffer.open(disk, limits)
        self.assertEqual(buffer.recovery.notes, (), where)
        self.assertEqual(buffer.recovery.lost, 0, where)
        last, numbered = state.marks[-1] if state.marks else (0, False)
        if not buffer.numbered:
            self.assertFalse(numbered, where)
            buffer.adopt(0)
        self.assertLessEqual(last, buffer.last, where)
        self.assertLessEqual(buffer.last, reached, where)
        found = everything(buffer)
        count = int(buffer.checkpoints().get("file:n", b"0"))
        self.assertEqual(found, {n: body(n) for n in range(buffer.acked + 1, count + 1)}, where)
        self.assertEqual(buffer.last, count, where)
        self.assertEqual(buffer.depth, len(found), where)
        buffer.append([body(count + 1)], {"file:n": b"%d" % (count + 1)})
        buffer.sync()
        again = Buffer.open(SimulatedDisk(disk.files()), limits)
        self.assertEqual(everything(again), {**found, count + 1: body(count + 1)}, where)
        self.assertEqual(again.recovery.cut, 0, where)
        return again

    def check_all(self, writer: Writer, limit: int = 64) -> int:
        states = 0
        for state in writer.disk.crash_states(limit):
            self.check(state, writer.buffer.last, writer.limits)
            states += 1
        return states

    def test_a19_a49_every_crash_of_a_new_buffer_keeps_what_was_synced(self) -> None:
        writer = Writer(SimulatedDisk())
        for count in (1, 3, 2, 1):
            writer.put(count)
        self.assertGreater(self.check_all(writer), 40)

    def test_a22_every_crash_around_new_segments_keeps_entries_and_checkpoints(self) -> None:
        writer = Writer(SimulatedDisk())
        for _ in range(5):
            writer.put(5)
        self.assertGreaterEqual(len(segments(writer.disk)), 3)
        self.check_all(writer)

    def test_of_several_unsynced_blocks_no_later_one_outlives_an_earlier_one(self) -> None:
        """Else a checkpoint would have passed entries that are not there."""
        writer = Writer(SimulatedDisk())
        writer.put(2)
        for _ in range(4):
            writer.put(2, sync=False)
        writer.buffer.sync()
        writer.promise()
        self.assertGreater(self.check_all(writer), 50)

    def test_a38_every_crash_around_acks_and_deletion_loses_nothing_unacked(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(6)
        writer.buffer.adopt(0)
        writer.promise()
        for _ in range(4):
            writer.put(6)
            writer.buffer.truncate(writer.buffer.last - 3)
        self.assertLess(len(segments(writer.disk)), 4)
        for state in writer.disk.crash_states(64):
            self.check(state, writer.buffer.last)

    def test_every_crash_of_a_first_adoption_numbers_all_or_nothing_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(3)
        writer.buffer.adopt(1000)
        writer.disk.mark("adopted")
        writer.put(2)
        for state in writer.disk.crash_states():
            buffer = Buffer.open(state.disk(), ROOMY)
            if "adopted" in state.marks:
                self.assertEqual(buffer.next_seq, 1000 + 1 + int(buffer.checkpoints()["file:n"]))
                self.assertEqual(everything(buffer)[1001], body(1))
            else:
                self.assertIn(buffer.next_seq, (None, buffer.last + 1))

    def test_every_crash_of_a_renumbering_shows_old_or_new_numbers_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(5)
        writer.buffer.adopt(0)
        writer.buffer.truncate(2)
        writer.put(5)
        writer.disk.mark("before")
        writer.buffer.adopt(500)
        writer.disk.mark("after")
        seen = set()
        for state in writer.disk.crash_states():
            if "before" not in state.marks:
                continue
            buffer = Buffer.open(state.disk(), ROOMY)
            found = everything(buffer)
            # The ack of 2 was not persisted by itself: either is right.
            old = {n: body(n) for n in range(buffer.acked + 1, 11)}
            new = {498 + n: body(n) for n in range(3, 11)}
            self.assertIn(found, (old, new))
            seen.add(min(found))
            if "after" in state.marks:
                self.assertEqual(found, new)
        self.assertTrue({1, 501} <= seen)

    def test_every_crash_of_recovery_itself_is_recovered_from(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(7)
        writer.put(7)
        writer.put(2, sync=False)
        reached = 16
        rounds = 0
        for state in writer.disk.crash_states(16):
            if state.at < len(writer.disk.log) - 4:
                continue
            disk = state.disk()
            buffer = Buffer.open(disk, ROOMY)
            for again in disk.crash_states(16):
                second = self.check(again, reached)
                self.assertLessEqual(buffer.last, second.last - 1)
                rounds += 1
        self.assertGreater(rounds, 10)

    def test_every_crash_around_setting_aside_keeps_the_entry_somewhere_F25(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(5)
        writer.buffer.adopt(0)
        writer.disk.mark("adopted")
        writer.buffer.set_aside(3, "refused three times")
        writer.disk.mark("aside")
        for state in writer.disk.crash_states():
            if "adopted" not in state.marks:
                continue
            buffer = Buffer.open(state.disk(), ROOMY)
            found = everything(buffer)
            if "aside" in state.marks:
                self.assertNotIn(3, found)
            if 3 not in found:
                self.assertEqual([e.body for e in buffer.set_aside_entries()], [body(3)])
                self.assertEqual(buffer.set_aside_count, 1)
            self.assertEqual({n for n in (1, 2, 4, 5) if n in found}, {1, 2, 4, 5})
            if 3 in found:
                buffer.set_aside(3, "refused three times")
                self.assertEqual([e.body for e in buffer.set_aside_entries()], [body(3)])

    def test_a40_every_crash_of_an_eviction_keeps_or_reports_each_entry(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.adopt(0)
        for _ in range(20):
            writer.put(3)
        writer.promise()
        self.assertGreater(writer.buffer.evicted, 0)
        for state in writer.disk.crash_states(32):
            buffer = Buffer.open(state.disk(), TINY)
            self.assertEqual((buffer.recovery.notes, buffer.recovery.lost), ((), 0))
            if not buffer.numbered:
                continue
            found = everything(buffer)
            lost = {n for loss in buffer.losses() for n in range(loss.first, loss.last + 1)}
            count = int(buffer.checkpoints().get("file:n", b"0"))
            self.assertEqual(found, {n: body(n) for n in range(1, count + 1) if n not in lost})
            self.assertEqual(buffer.evicted, len(lost))
            if state.marks and state.marks[-1][1]:
                self.assertLessEqual(state.marks[-1][0], count)

    def test_every_crash_after_a_write_that_failed_is_clean(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(2)
        writer.disk.fail("write", errno.ENOSPC)
        self.assertRaises(StoreFull, writer.put, 3)
        writer.put(1)
        self.check_all(writer)

    def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_sent(self) -> None:
        """kill -9 keeps the page cache; a power cut after the next start does not."""
        writer = Writer(SimulatedDisk())
        writer.put(2)
        writer.put(2, sync=False)
        writer.buffer = Buffer.open(writer.disk, ROOMY)  # the same disk, another process
        self.assertEqual(writer.buffer.last, 4)
        writer.promise()
        self.check_all(writer)

    def test_no_segment_is_evicted_while_the_only_snapshot_is_not_durable(self) -> None:
        writer = Writer(SimulatedDisk(), TINY)
        writer.buffer.append([], {"file:idle": b"here"})
        for _ in range(8):
            writer.put(2)
        while len(segments(writer.disk)) < 4:
            writer.put(1, sync=False)
        writer.buffer.append([b"x" * TINY.hard], {})  # all that is old goes for it
        self.assertGreater(writer.buffer.evicted, 0)
        for files in writer.disk.crash_now():
            buffer = Buffer.open(SimulatedDisk(files), TINY)
            self.assertEqual(buffer.checkpoints()["file:idle"], b"here")

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.sampled_from("1259saro"), max_size=12), st.integers(0, 99))
    def test_any_way_of_using_it_survives_any_crash(self, steps: list[str], seed: int) -> None:
        """Digits append; s syncs, a acks half of it, r reopens, o adopts."""
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.promise()
        for step in steps:
            if step.isdigit():
                writer.put(int(step), sync=False)
            elif step == "s":
                writer.buffer.sync()
                writer.promise()
            elif step == "a":
                writer.buffer.truncate((writer.buffer.acked + writer.buffer.last) // 2)
            elif step == "o":
                everything(writer.buffer)
                writer.buffer.adopt(writer.buffer.last)
                writer.promise()
            else:
                writer.reopen()
                writer.promise()
        newest = writer.count
        for state in writer.disk.crash_states(8, seed):
            self.check(state, newest)


class NumberingTests(SynchronousTestCase):
    def test_a_new_buffer_has_no_numbers_until_the_server_spoke_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(3)
        self.assertIsNone(writer.buffer.next_seq)
        self.assertRaises(LocalProtocolError, writer.buffer.read, 1, 10, 1000)
        writer.reopen()
        self.assertIsNone(writer.buffer.next_seq)
        numbering = writer.buffer.adopt(41)
        self.assertEqual(numbering, (41, 44, False))
        self.assertEqual(everything(writer.buffer), {42: body(1), 43: body(2), 44: body(3)})
        self.assertEqual(writer.buffer.next_seq, 45)

    def test_an_empty_new_buffer_starts_behind_what_the_server_has_F1_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        self.assertEqual(writer.buffer.adopt(0), (0, 0, False))
        writer.put(1)
        self.assertEqual(list(everything(writer.buffer)), [1])

    def test_acks_within_what_is_known_move_forward(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(10)
        everything(writer.buffer)
        self.assertEqual(writer.buffer.adopt(7), (7, 10, False))
        writer.reopen()
        self.assertEqual((writer.buffer.acked, writer.buffer.depth), (7, 3))
        self.assertEqual(writer.buffer.adopt(10), (10, 10, False))
        self.assertEqual(writer.buffer.depth, 0)

    def test_a_server_that_is_behind_changes_nothing_F26(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(10)
        writer.buffer.truncate(8)
        self.assertEqual(writer.buffer.adopt(3), (8, 10, False))
        self.assertEqual(writer.buffer.read(4, 10, 10_000), Batch(9, [body(9), body(10)]))

    def test_a_server_that_is_ahead_renumbers_what_is_not_acked_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(10)
        writer.buffer.truncate(8)
        self.assertEqual(writer.buffer.adopt(100), (100, 102, True))
        writer.reopen()
        self.assertEqual(everything(writer.buffer), {101: body(9), 102: body(10)})
        writer.put(1)
        self.assertEqual(writer.buffer.last, 103)

    def test_next_seq_equal_to_accepted_renumbers_too_F2(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(3)
        self.assertEqual(writer.buffer.adopt(writer.buffer.next_seq), (4, 7, True))

    def test_what_no_server_can_have_is_never_taken_for_a_duplicate_F2(self) -> None:
        """A buffer restored from an older copy to which new entries came before the first
        hello: the server knows their numbers, but cannot have been sent them."""
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(10)
        writer.reopen()
        writer.put(30)
        self.assertEqual(writer.buffer.adopt(25), (25, 65, True))
        self.assertEqual(everything(writer.buffer), {n + 25: body(n) for n in range(1, 41)})

    def test_a_failed_state_write_leaves_the_old_numbers(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(3)
        writer.disk.fail("sync_directory")
        self.assertRaises(StoreError, writer.buffer.adopt, 100)
        self.assertEqual(list(everything(writer.buffer)), [1, 2, 3])
        self.assertEqual(writer.buffer.adopt(100).last, 103)

    def test_an_ack_of_what_was_never_here_is_our_bug(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(3)
        self.assertRaises(LocalProtocolError, writer.buffer.truncate, 4)


class ReadTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.writer = Writer(SimulatedDisk())
        self.writer.buffer.adopt(0)
        self.expected: dict[int, bytes] = {}

    def fill(self, groups: int, count: int) -> None:
        for _ in range(groups):
            self.writer.put(count)
        self.expected = {n: body(n) for n in range(1, self.writer.count + 1)}

    def test_reads_from_everywhere_in_any_amount(self) -> None:
        self.fill(12, 7)
        for reopened in (False, True):
            if reopened:
                self.writer.reopen()
            for first in (1, 2, 7, 8, 40, 83, 84):
                for most in (1, 6, 7, 8, 100):
                    batch = self.writer.buffer.read(first, most, 2**20)
                    self.assertEqual(batch.first, first)
                    wanted = [body(n) for n in range(first, min(85, first + most))]
                    self.assertTrue(batch.bodies)
                    self.assertEqual(batch.bodies, wanted)
            self.assertEqual(everything(self.writer.buffer), self.expected)
            self.assertEqual(self.writer.buffer.read(85, 5, 1000), Batch(85, []))

    def test_bytes_are_bounded_but_one_entry_always_comes(self) -> None:
        self.fill(1, 7)
        size = len(body(1)) + len(body(2)) + 2 * 32
        self.assertEqual(len(self.writer.buffer.read(1, 100, size).bodies), 2)
        self.assertEqual(len(self.writer.buffer.read(1, 100, size - 1).bodies), 1)
        self.assertEqual(len(self.writer.buffer.read(1, 100, 1).bodies), 1)

    def test_a49_only_what_is_synced_is_read(self) -> None:
        self.fill(1, 3)
        self.writer.put(2, sync=False)
        self.assertEqual(list(everything(self.writer.buffer)), [1, 2, 3])
        self.assertEqual(self.writer.buffer.last, 3)
        self.writer.buffer.sync()
        self.assertEqual(list(everything(self.writer.buffer)), [1, 2, 3, 4, 5])

    def test_live_traffic_is_not_read_back_from_disk(self) -> None:
        self.fill(20, 1)
        before = self.writer.disk.bytes_read
        self.writer.put(2)
        self.assertEqual(len(self.writer.buffer.read(21, 10, 10_000).bodies), 2)
        self.assertEqual(self.writer.disk.bytes_read, before)

    def test_a41_what_is_opened_does_not_grow_with_the_backlog(self) -> None:
        self.fill(4, 7)
        small = SimulatedDisk(self.writer.disk.files())
        Buffer.open(small, ROOMY)
        self.fill(60, 7)
        large = SimulatedDisk(self.writer.disk.files())
        buffer = Buffer.open(large, ROOMY)
        many = len(segments(large))
        self.assertGreater(many, 20)
        self.assertLess(large.bytes_read, small.bytes_read + many * 100)
        before = large.bytes_read
        buffer.read(1, 5, 1000)
        self.assertLess(large.bytes_read - before, 3000)

    def test_newlines_between_tokens_of_an_entry_become_spaces(self) -> None:
        self.writer.buffer.append([b'"metadata":{\n"a":1}}', b'"b":2}'], {})
        self.writer.buffer.sync()
        batch = self.writer.buffer.read(1, 9, 999)
        self.assertEqual(batch.bodies, [b'"metadata":{ "a":1}}', b'"b":2}'])

    def test_what_is_no_json_is_refused_and_changes_nothing(self) -> None:
        self.assertRaises(ValueError, self.writer.buffer.append, [b"a\0b"], {"k": b"1"})
        self.assertRaises(ValueError, self.writer.buffer.append, [b"a", b""], {"k": b"1"})
        self.assertEqual((self.writer.buffer.last, self.writer.buffer.checkpoints()), (0, {}))


class CheckpointTests(SynchronousTestCase):
    def test_checkpoints_are_set_kept_and_forgotten(self) -> None:
        writer = Writer(SimulatedDisk())
        buffer = writer.buffer
        buffer.append([], {"file:a": b"1", "file:b": b"2"})
        buffer.append([body(1)], {"file:a": None, "file:c": b"\0\n\xff"})
        buffer.sync()
        writer.reopen()
        self.assertEqual(writer.buffer.checkpoints(), {"file:b": b"2", "file:c": b"\0\n\xff"})

    def test_dropping_old_segments_loses_no_checkpoint(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.append([], {"file:idle": b"here"})
        writer.buffer.adopt(0)
        for _ in range(6):
            writer.put(7)
            writer.buffer.truncate(writer.buffer.last)
        self.assertNotIn(f"{1:020d}.seg", segments(writer.disk))
        writer.reopen()
        self.assertEqual(writer.buffer.checkpoints()["file:idle"], b"here")

    def test_segments_go_only_once_a_later_snapshot_is_durable(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.append([], {"file:idle": b"here"})
        writer.buffer.adopt(0)
        writer.put(7)
        writer.put(7)
        writer.put(1, sync=False)  # begins a segment, not durable yet
        writer.buffer.truncate(writer.buffer.last)
        for state in writer.disk.crash_states():
            if state.at == len(writer.disk.log):
                found = Buffer.open(state.disk(), ROOMY).checkpoints()
                self.assertEqual(found["file:idle"], b"here")

    def test_many_checkpoint_updates_without_entries_are_kept(self) -> None:
        writer = Writer(SimulatedDisk())
        for at in range(50):
            writer.buffer.append([], {"journal": b"%d" % at})
            writer.buffer.sync()
        writer.reopen()
        self.assertEqual(writer.buffer.checkpoints(), {"journal": b"49"})
