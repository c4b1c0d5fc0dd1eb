"""`cortextx up` and `down` on a fresh state directory, as a new user would meet them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.processes import AGENT, SERVER, Place, running_pid
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
        self.site.cortextx("down")
        self.site.cortextx("agent", "list", code=3)
        self.site.cortextx("agent", "status", code=3)

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
