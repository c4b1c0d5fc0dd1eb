"""What is older than others remember: a restored database, a lost or older buffer (F2, F26)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.client import agent_client
from cortextx.stores.sqlite_backup import backup, restore
from tests.integration.harness import AGENT, SERVER, Installation


class Restored(SynchronousTestCase):
    """A server and an agent that ships one log."""

    def setUp(self) -> None:
        self.site = Installation(self)
        self.log = self.site.root / "logs" / "app.log"
        self.log.parent.mkdir()
        self.log.touch()
        self.written = 0
        self.site.start_server()
        self.site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{self.log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )

    @property
    def database(self) -> Path:
        return self.site.state / "server" / "store.db"

    def write(self, count: int) -> None:
        """Write so many numbered lines."""
        with self.log.open("a") as file:
            file.writelines(f"{self.written + n}\n" for n in range(count))
        self.written += count

    def stored(self) -> list[str]:
        """The stored lines, in the order in which they were stored."""
        return [e["message"] for e in self.site.tail_all() if e["source"].endswith("app.log")]

    def shipped(self, count: int) -> None:
        """Wait until so many lines are stored, and their acks are there."""
        self.site.wait_until(lambda: len(self.stored()) == count, f"{count} lines")
        self.site.wait_until(lambda: self.status()["backlog_entries"] == 0, "the acks")

    def status(self) -> dict[str, Any]:
        with agent_client(str(self.site.state)) as client:
            found: dict[str, Any] = client.one("status")
        return found

    def host(self) -> dict[str, Any]:
        (found,) = self.site.hosts()
        return found

    def issue_again(self, name: str, host_id: str) -> None:
        """A fresh token for a host that says it is enrolled."""
        issue = ("agent", "issue", "--host", name, "--host-id", host_id, "--json")
        made = json.loads(self.site.cortextx(*issue).stdout)
        enrol = ("agent", "enroll", "--force", "--invitation-file", "-")
        self.site.cortextx(*enrol, stdin=made["invitation"])
        self.site.cortextx("agent", "retry")

    def restore(self, copy: Path) -> None:
        """Stop the server, put a backup in the place of its database, start it again."""
        self.site.stop(SERVER)
        found = restore(str(copy), str(self.database), str(self.database) + ".aside")
        self.assertEqual(found.faults, ())
        self.site.start_server()
        self.site.cortextx("agent", "retry")

    def backup(self, name: str = "backup.db") -> Path:
        """Back the running server's database up."""
        target = self.site.root / name
        backup(str(self.database), str(target))
        return target


