"""`cortextx session` beside a slave that runs, and `conformance` on what it says."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from typing import Any

from twisted.trial.unittest import TestCase

from tests.integration.chats import Slave, texts

HELLO: dict[str, Any] = {
    "abi": "cortexfs.interaction/v2",
    "correlation": {"connection_id": "c"},
    "session_seq": None,
    "event": {
        "side": "master",
        "kind": "hello",
        "capabilities": ["input", "observe", "status", "replay"],
        "durable": False,
        "data": {"versions": ["cortexfs.interaction/v2"]},
    },
}


class SessionCommandTests(TestCase):
    timeout = 120

    def setUp(self) -> None:
        self.slave = Slave(self).start()

    def session(self, *args: str, code: int = 0) -> bytes:
        done = self.slave.call("session", *args)
        self.assertEqual(done.returncode, code, (done.stdout, done.stderr))
        return done.stdout + done.stderr

    def say(self, session: str, text: str, agent: str = "echo") -> None:
        done = self.slave.call("chat", agent, "--session", session, stdin=text.encode())
        self.assertEqual(done.returncode, 0, done.stderr)

    def unloaded(self, session: str) -> None:
        """Wait until the slave let go of an idle session."""
        end = time.monotonic() + 20
        while json.loads(self.session("show", session, "--json"))["in_use"]:
            self.assertLess(time.monotonic(), end, "the slave keeps an idle session")
            time.sleep(0.1)

    def listed(self) -> list[str]:
        rows = self.session("list", "--json").splitlines()
        return [json.loads(row)["session"] for row in rows]

    def test_a_session_in_use_is_read_and_not_changed(self) -> None:
        chat = self.slave.chat("--session", "notes")
        chat.say("hello")
        chat.until("done")
        self.assertIn(b"sound", self.session("verify", "notes"))
        self.assertIn(b"hello", self.session("export", "notes", "--form", "markdown"))
        for args in (("rename", "notes", "x"), ("delete", "notes", "--yes"), ("repair", "notes")):
            told = self.session(*args, code=3)
            self.assertIn(f"process {self.slave.process.pid}".encode(), told)
            self.assertIn(b"idle_seconds", told)
        self.session("fork", "notes", "copy")
        chat.say("more")
        chat.until("done")
        self.assertEqual(chat.close(), 0)
        rows = self.slave.chat("--session", "copy", "--after", "0", "--observe")
        rows.until("done")
        self.assertEqual(texts(rows.rows), ["hello"])

    def test_rename_fork_and_delete_once_it_is_idle(self) -> None:
        self.say("notes", "one")
        self.say("notes", "two")
        self.unloaded("notes")
        self.session("rename", "notes", "ideas")
        self.session("fork", "ideas", "start", "--at", "5")
        self.say("start", "three")
        self.unloaded("start")
        self.assertEqual(self.listed(), ["start", "ideas"])
        told = json.loads(self.session("show", "start", "--json"))
        self.assertEqual((told["latest"], told["messages"], told["head_seq"]), ("three", 4, 10))
        self.session("delete", "start", "--yes")
        self.assertEqual(self.listed(), ["ideas"])
        self.say("start", "anew")
        self.assertEqual(json.loads(self.session("show", "start", "--json"))["head_seq"], 5)

    def test_a_damaged_session_says_so_until_it_is_repaired(self) -> None:
        # I13: nothing is guessed, and what is moved aside is told.
        self.say("notes", "one")
        self.unloaded("notes")
        log = os.path.join(json.loads(self.session("show", "notes", "--json"))["path"],
                           "events.jsonl")  # fmt: skip
        with open(log, "ab") as file:
            file.write(b'{"session_seq":6,"torn')
        told = self.slave.call("chat", "--session", "notes", stdin=b"two")
        self.assertEqual(told.returncode, 1)
        self.assertIn(b"session_io", told.stderr)
        self.assertIn(b"cortextx session repair", told.stderr)
        self.assertIn(b"damaged at byte", self.session("verify", "notes", code=5))
        self.assertIn(b"22 bytes", self.session("repair", "notes"))
        self.session("verify", "notes")
        self.say("notes", "two")

    def test_an_export_stops_for_a_reader_that_has_enough(self) -> None:
        self.say("notes", "word " * 10_000)
        args = " ".join(self.slave.args("session", "export", "notes"))
        done = os.popen(f"{args} | head -c 10").read()
        self.assertEqual(done, '{"abi":"co')

    def test_what_the_slave_sends_conforms(self) -> None:
        """Every frame that we send decodes under the ABI."""
        lines = self.heard()
        self.assertGreater(len(lines), 4)
        path = self.slave.root / "frames.jsonl"
        with open(path, "w") as file:
            for number, line in enumerate(lines):
                frame = base64.b64encode(line).decode()
                row = {"id": f"f{number}", "frame_b64": frame, "verdict": "ok"}
                file.write(json.dumps(row) + "\n")
        done = self.slave.call("conformance", "check", "--abi", "interaction-v2", str(path))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue(done.stdout.endswith(f"{len(lines)} agree, 0 differ, 0 free\n".encode()))

    def heard(self) -> list[bytes]:
        """What the slave sends to a master that attaches and says something."""
        attach = {
            **HELLO,
            "correlation": {"connection_id": "c", "attachment_id": "a"},
            "event": {
                **HELLO["event"],
                "kind": "attach",
                "mode": "interact",
                "session": "s",
                "data": {"agent": "echo", "scope": "private"},
            },
        }
        words = {
            **HELLO,
            "correlation": {"connection_id": "c", "attachment_id": "a", "request_id": "q"},
            "event": {
                "side": "master",
                "kind": "input",
                "capabilities": [],
                "origin": {"transport": "test"},
                "durable": False,
                "data": {"text": "hi there"},
            },
        }
        lines: list[bytes] = []
        with socket.socket(socket.AF_UNIX) as master:
            master.settimeout(10)
            master.connect(str(self.slave.state / "run" / "slave.sock"))
            with master.makefile("rb") as reader:
                for frame in (HELLO, attach, words):
                    master.sendall(json.dumps(frame).encode() + b"\n")
                while not lines or b'"kind":"done"' not in lines[-1]:
                    line = reader.readline()
                    self.assertTrue(line, lines)
                    lines.append(line)
        return lines
