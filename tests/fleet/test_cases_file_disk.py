"""Field cases of the file source on a real directory, and the kernel's hints."""

from __future__ import annotations

import errno
import gzip
import os
import select
import tempfile
from shutil import rmtree

from twisted.internet.interfaces import IReactorFDSet
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from cortextx.core.patterns import PatternError
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources import hints, rotation
from cortextx.fleet.agent.sources.actions import Scan, Seen
from cortextx.fleet.agent.sources.file import FileSource
from cortextx.fleet.agent.sources.globs import facts
from cortextx.fleet.agent.sources.hints import Hints
from cortextx.fleet.agent.sources.multiline import Multiline
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.testing.disk import SimulatedDisk
from tests.fleet.buffer_life import Writer, everything
from tests.fleet.file_source_case import FileSourceCase, ThreadlessClock


@implementer(IReactorFDSet)
class Listening(ThreadlessClock):
    """A Clock whose readers are asked when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set = set()

    def addReader(self, reader) -> None:
        self.readers.add(reader)

    def removeReader(self, reader) -> None:
        self.readers.discard(reader)

    def hear(self) -> bool:
        """Whether a reader had something to read, and did."""
        heard = [one for one in self.readers if select.select([one], [], [], 0)[0]]
        for one in heard:
            one.doRead()
        return bool(heard)


class FileCases(FileSourceCase):
    """A17, A34, A59, and what a source's settings do."""

    def test_a17_open_files_are_bounded_and_shown(self) -> None:
        """However many files have something to read."""
        for number in range(40):
            self.write(f"{number}.log", b"x\n" * 3000)
        source = self.source(tail=TailSettings(max_open=5))
        source.start()
        self.assertEqual(len(self.bodies), 120_000)
        details = source.report().details
        self.assertEqual((details["open_files"], details["max_open_files"]), (5, 5))
        self.assertEqual(source.report().counters["records"], 120_000)

    def test_files_of_which_nothing_is_due_have_no_machine(self) -> None:
        """Only open ones do; one that grows, is rotated or goes is taken up again."""
        for number in range(40):
            self.write(f"{number:02}.log", b"one\n")
        source = self.source(tail=TailSettings(max_open=5), notified=False)
        source.start()
        self.pass_time(3)
        self.assertEqual((len(self.bodies), source.report().details["known_files"]), (40, 40))
        self.assertLessEqual(len(source._tailer._files.tails), 5)
        for number in (3, 7):
            self.write(f"{number:02}.log", b"two\n")
        os.rename(os.path.join(self.logs, "07.log"), os.path.join(self.logs, "07.log.1"))
        self.write("07.log", b"three\n")
        os.unlink(os.path.join(self.logs, "11.log"))
        self.pass_time(5)
        self.assertEqual(sorted(self.messages()[40:]), ["three", "two", "two"])
        self.assertEqual(source.report().counters["gaps"], 0)
        source.stop()
        again = self.source(tail=TailSettings(max_open=5), notified=False)
        again.start()
        self.assertLessEqual(len(again._tailer._files.tails), 6)
        self.pass_time(5)
        self.assertEqual(len(self.bodies), 43)

    def test_directories_of_calm_files_are_told_of_too(self) -> None:
        """So a change of such a file brings a hint as any other does."""
        for number in range(8):
            os.mkdir(os.path.join(self.logs, f"{number}"))
            self.write(f"{number}/a.log", b"one\n")
        source = self.source("*/a.log", tail=TailSettings(max_open=2), notified=False)
        seen = []
        source._hints.watch = lambda roots, found: seen.append(found)
        source.start()
        self.pass_time(3)
        self.assertGreaterEqual(len(seen[-1].calm_in), 6)
        told = {os.path.dirname(one.real) for one in seen[-1].files} | set(seen[-1].calm_in)
        self.assertEqual(told, {os.path.join(self.logs, f"{number}") for number in range(8)})

    def test_a_calm_file_with_another_name_is_one_file(self) -> None:
        """A second name of the same file, or a listing of its directory, brings no second."""
        for number in range(8):
            self.write(f"{number}.log", b"one\n")
        source = self.source(tail=TailSettings(max_open=2), notified=False)
        source.start()
        self.pass_time(3)
        os.link(os.path.join(self.logs, "1.log"), os.path.join(self.logs, "also.log"))
        os.rename(os.path.join(self.logs, "2.log"), os.path.join(self.logs, "2.log.1"))
        self.pass_time(40)
        self.assertEqual(self.messages(), ["one"] * 8)

    def test_more_files_than_max_files_are_not_read_and_said(self) -> None:
        """Those met first go on; one more is read once there is room."""
        for number in range(10):
            self.write(f"{number}.log", b"one\n")
        source = self.source(tail=TailSettings(max_files=6, max_open=2), notified=False)
        source.start()
        self.pass_time(3)
        self.assertEqual(len(self.bodies), 6)
        trouble = source.report().details["trouble"]
        self.assertIn(os.path.join(self.logs, "*.log"), trouble)
        self.assertIn("4 not read", trouble)
        self.assertEqual(source.report().details["files"], {os.path.join(self.logs, "*.log"): 10})
        read = {entry.source.removeprefix("file:") for entry in self.entries()}
        for path in sorted(read)[:4]:
            os.unlink(path)
        self.pass_time(10)
        self.assertEqual(len(self.bodies), 10)
        self.assertIsNone(source.report().details["trouble"])

    def test_many_new_files_come_in_steps(self) -> None:
        """No scan brings more than some, and `start = end` skips what was there all the same
        (F41)."""
        self.patch(rotation, "STEP", 3)
        for number in range(10):
            self.write(f"{number}.log", b"old\n")
        source = self.source(tail=TailSettings(max_open=2, start="end"), notified=False)
        source.start()
        self.assertEqual(source.report().details["known_files"], 3)
        self.pass_time(5)
        self.assertEqual(source.report().details["known_files"], 10)
        self.write("9.log", b"new\n")
        self.write("fresh.log", b"all\n")
        self.pass_time(5)
        self.assertEqual(sorted(self.messages()), ["all", "new"])

    def compressed_meanwhile(self, more: bytes, name: str = "app.log.1.gz") -> FileSource:
        """A source that finds its file compressed; `more` was written while it was down."""
        path = self.write("app.log", b"one\ntwo\n")
        first = self.source()
        first.start()
        self.pass_time()
        first.stop()
        self.write("app.log", more)
        with open(path, "rb") as log, gzip.open(os.path.join(self.logs, name), "wb") as copy:
            copy.write(log.read())
        os.rename(self.write("other", b"new\n"), path)  # in an inode that was free before
        source = self.source()
        source.start()
        self.pass_time(5)
        return source

    def test_a16_what_was_read_whole_before_it_was_compressed_is_no_gap(self) -> None:
        """However it is named; nothing of it is sent again."""
        for name in ("app.log.1.gz", "app.log-20260101.gz", "app.log.gz"):
            del self.bodies[:]
            source = self.compressed_meanwhile(b"", name)
            self.assertEqual(self.messages(), ["one", "two", "new"], name)
            self.assertEqual(source.report().counters["gaps"], 0, name)
            source.stop()
            for each in os.listdir(self.logs):
                os.unlink(os.path.join(self.logs, each))
            self.kept.clear()

    def test_a16_what_was_compressed_unread_is_a_gap_of_that_many_bytes(self) -> None:
        self.compressed_meanwhile(b"three\n")
        self.assertEqual([m for m in self.messages() if m in ("one", "two", "three", "new")],
                         ["one", "two", "new"])  # fmt: skip
        [gap] = [one for one in self.entries() if one.source == "custom:cortextx"]
        self.assertIn(b'"unread_bytes":"6"', bytes(gap.metadata))

    def test_a16_a_copy_of_another_file_says_nothing(self) -> None:
        """An older one, or one that begins otherwise."""
        old = os.path.join(self.logs, "app.log.2.gz")
        with gzip.open(old, "wb") as copy:
            copy.write(b"one\ntwo\n")
        os.utime(old, (1, 1))
        other = os.path.join(self.logs, "app.log.3.gz")
        with gzip.open(other, "wb") as copy:
            copy.write(b"another\nfile\n")
        source = self.compressed_meanwhile(b"", "elsewhere.gz")
        self.assertEqual(source.report().counters["gaps"], 1)

    def test_a34_invalid_bytes_are_kept_and_neighbours_untouched(self) -> None:
        """In a file whose name holds such bytes too."""
        self.write(os.fsdecode(b"\xe9.log"), b"a\nb\xffc\nd\n")
        self.source().start()
        self.assertEqual(self.messages(), ["a", "b�c", "d"])
        kept = [bytes(entry.metadata) for entry in self.entries()]
        self.assertEqual(kept, [b"", b'{"cortextx":{"raw":"Yv9j"}}', b""])
        self.assertTrue(self.entries()[0].source.endswith("/%E9.log"))

    def test_a59_a_source_that_is_added_again_resumes(self) -> None:
        """With what was written meanwhile, and nothing twice; another source between."""
        self.write("a.log", b"one\n")
        first = self.source()
        first.start()
        self.successResultOf(first.stop())
        self.write("a.log", b"two\n")
        self.write("b.txt", b"b\n")
        other = self.source("*.txt")
        other.start()
        self.pass_time()
        self.successResultOf(other.stop())
        self.source().start()
        self.assertEqual(self.messages(), ["one", "b", "two"])

    def test_excluded_globs_are_left_out(self) -> None:
        """But what was rotated to such a name is finished."""
        path = self.write("a.log", b"one\n")
        self.write("debug.log", b"no\n")
        globs = [os.path.join(self.logs, name) for name in ("debug*", "*.log.1")]
        source = self.source("*", exclude=globs)
        source.start()
        self.write("a.log", b"two\n")
        os.rename(path, path + ".1")
        self.pass_time()
        self.assertEqual(self.messages(), ["one", "two"])

    def test_what_a_rule_drops_is_passed_all_the_same(self) -> None:
        """The checkpoint goes on, and a restart does not bring it again."""
        self.compose = lambda **facts: None if facts["message"] == "x" else encode_body(**facts)
        self.write("a.log", b"x\ny\nx\n")
        for _ in range(2):
            source = self.source()
            source.start()
            self.successResultOf(source.stop())
        self.assertEqual(self.messages(), ["y"])

    def test_records_of_several_lines_are_one_entry(self) -> None:
        rule = Multiline(continues=r"^\s")
        self.write("a.log", b"ERROR x\n  at a\nINFO y\n")
        self.source(tail=TailSettings(multiline=rule)).start()
        self.assertEqual(self.messages(), ["ERROR x\n  at a"])
        self.pass_time(8)
        self.assertEqual(self.messages()[1:], ["INFO y"])

    def test_a_pattern_that_is_none_is_refused_at_the_start(self) -> None:
        source = self.source(tail=TailSettings(multiline=Multiline(start="(")))
        self.assertRaises(PatternError, source.start)

    def test_a_report_says_why_a_source_waits(self) -> None:
        source = self.source()
        source.start()
        report = source.report()
        self.assertEqual((report.state, report.why), ("waiting", "no file matches"))
        source.pause()
        self.assertEqual(source.report().state, "paused")


