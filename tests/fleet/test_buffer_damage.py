"""The agent's buffer over damaged, missing and unreadable files (A37, A22)."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import (
    SchemaTooNew,
)
from cortextx.fleet.agent.buffer import Buffer
from cortextx.fleet.agent.buffer_blocks import SegmentHeader, encode_segment_header
from cortextx.fleet.agent.buffer_state import LOSSES_KEY, STATE
from cortextx.fleet.agent.buffer_view import acknowledge, apart
from cortextx.testing.disk import SimulatedDisk
from tests.fleet.buffer_life import ROOMY, Writer, body, everything, segments


class DamageTests(SynchronousTestCase):
    """A37: damage costs what it hit, is reported once, and the rest goes on."""

    def filled(self, groups: int = 12, acked: int = 0) -> SimulatedDisk:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        for _ in range(groups):
            writer.put(4)
        writer.buffer.truncate(acked)
        writer.buffer.close()
        return SimulatedDisk(writer.disk.files())

    def find(self, disk: SimulatedDisk, number: int) -> tuple[str, int]:
        for name in segments(disk):
            at = disk.files()[name].find(body(number))
            if at >= 0:
                return name, at
        raise AssertionError(number)

    def damaged_at(self, *numbers: int, groups: int = 12, acked: int = 0) -> Buffer:
        self.disk = self.filled(groups, acked)
        for number in numbers:
            self.disk.damage(*self.find(self.disk, number), b"#")
        return Buffer.open(self.disk, ROOMY)

    def test_a37_a_damaged_block_of_an_old_segment_is_lost_alone(self) -> None:
        buffer = self.damaged_at(6)
        found = everything(buffer)
        self.assertEqual(found, {n: body(n) for n in range(1, 49) if n not in (5, 6, 7, 8)})
        [loss] = buffer.losses()
        self.assertEqual((loss.first, loss.last, loss.count, loss.reason), (5, 8, 4, "damaged"))
        self.assertEqual((buffer.depth, buffer.damaged), (44, 4))
        [name] = buffer.quarantined()
        self.assertIn(body(7), self.disk.files()[name])

    def test_a37_it_is_reported_once(self) -> None:
        buffer = self.damaged_at(6)
        everything(buffer)
        number = buffer.losses()[0].number
        buffer = Buffer.open(SimulatedDisk(self.disk.files()), ROOMY)
        everything(buffer)
        self.assertEqual([loss.number for loss in buffer.losses()], [number])
        buffer.append([b'"source":"custom:cortextx"}'], {LOSSES_KEY: b"%d" % number})
        buffer.sync()
        self.assertEqual(buffer.losses(), [])
        disk = SimulatedDisk(buffer._disk.files())
        buffer = Buffer.open(disk, ROOMY)
        everything(buffer)
        self.assertEqual((buffer.losses(), buffer.depth), ([], 45))
        self.assertEqual(len(buffer.quarantined()), 1)

    def test_a_damaged_block_of_the_newest_segment_is_told_from_a_torn_end(self) -> None:
        """Later blocks say that it had been synced."""
        self.disk = self.filled(3)
        name = segments(self.disk)[-1]
        first = int(name[:20])
        self.disk = self.filled(2)
        writer = Writer(self.disk)
        while len(segments(writer.disk)) < 3:
            writer.put(1)
        first = int(segments(writer.disk)[-1][:20])
        for _ in range(3):
            writer.put(1)
        self.disk = SimulatedDisk(writer.disk.files())
        self.disk.damage(*self.find(self.disk, first + 1), b"#")
        buffer = Buffer.open(self.disk, ROOMY)
        self.assertEqual((buffer.recovery.cut, buffer.recovery.lost), (0, 1))
        self.assertEqual([(x.first, x.last) for x in buffer.losses()], [(first + 1, first + 1)])
        self.assertEqual(set(everything(buffer)), set(range(1, first + 4)) - {first + 1})

    def test_a_damaged_end_below_what_the_state_proves_is_no_torn_end(self) -> None:
        """Its numbers are not given out again: the server may have taken them (§7)."""
        buffer = self.damaged_at(48)
        self.assertEqual(buffer.recovery.lost, 4)
        self.assertEqual((buffer.last, buffer.next_seq, buffer.depth), (48, 49, 44))
        self.assertEqual(len(buffer.quarantined()), 1)
        buffer.append([body(49)], {"file:n": b"49"})
        buffer.sync()
        again = Buffer.open(SimulatedDisk(self.disk.files()), ROOMY)
        self.assertEqual(everything(again)[49], body(49))
        self.assertEqual((again.recovery.lost, len(again.losses())), (0, 1))

    def killed(self) -> SimulatedDisk:
        """Two blocks, of which nothing but the second's own bytes says that it was synced."""
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(4)
        writer.put(4)
        return SimulatedDisk(writer.disk.files())

    def test_without_that_proof_an_unfinished_write_is_a_torn_end_and_cut(self) -> None:
        """It lacks its end, or pages of it were never written."""
        for how in ("short", "zeros", "no head"):
            disk = self.killed()
            name, at = self.find(disk, 8)
            head = disk.files()[name].rfind(b"\0CXB")
            if how == "short":
                disk.open(name).truncate(at + 3)
            elif how == "zeros":
                disk.damage(name, at, bytes(20))
            else:
                disk.damage(name, head, bytes(60))
            buffer = Buffer.open(disk, ROOMY)
            self.assertGreater(buffer.recovery.cut, 0, how)
            self.assertEqual((buffer.recovery.lost, buffer.last, buffer.losses()), (0, 4, []), how)
            self.assertEqual(buffer.checkpoints(), {"file:n": b"4"}, how)
            self.assertEqual(buffer.quarantined(), [], how)

    def test_a37_a_last_block_with_changed_bytes_is_damage_and_kept_aside(self) -> None:
        """No unfinished write leaves other bytes than were written; its numbers are not given
        out again, as the server may know them."""
        for how in ("entry", "head"):
            disk = self.killed()
            name, at = self.find(disk, 8)
            head = disk.files()[name].rfind(b"\0CXB")
            disk.damage(name, at if how == "entry" else head + 9, b"#")
            buffer = Buffer.open(disk, ROOMY)
            [loss] = buffer.losses()
            self.assertEqual((loss.first, loss.last, loss.reason), (5, 8, "damaged"), how)
            [kept] = buffer.quarantined()
            self.assertIn(body(7), disk.files()[kept], how)
            self.assertEqual((buffer.last, buffer.next_seq), (8, 9), how)
            self.assertEqual(buffer.checkpoints(), {"file:n": b"4"}, how)
            buffer.append([body(9)], {"file:n": b"9"})
            buffer.sync()
            again = Buffer.open(SimulatedDisk(disk.files()), ROOMY)
            self.assertEqual(set(everything(again)), {1, 2, 3, 4, 9}, how)
            self.assertEqual((len(again.losses()), again.recovery.lost), (1, 0), how)

    def test_a_damaged_head_of_a_new_segment_costs_no_entry(self) -> None:
        disk = self.killed()
        disk.damage(segments(disk)[0], 8, b"########")
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual(set(everything(buffer)), set(range(1, 9)))

    def test_a37_what_was_acknowledged_does_not_come_back(self) -> None:
        """The damaged bytes still stand in their segment at each start (A37)."""
        buffer = self.damaged_at(6, 47)
        everything(buffer)
        self.assertEqual(len(buffer.quarantined()), 2)
        disk = self.disk
        names = acknowledge(disk)
        for _ in range(3):
            disk = SimulatedDisk(disk.files())
            again = Buffer.open(disk, ROOMY)
            everything(again)
            self.assertEqual((apart(disk), again.recovery.notes), ([], ()))
            self.assertLessEqual(set(names), set(disk.names()))

    def test_a_segment_that_was_begun_proves_the_one_before_whole(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        for _ in range(3):
            writer.put(4)
        disk = SimulatedDisk(writer.disk.files())
        disk.create(f"{13:020d}.seg")  # a crash came just then
        disk.damage(*self.find(disk, 12), b"#")
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual([(x.first, x.last) for x in buffer.losses()], [(9, 12)])
        self.assertEqual(buffer.next_seq, 13)
        buffer.append([body(13)], {})
        buffer.sync()
        self.assertEqual(list(everything(buffer)), [*range(1, 9), 13])

    def test_a_block_that_goes_back_in_positions_is_not_believed(self) -> None:
        disk = self.filled(1)
        [name] = segments(disk)
        content = disk.files()[name]
        block = content[content.rfind(b"\0CXB") :]
        disk.open(name).write_at(len(content), [block])
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual((buffer.last, buffer.recovery.cut), (4, len(block)))

    def test_a38_a_missing_segment_is_a_gap_above_acked_and_normal_below(self) -> None:
        for acked, lost in ((0, True), (40, False)):
            disk = self.filled(12)
            names = segments(disk)
            gone = int(names[1][:20]), int(names[2][:20]) - 1
            disk.unlink(names[1])
            if acked:
                disk.unlink(STATE)
                writer = Writer(SimulatedDisk(self.filled(12).files()))
                writer.buffer.adopt(acked)
                files = writer.disk.files()
                disk = SimulatedDisk(files)
                gone = (0, 0)
            buffer = Buffer.open(disk, ROOMY)
            ranges = [(x.first, x.last, x.reason) for x in buffer.losses()]
            self.assertEqual(ranges, [(*gone, "missing")] if lost else [])
            wanted = {n for n in range(acked + 1, 49) if not gone[0] <= n <= gone[1]}
            self.assertEqual(set(everything(buffer)), wanted)

    def test_a_missing_newest_segment_gives_its_numbers_to_nobody(self) -> None:
        disk = self.filled(12)
        names = segments(disk)
        disk.unlink(names[-1])
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual((buffer.last, buffer.next_seq), (48, 49))
        self.assertEqual([(x.first, x.last) for x in buffer.losses()], [(int(names[-1][:20]), 48)])

    def test_all_segments_missing_is_said_with_the_exact_range(self) -> None:
        disk = self.filled(12, acked=5)
        for name in segments(disk):
            disk.unlink(name)
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual([(x.first, x.last) for x in buffer.losses()], [(6, 48)])
        self.assertEqual((buffer.depth, buffer.next_seq), (0, 49))
        buffer.append([body(49)], {})
        buffer.sync()
        self.assertEqual(everything(buffer), {49: body(49)})

    def test_a_damaged_head_costs_no_entry(self) -> None:
        for at in (0, -1):
            disk = self.filled(12)
            disk.damage(segments(disk)[at], 8, b"########")
            buffer = Buffer.open(disk, ROOMY)
            self.assertEqual(everything(buffer), {n: body(n) for n in range(1, 49)})
            self.assertEqual(buffer.losses(), [])
            self.assertEqual(len(buffer.quarantined()), 1)
            self.assertEqual(buffer.checkpoints(), {"file:n": b"48"})

    def test_a_damaged_snapshot_is_made_up_from_the_segment_before(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.append([], {"file:idle": b"here"})
        writer.buffer.adopt(0)
        for _ in range(12):
            writer.put(4)
        writer.buffer.close()
        disk = SimulatedDisk(writer.disk.files())
        name = segments(disk)[-1]
        disk.damage(name, disk.files()[name].find(b"here"), b"#")
        buffer = Buffer.open(disk, ROOMY)
        self.assertEqual(buffer.checkpoints(), {"file:n": b"48", "file:idle": b"here"})
        self.assertEqual(everything(buffer), {n: body(n) for n in range(1, 49)})

    def test_unreadable_sectors_are_damage_not_an_end(self) -> None:
        disk = self.filled(12)
        name, at = self.find(disk, 6)
        disk.make_unreadable(name, at, at + 1)
        buffer = Buffer.open(disk, ROOMY)
        found = everything(buffer)
        self.assertNotIn(6, found)
        self.assertEqual(found[48], body(48))
        self.assertEqual(sum(x.count for x in buffer.losses()), 48 - len(found))

    def test_a_crash_while_damage_is_dealt_with_reports_it_once_all_the_same(self) -> None:
        damaged = self.filled(12)
        for number in (6, 47):
            damaged.damage(*self.find(damaged, number), b"#")
        disk = SimulatedDisk(damaged.files())
        whole = Buffer.open(disk, ROOMY)
        found = everything(whole)
        lost = [(x.first, x.last) for x in whole.losses()]
        self.assertEqual(sum(last - first + 1 for first, last in lost), 48 - len(found))
        for state in disk.crash_states(16):
            again = SimulatedDisk(state.files)
            buffer = Buffer.open(again, ROOMY)
            self.assertEqual(everything(buffer), found)
            self.assertEqual(sorted((x.first, x.last) for x in buffer.losses()), sorted(lost))
            self.assertEqual(len(buffer.quarantined()), len(whole.quarantined()))

    def test_rot_below_a_live_buffer_is_found_while_reading(self) -> None:
        disk = self.filled(12)
        buffer = Buffer.open(disk, ROOMY)
        buffer.read(1, 1, 10)
        name, at = self.find(disk, 6)
        disk.damage(name, at, b"#")
        self.assertEqual(set(everything(buffer)), set(range(1, 49)) - {5, 6, 7, 8})

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_whatever_rots_each_entry_is_right_or_reported(self, data: st.DataObject) -> None:
        disk = self.filled(8)
        files = disk.files()
        for _ in range(data.draw(st.integers(1, 3))):
            name = data.draw(st.sampled_from(segments(disk)))
            at = data.draw(st.integers(0, len(files[name]) - 1))
            rot = data.draw(st.binary(min_size=1, max_size=60))
            disk.damage(name, at, rot[: len(files[name]) - at])
        buffer = Buffer.open(disk, ROOMY)
        found = everything(buffer)
        lost = {n for x in buffer.losses() for n in range(x.first, x.last + 1)}
        for number, text in found.items():
            self.assertEqual(text, body(number))
        self.assertEqual(set(found) | lost, set(range(1, 33)))
        self.assertEqual(set(found) & lost, set())
        self.assertEqual(buffer.next_seq, 33)


class StateFileTests(SynchronousTestCase):
    def filled(self) -> SimulatedDisk:
        writer = Writer(SimulatedDisk())
        writer.put(4)
        writer.buffer.adopt(100)
        for _ in range(8):
            writer.put(4)
        writer.buffer.truncate(120)
        return SimulatedDisk(writer.disk.files())

    def test_a22_an_unreadable_state_is_kept_aside_and_the_one_before_serves(self) -> None:
        disk = self.filled()
        disk.damage(STATE, 3, b"#")
        buffer = Buffer.open(disk, ROOMY)
        self.assertIn("state.damaged", disk.names())
        self.assertIn("unreadable", buffer.recovery.notes[0])
        self.assertIn("may leave out losses of before", buffer.recovery.notes[1])
        self.assertEqual(buffer.next_seq, 137)
        oldest = int(segments(disk)[0][:20]) + 100
        self.assertEqual(set(everything(buffer)), set(range(oldest, 137)))
        self.assertEqual(buffer.losses(), [])
        again = Buffer.open(SimulatedDisk(disk.files()), ROOMY)
        self.assertEqual((again.recovery.notes, again.next_seq), ((), 137))

    def test_a_crash_while_it_is_made_anew_changes_nothing_of_that(self) -> None:
        damaged = self.filled()
        damaged.damage(STATE, 3, b"#")
        disk = SimulatedDisk(damaged.files())
        Buffer.open(disk, ROOMY)
        for state in disk.crash_states():
            buffer = Buffer.open(state.disk(), ROOMY)
            oldest = int(segments(disk)[0][:20]) + 100
            self.assertEqual(set(everything(buffer)), set(range(oldest, 137)), state.kept)
            self.assertEqual((buffer.losses(), buffer.next_seq), ([], 137), state.kept)

    def test_a22_without_any_state_the_segments_tell_the_numbers(self) -> None:
        for how in ("damaged", "gone"):
            disk = self.filled()
            for name in (STATE, "state.previous"):
                if how == "gone":
                    disk.unlink(name)
                else:
                    disk.damage(name, 3, b"#")
            buffer = Buffer.open(disk, ROOMY)
            self.assertEqual(buffer.next_seq, 137)
            oldest = int(segments(disk)[0][:20]) + 100
            self.assertEqual(set(everything(buffer)), set(range(oldest, 137)))
            self.assertTrue(buffer.recovery.notes)

    def test_a22_the_first_numbering_is_told_by_the_segments_at_once(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.put(4)
        writer.buffer.adopt(100)
        writer.put(1)
        disk = SimulatedDisk(writer.disk.files())
        disk.unlink(STATE)
        disk.unlink("state.previous")
        self.assertEqual(Buffer.open(disk, ROOMY).next_seq, 106)

    def test_what_a_newer_version_wrote_is_left_alone(self) -> None:
        disk = SimulatedDisk()
        head = bytearray(encode_segment_header(SegmentHeader(1, 0, None))[:-4])
        head[4] = 9
        disk.create(f"{1:020d}.seg").write_at(0, [head, zlib.crc32(head).to_bytes(4, "little")])
        before = disk.files()
        self.assertRaises(SchemaTooNew, Buffer.open, disk, ROOMY)
        self.assertEqual(disk.files(), before)

    def test_the_state_is_not_written_for_every_ack(self) -> None:
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(4)
        before = len(writer.disk.log)
        for seq in range(1, 5):
            writer.buffer.truncate(seq)
        self.assertEqual(len(writer.disk.log), before)
        self.assertEqual(writer.buffer.depth, 0)
