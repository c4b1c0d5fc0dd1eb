"""Tokens that end while their host is connected, or while its hello is judged (F7, F8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortextx.fleet.server.rows import host_row
from tests import wire
from tests.contracts import examples
from tests.contracts.served import HOST_ID, ContractCase, Peer
from tests.wire import CLOSE, TEXT


class Ending(ContractCase):
    def rotate(self, expire_in: float | None) -> None:
        self.result(self.fleet.rotate(HOST_ID, False, expire_in))

    def amid_hello(self, token: str, act: Callable[[], Any]) -> Peer:
        """A connection whose hello is judged and not yet answered when `act` comes."""
        judge, peer = self.store.judge, self.socket()

        def judged(*args: Any) -> Any:
            self.patch(self.store, "judge", judge)
            verdict = judge(*args)
            act()
            return verdict

        self.patch(self.store, "judge", judged)
        peer.say(wire.hello(token))
        return peer

    def test_f7_expire_in_bricks_no_connected_host(self) -> None:
        """A connected host is cut, as --now does, and takes its new token before the old one
        ends: left alone, it would be locked out by the next restart."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        self.rotate(60.0)
        self.ended(peer, 1000)
        fresh = self.greeted(token)[1]["result"]["rotated_token"]
        self.clock.advance(61.0)
        self.assertIn("result", self.greeted(fresh)[1])
        self.assertEqual(self.refusal(self.greeted(token)[1]), -32005)

    def test_f7_expire_in_amid_a_hello(self) -> None:
        """A host that is being greeted is cut too, once it has its answer."""
        token = self.enrolled()
        peer = self.amid_hello(token, lambda: self.rotate(60.0))
        self.clock.advance(0)
        answer, close = peer.frames()
        self.assertEqual((answer.opcode, close.opcode, close.code), (TEXT, CLOSE, 1000))
        self.assertIsNone(answer.json["result"].get("rotated_token"))
        self.assertIn("rotated_token", self.greeted(token)[1]["result"])

    def test_f7_a_rotation_amid_a_hello_cuts_nobody(self) -> None:
        """Without an end the old token is good for as long as it takes."""
        peer = self.amid_hello(self.enrolled(), lambda: self.rotate(None))
        self.clock.advance(0)
        [answer] = peer.frames()
        self.assertIn("result", answer.json)
        self.assertIn("result", peer.push(1))

    def test_f7_expire_in_of_a_host_that_is_issued_again(self) -> None:
        """Its hello brings no new token before it uses its invitation: it is not cut."""
        peer = self.joined()
        self.issued()
        self.rotate(60.0)
        self.assertEqual(peer.frames(), [])

    def test_f8_a_revocation_amid_a_hello(self) -> None:
        """A host that is revoked while its hello is judged gets -32002, and no session."""
        peer = self.amid_hello(self.enrolled(), lambda: self.result(self.fleet.revoke(HOST_ID)))
        [error] = self.ended(peer, 4002)
        self.assertEqual(self.refusal(error.json), -32002)
        self.assertEqual(self.fleet.live_count, 0)
        self.assertEqual(self.written().state, "revoked")


class Lag(ContractCase):
    def test_s4_2_lag_goes_down_with_what_is_stored(self) -> None:
        """What a heartbeat said of a backlog is less what was stored since, also when the
        host has gone: else an idle host would seem to be behind."""
        peer = self.joined()
        peer.push(1, 10)
        peer.tell("agent.heartbeat", examples.HEARTBEAT | {"push_lag_seq": 30})
        self.assertEqual(self.lag(), 30)
        peer.push(11, 20)
        self.assertEqual(self.lag(), 10)
        peer.lost()
        self.assertEqual(self.lag(), 10)
        peer, _ = self.greeted(self.token())
        peer.push(31, 15)
        self.assertEqual(self.lag(), 0)

    def lag(self) -> Any:
        return host_row(self.written(), self.fleet)["push_lag_seq"]

    def token(self) -> str:
        """Another token for the host."""
        return self.issued()
