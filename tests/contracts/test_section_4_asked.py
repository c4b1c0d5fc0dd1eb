"""§4.6–§4.8 and §8: what a server asks of its agents and tells them; F22, F24, F27, F44, -32030."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import Deferred

from cortextx.errors import CortexError, JsonShapeError, NotConnected
from cortextx.fleet.server.settings import ServerTable
from tests import wire
from tests.contracts import examples
from tests.contracts.served import HOST_ID, ContractCase, Peer

PROBE = "fs.disk_usage"
OUTPUT = examples.RESULTS["probe.request"]


class Asking(ContractCase):
    def able(self, *probes: str) -> Peer:
        """A live host that can run these probes."""
        offered = wire.hello()["params"]["capabilities"] | {"supported_probes": list(probes)}
        return self.joined(capabilities=offered)

    def probe(self, probe: str = PROBE, timeout_ms: int = 5000, **args: Any) -> Deferred[Any]:
        """Ask the host; fires with the record."""
        return self.fleet.probes.run(self.row(), probe, args, timeout_ms, "test")

    def asked_of(self, peer: Peer) -> list[Any]:
        """The probe requests that the host got."""
        found = peer.messages()
        self.assertEqual({one["method"] for one in found} - {"probe.request"}, set())
        return found

    def answer(self, peer: Peer, id: Any, **members: Any) -> None:
        peer.say({"jsonrpc": "2.0", "id": id, **members})


class Probes(Asking):
    def test_s4_6_a_probe_is_a_request(self) -> None:
        """The host gets probe, args and timeout_ms under an id, and its answer is the record."""
        peer = self.able(PROBE)
        done = self.probe(path="/var")
        [request] = self.asked_of(peer)
        self.assertEqual(
            request["params"], {"probe": PROBE, "args": {"path": "/var"}, "timeout_ms": 5000}
        )
        self.assertNoResult(done)
        self.answer(peer, request["id"], result=OUTPUT)
        record = self.successResultOf(done)
        self.assertEqual((record.outcome, record.exit_code, record.duration_ms), ("ok", 0, 12))
        self.assertEqual(json.loads(record.output), OUTPUT["output"])

    def test_s8_a_probe_that_is_not_offered_is_never_sent(self) -> None:
        """-32010 before anything is dispatched."""
        peer = self.able("other.probe")
        record = self.successResultOf(self.probe())
        self.assertEqual((record.outcome, record.code), ("unavailable", -32010))
        self.assertEqual(peer.frames(), [])

    def test_s4_7_answers_are_matched_by_id_alone(self) -> None:
        """Answers that come in another order reach whom they are for."""
        peer = self.able(PROBE)
        waiting = [self.probe(n=n) for n in range(3)]
        requests = self.asked_of(peer)
        self.assertEqual(len({one["id"] for one in requests}), 3)
        for request in reversed(requests):
            output = {"output": request["params"]["args"], "duration_ms": 1}
            self.answer(peer, request["id"], result=output)
        found = [json.loads(self.successResultOf(one).output) for one in waiting]
        self.assertEqual(found, [{"n": 0}, {"n": 1}, {"n": 2}])

    def test_s4_7_an_agents_errors_are_the_outcome(self) -> None:
        """-32010, -32011, -32012 and -32602 are recorded with their code and data."""
        peer = self.able(PROBE)
        for code, outcome in (
            (-32010, "unavailable"), (-32011, "failed"), (-32012, "timeout"), (-32602, "invalid"),
        ):  # fmt: skip
            done = self.probe()
            [request] = self.asked_of(peer)
            data = {"stderr": "no", "exit_code": 3}
            error = {"code": code, "message": "any words", "data": data}
            self.answer(peer, request["id"], error=error)
            record = self.successResultOf(done)
            self.assertEqual((record.outcome, record.code), (outcome, code))
            if code == -32011:
                self.assertEqual((record.stderr, record.exit_code), ("no", 3))

    def test_s4_7_an_answer_that_is_no_probe_output(self) -> None:
        """A malformed result is the host's fault and ends the probe; the session lives."""
        peer = self.able(PROBE)
        for result in (
            {},
            [],
            None,
            {"output": 1},
            OUTPUT | {"duration_ms": -1},
            OUTPUT | {"x": 1},
        ):
            done = self.probe()
            [request] = self.asked_of(peer)
            self.answer(peer, request["id"], result=result)
            self.assertEqual(self.successResultOf(done).outcome, "error", result)
        self.assertIn("result", peer.push(1))

    def test_s4_6_a_probe_times_out(self) -> None:
        """Without an answer it ends as -32012, and a late answer is dropped."""
        peer = self.able(PROBE)
        done = self.probe(timeout_ms=1000)
        [request] = self.asked_of(peer)
        self.clock.advance(0.9)
        self.assertNoResult(done)
        self.clock.advance(10.0)
        record = self.successResultOf(done)
        self.assertEqual((record.outcome, record.code), ("timeout", -32012))
        self.answer(peer, request["id"], result=OUTPUT)
        self.answer(peer, request["id"], result=OUTPUT)
        self.assertEqual(peer.frames(), [])
        self.assertIn("result", peer.push(1))

    def test_f44_beyond_probe_concurrency_they_queue(self) -> None:
        """Four are out by default; the fifth goes when one is answered, within its own time."""
        peer = self.able(PROBE)
        waiting = [self.probe(timeout_ms=60_000) for _ in range(6)]
        out = self.asked_of(peer)
        self.assertEqual(len(out), 4)
        self.clock.advance(2.0)
        self.answer(peer, out[1]["id"], result=OUTPUT)
        [fifth] = self.asked_of(peer)
        self.assertEqual(fifth["params"]["timeout_ms"], 58_000)
        self.successResultOf(waiting[1])
        self.assertNoResult(waiting[5])

    def test_f44_a_probe_times_out_in_the_queue(self) -> None:
        """What waited for a slot as long as it may run is never sent."""
        peer = self.able(PROBE)
        for _ in range(4):
            self.probe(timeout_ms=600_000)
        last = self.probe(timeout_ms=1500)
        self.assertEqual(len(self.asked_of(peer)), 4)
        self.clock.advance(1.5)
        self.assertEqual(self.successResultOf(last).outcome, "timeout")
        self.assertEqual(peer.frames(), [])

    def test_f27_a_probe_ends_with_its_connection(self) -> None:
        """It is recorded as lost, and not repeated after a reconnect; a late answer on the
        new session is nobody's."""
        peer = self.able(PROBE)
        done = self.probe()
        [request] = self.asked_of(peer)
        peer.lost()
        self.assertEqual(self.successResultOf(done).outcome, "lost")
        peer = self.able(PROBE)
        self.answer(peer, request["id"], result=OUTPUT)
        self.assertEqual(peer.frames(), [])

    def test_s4_6_who_is_not_connected_cannot_be_asked(self) -> None:
        """There is no session to send it on."""
        self.enrolled()
        self.failureResultOf(self.probe(), NotConnected)

    def test_s4_7_results_are_kept(self) -> None:
        """Every probe that was asked is a record, with who asked and how it ended."""
        peer = self.able(PROBE)
        done = self.probe(a=1)
        [request] = self.asked_of(peer)
        self.answer(peer, request["id"], result=OUTPUT)
        self.successResultOf(done)
        self.successResultOf(self.probe("not.offered"))
        history = self.successResultOf(self.store.probe_history(HOST_ID))
        found = [(one.probe, one.outcome, one.actor) for one in history]
        self.assertEqual(found, [("not.offered", "unavailable", "test"), (PROBE, "ok", "test")])

    def test_s7_a_probe_holds_no_push_up(self) -> None:
        """Pushes are acked while a probe is out."""
        peer = self.able(PROBE)
        self.probe()
        self.asked_of(peer)
        self.assertIn("result", peer.push(1, 10))


