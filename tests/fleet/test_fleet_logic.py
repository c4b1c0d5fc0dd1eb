"""The fleet server with scripted agents: quotas, samples, probes, configs, clones, clocks.

The site, Autobahn, the sessions and the store in memory are real; the transport
and the clock are not.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.logger import capturedLogs

from cortextx.core.jsontext import convert
from cortextx.errors import JsonShapeError, NotConnected, StoreError, StoreFull
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, AgentConfig, Code
from cortextx.fleet.server.probes import GRACE
from cortextx.fleet.server.rows import host_row
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet import EntryFilter, Gap
from cortextx.interfaces.fleet_records import ProbeRecord
from tests import wire
from tests.fleet.scripted_agent import ScriptedAgent
from tests.fleet.test_server_protocol import WALL, FleetCase

OTHER = "aaaaaaaa-7e3c-4d2a-9c0e-9bbf5d3a1f01"
DISK = "fs.disk_usage"


class LogicCase(FleetCase):
    def setUp(self) -> None:
        super().setUp()
        self.agents: list[ScriptedAgent] = []

    def agent(self, host_id: str = wire.HOST_ID, **given: Any) -> ScriptedAgent:
        agent = ScriptedAgent(self, host_id)
        self.agents.append(agent)
        return agent.connect(**given)

    def shown(self) -> dict[str, Any]:
        return host_row(self.row(), self.fleet)

    def gaps(self) -> list[tuple[int | None, int | None, str | None]]:
        gaps: list[Gap] = self.successResultOf(self.store.gaps(wire.HOST_ID))
        return [(gap.first, gap.last, gap.cause) for gap in gaps]


class Quota(LogicCase):
    table = {"quota_entries_per_sec": 10}

    def test_a_noisy_host_is_slowed_and_no_other(self) -> None:
        """Beyond its quota a host gets -32030, another one is served meanwhile (§5)."""
        noisy, other = self.agent(), self.agent(OTHER)
        self.assertIn("result", noisy.push(1, 20))
        refusal = noisy.push(21, 5)["error"]
        self.assertEqual((refusal["code"], refusal["data"]), (-32030, {"retry_after_ms": 500}))
        self.assertIn("result", other.push(1, 20))
        self.clock.advance(0.5)
        self.assertEqual(noisy.push(21, 5)["result"]["up_to_seq"], 25)
        self.assertEqual(self.gaps(), [])

    def test_a_reconnect_does_not_help(self) -> None:
        """The quota is the host's (§5)."""
        agent = self.agent()
        agent.push(1, 20)
        agent.leave()
        agent.connect()
        self.assertEqual(agent.push(21)["error"]["code"], -32030)

    def test_a_reload_changes_it(self) -> None:
        """Another quota holds at once, for live sessions too (A59)."""
        agent = self.agent()
        agent.push(1, 20)
        self.assertIn("error", agent.push(21))
        self.fleet.apply(ServerSettings(server=ServerTable(quota_entries_per_sec=0)))
        self.assertIn("result", agent.push(21, 1000))


