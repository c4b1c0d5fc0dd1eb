"""§7, sequencing and idempotence, with §8, §9 and §11: one test a statement."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet import contract
from cortextx.fleet.agent.actions import Adopt, Close, ReadBatch, Truncate
from tests import wire
from tests.contracts import examples
from tests.contracts.served import OTHER_ID, ContractCase
from tests.contracts.test_section_5 import Trouble
from tests.fleet import test_link as kit
from tests.fleet.test_link import activate, authenticating, make, message, only, welcome
from tests.wire import PING, TEXT, frame


class Sequencing(ContractCase):
    def test_s7_seqs_are_contiguous_within_a_batch(self) -> None:
        """entries[i].seq is seq_start + i; anything else refuses the batch whole."""
        peer = self.joined()
        entries = examples.entries(1, 3)
        entries[2]["seq"] = 4
        answer = peer.ask("logs.push", {"seq_start": 1, "entries": entries})
        self.assertEqual(self.refusal(answer), -32602)
        self.assertEqual(self.stored(), [])

    def test_s7_what_is_not_above_accepted_seq_is_dropped_silently(self) -> None:
        """A repeated push is acked as the first was, and stored once."""
        peer = self.joined()
        for _ in range(3):
            self.assertEqual(peer.push(1, 5)["result"]["up_to_seq"], 5)
        self.assertEqual(self.stored(), [1, 2, 3, 4, 5])

    def test_s7_f11_a_batch_that_overlaps(self) -> None:
        """Of a batch that reaches back, the new part is stored."""
        peer = self.joined()
        peer.push(1, 5)
        self.assertEqual(peer.push(3, 6)["result"]["up_to_seq"], 8)
        self.assertEqual(self.stored(), list(range(1, 9)))

    def test_s7_the_key_is_of_host_and_seq(self) -> None:
        """Two hosts have seqs of their own."""
        one, other = self.joined(), self.joined(OTHER_ID)
        one.push(1, 2)
        self.assertEqual(other.push(1, 3)["result"]["up_to_seq"], 3)
        self.assertEqual(sorted(self.stored()), [1, 1, 2, 2, 3])

    def test_s7_accepted_seq_is_recorded_and_told(self) -> None:
        """The high-water mark is the row's, and the next hello's."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        peer.push(1, 5)
        self.assertEqual(self.row().accepted_seq, 5)
        self.assertEqual(self.greeted(token)[1]["result"]["accepted_seq"], 5)

    def test_s7_replay_over_a_reconnect_doubles_nothing(self) -> None:
        """A host whose ack was lost sends again on a new session: nothing twice."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        peer.push(1, 5)
        peer.lost()
        peer, answer = self.greeted(token, resume_from_seq=0)
        self.assertEqual(answer["result"]["accepted_seq"], 5)
        self.assertEqual(peer.push(1, 9)["result"]["up_to_seq"], 9)
        self.assertEqual(self.stored(), list(range(1, 10)))

    def test_s7_frames_are_handled_in_order(self) -> None:
        """Pushes and other calls are answered for what they are, pushes in their order."""
        peer = self.joined()
        stream = b""
        for n in range(1, 6):
            peer.asked[n] = "logs.push"
            push = wire.request(n, "logs.push", examples.push(n))
            stream += frame(TEXT, wire.json.dumps(push).encode())
        peer.send(stream)
        answers = peer.messages()
        self.assertEqual([m["id"] for m in answers], [1, 2, 3, 4, 5])
        self.assertEqual([m["result"]["up_to_seq"] for m in answers], [1, 2, 3, 4, 5])

    def test_s7_f10_no_ack_before_the_commit(self) -> None:
        """While the store has not committed there is no answer, however long it takes."""
        self.store.__class__ = Trouble
        peer = self.joined()
        self.store.waiting = []  # type: ignore[attr-defined]
        peer.say(wire.request(5, "logs.push", examples.push(1, 3)))
        self.clock.advance(10.0)
        self.assertEqual(peer.messages(), [])
        self.store.go_on()  # type: ignore[attr-defined]
        self.assertEqual([m["result"]["up_to_seq"] for m in peer.messages()], [3])

    def test_s7_f10_an_idle_writer_commits_at_once(self) -> None:
        """A single entry is acked without any time passing: T is a bound, no delay."""
        peer = self.joined()
        self.assertEqual(peer.push(1)["result"]["up_to_seq"], 1)
        self.assertEqual((contract.ACK_ENTRIES, contract.ACK_DELAY), (100, 0.2))


class AgentSide(SynchronousTestCase):
    def test_s7_the_agent_fast_forwards(self) -> None:
        """After the hello the agent goes on behind max(its own acked, accepted_seq)."""
        for acked, accepted, first in ((3, 8, 9), (8, 3, 9), (0, 0, 1)):
            link = make(acked=acked, last=20)
            got = link.frame_received(welcome(authenticating(link), accepted), 0.0)
            self.assertIn(Adopt(accepted), got)
            [read] = only(ReadBatch, link.adopted(max(acked, accepted), 20, 0.0))
            self.assertEqual(read.first, first)

    def test_s7_the_buffer_is_truncated_on_an_ack_only(self) -> None:
        """Sending truncates nothing; an ack does, up to what it says."""
        link = make()
        activate(link, last=10)
        frame, got = kit.push(link, 1, 10)
        self.assertEqual(only(Truncate, got), [])
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 10}), 0.1)
        self.assertEqual(only(Truncate, got), [Truncate(10)])

    def test_s7_tailers_go_on_meanwhile(self) -> None:
        """Entries that come while a push is out are read behind it, in order."""
        link = make()
        activate(link, last=3)
        frame, _ = kit.push(link, 1, 3)
        link.entries_available(6, 0.1)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 3}), 0.2)
        got += link.time_passed(1.0)
        self.assertEqual(only(ReadBatch, got)[0].first, 4)


class Capabilities(ContractCase):
    def test_s8_capabilities_are_kept_as_they_came(self) -> None:
        """The row's capabilities are the hello's, member for member, and follow each hello."""
        token = self.enrolled()
        for probes in (["fs.disk_usage", "x.y"], []):
            offered = {
                "supported_probes": probes,
                "sources": ["custom", "journald"],
                "max_batch_entries": 77,
                "compression": ["zstd"],
            }
            self.greeted(token, capabilities=offered)
            self.assertEqual(wire.json.loads(self.row().capabilities), offered)

    def test_s8_version_and_platform_are_kept(self) -> None:
        """agent_version and platform stand beside them."""
        token = self.enrolled()
        platform = examples.HELLO["platform"]
        self.greeted(token, agent_version="3.2.1-rc.1", platform=platform)
        row = self.row()
        self.assertEqual(row.agent_version, "3.2.1-rc.1")
        self.assertEqual(wire.json.loads(row.platform), platform)

    def test_s8_max_batch_entries_is_a_hint(self) -> None:
        """A host that offers small batches may send larger ones all the same (F31)."""
        offered = wire.hello()["params"]["capabilities"] | {"max_batch_entries": 1}
        peer = self.joined(capabilities=offered)
        self.assertIn("result", peer.push(1, 1000))

    def test_s8_the_servers_sources_do_not_follow_the_capabilities(self) -> None:
        """config.log_sources instructs; capabilities.sources only informs."""
        offered = wire.hello()["params"]["capabilities"] | {"sources": []}
        _, answer = self.greeted(self.enrolled(), capabilities=offered)
        kinds = [one["kind"] for one in answer["result"]["config"]["log_sources"]]
        self.assertEqual(kinds, ["journald", "docker", "file"])


class Versions(ContractCase):
    def test_s9_f28_another_protocol_version(self) -> None:
        """-32003 says which version is required and which is current, whatever else is odd."""
        for version in (0, 2, 3, -1, 2**40):
            peer = self.socket()
            peer.say(wire.request(1, "agent.hello", {"protocol_version": version, "novel": 1}))
            [error] = self.ended(peer, 4001)
            self.assertEqual(
                error.json["error"]["data"], {"required_protocol_version": 1, "current": 1}
            )

    def test_s9_unknown_members_are_refused(self) -> None:
        """The shapes are closed: an unknown optional member is a typo, -32602."""
        peer = self.joined()
        for method, params in (
            ("logs.push", examples.push(1) | {"compression": "zstd"}),
            ("logs.push", examples.push(1, colour="red")),
            ("metrics.push", examples.METRICS | {"interval": 5}),
        ):
            self.assertEqual(self.refusal(peer.ask(method, params)), -32602)

    def test_s9_a_sources_config_is_open(self) -> None:
        """Only an item of log_sources may have members that a reader does not know."""
        config = examples.CONFIG | {"log_sources": [{"kind": "file", "path": "/x", "novel": [1]}]}
        link = make()
        link.frame_received(welcome(authenticating(link), 0, config=config), 0.0)
        link.adopted(0, 0, 0.0)
        self.assertEqual(link.state, "active")

    def test_s9_subprotocol_and_version_agree(self) -> None:
        """The subprotocol's number is protocol_version's."""
        self.assertEqual(contract.SUBPROTOCOL, f"cortex.v{contract.PROTOCOL_VERSION}")


class Decisions(ContractCase):
    def test_s11_there_is_no_logs_ack(self) -> None:
        """A push is answered by its result alone: no notification comes beside it."""
        peer = self.joined()
        peer.say(wire.request(9, "logs.push", examples.push(1, 500)))
        found = [one for one in peer.frames() if one.opcode != PING]
        self.assertEqual([one.json["id"] for one in found], [9])
        self.clock.advance(1.0)
        self.assertEqual(peer.frames(), [])

    def test_s11_f30_a_push_without_an_id_stores_nothing(self) -> None:
        """As a notification a push is dropped: nobody could be told."""
        peer = self.joined()
        peer.tell("logs.push", examples.push(1))
        self.assertEqual((peer.frames(), self.stored()), ([], []))

    def test_s11_final_seq_is_the_closes_reason(self) -> None:
        """The server takes a close with final_seq as any other, and answers 1000."""
        peer = self.joined()
        peer.push(1, 4)
        peer.send(frame(wire.CLOSE, b"\x03\xe8final_seq=4"))
        self.ended(peer, 1000)

    def test_s11_f42_the_agent_says_final_seq(self) -> None:
        """A drained agent closes with its last acked seq."""
        link = make()
        activate(link, acked=4, last=4)
        params = {"reason": "ServerReload", "drain_seconds": 5}
        got: list[Any] = link.frame_received(message(method="agent.shutdown", params=params), 1.0)
        self.assertEqual(only(Close, got), [Close(1000, "final_seq=4")])

    def test_s11_probe_response_is_no_method(self) -> None:
        """No frame has the method probe.response: it is unknown to the server."""
        answer = self.joined().ask("probe.response", examples.RESULTS["probe.request"])
        self.assertEqual(self.refusal(answer), -32601)
