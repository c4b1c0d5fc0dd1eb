"""A host's quota: the buckets, and the pushes that a session refuses for it (-32030, F9, F42)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import Gauge
from cortextx.fleet.contract import Code
from cortextx.fleet.server.actions import Ingest
from cortextx.fleet.server.quota import MAX_WAIT_MS, PRUNE_ABOVE, Quotas
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.fleet.server.tokens import Accepted
from tests.fleet.session_case import HOST, SESSION, WALL, SessionCase, hello, plain, push

OTHER = "aaaaaaaa-7e3c-4d2a-9c0e-9bbf5d3a1f01"


class QuotasTests(SynchronousTestCase):
    def test_the_burst_passes_and_then_the_rate(self) -> None:
        """What exceeds the burst is told how long to wait, and then it passes."""
        quotas = Quotas(100, 2.0)
        self.assertEqual([quotas.take("a", 50, 0.0) for _ in range(4)], [0, 0, 0, 0])
        self.assertEqual(quotas.take("a", 50, 0.0), 500)
        self.assertEqual(quotas.take("a", 50, 0.25), 250)
        self.assertEqual(quotas.take("a", 50, 0.5), 0)
        self.assertEqual(quotas.refusals, 2)

    def test_hosts_do_not_share(self) -> None:
        """One host's noise costs another nothing."""
        quotas = Quotas(100, 1.0)
        self.assertEqual(quotas.take("a", 100, 0.0), 0)
        self.assertGreater(quotas.take("a", 1, 0.0), 0)
        self.assertEqual(quotas.take("b", 100, 0.0), 0)

    def test_no_quota(self) -> None:
        """A rate of 0 lets everything pass and keeps nothing."""
        quotas = Quotas(0)
        self.assertEqual([quotas.take("a", 10**9, 0.0) for _ in range(9)], [0] * 9)
        self.assertEqual(quotas.hosts, 0)

    def test_what_was_put_back_is_there(self) -> None:
        """A push that came to nothing for another reason is not charged."""
        quotas = Quotas(100, 1.0)
        quotas.take("a", 100, 0.0)
        quotas.put_back("a", 100)
        self.assertEqual(quotas.take("a", 100, 0.0), 0)
        quotas.put_back("never seen", 5)

    def test_advice_is_bounded(self) -> None:
        """No agent is told to wait for more than a minute, nor for 0 ms."""
        quotas = Quotas(1, 1000.0)
        quotas.take("a", 100_000, 0.0)
        self.assertEqual(quotas.take("a", 1000, 0.0), MAX_WAIT_MS)
        fast = Quotas(10_000_000, 1.0)
        fast.take("a", 10_000_000, 0.0)
        self.assertEqual(fast.take("a", 1, 0.0), 1)

    def test_quiet_hosts_cost_nothing(self) -> None:
        """Buckets that are full again are let go when many others come."""
        quotas = Quotas(100, 1.0)
        for n in range(PRUNE_ABOVE):
            quotas.take(str(n), 100, 0.0)
        self.assertEqual(quotas.hosts, PRUNE_ABOVE)
        quotas.take("late", 1, 1.0)
        self.assertEqual(quotas.hosts, 1)

    def test_busy_hosts_are_kept(self) -> None:
        """A bucket that is not full yet survives, however many hosts there are."""
        quotas = Quotas(100, 1.0)
        for n in range(3 * PRUNE_ABOVE):
            quotas.take(str(n), 100, 0.0)
        self.assertGreater(quotas.take("0", 1, 0.0), 0)

    def test_a_change_fills_the_buckets(self) -> None:
        """Another rate holds from the next push on; the same rate changes nothing."""
        quotas = Quotas(100, 1.0)
        quotas.take("a", 100, 0.0)
        quotas.change(100, 1.0)
        self.assertGreater(quotas.take("a", 1, 0.0), 0)
        quotas.change(200, 1.0)
        self.assertEqual(quotas.take("a", 200, 0.0), 0)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 0.2)), min_size=20, max_size=80))
    def test_the_average_is_kept(self, pushes: list[tuple[int, float]]) -> None:
        """Whatever a host tries, what passes is at most the burst, the rate's share, and
        the last push."""
        quotas, now, passed = Quotas(1000, 1.0), 0.0, 0
        for entries, pause in pushes:
            now += pause
            if quotas.take("a", entries, now) == 0:
                passed += entries
        self.assertLessEqual(passed, 1000 + 1000 * now + 1)


