"""cortextx server tls, and cortextx reload: what they make, ask and say."""

from __future__ import annotations

import json
import os
import shutil
import tempfile

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import Refused
from tests.app.scripted import Answer, Outcome, Scripted


class Tls(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory)

    def configure(self, public_url: str) -> None:
        with open(os.path.join(self.directory, "cortex-server.toml"), "w") as file:
            file.write(f'[server]\npublic_url = "{public_url}"\n')

    def tls(self, *args: str) -> Outcome:
        """`cortextx server tls ARGS` where no server runs."""
        return Scripted(None, directory=self.directory)("server", "tls", *args)

    def names(self) -> list[str]:
        found: list[str] = json.loads(self.tls("show", "--json").out)["names"]
        return found

    def test_the_public_name_is_always_in_it(self) -> None:
        """Whatever names are given, the one in public_url, at which agents connect, stays."""
        self.configure("wss://logs.example:8600/ws/agent")
        self.tls("init", "--name", "192.0.2.7")
        self.assertEqual(self.names(), ["192.0.2.7", "logs.example"])
        self.assertEqual(self.tls("renew", "--name", "db1").code, 0)
        self.assertEqual(self.names(), ["db1", "logs.example"])
        self.configure("wss://new.example/ws/agent")
        self.tls("renew")
        self.assertEqual(self.names(), ["db1", "logs.example", "new.example"])

    def test_names_that_go_are_told(self) -> None:
        """A renewal that is no longer for a name says so."""
        self.tls("init", "--name", "a.example", "--name", "b.example")
        self.assertIn("no longer for: a.example", self.tls("renew", "--name", "b.example").err)
        self.assertNotIn("no longer", self.tls("renew").err)

    def test_a_url_that_is_none(self) -> None:
        """A public_url that cannot be read is told, and nothing is made."""
        self.configure("wss://[::1")
        done = self.tls("init", "--name", "a.example")
        self.assertEqual(done.code, 2)
        self.assertIn("public_url", done.err)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "server", "tls", "ca.pem")))


class Reload(SynchronousTestCase):
    def test_two_names(self) -> None:
        """`cortextx reload` and `cortextx server reload` do the same."""
        end = {"changed": ["server.public_url"], "needs_restart": [], "certificate_until": None}
        said = set()
        for words in (("reload",), ("server", "reload")):
            command = Scripted(Answer(end=end))
            said.add(command(*words, "--yes").out)
            self.assertEqual(command.asked, [("server.reload", {"yes": True})])
        self.assertEqual(said, {"changed: server.public_url\n"})

    def test_a_fault_in_the_configuration(self) -> None:
        """It ends with 2, as `--check` of the server's does for the same fault."""
        error = Refused("bad_request", "f.toml: server.listen: expected at least one endpoint")
        done = Scripted(Answer(error=error))("reload")
        self.assertEqual(done.code, 2)
        self.assertIn("server.listen", done.err)
