"""A peer is given up after three unanswered pings, or after a silence."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.liveness import Dead, Ping, Pinger, Quiet


def ping(pinger: Pinger, now: float) -> bytes:
    """The payload of the ping that must be due now."""
    answer = pinger.time_passed(now)
    assert isinstance(answer, Ping), answer
    return answer.payload


class PingerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.pinger = Pinger(interval=20.0, allowed=3)
        self.pinger.started(100.0)

    def test_pings_go_out_every_interval(self) -> None:
        self.assertEqual(self.pinger.deadline, 120.0)
        self.assertIsNone(self.pinger.time_passed(119.9))
        first = ping(self.pinger, 120.0)
        self.assertEqual(self.pinger.deadline, 140.0)
        self.assertIsNone(self.pinger.time_passed(120.1))
        self.pinger.ponged(first, 120.2)
        self.assertNotEqual(ping(self.pinger, 140.0), first)

    def test_three_unanswered_pings_in_a_row_are_the_end(self) -> None:
        """Pings at 20, 40, 60 s; the end comes when the fourth would be due (F21)."""
        for now in (120.0, 140.0, 160.0):
            ping(self.pinger, now)
        self.assertIsNone(self.pinger.time_passed(179.9))
        self.assertEqual(self.pinger.time_passed(180.0), Dead(3))
        self.assertIsNone(self.pinger.time_passed(200.0))
        self.assertIsNone(self.pinger.deadline)

    def test_only_consecutive_misses_count(self) -> None:
        now = 100.0
        for _ in range(5):
            ping(self.pinger, now + 20)
            ping(self.pinger, now + 40)
            third = ping(self.pinger, now + 60)
            self.pinger.ponged(third, now + 61)
            now += 60
        self.assertEqual(self.pinger.missed, 0)

    def test_only_a_matching_pong_counts(self) -> None:
        """Unsolicited, repeated and forged pongs save nobody (F21)."""
        first = ping(self.pinger, 120.0)
        self.assertEqual(self.pinger.ponged(first, 120.5), 0.5)
        for now in (140.0, 160.0, 180.0):
            ping(self.pinger, now)
            for payload in (first, b"", b"alive:", b"alive:99", b"alive:-1", b"1", b"\xff" * 125):
                self.assertIsNone(self.pinger.ponged(payload, now))
        self.assertEqual(self.pinger.time_passed(200.0), Dead(3))

    def test_a_pong_to_the_newest_ping_answers_the_older_ones(self) -> None:
        """A peer may answer only the newest of several (RFC 6455 §5.5.3)."""
        first = ping(self.pinger, 120.0)
        second = ping(self.pinger, 140.0)
        self.assertEqual(self.pinger.ponged(second, 141.0), 1.0)
        self.assertEqual(self.pinger.missed, 0)
        self.assertIsNone(self.pinger.ponged(first, 142.0))

    def test_a_late_pong_to_an_older_ping_counts_for_that_one(self) -> None:
        first = ping(self.pinger, 120.0)
        ping(self.pinger, 140.0)
        ping(self.pinger, 160.0)
        self.assertEqual(self.pinger.ponged(first, 165.0), 45.0)
        self.assertEqual(self.pinger.missed, 2)
        ping(self.pinger, 180.0)
        self.assertEqual(self.pinger.time_passed(200.0), Dead(3))

    def test_a_process_that_slept_pings_once_and_waits(self) -> None:
        ping(self.pinger, 1000.0)
        self.assertIsNone(self.pinger.time_passed(1000.0))
        self.assertEqual(self.pinger.deadline, 1020.0)

    def test_the_first_call_starts_the_clock_where_nothing_else_did(self) -> None:
        pinger = Pinger(interval=20.0)
        self.assertIsNone(pinger.deadline)
        self.assertIsNone(pinger.time_passed(5.0))
        self.assertEqual(pinger.deadline, 25.0)


class QuietTests(SynchronousTestCase):
    def test_silence_of_the_timeout_expires_it(self) -> None:
        """70 s without a ping end a connection, each ping starts anew (F36)."""
        quiet = Quiet(70.0)
        quiet.heard(10.0)
        self.assertEqual(quiet.deadline, 80.0)
        self.assertFalse(quiet.expired(79.9))
        quiet.heard(30.0)
        self.assertFalse(quiet.expired(99.9))
        self.assertTrue(quiet.expired(100.0))

    def test_it_waits_for_nothing_until_armed_and_after_stop(self) -> None:
        quiet = Quiet(30.0)
        self.assertFalse(quiet.expired(1e9))
        quiet.heard(0.0)
        quiet.stop()
        self.assertIsNone(quiet.deadline)
        self.assertFalse(quiet.expired(1e9))
