"""Enrolling a host: where secrets may come from, what is written, what is refused (F40)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import Refused
from cortextx.app.statedir import StateDir
from tests.app.scripted import Answer, Outcome, Scripted

TOKEN = "t" * 43
URL = "ws://127.0.0.1:8600/ws/agent"
HOST_ID = "6f1d2a1e-0000-4000-8000-000000000001"


class Enrolling(SynchronousTestCase):
    """cortextx agent enroll"""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.state = os.path.join(self.folder, "s")

    def enroll(self, *arguments: str, stdin: str = "") -> Outcome:
        """Run the command on a fresh state directory."""
        return Scripted(directory=self.state)("agent", "enroll", *arguments, stdin=stdin)

    def written(self, name: str) -> str:
        """What a file of the enrolment holds."""
        return Path(self.state, "agent", name).read_text().strip()

    def test_by_stdin(self) -> None:
        """Without options the invitation is read from standard input."""
        done = self.enroll(stdin=f"{URL}#token={TOKEN}\n")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.written("token"), TOKEN)
        self.assertEqual(json.loads(self.written("enrolment.json"))["url"], URL)
        self.assertRegex(self.written("host_id"), r"^[0-9a-f-]{36}$")

    def test_secrets_do_not_show(self) -> None:
        """Neither success nor failure prints the token (F23)."""
        for text in (f"{URL}#token={TOKEN}", TOKEN, f"http://x#token={TOKEN}"):
            done = self.enroll("--force", stdin=text)
            self.assertNotIn(TOKEN, done.out + done.err)

    def test_by_token_file(self) -> None:
        """--url with --token-file needs no invitation; --host-id is kept."""
        path = os.path.join(self.folder, "token")
        Path(path).write_text(f"{TOKEN}\n")
        done = self.enroll("--url", URL, "--token-file", path, "--host-id", HOST_ID.upper())
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual((self.written("token"), self.written("host_id")), (TOKEN, HOST_ID))

    def test_the_pin_of_the_servers_ca(self) -> None:
        """A pin comes with the invitation, or as --ca-pin with a wss:// URL, and is kept;
        a text that is none, or a pin for a connection in the clear, enrols nobody (F40)."""
        secure, pin = "wss://127.0.0.1:8600/ws/agent", "sha256:" + "0a" * 32
        path = os.path.join(self.folder, "token")
        Path(path).write_text(TOKEN)
        for url, given in ((URL, pin), (secure, "sha256:0a")):
            done = self.enroll("--url", url, "--token-file", path, "--ca-pin", given)
            self.assertEqual(done.code, 2, done.err)
        self.assertEqual(self.enroll("--ca-pin", pin, stdin=f"{secure}#token={TOKEN}").code, 2)
        self.assertFalse(os.path.exists(os.path.join(self.state, "agent")))
        done = self.enroll("--url", secure, "--token-file", path, "--ca-pin", pin.upper())
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(json.loads(self.written("enrolment.json"))["ca_pin"], pin)
        done = self.enroll("--force", stdin=f"{secure}#token={TOKEN}&ca_pin={pin[:-1]}1")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(json.loads(self.written("enrolment.json"))["ca_pin"], f"{pin[:-1]}1")

    def test_the_invitations_host_id(self) -> None:
        """An invitation that decides the host id is obeyed; another id is refused."""
        text = f"{URL}#token={TOKEN}&host_id={HOST_ID}"
        other = HOST_ID.replace("1e", "2e")
        self.assertEqual(self.enroll("--host-id", other, stdin=text).code, 2)
        self.assertEqual(self.enroll(stdin=text).code, 0)
        self.assertEqual(self.written("host_id"), HOST_ID)

    def test_private(self) -> None:
        """The token is for its owner only, whatever the umask."""
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.enroll(stdin=f"{URL}#token={TOKEN}")
        for name in ("", "agent", "agent/token", "agent/host_id"):
            mode = os.stat(os.path.join(self.state, name)).st_mode
            self.assertEqual(mode & 0o077, 0, name)

    def test_again(self) -> None:
        """An enrolment that is there is replaced only with --force, and keeps the host id."""
        self.enroll(stdin=f"{URL}#token={TOKEN}")
        host_id = self.written("host_id")
        done = self.enroll(stdin=f"{URL}#token={'u' * 43}")
        self.assertEqual((done.code, self.written("token")), (1, TOKEN))
        self.assertIn("--force", done.err)
        self.assertEqual(self.enroll("--force", stdin=f"{URL}#token={'u' * 43}").code, 0)
        self.assertEqual((self.written("token"), self.written("host_id")), ("u" * 43, host_id))

    def test_without_tls(self) -> None:
        """ws:// to another machine is refused before anything is written, unless allowed (F20)."""
        text = f"ws://nohost.invalid/ws/agent#token={TOKEN}"
        done = self.enroll(stdin=text)
        self.assertEqual(done.code, 2)
        self.assertIn("expected wss://", done.err)
        self.assertFalse(os.path.exists(os.path.join(self.state, "agent", "token")))
        os.makedirs(self.state)
        Path(self.state, "cortex-agent.toml").write_text("[agent]\nallow_insecure = true\n")
        self.assertEqual(self.enroll(stdin=text).code, 0)

    def test_how_to_go_on(self) -> None:
        """Where no agent runs, both ways to start one are told: this host may have no server."""
        done = self.enroll(stdin=f"{URL}#token={TOKEN}")
        self.assertIn(" up\n", done.err)
        self.assertIn(f"twistd --pidfile= -n cortex-agent --state-dir {self.state}", done.err)

    def test_an_agent_that_runs(self) -> None:
        """An agent that runs is told to try again, and what it says to that is passed on (F34)."""
        state = StateDir(self.state)
        state.prepare()
        state.lock("cortex-agent")
        self.addCleanup(state.unlock, "cortex-agent")
        for answer, said in (
            (Answer(), "connects with it now"),
            (Answer(error=Refused("not_enrolled", "another host")), "restart it"),
            (None, "does not answer"),
        ):
            command = Scripted(answer, directory=self.state)
            done = command("agent", "enroll", "--force", stdin=f"{URL}#token={TOKEN}")
            self.assertEqual(done.code, 0)
            self.assertIn(said, done.err)
            self.assertEqual([op for op, _ in command.asked], ["retry"] if answer else [])

    def test_wrong_usage(self) -> None:
        """Halves of a pair, two ways at once and nonsense are refused, and nothing is written."""
        path = os.path.join(self.folder, "token")
        Path(path).write_text("short")
        for arguments in (
            ("--url", URL), ("--token-file", path), ("--url", URL, "--token-file", path),
            ("--url", URL, "--token-file", path, "--invitation-file", path),
            ("--url", "http://x/", "--token-file", path), ("--invitation-file", path),
            ("--invitation-file", "/nonexistent"), ("--host-id", "nonsense"),
        ):  # fmt: skip
            done = self.enroll(*arguments, stdin=f"{URL}#token={TOKEN}")
            self.assertEqual(done.code, 2, (arguments, done.err))
            self.assertFalse(os.path.exists(os.path.join(self.state, "agent", "token")))
