"""Rulings F1 to F24 as a server carries them out, each by what an agent sees of it."""

from __future__ import annotations

import json
from typing import Any

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.server.settings import ServerSettings, ServerTable, check
from tests import wire
from tests.contracts import examples
from tests.contracts.served import HOST_ID, OTHER_ID, ContractCase, Peer
from tests.contracts.test_section_5 import Trouble
from tests.wire import TEXT, frame


class Seqs(ContractCase):
    def test_f1_seq_starts_at_1(self) -> None:
        """A new host is told 0; an entry with seq 0 is a duplicate, and no gap is seen at 1."""
        peer, answer = self.greeted(self.issued())
        self.assertEqual(answer["result"]["accepted_seq"], 0)
        self.assertEqual(peer.push(0)["result"]["up_to_seq"], 0)
        self.assertEqual(peer.push(0, 2)["result"]["up_to_seq"], 1)
        self.assertEqual((self.stored(), self.gaps()), ([1], []))

    def test_f11_duplicates_are_acked_with_the_high_water_mark(self) -> None:
        """A duplicate of any age gets the ack of now, and nothing is stored twice (A50)."""
        peer = self.joined()
        peer.push(1, 10)
        self.clock.advance(19.0)
        for first, count in ((1, 1), (1, 10), (10, 1), (4, 3)):
            self.assertEqual(peer.push(first, count)["result"]["up_to_seq"], 10)
        self.assertEqual(len(self.stored()), 10)

    def test_f13_a_gap_is_accepted_and_remembered(self) -> None:
        """A jump is stored, the missing range is recorded once, and the row counts it."""
        peer = self.joined()
        peer.push(1, 2)
        self.assertEqual(peer.push(6, 2)["result"]["up_to_seq"], 7)
        self.assertEqual(peer.push(100)["result"]["up_to_seq"], 100)
        peer.push(100)
        self.assertEqual(self.gaps(), [(3, 5), (8, 99)])
        row = self.row()
        self.assertEqual((row.gap_count, row.lost_entries), (2, 95))

    def test_f37_what_only_the_host_knows_joins_the_gaps(self) -> None:
        """A report of custom:cortextx gives a gap, or the part of it that it names, its
        cause; a truncation is a gap without seqs."""
        peer = self.joined()
        lost = {"first": 3, "last": 5, "count": 3, "reason": "evicted", "detail": "full"}
        peer.push(1, 2)
        peer.push(6)
        self.report(peer, 7, {"lost": lost})
        peer.push(11)
        self.report(peer, 12, {"lost": lost | {"first": 9, "last": 9, "reason": "set_aside"}})
        self.report(peer, 13, {"gap": {"source": "file:/var/log/a", "unread_bytes": "70"}})
        found = self.successResultOf(self.store.gaps(HOST_ID))
        self.assertEqual(
            sorted((gap.first or 0, gap.last or 0, gap.cause) for gap in found),
            [
                (0, 0, "truncated"),
                (3, 5, "evicted"),
                (8, 8, None),
                (9, 9, "set_aside"),
                (10, 10, None),
            ],
        )

    def test_f37_the_reserved_name_alone_counts(self) -> None:
        """The same marks from another source say nothing about gaps, nor do odd ones."""
        peer = self.joined()
        peer.push(3)
        lost = {"first": 1, "last": 2, "reason": "evicted"}
        peer.push(4, metadata={"cortextx": {"lost": lost}})
        for seq, marks in enumerate(
            ({"lost": {**lost, "first": "x"}}, {"lost": 5}, [], {"lost": {**lost, "first": 9}}), 5
        ):
            self.report(peer, seq, marks)
        found = self.successResultOf(self.store.gaps(HOST_ID))
        self.assertEqual([(gap.first, gap.last, gap.cause) for gap in found], [(1, 2, None)])

    def report(self, peer: Peer, seq: int, marks: Any) -> None:
        metadata = {"cortextx": marks}
        answer = peer.push(seq, source="custom:cortextx", metadata=metadata)
        self.assertIn("result", answer)

    def test_f26_a_restored_server_goes_on_from_what_the_host_has(self) -> None:
        """A host whose acked seq is above ours continues there, and the gap is recorded."""
        token = self.enrolled()
        peer, answer = self.greeted(token, resume_from_seq=500)
        self.assertEqual(answer["result"]["accepted_seq"], 0)
        self.assertEqual(self.gaps(), [(1, 500)], "before anything is pushed")
        self.greeted(token, resume_from_seq=500)
        self.assertEqual(self.gaps(), [(1, 500)])
        peer, _ = self.greeted(token, resume_from_seq=500)
        self.assertEqual(peer.push(501, 2)["result"]["up_to_seq"], 502)
        self.assertEqual(self.gaps(), [(1, 500)])

    def test_f26_what_cannot_be_is_not_believed(self) -> None:
        """A resume_from_seq that no host can have reached is legal (F31) and makes no gap."""
        token = self.enrolled()
        for acked in (10**15 + 1, 2**63 - 1):
            with capturedLogs() as logs:
                _, answer = self.greeted(token, resume_from_seq=acked)
            self.assertEqual(answer["result"]["accepted_seq"], 0)
            self.assertEqual([one["acked"] for one in logs if "acked" in one], [acked])
            self.assertEqual(self.gaps(), [])
        self.greeted(token, resume_from_seq=10**15)
        self.assertEqual(self.gaps(), [(1, 10**15)])


