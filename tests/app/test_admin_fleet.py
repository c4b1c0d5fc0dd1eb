"""The admin ops about probes, configs, groups and audits, over a server in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from twisted.internet.defer import Deferred

from cortextx.app.admin_fleet import FleetOps
from cortextx.app.admin_tokens import AUDITED, audited
from cortextx.app.linesocket import OpError
from tests import wire
from tests.fleet.scripted_agent import ScriptedAgent
from tests.fleet.test_server_protocol import FleetCase

DISK = "fs.disk_usage"


class OpsCase(FleetCase):
    def setUp(self) -> None:
        super().setUp()
        ops = FleetOps(lambda: self.fleet).ops()
        self.ops = audited(ops, lambda: self.fleet)
        self.rows: list[Any] = []

    def begin(self, op: str, **args: Any) -> Deferred[Any]:
        """Start an op; its rows go to `rows`, through JSON as a client gets them."""

        async def rows(some: Iterable[Any]) -> None:
            for row in some:
                line = msgspec.json.encode(row)
                self.assertNotIn(b"\n", line)
                self.rows.append(json.loads(line))

        self.rows = []
        coroutine: Any = self.ops[op](args, rows)
        return Deferred.fromCoroutine(coroutine)

    def end(self, op: str, **args: Any) -> Any:
        return json.loads(msgspec.json.encode(self.successResultOf(self.begin(op, **args))))

    def refused(self, op: str, **args: Any) -> OpError:
        error: OpError = self.failureResultOf(self.begin(op, **args), OpError).value
        return error

    def agent(self, **given: Any) -> ScriptedAgent:
        return ScriptedAgent(self).connect(**given)


class Audits(OpsCase):
    def test_complete(self) -> None:
        """A host whose every seq is here is complete."""
        self.agent().push(1, 5)
        end = self.end("agent.audit", host="testhost")
        self.assertEqual(
            end,
            {
                "host": "testhost",
                "host_id": wire.HOST_ID,
                "complete": True,
                "accepted_seq": 5,
                "missing_entries": 0,
                "awaited_entries": 0,
                "gaps": 0,
            },
        )
        self.assertEqual(self.rows, [])

    def test_gaps_with_their_causes(self) -> None:
        """Each gap is a row; ranges of seqs and of time choose among them (F13, F37)."""
        agent = self.agent()
        agent.push(1, 5)
        agent.push(9, 2)
        lost = {"first": 6, "last": 8, "count": 3, "reason": "evicted", "detail": ""}
        agent.push(11, source="custom:cortextx", metadata={"cortextx": {"lost": lost}})
        end = self.end("agent.audit", host=wire.HOST_ID)
        self.assertEqual((end["complete"], end["missing_entries"]), (False, 3))
        [row] = self.rows
        self.assertEqual(
            (row["first"], row["last"], row["cause"], row["host"]), (6, 8, "evicted", "testhost")
        )
        self.assertTrue(self.end("agent.audit", host="testhost", to_seq=5)["complete"])
        later = {"since": "2027-01-15T09:00:00Z"}
        self.assertTrue(self.end("agent.audit", host="testhost", **later)["complete"])
        earlier = {"until": "2027-01-15T09:00:00Z"}
        self.assertFalse(self.end("agent.audit", host="testhost", **earlier)["complete"])

    def test_bad_ranges(self) -> None:
        """A range that is none, and a time without an offset, are refused by name."""
        self.agent()
        for args in ({"from_seq": 0}, {"since": "2027-01-15T09:00:00"}, {"from": 1}):
            self.assertEqual(
                self.refused("agent.audit", host="testhost", **args).code, "bad_request"
            )


class Probes(OpsCase):
    def test_a_probe_runs(self) -> None:
        """Its record is the row; the end says how it ended; it is an act of `local`."""
        agent = self.agent(probes=[DISK])
        running = self.begin("probe.run", host="testhost", probe=DISK, args={"path": "/"})
        agent.pump()
        self.assertEqual(agent.probes[0]["params"]["timeout_ms"], 10_000)
        agent.answer(agent.probes[0], {"free": [1]})
        end = self.successResultOf(running)
        self.assertEqual(end, {"host_id": wire.HOST_ID, "outcome": "ok", "code": None})
        [row] = self.rows
        self.assertEqual((row["output"], row["args"]), ({"free": [1]}, {"path": "/"}))
        self.assertEqual((row["actor"], row["host"]), ("local", "testhost"))
        self.assertEqual(self.end("probe.history", host="testhost"), {"next": None})
        self.assertEqual(self.rows, [row])
        acts = self.successResultOf(self.store.acts(wire.HOST_ID))
        self.assertEqual([act.act for act in acts], ["probe.run"])

    def test_a_failed_probe_is_a_row_too(self) -> None:
        """What the agent said of it stands in the row; the op itself did its work."""
        agent = self.agent(probes=[DISK])
        running = self.begin("probe.run", host="testhost", probe=DISK)
        agent.pump()
        agent.answer(agent.probes[0], code=-32602, message="x", data={"field": "path"})
        self.assertEqual(self.successResultOf(running)["outcome"], "invalid")
        self.assertEqual(
            (self.rows[0]["code"], self.rows[0]["output"]), (-32602, {"field": "path"})
        )

    def test_refusals(self) -> None:
        """A host that is away, one that is unknown, and arguments out of bounds."""
        self.agent(probes=[DISK]).leave()
        asked = {"host": "testhost", "probe": DISK}
        self.assertEqual(self.refused("probe.run", **asked).code, "not_connected")
        self.assertEqual(self.refused("probe.run", host="x", probe=DISK).code, "not_found")
        for wrong in ({"timeout_ms": 0}, {"timeout_ms": 600_001}, {"args": [1]}, {"probe": ""}):
            self.assertEqual(self.refused("probe.run", **asked | wrong).code, "bad_request")
        self.agent(probes=[DISK])
        long = {"path": "x" * 70_000}
        self.assertEqual(self.refused("probe.run", **asked, args=long).code, "bad_request")

    def test_history_is_paged(self) -> None:
        """The newest first, and `next` goes on."""
        self.agent()
        for name in ("a", "b", "c"):
            self.end("probe.run", host="testhost", probe=name)
        end = self.end("probe.history", limit=2)
        self.assertEqual([row["probe"] for row in self.rows], ["c", "b"])
        self.end("probe.history", limit=2, before=end["next"])
        self.assertEqual([row["probe"] for row in self.rows], ["a"])
        self.end("probe.history", probe="b")
        self.assertEqual([row["outcome"] for row in self.rows], ["unavailable"])


class Configs(OpsCase):
    def test_set_tells_and_get_shows(self) -> None:
        """A host's config is set, told, and shown with its layers (§4.8)."""
        agent = self.agent()
        end = self.end("config.set", host="testhost", config={"flush_interval_ms": 50})
        self.assertEqual((end["host_id"], end["told"]), (wire.HOST_ID, [wire.HOST_ID]))
        agent.pump()
        self.assertEqual(agent.updates[0]["params"]["config"]["flush_interval_ms"], 50)
        self.end("config.get", host="testhost")
        [row] = self.rows
        self.assertEqual(row["config"], agent.updates[0]["params"]["config"])
        self.assertEqual(row["layers"][0]["members"], {"flush_interval_ms": 50})
        self.assertEqual((row["in_step"], row["told"]["fingerprint"]), (True, row["fingerprint"]))
        self.assertEqual(row["reports"], [])

    def test_scopes(self) -> None:
        """Without a host or group all hosts are meant; both are too much."""
        self.agent()
        self.end("config.set", config={"flush_interval_ms": 50})
        self.end("config.set", group="web", config={"flush_interval_ms": 60})
        self.end("group.set", host="testhost", groups=["web"])
        self.end("config.get", host="testhost")
        self.assertEqual(self.rows[0]["config"]["flush_interval_ms"], 60)
        self.assertEqual(self.rows[0]["groups"], ["web"])
        end = self.end("config.get")
        self.assertEqual([row["scope"] for row in self.rows], ["all", "group"])
        self.assertEqual(end["defaults"]["heartbeat_interval_secs"], 30)
        self.end("config.get", group="web")
        self.assertEqual([row["name"] for row in self.rows], ["web"])
        self.end("group.list")
        self.assertEqual(self.rows, [{"name": "web", "host_ids": [wire.HOST_ID]}])
        both = self.refused("config.set", host="testhost", group="web", config={})
        self.assertEqual(both.code, "bad_request")

    def test_merge_and_unset(self) -> None:
        """`merge` adds to what is set, `unset` takes away; the last one removes the layer."""
        self.agent()
        self.end("config.set", config={"flush_interval_ms": 50})
        self.end("config.set", config={"probe_concurrency": 2}, merge=True)
        self.end("config.get")
        members = {"flush_interval_ms": 50, "probe_concurrency": 2}
        self.assertEqual(self.rows[0]["members"], members)
        self.end("config.set", config={}, unset=["flush_interval_ms"])
        self.end("config.get")
        self.assertEqual(self.rows[0]["members"], {"probe_concurrency": 2})
        end = self.end("config.set", config=None)
        self.assertIsNone(end["version"])
        self.assertEqual(self.end("config.get")["count"], 0)

    def test_a_bad_config_is_refused_by_field(self) -> None:
        """The message says which member, and what was expected (A59)."""
        error = self.refused("config.set", config={"probe_concurrency": 65})
        self.assertEqual(error.code, "bad_request")
        self.assertIn("$.probe_concurrency", str(error))

    def test_push_sends_again(self) -> None:
        """To a host, to a group's hosts, to all; only who is connected is told."""
        agent = self.agent()
        self.end("group.set", host="testhost", groups=["web"])
        for args in ({"host": "testhost"}, {"group": "web"}, {}):
            self.assertEqual(self.end("config.push", **args)["told"], [wire.HOST_ID])
        at = "2027-01-15T09:00:00Z"
        self.end("config.push", apply_after=at)
        agent.pump()
        self.assertEqual(len(agent.updates), 4)
        self.assertEqual(agent.updates[3]["params"]["apply_after"], at)
        self.assertEqual(self.refused("config.push", group="none").code, "not_found")
        agent.leave()
        self.assertEqual(self.end("config.push")["told"], [])

    def test_what_an_agent_says_of_its_sources_is_shown(self) -> None:
        """F18: its custom:cortextx entries stand beside its config."""
        refused = {"cortextx": {"refused_source": {"kind": "docker", "name": "docker"}}}
        agent = self.agent()
        agent.push(1, source="custom:cortextx", message="does not run", metadata=refused)
        agent.push(2)
        self.end("config.get", host="testhost")
        [report] = self.rows[0]["reports"]
        self.assertEqual((report["message"], report["metadata"]), ("does not run", refused))

    def test_a_config_that_was_taken_back_is_told(self) -> None:
        """A58: the newest that a host said of its config stands beside it, however much it
        said of other things since."""
        agent = self.agent()
        self.end("config.get", host="testhost")
        self.assertIsNone(self.rows[0]["at_host"])
        for seq, state in ((1, "applied"), (2, "rolled_back")):
            facts = {"state": state, "failed": "f1", "effective": "f0", "reason": "no unit"}
            agent.push(
                seq, source="custom:cortextx", message="configuration f1 failed",
                metadata={"cortextx": {"config": facts}}, ts=f"2026-01-01T00:00:0{seq}Z",
            )  # fmt: skip
        for seq in range(3, 30):
            agent.push(seq, source="custom:cortextx", message="lost", ts="2026-01-02T00:00:00Z")
        self.end("config.get", host="testhost")
        there = self.rows[0]["at_host"]
        self.assertEqual((there["state"], there["reason"]), ("rolled_back", "no unit"))

    def test_changes_are_acts(self) -> None:
        """S8: what changes or reaches hosts is recorded."""
        self.assertLessEqual({"config.set", "config.push", "group.set", "probe.run"}, AUDITED)
