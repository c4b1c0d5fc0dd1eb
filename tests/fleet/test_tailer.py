"""The tailer: rotation, identity and exactly-once records over a file system in memory."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.sources.identity import FileStat, decode_checkpoint, is_rotation_of
from cortextx.fleet.agent.sources.lines import SURE_BYTES
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.agent.sources.tailer import Tailer
from tests.fleet.fake_files import DEV, FakeAgent, FakeFiles, Inode

HEADER = b"# the same header in every file, longer than any sample " * 20 + b"\n"
SMALL = TailSettings(rotate_wait=5.0, read_bytes=2048, max_records=3, max_open=2)


class TailingFiles(RuleBasedStateMachine):
    """Early test 5 of the design, first form: every record once, whole, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FakeFiles()
        self.agent = FakeAgent(self.files, settings=SMALL)
        self.count = 0
        self.histories = {}

    @initialize()
    def begin(self) -> None:
        for home in ("/log/a.log", "/log/b.log", "/log/c.log"):
            self.histories[home] = [self.files.create(home)]
        self.agent.look()
        while self.agent.settle():
            pass

    def line(self) -> bytes:
        self.count += 1
        return b"line %d" % self.count

    homes = st.sampled_from(["/log/a.log", "/log/b.log", "/log/c.log"])

    @rule(home=homes, lines=st.integers(1, 5), ends=st.booleans())
    def append(self, home: str, lines: int, ends: bool) -> None:
        text = b"\n".join(self.line() for _ in range(lines)) + (b"\n" if ends else b"")
        self.files.write(self.at_home(home), text)

    @rule(home=homes, size=st.integers(1, 3000))
    def append_much(self, home: str, size: int) -> None:
        self.files.write(self.at_home(home), b"%b %b\n" % (self.line(), b"x" * size))

    @rule(home=homes, back=st.integers(1, 2))
    def append_late(self, home: str, back: int) -> None:
        """A writer that still holds a rotated file writes to it (A05)."""
        history = self.histories[home]
        if len(history) > back and history[-1 - back] in self.files.names.values():
            self.files.write(history[-1 - back], self.line() + b"\n")

    def at_home(self, home: str) -> Inode:
        """The file there, made anew where the last rotation left none."""
        if home not in self.files.names:
            self.histories[home].append(self.files.create(home, fresh=True))
        return self.files.names[home]

    @rule(home=homes, header=st.booleans(), create=st.booleans())
    def rotate(self, home: str, header: bool, create: bool) -> None:
        names = self.files.names
        if home not in names:
            return
        depth = 1
        while f"{home}.{depth}" in names:
            depth += 1
        for index in range(depth, 1, -1):
            self.files.rename(f"{home}.{index - 1}", f"{home}.{index}")
        old = names[home]
        if old.data and not old.data.endswith(b"\n"):
            self.files.write(old, b"\n")
        old.due = len(old.records)
        self.files.rename(home, f"{home}.1")
        if create:
            new = self.files.create(home, HEADER if header else b"", fresh=True)
            self.histories[home].append(new)

    @rule(home=homes)
    def remove_oldest(self, home: str) -> None:
        """What was delivered whole goes. (Not the last one that is known of a home: a file
        that comes and goes between two looks is found only beside a known one.)"""
        if home not in self.files.names:
            return
        for path in sorted((p for p in self.files.names if p.startswith(home)), reverse=True):
            inode = self.files.names[path]
            if path != home and inode.delivered == inode.records and bytes(inode.data)[-1:] in (
                b"", b"\n",
            ):  # fmt: skip
                self.files.unlink(path)
                return

    @rule()
    def look(self) -> None:
        self.agent.look()

    @rule(steps=st.integers(1, 8))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.agent.step()

    @rule(puts=st.integers(1, 4))
    def settle(self, puts: int) -> None:
        for _ in range(puts):
            self.agent.settle()

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.agent.now += seconds

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.agent = self.agent.stop(crash)

    @precondition(lambda self: self.agent.puts)
    @rule()
    def lose_a_put(self) -> None:
        """The buffer refuses what is under way: all of it, as it keeps the order."""
        for inode, action in self.agent.puts:
            if inode is not None:
                self.agent.take(self.agent.tailer.put_failed(action.handle, self.agent.now))
        self.agent.puts = [put for put in self.agent.puts if put[0] is None]

    @invariant()
    def records_are_a_prefix(self) -> None:
        for history in self.histories.values():
            waiting = False
            for inode in history:
                assert inode.delivered == inode.records[: len(inode.delivered)]
                assert not (waiting and inode.delivered), "a new file came before the old one"
                waiting = waiting or len(inode.delivered) < inode.due

    @invariant()
    def handles_are_bounded(self) -> None:
        assert self.agent.tailer.open_files <= SMALL.max_open + len(self.agent.puts) + 3

    def teardown(self) -> None:
        for history in self.histories.values():
            inode = history[-1]
            if inode.data and not inode.data.endswith(b"\n"):
                self.files.write(inode, b"\n")
        self.agent.now += 20.0
        self.agent.run(20)
        for history in self.histories.values():
            for inode in history:
                assert inode.delivered == inode.records, (inode.delivered, inode.records)
        assert not [gap for gap in self.agent.gaps if gap.unread is not None], self.agent.gaps
        assert not [say for say in self.agent.said if say.level == "warn"], self.agent.said


