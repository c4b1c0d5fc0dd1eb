"""What deploy/systemd says of the processes is so: their units, and how they tell of themselves."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import cortextx
from cortextx.app.process import OTHER_FILES
from cortextx.fleet.server.settings import ServerTable
from tests.integration.harness import AGENT, SERVER, Installation

SLAVE = "cortex-slave"
UNITS = Path(cortextx.__file__).parent.parent / "deploy" / "systemd"


def unit(plugin: str) -> dict[str, str]:
    """The [Service] section of a unit."""
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    found.optionxform = str  # type: ignore[method-assign,assignment]
    found.read(UNITS / f"{plugin}.service")
    return dict(found["Service"])


class Units(SynchronousTestCase):
    def test_systemd_takes_them(self) -> None:
        """systemd-analyze has nothing to say against the units, were they installed here."""
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            raise SkipTest("systemd-analyze is not installed")
        place = Installation(self)
        here = os.path.dirname(sys.executable)
        for plugin in (SERVER, AGENT, SLAVE):
            text = (UNITS / f"{plugin}.service").read_text()
            # The programs have to be there, so they are called where they are here.
            (place.root / f"{plugin}.service").write_text(text.replace("/opt/cortextx/bin", here))
        done = subprocess.run(
            [analyze, "verify", *map(str, place.root.glob("*.service"))],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_their_limits(self) -> None:
        """A server may have as many files as connections and its own; both may restart, and
        have longer to stop than they may take to drain."""
        files = int(unit(SERVER)["LimitNOFILE"])
        self.assertGreaterEqual(files, ServerTable().max_connections + OTHER_FILES)
        for plugin in (SERVER, AGENT):
            self.assertEqual(unit(plugin)["Restart"], "always")
            self.assertGreater(int(unit(plugin)["TimeoutStopSec"]), 60 + 10)
            self.assertNotEqual(unit(plugin)["User"], "root")
        self.assertEqual(unit(SLAVE)["Restart"], "always")
        self.assertNotEqual(unit(SLAVE)["User"], "root")


class Notices(SynchronousTestCase):
    def notify(self, at: str) -> None:
        """Have the processes that are started tell of themselves at a socket."""
        os.environ["NOTIFY_SOCKET"] = at
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET", None)

    def test_ready_and_stopping(self) -> None:
        """Type=notify: READY=1 comes when a process works, not before, and STOPPING=1 when it
        begins to stop; of the server and of the agent."""
        place = Installation(self)
        at = str(place.root / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(at)
            manager.settimeout(20)
            self.notify(at)
            place.start_server()
            place.enroll("web1")
            place.start_agent()
            self.assertEqual([manager.recv(100) for _ in range(2)], [b"READY=1"] * 2)
            for plugin in (AGENT, SERVER):
                place.stop(plugin, signal.SIGTERM)
                self.assertEqual(manager.recv(100), b"STOPPING=1")

    def test_a_manager_that_is_gone(self) -> None:
        """A socket that nobody reads, or that is not there, keeps nobody from working."""
        place = Installation(self)
        self.notify(str(place.root / "nobody"))
        self.assertTrue(place.start_server())
        self.assertIn("could not be told", place.output(SERVER))