class HintCases(FileSourceCase):
    """inotify makes the next look come soon; without it nothing changes but the time."""

    def begin(self, **settings):
        self.clock = Listening()
        source = self.source(**settings)
        source.start()
        return source

    def test_a_change_is_read_at_once(self) -> None:
        """A tenth of a second after the last look, and no look comes for nothing."""
        source = self.begin()
        self.assertFalse(self.clock.hear())
        self.write("a.log", b"one\n")
        self.assertTrue(self.clock.hear())
        self.clock.advance(0.11)
        self.assertEqual(self.messages(), ["one"])
        self.assertFalse(self.clock.hear())
        self.write("a.log", b"two\n")
        self.clock.advance(0.5)
        self.assertTrue(self.clock.hear())
        self.clock.advance(0.0)
        self.assertEqual(self.messages(), ["one", "two"])
        self.assertEqual(source.report().counters["looks"], 3)
        self.successResultOf(source.stop())
        self.assertEqual(self.clock.readers, set())

    def test_thousands_of_files_cost_one_watch(self) -> None:
        for number in range(3000):
            self.write(f"{number}.log", b"")
        source = self.begin()
        self.assertEqual(source.report().details["directories"], 1)

    def test_watches_are_bounded(self) -> None:
        """The rest is found by looking, and the report says so."""
        for number in range(10):
            os.mkdir(os.path.join(self.logs, str(number)))
            self.write(f"{number}/a.log", b"x\n")
        source = self.begin(pattern="**/*.log", max_watches=4)
        details = source.report().details
        self.assertEqual(details["directories"], 4)
        self.assertIn("11 directories", details["directories_why"])
        self.write("9/a.log", b"y\n")
        self.clock.advance(1.0)
        self.assertEqual(self.messages().count("y"), 1)

    def test_a_kernel_that_gives_no_more_is_said_and_no_harm(self) -> None:
        """At max_user_watches, at max_user_instances, and where there is no inotify."""

        class Full:
            def inotify_init1(self, flags):
                return self.fail(errno.EMFILE) if self.none else os.open("/dev/null", 0)

            def inotify_add_watch(self, descriptor, path, mask):
                return self.fail(errno.ENOSPC)

            def fail(self, code):
                hints.ctypes.set_errno(code)
                return -1

        for none, word in ((False, "max_user_watches"), (True, "Too many open files")):
            Full.none = none
            self.patch(hints, "inotify", Full)
            source = self.begin()
            details = source.report().details
            self.assertEqual(details["directories"], 0)
            self.assertIn(word, details["directories_why"])
            self.write(f"{none}.log", b"x\n")
            self.clock.advance(1.0)
            self.assertIn("x", self.messages())
            self.successResultOf(source.stop())

    def test_a_directory_that_goes_is_no_longer_watched(self) -> None:
        place = tempfile.mkdtemp()
        self.addCleanup(rmtree, place)
        path = os.path.join(place, "x")
        open(path, "w").close()
        one = Hints(Listening(), lambda: None, 9)
        one.open()
        self.addCleanup(one.close)
        seen = Seen(path, path, facts(os.stat(path)), True)
        one.watch([self.logs], Scan([seen]))
        self.assertEqual(one.watched, 2)
        one.watch([self.logs], Scan([]))
        self.assertEqual((one.watched, one.why), (1, None))


class CheckpointCases(SynchronousTestCase):
    """A19 and A22, as far as checkpoints live in the buffer's blocks."""

    def test_a22_a_crash_leaves_entries_and_checkpoint_of_the_same_moment(self) -> None:
        """Whatever had reached the disk: the checkpoint is that of the last entry there, so
        reading on from it brings just what was not kept."""
        writer = Writer(SimulatedDisk())
        for _ in range(6):
            writer.put(2)
        seen = set()
        for state in writer.disk.crash_states(limit=8):
            after = Writer(state.disk())
            after.buffer.adopt(0)
            self.assertEqual(len(everything(after.buffer)), after.count)
            seen.add(after.count)
        self.assertGreater(len(seen), 3)
