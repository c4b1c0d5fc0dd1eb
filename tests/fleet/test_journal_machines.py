"""The journald source without a journal: records, cursors, runs."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyClass

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.journal_entries import (
    OwnTraces,
    Record,
    RecordMapper,
    decode_record,
    key_of,
)
from cortextx.fleet.agent.sources.journal_life import (
    DOUBT_DELAY,
    MIN_DELAY,
    STUCK_RUNS,
    JournalLife,
)
from cortextx.fleet.agent.sources.journal_run import JournalRun, Lines
from cortextx.fleet.agent.sources.journal_settings import JournalSettings, command, matches_of
from cortextx.fleet.agent.sources.journal_source import JournalSource
from cortextx.fleet.agent.sources.journal_trail import At, Lost, Recover, Since, Trail
from cortextx.fleet.contract import LogEntry
from cortextx.interfaces.fleet import ILogSource


def cursor(number: int, series: str = "aa", boot: str = "bb") -> str:
    return f"s={series};i={number:x};b={boot};m=1;t=2;x=3"


def record(number: int, series: str = "aa", **fields) -> Record:
    found = decode_record(line(number, series, **fields))
    assert found is not None
    return found


def line(number: int, series: str = "aa", **fields) -> bytes:
    facts = {"__CURSOR": cursor(number, series), "__REALTIME_TIMESTAMP": "1700000000000000"}
    return json.dumps({**facts, "MESSAGE": f"n {number}", **fields}).encode()


def numbers(records) -> list[int]:
    return [key_of(each.cursor).number for each in records]


class RecordTests(SynchronousTestCase):
    def entry(self, found: Record, own: OwnTraces | None = None) -> LogEntry:
        (body,) = RecordMapper(encode_body, own or OwnTraces()).bodies(found)
        return msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry)

    def test_fields(self):
        """The journal's fields become an entry's, the rest metadata under their own names."""
        entry = self.entry(
            record(
                1, PRIORITY="4", SYSLOG_FACILITY="10", SYSLOG_IDENTIFIER="sshd", _PID="7",
                _SYSTEMD_UNIT="ssh.service", _HOSTNAME="here", _TRANSPORT="syslog",
            ),
            OwnTraces(hostname="here"),
        )  # fmt: skip
        self.assertEqual(
            (entry.severity, entry.facility, entry.app_name, entry.process_id, entry.source),
            ("warning", "authpriv", "sshd", "7", "journald"),
        )
        self.assertEqual(int(entry.ts.timestamp()), 1_700_000_000)
        facts = msgspec.json.decode(entry.metadata)
        self.assertEqual(
            facts, {"journal": {"_SYSTEMD_UNIT": "ssh.service", "_TRANSPORT": "syslog"}}
        )

    def test_a_message_of_bytes_is_kept_raw(self):
        """F16: an array of numbers is bytes; what is no UTF-8 is replaced and kept."""
        entry = self.entry(record(1, MESSAGE=list(b"a\xffb")))
        self.assertEqual(entry.message, "a�b")
        self.assertEqual(msgspec.json.decode(entry.metadata)["cortextx"]["raw"], "Yf9i")

    def test_odd_values_do_not_stop_anything(self):
        """Repeated fields, null, missing messages and priorities that are none."""
        self.assertEqual(self.entry(record(1, MESSAGE=["a", "b"])).message, "a\nb")
        self.assertEqual(self.entry(record(1, MESSAGE=None)).message, "")
        self.assertEqual(self.entry(record(1, PRIORITY="x")).severity, "info")
        self.assertEqual(self.entry(record(1, PRIORITY=["3", "4"])).severity, "info")
        self.assertEqual(self.entry(record(1, SYSLOG_FACILITY="99")).facility, None)

    def test_a_long_message_is_parted(self):
        """F17: nothing of it is cut."""
        bodies = list(RecordMapper().bodies(record(1, MESSAGE="x" * 150_000)))
        found = [msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry) for body in bodies]
        self.assertEqual("".join(entry.message for entry in found), "x" * 150_000)
        self.assertEqual(len(found), 3)

    def test_a35_own_entries_are_known_by_unit_and_by_pid_in_this_boot(self):
        """A35: the same pid of another boot is another process."""
        mapper = RecordMapper(encode_body, OwnTraces(frozenset({"me.service"}), "7", "b1"))
        self.assertTrue(mapper.is_own(record(1, _SYSTEMD_UNIT="me.service")))
        self.assertTrue(mapper.is_own(record(1, _PID="7", _BOOT_ID="b1")))
        self.assertFalse(mapper.is_own(record(1, _PID="7", _BOOT_ID="b2")))
        self.assertFalse(mapper.is_own(record(1)))


class TrailTests(SynchronousTestCase):
    def test_a26_the_cursors_own_entry_is_dropped_and_the_next_is_taken(self):
        """A26: a run that starts at 5 shows 5 first, and gives 6."""
        trail = Trail(At(cursor(5)), whole=True)
        taken = trail.take([record(5), record(6), record(7)])
        self.assertEqual((numbers(taken.kept), taken.gaps), ([6, 7], []))
        self.assertEqual(taken.cursor, cursor(7))

    def test_a26_another_entry_is_kept_and_is_a_gap(self):
        """A26: where 5 is vacuumed, the oldest that is left is not taken for it."""
        taken = Trail(At(cursor(5)), whole=True).take([record(9), record(10)])
        self.assertEqual(numbers(taken.kept), [9, 10])
        self.assertEqual(taken.gaps, [Lost("vacuumed", 3)])

    def test_another_filter_claims_no_gap(self):
        """A cursor that the new filter hides says nothing."""
        taken = Trail(At(cursor(5), sure=False), whole=False).take([record(9)])
        self.assertEqual((numbers(taken.kept), taken.gaps), ([9], []))

    def test_a25_a_run_that_begins_too_early_repeats_nothing(self):
        """A25: what comes before the cursor's own entry was read."""
        taken = Trail(At(cursor(5)), whole=True).take([record(n) for n in range(2, 8)])
        self.assertEqual((numbers(taken.kept), taken.gaps), ([6, 7], []))

    def test_a29_the_same_entry_twice_in_a_row_is_one(self):
        """A29: by boot, series and number, also over the end of a chunk."""
        trail = Trail(Since(0), whole=True)
        self.assertEqual(numbers(trail.take([record(1), record(1), record(2)]).kept), [1, 2])
        taken = trail.take([record(2), record(3)])
        self.assertEqual((numbers(taken.kept), taken.repeated), ([3], 1))

    def test_a29_equal_numbers_of_two_series_are_two_entries(self):
        """A29: files of two machines count alike."""
        taken = Trail(Since(0), whole=True).take([record(1), record(1, "cc"), record(2)])
        self.assertEqual(len(taken.kept), 3)

    def test_a28_a_jump_is_doubted(self):
        """A28: the run ends before the jump; the next shows what it was."""
        taken = Trail(Since(0), whole=True).take([record(1), record(2), record(6), record(7)])
        self.assertEqual((numbers(taken.kept), taken.doubt), ([1, 2], True))
        # The entry is gone: a gap.
        taken = Trail(At(cursor(2), jump=True), whole=True).take([record(6)])
        self.assertEqual(taken.gaps, [Lost("vacuumed", 3)])
        # journalctl had only skipped.
        again = Trail(At(cursor(2), jump=True), whole=True)
        taken = again.take([record(n) for n in range(2, 8)])
        self.assertEqual((numbers(taken.kept), taken.gaps), ([3, 4, 5, 6, 7], []))
        # It is still there: what is between cannot be read.
        taken = Trail(At(cursor(2), jump=True), whole=True).take([record(2), record(6), record(7)])
        self.assertEqual(numbers(taken.kept), [6, 7])
        self.assertEqual((taken.gaps, taken.persisted), ([Lost("unreadable", 3)], True))

    def test_filtered_numbers_jump_as_they_like(self):
        """Where not all is read, numbers tell nothing."""
        taken = Trail(Since(0), whole=False).take([record(1), record(6)])
        self.assertEqual((len(taken.kept), taken.doubt, taken.gaps), (2, False, []))

    def test_a28_recovery_passes_what_was_read(self):
        """A28: from the oldest on, by series and number; a gap only if the entry is gone."""
        taken = Trail(Recover(cursor(5)), whole=True).take([record(n) for n in range(3, 8)])
        self.assertEqual((numbers(taken.kept), taken.gaps), ([6, 7], []))
        taken = Trail(Recover(cursor(5)), whole=True).take([record(1, "cc"), record(2, "cc")])
        self.assertEqual(len(taken.kept), 2)
        self.assertEqual(taken.gaps, [Lost("vacuumed", None)])

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 30), st.lists(st.integers(0, 29), max_size=8), st.integers(1, 7))
    def test_a26_restarts_anywhere_give_each_entry_once(self, count, stops, size):
        """A26, A29: with runs cut anywhere, and every entry shown twice, all come once."""
        found: list[int] = []
        position = Since(0)
        for stop in [*sorted(stops), count]:
            start = found[-1] if found else 1
            shown = [record(n) for n in range(start, count + 1) for _ in (0, 1)]
            trail = Trail(position, whole=True)
            for at in range(0, len(shown), size):
                if len(found) >= stop:
                    break
                found += numbers(trail.take(shown[at : at + size]).kept)
            if found:
                position = At(cursor(found[-1]))
        self.assertEqual(found, list(range(1, len(found) + 1)))
        self.assertEqual(len(found), count)


