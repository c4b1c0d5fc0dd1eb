"""A real server and a real agent with sources of several kinds, rules, probes and samples."""

from __future__ import annotations

import json
import socket
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.client import agent_client
from tests.integration.harness import AGENT, Installation


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Wiring(SynchronousTestCase):
    def setUp(self) -> None:
        self.site = Installation(self)
        self.app, self.plain = self.site.root / "app.log", self.site.root / "plain.log"
        self.plain.write_text("a plain line\na secret word\n")
        self.app.write_text("1 first\n  more of it\n2 second\n3 third\n")
        self.port = free_port()
        self.site.write_agent_config(
            f"""
            [[sources]]
            kind = "file"
            path = "{self.site.root}/*.log"

            [[sources]]
            kind = "file"
            name = "app"
            path = "{self.app}"
            multiline = {{ start = '^\\d', timeout_secs = 0.5 }}

            [[sources]]
            kind = "custom"
            type = "syslog-udp"
            name = "device"
            listen = "127.0.0.1:{self.port}"

            [[sources]]
            kind = "custom"
            type = "exec"
            name = "once"
            command = ["/bin/sh", "-c", "echo said; exec sleep 1000"]

            [[rules]]
            name = "secrets"
            match = {{ message = "secret" }}
            action = "drop"
            """,
            agent='allow_sources = []\nallow_probes = ["host.info"]\n',
        )

    def status(self) -> dict[str, Any]:
        with agent_client(str(self.site.state)) as client:
            return client.one("status")

    def listens(self) -> bool:
        reports = {one["name"]: one["state"] for one in self.status()["reports"]}
        return reports.get("device") == "running"

    def test_all_of_it(self) -> None:
        """Every source's entries arrive once, the rule's victim does not; a probe is answered,
        one that is not allowed is not; samples come; the status tells the truth; and the
        buffer is looked into with the agent and without."""
        self.site.start_server()
        self.site.enroll("web1")
        self.site.start_agent()
        self.site.wait_until(self.listens, "the listener")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
            device.sendto(b"<11>1 2026-01-01T00:00:00Z sw1 app - - - up", ("127.0.0.1", self.port))
        wanted = {
            (f"file:{self.plain}", "a plain line"),
            (f"file:{self.app}", "1 first\n  more of it"),
            (f"file:{self.app}", "2 second"),
            (f"file:{self.app}", "3 third"),
            ("custom:device", "up"),
            ("custom:once", "said"),
        }

        def rows() -> list[tuple[str, str]]:
            found = [(row["source"], row["message"]) for row in self.site.tail_all()]
            return [row for row in found if row[0] != "custom:cortextx"]

        self.site.wait_until(lambda: len(rows()) >= len(wanted), "all entries")
        self.assertEqual(sorted(rows()), sorted(wanted))

        done = self.site.cortextx("probe", "web1", "host.info", "--json")
        self.assertIn("kernel", str(json.loads(done.stdout)))
        self.site.wait_until(lambda: self.status()["samples_accepted"] > 0, "samples", 30.0)
        found = self.status()
        self.assertEqual((found["health"], found["config"]["state"]), ("green", "applied"))
        self.assertEqual(found["backlog_entries"], 0)
        self.assertEqual(found["rules"][0]["dropped"], 1)
        offered = [probe["name"] for probe in found["probes"] if probe["offered"]]
        self.assertEqual(offered, ["host.info"])

        good = json.loads(self.site.cortextx("agent", "buffer", "verify", "--json").stdout)
        self.assertTrue(good["good"])
        self.site.stop(AGENT)
        held = json.loads(self.site.cortextx("agent", "buffer", "inspect", "--json").stdout)
        self.assertEqual(held["acked_seq"], held["durable_seq"])
