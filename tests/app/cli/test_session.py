"""`cortextx session` over real files: what it shows, changes, refuses, and says to do next."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from contextlib import closing
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import FAILED, FOUND, NOT_FOUND, NOT_REACHABLE, OK, USAGE
from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.session_lock import SessionLock
from cortextx.stores.session_paths import SessionRoot
from tests.app.cli.sessions import ANSWER, RUN, make_session, path_of
from tests.app.scripted import Outcome, Scripted

ECHO = SessionKey(agent="echo", scope="private", session="notes", owner=1000)


class SessionCase(SynchronousTestCase):
    """A state directory with one session, `notes`."""

    def setUp(self) -> None:
        # A state directory's path is short: sockets live below it.
        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state)
        self.root = os.path.join(self.state, "sessions")
        self.log = make_session(self.root, "notes")
        self.call = Scripted(directory=self.state)

    def session(self, *args: str, stdin: str = "") -> Outcome:
        return self.call("session", *args, stdin=stdin)

    def rows(self, *args: str) -> list[dict[str, Any]]:
        done = self.session(*args, "--json")
        self.assertEqual((done.code, done.err), (OK, ""))
        return [json.loads(line) for line in done.out.splitlines()]

    def names(self) -> list[str]:
        return sorted(row["session"] for row in self.rows("list"))

    def hold(self, key: SessionKey = ECHO) -> None:
        """Have the session in use until the test's end."""
        lock = SessionLock(SessionRoot.at(self.root).lock(key))
        lock.take()
        self.addCleanup(lock.release)

    def spoil(self, data: bytes = b'{"session_seq":6') -> None:
        with open(self.log, "ab") as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()


