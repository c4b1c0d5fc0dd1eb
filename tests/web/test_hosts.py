"""Hosts over HTTP: enrolling and leaving, configs, groups, probes, metrics."""

from __future__ import annotations

import json
from typing import Any

from cortextx.app.admin import AdminOps
from cortextx.core import jsontext
from cortextx.fleet.contract import MetricSample
from cortextx.fleet.invitation import read_invitation
from tests import wire
from tests.web.case import HOST_A, HOST_B, WALL, WebCase


class Acts(WebCase):
    def acts(self) -> list[Any]:
        """Who did what to whom, the newest first."""
        rows = self.good("/audit", role="admin")["acts"]
        return [(row["actor"], row["act"], row["subject"]) for row in rows]

    def test_issue(self) -> None:
        """An admin lets a host enrol; the token is told once, and is in no act (F6, F23)."""
        body = {"name": "web1", "host_id": HOST_A.upper(), "expires_in": 60}
        made = self.good("/hosts", method="POST", role="admin", body=body)
        self.assertEqual((made["name"], made["host_id"]), ("web1", HOST_A))
        self.assertEqual(read_invitation(made["invitation"]).token, made["token"])
        self.assertEqual(self.acts(), [("token:my-admin", "agent.issue", HOST_A)])
        for path in ("/audit", "/hosts", "/hosts/web1"):
            self.assertNotIn(made["token"], self.ask(path, role="admin").body.decode())

    def test_issue_refuses_nonsense(self) -> None:
        """Names with control characters and ids that are none are refused by field."""
        for body, field in (
            ({"name": "a\nb"}, "name"),
            ({"name": ""}, "name"),
            ({"name": "x", "host_id": "y"}, "host_id"),
            ({"name": "x", "expires_in": 0}, "expires_in"),
        ):
            problem = self.refused(400, "/hosts", method="POST", role="admin", body=body)
            self.assertEqual(problem["field"], field)

    def test_rotate_and_revoke(self) -> None:
        """A live host is told to take a fresh token, and cut off when it is revoked (F7, F8)."""
        agent = self.agent()
        self.good("/hosts/web1/rotate", method="POST", role="admin", body={})
        self.assertTrue(self.good("/hosts/web1")["rotation_pending"])
        self.good("/hosts/web1/revoke", method="POST", role="admin")
        self.assertEqual(self.good("/hosts/web1")["state"], "revoked")
        self.assertTrue(wire.frames(agent.transport.value())[0])
        self.refused(409, "/hosts/web1/rotate", method="POST", role="admin", body={})
        self.assertEqual([act[1] for act in self.acts()], ["agent.revoke", "agent.rotate"])

    def test_forget(self) -> None:
        """A host is forgotten, enrolled or not, by name or id."""
        self.issue()
        self.issue("new", None)
        for ref in (HOST_A, "new"):
            self.good(f"/hosts/{ref}", method="DELETE", role="admin")
            self.refused(404, f"/hosts/{ref}")
        self.assertEqual([act[2] for act in self.acts()], ["new", HOST_A])

    def test_an_ambiguous_name(self) -> None:
        """Of hosts with one name none is taken: the candidates are told (F39)."""
        self.issue("web1", HOST_A)
        self.issue("web1", HOST_B)
        problem = self.refused(409, "/hosts/web1")
        self.assertEqual(problem["code"], "ambiguous")
        self.assertIn(HOST_A, problem["hint"])
        self.assertIn(HOST_B, problem["hint"])

    def test_not_enrolled(self) -> None:
        """What needs an id is refused to a host that has none yet."""
        self.issue("new", None)
        for path in ("/hosts/new/audit", "/hosts/new/config", "/hosts/new/metrics"):
            self.assertEqual(self.refused(409, path)["code"], "not_enrolled")

    def test_acts_page_and_narrow(self) -> None:
        """Acts are read a page at a time, of one subject or actor."""
        for number in range(3):
            body = {"name": f"h{number}"}
            self.good("/hosts", method="POST", role="admin", body=body)
        first = self.good("/audit", {"limit": 2}, role="admin")
        rest = self.good("/audit", {"limit": 2, "before": first["next"]}, role="admin")
        self.assertEqual((len(first["acts"]), len(rest["acts"]), rest["next"]), (2, 1, None))
        self.assertEqual(len(self.good("/audit", {"subject": "h1"}, role="admin")["acts"]), 1)
        self.assertEqual(self.good("/audit", {"actor": "nobody"}, role="admin")["acts"], [])


