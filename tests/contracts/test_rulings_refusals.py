"""F33 and F25 on one connection: a refusal never turns into loss."""

from __future__ import annotations

from typing import Any

from twisted.logger import capturedLogs

from cortextx.errors import StoreFull
from tests import wire
from tests.contracts import examples
from tests.contracts.served import ContractCase, Peer
from tests.contracts.test_section_5 import Trouble
from tests.wire import PING, frame


class Refusals(ContractCase):
    """F33, end to end on one connection."""

    def fence(self, peer: Peer, push: tuple[int, int], code: int, **changes: Any) -> bytes:
        """Push what is refused; answers the payload of the ping right behind the refusal."""
        id = next(peer._ids)
        peer.say(wire.request(id, "logs.push", examples.push(*push, **changes)))
        refusal, ping = peer.frames()
        self.assertEqual((refusal.json["id"], self.refusal(refusal.json)), (id, code))
        self.assertEqual(ping.opcode, PING)
        self.refused = refusal.json["error"]
        return ping.payload

    def test_f33_what_follows_a_refusal_is_refused_too(self) -> None:
        """Pushes above the refused seq get -32020 with resend_from and retry_after_ms."""
        peer = self.joined()
        self.fence(peer, (1, 5), -32602, severity="x")
        for first in (6, 11, 16):
            self.fence(peer, (first, 5), -32020)
            self.assertEqual(self.refused["data"]["resend_from"], 1)
            self.assertGreaterEqual(self.refused["data"]["retry_after_ms"], 0)
        self.assertEqual((self.stored(), self.gaps()), ([], []))

    def test_f33_going_back_ends_it(self) -> None:
        """A push from s or below is taken, and all that follows."""
        peer = self.joined()
        self.fence(peer, (1, 5), -32602, severity="x")
        self.assertEqual(peer.push(1, 5)["result"]["up_to_seq"], 5)
        self.assertEqual(peer.push(6, 5)["result"]["up_to_seq"], 10)
        self.assertEqual(self.gaps(), [])

    def test_f33_the_fences_pong_ends_it(self) -> None:
        """After the pong to the newest fence a jump is a real gap; before it, it is not."""
        peer = self.joined()
        first = self.fence(peer, (1, 5), -32602, severity="x")
        newest = self.fence(peer, (6, 5), -32020)
        peer.send(frame(wire.PONG, first))
        newest = self.fence(peer, (6, 5), -32020)
        peer.send(frame(wire.PONG, newest))
        self.assertEqual(peer.push(6, 5)["result"]["up_to_seq"], 10)
        self.assertEqual(self.gaps(), [(1, 5)])

    def test_f25_a_skipped_poison_entry_is_a_gap(self) -> None:
        """A host that leaves a refused entry out goes on behind it; its seq is the gap."""
        peer = self.joined()
        peer.push(1, 3)
        fence = self.fence(peer, (4, 1), -32602, ts="never")
        peer.send(frame(wire.PONG, fence))
        self.assertEqual(peer.push(5, 2)["result"]["up_to_seq"], 6)
        self.assertEqual((self.stored(), self.gaps()), ([1, 2, 3, 5, 6], [(4, 4)]))

    def test_f33_every_kind_of_refusal_counts(self) -> None:
        """A full disk, a fault of the store and too many entries hold back what follows, too."""
        self.store.__class__ = Trouble
        for fault, code in ((StoreFull("full"), -32020), (OSError("EIO"), -32603)):
            peer = self.joined()
            start = self.row().accepted_seq + 1
            self.store.fault = fault  # type: ignore[attr-defined]
            with capturedLogs():
                self.fence(peer, (start, 2), code)
            self.store.fault = None  # type: ignore[attr-defined]
            self.fence(peer, (start + 2, 2), -32020)
            self.assertIn("result", peer.push(start, 2))
        self.flushLoggedErrors(OSError)
        peer = self.joined()
        start = self.row().accepted_seq + 1
        self.fence(peer, (start, 1001), -32008)
        self.fence(peer, (start + 1001, 1), -32020)
        self.assertEqual(self.gaps(), [])
