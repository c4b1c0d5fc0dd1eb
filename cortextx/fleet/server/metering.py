"""From a session's metrics.push to the store, and its outcome back (F24).

What a host pushes beyond its share of samples is dropped and counted as such in the
answer: a sample is no log, and waiting would only bring it late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from cortextx.errors import StoreError
from cortextx.fleet.server.quota import SAMPLES_PER_SECOND, Quotas
from cortextx.fleet.server.rows import micros

if TYPE_CHECKING:
    from cortextx.core.budgets import Gauge
    from cortextx.fleet.server.actions import Measure
    from cortextx.interfaces.fleet_records import IMetricStore

BURST_SECONDS = 60.0
"""How much of it may come at once: agents sample once a minute or so."""

Outcome = tuple[int, int] | Exception
"""How many samples are stored and how many dropped; or why none is."""


class Measured(Protocol):
    """Who pushed samples: it is told once for each Measure."""

    def measured(self, key: int, outcome: Outcome) -> None:
        """What became of a push."""


class Meter:
    """Has samples stored; without a store all of them count as dropped.

    The sessions reserve a push's size in `gauge`; it is released here when the
    push is done with, whatever became of it and of its session. `rate` is a host's
    share in samples a second, 0 for any; `clock` gives seconds.
    """

    log = Logger()

    def __init__(
        self,
        store: IMetricStore | None,
        gauge: Gauge,
        clock: Callable[[], float],
        rate: float = SAMPLES_PER_SECOND,
    ) -> None:
        self._store = store
        self._gauge = gauge
        self._clock = clock
        self._quotas = Quotas(rate, BURST_SECONDS)
        self.accepted = 0
        self.dropped = 0

    def change(self, rate: float) -> None:
        """Let another share hold from now on (a reload of settings)."""
        self._quotas.change(rate, BURST_SECONDS)

    def submit(self, pusher: Measured, asked: Measure, now: int) -> None:
        """Store the samples of a push; `now` is µs UTC."""
        done = Deferred.fromCoroutine(self._stored(asked, now))
        done.addCallback(self._tell, pusher, asked)
        done.addErrback(lambda failure: self.log.failure("an answer to samples failed", failure))

    async def _stored(self, asked: Measure, now: int) -> Outcome:
        samples = asked.metrics.samples
        if self._store is None:
            return 0, len(samples)
        if self._quotas.take(asked.host_id, len(samples), self._clock()):
            return 0, len(samples)
        try:
            at = micros(asked.metrics.ts)
            stored = await self._store.store_samples(asked.host_id, at, samples, now)
        except StoreError as error:
            return error
        except Exception as error:
            self.log.failure("samples could not be stored")
            return error
        return stored.accepted, stored.dropped

    def _tell(self, outcome: Outcome, pusher: Measured, asked: Measure) -> None:
        self._gauge.release(asked.size)
        if isinstance(outcome, tuple):
            self.accepted += outcome[0]
            self.dropped += outcome[1]
        pusher.measured(asked.key, outcome)
