"""How many entries a host may push: a leaky bucket for each (PURE; §5 -32030, F9, F42).

A bucket is the host's, not the connection's, so a reconnect does not fill it.
Hosts that have been quiet long enough for a full bucket cost nothing.
"""

from __future__ import annotations

import math

from cortextx.core.budgets import LeakyBucket

ENTRIES_PER_SECOND = 50_000
"""The default rate of one host, in entries."""
SAMPLES_PER_SECOND = 100
"""The default rate of one host, in samples (F24)."""
BURST_SECONDS = 2.0
"""How much of the rate may come at once; a backlog is replayed in bursts."""
PRUNE_ABOVE = 256
"""With more buckets than this, those that are full again are let go."""
MAX_WAIT_MS = 60_000
"""The longest pause that an agent is advised."""


class Quotas:
    """The buckets of all hosts. `rate` is in entries a second, 0 for no quota.

    `now` is in seconds of the reactor's clock.
    """

    def __init__(
        self, rate: float = ENTRIES_PER_SECOND, burst_seconds: float = BURST_SECONDS
    ) -> None:
        self._rate = rate
        self._burst = rate * burst_seconds
        self._buckets: dict[str, LeakyBucket] = {}
        self._prune_above = PRUNE_ABOVE
        self.refusals = 0

    @property
    def hosts(self) -> int:
        """The number of hosts that a bucket is kept for."""
        return len(self._buckets)

    def change(self, rate: float, burst_seconds: float = BURST_SECONDS) -> None:
        """Let another rate hold from now on, with full buckets (a reload of settings)."""
        if (rate, rate * burst_seconds) != (self._rate, self._burst):
            self._rate = rate
            self._burst = rate * burst_seconds
            self._buckets.clear()

    def take(self, host_id: str, entries: int, now: float) -> int:
        """Charge a push: 0 if it may go on, else the ms to wait; then nothing was charged."""
        if not self._rate:
            return 0
        bucket = self._buckets.get(host_id)
        if bucket is None:
            bucket = self._new_bucket(host_id, now)
        wait = bucket.take(entries, now)
        if not wait:
            return 0
        self.refusals += 1
        return min(MAX_WAIT_MS, max(1, math.ceil(wait * 1000)))

    def put_back(self, host_id: str, entries: int) -> None:
        """A push that was charged is refused for another reason: it is to come again."""
        bucket = self._buckets.get(host_id)
        if bucket is not None:
            bucket.put_back(entries)

    def _new_bucket(self, host_id: str, now: float) -> LeakyBucket:
        if len(self._buckets) >= self._prune_above:
            full = [host for host, bucket in self._buckets.items() if bucket.is_full(now)]
            for host in full:
                del self._buckets[host]
            # Looking at all of them is paid for by as many new ones.
            self._prune_above = max(PRUNE_ABOVE, 2 * len(self._buckets))
        bucket = self._buckets[host_id] = LeakyBucket(self._rate, self._burst)
        return bucket