class Configs(Asking):
    def change(self, scope: str, name: str, **members: Any) -> Any:
        return self.result(self.fleet.configs.set(scope, name, members))

    def test_s4_8_a_change_is_told_by_a_notification(self) -> None:
        """A live host whose config changed gets the whole of it, without an id."""
        peer = self.joined()
        self.change("host", HOST_ID, heartbeat_interval_secs=45, flush_interval_ms=250)
        [told] = peer.messages()
        self.assertEqual((told["method"], "id" in told), ("config.update", False))
        config = told["params"]["config"]
        self.assertEqual(
            (config["heartbeat_interval_secs"], config["flush_interval_ms"]), (45, 250)
        )
        self.assertEqual(config["probe_concurrency"], 4, "the rest stays as it was")

    def test_s4_8_whom_it_does_not_concern_is_not_told(self) -> None:
        """Another host's change, or one that changes nothing, is no message."""
        peer = self.joined()
        self.result(self.fleet.issue("other", None, None))
        self.change("group", "web", heartbeat_interval_secs=45)
        self.change("host", HOST_ID, heartbeat_interval_secs=30)
        self.assertEqual(peer.messages(), [])

    def test_s4_1_the_next_hello_brings_it_too(self) -> None:
        """A host that was away is told by its HelloResult."""
        token = self.enrolled()
        self.change("all", "", probe_concurrency=9)
        _, answer = self.greeted(token)
        self.assertEqual(answer["result"]["config"]["probe_concurrency"], 9)

    def test_s4_8_apply_after(self) -> None:
        """The moment from which it holds is passed on (F22)."""
        peer = self.joined()
        moment = datetime(2027, 2, 1, 12, tzinfo=UTC)
        self.result(self.fleet.configs.set("all", "", {"flush_interval_ms": 300}, moment))
        [told] = peer.messages()
        self.assertEqual(datetime.fromisoformat(told["params"]["apply_after"]), moment)

    def test_a59_what_is_out_of_range_is_never_sent(self) -> None:
        """A config beyond §4.1's bounds is refused to the operator and changes nothing."""
        peer = self.joined()
        for members in (
            {"heartbeat_interval_secs": 4}, {"heartbeat_interval_secs": 601},
            {"flush_interval_ms": 9}, {"max_batch_entries": 0}, {"probe_concurrency": 65},
            {"metrics_interval_secs": 0}, {"log_sources": [{"kind": "kmsg"}]}, {"novel": 1},
        ):  # fmt: skip
            work = Deferred.fromCoroutine(self.fleet.configs.set("all", "", members))
            self.failureResultOf(work, JsonShapeError, CortexError)
        self.assertEqual(peer.messages(), [])

    def test_s8_max_batch_entries_is_a_hint_for_the_config(self) -> None:
        """A host that likes small batches is told of small ones; never of more than the cap."""
        for preferred, told in ((77, 77), (65_535, 1000)):
            offered = wire.hello()["params"]["capabilities"] | {"max_batch_entries": preferred}
            _, answer = self.greeted(self.enrolled(), capabilities=offered)
            self.assertEqual(answer["result"]["config"]["max_batch_entries"], told)