class Hellos(ContractCase):
    def test_f4_every_fault_ends_the_handshake(self) -> None:
        """One error, then 4001, for each kind of bad first message."""
        for payload, code in (
            (b"\x7b", -32700),
            (b"[1]", -32600),
            (b'{"jsonrpc":"2.0","method":"agent.hello","params":{}}', -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"agent.hello"}', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"agent.hello","params":[]}', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"x"}', -32000),
        ):
            peer = self.socket()
            peer.asked[1] = "agent.hello"
            peer.text(payload)
            [error] = self.ended(peer, 4001)
            self.assertEqual(self.refusal(error.json), code, payload)

    def test_f5_unknown_host_and_wrong_token_are_alike(self) -> None:
        """Same code, same data, same close: nobody can tell which hosts there are."""
        self.enrolled()
        found = []
        for host_id in (HOST_ID, OTHER_ID):
            peer = self.socket()
            peer.say(wire.hello("x" * 43, host_id))
            found.append([one.payload for one in peer.frames()])
        self.assertEqual(found[0], found[1])

    def test_f6_an_unbound_row_is_claimed_by_its_token(self) -> None:
        """A pending row without an id takes that of the first hello with its token."""
        token = self.issued("anyone", None)
        self.assertIn("result", self.greeted(token, OTHER_ID)[1])
        [row] = self.successResultOf(self.store.find("anyone"))
        self.assertEqual(row.host_id, OTHER_ID)

    def test_f6_a_bound_row_is_for_its_host(self) -> None:
        """The token of a row with an id is of no use to another id."""
        token = self.issued("one", HOST_ID)
        self.assertEqual(self.refusal(self.greeted(token, OTHER_ID)[1]), -32001)
        self.assertIn("result", self.greeted(token, HOST_ID)[1])

    def test_f6_one_time_tokens_expire(self) -> None:
        """After 24 h a one-time token is as good as a wrong one."""
        token = self.issued()
        self.clock.advance(24 * 3600)
        self.assertEqual(self.refusal(self.greeted(token)[1]), -32001)

    def test_f6_a_one_time_token_is_32_random_bytes(self) -> None:
        """base64url of 32 bytes: 43 characters of its alphabet."""
        self.assertRegex(self.issued(), r"\A[A-Za-z0-9_-]{43}\Z")

    def test_f29_a_one_time_token_is_spent_once(self) -> None:
        """Of two racing hellos one wins, the other gets -32001."""
        token = self.issued("anyone", None)
        answers = [self.greeted(token, host)[1] for host in (HOST_ID, OTHER_ID)]
        self.assertIn("result", answers[0])
        self.assertEqual(self.refusal(answers[1]), -32001)

    def test_f29_an_unbound_token_takes_no_host_over(self) -> None:
        """A host_id that has a row is not claimed by another row's token."""
        self.enrolled(HOST_ID)
        token = self.issued("other", None)
        self.assertEqual(self.refusal(self.greeted(token, HOST_ID)[1]), -32001)
        self.assertIn("result", self.greeted(token, OTHER_ID)[1])

    def test_f29_a_host_is_enrolled_again_by_its_id(self) -> None:
        """A token issued for the id enrols it anew, and accepted_seq stays."""
        peer = self.joined()
        peer.push(1, 5)
        _, answer = self.greeted(self.issued("again", HOST_ID))
        self.assertEqual(answer["result"]["accepted_seq"], 5)

    def test_f32_a_hostname_is_only_information(self) -> None:
        """The name in a hello need not be the enrolled one, and does not become it."""
        self.greeted(self.issued("enrolled-name"), hostname="other-name")
        row = self.row()
        self.assertEqual((row.name, row.hostname), ("enrolled-name", "other-name"))