class Samples(LogicCase):
    def test_samples_are_stored(self) -> None:
        """metrics.push is answered with what was stored, and can be read back (F24)."""
        answer = self.agent().measure(
            {"name": "load1", "value": 0.42}, {"name": "up", "value": 1, "labels": {"a": "b"}}
        )
        self.assertEqual(answer["result"], {"accepted": 2, "dropped": 0})
        points = self.successResultOf(self.store.metrics(wire.HOST_ID))
        found = {(one.name, one.labels, one.value) for one in points}
        self.assertEqual(found, {("load1", (), 0.42), ("up", (("a", "b"),), 1.0)})
        self.assertEqual((self.fleet.meter.accepted, self.fleet.gauge.used), (2, 0))

    def test_what_is_beyond_a_hosts_share_is_dropped(self) -> None:
        """However fast a host measures, only so much is stored; the answer counts the rest as
        dropped (F24), other hosts and logs go on, and time brings room again."""
        agent, other = self.agent(), self.agent(OTHER)
        samples = [{"name": f"s{n}", "value": 1} for n in range(500)]
        answers = [agent.measure(*samples)["result"] for _ in range(20)]
        self.assertEqual(answers, [{"accepted": 500, "dropped": 0}] * 12 + [
            {"accepted": 0, "dropped": 500}
        ] * 8)  # fmt: skip
        agent.leave()
        agent.connect()
        self.assertEqual(agent.measure(*samples)["result"]["dropped"], 500)
        self.assertEqual(other.measure(*samples)["result"]["accepted"], 500)
        self.assertIn("result", agent.push(1))
        self.clock.advance(5)
        self.assertEqual(agent.measure(*samples)["result"]["accepted"], 500)
        self.assertEqual(self.fleet.gauge.used, 0)
        self.fleet.apply(ServerSettings(server=ServerTable(quota_samples_per_sec=0)))
        self.assertEqual(agent.measure(*samples)["result"]["accepted"], 500)

    def test_a_failing_store_is_told_in_codes(self) -> None:
        """-32020 for a full disk, -32603 for another fault; the budget is given back (F24)."""
        agent = self.agent()
        for error, code in ((StoreFull("full"), -32020), (StoreError("x"), -32603)):
            self.patch(self.store, "store_samples", lambda *args, why=error: fail(why))
            answer = agent.measure({"name": "load1", "value": 1})
            self.assertEqual(answer["error"]["code"], code)
            self.assertEqual(self.fleet.gauge.used, 0)

    def test_a_gone_session_costs_no_budget(self) -> None:
        """Samples whose connection went away are stored and their bytes released."""
        agent, waiting = self.agent(), Deferred[Any]()
        store = self.store.store_samples
        self.patch(
            self.store, "store_samples", lambda *args: waiting.addCallback(lambda _: store(*args))
        )
        metrics = {"ts": "2026-05-16T19:43:00Z", "samples": [{"name": "a", "value": 1}]}
        agent.send(wire.request(9, "metrics.push", metrics))
        self.assertGreater(self.fleet.gauge.used, 0)
        agent.leave()
        waiting.callback(None)
        self.assertEqual(self.fleet.gauge.used, 0)


