"""What retention keeps, and what it carries on (I38)."""

from __future__ import annotations

import fcntl
import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.interfaces.sessions import JournalState
from cortextx.stores.journal_log import Log
from cortextx.stores.journal_retention import begin, lines_of, retain
from tests.stores.journal_suite import JournalSteps, SimulatedSession, lines
from tests.stores.test_journal import FileCase


def fact(seq: int, kind: str, run: str, x: dict[str, Any] | None = None, text: str = "") -> bytes:
    """A line as the slave writes it (I36), as far as retention looks."""
    value: dict[str, Any] = {
        "correlation": {"request_id": f"q-{run}", "run_id": run},
        "session_seq": seq,
        "event": {"side": "slave", "kind": kind, "durable": True, "data": {"text": text}},
        "ts": "2026-05-16T09:00:00Z",
    }
    if x is not None:
        value["x"] = x
    return json.dumps(value, separators=(",", ":")).encode()


def run_of(first: int, run: str, text: str = "", done: bool = True) -> list[bytes]:
    """The lines of one run: four if it has ended, else three."""
    made = [
        fact(first, "accepted", run, {"claim": run}),
        fact(first + 1, "started", run),
        fact(first + 2, "event", run, text=text),
    ]
    return [*made, fact(first + 3, "done", run)] if done else made


def log_of(these: list[bytes]) -> Log:
    disk = SimulatedSession()
    log = Log(lambda: disk, "log")
    log.open()
    log.append(1, these)
    return log


def claims(log: Log) -> list[tuple[str, str]]:
    """Kind and run of every line that carries a claim, as who rebuilds them reads it."""
    found = []
    for _, line in lines_of(log):
        value = json.loads(line)
        for each in [*value.get("x", {}).get("carried", ()), value]:
            kind = each["event"]["kind"]
            if kind in ("accepted", "done") or (kind == "status" and "x" in each):
                found.append((kind, each["correlation"]["run_id"]))
                assert "carried" not in each.get("x", {}) or each is value
    return found


class RetentionTests(SynchronousTestCase):
    def test_claims_of_what_goes_are_carried_by_what_stays(self) -> None:
        these = [line for at in range(10) for line in run_of(1 + 4 * at, f"r{at}")]
        log = log_of(these)
        before = claims(log)
        for first in (3, 21, 22, 40):
            begin(log, first)
            self.assertEqual(log.state, JournalState(first, 40))
            self.assertEqual(claims(log), before, first)

    def test_a_line_that_stays_changes_in_x_only(self) -> None:
        these = [*run_of(1, "a"), *run_of(5, "b", text="é\u2028")]
        log = log_of(these)
        begin(log, 5)
        page = log.read(0, 100, 10**6)
        self.assertEqual(page.first, 5)  # where a page begins shows what went (I9)
        first = json.loads(page.lines[0])
        carried = first["x"].pop("carried")
        self.assertEqual(first, json.loads(these[4]))
        self.assertEqual(carried, [json.loads(these[0]), json.loads(these[3])])
        self.assertEqual(list(page.lines[1:]), these[5:])

    def test_a_cancels_claim_is_carried_too(self) -> None:
        these = [*run_of(1, "a", done=False), fact(4, "status", "a", {"cancel": "c"})]
        log = log_of([*these, fact(5, "done", "a"), fact(6, "status", "a"), *run_of(7, "b")])
        begin(log, 7)
        self.assertEqual(claims(log)[:3], [("accepted", "a"), ("status", "a"), ("done", "a")])

    def test_an_unfinished_run_stays_whole(self) -> None:
        these = [*run_of(1, "a"), *run_of(5, "b", done=False)]
        these += [line for at in range(9) for line in run_of(8 + 4 * at, f"r{at}")]
        log = log_of(these)
        self.assertEqual(retain(log, 0), JournalState(5, 43))

    def test_the_newest_line_stays(self) -> None:
        log = log_of(run_of(1, "a"))
        self.assertEqual(retain(log, 0), JournalState(4, 4))
        self.assertEqual(claims(log), [("accepted", "a"), ("done", "a")])
        log.append(5, run_of(5, "b"))
        self.assertEqual(log.state, JournalState(4, 8))

    def test_a_log_within_its_size_is_left_alone(self) -> None:
        log = log_of(run_of(1, "a"))
        self.assertEqual(retain(log, log.size), JournalState(1, 4))

    def test_a_long_log_shrinks_to_about_what_was_asked(self) -> None:
        these = [
            line for at in range(1000) for line in run_of(1 + 4 * at, f"r{at}", text="y" * 2000)
        ]
        log = log_of(these)
        before = claims(log)
        state = retain(log, 500_000)
        self.assertGreater(state.first, 1)
        claim_bytes = sum(len(line) for line in these if b"done" in line or b"accepted" in line)
        self.assertLess(log.size, 500_000 + 2 * 65_536 + claim_bytes)
        self.assertEqual(sorted(claims(log)), sorted(before))
        longest = max(len(line) for _, line in lines_of(log))
        self.assertLess(longest, 2 * 65_536)  # no line takes all that is carried

    def test_a_rewritten_log_is_proved_again(self) -> None:
        disk = SimulatedSession()
        log = Log(lambda: disk, "log")
        log.open()
        log.append(1, [*run_of(1, "a"), *run_of(5, "b")])
        begin(log, 6)
        log.append(9, run_of(9, "c"))
        held = list(lines_of(log))
        again = Log(lambda: SimulatedSession(disk.files()), "log")
        self.assertEqual(again.open(), JournalState(6, 12))
        self.assertEqual(list(lines_of(again)), held)


class FileRetentionTests(FileCase, JournalSteps):
    def test_a_journal_goes_on_after_it_and_its_new_log_is_locked(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 5000, "y" * 50))
        state = self.result(journal.retain(100_000))
        self.assertGreater(state.first, 1)
        page = self.result(journal.read(0, 10, 10_000))
        self.assertEqual(page.first, state.first)
        self.appended(journal, 5001, lines(5001, 1))
        self.assertEqual(self.walked(journal, 5000, 10, 10_000), lines(5001, 1))
        with open(self.path, "rb") as file:
            self.assertRaises(BlockingIOError, fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
