"""Counters, gauges and buckets hold their bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import ByteCounter, Gauge, LeakyBucket


class ByteCounterTests(SynchronousTestCase):
    def test_the_limit_itself_is_within(self) -> None:
        """1 KiB may come before the hello, one byte more may not (F3)."""
        counter = ByteCounter(1024)
        self.assertTrue(counter.add(1000))
        self.assertEqual(counter.left, 24)
        self.assertTrue(counter.add(24))
        self.assertFalse(counter.exceeded)
        self.assertFalse(counter.add(1))
        self.assertTrue(counter.exceeded)
        self.assertEqual((counter.left, counter.total), (0, 1025))


class GaugeTests(SynchronousTestCase):
    def test_beyond_soft_nothing_is_held_unless_asked_for(self) -> None:
        gauge = Gauge(soft=10, hard=20)
        self.assertEqual(gauge.reserve(8), "ok")
        self.assertEqual(gauge.reserve(8), "soft")
        self.assertEqual(gauge.used, 8)
        self.assertEqual(gauge.reserve(8, beyond_soft=True), "soft")
        self.assertEqual((gauge.used, gauge.above_soft), (16, True))
        self.assertEqual(gauge.reserve(5, beyond_soft=True), "hard")
        self.assertEqual(gauge.used, 16)

    def test_what_is_released_can_be_reserved_again(self) -> None:
        gauge = Gauge(soft=10, hard=20)
        gauge.reserve(10)
        self.assertEqual(gauge.reserve(1), "soft")
        gauge.release(10)
        self.assertEqual(gauge.reserve(10), "ok")

    def test_an_empty_gauge_takes_one_big_item(self) -> None:
        """An item above the soft mark would else be refused for ever."""
        gauge = Gauge(soft=10, hard=20)
        self.assertEqual(gauge.reserve(20), "ok")
        gauge.release(20)
        self.assertEqual(gauge.reserve(21), "hard")

    def test_releasing_more_than_is_held_is_a_bug(self) -> None:
        gauge = Gauge(soft=10, hard=20)
        gauge.reserve(3)
        self.assertRaises(ValueError, gauge.release, 4)
        self.assertRaises(ValueError, gauge.release, -1)
        self.assertRaises(ValueError, Gauge, soft=5, hard=4)

    @given(st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.booleans())))
    def test_what_is_held_is_what_was_granted_and_never_above_hard(self, steps: list) -> None:
        gauge = Gauge(soft=10, hard=20)
        held: list[int] = []
        for amount, beyond, give_back in steps:
            if give_back and held:
                gauge.release(held.pop())
            level = gauge.reserve(amount, beyond_soft=beyond)
            if level == "ok" or (level == "soft" and beyond):
                held.append(amount)
            self.assertEqual(gauge.used, sum(held))
            self.assertLessEqual(gauge.used, 20)


class LeakyBucketTests(SynchronousTestCase):
    def test_a_burst_passes_and_then_the_rate_holds(self) -> None:
        bucket = LeakyBucket(rate=2.0, burst=4.0)
        self.assertEqual([bucket.take(1, 100.0) for _ in range(5)], [0.0, 0.0, 0.0, 0.0, 0.5])
        self.assertEqual(bucket.take(1, 100.5), 0.0)
        self.assertEqual(bucket.take(1, 100.5), 0.5)

    def test_a_refused_amount_costs_nothing(self) -> None:
        bucket = LeakyBucket(rate=1.0, burst=2.0)
        bucket.take(2, 0.0)
        for _ in range(10):
            self.assertEqual(bucket.take(2, 0.0), 2.0)
        self.assertEqual(bucket.take(2, 2.0), 0.0)

    def test_an_amount_beyond_the_burst_passes_and_is_paid_for_later(self) -> None:
        bucket = LeakyBucket(rate=1.0, burst=2.0)
        self.assertEqual(bucket.take(10, 0.0), 0.0)
        self.assertEqual(bucket.take(1, 0.0), 9.0)

    def test_a_clock_that_steps_back_adds_nothing(self) -> None:
        bucket = LeakyBucket(rate=1.0, burst=1.0)
        bucket.take(1, 100.0)
        self.assertEqual(bucket.take(1, 50.0), 1.0)
        self.assertEqual(bucket.take(1, 100.0), 1.0)

    @settings(max_examples=60)
    @given(st.floats(0.01, 1e3), st.floats(1, 1e3), st.lists(st.floats(0.01, 1e3), max_size=20))
    def test_who_waits_as_told_is_let_in(self, rate: float, burst: float, amounts: list) -> None:
        bucket = LeakyBucket(rate, burst)
        now = 0.0
        for amount in amounts:
            wait = bucket.take(amount, now)
            if wait:
                now += wait
                self.assertEqual(bucket.take(amount, now), 0.0)

    def test_what_is_put_back_can_be_taken_again(self) -> None:
        """Up to the burst and no further, a debt included."""
        bucket = LeakyBucket(rate=1.0, burst=2.0)
        bucket.take(2, 0.0)
        bucket.put_back(1)
        self.assertEqual(bucket.take(1, 0.0), 0.0)
        bucket.put_back(100)
        self.assertEqual(bucket.take(2, 0.0), 0.0)
        self.assertEqual(bucket.take(1, 0.0), 1.0)

    def test_it_is_full_once_all_is_made_up_for(self) -> None:
        """A new one is full, one that was used is after as long as its rate takes."""
        bucket = LeakyBucket(rate=1.0, burst=2.0)
        self.assertTrue(bucket.is_full(0.0))
        bucket.take(5, 0.0)
        self.assertFalse(bucket.is_full(4.9))
        self.assertTrue(bucket.is_full(5.0))
        self.assertEqual(bucket.take(2, 4.0), 1.0)
