"""The journals of files and of memory pass one suite; what files have besides (I12–I14, I18)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import SessionDamaged, SessionLocked, StoreError, UnknownName
from cortextx.interfaces.sessions import JournalState, SessionKey
from cortextx.stores.journal import FileJournals
from cortextx.stores.journal_lanes import Lanes
from cortextx.stores.journal_memory import MemoryJournal
from tests.stores.journal_suite import KEY, Inline, JournalSteps, JournalSuite, line, lines


class MemoryJournalTests(JournalSuite, SynchronousTestCase):
    def setUp(self) -> None:
        self.made: MemoryJournal | None = None

    def make_journal(self) -> MemoryJournal:
        self.made = MemoryJournal(KEY) if self.made is None else self.made
        return self.made


class FileCase(SynchronousTestCase):
    cache = 2**20

    def setUp(self) -> None:
        self.root = self.mktemp()
        self.reactor = Inline()
        self.lanes = Lanes(self.reactor)
        self.journals = FileJournals(self.reactor, self.root, lanes=self.lanes, cache=self.cache)
        self.addCleanup(self.stop)

    def stop(self) -> None:
        self.journals.stop()
        self.settle()

    def make_journal(self, key: SessionKey = KEY) -> Any:
        return self.journals.journal(key)

    def settle(self) -> None:
        self.lanes.work()
        while self.reactor.run():
            self.lanes.work()

    @property
    def path(self) -> str:
        return os.path.join(self.root, "home/1000/agent/echo/session/s/events.jsonl")


class FileJournalTests(FileCase, JournalSuite):
    pass


class UncachedJournalTests(FileCase, JournalSuite):
    cache = 0


class FileTests(FileCase, JournalSteps):
    def test_the_log_lies_where_the_contract_says(self) -> None:
        self.appended(self.opened(), 1, lines(1, 2))
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), line(1) + b"\n" + line(2) + b"\n")
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(os.path.dirname(self.path)).st_mode & 0o777, 0o700)

    def test_asking_for_a_session_that_is_not_there_leaves_nothing(self) -> None:
        self.result(self.opened().close())
        self.assertEqual(os.listdir(self.root), [".locks"])
        self.assertEqual(os.listdir(os.path.join(self.root, ".locks")), [])

    def test_a_root_told_by_another_name_leads_to_the_same_lock(self) -> None:
        # I14: the path of the lock derives from the canonical path alone.
        self.appended(self.opened(), 1, lines(1, 1))
        link = self.mktemp()
        os.symlink(os.path.abspath(self.root), link)
        other = FileJournals(self.reactor, link, lanes=self.lanes)
        self.failure(other.journal(KEY).open(), SessionLocked)

    def test_the_lock_alone_keeps_others_out_and_so_does_the_logs(self) -> None:
        self.appended(self.opened(), 1, lines(1, 1))
        locks = os.path.join(self.root, ".locks")
        for name in os.listdir(locks):
            os.unlink(os.path.join(locks, name))
        self.failure(self.make_journal().open(), SessionLocked)

    def test_the_holder_that_is_named_is_the_process(self) -> None:
        self.opened()
        fault = self.failure(self.make_journal().open(), SessionLocked)
        self.assertIn(f"process {os.getpid()}", fault.holder)

    def test_b28_a_child_that_outlives_its_starter_does_not_hold_the_lock(self) -> None:
        # I14, B28: close-on-exec, of the lock and of the log.
        journal = self.opened()
        self.appended(journal, 1, lines(1, 1))
        child = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
        self.addCleanup(child.communicate, b"\n")
        assert child.stdout is not None
        child.stdout.readline()  # it runs: the kernel closes descriptors late in exec
        self.result(journal.close())
        self.assertEqual(self.result(self.make_journal().open()), JournalState(1, 1))

    def test_a_log_that_another_slave_grew_is_not_opened_twice(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 1))
        self.result(journal.close())
        again = self.opened()
        self.appended(again, 2, lines(2, 1))
        self.assertEqual(self.walked(again, 0, 9, 999), lines(1, 2))

    def test_symbolic_links_on_the_way_are_refused(self) -> None:
        place = os.path.join(self.root, "home/1000/agent/echo/session")
        os.makedirs(place)
        elsewhere = self.mktemp()
        os.makedirs(elsewhere)
        os.symlink(os.path.abspath(elsewhere), os.path.join(place, "s"))
        self.failure(self.make_journal().open(), StoreError)
        self.assertEqual(os.listdir(elsewhere), [])

    def test_names_that_no_path_can_have_are_refused(self) -> None:
        for session in ("", ".", "..", "index", "a/b", "é", "x" * 129):
            key = SessionKey(agent="echo", scope="private", session=session, owner=0)
            self.assertRaises(UnknownName, self.make_journal, key)

    def test_shared_sessions_have_a_place_of_their_own(self) -> None:
        key = SessionKey(agent="echo", scope="shared", session="s", space="team")
        journal = self.make_journal(key)
        self.result(journal.open())
        self.appended(journal, 1, lines(1, 1))
        self.assertTrue(
            os.path.exists(f"{self.root}/shared/team/agent/echo/session/s/events.jsonl")
        )

    def test_temp_sessions_live_in_memory_as_long_as_the_process(self) -> None:
        # I18
        key = SessionKey(agent="echo", scope="temp", session="t", owner=1000)
        journal = self.make_journal(key)
        self.result(journal.open())
        self.appended(journal, 1, lines(1, 3))
        self.result(journal.close())
        again = self.make_journal(key)
        self.assertEqual(self.result(again.open()), JournalState(1, 3))
        self.assertEqual(os.path.exists(self.root), False)

    def test_b29_a_log_cut_at_any_byte_is_refused_or_is_whole_lines(self) -> None:
        # I13, early test 3: nothing is cut or guessed, and the fault names the byte.
        whole = b"".join(each + b"\n" for each in [line(1), line(2, "é\u2028"), line(3)])
        os.makedirs(os.path.dirname(self.path))
        for cut in range(len(whole) + 1):
            with open(self.path, "wb") as file:
                file.write(whole[:cut])
            journal = self.make_journal()
            good = whole[:cut].rfind(b"\n") + 1
            if good == cut:
                state = self.result(journal.open())
                self.assertEqual(state, JournalState(1, whole[:cut].count(b"\n")))
            else:
                fault = self.failure(journal.open(), SessionDamaged)
                self.assertEqual((fault.path, fault.offset), (os.path.realpath(self.path), good))
            self.result(journal.close())
            with open(self.path, "rb") as file:
                self.assertEqual(file.read(), whole[:cut])

    def test_b29_damage_in_the_middle_is_refused_with_its_offset(self) -> None:
        # B29
        self.appended(self.opened(), 1, lines(1, 3000, "y" * 50))
        self.stop()
        with open(self.path, "rb") as file:
            whole = file.read()
        starts = [0, *(at + 1 for at, byte in enumerate(whole) if byte == 10)][:-1]
        for number in (0, 1, 1500, 2999):
            for damage in (b"\x00", b"\xff", b"\n"):
                at = starts[number] + 20
                with open(self.path, "wb") as file:
                    file.write(whole[:at] + damage + whole[at + 1 :])
                journals = FileJournals(self.reactor, self.root, lanes=self.lanes)
                journal = journals.journal(KEY)
                fault = self.failure(journal.open(), SessionDamaged)
                self.assertEqual(fault.offset, starts[number], (number, damage))

    def test_lost_and_repeated_lines_are_refused(self) -> None:
        os.makedirs(os.path.dirname(self.path))
        for these in ([1, 3], [1, 1], [2, 1], [0, 1], [-1], [True, 2]):
            with open(self.path, "wb") as file:
                file.write(b"".join(line(seq) + b"\n" for seq in these))
            self.failure(self.make_journal().open(), SessionDamaged)

    def test_b35_an_old_log_that_holds_a_lone_surrogate_still_loads(self) -> None:
        # B35
        os.makedirs(os.path.dirname(self.path))
        odd = b'{"session_seq":2,"text":"\\ud800"}'
        with open(self.path, "wb") as file:
            file.write(line(1) + b"\n" + odd + b"\n" + line(3) + b"\n")
        journal = self.make_journal()
        self.assertEqual(self.result(journal.open()), JournalState(1, 3))
        self.assertEqual(self.walked(journal, 0, 9, 999), [line(1), odd, line(3)])
