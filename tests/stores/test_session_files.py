"""What a person does with sessions' files, beside a slave that may have them open."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from cortextx.errors import NameTaken, SessionDamaged, SessionLocked, UnknownName
from cortextx.interfaces.sessions import JournalState, SessionKey
from cortextx.stores.session_files import SessionFiles
from cortextx.stores.session_index import listed
from tests.stores.journal_suite import KEY, JournalSteps
from tests.stores.test_journal import FileCase
from tests.stores.test_session_derived import RUN, TOLD, message

OTHER = replace(KEY, session="t")


class SessionFilesTests(FileCase, JournalSteps):
    def setUp(self) -> None:
        super().setUp()
        self.files = SessionFiles(self.root)
        self.made(KEY)

    def made(self, key: SessionKey, close: bool = True) -> Any:
        journal = self.make_journal(key)
        self.result(journal.open())
        self.appended(journal, 1, RUN)
        if close:
            self.result(journal.close())
        return journal

    def index(self) -> list[str]:
        return listed(os.path.join(os.path.dirname(os.path.dirname(self.path)), "index"))

    def spoil(self, data: bytes) -> None:
        with open(self.path, "ab") as file:
            file.write(data)

    def test_all_sessions_are_listed_newest_first(self) -> None:
        shared = SessionKey(agent="other", scope="shared", session="s", space="team")
        journal = self.make_journal(shared)
        self.result(journal.open())
        self.appended(journal, 1, [*RUN, message(10, "user", "later")])
        self.reactor.advance(1)
        self.settle()
        found = self.files.list()
        self.assertEqual([each.key for each in found], [shared, KEY])
        self.assertEqual([each.in_use for each in found], [True, False])
        self.assertEqual(found[1].told.state, "done")
        self.assertEqual([each.key for each in self.files.list(agent="echo")], [KEY])
        self.assertEqual([each.key for each in self.files.list(owner=5)], [])

    def test_an_empty_root_has_no_sessions(self) -> None:
        self.assertEqual(SessionFiles(self.mktemp()).list(), [])

    def test_show_reads_the_log_itself(self) -> None:
        for name in ("meta.json", "state"):
            os.unlink(os.path.join(os.path.dirname(self.path), name))
        details = self.files.show(KEY)
        self.assertEqual((details.latest, details.summary.told.messages), ("aéc", 3))
        self.assertEqual((details.verdict.first, details.verdict.head), (1, 9))
        self.assertEqual(details.summary.told.cwd, "/work/é")

    def test_what_is_not_there_is_said(self) -> None:
        for call in (self.files.show, self.files.verify, self.files.delete):
            self.assertRaises(UnknownName, call, OTHER)
        self.assertRaises(UnknownName, self.files.rename, OTHER, "u")
        self.assertRaises(UnknownName, self.files.fork, KEY, "a/b")

    def test_repair_moves_what_cannot_be_proved_aside_and_says_so(self) -> None:
        # I13
        with open(self.path, "rb") as file:
            good = file.read()
        bad = message(10, "user", "x") + b"\n" + b"\x00\n" + message(11, "user", "y")[:20]
        self.spoil(bad)
        verdict = self.files.verify(KEY)
        self.assertEqual(verdict.head, 10)
        self.assertIsNotNone(verdict.why)
        self.failure(self.make_journal().open(), SessionDamaged)
        done = self.files.repair(KEY, "20260516")
        self.assertEqual((done.moved, done.whole_lines), (22, 1))
        assert done.aside is not None
        with open(os.path.join(os.path.dirname(self.path), done.aside), "rb") as file:
            self.assertEqual(file.read(), bad[-22:])
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), good + bad[:-22])
        self.assertEqual(self.result(self.make_journal().open()), JournalState(1, 10))

    def test_repair_of_a_whole_log_does_nothing(self) -> None:
        done = self.files.repair(KEY, "x")
        self.assertEqual((done.aside, done.moved), (None, 0))

    def test_nothing_is_changed_under_a_slave(self) -> None:
        self.made(OTHER, close=False)
        for call in (
            lambda: self.files.repair(OTHER, "x"),
            lambda: self.files.rename(OTHER, "u"),
            lambda: self.files.delete(OTHER),
        ):
            fault = self.assertRaises(SessionLocked, call)
            self.assertIn(f"process {os.getpid()}", fault.holder)
        self.assertEqual(self.files.verify(OTHER).head, 9)

    def test_rename_moves_everything_and_the_index_follows(self) -> None:
        to = self.files.rename(KEY, "u")
        self.assertEqual(self.files.find(), [to])
        self.assertEqual(self.index(), ["u"])
        self.assertEqual(self.files.summary(to).told.session, "u")
        journal = self.make_journal(to)
        self.assertEqual(self.result(journal.open()), JournalState(1, 9))
        self.assertEqual(self.walked(journal, 0, 100, 10**6), RUN)

    def test_names_that_are_taken_or_cannot_be_are_refused(self) -> None:
        self.made(OTHER)
        self.assertRaises(NameTaken, self.files.rename, KEY, "t")
        self.assertRaises(NameTaken, self.files.fork, KEY, "t")
        self.assertRaises(UnknownName, self.files.rename, KEY, "index")
        self.assertEqual(len(self.files.find()), 2)

    def test_delete_leaves_nothing(self) -> None:
        self.made(OTHER)
        self.files.delete(KEY)
        self.assertEqual(self.files.find(), [OTHER])
        self.assertEqual(self.index(), ["t"])
        self.assertEqual(len(os.listdir(os.path.join(self.root, ".locks"))), 1)
        self.assertEqual(self.result(self.make_journal(KEY).open()), JournalState(1, 0))

    def test_fork_copies_the_log_up_to_a_seq(self) -> None:
        self.made(OTHER, close=False)  # in use, and forked all the same
        for key, through in ((KEY, None), (KEY, 1), (OTHER, 4), (OTHER, 9)):
            to = self.files.fork(key, f"f-{key.session}-{through}", through)
            journal = self.make_journal(to)
            head = through or 9
            self.assertEqual(self.result(journal.open()), JournalState(1, head))
            self.assertEqual(self.walked(journal, 0, 100, 10**6), RUN[:head])
        self.assertRaises(UnknownName, self.files.fork, KEY, "g", 10)

    def test_a_damaged_session_is_not_forked_or_exported(self) -> None:
        self.spoil(b"\x00")
        self.assertRaises(SessionDamaged, self.files.fork, KEY, "g")
        self.assertRaises(SessionDamaged, list, self.files.export(KEY))

    def test_export_never_tells_what_masters_must_not_see(self) -> None:
        # I36
        lines = [json.loads(line) for line in self.files.export(KEY)]
        self.assertEqual([line["session_seq"] for line in lines], list(range(1, 10)))
        self.assertEqual([line for line in lines if "x" in line], [])
        self.assertEqual([json.loads(line) for line in self.files.export(KEY, "messages")], TOLD)
        text = b"".join(self.files.export(KEY, "markdown")).decode()
        self.assertEqual(text.split("\n\n")[:4], ["**user**", "hello", "**assistant**", "one "])
