"""The client of the admin and control sockets, against the other end of a socket pair."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import tempfile
from types import SimpleNamespace
from typing import Any, NoReturn

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.client import Client, agent_client, calling, server_client
from cortextx.app.cli.faults import Fault, NotReachable, Refused


def client(*answers: Any, ends: bool = True) -> tuple[Client, socket.socket]:
    """A client to which `answers` have been sent already, and the other end.

    With `ends` the other side sends nothing more after them.
    """
    ours, theirs = socket.socketpair()
    for answer in answers:
        theirs.sendall(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")
    if ends:
        theirs.shutdown(socket.SHUT_WR)
    made = Client(ours, "server", "start it")
    return made, theirs


class Requests(SynchronousTestCase):
    """One line out, rows and an end back."""

    def made(self, *answers: Any, ends: bool = True) -> Client:
        """A client, with its other end in `self.theirs`."""
        found, self.theirs = client(*answers, ends=ends)
        self.addCleanup(self.theirs.close)
        self.addCleanup(found.close)
        return found

    def sent(self) -> list[Any]:
        """The requests that came out at the other end."""
        return [json.loads(line) for line in self.theirs.recv(65536).splitlines()]

    def test_call(self) -> None:
        """A call sends the op with its args, and answers the rows and the end."""
        made = self.made({"row": {"a": 1}}, {"row": {"a": 2}}, {"end": {"n": 2}}, ends=False)
        self.assertEqual(
            made.call("agent.list", host="x", skipped=None), ([{"a": 1}, {"a": 2}], {"n": 2})
        )
        self.assertEqual(self.sent(), [{"op": "agent.list", "args": {"host": "x"}}])

    def test_again(self) -> None:
        """One connection takes a request after another."""
        made = self.made({"end": {}}, ends=False)
        made.call("ping")
        self.theirs.sendall(b'{"row":{"b":1}}\n{"end":{}}\n')
        self.assertEqual(made.one("agent.show"), {"b": 1})

    def test_one(self) -> None:
        """One thing is the row, or the end where an op has no rows."""
        self.assertEqual(self.made({"end": {"x": 1}}).one("x"), {"x": 1})
        self.assertEqual(self.made({"row": {"y": 1}}, {"end": {"x": 1}}).one("x"), {"y": 1})

    def test_in_pieces(self) -> None:
        """Rows are found however the bytes are cut, and a long one is read whole."""
        row = {"message": "é" * 300_000}
        made = self.made(ends=False)
        made._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        answers = made.stream("search")
        text = (json.dumps({"row": row}) + '\n{"end":{}}\n').encode()
        import threading

        sender = threading.Thread(target=self.theirs.sendall, args=(text,))
        sender.start()
        self.addCleanup(sender.join)
        self.assertEqual(list(answers), [row])

    def test_refused(self) -> None:
        """An error carries its code, words and hint, and the exit code that fits."""
        for code, exit_code in (("not_found", 4), ("bad_request", 2), ("internal", 1)):
            error = {"code": code, "message": "no", "hint": "try"}
            refusal = self.assertRaises(Refused, self.made({"error": error}).call, "x")
            self.assertEqual(
                (refusal.code, refusal.message, refusal.hint, refusal.exit_code),
                (code, "no", "try", exit_code),
            )

    def test_goes_away(self) -> None:
        """An answer that breaks off is never taken for a complete one."""
        for answers in ((), ({"row": {}},), ({"row": {}}, b'{"end":{}}')):
            fault = self.assertRaises(NotReachable, self.made(*answers).call, "x")
            self.assertEqual((fault.exit_code, fault.hint), (3, "start it"))

    def test_other_side_closed_before(self) -> None:
        """What the other side said before it hung up is heard, though our request failed."""
        made = self.made({"error": {"code": "busy", "message": "64 are open"}})
        self.theirs.close()
        self.assertEqual(self.assertRaises(Refused, made.call, "x").code, "busy")

    def test_nonsense(self) -> None:
        """Something that is no answer is a fault, not a traceback."""
        self.assertRaises(Fault, self.made(b"hello\n").call, "x")


class Reaching(SynchronousTestCase):
    """Where nobody listens."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, self.folder)

    def test_nobody(self) -> None:
        """Without a socket the fault says what does not run, where, and how to start it."""
        for connect, what in ((server_client, "server"), (agent_client, "agent")):
            fault = self.assertRaises(NotReachable, connect, self.folder)
            self.assertEqual(fault.message, f"no {what} runs on {self.folder}")
            self.assertIn(f"cortextx --state-dir {self.folder} up", fault.hint or "")

    def test_denied(self) -> None:
        """A socket of somebody else is told apart from a directory that we may not look into."""

        def denied(path: str) -> NoReturn:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        seen = SimpleNamespace(connect=denied, settimeout=lambda _: None, close=lambda: None)
        self.patch(socket, "socket", lambda *_: seen)
        fault = self.assertRaises(Fault, server_client, self.folder)
        self.assertEqual(fault.message, f"{self.folder} cannot be looked into: Permission denied")
        self.patch(os, "lstat", lambda _: None)
        fault = self.assertRaises(Fault, server_client, self.folder)
        self.assertEqual(fault.message, f"{self.folder}/run/admin.sock belongs to another user")

    def test_calling(self) -> None:
        """A hint names the state directory only where the command would not find it."""
        self.patch(os, "environ", {"CORTEXTX_STATE_DIR": "/tmp/here", "PATH": "/nonexistent"})
        self.patch(sys, "argv", ["/usr/bin/trial"])
        self.assertEqual(calling("/tmp/here"), "cortextx")
        self.assertEqual(calling("/tmp/with space"), "cortextx --state-dir '/tmp/with space'")

    def test_calling_from_an_environment(self) -> None:
        """A hint names the program by its path where the name alone would not find it."""
        self.patch(os, "environ", {"CORTEXTX_STATE_DIR": "/tmp/here", "PATH": "/nonexistent"})
        self.patch(sys, "argv", [".venv/bin/cortextx"])
        self.assertEqual(calling("/tmp/here"), ".venv/bin/cortextx")
