"""cortextx doctor: what it finds in a state directory, and what it makes of what it is told."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli import doctor_agent, doctor_machine, doctor_server, doctor_store
from cortextx.app.cli.findings import Finding
from cortextx.app.cli.invocation import Invocation
from cortextx.fleet.agent.identity import IdentityFiles
from cortextx.stores import sqlite_file
from tests.app.scripted import Answer, Scripted

HOST = {"name": "web1", "host_id": "6f1d", "state": "active", "connected": True}


def levels(found: list[Finding]) -> list[str]:
    return [finding.level for finding in found]


class Looks(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.directory)
        self.invocation = Invocation(state_dir_option=self.directory, now=lambda: 1_800_000_000.0)

    def put(self, name: str, text: str = "", mode: int = 0o600) -> str:
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def test_private(self) -> None:
        """What is secret and open to others is wrong, each with what mends it."""
        look = doctor_machine.state_directory
        self.put("agent/token", "t")
        self.assertEqual(levels(list(look(self.invocation))), ["ok"])
        path = self.put("server/store.db", mode=0o640)
        os.chmod(os.path.join(self.directory, "server"), 0o755)
        found = list(look(self.invocation))
        self.assertEqual(levels(found), ["wrong", "wrong"])
        self.assertEqual(found[1].hint, f"chmod go= {path}")
        os.chmod(self.directory, 0o777)
        self.assertEqual(len(list(look(self.invocation))), 3)

    def test_no_directory(self) -> None:
        """A state directory that is not there is wrong, and the other looks find no more."""
        self.invocation.state_dir_option = "/nonexistent"
        self.assertEqual(levels(list(doctor_machine.state_directory(self.invocation))), ["wrong"])
        self.assertEqual(list(doctor_machine.disk(self.invocation)), [])

    def test_clock(self) -> None:
        """A clock of 1970 is wrong (A46)."""
        self.invocation.now = lambda: 1000.0
        self.assertEqual(levels(list(doctor_machine.clock(self.invocation))), ["wrong"])

    def test_configuration(self) -> None:
        """A server's configuration with a fault in it is found, with the field."""
        done = self.doctor('[server]\nlisten = ["tcp:8600"]\n')
        about = next(f for f in done if f["about"] == "server configuration")
        self.assertEqual(about["level"], "wrong")
        self.assertIn("server.listen", about["said"])

    def test_a_fault_is_told_once(self) -> None:
        """A configuration that cannot be read at all is one finding, whoever stumbles over it."""
        found = [f["said"] for f in self.doctor("[server]\nlisen = []\n")]
        self.assertEqual(len([said for said in found if "lisen" in said]), 1)

    def test_a_fault_hides_nothing_else(self) -> None:
        """Where the configuration is no TOML at all, the other looks find what they find."""
        self.put("server/store.db", "x" * 5000)
        about = {f["about"]: f for f in self.doctor("x = = 1\n")}
        self.assertIn("TOML", about["server configuration"]["said"])
        self.assertIn("does not run", about["server"]["said"])
        self.assertIn("store.db", about["database"]["said"])

    def test_a_ruined_database(self) -> None:
        """A file that is no database is wrong, and the way back is told; so is one that is
        gone. A sound one is well."""
        path = self.put("server/store.db", "x" * 5000)
        [found] = doctor_store.database(self.invocation)
        self.assertEqual(found.level, "wrong")
        self.assertIn(path, found.said)
        self.assertIn("server restore", str(found.hint))
        self.put("server/store.made", "{}")
        os.unlink(path)
        self.assertEqual(levels(list(doctor_store.database(self.invocation))), ["wrong"])
        sqlite_file.open_writer(path, 1).close()
        self.assertEqual(levels(list(doctor_store.database(self.invocation))), ["ok"])

    def test_a_database_that_takes_long(self) -> None:
        """The look is bounded in time; what was not seen is told."""
        path = self.put("server/store.db")
        sqlite_file.open_writer(path, 1).close()
        self.patch(doctor_store, "VERIFY_SECONDS", 0.001)
        [found] = doctor_store.database(self.invocation)
        self.assertEqual(found.level, "note")
        self.assertIn("server verify", str(found.hint))

    def test_a_directory_that_others_read(self) -> None:
        """Mode 755 is worth a note: the configuration in it is for its owner only."""
        os.chmod(self.directory, 0o755)
        found = list(doctor_machine.state_directory(self.invocation))
        self.assertEqual(levels(found), ["note", "ok"])
        self.assertIn("chmod go=", str(found[0].hint))

    def test_not_running(self) -> None:
        """A server that is set up and does not run is wrong; so is a port that is taken."""
        import socket

        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        self.put("cortex-server.toml", f'[server]\nlisten = ["tcp:{port}:interface=127.0.0.1"]\n')
        found = list(doctor_server.server_process(self.invocation))
        self.assertEqual(
            [(f.level, f.about) for f in found], [("wrong", "server"), ("wrong", "port")]
        )
        self.assertIn("another process", str(found[1].hint))

    def test_a_copied_agent(self) -> None:
        """A state of another machine is wrong (F14), one without a token too."""
        os.mkdir(os.path.join(self.directory, "agent"))
        found = list(doctor_agent.enrolment(self.invocation))
        self.assertEqual(levels(found), ["wrong"])
        self.assertIn("agent enroll", str(found[0].hint))
        IdentityFiles(os.path.join(self.directory, "agent")).enrol("ws://127.0.0.1/x", "t" * 40)
        self.assertEqual(levels(list(doctor_agent.enrolment(self.invocation))), ["ok"])
        self.put("agent/machine_id", "another")
        if os.path.exists("/etc/machine-id"):
            self.assertEqual(levels(list(doctor_agent.enrolment(self.invocation))), ["wrong"])

    def test_sources(self) -> None:
        """A source of this host's own that finds no file is worth a note."""
        self.put("cortex-agent.toml", '[[sources]]\nkind = "file"\npath = "/nonexistent/*.log"\n')
        found = list(doctor_agent.agent_configuration(self.invocation))
        self.assertIn(("note", "no file is at /nonexistent/*.log (yet)"),
                      [(f.level, f.said) for f in found])  # fmt: skip

    def test_a_source_that_cannot_run(self) -> None:
        """What a source names and this machine has not is wrong, whether or not an agent runs."""
        self.put("cortex-agent.toml", '[[sources]]\nkind = "custom"\ntype = "exec"\n'
                 'name = "vm"\ncommand = ["/no/vmstat"]\n')  # fmt: skip
        found = list(doctor_agent.agent_configuration(self.invocation))
        [wrong] = [each for each in found if each.level == "wrong"]
        self.assertIn("sources[0].command: expected a program that is there", wrong.said)

    def test_exit_code(self) -> None:
        """5 if anything is wrong, and a token is never in what is printed (F23)."""
        self.put("agent/token", "secret" * 10, 0o644)
        done = Scripted(None, directory=self.directory)("doctor")
        self.assertEqual(done.code, 5)
        self.assertIn("WRONG", done.out)
        self.assertNotIn("secretsecret", done.out + done.err)

    def doctor(self, server_toml: str) -> list[dict[str, Any]]:
        self.put("cortex-server.toml", server_toml)
        done = Scripted(None, directory=self.directory)("doctor", "--json")
        found: list[dict[str, Any]] = json.loads(done.out)["findings"]
        return found


