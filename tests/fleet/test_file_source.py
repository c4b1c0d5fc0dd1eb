"""The file source on a real directory, with threads that are none and a Clock."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from cortextx.fleet.agent.sources.globs import Grounds, glob_test, shown_path, static_root
from cortextx.fleet.agent.sources.identity import decode_checkpoint
from cortextx.interfaces.fleet import ILogSource
from tests.fleet.file_source_case import FileSourceCase


class FileSourceTests(FileSourceCase):
    def test_it_is_a_log_source(self) -> None:
        self.assertTrue(verifyObject(ILogSource, self.source()))

    def test_lines_become_entries_with_the_files_path_as_source(self) -> None:
        path = self.write("a.log", b"one\ntwo\n")
        self.source().start()
        self.assertEqual(self.messages(), ["one", "two"])
        self.assertEqual({entry.source for entry in self.entries()}, {f"file:{path}"})

    def test_rotation_restart_and_growth(self) -> None:
        """A01: through stop and start, each line comes once."""
        path = self.write("a.log", b"one\n")
        first = self.source()
        first.start()
        self.successResultOf(first.stop())
        self.write("a.log", b"two\n")
        os.rename(path, path + ".1")
        self.write("a.log", b"three\n")
        self.source().start()
        self.pass_time()
        self.write("a.log.1", b"late\n")
        self.write("a.log", b"four\n")
        self.pass_time()
        self.assertEqual(sorted(self.messages()), sorted(["one", "two", "three", "late", "four"]))
        self.assertEqual(self.messages()[:3], ["one", "two", "three"])

    def test_f19_a_paused_source_reads_nothing_and_goes_on(self) -> None:
        source = self.source()
        source.start()
        source.pause()
        path = self.write("a.log", b"one\n")
        self.pass_time()
        os.rename(path, path + ".1")
        self.write("a.log", b"two\n")
        self.pass_time()
        self.assertEqual(self.bodies, [])
        source.resume()
        self.assertEqual(self.messages(), ["one", "two"])

    def test_a_file_waits_for_its_put(self) -> None:
        """Nothing more is read of it, and stop waits too."""
        self.write("a.log", b"one\n")
        source = self.source()
        source.start()
        self.waiting = []
        self.write("a.log", b"two\n")
        self.pass_time()
        self.write("a.log", b"three\n")
        self.pass_time()
        self.assertEqual(self.messages(), ["one", "two"])
        stopped = source.stop()
        self.assertNoResult(stopped)
        self.waiting[0].callback(None)
        self.successResultOf(stopped)
        self.assertEqual(source.open_files, 0)

    def test_a_refused_put_is_tried_again(self) -> None:
        self.write("a.log", b"one\n")
        self.refuse = True
        self.source().start()
        self.assertEqual(self.messages(), [])
        self.refuse = False
        self.pass_time(20)
        self.assertEqual(self.messages(), ["one"])
        self.assertEqual(self.flushLoggedErrors(), [], "a full disk is no fault")

    def test_many_small_files_share_their_puts(self) -> None:
        """One sync for dozens of files, each with its own checkpoint; one that cannot be
        read is no harm to the others."""
        for number in range(300):
            self.write(f"{number}.log", b"line %d\n" % number)
        os.mkdir(os.path.join(self.logs, "gone"))
        path = self.write("gone/bad.log", b"x\n")
        source = self.source(paths=[os.path.join(self.logs, "*.log"), path])
        source.pause()
        source.start()
        os.unlink(path)
        source.resume()
        self.assertEqual(sorted(self.messages()), sorted(f"line {n}" for n in range(300)))
        self.assertLess(len([size for size in self.puts if size]), 20)
        marks = [decode_checkpoint(value).offset for value in self.kept.values()]
        self.assertEqual(len([mark for mark in marks if mark]), 300)

    def test_a_refused_put_of_many_files_is_tried_again_whole(self) -> None:
        """None of them is taken for read, and none comes twice."""
        for number in range(100):
            self.write(f"{number}.log", b"line %d\n" % number)
        self.refuse = True
        self.source().start()
        self.assertEqual(self.kept, {})
        self.refuse = False
        self.pass_time(20)
        self.assertEqual(sorted(self.messages()), sorted(f"line {n}" for n in range(100)))

    def test_a_put_carries_many_records_of_one_file_only(self) -> None:
        """Thousands of records are not gathered from many files."""
        for number in range(6):
            self.write(f"{number}.log", b"x\n" * 1500)
        self.source().start()
        self.assertEqual([size for size in self.puts if size], [1500] * 6)

    def test_d22_a_run_of_nuls_makes_no_entries(self) -> None:
        """Five million of them are one number beside the record that follows."""
        self.write("a.log", b"one\n" + b"\0" * 5_000_000 + b"two\n")
        self.source().start()
        self.assertEqual(self.messages(), ["one", "two"])
        self.assertIn(b'"nuls":5000000', bytes(self.entries()[1].metadata))

    def test_a08_a_gap_reaches_the_buffer_as_our_own_entry(self) -> None:
        """F37: source custom:cortextx, with the file and the unread bytes."""
        path = self.write("a.log", b"one\n")
        source = self.source()
        source.start()
        source.pause()
        self.write("a.log", b"lost\n")
        self.pass_time()
        os.truncate(path, 0)
        source.resume()
        self.pass_time()
        [entry] = [one for one in self.entries() if one.source == "custom:cortextx"]
        self.assertIn(b'"unread_bytes":"5"', bytes(entry.metadata))

    def test_a08_the_mark_of_a_truncation_does_not_wait_and_nothing_overtakes_it(self) -> None:
        """A kill before it is durable would hide the loss: the bytes are gone (F37)."""
        path = self.write("a.log", b"one\n")
        source, waits = self.source(), []
        put = self.put
        source._put = lambda *args, can_wait=True: waits.append(can_wait) or put(*args)
        source.start()
        source.pause()
        self.write("a.log", b"lost\n")
        self.pass_time()
        os.truncate(path, 0)
        self.write("a.log", b"new\n")
        del waits[:]
        self.waiting = []
        source.resume()
        self.pass_time()
        self.assertEqual(waits, [False])
        self.assertEqual(self.messages()[0], "one")
        self.assertEqual([one.source for one in self.entries()[1:]], ["custom:cortextx"])
        self.waiting.pop(0).callback(None)
        self.assertEqual(self.messages()[2:], ["new"])

    def test_a08_a_refused_mark_of_a_truncation_comes_again_with_the_same_bytes(self) -> None:
        path = self.write("a.log", b"one\n")
        source = self.source()
        source.start()
        source.pause()
        self.write("a.log", b"lost\n")
        self.pass_time()
        os.truncate(path, 0)
        self.write("a.log", b"new\n")
        kept, self.refuse = dict(self.kept), True
        source.resume()
        self.pass_time()
        self.assertEqual(self.kept, kept)
        self.refuse = False
        self.pass_time(15)
        [entry] = [one for one in self.entries() if one.source == "custom:cortextx"]
        self.assertIn(b'"unread_bytes":"5"', bytes(entry.metadata))
        self.assertEqual(self.messages()[0::2], ["one", "new"])

    def test_f43_a_truncation_with_nothing_unread_is_no_gap_but_counted(self) -> None:
        path = self.write("a.log", b"one\ntwo\n")
        source = self.source()
        source.start()
        self.pass_time()
        os.truncate(path, 0)
        self.write("a.log", b"new\n")
        self.pass_time()
        self.assertEqual(self.messages(), ["one", "two", "new"])
        counters = source.report().counters
        self.assertEqual((counters["truncations"], counters["gaps"]), (1, 0))

    def test_s2_links_out_of_the_roots_are_not_followed(self) -> None:
        outside = os.path.join(self.place, "outside.log")
        with open(outside, "wb") as file:
            file.write(b"secret\n")
        os.symlink(outside, os.path.join(self.logs, "link.log"))
        inside = self.write("real.txt", b"inside\n")
        os.symlink(inside, os.path.join(self.logs, "good.log"))
        os.mkfifo(os.path.join(self.logs, "fifo.log"))
        self.source().start()
        self.pass_time()
        self.assertEqual(self.messages(), ["inside"])

    def test_s2_a_strangers_hard_link_is_not_read(self) -> None:
        """In a directory that others may write to, a second link is not trusted."""
        if os.geteuid():
            return
        os.chmod(self.logs, 0o777)
        path = self.write("a.log", b"x\n")
        os.chown(path, 1234, 1234)
        os.link(path, os.path.join(self.place, "other"))
        self.source().start()
        self.pass_time()
        self.assertEqual(self.messages(), [])

    def test_a35_the_agents_own_state_is_left_out(self) -> None:
        os.mkdir(os.path.join(self.logs, "state"))
        self.write("state/own.log", b"own\n")
        self.write("a.log", b"one\n")
        excluded = [os.path.join(self.logs, "state")]
        self.source("**/*.log", excluded=excluded).start()
        self.assertEqual(self.messages(), ["one"])

    def test_a_report_counts_the_files_of_each_glob(self) -> None:
        """A report says how many files each glob matches, and why that is none."""
        self.write("a.log", b"x\n")
        self.write("b.log", b"x\n")
        globs = [os.path.join(self.logs, name) for name in ("*.log", "*.txt", "gone/*.log")]
        source = self.source(paths=globs)
        self.assertIsNone(source.report().details["files"])
        source.start()
        found = source.report()
        self.assertEqual(found.details["files"], dict(zip(globs, (2, 0, 0), strict=True)))
        self.assertEqual(found.details["why"][globs[1]], "no file matches")
        self.assertIn("No such file", found.details["why"][globs[2]])
        self.write("c.txt", b"x\n")
        self.pass_time()
        found = source.report()
        self.assertEqual(found.details["files"], dict(zip(globs, (2, 1, 0), strict=True)))
        self.assertEqual(list(found.details["why"]), [globs[2]])

    def test_a_report_tells_of_files_that_cannot_be_read(self) -> None:
        """A file that may not be opened stands in the report with the reason, until it is
        read, or another stands in its place."""
        path, other = self.write("a.log", b"one\n"), self.write("b.log", b"two\n")
        refused, opened = {path, other}, Grounds.open

        def refusing(grounds: Grounds, real: str) -> int:
            # As root, who runs tests too, may open anything.
            if real in refused:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), real)
            return opened(grounds, real)

        self.patch(Grounds, "open", refusing)
        source = self.source()
        source.start()
        self.pass_time()
        why = "cannot be read (Permission denied)"
        self.assertEqual(source.report().details["faults"], {path: why, other: why})
        os.unlink(other)
        refused.clear()
        self.pass_time(60)
        self.assertEqual(source.report().details["faults"], {})
        self.assertIn("one", self.messages())

    def test_a_report_tells_of_links_that_lead_away(self) -> None:
        """A link out of the roots is told while it is there (S2)."""
        path = os.path.join(self.logs, "a.log")
        os.symlink("/etc/passwd", path)
        source = self.source()
        source.start()
        self.assertIn("leads outside", source.report().details["faults"][path])
        os.unlink(path)
        self.pass_time()
        self.assertEqual(source.report().details["faults"], {})

    def test_f18_allowed_globs_narrow_what_is_read(self) -> None:
        self.write("a.log", b"a\n")
        self.write("b.log", b"b\n")
        self.source(allowed=[os.path.join(self.logs, "b*")]).start()
        self.assertEqual(self.messages(), ["b"])

    def test_f32_odd_file_names_are_percent_encoded(self) -> None:
        """A34: control characters and bytes that are no UTF-8."""
        self.write(os.fsdecode(b"o\n\xffdd.log"), b"x\n")
        self.source().start()
        self.assertEqual(self.entries()[0].source, f"file:{self.logs}/o%0A%FFdd.log")


class GlobTests(SynchronousTestCase):
    def test_double_stars_span_directories(self) -> None:
        test = glob_test(["/var/log/**/*.log"])
        self.assertTrue(test("/var/log/a.log") and test("/var/log/x/y/a.log"))
        self.assertFalse(test("/var/log/a.txt") or test("/var/a.log") or test("/var/logs/a.log"))
        self.assertTrue(glob_test(["/v/[ab]?.log"])("/v/ax.log"))
        self.assertFalse(glob_test(["/v/[!ab]?.log"])("/v/ax.log"))

    def test_static_root(self) -> None:
        self.assertEqual(static_root("/var/log/**/*.log"), "/var/log")
        self.assertEqual(static_root("/var/log/a.log"), "/var/log")
        self.assertEqual(static_root("/*/a"), "/")

    def test_shown_path(self) -> None:
        self.assertEqual(shown_path("/é/a%b\x7f"), "/é/a%b%7F")
