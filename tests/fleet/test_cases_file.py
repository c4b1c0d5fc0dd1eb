"""The field cases of the file source, A01 to A59, each by its id: what a tailer must do.

The same cases with any order of events are in `test_tailing_walk`; with real files in
`test_cases_file_disk` and tests/integration.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.sources.codings import CODINGS
from cortextx.fleet.agent.sources.identity import decode_checkpoint
from cortextx.fleet.agent.sources.lines import SURE_BYTES, RecordEncoder
from cortextx.fleet.agent.sources.multiline import Multiline
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.contract import LogEntry
from tests.fleet.fake_files import DEV, FakeAgent, FakeFiles

HEADER = b"# the same header in every file, longer than any sample " * 20 + b"\n"
SMALL = TailSettings(rotate_wait=5.0, read_bytes=2048, max_records=3, max_open=2)


class TailerCases(SynchronousTestCase):
    """Rotation, identity and offsets, over files in memory."""

    def setUp(self) -> None:
        self.files = FakeFiles()
        self.log = self.files.create("/log/app.log", b"one\ntwo\n")
        self.agent = FakeAgent(self.files)

    def records(self) -> list[bytes]:
        return [record for emit in self.agent.emitted for record in emit.records]

    def rotate(self, data: bytes = b"") -> None:
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.new = self.files.create("/log/app.log", data)

    def test_a01_a_rotation_while_stopped_is_followed(self) -> None:
        """The old file is found by its identity and finished; then the new one is read."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.agent = self.agent.stop()
        self.agent.run()
        self.assertEqual(self.records(), [b"three", b"four"])
        self.assertEqual({emit.home for emit in self.agent.emitted}, {"/log/app.log"})

    def test_a01_two_rotations_while_stopped_lose_nothing(self) -> None:
        """A file that came and went while the agent was down is found by its rotated name."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.files.rename("/log/app.log.1", "/log/app.log.2")
        self.rotate(b"five\n")
        self.files.create("/log/app.log.old", b"no rotation\n")
        self.files.create("/log/app.log.3.gz", b"compressed\n")
        self.agent = self.agent.stop()
        self.agent.run()
        self.assertEqual(self.records(), [b"three", b"four", b"five"])

    def test_a02_a_new_file_is_read_within_one_scan_a_thousand_times(self) -> None:
        """After each of 1,000 rotations one scan brings the new file's lines."""
        self.agent.run()
        for number in range(1000):
            self.rotate(b"%d\n" % number)
            self.agent.look()
            while self.agent.step() or self.agent.settle():
                pass
            self.assertEqual(self.agent.emitted[-1].records, [b"%d" % number])
            self.agent.now += 1.0
            if number > 5:
                self.files.unlink("/log/app.log.1")
        self.assertEqual(len(self.records()), 1002)
        self.assertLess(self.agent.tailer.open_files, 10)

    def test_a04_late_lines_of_the_old_file_come_and_the_old_comes_first(self) -> None:
        """The old handle is drained while the new file is already read."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.agent.run()
        self.files.write(self.log, b"late\n")
        self.agent.run()
        self.assertEqual(self.records(), [b"one", b"two", b"three", b"four", b"late"])

    def test_a04_the_new_file_waits_for_all_of_the_old(self) -> None:
        """Though files take turns, and though the old one needs many reads."""
        self.agent = FakeAgent(self.files, settings=SMALL)
        self.files.write(self.log, b"old\n" * 20)
        self.agent.run()
        self.files.write(self.log, b"old\n" * 20)
        self.rotate(b"new\n" * 20)
        self.agent.look()
        while self.agent.step() or self.agent.settle():
            pass
        self.assertEqual(self.records()[22:], [b"old"] * 20 + [b"new"] * 20)

    def test_a05_a_late_line_is_delivered_once_across_a_restart(self) -> None:
        """Also when the rotated file had been closed as finished."""
        self.agent.run()
        self.rotate()
        self.agent.run(20)
        self.assertEqual(self.agent.tailer.open_files, 0)
        self.files.write(self.log, b"late\n")
        self.agent = self.agent.stop()
        self.agent.run(20)
        self.agent = self.agent.stop()
        self.agent.run(20)
        self.assertEqual(self.log.delivered, [b"one", b"two", b"late"])

    def test_a05_a_late_line_reaches_a_finished_file_while_running(self) -> None:
        """A writer that never reopens its log is still heard."""
        self.agent.run()
        self.rotate()
        self.agent.run(20)
        self.files.write(self.log, b"late\n")
        self.agent.run(20)
        self.assertEqual(self.log.delivered, [b"one", b"two", b"late"])

    def test_a07_truncated_and_regrown_beyond_the_offset_is_seen(self) -> None:
        """The bytes before the offset differ, so the file is read from its start."""
        self.agent.run()
        self.files.truncate(self.log)
        self.files.write(self.log, b"other\nlines\nand more than before\n")
        self.agent.run()
        self.assertEqual(self.records()[2:], [b"other", b"lines", b"and more than before"])
        self.assertEqual(self.agent.gaps, [], "all that was known had been read (F43)")

    def test_a07_rewritten_to_the_same_size_is_seen(self) -> None:
        """The time of change differs, and then the bytes do."""
        self.agent.run()
        self.files.truncate(self.log)
        self.files.write(self.log, b"eno\nowt\n")
        self.agent.run()
        self.assertEqual(self.records()[2:], [b"eno", b"owt"])

    def test_a08_a_truncation_with_unread_bytes_is_a_gap(self) -> None:
        """Its size is the old size less the offset; it is reported once, even in a crash."""
        self.agent.run()
        self.files.write(self.log, b"lost\n")
        self.agent.look()
        self.files.truncate(self.log)
        self.files.write(self.log, b"new\n")
        self.agent.look()
        while self.agent.step():
            pass
        while not self.agent.gaps:
            self.assertTrue(self.agent.settle())
        first = self.agent
        self.agent = first.stop(crash=True)
        self.agent.run()
        self.assertEqual(self.log.delivered, [b"one", b"two", b"new"])
        self.assertEqual([gap.unread for gap in first.gaps + self.agent.gaps], [5])

    def test_a08_the_gap_names_the_unread_bytes(self) -> None:
        """«old size - offset» bytes, in words and as a number."""
        self.agent.run()
        self.files.write(self.log, b"lost\n")
        self.agent.look()
        self.files.truncate(self.log)
        self.agent.run()
        self.assertEqual([gap.unread for gap in self.agent.gaps], [5])
        self.assertIn("5 known bytes unread", self.agent.gaps[0].text)

    def test_a10_a_reused_inode_is_a_new_file(self) -> None:
        """Never is a dead file's offset taken for a new one's."""
        self.agent.run()
        self.agent = self.agent.stop()
        number = self.log.number
        self.files.unlink("/log/app.log")
        new = self.files.create("/log/app.log", b"quite other lines\nin the same inode\n")
        self.assertEqual(new.number, number)
        self.agent.run()
        self.assertEqual(self.records(), [b"quite other lines", b"in the same inode"])

    def test_a10_an_inode_reused_under_another_name_is_that_file(self) -> None:
        """A rotated file's inode that goes to another log: its lines bear their own file's
        name, whether the agent ran or not."""
        for stops in (False, True):
            files = FakeFiles()
            log = files.create("/log/app.log", b"one\n")
            agent = FakeAgent(files)
            agent.run()
            files.rename("/log/app.log", "/log/app.log.1")
            agent.run(60)
            if stops:
                agent = agent.stop()
            files.unlink("/log/app.log.1")
            other = files.create("/log/auth.log", b"other lines\nof another log\n")
            self.assertEqual(other.number, log.number)
            agent.run(60)
            homes = {emit.home for emit in agent.emitted if b"other lines" in emit.records}
            self.assertEqual(homes, {"/log/auth.log"}, f"stopped: {stops}")
            self.assertEqual(other.delivered, [b"other lines", b"of another log"])

    def test_a10_an_inode_reused_outside_the_globs_is_not_read(self) -> None:
        """A finished file's checkpoint never leads to a file that nobody asked for."""
        self.agent.run()
        self.agent = self.agent.stop()
        self.files.unlink("/log/app.log")
        other = self.files.create("/log/secrets.txt", b"one\ntwo, but secret\n")
        self.assertEqual(other.number, self.log.number)
        self.agent.run(20)
        self.assertEqual(self.records(), [])

    def test_a13_files_with_the_same_first_bytes_are_both_read(self) -> None:
        """A shared header is no shared identity, before and after rotation."""
        self.files.create("/log/x.log", HEADER + b"x\n")
        self.files.create("/log/y.log", HEADER + b"y\n")
        self.agent.run()
        self.rotate(HEADER + b"z\n")
        self.agent.run()
        records = self.records()
        self.assertEqual(records.count(HEADER[:-1]), 3)
        self.assertTrue({b"x", b"y", b"z"} <= set(records))

    def test_a14_empty_files_are_quiet_and_not_even_opened(self) -> None:
        """400 empty files: nothing said, nothing opened, 400 identities."""
        for number in range(400):
            self.files.create(f"/log/{number}.log")
        self.agent.run()
        self.assertEqual((self.agent.said, self.agent.opens), ([], 1))
        self.assertEqual(len(self.agent.kept), 401)

    def test_a14_a_line_without_newline_waits_and_is_not_split(self) -> None:
        """An unfinished last line stays in the file while the file is live."""
        self.files.write(self.log, b"thr")
        self.agent.run(20)
        self.agent = self.agent.stop(crash=True)
        self.files.write(self.log, b"ee\n")
        self.agent.run()
        self.assertEqual(self.log.delivered, [b"one", b"two", b"three"])

    def test_f43_the_unfinished_end_of_a_rotated_file_is_partial(self) -> None:
        """Once the file is rotated and quiet, the rest of it comes, marked."""
        self.files.write(self.log, b"unfinished")
        self.agent.run()
        self.rotate(b"new\n")
        self.agent.run(3)
        self.assertEqual(self.records(), [b"one", b"two", b"new"])
        self.agent.run(20)
        last = self.agent.emitted[-1]
        self.assertEqual((list(last.records), last.partial), ([b"unfinished"], True))
        self.agent.run(20)
        self.assertEqual(len(self.records()), 4)

    def test_a17_finished_and_deleted_files_are_closed_and_forgotten(self) -> None:
        """After the quiet time a deleted file has neither handle nor checkpoint."""
        self.agent.run()
        self.files.unlink("/log/app.log")
        self.agent.run(2)
        self.assertEqual(self.agent.tailer.open_files, 1)
        self.agent.run(10)
        self.assertEqual((self.agent.tailer.open_files, self.agent.kept), (0, {}))

    def test_a19_checkpoints_stand_at_record_boundaries(self) -> None:
        """Every checkpoint that was ever kept points behind a newline."""
        self.files.write(self.log, b"three\nfour\npart")
        self.agent = FakeAgent(self.files, settings=SMALL)
        self.agent.look()
        while self.agent.step() or self.agent.settle():
            for value in self.agent.kept.values():
                offset = decode_checkpoint(value).offset
                self.assertEqual(bytes(self.log.data[:offset])[-1:], b"\n" if offset else b"")

    def test_f41_compressed_files_are_never_read(self) -> None:
        """A *.gz is left alone even where the glob matches it."""
        self.files.create("/log/app.log.2.gz", b"\x1f\x8b\n")
        agent = FakeAgent(self.files, pattern="/log/*")
        agent.run()
        self.assertEqual({emit.home for emit in agent.emitted}, {"/log/app.log"})

    def test_f41_start_at_the_end_skips_only_what_was_there(self) -> None:
        """From the first scan on nothing is skipped: not later files, not after a restart."""
        settings = TailSettings(start="end")
        agent = FakeAgent(self.files, settings=settings)
        agent.run()
        self.files.write(self.log, b"three\n")
        self.files.create("/log/later.log", b"later\n")
        agent.run()
        agent2 = agent.stop()
        self.files.create("/log/last.log", b"last\n")
        agent2.run()
        records = [r for emit in agent.emitted + agent2.emitted for r in emit.records]
        self.assertEqual(sorted(records), [b"last", b"later", b"three"])

    def test_a_glob_that_matches_rotated_names_reads_nothing_twice(self) -> None:
        """A file that moves to another watched name is still the same file."""
        agent = FakeAgent(self.files, pattern="/log/*")
        agent.run()
        self.rotate(b"three\n")
        agent.run(20)
        agent = agent.stop()
        agent.run(20)
        self.assertEqual(self.log.delivered + self.new.delivered, [b"one", b"two", b"three"])

    def test_a_rename_back_reads_nothing_twice(self) -> None:
        """A file that returns to its home goes on at its offset."""
        self.agent.run()
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.agent.run(20)
        self.files.rename("/log/app.log.1", "/log/app.log")
        self.files.write(self.log, b"three\n")
        self.agent.run(20)
        self.assertEqual(self.records(), [b"one", b"two", b"three"])

    def test_changed_device_numbers_do_not_bring_the_logs_again(self) -> None:
        """After a reboot the same inode at the same path with the same bytes is the same."""
        self.agent.run()
        kept = {
            key.replace(f":{DEV}:", ":99:"): replace(decode_checkpoint(value), dev=99).encode()
            for key, value in self.agent.kept.items()
        }
        self.files.write(self.log, b"three\n")
        self.agent.stop()
        self.agent = FakeAgent(self.files, kept)
        self.agent.run()
        self.assertEqual(self.records(), [b"three"])
        self.assertEqual(list(self.agent.kept), [f"file:s:{DEV}:{self.log.number}"])

    def test_a11_a_compressed_predecessor_is_reported(self) -> None:
        """What went away while the agent was down is said to be unknown, not forgotten."""
        self.agent.run()
        self.agent = self.agent.stop()
        self.files.create("/log/app.log.1.gz", b"zip")
        self.files.unlink("/log/app.log")
        self.agent.run(5)
        self.assertEqual([gap.unread for gap in self.agent.gaps], [None])
        self.assertEqual(self.agent.kept, {})

    def test_a22_a_damaged_checkpoint_costs_one_file_only(self) -> None:
        """It is said and kept aside, and that file is read from its start; others go on."""
        self.files.create("/log/other.log", b"o\n")
        self.agent.run()
        agent = self.agent.stop()
        broken = {f"file:s:{DEV}:{self.log.number}": b'{"v":1'}
        agent = FakeAgent(self.files, agent.kept | broken)
        agent.run()
        self.assertEqual([r for e in agent.emitted for r in e.records], [b"one", b"two"])
        self.assertEqual([say.level for say in agent.said], ["warn"])
        aside = f"file:s:unreadable:{DEV}:{self.log.number}"
        self.assertEqual(agent.kept[aside], b'{"v":1')
        agent = agent.stop()
        agent.run()
        self.assertEqual((agent.said, agent.emitted), ([], []))

    def test_f17_a_long_line_is_given_in_parts_in_bounded_memory(self) -> None:
        """No read is larger than a part needs, and a restart goes on at the next part."""
        line = "é".encode() * 400_000
        self.files.write(self.log, line + b"\nend\n")
        agent = FakeAgent(self.files)
        agent.look()
        parts: list[bytes] = []
        numbers = []
        while len(parts) < 100 and (agent.step() or agent.settle()):
            if agent.emitted:
                emit = agent.emitted.pop()
                if emit.part:
                    parts += emit.records[:1]
                    numbers.append(emit.part)
                    agent = agent.stop(crash=True)
                    agent.look()
        self.assertEqual(b"".join(parts), line)
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        self.assertTrue(all(len(part) <= SURE_BYTES for part in parts[:-1]))

    def test_an_unreadable_file_is_said_once_and_tried_again(self) -> None:
        """EACCES is no flood; once it is mended, the file is read."""
        tailer = self.agent.tailer
        self.agent.look()
        for _ in range(3):
            action = tailer.next_action(self.agent.now)
            self.agent.take(tailer.failed(action.handle, 13, self.agent.now))
            self.agent.now += 60.0
            self.agent.look()
        self.assertEqual(len(self.agent.said), 1)
        self.agent.run()
        self.assertEqual(self.records(), [b"one", b"two"])

    def test_a43_files_take_turns(self) -> None:
        """A file with much to read does not starve the others (A43)."""
        self.files.write(self.log, b"much\n" * 10_000)
        self.files.create("/log/small.log", b"small\n")
        agent = FakeAgent(self.files, settings=SMALL)
        agent.look()
        while not any(emit.home == "/log/small.log" for emit in agent.emitted):
            self.assertTrue(agent.step() or agent.settle())
        self.assertLess(len(agent.emitted), 5)

    def test_d22_a_long_run_of_nuls_makes_no_entries_and_is_counted(self) -> None:
        """However many reads it spans: before a record, within a long one, at the end."""
        self.agent.run()
        self.files.write(self.log, b"\0" * 900_000 + b"three\n")
        self.files.write(self.log, b"x" * 70_000 + b"\0" * 900_000 + b"y\n" + b"\0" * 600_000)
        self.agent.run()
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.agent.run(20)
        emits = self.agent.emitted[1:]
        self.assertEqual(emits[0].nuls + emits[0].records[0].count(b"\0"), 900_000)
        self.assertEqual(emits[0].records[0].strip(b"\0"), b"three")
        texts = [record.strip(b"\0") for emit in emits for record in emit.records]
        self.assertEqual(b"".join(texts), b"three" + b"x" * 70_000 + b"y")
        self.assertNotIn(b"", texts)
        self.assertEqual(self.agent.tailer.open_files, 0)

    def test_a14_a_line_that_never_ends_comes_as_a_part(self) -> None:
        """After a quiet minute; what follows is the next part, also behind a restart."""
        self.files.write(self.log, b"thr")
        self.agent.run(55)
        self.assertEqual(self.records(), [b"one", b"two"])
        self.agent.run(10)
        self.assertEqual(self.agent.emitted[-1].records, [b"thr"])
        self.assertEqual(self.flags(-1), (1, True, True))
        self.agent.run(200)
        self.assertEqual(len(self.records()), 3, "once")
        self.agent = self.agent.stop(crash=True)
        self.files.write(self.log, b"ee\nfour\n")
        self.agent.run()
        self.assertEqual(self.records(), [b"ee", b"four"])
        self.assertEqual(self.flags(0), (2, False, False))
        self.assertEqual(self.log.delivered[2:], [b"three", b"four"])

    def flags(self, index: int) -> tuple[int, bool, bool]:
        emit = self.agent.emitted[index]
        return emit.part, emit.more, emit.partial

    def test_a14_half_a_character_and_unwritten_room_stay(self) -> None:
        """A part holds whole characters only, and no NULs that will be written over."""
        self.files.write(self.log, "à".encode() + b"\xc3" + b"\0" * 100)
        self.agent.run(70)
        self.assertEqual(self.records()[2:], ["à".encode()])
        self.log.data[11:13] = b"\xa9\n"
        self.files.write(self.log, b"")
        self.agent.run(70)
        self.assertEqual(self.log.delivered[2:], ["àé".encode()])

    def test_a16_a_rotated_and_compressed_file_is_finished_and_its_copy_left(self) -> None:
        """What was unread comes from the open file; nothing comes from the compressed one."""
        self.agent = FakeAgent(self.files, pattern="/log/*")
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.files.create("/log/app.log.1.gz", b"\x1f\x8b one\ntwo\nthree\n")
        self.files.unlink("/log/app.log.1")
        self.agent.run(20)
        self.agent = agent = self.agent.stop()
        agent.run(20)
        self.assertEqual(
            self.log.delivered + self.new.delivered, [b"one", b"two", b"three", b"four"]
        )
        self.assertEqual(agent.emitted, [])

    def test_a20_a_replaced_file_with_the_same_beginning_goes_on(self) -> None:
        """At the old offset, whether the agent saw it happen or was down; once, and said."""
        self.agent.run()
        for text in (b"three\n", b"four\n"):
            self.log = self.files.replace("/log/app.log", bytes(self.log.data) + text)
            self.agent.run(20)
            self.assertEqual(self.log.delivered, [text.strip()])
            self.assertIn("goes on at byte", self.agent.said[-1].text)
            self.assertEqual((self.agent.gaps, len(self.agent.kept)), ([], 1))
            self.agent = self.agent.stop()

    def test_a20_another_file_in_its_place_is_read_from_its_start(self) -> None:
        """Though it begins with the same header, it is a new file, and said to be."""
        self.agent = FakeAgent(self.files)
        self.files.write(self.log, HEADER + b"three\n")
        self.agent.run()
        new = self.files.replace("/log/app.log", bytes(self.log.data).replace(b"three", b"other"))
        self.agent.run(20)
        self.assertEqual(new.delivered, [b"one", b"two", HEADER[:-1], b"other"])
        self.assertIn("another file, read from its start", self.agent.said[-1].text)
        self.assertEqual(self.agent.gaps, [])

    def test_a20_a_file_that_only_ends_alike_is_another_file(self) -> None:
        """The bytes before the old offset are the same, the first ones are not: all is read."""
        same = b"the same line, over and over\n" * 100
        self.files.write(self.log, b"a\n" + same)
        self.agent.run()
        new = self.files.replace("/log/app.log", b"ONE\nTWO\nb\n" + same)
        self.agent.run(20)
        self.assertEqual(len(bytes(new.data)), len(bytes(self.log.data)))
        self.assertEqual(new.delivered, new.records)

    def test_a20_a_rotation_is_no_replacement(self) -> None:
        """Where the old file still exists, the new one's first lines are its own (A13)."""
        self.agent.run()
        self.rotate(b"one\ntwo\n")
        self.agent.run()
        self.assertEqual(self.new.delivered, [b"one", b"two"])

    def test_a59_a_file_out_of_the_glob_rests_and_comes_back(self) -> None:
        """What a source no longer names is not read; named again, it goes on."""
        other = self.files.create("/log/other.log", b"o\n")
        self.agent.run()
        self.agent.pattern = "/log/app.*"
        agent = self.agent.stop()
        self.files.write(other, b"secret\n")
        agent.run(20)
        self.assertEqual(other.delivered, [b"o"])
        agent.pattern = "/log/*.log"
        agent = agent.stop()
        self.files.write(other, b"p\n")
        agent.run()
        self.assertEqual(other.delivered, [b"o", b"secret", b"p"])
        self.assertEqual(self.log.delivered, [b"one", b"two"])

    def test_a02_a_file_that_came_and_went_at_a_vacant_home_is_found(self) -> None:
        """Created, written and rotated within one interval, long after the last one."""
        self.agent.run()
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.agent.run(20)
        self.files.rename("/log/app.log.1", "/log/app.log.2")
        new = self.files.create("/log/app.log", b"three\n")
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.agent.run(3)
        self.assertEqual(new.delivered, [b"three"])

    def test_a04_a_refused_put_does_not_let_the_new_file_pass(self) -> None:
        """The buffer had no room for the old file's last lines: the new one waits too."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.agent.look()
        self.agent.step()
        [(_, put)] = [put for put in self.agent.puts if put[0] is self.log]
        self.agent.puts.clear()
        self.agent.take(self.agent.tailer.put_failed(put.handle, self.agent.now))
        self.agent.run(20)
        self.assertEqual(self.records(), [b"one", b"two", b"three", b"four"])


class CodingCases(SynchronousTestCase):
    """A23: UTF-16 and BOMs."""

    TEXT = "first\nĊ and \u0a0a hold bytes of a newline\n𝄞 two units\n\nlast\n"

    def messages(self, agent: FakeAgent) -> list[str]:
        encoder = RecordEncoder("file:/log/app.log")
        bodies: list[bytes] = []
        for emit in agent.emitted:
            bodies += encoder.encode(
                emit.records, 0, 0, part=emit.part, more=emit.more, partial=emit.partial,
                at_start=emit.start == 0, nuls=emit.nuls, coding=emit.coding,
            )  # fmt: skip
        entries = [msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry) for body in bodies]
        return [entry.message for entry in entries]

    def test_a23_utf_16_and_boms_at_every_cut(self) -> None:
        """Whole, and byte by byte with a restart between any two bytes: the same lines."""
        for codec in ("utf-16-le", "utf-16-be", "utf-8"):
            data = ("\ufeff" + self.TEXT).encode(codec)
            for step in (len(data), 1):
                files = FakeFiles()
                log = files.create("/log/app.log")
                agent = FakeAgent(files)
                agent.look()
                came: list[str] = []
                for at in range(0, len(data), step):
                    files.write(log, data[at : at + step])
                    agent.run()
                    came += self.messages(agent)
                    agent = agent.stop(crash=at % 2 == 0)
                self.assertEqual(came, self.TEXT.split("\n")[:-1], (codec, step))

    def test_a23_a_named_encoding_needs_no_bom(self) -> None:
        for name in ("utf-16le", "utf-16be", "latin-1"):
            coding = CODINGS[name]
            files = FakeFiles()
            files.create("/log/app.log", coding.data("ä\nö\n"))
            agent = FakeAgent(files, settings=TailSettings(encoding=name))
            agent.run()
            self.assertEqual(self.messages(agent), ["ä", "ö"], name)

    def test_a23_a_long_line_of_utf_16_is_given_in_parts(self) -> None:
        """No pair of surrogates is cut, and no part is longer than it may be."""
        files = FakeFiles()
        line = "x" + "𝄞" * 200_000
        files.create("/log/app.log", f"\ufeff{line}\nend\n".encode("utf-16-le"))
        agent = FakeAgent(files)
        agent.run()
        messages = self.messages(agent)
        self.assertEqual("".join(messages), line + "end")
        self.assertLessEqual(max(map(len, messages)), 65_536)

    def test_a23_the_coding_survives_a_truncation_that_leaves_a_hole(self) -> None:
        """A writer that goes on at its old offset leaves NULs where the BOM was (A07)."""
        files = FakeFiles()
        log = files.create("/log/app.log", "\ufeffone\n".encode("utf-16-le"))
        agent = FakeAgent(files)
        agent.run()
        files.truncate(log)
        files.write(log, b"\0" * 10 + "two\n".encode("utf-16-le"))
        agent.run()
        self.assertEqual([emit.coding for emit in agent.emitted], ["utf-16le"] * 2)
        self.assertEqual(self.messages(agent), ["one", "two"])

    def test_a34_invalid_utf_16_is_replaced_and_kept(self) -> None:
        """With the name of its encoding; its neighbours are untouched."""
        data = "a\n".encode("utf-16-le") + b"\x00\xd8x\0\n\0" + "b\n".encode("utf-16-le")
        files = FakeFiles()
        files.create("/log/app.log", data)
        agent = FakeAgent(files, settings=TailSettings(encoding="utf-16le"))
        agent.run()
        self.assertEqual(self.messages(agent), ["a", "\ufffdx", "b"])
        [body] = RecordEncoder("file:/l").encode([b"\x00\xd8x\0"], 0, 0, coding="utf-16le")
        self.assertIn(b'{"cortextx":{"raw":"ANh4AA==","encoding":"utf-16le"}}', body)


class MultilineCases(SynchronousTestCase):
    """Records of several lines: A19 and A04 hold for them too."""

    TRACE = [b"ERROR x\n  at a\n  at b", b"INFO y", b"WARN z\n  at c"]

    def setUp(self) -> None:
        self.files = FakeFiles()
        self.log = self.files.create("/log/app.log")

    def agent(self, **rule) -> FakeAgent:
        rule = rule or {"start": r"^[A-Z]+ "}
        settings = TailSettings(rotate_wait=20.0, read_bytes=2048, multiline=Multiline(**rule))
        return FakeAgent(self.files, settings=settings)

    def test_a19_a_record_is_whole_at_every_cut(self) -> None:
        """Byte by byte with restarts: the same records, the last after its time-out."""
        for step in (1, 1000):
            for rule in ({"start": r"^[A-Z]+ "}, {"continues": r"^\s"}):
                self.setUp()
                agent = self.agent(**rule)
                agent.look()
                data = b"\n".join(self.TRACE) + b"\n"
                for at in range(0, len(data), step):
                    self.files.write(self.log, data[at : at + step])
                    agent.look()
                    while agent.step() or agent.settle():
                        pass
                    agent = agent.stop(crash=at % 2 == 0)
                self.assertEqual(self.log.delivered, self.TRACE[:2])
                agent.run(8)
                self.assertEqual(self.log.delivered, self.TRACE)

    def test_a04_the_new_file_waits_for_the_old_ones_last_record(self) -> None:
        """Until the next line might have belonged to it no more."""
        agent = self.agent()
        self.files.write(self.log, b"ERROR x\n  at a\n")
        agent.run()
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.files.create("/log/app.log", b"INFO new\nINFO newer\n")
        self.files.write(self.log, b"  at b\n")
        agent.run(2)
        self.assertEqual(agent.emitted, [])
        agent.run(12)
        records = [record for emit in agent.emitted for record in emit.records]
        self.assertEqual(records[:2], [b"ERROR x\n  at a\n  at b", b"INFO new"])

    def test_caps_end_a_record_and_mark_it(self) -> None:
        """By lines and by bytes; nothing is lost, and the rest is a record of its own."""
        self.files.write(self.log, b"A \n" + b"  at\n" * 9 + b"B \n" + b"y" * 90 + b"\nC \n")
        agent = self.agent(start=r"^[A-Z] ", max_lines=4, max_bytes=1024)
        agent.run(10)
        self.assertEqual(b"\n".join(self.log.delivered) + b"\n", bytes(self.log.data))
        self.assertEqual([r.count(b"\n") for r in self.log.delivered], [3, 3, 1, 1, 0])
        self.assertEqual(agent.emitted[0].capped, (0, 1))
        [body] = RecordEncoder("file:/l").encode([b"x"], 0, 0, capped=(0,))
        self.assertIn(b'{"cortextx":{"capped":true}}', body)

    def test_a_record_beyond_any_read_and_a_long_line_in_it(self) -> None:
        """Both end at their bounds, in bounded reads; every byte comes once."""
        trace = b"A \n" + b"  at %b\n" % (b"x" * 900) * 200
        self.files.write(self.log, trace + b"A \n  at\n" + b"z" * 700_000 + b"\n  at\nA end\n")
        agent = self.agent(start=r"^A ", max_bytes=100_000)
        agent.run(10)
        self.assertEqual(b"\n".join(self.log.delivered) + b"\n", bytes(self.log.data))
        sizes = [len(record) for emit in agent.emitted for record in emit.records]
        self.assertLessEqual(max(sizes), SURE_BYTES)
