"""The first of the riskiest pieces: push window, refusal and gap as two pure machines (F33)."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.delivery import Inbox, Outbox, place
from cortextx.errors import LocalProtocolError, RemoteProtocolError


class Receiver:
    """A store and an Inbox behind two queues, as a server session uses them."""

    def __init__(self, chance: random.Random, refusals: float) -> None:
        self.inbox = Inbox()
        self.chance = chance
        self.refusals = refusals
        self.accepted = 0
        self.stored: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def push(self, key: int, first: int, count: int) -> list[tuple]:
        if not self.inbox.admits(first):
            fence = self.inbox.refused(first)
            return [("refused", key, self.inbox.resend_from), ("ping", fence)]
        if self.chance.random() < self.refusals:
            fence = self.inbox.refused(first)
            return [("refused", key, first), ("ping", fence)]
        placed = place(self.accepted, first, count)
        self.stored.extend(range(first + placed.skip, first + count))
        if placed.gap:
            self.gaps.append(placed.gap)
        self.accepted = placed.high_water
        return [("ack", key, self.accepted)]


def run(seed: int, total: int, window: int, refusals: float, evictions: float = 0.0) -> tuple:
    """Send `total` items through a window, with the two directions delayed at random."""
    chance = random.Random(seed)
    outbox = Outbox(0, window)
    receiver = Receiver(chance, refusals)
    up: deque[tuple] = deque()
    down: deque[tuple] = deque()
    evicted: set[int] = set()
    key = 0
    for _ in range(200_000):
        if outbox.acked == total and not up and not down:
            break
        step = chance.random()
        if step < 0.4 and outbox.may_send() and outbox.next_first <= total:
            first = outbox.next_first
            if chance.random() < evictions and first + 2 < total:
                lost = chance.randint(1, 2)
                evicted.update(range(first, first + lost))
                first += lost
            while first in evicted:
                first += 1
            last = min(total, first + chance.randint(0, 4))
            last = min(last, min((e for e in evicted if e > first), default=last + 1) - 1)
            key += 1
            outbox.sent(key, first, last, 10)
            up.append(("push", key, first, last - first + 1))
        elif step < 0.7 and up:
            message = up.popleft()
            if message[0] == "push":
                down.extend(receiver.push(*message[1:]))
            else:
                receiver.inbox.fence_answered(message[1])
        elif down:
            kind, *rest = down.popleft()
            if kind == "ack":
                outbox.acknowledged(*rest, ceiling=total)
            elif kind == "refused":
                outbox.refused(*rest)
            else:
                up.append(("pong", *rest))
    return outbox, receiver, evicted


class PushWindowTests(SynchronousTestCase):
    """Early test 1 of the design: whatever is refused, stored equals sent."""

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5, 0.9]), st.integers(1, 8))
    def test_stored_is_sent_whatever_is_refused(self, seed: int, rate: float, window: int) -> None:
        outbox, receiver, _ = run(seed, 60, window, rate)
        self.assertEqual(receiver.stored, list(range(1, 61)))
        self.assertEqual(receiver.gaps, [])
        self.assertEqual(outbox.acked, 60)

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.7]))
    def test_only_what_was_evicted_is_a_gap(self, seed: int, rate: float) -> None:
        _, receiver, evicted = run(seed, 60, 4, rate, evictions=0.2)
        lost = {n for first, last in receiver.gaps for n in range(first, last + 1)}
        self.assertEqual(sorted(receiver.stored), receiver.stored)
        self.assertEqual(set(receiver.stored) | lost, set(range(1, 61)))
        self.assertLessEqual(lost, evicted)

    def test_without_the_inbox_a_refusal_would_turn_into_loss(self) -> None:
        """The rule is needed: a receiver that takes what follows a refusal loses items."""
        accepted = place(0, 4, 3).high_water
        self.assertEqual(place(accepted, 1, 3).skip, 3)


class InboxTests(SynchronousTestCase):
    def test_refuses_beyond_a_refusal_until_the_sender_goes_back(self) -> None:
        inbox = Inbox()
        self.assertTrue(inbox.admits(10))
        inbox.refused(10)
        self.assertFalse(inbox.admits(15))
        self.assertEqual(inbox.resend_from, 10)
        self.assertTrue(inbox.admits(10))
        self.assertTrue(inbox.admits(15))

    def test_a_push_below_the_refused_number_ends_the_refusal(self) -> None:
        inbox = Inbox()
        inbox.refused(10)
        self.assertTrue(inbox.admits(3))
        self.assertIsNone(inbox.resend_from)

    def test_the_fence_ends_the_refusal(self) -> None:
        inbox = Inbox()
        fence = inbox.refused(10)
        inbox.fence_answered(fence)
        self.assertTrue(inbox.admits(15))

    def test_an_old_fence_does_not_end_a_newer_refusal(self) -> None:
        inbox = Inbox()
        old = inbox.refused(10)
        self.assertTrue(inbox.admits(10))
        inbox.refused(12)
        inbox.fence_answered(old)
        self.assertFalse(inbox.admits(15))

    def test_only_the_fence_of_the_newest_refusal_counts(self) -> None:
        """What was refused behind the first fence may have been sent before its pong."""
        inbox = Inbox()
        first = inbox.refused(10)
        second = inbox.refused(15)
        self.assertEqual(inbox.resend_from, 10)
        inbox.fence_answered(first)
        self.assertFalse(inbox.admits(20))
        inbox.fence_answered(second)
        self.assertTrue(inbox.admits(20))


class PlaceTests(SynchronousTestCase):
    @given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 20))
    def test_new_items_follow_the_mark_and_gaps_cover_the_rest(
        self, mark: int, first: int, count: int
    ) -> None:
        placed = place(mark, first, count)
        new = list(range(first + placed.skip, first + count))
        self.assertTrue(all(n > mark for n in new))
        self.assertEqual(placed.high_water, max(mark, first + count - 1))
        lost = list(range(placed.gap[0], placed.gap[1] + 1)) if placed.gap else []
        self.assertEqual(lost + new, list(range(mark + 1, placed.high_water + 1)))


class OutboxTests(SynchronousTestCase):
    def test_window_bounds_the_pushes_in_flight(self) -> None:
        outbox = Outbox(0, 2)
        outbox.sent(1, 1, 5, 10)
        outbox.sent(2, 6, 9, 10)
        self.assertFalse(outbox.may_send())
        self.assertEqual((outbox.in_flight, outbox.bytes_in_flight), (2, 20))
        self.assertRaises(LocalProtocolError, outbox.sent, 3, 10, 11, 1)
        outbox.acknowledged(1, 5, 9)
        self.assertTrue(outbox.may_send())

    def test_after_a_refusal_all_in_flight_is_answered_before_resending(self) -> None:
        outbox = Outbox(0, 4)
        outbox.sent(1, 1, 5, 10)
        outbox.sent(2, 6, 9, 10)
        outbox.refused(1)
        self.assertTrue(outbox.settling)
        self.assertFalse(outbox.may_send())
        outbox.refused(2, resend_from=1)
        self.assertTrue(outbox.may_send())
        self.assertEqual(outbox.next_first, 1)

    def test_a_claim_beyond_what_exists_is_the_peers_fault(self) -> None:
        outbox = Outbox(0, 4)
        outbox.sent(1, 1, 5, 10)
        self.assertRaises(RemoteProtocolError, outbox.acknowledged, 1, 6, 5)

    def test_an_ack_may_cover_what_an_earlier_connection_pushed(self) -> None:
        outbox = Outbox(0, 4)
        outbox.sent(1, 1, 5, 10)
        self.assertEqual(outbox.acknowledged(1, 8, 20), 8)
        self.assertEqual(outbox.next_first, 9)

    def test_an_ack_below_the_pushs_end_keeps_the_rest_owed(self) -> None:
        outbox = Outbox(0, 4)
        outbox.sent(1, 1, 5, 10)
        outbox.acknowledged(1, 3, 5)
        self.assertEqual((outbox.acked, outbox.next_first), (3, 4))

    def test_an_unknown_answer_is_the_peers_fault(self) -> None:
        self.assertRaises(RemoteProtocolError, Outbox(0, 4).acknowledged, 7, 0, 0)

    def test_a_new_connection_starts_behind_what_the_receiver_has(self) -> None:
        outbox = Outbox(3, 4)
        outbox.sent(1, 4, 9, 10)
        outbox.fast_forward(6)
        self.assertEqual((outbox.acked, outbox.next_first, outbox.in_flight), (6, 7, 0))
        outbox.fast_forward(2)
        self.assertEqual((outbox.acked, outbox.next_first), (6, 7))
