"""The derived files and the index tell what the log tells, and are replaced whole."""

from __future__ import annotations

import json
import os
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.stores.journal_log import Log
from cortextx.stores.session_derived import derive
from cortextx.stores.session_index import cwd_hash, listed, removed, updated
from tests.stores.journal_suite import KEY, JournalSteps, SimulatedSession
from tests.stores.test_journal import FileCase


def fact(
    seq: int, kind: str, data: dict[str, Any] | None = None, x: dict[str, Any] | None = None
) -> bytes:
    """A line as the slave writes it (I36)."""
    value: dict[str, Any] = {
        "abi": "cortexfs.interaction/v2",
        "correlation": {"request_id": "q", "run_id": "r"},
        "session_seq": seq,
        "event": {"side": "slave", "kind": kind, "durable": True, "data": data or {}},
        "ts": f"2026-05-16T09:00:{seq:02d}Z",
    }
    if x is not None:
        value["x"] = x
    return json.dumps(value, ensure_ascii=False).encode()


def message(seq: int, role: str, text: str, **parts: int) -> bytes:
    """A message's line."""
    return fact(seq, "event", {"type": "message", "role": role, "text": text, **parts})


RUN = [
    fact(1, "accepted", x={"cwd": "/work/é", "origin": {"transport": "terminal"}, "uid": 7}),
    message(2, "user", "hello"),
    fact(3, "started", {"model": "m"}),
    message(4, "assistant", "one "),
    message(5, "assistant", "a", part=1, parts=3),
    message(6, "assistant", "é", part=2, parts=3),
    message(7, "assistant", "c", part=3, parts=3),
    fact(8, "event", {"type": "tool", "call_id": "c", "name": "n", "state": "requested"}),
    fact(9, "done", {"status": "completed"}),
]
TOLD = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "one "},
    {"role": "assistant", "content": "aéc"},
]


class DeriveTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.disk = SimulatedSession()
        self.log = Log(lambda: self.disk, "log")
        self.log.open()

    def add(self, *these: bytes) -> None:
        self.log.append(self.log.state.head + 1, these)

    def told(self) -> list[Any]:
        derive(self.log, self.disk, KEY)
        return [json.loads(line) for line in self.disk.files()["messages.jsonl"].splitlines()]

    def text(self, name: str) -> str:
        return self.disk.files()[name].decode()

    def test_it_tells_the_conversation_the_state_and_the_times(self) -> None:
        self.add(*RUN)
        self.assertEqual(self.told(), TOLD)
        self.assertEqual(self.text("latest.md"), "aéc\n")
        self.assertEqual(self.text("state"), "done\n")
        self.assertEqual(self.text("cwd"), "/work/é\n")
        self.assertEqual(self.text("created_at"), "2026-05-16T09:00:01Z\n")
        self.assertEqual(self.text("updated_at"), "2026-05-16T09:00:09Z\n")
        meta = json.loads(self.text("meta.json"))
        self.assertEqual(
            (meta["client"], meta["model"], meta["scope"], meta["through_seq"]),
            ("terminal", "m", "private", 9),
        )

    def test_after_every_line_it_goes_on_where_it_was(self) -> None:
        for line in RUN:
            self.add(line)
            self.told()
        self.assertEqual(self.told(), TOLD)
        self.assertEqual(self.text("latest.md"), "aéc\n")

    def test_states_follow_the_runs(self) -> None:
        states = {"completed": "done", "cancelled": "idle", "error": "error"}
        states["interrupted"] = "error"
        seq = 1
        for status, state in states.items():
            self.add(fact(seq, "accepted"))
            self.told()
            self.assertEqual(self.text("state"), "active\n")
            self.add(fact(seq + 1, "done", {"status": status}))
            self.told()
            self.assertEqual(self.text("state"), f"{state}\n")
            seq += 2

    def test_files_that_do_not_fit_the_log_are_made_anew(self) -> None:
        self.add(*RUN)
        self.told()
        for name, data in (("messages.jsonl", b"{}\n"), ("meta.json", b"[")):
            self.disk.damage(name, 0, data)
            if name == "messages.jsonl":
                self.disk.open(name).truncate(3)
            self.assertEqual(self.told(), TOLD)

    def test_a_crash_leaves_every_file_whole_and_the_next_round_mends_the_rest(self) -> None:
        self.add(*RUN[:4])
        self.told()
        self.add(*RUN[4:])
        self.told()
        for state in self.disk.crash_states(limit=8):
            if "messages.jsonl" in state.files:
                for line in state.files["messages.jsonl"].splitlines():
                    self.assertIn(json.loads(line), TOLD)
            disk = SimulatedSession(state.files)
            log = Log(lambda disk=disk: disk, "log")  # type: ignore[misc]
            try:
                log.open()
            except Exception:
                continue
            if log.state.head == 9:
                derive(log, disk, KEY)
                told = [json.loads(line) for line in disk.files()["messages.jsonl"].splitlines()]
                self.assertEqual(told, TOLD, state.kept)

    def test_lines_of_other_shapes_are_passed_over(self) -> None:
        self.add(b'{"session_seq":1,"event":7}', *RUN[1:2])
        self.assertEqual(self.told(), TOLD[:1])

    def test_no_lines_no_files(self) -> None:
        self.assertIsNone(derive(self.log, self.disk, KEY))
        self.assertEqual(self.disk.files(), {})


class IndexTests(SynchronousTestCase):
    def test_the_newest_comes_first_once(self) -> None:
        index = os.path.join(self.mktemp(), "index")
        for name in ("a", "b", "a", "c", "c", "b"):
            updated(index, name, f"/{name}")
        self.assertEqual(listed(index), ["b", "c", "a"])
        with open(os.path.join(index, "current"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "b\n")
        with open(os.path.join(index, "by-cwd", cwd_hash("/c")), encoding="utf-8") as file:
            self.assertEqual(file.read(), "c\n")
        removed(index, "b")
        self.assertEqual(listed(index), ["c", "a"])
        self.assertEqual(os.path.exists(os.path.join(index, "by-cwd", cwd_hash("/b"))), False)


class FollowingTests(FileCase, JournalSteps):
    """The files follow a journal by themselves, a while after."""

    def test_they_follow_after_a_pause(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, RUN)
        place = os.path.dirname(self.path)
        self.assertEqual(os.listdir(place), ["events.jsonl"])
        self.reactor.advance(1)
        self.settle()
        with open(os.path.join(place, "messages.jsonl"), "rb") as file:
            self.assertEqual([json.loads(line) for line in file], TOLD)
        self.assertEqual(listed(os.path.join(os.path.dirname(place), "index")), ["s"])

    def test_closing_does_not_forget_the_last_lines(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, RUN)
        self.reactor.advance(1)
        self.appended(journal, 10, [message(10, "user", "more")])
        self.result(journal.close())
        with open(os.path.join(os.path.dirname(self.path), "messages.jsonl"), "rb") as file:
            self.assertEqual(json.loads(file.readlines()[-1])["content"], "more")
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_that_they_cannot_be_written_harms_nothing(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, RUN)
        os.mkdir(os.path.join(os.path.dirname(self.path), "messages.jsonl"))
        self.reactor.advance(1)
        self.settle()
        self.appended(journal, 10, [message(10, "user", "more")])
        self.result(journal.close())