class OlderDatabase(Restored):
    def test_what_was_acked_since_the_backup_is_a_gap_and_all_else_flows(self) -> None:
        """F26: the agent goes on from what it has; the server has what came before the backup
        and after the restoration, each once, and records what lies between as lost."""
        self.site.enroll("restored")
        self.site.start_agent()
        self.write(50)
        self.shipped(50)
        before = self.host()["accepted_seq"]
        copy = self.backup()
        self.write(70)
        self.shipped(120)
        after = self.host()["accepted_seq"]
        self.restore(copy)
        self.assertEqual(self.host()["accepted_seq"], before)
        self.write(30)
        self.shipped(80)
        self.assertEqual(self.stored(), [str(n) for n in (*range(50), *range(120, 150))])
        host = self.host()
        self.assertEqual((host["gap_count"], host["lost_entries"]), (1, after - before))
        with self.site.client() as client:
            (gap,), _ = client.call("gaps", host="restored")
        self.assertEqual((gap["first"], gap["last"]), (before + 1, after))
        # The reconnects after that find both sides of one mind.
        self.site.kill_server()
        self.write(10)
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.shipped(90)
        self.assertEqual(self.host()["gap_count"], 1)

    def test_the_gap_shows_though_the_host_logs_nothing(self) -> None:
        """F26, F37: the agent sees at the hello that what it had acked is gone, and says so at
        once, so that an audit is not complete for as long as nothing is logged."""
        self.site.enroll("silent")
        self.site.start_agent()
        self.write(20)
        self.shipped(20)
        before = self.host()["accepted_seq"]
        copy = self.backup()
        self.write(30)
        self.shipped(50)
        after = self.host()["accepted_seq"]
        self.restore(copy)
        self.site.wait_until(lambda: self.host()["gap_count"] == 1, "the gap")
        found = json.loads(self.site.cortextx("audit", "silent", "--json", code=5).stdout)
        self.assertEqual(found["missing_entries"], after - before)
        (gap,) = found["gaps"]
        self.assertEqual((gap["first"], gap["last"]), (before + 1, after))
        self.assertEqual(gap["cause"], "restored")
        self.site.wait_until(lambda: self.reports() == 1, "the agent's own word on it")
        self.assertEqual(self.host()["gap_count"], 1)
        # Once it has said so, it does not say so again.
        self.site.kill_server()
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.write(5)
        self.shipped(25)
        self.assertEqual((self.host()["gap_count"], self.reports()), (1, 1))

    def reports(self) -> int:
        """How often the host said that the server was restored."""
        own = [e["message"] for e in self.site.tail_all() if e["source"] == "custom:cortextx"]
        return sum("it was restored" in message for message in own)

    def test_a_host_that_the_backup_does_not_know(self) -> None:
        """A56: it is refused, and keeps its buffer, its files and its process; issued again under
        its host id it goes on where it was, and what the old database had is one gap."""
        copy = self.backup()
        made = self.site.enroll("newer")
        self.site.start_agent()
        self.write(40)
        self.shipped(40)
        acked = self.host()["accepted_seq"]
        self.restore(copy)
        self.assertEqual(self.site.hosts(), [])
        self.site.wait_until(lambda: self.status()["state"] == "fatal_auth", "the refusal")
        self.write(25)
        host_id = made["host_id"] or (self.site.state / "agent" / "host_id").read_text().strip()
        self.issue_again("newer", host_id)
        self.shipped(25)
        self.assertEqual(self.stored(), [str(n) for n in range(40, 65)])
        host = self.host()
        self.assertEqual((host["gap_count"], host["lost_entries"]), (1, acked))


class OlderBuffer(Restored):
    def test_a_lost_buffer_loses_nothing_new(self) -> None:
        """F2: a new buffer's entries are numbered behind what the server has, so that none is
        taken for a duplicate; no gap is recorded."""
        self.site.enroll("wiped")
        self.site.start_agent()
        self.write(60)
        self.shipped(60)
        self.site.stop(AGENT)
        shutil.rmtree(self.site.state / "agent" / "buffer")
        self.log.rename(self.log.with_name("gone"))
        self.log.touch()
        self.write(20)
        self.site.start_agent()
        self.shipped(80)
        self.assertEqual(self.stored(), [str(n) for n in range(80)])
        self.assertEqual(self.host()["gap_count"], 0)

    def test_an_older_buffer_doubles_rather_than_loses(self) -> None:
        """F2, F26: a buffer that was restored from a copy reads again what it does not know to
        have shipped, under new numbers, and loses nothing that is written afterwards."""
        self.site.enroll("aged")
        self.site.start_agent()
        self.write(30)
        self.shipped(30)
        self.site.stop(AGENT)
        buffer = self.site.state / "agent" / "buffer"
        copy = self.site.root / "buffer"
        shutil.copytree(buffer, copy)
        self.site.start_agent()
        self.write(30)
        self.shipped(60)
        self.site.stop(AGENT)
        shutil.rmtree(buffer)
        shutil.copytree(copy, buffer)
        self.write(15)
        self.site.start_agent()
        self.shipped(105)
        lines = self.stored()
        self.assertEqual(lines, [str(n) for n in (*range(60), *range(30, 75))])
        self.assertEqual(self.host()["gap_count"], 0)