class Probes(LogicCase):
    def run_probe(self, probe: str = DISK, timeout_ms: int = 5000) -> Deferred[ProbeRecord]:
        done = self.fleet.probes.run(self.row(), probe, {"path": "/"}, timeout_ms, "alice")
        for agent in self.agents:
            if agent.peer is not None:
                agent.pump()
        return done

    def history(self) -> list[ProbeRecord]:
        records: list[ProbeRecord] = self.successResultOf(self.store.probe_history(wire.HOST_ID))
        return records

    def test_a_probe_is_asked_answered_and_kept(self) -> None:
        """§4.6: the agent gets the request, the asker the answer, the store the record."""
        agent = self.agent(probes=[DISK])
        done = self.run_probe()
        [request] = agent.probes
        expected = {"probe": DISK, "args": {"path": "/"}, "timeout_ms": 5000}
        self.assertEqual(request["params"], expected)
        self.assertNoResult(done)
        self.clock.advance(1)
        agent.answer(request, {"free": 7})
        record = self.successResultOf(done)
        self.assertEqual((record.outcome, record.output), ("ok", '{"free": 7}'))
        self.assertEqual(record.finished_at - record.requested_at, 1_000_000)
        self.assertEqual((record.actor, record.duration_ms, record.code), ("alice", 5, None))
        self.assertEqual(self.history(), [record])

    def test_what_a_host_did_not_offer_is_never_sent(self) -> None:
        """§8: -32010 before anything goes out."""
        agent = self.agent(probes=["exec.other"])
        record = self.successResultOf(self.run_probe())
        self.assertEqual((record.outcome, record.code), ("unavailable", -32010))
        self.assertEqual(agent.probes, [])

    def test_a_host_that_is_not_there(self) -> None:
        """It is said at once that the host is not connected; nothing is queued for later."""
        agent = self.agent(probes=[DISK])
        agent.leave()
        self.failureResultOf(self.run_probe(), NotConnected)
        agent.connect(probes=[DISK])
        self.assertEqual(agent.probes, [])

    def test_each_of_the_agents_errors(self) -> None:
        """§5: the agent's code is the record's, and what it said beside it."""
        agent = self.agent(probes=[DISK])
        for code, outcome in (
            (-32010, "unavailable"),
            (-32011, "failed"),
            (-32012, "timeout"),
            (-32602, "invalid"),
            (-32601, "error"),
        ):
            done = self.run_probe()
            data = {"stderr": "no such disk", "exit_code": 2}
            agent.answer(agent.probes[-1], code=code, message="x", data=data)
            record = self.successResultOf(done)
            self.assertEqual((record.outcome, record.code), (outcome, code))
            self.assertEqual(json.loads(record.output or ""), data)
            said = ("no such disk", 2) if outcome == "failed" else (None, None)
            self.assertEqual((record.stderr, record.exit_code), said)

    def test_an_agent_that_stays_silent(self) -> None:
        """After the time-out the asker hears -32012, and a late answer changes nothing."""
        agent = self.agent(probes=[DISK])
        done = self.run_probe(timeout_ms=1000)
        self.clock.advance(1 + GRACE)
        record = self.successResultOf(done)
        self.assertEqual((record.outcome, record.code), ("timeout", Code.PROBE_TIMEOUT))
        agent.answer(agent.probes[0], "late")
        self.assertEqual([one.outcome for one in self.history()], ["timeout"])

    def test_the_connection_goes_meanwhile(self) -> None:
        """F27: the probe is lost, and not asked again of the next session."""
        agent = self.agent(probes=[DISK])
        done = self.run_probe()
        agent.leave()
        record = self.successResultOf(done)
        self.assertEqual((record.outcome, record.code), ("lost", None))
        agent.connect(probes=[DISK])
        self.assertEqual(len(agent.probes), 1)

    def test_a_superseded_or_closed_session_loses_its_probes(self) -> None:
        """However the session ends, nobody waits on."""
        for end in (
            lambda agent: self.agent_again(agent),
            lambda agent: self.result(self.fleet.rotate(wire.HOST_ID, True, None)),
            lambda agent: self.result(self.fleet.revoke(wire.HOST_ID)),
        ):
            self.setUp()
            agent = self.agent(probes=[DISK])
            done = self.run_probe()
            end(agent)
            agent.leave()
            self.assertEqual(self.successResultOf(done).outcome, "lost")
            self.assertEqual(self.fleet.probes.waiting, 0)

    def agent_again(self, agent: ScriptedAgent) -> None:
        twin = ScriptedAgent(self)
        twin.token = agent.token
        twin.connect()

    def test_more_than_the_concurrency_waits(self) -> None:
        """F44: the host's own probe_concurrency, and the answers belong to whom they belong."""
        self.result(self.fleet.issue("testhost", wire.HOST_ID, None))
        self.result(self.fleet.configs.set("host", wire.HOST_ID, {"probe_concurrency": 1}))
        agent = self.agent(probes=[DISK])
        self.assertEqual(agent.config["probe_concurrency"], 1)
        first, second = self.run_probe(), self.run_probe()
        [request] = agent.probes
        agent.answer(request, "one")
        [_, request] = agent.probes
        agent.answer(request, "two")
        outputs = [self.successResultOf(one).output for one in (first, second)]
        self.assertEqual(outputs, ['"one"', '"two"'])

    def test_who_goes_away_leaves_a_record(self) -> None:
        """An asker that does not wait on changes nothing of the probe (F27)."""
        agent = self.agent(probes=[DISK])
        done = self.run_probe()
        done.cancel()
        self.failureResultOf(done, CancelledError)
        agent.answer(agent.probes[0], 1)
        self.assertEqual([one.outcome for one in self.history()], ["ok"])

    def test_what_no_record_can_hold_leaves_a_record_all_the_same(self) -> None:
        """An answer that is out of range is an error that names what was wrong; one that the
        store chokes on leaves a bare record."""
        agent = self.agent(probes=[DISK])
        answers: list[dict[str, Any]] = [
            {"error": {"code": 2**63, "message": "x"}},
            {"error": {"code": -32011, "message": "x", "data": {"exit_code": 2**63}}},
            {"result": {"output": 1, "duration_ms": 1, "exit_code": 2**64}},
        ]
        for answer in answers:
            done = self.run_probe()
            agent.send({"jsonrpc": "2.0", "id": agent.probes[-1]["id"], **answer})
            self.assertGreater(self.successResultOf(done).id, 0)
        newest, failed, oldest = self.history()
        self.assertEqual((newest.outcome, failed.outcome, oldest.outcome),
                         ("error", "failed", "error"))  # fmt: skip
        self.assertIn("$.error.code", oldest.output or "")
        self.assertIn("$.exit_code", newest.output or "")
        self.assertIsNone(failed.exit_code)
        record = self.store.record_probe

        def choking(asked: ProbeRecord) -> Any:
            return fail(OverflowError()) if asked.outcome == "ok" else record(asked)

        self.patch(self.store, "record_probe", choking)
        done = self.run_probe()
        agent.answer(agent.probes[-1], 1)
        kept = self.successResultOf(done)
        self.assertEqual((kept.id, kept.outcome), (4, "error"))
        self.assertIn("OverflowError", kept.output or "")
        self.assertEqual(len(self.flushLoggedErrors(OverflowError)), 1)

    def test_an_answer_survives_a_full_disk(self) -> None:
        """A record that cannot be kept is logged; the asker still gets the answer."""
        agent = self.agent(probes=[DISK])
        self.patch(self.store, "record_probe", lambda *args: fail(StoreFull("full")))
        done = self.run_probe()
        agent.answer(agent.probes[0], 1)
        record = self.successResultOf(done)
        self.assertEqual((record.output, record.id), ("1", 0))
        self.assertEqual(len(self.flushLoggedErrors(StoreFull)), 1)