class Tokens(WebCase):
    def make(self, **body: Any) -> Any:
        return self.ask("/tokens", method="POST", role="admin", body=body)

    def test_a_token_is_told_once(self) -> None:
        """A made token works at once, and is never shown again (F23)."""
        made = self.make(name="ci", role="operator").json
        headers: dict[str, str | None] = {"Authorization": f"Bearer {made['token']}"}
        self.assertEqual(self.good("/whoami", headers=headers), {"name": "ci", "role": "operator"})
        for path in ("/tokens", "/audit"):
            self.assertNotIn(made["token"], self.ask(path, role="admin").body.decode())

    def test_names_are_unique_while_good(self) -> None:
        """A name is taken until its token is revoked."""
        self.assertEqual(self.make(name="ci", role="viewer").status, 201)
        self.assertEqual(self.make(name="ci", role="viewer").json["code"], "name_taken")
        self.good("/tokens/ci", method="DELETE", role="admin")
        self.assertEqual(self.make(name="ci", role="viewer").status, 201)
        self.refused(404, "/tokens/nobody", method="DELETE", role="admin")

    def test_nonsense(self) -> None:
        """Odd names and unknown roles are refused by field."""
        for body, field in (
            ({"name": "a b", "role": "viewer"}, "name"),
            ({"name": "x", "role": "root"}, "role"),
            ({"name": "x", "role": "viewer", "expires_in": -1}, "expires_in"),
            ({"role": "viewer"}, "name"),
        ):
            answer = self.make(**body)
            self.assertEqual((answer.status, answer.json["field"]), (400, field))


class Configs(WebCase):
    def test_a_live_host_is_told(self) -> None:
        """What is set for a host reaches its session at once, and what it is told can be
        seen (§4.8)."""
        agent = self.agent()
        body = {"config": {"probe_concurrency": 9}}
        told = self.good("/hosts/web1/config", method="PUT", role="operator", body=body)
        self.assertEqual((told["scope"], told["told"]), ("host", [HOST_A]))
        [update] = agent.heard()
        self.assertEqual(update["method"], "config.update")
        shown = self.good("/hosts/web1/config")
        self.assertEqual((shown["config"]["probe_concurrency"], shown["in_step"]), (9, True))
        self.assertEqual([layer["scope"] for layer in shown["layers"]], ["host"])
        self.assertEqual(self.good("/config")["configs"][0]["members"], {"probe_concurrency": 9})

    def test_wrong_members_change_nothing(self) -> None:
        """A member that is none, or out of range, is told by its path (A59)."""
        self.issue()
        for config, field in (
            ({"probe_concurrency": 0}, "config.probe_concurrency"),
            ({"probe_concurency": 1}, "config.probe_concurency"),
            ({"log_sources": [{}]}, "config.log_sources[0].kind"),
        ):
            body = {"config": config}
            told = self.refused(400, "/config", method="PUT", role="operator", body=body)
            self.assertEqual(told["field"], field)
        body = {"config": {"probe_concurrency": 1}}
        for group in ("a%0Ab", "x" * 254):
            path = f"/groups/{group}/config"
            told = self.refused(400, path, method="PUT", role="operator", body=body)
            self.assertEqual(told["field"], "group")
        self.assertEqual(self.good("/config")["configs"], [])

    def test_groups(self) -> None:
        """A host gets its groups' config, a later group's over an earlier one's."""
        self.agent()
        body: dict[str, Any] = {"groups": ["all-web", "canary"]}
        self.good("/hosts/web1/groups", method="PUT", role="operator", body=body)
        for group, value in (("canary", 7), ("all-web", 3)):
            body = {"config": {"probe_concurrency": value}}
            self.good(f"/groups/{group}/config", method="PUT", role="operator", body=body)
        self.assertEqual(self.good("/hosts/web1/config")["config"]["probe_concurrency"], 7)
        self.assertEqual(
            self.good("/groups")["groups"],
            [{"name": "all-web", "host_ids": [HOST_A]}, {"name": "canary", "host_ids": [HOST_A]}],
        )
        self.assertEqual(self.good("/hosts/web1")["groups"], ["all-web", "canary"])

    def test_nothing_set_again(self) -> None:
        """null takes away what a scope set."""
        for config in ({"probe_concurrency": 2}, None):
            body = {"config": config}
            self.good("/config", method="PUT", role="operator", body=body)
        self.assertEqual(self.good("/config")["configs"], [])

    def test_push(self) -> None:
        """A config is sent again where it is wanted, and only to who is connected."""
        agent = self.agent()
        self.issue("db1", HOST_B)
        for body, told in (({}, [HOST_A]), ({"host": "web1"}, [HOST_A]), ({"host": "db1"}, [])):
            answer = self.good("/config/push", method="POST", role="operator", body=body)
            self.assertEqual(answer["told"], told)
        self.assertEqual(len(agent.heard()), 2)
        body = {"group": "nobody"}
        self.refused(404, "/config/push", method="POST", role="operator", body=body)


