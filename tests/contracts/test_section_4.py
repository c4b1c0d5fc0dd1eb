"""§4, the methods: one test a statement. The bounds of their members are `test_shapes`'s."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from cortextx.fleet.contract import CloseCode
from tests import wire
from tests.contracts import examples
from tests.contracts.served import HOST_ID, ContractCase
from tests.fleet.test_server_protocol import WALL


class Hello(ContractCase):
    def test_s4_1_the_example_is_accepted(self) -> None:
        """The example hello, with every member, is answered by a result of the schema."""
        token = self.issued(host_id=examples.HOST_ID)
        peer = self.socket()
        peer.say(wire.request("h", "agent.hello", examples.params("agent.hello", token=token)))
        [answer] = peer.messages()
        self.assertEqual(answer["id"], "h")
        self.assertEqual(answer["result"]["config"]["heartbeat_interval_secs"], 30)

    def test_s4_1_optional_members_may_be_missing_or_null(self) -> None:
        """resume_from_seq and distro are optional and may be null."""
        token = self.enrolled()
        base = {"os": "linux", "arch": "x86_64", "kernel": "6.1"}
        for changes in (
            {"resume_from_seq": None},
            {"platform": base | {"distro": None}},
            {"platform": base | {"distro": "x"}, "resume_from_seq": 2**63 - 1},
        ):
            self.assertIn("result", self.greeted(token, **changes)[1])

    def test_s4_1_the_server_time_is_the_servers(self) -> None:
        """server_time is the server's clock, in UTC."""
        self.clock.advance(90.5)
        _, answer = self.greeted(self.issued())
        told = datetime.fromisoformat(answer["result"]["server_time"])
        self.assertEqual(told.utcoffset(), timedelta(0))
        self.assertEqual(told.timestamp(), WALL / 1e6 + 90.5)

    def test_s4_1_accepted_seq_is_what_the_server_has(self) -> None:
        """accepted_seq is the server's high-water mark, whatever resume_from_seq says."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        peer.push(1, 7)
        for resume in (None, 0, 3, 7, 900):
            _, answer = self.greeted(token, resume_from_seq=resume)
            self.assertEqual(answer["result"]["accepted_seq"], 7)

    def test_s4_1_a_fault_names_its_field(self) -> None:
        """-32602 says where and what was expected, without repeating what was sent."""
        peer = self.socket()
        hello = wire.hello("x" * 43)
        hello["params"]["platform"]["os"] = {"secret-value": 1}
        peer.say(hello)
        [error] = self.ended(peer, 4001)
        self.assertEqual(error.json["error"]["data"]["field"], "$.platform.os")
        self.assertNotIn(b"secret-value", error.payload)


class Heartbeat(ContractCase):
    def test_s4_2_a_heartbeat_has_no_answer(self) -> None:
        """A good one updates last_seen and the host's pressure; nothing is sent back."""
        peer = self.joined()
        self.clock.advance(9.0)
        peer.tell("agent.heartbeat", examples.HEARTBEAT)
        self.assertEqual(peer.frames(), [])
        row = self.written()
        self.assertEqual(row.last_seen, WALL + 9_000_000)
        self.assertEqual((row.queue_depth, row.buffer_bytes, row.push_lag_seq), (3, 2048, 5))

    def test_s4_2_push_lag_is_optional(self) -> None:
        """A heartbeat without push_lag_seq leaves what was known of it."""
        peer = self.joined()
        beat = examples.params("agent.heartbeat", queue_depth=9)
        del beat["push_lag_seq"]
        peer.tell("agent.heartbeat", examples.HEARTBEAT)
        peer.tell("agent.heartbeat", beat)
        row = self.written()
        self.assertEqual((row.queue_depth, row.push_lag_seq), (9, 5))

    def test_s4_2_f9_a_malformed_one_is_logged_and_dropped(self) -> None:
        """No error, no change of the row, a line in the log, and the session lives."""
        peer = self.joined()
        for params in ({}, [], None, {"ts": "now"}, examples.HEARTBEAT | {"queue_depth": -1}):
            with capturedLogs() as logs:
                peer.tell("agent.heartbeat", params)
            self.assertEqual(peer.frames(), [])
            self.assertNotEqual(logs, [], params)
        self.assertIsNone(self.written().queue_depth)
        self.assertIn("result", peer.push(1))

    def test_s4_2_f15_skew_is_shown(self) -> None:
        """The difference between the host's clock and ours is kept, and nothing corrected."""
        peer = self.joined()
        behind = datetime.fromtimestamp(WALL / 1e6 - 600, UTC).isoformat()
        peer.tell("agent.heartbeat", examples.params("agent.heartbeat", ts=behind))
        self.assertEqual(self.written().clock_skew, -600_000_000)