class Configs(LogicCase):
    def set(self, scope: Any, name: str, members: Any, **given: Any) -> list[str]:
        _, told = self.result(self.fleet.configs.set(scope, name, members, **given))
        return list(told)

    def test_the_hello_carries_the_hosts_own_config(self) -> None:
        """§4.1: all, then groups in their order, then the host; the rest is the default."""
        self.result(self.fleet.issue("testhost", wire.HOST_ID, None))
        members = {"flush_interval_ms": 10, "heartbeat_interval_secs": 10, "probe_concurrency": 10}
        self.set("all", "", members | {"metrics_interval_secs": 10})
        self.set("group", "web", members | {"metrics_interval_secs": 20})
        self.set("group", "edge", {"heartbeat_interval_secs": 30, "probe_concurrency": 30})
        self.set("host", wire.HOST_ID, {"probe_concurrency": 40})
        self.result(self.fleet.configs.set_groups(wire.HOST_ID, ["web", "edge"]))
        config = self.agent().config
        convert(config, AgentConfig)
        self.assertEqual(
            [config[name] for name in (*members, "metrics_interval_secs", "max_batch_entries")],
            [10, 30, 40, 20, 1000],
        )
        sources = [source["kind"] for source in config["log_sources"]]
        self.assertEqual(sources, ["journald", "docker", "file"])

    def test_a_change_is_told_to_whom_it_concerns(self) -> None:
        """§4.8: config.update to each live host whose config it changes, and to no other."""
        agent, other = self.agent(), self.agent(OTHER)
        told = self.set("host", wire.HOST_ID, {"flush_interval_ms": 50})
        self.assertEqual(told, [wire.HOST_ID])
        agent.pump()
        other.pump()
        [update] = agent.updates
        self.assertNotIn("id", update)
        self.assertEqual(list(update["params"]), ["config"])
        self.assertEqual(update["params"]["config"], agent.config | {"flush_interval_ms": 50})
        self.assertEqual(other.updates, [])
        self.assertEqual(self.set("host", wire.HOST_ID, {"flush_interval_ms": 50}), [])
        self.assertEqual(self.set("all", "", {"probe_concurrency": 9}), [wire.HOST_ID, OTHER])
        self.assertEqual(self.set("host", wire.HOST_ID, None), [wire.HOST_ID])

    def test_it_may_hold_later(self) -> None:
        """apply_after goes out as an RFC 3339 moment (§4.8, F22)."""
        agent = self.agent()
        at = datetime(2027, 1, 15, 9, tzinfo=UTC)
        self.set("all", "", {"probe_concurrency": 9}, apply_after=at)
        agent.pump()
        self.assertEqual(agent.updates[0]["params"]["apply_after"], "2027-01-15T09:00:00Z")

    def test_a_bad_config_changes_nothing(self) -> None:
        """A58, A59: it is refused with the path of its fault, and nobody is told anything."""
        agent = self.agent()
        setting = Deferred.fromCoroutine(
            self.fleet.configs.set("all", "", {"probe_concurrency": 65})
        )
        fault = self.failureResultOf(setting, JsonShapeError).value
        self.assertEqual(fault.field, "$.probe_concurrency")
        agent.pump()
        self.assertEqual(agent.updates, [])
        self.assertEqual(self.successResultOf(self.store.configs()), [])

    def test_a_host_that_is_away_learns_of_it_at_its_hello(self) -> None:
        """What was set meanwhile is in the next HelloResult."""
        agent = self.agent()
        agent.leave()
        self.assertEqual(self.set("all", "", {"probe_concurrency": 9}), [])
        self.assertEqual(agent.connect().config["probe_concurrency"], 9)

    def test_a_change_during_a_hello_is_not_missed(self) -> None:
        """A config that is set while the store is asked for it reaches the host."""
        agent = self.agent()
        agent.leave()
        effective, waiting = self.store.effective_config, Deferred[Any]()
        stale = self.successResultOf(effective(wire.HOST_ID))
        answers = iter([waiting.addCallback(lambda _: stale)])
        self.patch(
            self.store, "effective_config", lambda host: next(answers, None) or effective(host)
        )
        peer = self.peer()
        peer.send(wire.text(wire.hello(agent.token or "")))
        self.assertEqual(self.set("all", "", {"probe_concurrency": 9}), [])
        waiting.callback(None)
        [result] = peer.frames()
        self.assertEqual(result.json["result"]["config"]["probe_concurrency"], 9)

    def test_a_store_that_cannot_tell_turns_nobody_away(self) -> None:
        """The default is told, as the hello was good and its token may be spent (F7)."""
        failing = lambda host_id: fail(StoreError("broken"))  # noqa: E731
        self.patch(self.store, "effective_config", failing)
        self.assertEqual(self.agent().config["probe_concurrency"], 4)

    def test_the_agents_hint_is_heeded(self) -> None:
        """§8: capabilities.max_batch_entries bounds what the host is told, now and later."""
        agent = self.agent(max_batch=200)
        self.assertEqual(agent.config["max_batch_entries"], 200)
        self.set("all", "", {"max_batch_entries": 5000, "flush_interval_ms": 50})
        agent.pump()
        self.assertEqual(agent.updates[0]["params"]["config"]["max_batch_entries"], 200)

    def test_a_reload_of_the_defaults_is_told(self) -> None:
        """Live hosts are told other defaults at once, where they concern them (A59)."""
        agent, other = self.agent(), self.agent(OTHER)
        self.set("host", OTHER, {"flush_interval_ms": 50})
        other.pump()
        defaults = replace(DEFAULT_AGENT_CONFIG, flush_interval_ms=70)
        self.fleet.apply(ServerSettings(agent_config=defaults))
        agent.pump()
        other.pump()
        self.assertEqual(agent.updates[0]["params"]["config"]["flush_interval_ms"], 70)
        self.assertEqual(len(other.updates), 1)

    def test_what_a_host_was_told_is_known(self) -> None:
        """Wanted and told are told apart, with the layers (A58 as far as the contract tells)."""
        agent = self.agent()
        shown = self.result(self.fleet.configs.show(wire.HOST_ID))
        self.assertTrue(shown.in_step)
        self.successResultOf(
            self.store.set_config("host", wire.HOST_ID, {"flush_interval_ms": 50}, WALL)
        )
        shown = self.result(self.fleet.configs.show(wire.HOST_ID))
        self.assertFalse(shown.in_step)
        self.assertEqual([layer.scope for layer in shown.layers], ["host"])
        self.assertEqual(self.result(self.fleet.configs.push()), [wire.HOST_ID])
        self.assertTrue(self.result(self.fleet.configs.show(wire.HOST_ID)).in_step)
        self.assertEqual(self.result(self.fleet.configs.push()), [])
        self.assertEqual(self.result(self.fleet.configs.push(again=True)), [wire.HOST_ID])
        agent.leave()
        self.assertIsNone(self.result(self.fleet.configs.show(wire.HOST_ID)).told)


