"""§6, the agent's states: one test an arrow of the graph, and the backoff."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter
from cortextx.fleet.agent.actions import Close, Connect, DeleteToken, PauseSources, Say
from cortextx.fleet.agent.link import Link
from tests.fleet import test_link as kit
from tests.fleet.test_link import activate, authenticating, make, message, only, refusal, welcome


def shutdown(reason: str, seconds: int) -> bytes:
    return message(method="agent.shutdown", params={"reason": reason, "drain_seconds": seconds})


class Arrows(SynchronousTestCase):
    def moves(self, link: Link, before: str, after: str, act: Any) -> list[Any]:
        """`act` takes the link from one state to another; answers its actions."""
        self.assertEqual(link.state, before)
        todo: list[Any] = act()
        self.assertEqual(link.state, after)
        return todo

    def test_s6_start_connects(self) -> None:
        """Disconnected → Connecting when it starts."""
        link = make()
        todo = self.moves(link, "disconnected", "connecting", lambda: link.started(0.0))
        self.assertIn(Connect(), todo)

    def test_s6_an_upgrade_authenticates(self) -> None:
        """Connecting → Authenticating once the WebSocket is there."""
        link = make()
        link.started(0.0)
        self.moves(link, "connecting", "authenticating", lambda: link.connected(0.1))

    def test_s6_a_failed_upgrade_reconnects(self) -> None:
        """Connecting → Reconnecting on a refused, broken or unresolved connection."""
        link = make()
        link.started(0.0)
        self.moves(link, "connecting", "reconnecting", lambda: link.peer_lost("refused", 0.1))

    def test_s6_a_hello_result_activates(self) -> None:
        """Authenticating → Active, once what the result brought is safe (F42)."""
        link = make()
        link.frame_received(welcome(authenticating(link)), 0.0)
        self.moves(link, "storing", "active", lambda: link.adopted(0, 0, 0.1))

    def test_s6_fatal_auth(self) -> None:
        """Authenticating → FatalAuth on -32001 and -32003, and on -32005 (F34): no retry, an
        alert, the token kept."""
        for code in (-32001, -32003, -32005):
            link = make()
            id = authenticating(link)
            todo = self.moves(
                link,
                "authenticating",
                "fatal_auth",
                lambda link=link, id=id, code=code: link.frame_received(refusal(id, code), 0.0),
            )
            self.assertEqual([say.level for say in only(Say, todo)], ["critical"])
            self.assertEqual(only(DeleteToken, todo), [])
            link.peer_lost("4001", 0.0)
            self.assertEqual(only(Connect, link.time_passed(1e7)), [])

    def test_s6_revoked_at_the_hello(self) -> None:
        """Authenticating → Revoked on -32002: the token is deleted, nothing more is tried."""
        link = make()
        id = authenticating(link)
        todo = self.moves(
            link, "authenticating", "revoked", lambda: link.frame_received(refusal(id, -32002), 0.0)
        )
        self.assertIn(DeleteToken(), todo)
        link.peer_lost("4002", 0.0)
        self.assertEqual(only(Connect, link.time_passed(1e7)), [])

    def test_s6_a_lost_handshake_reconnects(self) -> None:
        """Authenticating → Reconnecting when the connection ends without an answer."""
        link = make()
        authenticating(link)
        self.moves(link, "authenticating", "reconnecting", lambda: link.peer_lost("4000", 5.0))

    def test_s6_a_shutdown_drains(self) -> None:
        """Active → Draining on agent.shutdown for any reason but Revoked."""
        for reason in ("ServerReload", "Decommission"):
            link = make()
            activate(link)
            link.entries_available(5, 0.5)
            self.moves(
                link,
                "active",
                "draining",
                lambda link=link, reason=reason: link.frame_received(shutdown(reason, 9), 1.0),
            )

    def test_s6_a_revocation_ends(self) -> None:
        """Active → Revoked on agent.shutdown Revoked."""
        link = make()
        activate(link)
        todo = self.moves(
            link, "active", "revoked", lambda: link.frame_received(shutdown("Revoked", 0), 1.0)
        )
        self.assertIn(DeleteToken(), todo)
        self.assertIn(PauseSources(), todo)

    def test_s6_a_lost_connection_reconnects(self) -> None:
        """Active → Reconnecting on a close or an error of the connection."""
        link = make()
        activate(link)
        self.moves(link, "active", "reconnecting", lambda: link.peer_lost("reset", 1.0))

    def test_s6_a_drain_ends_empty(self) -> None:
        """Draining → Reconnecting once all is acked."""
        link = make()
        activate(link)
        link.entries_available(5, 0.5)
        link.frame_received(shutdown("ServerReload", 9), 1.0)
        frame, _ = kit.push(link, 1, 5, 1.0)
        ack = message(id=frame["id"], result={"up_to_seq": 5})
        todo = self.moves(link, "draining", "reconnecting", lambda: link.frame_received(ack, 1.5))
        self.assertEqual(only(Close, todo), [Close(1000, "final_seq=5")])

    def test_s6_a_drain_ends_in_time(self) -> None:
        """Draining → Reconnecting when drain_seconds are over."""
        link = make()
        activate(link)
        link.entries_available(5, 0.5)
        link.frame_received(shutdown("ServerReload", 9), 1.0)
        self.assertEqual(link.time_passed(9.9) and link.state, "draining")
        self.moves(link, "draining", "reconnecting", lambda: link.time_passed(10.0))

    def test_s6_a_backoff_ends(self) -> None:
        """Reconnecting → Connecting when the delay is over, not before."""
        link = make(chance=0.5)
        link.started(0.0)
        link.peer_lost("refused", 10.0)
        self.assertEqual(only(Connect, link.time_passed(10.49)), [])
        self.moves(link, "reconnecting", "connecting", lambda: link.time_passed(10.5))

    def test_s6_fatal_auth_waits_for_an_operator(self) -> None:
        """FatalAuth is left by an operator alone, and stopped like any state (F34)."""
        link = make()
        link.frame_received(refusal(authenticating(link), -32001), 0.0)
        link.peer_lost("4001", 0.0)
        self.assertIn(Connect(), link.retry_requested(99.0))
        link = make()
        link.frame_received(refusal(authenticating(link), -32001), 0.0)
        link.stop_requested(1.0, 2.0)
        self.assertEqual(link.state, "stopped")


class Backoff(SynchronousTestCase):
    def test_s6_full_jitter(self) -> None:
        """delay is uniform from 0 to min(60, 2**attempt) s, from the first retry on."""
        chance = random.Random(3)
        for attempt in range(12):
            limit = min(60.0, 2.0**attempt)
            delays = []
            for _ in range(400):
                jitter = FullJitter(random=chance.random)
                for _ in range(attempt):
                    jitter.next_delay()
                delays.append(jitter.next_delay())
            self.assertTrue(min(delays) >= 0 and max(delays) <= limit, attempt)
            self.assertTrue(0.4 < sum(delays) / len(delays) / limit < 0.6, attempt)

    def test_s6_sixty_seconds_of_active_reset_it(self) -> None:
        """60 s in Active begin anew with the first delay, less does not."""
        for stayed, delay in ((59.9, 4.0), (60.0, 0.5)):
            link = make(chance=0.5)
            link.started(0.0)
            now = 0.0
            for _ in range(3):
                link.peer_lost("refused", now)
                now = link.attempt_at or now
                link.time_passed(now)
            id = kit.sent(link.connected(now))[0]["id"]
            link.frame_received(welcome(id), now)
            link.adopted(0, 0, now)
            link.peer_lost("reset", now + stayed)
            self.assertAlmostEqual((link.attempt_at or 0.0) - now - stayed, delay)