class Tokens(ContractCase):
    def test_f7_a_rotation_delivers_at_the_next_hello(self) -> None:
        """The old token stays good for days; the next hello with it gets the fresh one."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        self.result(self.fleet.rotate(HOST_ID, False, None))
        self.assertEqual(peer.frames(), [], "a live session is not cut")
        self.assertIn("result", peer.push(1))
        peer.lost()
        self.clock.advance(30 * 86_400)
        _, answer = self.greeted(token)
        fresh = answer["result"]["rotated_token"]
        self.assertNotEqual(fresh, token)
        self.assertIsNone(self.greeted(fresh)[1]["result"].get("rotated_token"))

    def test_f7_a_lost_reply_locks_nobody_out(self) -> None:
        """Within the grace the old token gets another fresh one; the newest is good."""
        token = self.enrolled()
        self.result(self.fleet.rotate(HOST_ID, False, None))
        self.greeted(token)
        self.clock.advance(299.0)
        fresh = self.greeted(token)[1]["result"]["rotated_token"]
        self.assertIn("result", self.greeted(fresh)[1])

    def test_f7_the_new_token_ends_the_grace(self) -> None:
        """Once the new token was used the old one is -32005 and 4001."""
        token = self.enrolled()
        self.result(self.fleet.rotate(HOST_ID, False, None))
        fresh = self.greeted(token)[1]["result"]["rotated_token"]
        self.greeted(fresh)
        peer, answer = self.greeted(token)
        self.assertEqual(self.refusal(answer), -32005)
        self.ended(peer, 4001)
        self.assertIsNotNone(self.row().token_hash_prev, "kept for diagnosis")

    def test_f7_rotate_now_closes_with_1000(self) -> None:
        """`--now` ends the session normally, so that the host comes back at once."""
        peer = self.joined()
        self.result(self.fleet.rotate(HOST_ID, True, None))
        self.ended(peer, 1000)

    def test_f7_a_compromised_token_expires(self) -> None:
        """`--expire-in` bounds the life of the old token, delivered or not."""
        token = self.enrolled()
        self.result(self.fleet.rotate(HOST_ID, False, 60.0))
        self.clock.advance(61.0)
        self.assertEqual(self.refusal(self.greeted(token)[1]), -32005)

    def test_f8_a_revocation_is_at_once_and_lasting(self) -> None:
        """The live session is told and closed with 4002, later hellos get -32002 and 4002,
        and hellos that fail F28 are told that first."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        self.result(self.fleet.revoke(HOST_ID))
        [told] = self.ended(peer, 4002)
        self.assertEqual(told.json["params"]["reason"], "Revoked")
        for days in (0, 400):
            self.clock.advance(days * 86_400)
            peer, answer = self.greeted(token)
            self.assertEqual(self.refusal(answer), -32002)
            self.ended(peer, 4002)
        self.assertEqual(self.refusal(self.greeted(token, protocol_version=9)[1]), -32003)

    def test_f8_a_forgotten_host_is_unknown(self) -> None:
        """After `agent forget` the row is gone, and the hello is -32001."""
        token = self.enrolled()
        self.result(self.fleet.revoke(HOST_ID))
        self.result(self.fleet.forget(HOST_ID))
        self.assertEqual(self.refusal(self.greeted(token)[1]), -32001)

    def test_f23_hashes_are_all_that_is_kept(self) -> None:
        """No row holds a token, and no error's data repeats one."""
        token = self.enrolled()
        _, answer = self.greeted("y" * 43, hostname="")
        self.assertNotIn("y" * 43, json.dumps(answer))
        row = self.row()
        self.assertEqual(len(row.token_hash), 32)
        for name in row.__dataclass_fields__:
            self.assertNotEqual(getattr(row, name), token)