class Seen(LogicCase):
    def test_a_clone_is_shown_and_recorded(self) -> None:
        """F14, A55: in the host's row, in the audit of acts and in the log; forgotten with it."""
        agent = self.agent()
        self.assertIsNone(self.shown()["probable_clone"])
        with capturedLogs() as logs:
            for _ in range(6):
                twin = ScriptedAgent(self)
                twin.token = agent.token
                twin.connect()
        self.assertEqual(len([one for one in logs if "clone" in one["log_format"]]), 1)
        self.assertEqual(self.shown()["probable_clone"]["supersessions"], 6)
        [act] = self.successResultOf(self.store.acts(wire.HOST_ID))
        self.assertEqual((act.actor, act.act), ("server", "host.probable_clone"))
        twin.pump()
        self.assertIn("result", twin.push(1))

    def test_a_clock_that_is_off_is_shown_and_nothing_else(self) -> None:
        """F15, A46: beyond 5 minutes it is flagged and logged once; nothing is corrected."""
        agent = self.agent()
        with capturedLogs() as logs:
            for ts, off, skew in (
                ("2027-01-15T08:04:59Z", False, 299.0),
                ("2027-01-15T09:00:00Z", True, 3600.0),
                ("1970-01-01T00:00:00Z", True, -WALL / 1e6),
            ):
                agent.beat(ts)
                self.result(self.flushed())
                row = self.shown()
                self.assertEqual((row["clock_skew_seconds"], row["clock_off"]), (skew, off))
        self.assertEqual(len([one for one in logs if "clock" in one["log_format"]]), 1)
        stored = agent.push(1, ts="1970-01-01T00:00:00Z")
        self.assertEqual(stored["result"]["up_to_seq"], 1)

    async def flushed(self) -> None:
        await self.fleet.flush_presence()

    def test_a_silent_agent_is_shown(self) -> None:
        """A53: who answers pings but sends no heartbeat for two intervals and a half is
        overdue; the connection stays, as F21 knows of pongs only."""
        agent = self.agent()
        agent.beat("2027-01-15T08:00:00Z")
        self.assertEqual(self.shown()["last_heartbeat"], "2027-01-15T08:00:00.000000Z")
        for _ in range(8):
            self.clock.advance(10)
            agent.pump()
            overdue = self.clock.seconds() > 75
            self.assertEqual(self.shown()["heartbeat_overdue"], overdue)
        self.assertIsNone(agent.closed)
        agent.beat("2027-01-15T08:01:20Z")
        self.assertFalse(self.shown()["heartbeat_overdue"])
        self.result(self.fleet.configs.set("all", "", {"heartbeat_interval_secs": 5}))
        for seconds, overdue in ((12, False), (1, True)):
            self.clock.advance(seconds)
            self.assertEqual(self.shown()["heartbeat_overdue"], overdue)
        agent.leave()
        self.assertFalse(self.shown()["heartbeat_overdue"])

    def test_a_clock_of_ours_that_steps_back(self) -> None:
        """A46: an hour back changes neither acks, nor seqs, nor who is connected."""
        agent = self.agent()
        agent.push(1)
        self.fleet.wall = lambda: WALL - 3_600_000_000
        self.assertEqual(agent.push(2)["result"]["up_to_seq"], 2)
        agent.beat("2027-01-15T07:00:00Z")
        self.result(self.flushed())
        self.assertEqual(self.shown()["clock_skew_seconds"], 0.0)
        self.assertTrue(self.shown()["connected"])