class Metrics(Asking):
    def test_f24_samples_are_stored(self) -> None:
        """What was accepted can be read again, by host and name, with its labels."""
        peer = self.joined()
        samples = [
            {"name": "load1", "value": 0.5},
            {"name": "mem", "value": 7, "labels": {"kind": "rss"}},
        ]
        answer = peer.ask("metrics.push", {"ts": examples.TS, "samples": samples})
        self.assertEqual(answer["result"], {"accepted": 2, "dropped": 0})
        points = self.successResultOf(self.store.latest_metrics(HOST_ID))
        found = sorted((one.name, one.value, one.labels) for one in points)
        self.assertEqual(found, [("load1", 0.5, ()), ("mem", 7.0, (("kind", "rss"),))])

    def test_f24_too_many_series_are_dropped_not_refused(self) -> None:
        """Beyond what is kept of one host, samples count as dropped, and the rest goes on."""
        peer = self.joined()
        accepted = dropped = 0
        for batch in range(6):
            samples = [
                {"name": "m", "value": 1, "labels": {"n": f"{batch}-{n}"}} for n in range(512)
            ]
            result = peer.ask("metrics.push", {"ts": examples.TS, "samples": samples})["result"]
            accepted, dropped = accepted + result["accepted"], dropped + result["dropped"]
        self.assertEqual(accepted + dropped, 6 * 512)
        self.assertGreater(dropped, 0)
        again = {"ts": examples.TS, "samples": [{"name": "m", "value": 2, "labels": {"n": "0-0"}}]}
        self.assertEqual(peer.ask("metrics.push", again)["result"]["accepted"], 1)