class Probes(WebCase):
    def run_probe(self, **body: Any) -> Any:
        return self.begin("/api/v1/hosts/web1/probes", method="POST", role="operator", body=body)

    def test_an_answer(self) -> None:
        """A probe's answer is waited for, told, kept, and recorded as an act (§4.6, S8)."""
        agent = self.agent()
        client = self.run_probe(probe="host.uptime", args={"x": 1})
        [asked] = agent.heard()
        self.assertEqual(asked["params"]["probe"], "host.uptime")
        result = {"output": {"up": [1, 2]}, "duration_ms": 3}
        agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        row = client.answer().json
        self.assertEqual((row["outcome"], row["output"]), ("ok", {"up": [1, 2]}))
        self.assertEqual((row["args"], row["actor"]), ({"x": 1}, "token:my-operator"))
        self.assertEqual(self.good("/probes", {"host": "web1"})["probes"], [row])
        [act] = self.good("/audit", role="admin")["acts"]
        self.assertEqual((act["act"], act["subject"]), ("probe.run", HOST_A))

    def test_a_failure_is_an_answer(self) -> None:
        """What the agent says that went wrong is told with its code (§5)."""
        agent = self.agent()
        client = self.run_probe(probe="host.uptime")
        [asked] = agent.heard()
        error = {"code": -32011, "message": "x", "data": {"stderr": "no", "exit_code": 3}}
        agent.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        row = client.answer().json
        self.assertEqual((row["outcome"], row["code"], row["exit_code"]), ("failed", -32011, 3))

    def test_who_goes_away_leaves_the_probe_be(self) -> None:
        """A client that goes stops waiting; the probe's record is kept all the same."""
        agent = self.agent()
        client = self.run_probe(probe="host.uptime")
        client.lost()
        [asked] = agent.heard()
        result = {"output": 1, "duration_ms": 3}
        agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        self.assertEqual(self.good("/probes")["probes"][0]["outcome"], "ok")

    def test_what_cannot_be_asked(self) -> None:
        """A probe that the host does not know is never sent; a host that is away is no host
        to ask (§8)."""
        agent = self.agent()
        self.assertEqual(self.run_probe(probe="net.ping").answer().json["outcome"], "unavailable")
        self.assertEqual(agent.heard(), [])
        agent.lost()
        answer = self.run_probe(probe="host.uptime").answer()
        self.assertEqual((answer.status, answer.json["code"]), (409, "not_connected"))


class Measures(WebCase):
    def test_samples(self) -> None:
        """What a host measured is read by name and time (F24)."""
        self.issue()
        samples = [
            MetricSample(name="cpu", value=0.5, labels={"core": "0"}),
            MetricSample(name="mem", value=7),
        ]
        self.store.store_samples(HOST_A, WALL, samples, WALL)
        points = self.good("/hosts/web1/metrics")["points"]
        self.assertEqual(len(points), 2)
        [point] = self.good("/hosts/web1/metrics", {"name": "cpu"})["points"]
        self.assertEqual((point["labels"], point["value"]), ({"core": "0"}, 0.5))
        params = {"until": "2020-01-01T00:00:00Z"}
        self.assertEqual(self.good("/hosts/web1/metrics", params)["points"], [])

    def test_status(self) -> None:
        """The server tells how it is."""
        self.agent()
        self.push("x")
        status = self.good("/status")
        self.assertEqual((status["live_hosts"], status["hosts"]), (1, {"active": 1}))
        self.assertEqual((status["ingest"]["entries"], status["store"]["entries"]), (1, 1))
        self.assertEqual(json.dumps(status).count("token"), 0)

    def test_status_is_the_same_from_afar(self) -> None:
        """`server status` shows the same members here and with --server."""
        here = AdminOps(self.clock, lambda: self.fleet, WALL)
        local = self.result(here.status({}, lambda rows: None))
        local["hosts"] = dict(local["hosts"])
        self.assertEqual(json.loads(jsontext.encode(local)), self.good("/status"))