class Reading(SessionCase):
    def test_list_names_every_session_with_what_its_files_tell(self) -> None:
        make_session(self.root, "plan", place="shared/team", agent="helper")
        found = {row["session"]: row for row in self.rows("list")}
        self.assertEqual(found["plan"]["scope"], "shared")
        self.assertEqual((found["plan"]["space"], found["plan"]["owner"]), ("team", None))
        self.assertEqual((found["notes"]["owner"], found["notes"]["in_use"]), (1000, False))
        self.assertEqual(found["notes"]["size"], len(b"".join(RUN)))
        self.assertEqual([row["session"] for row in self.rows("list", "--space", "team")], ["plan"])
        self.assertEqual(self.rows("list", "--agent", "nobody"), [])
        self.assertEqual([r["session"] for r in self.rows("list", "--owner", "1000")], ["notes"])
        table = self.session("list").out.splitlines()
        self.assertRegex(table[0], "^SESSION +AGENT +OF +STATE")
        self.assertEqual(len(table), 3)

    def test_a_session_that_a_slave_has_open_is_shown_as_in_use(self) -> None:
        self.hold()
        self.assertEqual([row["in_use"] for row in self.rows("list")], [True])

    def test_an_empty_place_says_what_to_do(self) -> None:
        done = Scripted(directory=f"{self.state}/none")("session", "list")
        self.assertEqual((done.code, done.out), (OK, ""))
        self.assertIn("cortextx chat", done.err)

    def test_show_tells_what_the_log_tells(self) -> None:
        (told,) = self.rows("show", "notes")
        self.assertEqual((told["state"], told["messages"], told["model"]), ("done", 2, "m"))
        self.assertEqual((told["first_seq"], told["head_seq"], told["sound"]), (1, 5, True))
        self.assertEqual(
            (told["latest"], told["client"], told["cwd"]), (ANSWER, "terminal", "/work")
        )
        self.assertEqual(told["path"], os.path.dirname(self.log))

    def test_show_makes_controls_visible(self) -> None:
        # S4
        done = self.session("show", "echo/notes")
        self.assertIn("| It is\n| \\e[31mred\\e[0m.\n", done.out)
        self.assertNotIn("\x1b", done.out)

    def test_export_has_the_events_as_frontends_see_them(self) -> None:
        # I36: what masters must not see stays inside.
        path = self.mktemp()
        done = self.session("export", "notes", "--output", path)
        self.assertEqual((done.code, done.out, done.err), (OK, "", ""))
        lines = [json.loads(line) for line in self.read(path).splitlines()]
        self.assertEqual([line["session_seq"] for line in lines], [1, 2, 3, 4, 5])
        self.assertNotIn(b"1000", self.read(path))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def test_export_to_a_file_that_is_there_is_refused(self) -> None:
        path = self.mktemp()
        open(path, "x").close()
        done = self.session("export", "notes", "-o", path)
        self.assertEqual(done.code, FAILED)
        self.assertIn("is there already", done.err)
        self.assertEqual(self.read(path), b"")

    def test_export_of_the_conversation(self) -> None:
        messages, text = self.mktemp(), self.mktemp()
        self.session("export", "notes", "--form", "messages", "-o", messages)
        self.session("export", "notes", "--form", "markdown", "-o", text)
        told = [json.loads(line) for line in self.read(messages).splitlines()]
        self.assertEqual([each["role"] for each in told], ["user", "assistant"])
        self.assertTrue(self.read(text).startswith(b"**user**\n\ncolour?\n"))

    def test_export_of_a_damaged_log_leaves_no_half_file(self) -> None:
        self.spoil()
        path = self.mktemp()
        done = self.session("export", "notes", "-o", path)
        self.assertEqual(done.code, FAILED)
        self.assertIn("session repair", done.err)
        self.assertFalse(os.path.exists(path))

    def test_verify_proves_all_or_the_named(self) -> None:
        make_session(self.root, "other", lines=RUN[:2])
        done = self.session("verify")
        self.assertEqual((done.code, len(done.out.splitlines())), (OK, 2))
        self.assertRegex(self.session("verify", "other").out, r": sound, seqs 1 to 2, \d+ bytes\n$")

    def test_verify_says_where_the_damage_is_and_what_to_do(self) -> None:
        self.spoil()
        done = self.session("verify", "notes")
        self.assertEqual(done.code, FOUND)
        size = len(b"".join(RUN))
        self.assertIn(f"damaged at byte {size} of {size + 16}, behind seq 5: ", done.out)
        self.assertIn("session repair", done.err)
        told = json.loads(self.session("verify", "notes", "--json").out)
        self.assertEqual((told["sound"], told["proved_bytes"], told["head_seq"]), (False, size, 5))

    def test_half_a_line_of_a_log_in_use_is_looked_at_again(self) -> None:
        self.spoil()
        self.hold()
        self.call.slept = _Mending(self.log)
        done = self.session("verify", "notes")
        self.assertEqual((done.code, list(self.call.slept)), (OK, [0.2]))

    def test_a_name_of_several_sessions_needs_more_words(self) -> None:
        make_session(self.root, "notes", place="shared/team")
        done = self.session("show", "notes")
        self.assertEqual(done.code, USAGE)
        self.assertIn("--owner", done.err)
        self.assertIn("space team", done.err)
        self.assertEqual(self.session("show", "notes", "--space", "team").code, OK)
        self.assertEqual(self.session("show", "notes", "--owner", "1000").code, OK)

    def test_what_is_not_there_is_not_found(self) -> None:
        for args in (("show", "x"), ("export", "x"), ("verify", "x"), ("repair", "x"),
                     ("rename", "x", "y"), ("delete", "x", "--yes"), ("fork", "x", "y"),
                     ("show", "other/notes"), ("show", "../notes")):  # fmt: skip
            done = self.session(*args)
            self.assertEqual((args, done.code), (args, NOT_FOUND))
            self.assertIn("session list", done.err)

    def test_another_root_can_be_named(self) -> None:
        other = self.mktemp()
        make_session(other, "there")
        done = self.session("--root", other, "list", "--json")
        self.assertEqual(json.loads(done.out)["session"], "there")
        self.assertIn("is no directory", self.session("--root", other + "x", "list").err)