class Quota(Asking):
    table: dict[str, Any] = {"quota_entries_per_sec": 100}

    def test_s5_32030_a_host_has_a_rate(self) -> None:
        """Beyond it a push is -32030 with retry_after_ms (F42); after the wait it is taken."""
        peer = self.joined()
        self.assertIn("result", peer.push(1, 200))
        peer.say(wire.request(9, "logs.push", examples.push(201, 100)))
        [refused] = peer.messages()
        self.assertEqual(self.refusal(refused), -32030)
        wait = refused["error"]["data"]["retry_after_ms"]
        self.assertEqual(wait, 1000)
        self.clock.advance(wait / 1000)
        self.assertEqual(peer.push(201, 100)["result"]["up_to_seq"], 300)
        self.assertEqual(self.gaps(), [])

    def test_s5_32030_it_is_the_hosts_not_the_connections(self) -> None:
        """A reconnect does not fill the bucket; another host has one of its own."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        peer.push(1, 200)
        peer, _ = self.greeted(token)
        self.assertEqual(self.refusal(peer.push(201, 100)), -32030)
        other = self.joined("00000000-0000-4000-8000-00000000000b")
        self.assertIn("result", other.push(1, 100))

    def test_s5_32030_a_batch_beyond_the_burst_is_not_refused_for_ever(self) -> None:
        """The largest batch is taken when the bucket is full."""
        peer = self.joined()
        self.assertIn("result", peer.push(1, 1000))
        refused = peer.push(1001, 1000)
        wait = refused["error"]["data"]["retry_after_ms"]
        self.clock.advance(wait / 1000)
        peer.frames()
        self.assertIn("result", peer.push(1001, 1000))

    def test_f33_a_quota_refusal_holds_back_what_follows(self) -> None:
        """Pushes behind it are -32020 until the host goes back."""
        peer = self.joined()
        peer.push(1, 200)
        self.assertEqual(self.refusal(peer.push(201, 50)), -32030)
        later = peer.push(251, 1)
        self.assertEqual(self.refusal(later), -32020)
        self.assertEqual(later["error"]["data"]["resend_from"], 201)

    def test_f9_shape_comes_before_quota_and_quota_before_the_queue(self) -> None:
        """A bad push beyond the rate is -32602; a good one beyond both is -32030."""
        peer = self.joined()
        peer.push(1, 200)
        self.assertEqual(self.refusal(peer.push(201, 100, severity="x")), -32602)
        table = self.fleet.settings.server
        self.fleet.gauge.reserve(table.ingest_hard_bytes - 1, beyond_soft=True)
        self.assertEqual(self.refusal(peer.push(201, 100)), -32030)

    def test_f9_a_push_that_the_queue_refuses_is_not_charged(self) -> None:
        """-32020 takes nothing of the rate: the push is charged when it comes again."""
        peer = self.joined()
        others = self.fleet.settings.server.ingest_soft_bytes - 10
        self.fleet.gauge.reserve(others)
        for _ in range(5):
            self.assertEqual(self.refusal(peer.push(1, 100)), -32020)
        self.fleet.gauge.release(others)
        self.assertIn("result", peer.push(1, 200))

    def test_the_default_is_50_000_a_second(self) -> None:
        """The issue's default rate."""
        self.assertEqual(ServerTable().quota_entries_per_sec, 50_000)