class TailingFilesTests(SynchronousTestCase):
    def test_every_record_comes_once_whole_and_in_order(self) -> None:
        """Appends, partial lines, rotations, late lines, reused inodes, stops, crashes,
        refused puts: what was delivered is what was written."""
        run_state_machine_as_test(
            TailingFiles,
            settings=settings(max_examples=60, stateful_step_count=40, deadline=None),
        )

    def test_what_the_buffer_refused_still_comes_first(self) -> None:
        """A put that failed just before a rotation: the new file waits for the old one."""
        walk = TailingFiles()
        walk.begin()
        walk.append_much("/log/c.log", 1)
        walk.look()
        walk.work(2)
        walk.lose_a_put()
        walk.rotate("/log/c.log", True, True)
        walk.look()
        walk.work(2)
        walk.restart(False)
        walk.records_are_a_prefix()
        walk.teardown()


class RotationTests(SynchronousTestCase):
    """Cases A01 to A22 of the field, one by one."""

    def setUp(self) -> None:
        self.files = FakeFiles()
        self.log = self.files.create("/log/app.log", b"one\ntwo\n")
        self.agent = FakeAgent(self.files)

    def records(self) -> list[bytes]:
        return [record for emit in self.agent.emitted for record in emit.records]

    def rotate(self, data: bytes = b"") -> None:
        self.files.rename("/log/app.log", "/log/app.log.1")
        self.new = self.files.create("/log/app.log", data)

    def test_A01_a_rotation_while_stopped_is_followed(self) -> None:
        """The old file is found by its identity and finished; then the new one is read."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.agent = self.agent.stop()
        self.agent.run()
        self.assertEqual(self.records(), [b"three", b"four"])
        self.assertEqual({emit.home for emit in self.agent.emitted}, {"/log/app.log"})

    def test_A01_two_rotations_while_stopped_lose_nothing(self) -> None:
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

    def test_A02_a_new_file_is_read_within_one_scan_a_thousand_times(self) -> None:
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

    def test_A04_late_lines_of_the_old_file_come_and_the_old_comes_first(self) -> None:
        """The old handle is drained while the new file is already read."""
        self.agent.run()
        self.files.write(self.log, b"three\n")
        self.rotate(b"four\n")
        self.agent.run()
        self.files.write(self.log, b"late\n")
        self.agent.run()
        self.assertEqual(self.records(), [b"one", b"two", b"three", b"four", b"late"])

    def test_A04_the_new_file_waits_for_all_of_the_old(self) -> None:
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

    def test_A05_a_late_line_is_delivered_once_across_a_restart(self) -> None:
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

    def test_A05_a_late_line_reaches_a_finished_file_while_running(self) -> None:
        """A writer that never reopens its log is still heard."""
        self.agent.run()
        self.rotate()
        self.agent.run(20)
        self.files.write(self.log, b"late\n")
        self.agent.run(20)
        self.assertEqual(self.log.delivered, [b"one", b"two", b"late"])

    def test_A07_truncated_and_regrown_beyond_the_offset_is_seen(self) -> None:
        """The bytes before the offset differ, so the file is read from its start."""
        self.agent.run()
        self.files.truncate(self.log)
        self.files.write(self.log, b"other\nlines\nand more than before\n")
        self.agent.run()
        self.assertEqual(self.records()[2:], [b"other", b"lines", b"and more than before"])
        self.assertEqual(self.agent.gaps, [], "all that was known had been read (F43)")

    def test_A07_rewritten_to_the_same_size_is_seen(self) -> None:
        """The time of change differs, and then the bytes do."""
        self.agent.run()
        self.files.truncate(self.log)
        self.files.write(self.log, b"eno\nowt\n")
        self.agent.run()
        self.assertEqual(self.records()[2:], [b"eno", b"owt"])

    def test_A08_a_truncation_with_unread_bytes_is_a_gap(self) -> None:
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

    def test_A08_the_gap_names_the_unread_bytes(self) -> None:
        """«old size - offset» bytes, in words and as a number."""
        self.agent.run()
        self.files.write(self.log, b"lost\n")
        self.agent.look()
        self.files.truncate(self.log)
        self.agent.run()
        self.assertEqual([gap.unread for gap in self.agent.gaps], [5])
        self.assertIn("5 known bytes unread", self.agent.gaps[0].text)

    def test_A10_a_reused_inode_is_a_new_file(self) -> None:
        """Never is a dead file's offset taken for a new one's."""
        self.agent.run()
        self.agent = self.agent.stop()
        number = self.log.number
        self.files.unlink("/log/app.log")
        new = self.files.create("/log/app.log", b"quite other lines\nin the same inode\n")
        self.assertEqual(new.number, number)
        self.agent.run()
        self.assertEqual(self.records(), [b"quite other lines", b"in the same inode"])

    def test_A10_an_inode_reused_outside_the_globs_is_not_read(self) -> None:
        """A finished file's checkpoint never leads to a file that nobody asked for."""
        self.agent.run()
        self.agent = self.agent.stop()
        self.files.unlink("/log/app.log")
        other = self.files.create("/log/secrets.txt", b"one\ntwo, but secret\n")
        self.assertEqual(other.number, self.log.number)
        self.agent.run(20)
        self.assertEqual(self.records(), [])

    def test_A13_files_with_the_same_first_bytes_are_both_read(self) -> None:
        """A shared header is no shared identity, before and after rotation."""
        self.files.create("/log/x.log", HEADER + b"x\n")
        self.files.create("/log/y.log", HEADER + b"y\n")
        self.agent.run()
        self.rotate(HEADER + b"z\n")
        self.agent.run()
        records = self.records()
        self.assertEqual(records.count(HEADER[:-1]), 3)
        self.assertTrue({b"x", b"y", b"z"} <= set(records))

    def test_A14_empty_files_are_quiet_and_not_even_opened(self) -> None:
        """400 empty files: nothing said, nothing opened, 400 identities."""
        for number in range(400):
            self.files.create(f"/log/{number}.log")
        self.agent.run()
        self.assertEqual((self.agent.said, self.agent.opens), ([], 1))
        self.assertEqual(len(self.agent.kept), 401)

    def test_A14_a_line_without_newline_waits_and_is_not_split(self) -> None:
        """An unfinished last line stays in the file while the file is live."""
        self.files.write(self.log, b"thr")
        self.agent.run(20)
        self.agent = self.agent.stop(crash=True)
        self.files.write(self.log, b"ee\n")
        self.agent.run()
        self.assertEqual(self.log.delivered, [b"one", b"two", b"three"])

    def test_F43_the_unfinished_end_of_a_rotated_file_is_partial(self) -> None:
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

    def test_A17_finished_and_deleted_files_are_closed_and_forgotten(self) -> None:
        """After the quiet time a deleted file has neither handle nor checkpoint."""
        self.agent.run()
        self.files.unlink("/log/app.log")
        self.agent.run(2)
        self.assertEqual(self.agent.tailer.open_files, 1)
        self.agent.run(10)
        self.assertEqual((self.agent.tailer.open_files, self.agent.kept), (0, {}))

    def test_A19_checkpoints_stand_at_record_boundaries(self) -> None:
        """Every checkpoint that was ever kept points behind a newline."""
        self.files.write(self.log, b"three\nfour\npart")
        self.agent = FakeAgent(self.files, settings=SMALL)
        self.agent.look()
        while self.agent.step() or self.agent.settle():
            for value in self.agent.kept.values():
                offset = decode_checkpoint(value).offset
                self.assertEqual(bytes(self.log.data[:offset])[-1:], b"\n" if offset else b"")

    def test_F41_compressed_files_are_never_read(self) -> None:
        """A *.gz is left alone even where the glob matches it."""
        self.files.create("/log/app.log.2.gz", b"\x1f\x8b\n")
        agent = FakeAgent(self.files, pattern="/log/*")
        agent.run()
        self.assertEqual({emit.home for emit in agent.emitted}, {"/log/app.log"})

    def test_F41_start_at_the_end_skips_only_what_was_there(self) -> None:
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
            key.replace(f":{DEV}:", ":99:"): value.replace(b'"dev":%d' % DEV, b'"dev":99')
            for key, value in self.agent.kept.items()
        }
        self.files.write(self.log, b"three\n")
        self.agent.stop()
        self.agent = FakeAgent(self.files, kept)
        self.agent.run()
        self.assertEqual(self.records(), [b"three"])
        self.assertEqual(list(self.agent.kept), [f"file:s:{DEV}:{self.log.number}"])

    def test_A11_a_compressed_predecessor_is_reported(self) -> None:
        """What went away while the agent was down is said to be unknown, not forgotten."""
        self.agent.run()
        self.agent = self.agent.stop()
        self.files.create("/log/app.log.1.gz", b"zip")
        self.files.unlink("/log/app.log")
        self.agent.run(5)
        self.assertEqual([gap.unread for gap in self.agent.gaps], [None])
        self.assertEqual(self.agent.kept, {})

    def test_A22_a_damaged_checkpoint_costs_one_file_only(self) -> None:
        """It is said, and that file is read from its start; others go on."""
        self.files.create("/log/other.log", b"o\n")
        self.agent.run()
        agent = self.agent.stop()
        broken = {f"file:s:{DEV}:{self.log.number}": b'{"v":1'}
        agent = FakeAgent(self.files, agent.kept | broken)
        agent.run()
        self.assertEqual([r for e in agent.emitted for r in e.records], [b"one", b"two"])
        self.assertEqual([say.level for say in agent.said], ["warn"])

    def test_F17_a_long_line_is_given_in_parts_in_bounded_memory(self) -> None:
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

    def test_files_take_turns(self) -> None:
        """A file with much to read does not starve the others (A43)."""
        self.files.write(self.log, b"much\n" * 10_000)
        self.files.create("/log/small.log", b"small\n")
        agent = FakeAgent(self.files, settings=SMALL)
        agent.look()
        while not any(emit.home == "/log/small.log" for emit in agent.emitted):
            self.assertTrue(agent.step() or agent.settle())
        self.assertLess(len(agent.emitted), 5)

    def test_D22_a_long_run_of_nuls_makes_no_entries_and_is_counted(self) -> None:
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