class Changing(SessionCase):
    def test_repair_moves_what_cannot_be_proved_aside_and_says_so(self) -> None:
        # I13
        self.spoil()
        done = self.session("repair", "notes")
        self.assertEqual(done.code, OK)
        self.assertIn("kept up to seq 5", done.out)
        self.assertIn("16 bytes, 0 whole lines", done.out)
        aside = re.search(r"now stand in (\S+)", done.out)
        assert aside is not None
        self.assertEqual(aside[1], f"{self.log}.damaged-20270115T080000Z")
        self.assertEqual(self.read(aside[1]), b'{"session_seq":6')
        self.assertEqual(self.read(self.log), b"".join(RUN))
        self.assertEqual(self.session("verify", "notes").code, OK)

    def test_repair_of_a_sound_log_changes_nothing(self) -> None:
        self.assertIn("nothing was changed", self.session("repair", "notes").out)
        (told,) = self.rows("repair", "notes")
        self.assertEqual((told["repaired"], told["aside"]), (False, None))

    def test_rename_and_fork(self) -> None:
        self.assertEqual(self.session("rename", "notes", "ideas").code, OK)
        self.assertEqual(self.session("fork", "ideas", "start", "--at", "2").code, OK)
        self.assertEqual(self.names(), ["ideas", "start"])
        forked = path_of(self.root, "home/1000", "echo", "start")
        self.assertEqual(self.read(os.path.join(forked, "events.jsonl")), b"".join(RUN[:2]))
        (told,) = self.rows("show", "ideas")
        self.assertEqual(told["head_seq"], 5)

    def test_names_that_are_taken_or_cannot_be_are_refused(self) -> None:
        make_session(self.root, "other")
        for verb in ("rename", "fork"):
            taken = self.session(verb, "notes", "other")
            self.assertEqual(taken.code, FAILED)
            self.assertIn("choose another name", taken.err)
            for bad in ("a/b", "index", "..", "é"):
                self.assertEqual(self.session(verb, "notes", bad).code, USAGE)
        self.assertEqual(self.names(), ["notes", "other"])
        self.assertEqual(self.session("fork", "notes", "x", "--at", "6").code, NOT_FOUND)

    def test_delete_asks_first(self) -> None:
        refused = self.session("delete", "notes")
        self.assertEqual(refused.code, USAGE)
        self.assertIn("--yes", refused.err)
        self.assertEqual(self.names(), ["notes"])
        self.assertEqual(self.session("delete", "notes", "--yes").code, OK)
        self.assertEqual(self.names(), [])

    def test_a_session_in_use_is_left_alone_and_its_holder_named(self) -> None:
        self.hold()
        for args in (("repair", "notes"), ("rename", "notes", "x"), ("delete", "notes", "--yes")):
            done = self.session(*args)
            self.assertEqual(done.code, NOT_REACHABLE)
            self.assertIn(f"process {os.getpid()}", done.err)
            self.assertIn("stop the slave", done.err)
        self.assertEqual(self.session("fork", "notes", "copy").code, OK)
        self.assertEqual(self.names(), ["copy", "notes"])

    def test_what_root_makes_belongs_to_the_slaves_user(self) -> None:
        if os.geteuid() != 0:
            raise self.skipTest("only root can give files away")
        for path, names, files in os.walk(self.state):
            for name in (*names, *files):
                os.chown(os.path.join(path, name), 1000, 1000)
        os.chown(self.state, 1000, 1000)
        self.assertEqual(self.session("fork", "notes", "copy").code, OK)
        self.assertEqual(self.session("rename", "notes", "ideas").code, OK)
        for path, names, files in os.walk(self.root):
            for name in (*names, *files):
                self.assertEqual(os.stat(os.path.join(path, name)).st_uid, 1000, name)
        self.assertEqual(os.geteuid(), 0)


class _Mending(list[float]):
    """What is slept, and a writer that ends its line meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path

    def append(self, seconds: float) -> None:
        super().append(seconds)
        with closing(open(self.path, "ab")) as file:
            file.write(b"}\n")
