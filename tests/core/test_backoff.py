"""Reconnecting is spread by full jitter and remembers a long-lived connection (§6)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter


class FullJitterTests(SynchronousTestCase):
    def test_the_ceiling_doubles_up_to_the_cap(self) -> None:
        jitter = FullJitter(random=lambda: 0.5)
        delays = [jitter.next_delay() for _ in range(8)]
        self.assertEqual(delays, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])
        self.assertEqual(jitter.attempt, 8)

    def test_the_first_retry_is_drawn_too(self) -> None:
        """Hosts that lost one server at one moment do not return at one moment."""
        chance = random.Random(1)
        first = {FullJitter(random=chance.random).next_delay() for _ in range(100)}
        self.assertEqual(len(first), 100)
        self.assertLess(max(first), 1.0)
        self.assertLess(min(first), 0.1)

    @given(st.integers(0, 2**32), st.integers(0, 2000))
    def test_delays_stay_between_0_and_the_cap(self, seed: int, attempts: int) -> None:
        jitter = FullJitter(random=random.Random(seed).random)
        for attempt in range(attempts):
            ceiling = min(60.0, 2.0 ** min(attempt, 10))
            delay = jitter.next_delay()
            self.assertTrue(0.0 <= delay < ceiling, delay)

    def test_a_minute_of_life_resets_the_count_and_less_does_not(self) -> None:
        jitter = FullJitter(random=lambda: 0.5)
        for _ in range(5):
            jitter.next_delay()
        jitter.stayed_up(59.9)
        self.assertEqual(jitter.attempt, 5)
        jitter.stayed_up(60.0)
        self.assertEqual(jitter.attempt, 0)
        self.assertEqual(jitter.next_delay(), 0.5)

    def test_exhaust_goes_to_the_longest_backoff(self) -> None:
        """Errors that will not mend soon start at the cap (F34, F35), until a reset."""
        jitter = FullJitter(random=lambda: 0.5)
        jitter.exhaust()
        self.assertEqual(jitter.next_delay(), 30.0)
        jitter.reset()
        self.assertEqual(jitter.next_delay(), 0.5)
