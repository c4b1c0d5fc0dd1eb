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

from cortextx.fleet.agent.sources.identity import FileStat, is_rotation_of
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

    def test_a43_a_large_file_advances_beside_many_small_ones(self) -> None:
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

    def test_a17_a43_more_large_files_than_may_be_open_take_turns(self) -> None:
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
