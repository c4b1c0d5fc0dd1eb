"""Audits of a host's seqs, and the watch for clones (F13, F14, F37)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.server.audit import PAGE, Audit, AuditRange, every_gap
from cortextx.fleet.server.clones import MAX_HOSTS, SECONDS, SUPERSESSIONS, CloneReport, CloneWatch
from cortextx.interfaces.fleet import Gap

HOST = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
EVICTED = Gap(HOST, 10, 19, 1000, "evicted")
UNKNOWN = Gap(HOST, 40, 40, 2000)
TRUNCATED = Gap(HOST, None, None, 3000, "truncated", "file:/x")


class AuditTests(SynchronousTestCase):
    def look(self, *gaps: Gap, accepted: int = 100, **asked: int) -> Audit:
        found = Audit(accepted, AuditRange(**asked))
        self.taken = found.take(gaps)
        return found

    def test_nothing_missing_is_complete(self) -> None:
        """Without gaps a host is complete."""
        found = self.look()
        self.assertEqual((self.taken, found.missing, found.awaited), ([], 0, 0))
        self.assertTrue(self.look().complete)

    def test_gaps_are_counted(self) -> None:
        """All are told, with how many seqs they hold; one without seqs holds none (F37)."""
        found = self.look(EVICTED, UNKNOWN, TRUNCATED)
        self.assertEqual(self.taken, [EVICTED, UNKNOWN, TRUNCATED])
        self.assertEqual((found.count, found.missing, found.awaited), (3, 11, 0))
        self.assertFalse(found.complete)

    def test_a_range_of_seqs(self) -> None:
        """Only what overlaps it counts, and only as far as it does; both ends belong to it."""
        found = self.look(EVICTED, UNKNOWN, from_seq=19, to_seq=39)
        self.assertEqual((self.taken, found.missing, found.awaited), ([EVICTED], 1, 0))
        self.assertTrue(self.look(EVICTED, UNKNOWN, from_seq=20, to_seq=39).complete)
        self.look(TRUNCATED, from_seq=20, to_seq=39)
        self.assertEqual(self.taken, [TRUNCATED])

    def test_a_span_of_time(self) -> None:
        """`since` is inclusive, `until` exclusive."""
        self.look(EVICTED, UNKNOWN, TRUNCATED, since=1000, until=3000)
        self.assertEqual(self.taken, [EVICTED, UNKNOWN])

    def test_what_has_not_come_is_no_loss_but_not_here(self) -> None:
        """A range beyond accepted_seq is awaited, so it is not called complete."""
        found = self.look(to_seq=105)
        self.assertEqual((found.missing, found.awaited, found.complete), (0, 5, False))
        self.assertEqual(self.look(from_seq=104, to_seq=105).awaited, 2)
        self.assertEqual(self.look(from_seq=50, to_seq=60).awaited, 0)


class PagesTests(SynchronousTestCase):
    def test_no_gap_is_left_out_between_pages(self) -> None:
        """However many there are they come page by page, also from a time on."""
        gaps = [Gap(HOST, n, n, 1000 + n // 7, id=n) for n in range(1, 2 * PAGE + 2)]
        sizes: list[int] = []

        class Store:
            def gaps(self, host_id: str | None, after: Any, limit: int) -> Any:
                found = [gap for gap in gaps if after is None or gap.place > after][:limit]
                sizes.append(len(found))
                return succeed(found)

        async def all_of(asked: AuditRange) -> list[Gap]:
            store: Any = Store()
            return [gap async for page in every_gap(store, HOST, asked) for gap in page]

        def told(asked: AuditRange) -> list[Gap]:
            return self.successResultOf(Deferred.fromCoroutine(all_of(asked)))

        self.assertEqual(told(AuditRange()), gaps)
        self.assertEqual(sizes, [PAGE, PAGE, 1])
        self.assertEqual(told(AuditRange(since=1100)), [g for g in gaps if g.detected_at >= 1100])
        sizes.clear()
        told(AuditRange(until=1001))
        self.assertEqual(sizes, [PAGE], "nothing beyond is read")


class CloneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.watch = CloneWatch()

    def supersede(self, now: float, host_id: str = HOST) -> CloneReport | None:
        return self.watch.superseded(host_id, "10.0.0.1:1", "10.0.0.2:2", now, round(now * 1e6))

    def test_more_than_five_a_minute_is_reported(self) -> None:
        """F14: with where the sessions came from, and it stays to be seen."""
        for n in range(SUPERSESSIONS):
            self.assertIsNone(self.supersede(float(n)))
        report = self.supersede(59.0)
        self.assertEqual(report, CloneReport(59_000_000, 6, ("10.0.0.1:1", "10.0.0.2:2")))
        self.assertEqual(self.watch.report(HOST), report)
        self.assertIsNone(self.supersede(60.0))

    def test_a_flapping_network_is_not(self) -> None:
        """Six that are spread over more than a minute are no clone."""
        for n in range(30):
            self.assertIsNone(self.supersede(n * (SECONDS / SUPERSESSIONS + 1)))
        self.assertIsNone(self.watch.report(HOST))

    def test_hosts_are_watched_apart(self) -> None:
        """One host's supersessions say nothing of another; a forgotten one begins anew."""
        for n in range(SUPERSESSIONS):
            self.supersede(0.0)
            self.assertIsNone(self.supersede(0.0, f"host {n}"))
        self.watch.forget(HOST)
        self.assertIsNone(self.supersede(0.0))
        self.assertIsNone(self.watch.report(None))

    def test_memory_is_bounded(self) -> None:
        """However many hosts flap, only so many are remembered: the latest."""
        for n in range(MAX_HOSTS + 10):
            self.supersede(0.0, str(n))
        self.assertEqual(len(self.watch._hosts), MAX_HOSTS)