class SessionTests(SessionCase):
    def make(self, quotas: Quotas | None = None, **members: Any) -> ServerSession:
        self.quotas = Quotas(10, 1.0) if quotas is None else quotas
        return ServerSession(SessionSettings(server_version="0"), self.gauge, self.quotas)

    def test_beyond_the_quota_a_push_is_refused_whole(self) -> None:
        """-32030 with retry_after_ms and a fence; nothing of the push is stored (F9, F33, F42)."""
        self.active()
        self.ingested(self.receive(push(2, 1, 10), 100.0))
        self.refused(
            self.receive(push(3, 11, 15), 100.0), 3, Code.QUOTA_EXCEEDED, retry_after_ms=500
        )
        self.assertEqual(self.session.pending, 1)

    def test_behind_a_refusal_is_charged_nothing(self) -> None:
        """What is refused only because of an earlier refusal uses up no quota (F33)."""
        self.active()
        self.ingested(self.receive(push(2, 1, 10), 100.0))
        self.receive(push(3, 11, 15), 100.0)
        self.refused(self.receive(push(4, 16, 20), 100.0), 4, Code.BACKPRESSURE, resend_from=11)
        self.ingested(self.receive(push(5, 11, 15), 100.5))

    def test_a_full_queue_costs_no_quota(self) -> None:
        """What the queue had no room for is charged when it comes again."""
        self.gauge = Gauge(100, 10_000)
        self.active()
        self.gauge.reserve(90)
        self.refused(self.receive(push(2, 1, 5), 100.0), 2, Code.BACKPRESSURE)
        self.gauge.release(90)
        self.ingested(self.receive(push(3, 1, 10), 100.0))

    def test_faults_come_before_the_quota(self) -> None:
        """-32602 and -32008 are told even to who has no quota left (F9)."""
        self.active()
        self.ingested(self.receive(push(2, 1, 10), 100.0))
        self.refused(self.receive(push(3, 11, 12, severity="loud"), 100.0), 3, Code.INVALID_PARAMS)
        self.refused(self.receive(push(4, 11, 1011), 100.0), 4, Code.PAYLOAD_TOO_LARGE)

    def test_the_quota_comes_before_the_queue(self) -> None:
        """F9: quota, then queue."""
        self.active()
        self.ingested(self.receive(push(2, 1, 10), 100.0))
        self.gauge.reserve(20_000_000 - self.gauge.used, beyond_soft=True)
        self.refused(self.receive(push(3, 11, 12), 100.0), 3, Code.QUOTA_EXCEEDED)

    def test_a_reconnect_brings_no_new_quota(self) -> None:
        """The bucket is the host's, not the connection's."""
        self.active()
        self.ingested(self.receive(push(2, 1, 10), 100.0))
        self.session = self.make(self.quotas)
        self.session.opened(100.0)
        self.receive(hello(), 100.0)
        self.session.hello_judged(Accepted(HOST, 10, SESSION), 100.0, WALL)
        answer = plain(self.receive(push(2, 11, 12), 100.0))
        self.assertEqual(answer[0][1], Code.QUOTA_EXCEEDED)

    def test_an_agent_that_does_as_told_loses_nothing(self) -> None:
        """Pauses as told, goes back to the refused seq, and everything passes in order."""
        self.active()
        passed: list[int] = []
        now, first = 100.0, 1
        for id in range(2, 40):
            actions = self.receive(push(id, first, first + 4), now)
            if isinstance(actions[0], Ingest):
                batch = actions[0].batch
                passed += range(batch.seq_start, batch.last + 1)
                first += 5
            else:
                (refusal, fence) = actions
                now += plain([refusal])[0][2]["retry_after_ms"] / 1000
                self.session.pong_received(fence.payload, now)  # type: ignore[union-attr]
        self.assertEqual(passed, list(range(1, first)))
        self.assertGreater(first, 60)