class Sessions(ContractCase):
    def test_f14_the_newer_session_stays(self) -> None:
        """The older one is closed with 1000 `superseded` and loses nothing that was acked."""
        token = self.enrolled()
        older, _ = self.greeted(token)
        older.push(1, 3)
        newer, answer = self.greeted(token)
        self.assertEqual(answer["result"]["accepted_seq"], 3)
        [close] = older.frames()
        self.assertEqual((close.code, close.payload[2:]), (1000, b"superseded"))
        older.say(wire.request(5, "logs.push", examples.push(4)))
        older.lost()
        self.assertIn("result", newer.push(4))
        self.assertEqual(self.written().state, "active")

    def test_f14_a_probable_clone_is_reported(self) -> None:
        """More than five supersessions in a minute are said; five are not."""
        token = self.enrolled()
        for rounds, told in ((5, False), (6, True)):
            self.clock.advance(61.0)
            with capturedLogs() as logs:
                peers = [self.greeted(token)[0] for _ in range(rounds + 1)]
            self.assertEqual(any("clone" in str(event) for event in logs), told, rounds)
            for peer in peers:
                peer.lost()

    def test_f15_offsets_are_kept_and_times_are_utc(self) -> None:
        """A ts with an offset is stored as UTC with the offset; without one it is -32602."""
        peer = self.joined()
        peer.push(1, ts="2026-08-09T06:30:00.25+05:30")
        [entry] = self.entries()
        self.assertEqual((entry.ts, entry.ts_offset), (1_786_237_200_250_000, 330))
        self.assertEqual(self.refusal(peer.push(2, ts="2026-08-09T06:30:00.25")), -32602)

    def test_f15_a44_no_entry_is_refused_for_its_age(self) -> None:
        """Times long ago, far ahead and out of order are all stored as they are."""
        peer = self.joined()
        for seq, ts in enumerate(
            ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2001-01-01T00:00:00-12:00"), 1
        ):
            self.assertIn("result", peer.push(seq, ts=ts), ts)

    def test_f16_nul_becomes_u_fffd(self) -> None:
        """NUL in any text of an entry is U+FFFD in the store; a lone surrogate is no JSON."""
        peer = self.joined()
        peer.push(1, message="a\x00b", app_name="\x00", metadata={"k\x00": "v\x00"})
        [entry] = self.entries()
        self.assertEqual((entry.message, entry.app_name), ("a\ufffdb", "\ufffd"))
        self.assertEqual(json.loads(entry.metadata), {"k\ufffd": "v\ufffd"})
        push = wire.json.dumps(wire.request(9, "logs.push", examples.push(2, message="@")))
        peer.text(push.replace("@", "\\ud800").encode())
        [refused] = [m for m in peer.messages() if "error" in m]
        self.assertEqual((refused["id"], self.refusal(refused)), (None, -32700))

    def test_f27_a_dead_connection_is_answered_to_nobody(self) -> None:
        """An answer of the store for a session that has gone is dropped."""
        self.store.__class__ = Trouble
        peer = self.joined()
        self.store.waiting = []  # type: ignore[attr-defined]
        peer.say(wire.request(5, "logs.push", examples.push(1)))
        peer.lost()
        peer.transport.clear()
        self.store.go_on()  # type: ignore[attr-defined]
        self.assertEqual(peer.transport.value(), b"")
        self.assertEqual(self.stored(), [1])