class ManyFilesTests(SynchronousTestCase):
    """What thousands of files in one glob cost, counted and not timed."""

    def setUp(self) -> None:
        self.files = FakeFiles()

    def create(self, count: int, data: bytes = b"only line\n") -> None:
        for number in range(count):
            self.files.create(f"/log/{number:04}.log", data, fresh=True)

    def test_an_action_costs_the_same_among_many_files(self) -> None:
        """Past the bound of open files no step walks over the files: the dearest among 600
        runs about as many lines of code as the dearest among 20."""
        few, many = self.dearest(20), self.dearest(600)
        self.assertGreater(few, 5)
        self.assertLessEqual(many, 2 * few)

    def dearest(self, count: int) -> int:
        """The most lines that one `next_action` ran, until all was read."""
        self.files = FakeFiles()
        self.create(count)
        self.files.create("/log/big.log", b"much to read\n" * 500, fresh=True)
        agent = FakeAgent(self.files, settings=TailSettings(read_bytes=256, max_open=8))
        inner, most = agent.tailer.next_action, [0]

        def counted(now: float):
            lines = [0]

            def trace(frame, event, arg):
                if "sources" not in frame.f_code.co_filename:
                    return None
                lines[0] += event == "line"
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                return inner(now)
            finally:
                sys.settrace(before)
                most[0] = max(most[0], lines[0])

        agent.tailer.next_action = counted
        agent.look()
        while agent.step() or agent.settle():
            pass
        self.assertEqual(sum(len(emit.records) for emit in agent.emitted), count + 500)
        return most[0]

    def test_a_large_file_advances_beside_many_small_ones(self) -> None:
        """And they beside it: neither waits until the other is done (A43)."""
        self.files.create("/log/big.log", b"much to read\n" * 40_000, fresh=True)
        agent = FakeAgent(self.files, settings=TailSettings(read_bytes=2048, max_open=16))
        agent.look()
        agent.step()
        self.create(300)
        agent.look()
        since = steps = small = 0
        while small < 300:
            steps += agent.step()
            while agent.puts:
                agent.settle()
                if not agent.emitted:
                    continue
                is_big = agent.emitted[-1].home == "/log/big.log"
                small += not is_big
                since = 0 if is_big else since + 1
            self.assertLess(since, 4)
        self.assertLess(steps, 300 * 6)

    def test_more_large_files_than_may_be_open_take_turns(self) -> None:
        """One that had its turns gives its descriptor up, though it has more to read."""
        self.create(12, b"much to read\n" * 2000)
        agent = FakeAgent(self.files, settings=TailSettings(read_bytes=2048, max_open=3))
        agent.look()
        heard: set[str] = set()
        while len(heard) < 12:
            self.assertTrue(agent.step() or agent.settle())
            self.assertLessEqual(agent.tailer.open_files, 3)
            heard = {emit.home for emit in agent.emitted}
        self.assertLess(len(agent.emitted), 12 * 12)
        agent.run()
        for inode in self.files.names.values():
            self.assertEqual(inode.delivered, inode.records)


class NamesTests(SynchronousTestCase):
    def test_rotated_names(self) -> None:
        for name in ("app.log.1", "app.log-20260102", "app.log.2026-01-02", "app.log.12"):
            self.assertTrue(is_rotation_of(f"/l/{name}", "/l/app.log"), name)
        for name in ("app.log", "app.log.old", "app.log1", "app.log.1.gz", "other.log.1"):
            self.assertFalse(is_rotation_of(f"/l/{name}", "/l/app.log"), name)

    def test_a_stat_of_another_file_never_opens_a_tail(self) -> None:
        """If the path was taken by another file between scan and open, nothing is read."""
        files = FakeFiles()
        files.create("/log/a.log", b"x\n")
        agent = FakeAgent(files)
        agent.look()
        action = agent.tailer.next_action(0.0)
        actions = agent.tailer.opened(action.handle, FileStat(DEV, 99, 2, 1), b"x\n", 0.0)
        self.assertEqual([type(one).__name__ for one in actions], ["Close"])
        self.assertIsInstance(agent.tailer, Tailer)
