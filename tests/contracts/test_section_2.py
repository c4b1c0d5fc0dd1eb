"""§2, wire framing: one test a statement. The frame itself is `test_websocket`'s."""

from __future__ import annotations

from tests import wire
from tests.contracts import examples
from tests.contracts.served import ContractCase, Peer
from tests.fleet import test_server_protocol as base
from tests.wire import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame

MAX = 1_048_576


class Upgrade(ContractCase):
    def answer(self, request: bytes) -> bytes:
        peer = base.Peer(self.site)
        peer.send(request)
        return peer.transport.value()

    def test_s2_the_offered_subprotocol_is_confirmed(self) -> None:
        """cortex.v1, alone or among others, is what the server confirms."""
        for offer in ("cortex.v1", "x, cortex.v1", "cortex.v1, cortex.v2"):
            head = self.answer(wire.upgrade(protocol=offer))
            self.assertTrue(head.startswith(b"HTTP/1.1 101 "), offer)
            self.assertIn(b"Sec-WebSocket-Protocol: cortex.v1\r\n", head)

    def test_s2_f28_any_other_subprotocol_is_400(self) -> None:
        """Without cortex.v1 the upgrade is refused with 400; none at all is a mismatch too."""
        for offer in (None, "", "cortex", "cortex.v2", "Cortex.v1", "cortex.v10"):
            self.assertTrue(
                self.answer(wire.upgrade(protocol=offer)).startswith(b"HTTP/1.1 400 "), offer
            )

    def test_s2_no_compression_is_negotiated(self) -> None:
        """permessage-deflate is declined, and a compressed frame fails the connection."""
        head = self.answer(wire.upgrade(Sec_WebSocket_Extensions="permessage-deflate"))
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "))
        self.assertNotIn(b"permessage-deflate", head)
        peer = self.joined()
        peer.send(frame(TEXT, b"{}", rsv=4))
        self.ended(peer, 1002)

    def test_s2_s3_nothing_of_http_authenticates(self) -> None:
        """The upgrade needs no credentials, and wrong ones do not matter (§3.1)."""
        head = self.answer(wire.upgrade(Authorization="Bearer nonsense"))
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "))