class Order(ContractCase):
    def test_f9_faults_are_told_in_order(self) -> None:
        """A message with many faults gets the code of the first in F9's order."""
        entry = examples.ENTRY
        many = [entry | {"seq": "x"}] * 1001
        for payload, code in (
            (b'{"jsonrpc":"1.0","id":1,"method":"no.such",', -32700),
            (b'{"jsonrpc":"1.0","id":1,"method":"no.such"}', -32600),
            (self.call("no.such", {"seq_start": "x", "entries": many}), -32601),
            (self.call("logs.push", {"seq_start": "x", "entries": many, "more": 1}), -32008),
            (self.call("logs.push", {"seq_start": "x", "entries": [entry]}), -32602),
            (self.call("metrics.push", {"ts": 1, "samples": [5] * 513}), -32008),
            (self.call("metrics.push", {"ts": 1, "samples": [5] * 512}), -32602),
        ):
            peer = self.joined()
            peer.asked[1] = "any"
            peer.text(payload)
            self.assertEqual([self.refusal(m) for m in peer.messages()], [code], payload[:80])

    def call(self, method: str, params: Any) -> bytes:
        return json.dumps(wire.request(1, method, params)).encode()

    def test_f9_size_comes_before_binary_and_utf8(self) -> None:
        """Beyond 1 MiB it is 1009, whatever it is."""
        for opcode, filler in ((wire.BINARY, b"x"), (TEXT, b"\xff")):
            peer = self.joined()
            peer.send(frame(opcode, filler * 1_048_577))
            self.ended(peer, 1009)

    def test_f9_nothing_of_a_faulty_batch_is_stored(self) -> None:
        """One bad entry among a thousand refuses them all."""
        peer = self.joined()
        for place in (0, 499, 999):
            entries = examples.entries(1, 1000)
            entries[place] = entries[place] | {"severity": "LOUD"}
            answer = peer.ask("logs.push", {"seq_start": 1, "entries": entries})
            self.assertEqual(self.refusal(answer), -32602)
        self.assertEqual((self.stored(), self.row().accepted_seq), ([], 0))

    def test_f9_unknown_notifications_are_dropped(self) -> None:
        """They are logged, and the session goes on."""
        peer = self.joined()
        with capturedLogs() as logs:
            peer.tell("no.such", {"a": 1})
        self.assertEqual(peer.frames(), [])
        self.assertNotEqual(logs, [])
        self.assertIn("result", peer.push(1))

    def test_f30_a_second_hello_is_32600_and_the_session_lives(self) -> None:
        """Even with a good token."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        self.assertEqual(self.refusal(peer.ask("agent.hello", wire.hello(token)["params"])), -32600)
        self.assertIn("result", peer.push(1))

    def test_f30_frames_behind_a_hello_are_handled_after_it(self) -> None:
        """Pipelined pushes are answered behind the HelloResult, in order."""
        token = self.enrolled()
        peer = self.socket()
        messages = [wire.hello(token), *(
            wire.request(n, "logs.push", examples.push(n - 1)) for n in (2, 3, 4)
        )]  # fmt: skip
        peer.asked |= {1: "agent.hello", 2: "logs.push", 3: "logs.push", 4: "logs.push"}
        peer.send(b"".join(wire.text(message) for message in messages))
        self.assertEqual([m["id"] for m in peer.messages()], [1, 2, 3, 4])
        self.assertEqual(self.stored(), [1, 2, 3])

    def test_f30_ids_are_strings_or_numbers(self) -> None:
        """Each is echoed as it came; null and others are -32600 with a null id."""
        peer = self.joined()
        for id in (0, -1, 2**53, "", "é", "1", 1.5):
            peer.say(wire.request(id, "no.such", {}))
            [answer] = peer.messages()
            self.assertEqual((answer["id"], type(answer["id"])), (id, type(id)))
        for odd in (None, True, [], {}):
            peer.say({"jsonrpc": "2.0", "id": odd, "method": "metrics.push", "params": {}})
            [answer] = peer.messages()
            self.assertEqual((answer["id"], self.refusal(answer)), (None, -32600), odd)

    def test_f31_the_cap_is_not_the_configs(self) -> None:
        """config.max_batch_entries below what is sent does not refuse it: the cap is 1,000."""
        peer = self.joined()
        self.assertIn("result", peer.push(1, 1000))

    def test_f31_the_greatest_seq(self) -> None:
        """2**63 - 1 is taken and acked; nothing is above it."""
        peer = self.joined()
        last = 2**63 - 1
        self.assertEqual(peer.push(last)["result"]["up_to_seq"], last)
        self.assertEqual(self.refusal(peer.push(last, 2)), -32602)


class Transport(SynchronousTestCase):
    def test_f20_a_bind_beyond_loopback_needs_protection(self) -> None:
        """In the clear the server refuses to start, unless it is told that it is safe."""
        for listen, good in (
            ("tcp:8600:interface=127.0.0.1", True), ("tcp:8600:interface=\\:\\:1", True),
            ("unix:/run/x.sock", True), ("tcp:8600", False), ("tcp:8600:interface=0.0.0.0", False),
            ("tcp:8600:interface=10.0.0.4", False), ("tcp6:8600", False),
        ):  # fmt: skip
            table = ServerTable(listen=(listen,))
            if good:
                check(ServerSettings(server=table))
            else:
                error = self.assertRaises(ConfigError, check, ServerSettings(server=table))
                self.assertIn("listen", str(error))
        for consent in ({"tls_terminated_externally": True}, {"allow_insecure": True}):
            check(ServerSettings(server=ServerTable(listen=("tcp:8600",), **consent)))
