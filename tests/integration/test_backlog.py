"""A41: a start's time and memory do not follow the backlog. bench.backlog has full sizes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.backlogs import start_on

MB = 1_000_000


class BacklogTests(SynchronousTestCase):
    def test_a41_ten_times_the_backlog_starts_as_soon_and_as_small(self) -> None:
        """20 MB against 200 MB: the time until the agent answers, its memory then, and its
        peak while it sends are the same, give or take what a busy machine adds."""
        small = start_on(self, 20 * MB, 3.0)
        large = start_on(self, 200 * MB, 3.0)
        self.assertLess(large.ready_s / small.ready_s, 1.7, (small, large))
        self.assertLess(large.before_mb / small.before_mb, 1.1, (small, large))
        self.assertLess(large.peak_mb / small.peak_mb, 1.15, (small, large))
        self.assertLess(large.peak_mb, 90, (small, large))