class RunTests(SynchronousTestCase):
    def test_bytes_by_bytes(self):
        """Lines come together from chunks of any size."""
        data = b"".join(line(n) + b"\n" for n in range(1, 6))
        for size in (1, 7, len(data)):
            run = JournalRun(Trail(Since(0), whole=True), RecordMapper())
            made = [run.work([data[at : at + size]], 0) for at in range(0, len(data), size)]
            self.assertEqual(sum(len(each.bodies) for each in made), 5)
            self.assertEqual(made[-1].cursor, cursor(5))

    def test_a_line_beyond_the_limit_is_passed_and_told(self):
        """Memory stays bounded; the lines around it come."""
        lines = Lines(100)
        self.assertEqual(lines.feed(b"a\n" + b"x" * 90), [b"a"])
        self.assertEqual(lines.feed(b"x" * 90), [])
        self.assertEqual(lines.oversize, 0)
        self.assertEqual(lines.feed(b"x\nb\n"), [b"b"])
        self.assertEqual(lines.oversize, 181)
        run = JournalRun(Trail(Since(0), whole=True), RecordMapper(), max_line=500)
        made = run.work([line(1) + b"\n" + b"y" * 600], 0)
        self.assertEqual((made.read, made.gaps), (1, 0))
        made = run.work([b"y\n" + line(2) + b"\n"], 0)
        self.assertEqual((made.read, made.gaps, made.oversize), (1, 1, 601))
        self.assertIn(b'"reason":"oversize"', made.bodies[0])

    def test_what_is_no_json_is_a_gap_and_no_end(self):
        """A28: a damaged line costs itself."""
        run = JournalRun(Trail(Since(0), whole=True), RecordMapper())
        made = run.work([line(1) + b"\n{broken\n" + line(2) + b"\n"], 0)
        self.assertEqual((made.read, made.malformed, made.gaps), (2, 1, 1))

    def test_a35_only_own_entries_still_move_the_cursor(self):
        """A35: they are passed once and for all."""
        mapper = RecordMapper(encode_body, OwnTraces(frozenset({"me.service"})))
        run = JournalRun(Trail(Since(0), whole=True), mapper)
        made = run.work([line(1, _SYSTEMD_UNIT="me.service") + b"\n"], 0)
        self.assertEqual((made.bodies, made.own, made.cursor), ([], 1, cursor(1)))

    def test_a_rule_that_drops_still_moves_the_cursor(self):
        """The checkpoint goes on."""
        run = JournalRun(Trail(Since(0), whole=True), RecordMapper(lambda **_: None))
        made = run.work([line(1) + b"\n"], 0)
        self.assertEqual((made.bodies, made.dropped, made.cursor), ([], 1, cursor(1)))