class Told(SynchronousTestCase):
    """What the processes say is judged."""

    def hosts(self, *rows: dict[str, Any], tokens: Any = ()) -> list[Finding]:
        scripted = Scripted(Answer(rows=list(rows)), Answer(rows=list(tokens)))
        invocation = Invocation(
            state_dir_option="/nonexistent",
            connect_server=scripted._connect,
            now=lambda: 1_800_000_000.0,
        )
        return list(doctor_server.hosts(invocation))

    def test_hosts(self) -> None:
        """Clones, clocks and silence are wrong; gaps and absence worth a note (F14, A46, A53)."""
        clone = {"at": "", "supersessions": 9, "addresses": ["192.0.2.1", "192.0.2.2"]}
        for more, level, words in (
            ({}, "ok", "nothing amiss"),
            ({"probable_clone": clone}, "wrong", "192.0.2.2"),
            ({"clock_off": True, "clock_skew_seconds": 400.0}, "wrong", "400.0 s off"),
            ({"heartbeat_overdue": True}, "wrong", "no heartbeats"),
            ({"gap_count": 2, "lost_entries": 7}, "note", "7 entries lost"),
            ({"connected": False, "last_seen": None}, "note", "not connected since it enrolled"),
        ):
            [found] = self.hosts({**HOST, **more})
            self.assertEqual(found.level, level, more)
            self.assertIn(words, found.said)

    def test_a_host_token_that_ends(self) -> None:
        """F7: a host that took no new token before its old one ended is locked out, which
        is wrong; one that still may is told of, and so is an invitation nobody used."""
        past, soon = "2027-01-15T07:00:00Z", "2027-01-15T09:00:00Z"
        unused = {"state": "never_connected", "connected": False, "host_id": None}
        for more, level, words in (
            ({"token_expires_at": past}, "wrong", "it is locked out"),
            ({"token_expires_at": soon}, "wrong", "has taken no new one"),
            ({**unused, "token_expires_at": past}, "note", "ended unused"),
            ({**unused, "token_expires_at": soon}, "ok", "nothing amiss"),
        ):
            [found] = self.hosts({**HOST, **more})
            self.assertEqual(found.level, level, more)
            self.assertIn(words, found.said)
        away = {"token_expires_at": soon, "connected": False}
        self.assertEqual(levels(self.hosts({**HOST, **away})), ["note", "note"])

    def test_tokens(self) -> None:
        """An API token that ends within a week is worth a note, one that was revoked is not."""
        soon = {"name": "ci", "expires_at": "2027-01-16T08:00:00Z", "revoked_at": None}
        found = self.hosts(HOST, tokens=[
            soon, {**soon, "revoked_at": "2026-01-01T00:00:00Z"}, {**soon, "expires_at": None},
        ])  # fmt: skip
        self.assertEqual(levels(found), ["ok", "note"])

    def test_link(self) -> None:
        """A refused agent is wrong, with the way back for its very id (F34)."""
        refused = doctor_agent._link({"state": "fatal_auth", "host_id": "6f1d", "auth": "x"})
        self.assertEqual(refused.level, "wrong")
        self.assertIn("--host-id 6f1d", str(refused.hint))
        self.assertEqual(doctor_agent._link({"state": "active"}).level, "ok")
        self.assertEqual(doctor_agent._link({"state": "backoff"}).level, "wrong")

    def test_each_source_that_does_not_work(self) -> None:
        """It is named with its reason and with what to do; one that rests is in order."""
        reports = [
            {"name": "docker", "kind": "docker", "state": "waiting", "why": "no daemon"},
            {"name": "vm", "kind": "custom", "state": "failed", "why": "x",
             "details": {"type": "exec"}},
            {"name": "job", "kind": "custom", "state": "waiting", "details": {"at_rest": True}},
            {"name": "files", "kind": "file", "state": "running",
             "details": {"trouble": "too many"}},
        ]  # fmt: skip
        files = [{"path": "/a", "why": "denied"}, {"path": "/b", "why": None}]
        found = list(doctor_agent._sources({"reports": reports, "files": files}))
        self.assertEqual(levels(found), ["wrong"] * 4)
        self.assertEqual(
            [each.said for each in found],
            ["docker waits: no daemon", "custom vm has failed: x",
             "file files is in trouble: too many", "not read: /a: denied"],
        )  # fmt: skip
        self.assertIn("group docker", str(found[0].hint))
        self.assertIn("by hand", str(found[1].hint))

    def test_a_configuration_that_was_taken_back(self) -> None:
        """A58: it is wrong, with what failed and why; one that waits is worth a note."""
        back = {"state": "rolled_back", "failed": "f1", "effective": "f0", "reason": "no unit"}
        [found] = doctor_agent._configured({"config": back})
        self.assertEqual(found.level, "wrong")
        self.assertIn("(f1) was taken back: no unit", found.said)
        [found] = doctor_agent._configured({"config": {"state": "applied", "reason": "waiting: x"}})
        self.assertEqual(found.level, "note")
        self.assertEqual(list(doctor_agent._configured({"config": {"state": "applied"}})), [])

    def test_buffer(self) -> None:
        """A buffer that cannot be written is wrong; what was lost is worth a note."""
        found = list(doctor_agent._buffer({"buffer_fault": "disk", "evicted_entries": 3}))
        self.assertEqual(levels(found), ["wrong", "note"])

    def test_health(self) -> None:
        """Commits that failed are wrong; refusals worth a note."""
        found = list(doctor_server._health({
            "ingest": {"failed_commits": 1, "quota_refusals": 2},
            "admission": {"refused_connections": 3},
        }))  # fmt: skip
        self.assertEqual(levels(found), ["wrong", "note", "note"])
