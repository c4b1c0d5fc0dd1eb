"""`cortextx up` and `down` on a fresh state directory, as a new user would meet them."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.processes import AGENT, SERVER, Place, running_pid
from cortextx.fleet.agent.identity import IdentityFiles
from tests.integration.harness import Installation


class Up(SynchronousTestCase):
    """One command to a running server and a connected agent."""

    def setUp(self) -> None:
        self.site = Installation(self)
        self.server = Place(str(self.site.state), SERVER)
        self.agent = Place(str(self.site.state), AGENT)
        self.log = self.site.root / "logs" / "app.log"
        self.log.parent.mkdir()
        self.log.write_text("the first line\n")
        self.site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{self.log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )
        self.addCleanup(self.end)

    def end(self) -> None:
        """Whatever the test left running ends, by the pid in its lock."""
        for place in (self.agent, self.server):
            pid = running_pid(place)
            if pid:
                os.kill(pid, signal.SIGKILL)

    def up(self) -> str:
        """Run `cortextx up`; the server stays at the port that it got first."""
        listen = "tcp:0:interface=127.0.0.1"
        noted = self.site.root / "port"
        if noted.exists():
            listen = f"tcp:{noted.read_text()}:interface=127.0.0.1"
        done = self.site.cortextx("up", "--listen", listen, "--wait", "30")
        noted.write_text((self.server.address() or "").rpartition(":")[2])
        return done.stdout

    def pids(self) -> tuple[int | None, int | None]:
        """The pids of the server and the agent."""
        return running_pid(self.server), running_pid(self.agent)

    def found(self, word: str) -> list[str]:
        """The messages that a search for a word finds."""
        out = self.site.cortextx("search", word, "--json").stdout
        return [json.loads(line)["message"] for line in out.splitlines()]

    def test_whole_life(self) -> None:
        """up starts, enrols and connects; again it changes nothing; it mends; down ends both."""
        out = self.up()
        self.assertIn("connected", out)
        for command in ("agent list", "search error --since 1h", "tail -f"):
            self.assertIn(f"cortextx --state-dir {self.site.state} {command}", out)
        self.site.wait_until(lambda: self.found("first"), "the log's first line")
        hosts = json.loads(self.site.cortextx("agent", "list", "--json").stdout)["hosts"]
        self.assertEqual([host["state"] for host in hosts], ["active"])

        before = self.pids()
        self.up()
        self.assertEqual(self.pids(), before)
        self.assertEqual(len(self.site.hosts()), 1)

        for killed in before:
            os.kill(killed or 0, signal.SIGKILL)
        self.site.wait_until(lambda: self.pids() == (None, None), "both to be dead")
        with self.log.open("a") as log:
            log.write("the second line\n")
        self.up()
        self.assertNotIn(None, self.pids())
        self.site.wait_until(lambda: self.found("second"), "the line written meanwhile")
        self.assertEqual(self.found("line"), ["the second line", "the first line"])

        self.site.cortextx("down")
        self.assertEqual(self.pids(), (None, None))
        self.assertIsNone(self.server.address())
        self.assertIn("nothing runs on", self.site.cortextx("down").stdout)
        self.site.cortextx("agent", "list", code=3)
        self.site.cortextx("agent", "status", code=3)

    def test_another_port(self) -> None:
        """The agent that up enrolled follows the server; the next up remembers the endpoint."""
        listen = ("--listen", "tcp:0:interface=127.0.0.1")
        self.site.cortextx("up", *listen, "--wait", "30")
        self.assertEqual(self.enrolled_for(), f"ws://{self.server.address()}/ws/agent")
        for killed in self.pids():
            os.kill(killed or 0, signal.SIGKILL)
        self.site.wait_until(lambda: self.pids() == (None, None), "both to be dead")
        with socket.socket() as taken:
            # What the killed one had is not free.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            host, _, port = (self.server.address() or "").rpartition(":")
            taken.bind((host, int(port)))
            self.site.cortextx("up", *listen, "--wait", "30")
        self.assertNotEqual(self.server.address(), f"{host}:{port}")
        self.assertEqual(self.enrolled_for(), f"ws://{self.server.address()}/ws/agent")

        before = self.server.address()
        done = self.site.cortextx("up", "--listen", "tcp:1", "--wait", "30")
        self.assertIn("runs already: --listen is for one that is started", done.stderr)
        self.assertEqual(self.server.address(), before)

        # The server alone comes back elsewhere: the agent that runs is started again.
        agent = self.pids()[1]
        os.kill(self.pids()[0] or 0, signal.SIGKILL)
        self.site.wait_until(lambda: self.pids()[0] is None, "the server to be dead")
        self.assertIn("connected", self.site.cortextx("up", "--wait", "30").stdout)
        self.assertEqual(self.enrolled_for(), f"ws://{self.server.address()}/ws/agent")
        if self.server.address() != before:
            self.assertNotEqual(self.pids()[1], agent)
        self.assertEqual(len(self.site.hosts()), 1)

    def enrolled_for(self) -> str:
        """The URL in the agent's enrolment."""
        text = (self.site.state / "agent" / "enrolment.json").read_text()
        return str(json.loads(text)["url"])

    def state_is(self, *states: str) -> None:
        """Wait until the agent's link is in one of the states."""

        def reached() -> bool:
            out = self.site.cortextx("agent", "status", "--json").stdout
            return json.loads(out)["state"] in states

        self.site.wait_until(reached, f"the agent to be {states}")

    def test_a_revoked_host_comes_back(self) -> None:
        """What up says to do for a revoked host is enough, whether enroll or up tells the agent."""
        self.up()
        host = self.site.hosts()[0]["host_id"]
        for tell in ("enroll", "up"):
            self.site.cortextx("agent", "revoke", host, "--yes")
            self.state_is("revoked", "fatal_auth")
            done = self.site.cortextx("up", code=1)
            self.assertIn(f"--host-id {host}", done.stderr)
            made = json.loads(
                self.site.cortextx(
                    "agent", "issue", "--host", "web", "--host-id", host, "--json"
                ).stdout
            )
            if tell == "enroll":
                done = self.site.cortextx(
                    "agent", "enroll", "--force", stdin=made["invitation"] + "\n"
                )
                self.assertIn("connects with it now", done.stderr)
            else:
                files = IdentityFiles(str(self.site.state / "agent"))
                files.enrol(self.enrolled_for(), made["token"], host)
                self.site.cortextx("up", "--wait", "30")
            self.state_is("active")

    def test_enrolled_elsewhere(self) -> None:
        """On a host that is enrolled for another server up starts the agent only."""
        self.site.start_server()
        made = json.loads(self.site.cortextx("agent", "issue", "--host", "b", "--json").stdout)
        other = Installation(self)
        other.write_agent_config(agent="allow_sources = []\n")
        self.site.state, own = other.state, self.site.state
        self.addCleanup(setattr, self.site, "state", own)
        agent = Place(str(other.state), AGENT)
        self.agent, self.server = agent, Place(str(other.state), SERVER)
        self.addCleanup(self.end)  # before `other` goes
        other.cortextx("agent", "enroll", stdin=made["invitation"])
        done = json.loads(other.cortextx("up", "--wait", "30", "--json").stdout)
        self.assertIsNone(done["server"])
        self.assertEqual((done["agent"]["state"], done["enrolled"]), ("connected", None))
        self.assertEqual(self.pids(), (None, done["agent"]["pid"]))

    def test_a_port_in_use(self) -> None:
        """A port that is taken is told in a line, with what to do; an old log is not told."""
        self.up()
        self.site.cortextx("down")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.site.cortextx("up", "--listen", f"tcp:{port}:interface=127.0.0.1", code=1)
        self.assertIn(f"port {port} is in use\n  next: ", done.stderr)
        self.assertLess(len(done.stderr.splitlines()), 5, done.stderr)

    def test_tls_by_somebody_else(self) -> None:
        """Invitations name wss:// then, and the agent of this machine connects by loopback."""
        self.site.write_server_config(
            '[server]\nlisten = ["tcp:0"]\ntls_terminated_externally = true\n'
        )
        self.site.cortextx("up", "--wait", "30")
        port = (self.server.address() or "").rpartition(":")[2]
        self.assertIn(f":{port}/ws/agent", self.enrolled_for())
        self.assertTrue(self.enrolled_for().startswith(("ws://127.", "ws://[::1]")))
        done = self.site.cortextx("agent", "issue", "--host", "web1")
        self.assertIn("invitation  wss://", done.stdout)
        self.assertIn("public_url", done.stderr)

    def test_a_server_that_cannot_start(self) -> None:
        """A server that ends at once is told with its own words, and nothing is left running."""
        self.site.write_server_config("[server]\nlisten = 7\n")
        done = self.site.cortextx("up", code=1)
        self.assertIn("server.listen", done.stderr)
        self.assertEqual(self.pids(), (None, None))

    def test_one_that_up_did_not_start(self) -> None:
        """down leaves a server alone that somebody else started, and says so; up uses it."""
        self.site.start_server()
        self.site.cortextx("up", "--wait", "30")
        done = self.site.cortextx("down", code=1)
        self.assertIn("was not started by", done.stderr)
        self.assertIsNone(running_pid(self.agent))
        self.assertEqual(running_pid(self.server), self.site.running[SERVER].pid)

    def test_files_are_private(self) -> None:
        """Nobody else can read what lies in the state directory."""
        self.up()
        for folder, _, files in os.walk(self.site.state):
            self.assertEqual(Path(folder).stat().st_mode & 0o077, 0, folder)
            for name in files:
                if not name.endswith(".toml"):
                    self.assertEqual(Path(folder, name).stat().st_mode & 0o077, 0, name)
        self.site.cortextx("down")

    def test_a_token_that_the_server_never_knew_or_forgot_is_replaced(self) -> None:
        """§3.5, F29: a lost first answer bricks no host that `up` enrolled; seqs go on."""
        self.up()
        self.site.wait_until(lambda: self.found("first"), "the log's first line")
        self.site.cortextx("down")
        for token in (self.site.state / "agent").glob("token*"):
            token.write_text("a-token-that-nobody-issued-to-this-host-ever")
        with self.log.open("a") as log:
            log.write("the second line\n")
        self.assertIn("again", self.up())
        self.site.wait_until(lambda: self.found("second"), "the line written meanwhile")
        self.assertEqual(len(self.found("first")), 1)
        self.assertEqual([row["gap_count"] for row in self.site.hosts()], [0])

    def test_a_revoked_host_stays_revoked(self) -> None:
        """F8: what an operator refused on purpose is not undone."""
        self.up()
        name = self.site.hosts()[0]["name"]
        self.site.cortextx("agent", "revoke", name, "--yes")
        done = self.site.cortextx("up", "--wait", "10", code=1)
        self.assertIn("enrol it anew", done.stderr)
        self.assertEqual([row["state"] for row in self.site.hosts()], ["revoked"])