class LifeTests(SynchronousTestCase):
    def life(self, checkpoint: bytes | None = None, **facts) -> JournalLife:
        given_ = {"begin": 5, "filter_key": "f", "random": lambda: 0.99, **facts}
        return JournalLife(checkpoint, **given_)

    def test_a_first_start_and_the_next(self):
        """F41: it begins at a time, which is kept; then at the last durable entry."""
        life = self.life()
        self.assertEqual(life.position(), Since(5))
        self.assertEqual(self.life(life.checkpoint, begin=99).position(), Since(5))
        life.durable(life.mark(cursor(3), 7))
        self.assertEqual(life.position(), At(cursor(3)))
        again = self.life(life.checkpoint)
        self.assertEqual(again.position(), At(cursor(3)))
        other = self.life(life.checkpoint, filter_key="g")
        self.assertEqual(other.position(), At(cursor(3), sure=False))

    def test_an_unreadable_checkpoint_is_none(self):
        """A22: it begins as if there were none."""
        self.assertEqual(self.life(b"\xff{").position(), Since(5))

    def test_a28_no_run_follows_at_once_and_failures_wait_longer(self):
        """A28: no tight loop, with or without progress."""
        life = self.life()
        waits = [life.ended(b"no such directory") for _ in range(6)]
        self.assertEqual(waits, sorted(waits))
        self.assertGreater(waits[-1], 10)
        life.durable(life.mark(cursor(1), 7))
        self.assertEqual(life.ended(b"Bad message"), MIN_DELAY)

    def test_a28_damage_at_one_entry_is_passed_in_growing_steps(self):
        """A28: after some runs that end at the same place, further on; with a gap."""
        life = self.life()
        life.durable(life.mark(cursor(1), 1_000_000))
        life.ended()
        for _ in range(STUCK_RUNS):
            self.assertEqual(life.position(), At(cursor(1)))
            life.ended(b"Failed to get cursor: Bad message")
        self.assertEqual(life.position(), Since(2_000_000, lost=True))
        life.ended(b"Failed to get cursor: Bad message")
        self.assertEqual(life.position(), Since(3_000_000, lost=True))
        taken = Trail(life.position(), whole=True).take([record(40)])
        self.assertEqual(taken.gaps, [Lost("unreadable", None)])
        life.durable(life.mark(cursor(40), 9))
        self.assertEqual(life.position(), At(cursor(40)))

    def test_a_fault_that_is_no_damage_never_passes_anything(self):
        """A journal that may not be read is not passed over."""
        life = self.life()
        life.durable(life.mark(cursor(1), 1))
        for _ in range(20):
            life.ended(b"No journal files were opened due to insufficient permissions.")
        self.assertEqual(life.position(), At(cursor(1)))

    def test_doubts(self):
        """A doubted jump starts a run soon, and one that stays ends the doubts for a while."""
        life = self.life()
        life.durable(life.mark(cursor(1), 1))
        self.assertEqual(life.jumps(0.0), "doubt")
        life.doubted()
        self.assertEqual(life.ended(), DOUBT_DELAY)
        self.assertEqual(life.position(), At(cursor(1), jump=True))
        life.started()
        self.assertEqual(life.position(), At(cursor(1)))
        life.persisted(10.0)
        self.assertEqual((life.jumps(11.0), life.jumps(1000.0)), ("gap", "doubt"))
        other = self.life(privileged=False)
        other.persisted(10.0)
        self.assertEqual(other.jumps(11.0), "count")

    def test_nothing_found(self):
        """A run that shows nothing is followed by one from the oldest, until there is progress."""
        life = self.life()
        life.durable(life.mark(cursor(1), 1))
        life.nothing_found()
        self.assertEqual(life.position(), Recover(cursor(1)))
        life.durable(life.mark(cursor(2), 1))
        self.assertEqual(life.position(), At(cursor(2)))


class CommandTests(SynchronousTestCase):
    def test_command(self):
        """All options stand before `--`, and values in their option's word."""
        line = command(
            JournalSettings(units=("a.service",), matches=("_TRANSPORT=journal",)), cursor="c"
        )
        self.assertEqual(line[-2:], ["--", "_TRANSPORT=journal"])
        self.assertIn("--unit=a.service", line)
        self.assertIn("--cursor=c", line)
        self.assertIn("--since=@1.000002", command(JournalSettings(), since=1_000_002))

    def test_what_journalctl_could_take_for_something_else(self):
        """A path as a match, options as names: refused."""
        for bad in ("/etc/passwd", "--root=/", "a=b", "A"):
            self.assertRaises(ValueError, matches_of, bad)
            self.assertRaises(ValueError, command, JournalSettings(matches=(bad,)))
        self.assertRaises(ValueError, command, JournalSettings(units=("-x",)))
        self.assertEqual(matches_of("A=b _C=d"), ("A=b", "_C=d"))
        self.assertEqual(matches_of(None), ())


class SourceTests(SynchronousTestCase):
    def test_it_is_a_log_source(self):
        """The class keeps the interface's word."""
        self.assertTrue(verifyClass(ILogSource, JournalSource))