class Shutdown(ContractCase):
    def test_s4_3_revoked(self) -> None:
        """A revoked host gets the notification without a drain, and 4002 at once (F8)."""
        peer = self.joined()
        self.result(self.fleet.revoke(HOST_ID))
        [told] = self.ended(peer, 4002)
        self.assertEqual(
            told.json,
            {
                "jsonrpc": "2.0",
                "method": "agent.shutdown",
                "params": {"reason": "Revoked", "drain_seconds": 0},
            },
        )

    def test_s4_3_decommission(self) -> None:
        """A forgotten host is told Decommission and closed normally."""
        peer = self.joined()
        self.result(self.fleet.forget(HOST_ID))
        [told] = self.ended(peer, 1000)
        self.assertEqual(told.json["params"]["reason"], "Decommission")

    def test_s4_3_server_reload_drains(self) -> None:
        """A stopping server tells everyone, and takes pushes until the drain ends."""
        peer = self.joined()
        self.fleet_stops()
        [told] = peer.messages()
        self.assertEqual(told["params"], {"reason": "ServerReload", "drain_seconds": 2})
        self.assertEqual(peer.push(1, 3)["result"]["up_to_seq"], 3)
        self.clock.advance(2.0)
        self.ended(peer, 1000)

    def test_s4_3_it_is_a_notification(self) -> None:
        """An agent that answers it all the same does no harm (§11)."""
        peer = self.joined()
        self.fleet_stops()
        peer.messages()
        peer.say({"jsonrpc": "2.0", "id": 1, "result": {"final_seq": 3}})
        self.assertEqual(peer.frames(), [])

    def fleet_stops(self) -> None:
        Deferred.fromCoroutine(self.fleet.stop())


class LogsPush(ContractCase):
    def test_s4_4_the_ack_is_the_result(self) -> None:
        """A push is a request; its result says up_to_seq, and when the server had it."""
        peer = self.joined()
        self.clock.advance(3.0)
        result = peer.push(1, 3)["result"]
        self.assertEqual(result["up_to_seq"], 3)
        self.assertEqual(
            datetime.fromisoformat(result["received_at"]).timestamp(), WALL / 1e6 + 3.0
        )

    def test_s4_4_every_member_is_stored(self) -> None:
        """Each member of an entry comes back as it was sent, on a received_at of ours."""
        peer = self.joined()
        peer.push(1)
        [entry] = self.entries()
        self.assertEqual(
            (entry.seq, entry.severity, entry.facility, entry.app_name, entry.process_id),
            (1, 4, "daemon", "cron", "812"),
        )
        self.assertEqual(
            (entry.message, entry.source), (examples.ENTRY["message"], "file:/var/log/cron.log")
        )
        self.assertIn('"job"', entry.metadata)
        self.assertEqual(entry.received_at, WALL)

    def test_s4_4_all_severities_and_sources(self) -> None:
        """The eight severities are 0 to 7 in order; each kind of source is taken."""
        peer = self.joined()
        words = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
        for seq, word in enumerate(words, 1):
            self.assertIn("result", peer.push(seq, severity=word))
        self.assertEqual([entry.severity for entry in self.entries()], list(range(8)))
        for seq, source in enumerate(("journald", "file:x", "docker:x", "custom:x"), 9):
            self.assertIn("result", peer.push(seq, source=source))

    def test_s4_4_1000_entries_pass_and_1001_are_32008(self) -> None:
        """The cap is exact, whatever the config told the agent (F31)."""
        peer = self.joined()
        self.assertEqual(peer.push(1, 1000)["result"]["up_to_seq"], 1000)
        self.assertEqual(self.refusal(peer.push(1001, 1001)), -32008)
        self.assertEqual(len(self.stored()), 1000)

    def test_s4_4_the_longest_message(self) -> None:
        """65,536 characters pass, of any width; one more is -32602."""
        peer = self.joined()
        self.assertIn("result", peer.push(1, message="é" * 65_536))
        self.assertEqual(self.entries()[0].message, "é" * 65_536)
        self.assertEqual(self.refusal(peer.push(2, message="x" * 65_537)), -32602)

    def test_s4_4_an_empty_message_is_one(self) -> None:
        """A message may be empty; a batch may not."""
        peer = self.joined()
        self.assertIn("result", peer.push(1, message=""))
        self.assertEqual(
            self.refusal(peer.ask("logs.push", {"seq_start": 2, "entries": []})), -32602
        )