class Messages(ContractCase):
    def test_s2_the_zstd_hint_is_ignored(self) -> None:
        """A host that can zstd, or cannot, is told and served the same."""
        token = self.enrolled()
        found = []
        for hint in ([], ["zstd"]):
            hello = wire.hello(token)
            hello["params"]["capabilities"]["compression"] = hint
            peer = self.socket()
            peer.say(hello)
            [answer] = [m for m in peer.messages() if "result" in m]
            found.append({k: v for k, v in answer["result"].items() if k != "session_id"})
            peer.lost()
        self.assertEqual(found[0], found[1])

    def test_s2_binary_is_1003(self) -> None:
        """A binary message ends the connection with 1003, before and after the hello."""
        for payload in (b"", b"{}", b"\x28\xb5\x2f\xfd"):
            for peer in (self.socket(), self.joined()):
                peer.send(frame(BINARY, payload))
                self.ended(peer, 1003)
        peer = self.joined()
        peer.send(frame(BINARY, b"x", fin=False))
        self.ended(peer, 1003)

    def test_s2_f9_text_that_is_not_utf8_is_1007(self) -> None:
        """Bad UTF-8 in a text message ends the connection with 1007."""
        for bad in (b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'{"a":"\xf0\x9f'):
            for peer in (self.socket(), self.joined()):
                peer.text(bad)
                self.ended(peer, 1007)

    def test_s2_one_message_is_one_frame_of_json(self) -> None:
        """Two JSON texts in one message are no JSON (-32700); white space around one is fine."""
        peer = self.joined()
        body = b'{"jsonrpc":"2.0","id":5,"method":"nonesuch","params":{}}'
        peer.asked[5] = "nonesuch"
        for payload in (body + body, body + b"\n" + body, body + b",", b"", b" ", b"nul"):
            peer.text(payload)
            self.assertEqual([self.refusal(m) for m in peer.messages()], [-32700], payload)
        peer.text(b" \r\n\t" + body + b"\n")
        self.assertEqual([self.refusal(m) for m in peer.messages()], [-32601])

    def test_s2_an_array_is_an_invalid_request(self) -> None:
        """JSON-RPC batches are -32600 with a null id, whatever is in them; none is carried out."""
        peer = self.joined()
        pushed = wire.request(7, "logs.push", examples.push(1))
        for batch in ([], [pushed], [pushed, pushed], [[]], [1, 2]):
            peer.say(batch)
            [answer] = peer.messages()
            self.assertEqual((answer["id"], self.refusal(answer)), (None, -32600))
        self.assertEqual(self.stored(), [])

    def test_s2_f31_a_message_has_1_mib(self) -> None:
        """1,048,576 bytes pass, one more is 1009; fragments count as one message."""
        peer = self.joined()
        peer.send(frame(TEXT, b" " * MAX))
        self.assertEqual([self.refusal(m) for m in peer.messages()], [-32700])
        peer.send(frame(TEXT, b" " * (MAX + 1)))
        self.ended(peer, 1009)
        peer = self.joined()
        for _ in range(4):
            peer.send(frame(TEXT if _ == 0 else CONTINUATION, b" " * (MAX // 4), fin=False))
        self.assertEqual(peer.frames(), [])
        peer.send(frame(CONTINUATION, b" "))
        self.ended(peer, 1009)

    def test_s2_an_oversize_is_recorded(self) -> None:
        """The host's row says `1009 oversize` afterwards."""
        peer = self.joined()
        peer.send(frame(TEXT, b" " * (MAX + 1)))
        self.ended(peer, 1009)
        peer.lost()
        self.assertEqual(self.written().last_disconnect_reason, "1009 oversize")

    def test_s2_f3_before_the_hello_there_is_1_kib_beside_it(self) -> None:
        """1,024 bytes of anything else pass, the 1,025th is 1009; a large hello passes."""
        token = self.enrolled()
        for spare, good in ((0, True), (1, False)):
            peer = self.socket()
            hello = wire.text(wire.hello(token, padding=20_000))
            noise = frame(PING, b"x" * 119) * 8 + frame(PING, b"x" * (10 + spare))
            # A masked frame of up to 125 bytes has 6 of overhead, the hello's has 8.
            self.assertEqual(len(noise) + 8, 1024 + spare)
            peer.asked[1] = "agent.hello"
            peer.send(noise + hello)
            found = [one for one in peer.frames() if one.opcode in (TEXT, CLOSE)]
            if good:
                self.assertIn("result", found[0].json)
            else:
                self.assertEqual((found[0].opcode, found[0].code), (CLOSE, 1009))

    def test_s2_f3_a_hellos_payload_has_a_cap_of_its_own(self) -> None:
        """64 KiB of hello pass, one byte more is 1009, also where it is announced only."""
        token = self.enrolled()
        bare = len(wire.text(wire.hello(token, padding=1))) - 8 - 1
        for size, good in ((65_536, True), (65_537, False)):
            peer = self.socket()
            peer.asked[1] = "agent.hello"
            peer.send(wire.text(wire.hello(token, padding=size - bare)))
            [found] = peer.frames()
            self.assertEqual(found.opcode == TEXT, good, size)
        peer = self.socket()
        peer.send(b"\x81\xff" + (65_537).to_bytes(8, "big") + b"mask")
        self.ended(peer, 1009)


class Liveness(ContractCase):
    def pings(self, peer: Peer) -> list[bytes]:
        return [one.payload for one in peer.frames() if one.opcode == PING]

    def test_s2_the_server_pings_every_20_s(self) -> None:
        """A ping comes 20 s after the hello, and again each 20 s."""
        peer = self.joined()
        for _ in range(6):
            self.clock.advance(19.9)
            self.assertEqual(peer.frames(), [])
            self.clock.advance(0.1)
            [ping] = self.pings(peer)
            peer.send(frame(wire.PONG, ping))

    def test_s2_f21_three_missed_pongs_are_1011(self) -> None:
        """Three unanswered pings end it at the fourth's time, whatever else is received."""
        peer = self.joined()
        for _ in range(3):
            self.clock.advance(20.0)
            self.assertEqual(len(self.pings(peer)), 1)
            peer.tell("agent.heartbeat", examples.HEARTBEAT)
            peer.send(frame(wire.PONG, b"unasked"))
            self.assertIn("result", peer.push(self.row().accepted_seq + 1))
        self.clock.advance(20.0)
        self.ended(peer, 1011)
        peer.lost()
        self.assertEqual(self.written().last_disconnect_reason, "1011 missed pongs")

    def test_s2_f21_one_pong_counts_for_all(self) -> None:
        """A pong to the newest ping ends the count of those before it."""
        peer = self.joined()
        for _ in range(4):
            for _ in range(2):
                self.clock.advance(20.0)
            peer.send(frame(wire.PONG, self.pings(peer)[-1]))
        self.clock.advance(20.0)
        self.assertEqual(len(self.pings(peer)), 1)
