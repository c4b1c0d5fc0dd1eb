"""A server that comes back from a backup older than its hosts' tokens, with real processes."""

from __future__ import annotations

import shutil
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.client import agent_client
from cortextx.fleet.agent.identity import IdentityFiles
from tests.integration.harness import AGENT, SERVER, Installation


class RestoredServer(SynchronousTestCase):
    def setUp(self) -> None:
        self.site = Installation(self)
        self.files = IdentityFiles(str(self.site.state / "agent"))
        self.log = self.site.root / "app.log"
        self.log.write_text("one\n")
        self.site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{self.log}"\n', agent="allow_sources = []\n"
        )

    def wait_for_active(self) -> None:
        def active() -> bool:
            with agent_client(str(self.site.state)) as client:
                found: dict[str, Any] = client.one("status")
            return bool(found["state"] == "active")

        self.site.wait_until(active, "the agent to be active", 60.0)

    def wait_for_messages(self, *wanted: str) -> None:
        def there() -> bool:
            rows = [row for row in self.site.tail_all() if row["source"] == f"file:{self.log}"]
            return [row["message"] for row in rows] == list(wanted)

        self.site.wait_until(there, f"the entries {wanted}")

    def append(self, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{line}\n")

    def test_a_host_comes_back_with_the_token_before_its_rotation(self) -> None:
        """The backup knows the token that was replaced: the agent goes on with it by itself, and
        later entries are stored (A56)."""
        self.site.start_server()
        self.site.enroll("web1")
        self.site.start_agent()
        self.wait_for_messages("one")
        first = self.files.load_token()
        self.site.stop(SERVER)
        backup = self.site.root / "backup"
        shutil.copytree(self.site.state / "server", backup)
        self.site.start_server()
        self.wait_for_active()
        self.site.cortextx("agent", "rotate", "web1", "--now")
        self.site.wait_until(lambda: self.files.load_token() != first, "the new token")
        second = self.files.load_token()
        self.assertEqual(self.files.load_previous(), first)
        self.wait_for_active()
        self.site.stop(SERVER)
        shutil.rmtree(self.site.state / "server")
        shutil.copytree(backup, self.site.state / "server")
        self.site.start_server()
        self.site.wait_until(lambda: self.files.load_token() == first, "the token before", 60.0)
        self.wait_for_active()
        self.assertEqual(self.files.load_previous(), second)
        self.append("two")
        self.wait_for_messages("one", "two")
        said = self.site.output(AGENT)
        self.assertNotIn(first, said)
        self.assertNotIn(second, said)
        self.assertNotIn("Nothing is sent until then", said)