class MetricsPush(ContractCase):
    def test_s4_5_samples_are_answered_by_counts(self) -> None:
        """The ack counts what was stored and what was dropped: together all that was sent."""
        peer = self.joined()
        samples = [{"name": f"m{n}", "value": n} for n in range(10)]
        result = peer.ask("metrics.push", examples.METRICS | {"samples": samples})["result"]
        self.assertEqual(result["accepted"] + result.get("dropped", 0), 10)

    def test_s4_5_512_samples_pass_and_513_are_32008(self) -> None:
        """The cap is exact."""
        peer = self.joined()
        sample = examples.METRICS["samples"][0]
        for count, good in ((512, True), (513, False)):
            answer = peer.ask("metrics.push", examples.METRICS | {"samples": [sample] * count})
            self.assertEqual("result" in answer, good)
            if not good:
                self.assertEqual(self.refusal(answer), -32008)

    def test_s4_5_refused_samples_hold_no_push_up(self) -> None:
        """A refused metrics.push has no part in F33."""
        peer = self.joined()
        self.assertEqual(self.refusal(peer.ask("metrics.push", {})), -32602)
        self.assertEqual(peer.push(5)["result"]["up_to_seq"], 5)


class Directions(ContractCase):
    def test_s4_what_only_a_server_may_ask_is_unknown(self) -> None:
        """The server's own methods, and those that exist in name only, are -32601 to it."""
        peer = self.joined()
        for method in (
            "agent.shutdown", "probe.request", "config.update", "probe.response", "logs.ack",
            "rpc.discover", "",
        ):  # fmt: skip
            params: Any = examples.PARAMS.get(method, {})
            self.assertEqual(self.refusal(peer.ask(method, params)), -32601, method)

    def test_s4_2_a_heartbeat_with_an_id_is_no_heartbeat(self) -> None:
        """§4.2 makes it a notification: as a request it is -32600, and changes nothing."""
        peer = self.joined()
        self.assertEqual(self.refusal(peer.ask("agent.heartbeat", examples.HEARTBEAT)), -32600)
        self.assertIsNone(self.written().queue_depth)

    def test_s4_7_an_answer_to_nothing_is_dropped(self) -> None:
        """A response whose id the server never asked changes nothing and is not answered."""
        peer = self.joined()
        for message in (
            {"jsonrpc": "2.0", "id": 9001, "result": examples.RESULTS["probe.request"]},
            {"jsonrpc": "2.0", "id": "x", "error": {"code": -32012, "message": "ProbeTimeout"}},
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "ParseError"}},
        ):
            peer.say(message)
            self.assertEqual(peer.frames(), [])
        self.assertIn("result", peer.push(1))

    def test_s4_3_close_codes_of_ours_are_named(self) -> None:
        """A supersession closes with 1000 and its word (F14)."""
        token = self.enrolled()
        older, _ = self.greeted(token)
        self.greeted(token)
        [close] = older.frames()
        self.assertEqual((close.code, close.payload[2:]), (CloseCode.NORMAL, b"superseded"))