class Poison(LogicCase):
    def test_a_poison_entry_blocks_nobody(self) -> None:
        """F25, F35: refused whole each time; once it is skipped the rest is stored, and the
        skipped seq is a gap, not silence."""
        agent = self.agent()
        aside = agent.deliver(range(1, 10), lambda seq: seq in (4, 5))
        self.assertEqual(aside, [4, 5])
        self.assertEqual(self.row().accepted_seq, 9)
        self.assertEqual([(first, last) for first, last, _ in self.gaps()], [(4, 5)])
        page = self.successResultOf(self.store.tail(EntryFilter(), 0, 100))
        self.assertEqual([one.seq for one in page.entries], [1, 2, 3, 6, 7, 8, 9])

    def test_the_agents_word_on_it_is_joined(self) -> None:
        """F37: its custom:cortextx entry gives the gap its cause."""
        agent = self.agent()
        agent.deliver(range(1, 7), lambda seq: seq == 4)
        lost = {"first": 4, "last": 4, "count": 1, "reason": "set_aside", "detail": ""}
        agent.push(7, source="custom:cortextx", metadata={"cortextx": {"lost": lost}})
        self.assertEqual(self.gaps(), [(4, 4, "set_aside")])

    def test_a_forgotten_host_is_told_to_go(self) -> None:
        """F5, F35: -32004 for a push whose row has gone, and the connection is let go."""
        agent = self.agent()
        self.successResultOf(self.store.forget(wire.HOST_ID))
        self.assertEqual(agent.push(1)["error"]["code"], -32004)
