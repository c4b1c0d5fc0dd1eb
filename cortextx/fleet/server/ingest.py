"""The ingest writer: from the sessions' batches to the store, and the answers back.

One append is in flight at a time. As soon as the store is free, everything that
waits goes in one transaction (bounded), so a lone batch never waits to be joined
by others, and a crowd shares the price of a commit (F10).

If an append fails, its batches fail, and so does everything that queued behind
them: a later push of a host must never be stored after an earlier one was
refused (F33). The agents send them again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from cortextx.errors import StoreClosed, StoreError, in_words

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from cortextx.core.budgets import Gauge
    from cortextx.interfaces.fleet import Appended, ILogStore, LogBatch

MAX_BATCHES = 16
"""The most batches that go into one transaction."""
MAX_ENTRIES = 8_000
"""The most entries of one transaction, unless a single batch has more."""


class Pusher(Protocol):
    """Who pushed a batch: exactly one of these is called for each, in order."""

    def stored(self, key: int, appended: Appended) -> None:
        """The batch is durable (F10)."""

    def not_stored(self, key: int, error: Exception) -> None:
        """Nothing of the batch was stored."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One batch that waits, and who is to hear of it."""

    pusher: Pusher
    key: int
    batch: LogBatch


Outcome = Callable[[], None]


class IngestWriter:
    """Takes batches in order, appends them in groups, answers in order.

    The sessions reserve a batch's size in `gauge` before they give it away; the
    writer releases it when the batch is done with, whatever became of it and of
    its session.
    """

    log = Logger()

    def __init__(
        self,
        store: ILogStore,
        gauge: Gauge,
        *,
        max_batches: int = MAX_BATCHES,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._store = store
        self._gauge = gauge
        self._max_batches = max_batches
        self._max_entries = max_entries
        self._waiting: deque[Pending] = deque()
        self._in_flight: list[Pending] = []
        self._outcomes: deque[Outcome] = deque()
        self._answering = False
        self._closed = False
        self._idle_waits: list[Deferred[None]] = []
        self._commit_waits: set[Deferred[None]] = set()
        self._held: Counter[str] = Counter()
        self._host_waits: dict[str, list[Deferred[None]]] = {}
        self.failing = False
        """Whether the last append failed."""
        self.commits = 0
        self.failures = 0
        self.entries = 0

    @property
    def depth(self) -> int:
        """The number of batches that are not answered yet."""
        return len(self._waiting) + len(self._in_flight)

    def submit(self, pusher: Pusher, key: int, batch: LogBatch) -> None:
        """Take a batch; `pusher` hears of it exactly once, perhaps before this returns."""
        pending = Pending(pusher, key, batch)
        if self._closed:
            self._fail([pending], StoreClosed("the server is stopping"))
            self._answer()
            return
        self._waiting.append(pending)
        self._held[batch.host_id] += 1
        self._start()
        self._answer()

    def next_commit(self) -> Deferred[None]:
        """Fires after the next append that stored something; may be cancelled."""
        wait: Deferred[None] = Deferred(self._commit_waits.discard)
        self._commit_waits.add(wait)
        return wait

    def holds(self, host_id: str) -> bool:
        """Whether a batch of this host is neither stored nor refused yet."""
        return host_id in self._held

    def none_of(self, host_id: str) -> Deferred[None]:
        """Fires when no batch of this host is held: at once, or after what is queued now."""
        if host_id not in self._held:
            return succeed(None)
        wait: Deferred[None] = Deferred()
        self._host_waits.setdefault(host_id, []).append(wait)
        return wait

    def idle(self) -> Deferred[None]:
        """Fires when every batch that was taken has been answered."""
        wait: Deferred[None] = Deferred()
        self._idle_waits.append(wait)
        self._tell_idle()
        return wait

    def close(self) -> Deferred[None]:
        """Refuse new batches; fires when those already taken have been answered."""
        self._closed = True
        return self.idle()

    def _start(self) -> None:
        if self._in_flight or not self._waiting:
            return
        group = self._in_flight = self._take_group()
        try:
            appending = self._store.append([pending.batch for pending in group])
        except Exception as error:
            self.log.failure("the store failed to begin an append")
            self._appended_nothing(group, error)
            return
        appending.addCallbacks(
            self._appended, self._append_failed, callbackArgs=(group,), errbackArgs=(group,)
        )
        appending.addErrback(self._broken)

    def _take_group(self) -> list[Pending]:
        group = [self._waiting.popleft()]
        entries = len(group[0].batch.entries)
        while self._waiting and len(group) < self._max_batches:
            entries += len(self._waiting[0].batch.entries)
            if entries > self._max_entries:
                break
            group.append(self._waiting.popleft())
        return group

    def _appended(self, results: Sequence[Appended], group: list[Pending]) -> None:
        self._in_flight = []
        self.commits += 1
        self.failing = False
        stored = 0
        for pending, appended in zip(group, results, strict=True):
            stored += appended.stored
            self._gauge.release(pending.batch.size)
            self._outcomes.append(_stored(pending, appended))
            self._let_go(pending)
        self.entries += stored
        # The store's thread goes on with the next group while we answer this one.
        self._start()
        self._answer()
        if stored:
            waits, self._commit_waits = self._commit_waits, set()
            for wait in waits:
                wait.callback(None)

    def _append_failed(self, failure: Failure, group: list[Pending]) -> None:
        error = failure.value if isinstance(failure.value, Exception) else StoreError("cancelled")
        if not isinstance(error, StoreError):
            self.log.failure("an append failed in a way no store should", failure)
        else:
            why = in_words(error)
            self.log.error("an append failed, nothing of it was stored: {why}", why=why)
        self._appended_nothing(group, error)

    def _appended_nothing(self, group: list[Pending], error: Exception) -> None:
        self._in_flight = []
        self.failures += 1
        self.failing = True
        behind = list(self._waiting)
        self._waiting.clear()
        self._fail([*group, *behind], error)
        for pending in (*group, *behind):
            self._let_go(pending)
        self._answer()

    def _fail(self, pendings: Sequence[Pending], error: Exception) -> None:
        for pending in pendings:
            self._gauge.release(pending.batch.size)
            self._outcomes.append(_not_stored(pending, error))

    def _let_go(self, pending: Pending) -> None:
        host_id = pending.batch.host_id
        self._held[host_id] -= 1
        if self._held[host_id]:
            return
        del self._held[host_id]
        for wait in self._host_waits.pop(host_id, ()):
            # Told in order with the outcomes, so that nobody is answered in their midst.
            self._outcomes.append(lambda wait=wait: wait.callback(None))  # type: ignore[misc]

    def _answer(self) -> None:
        if self._answering:
            # An outer call is telling the outcomes, in order.
            return
        self._answering = True
        try:
            while self._outcomes:
                tell = self._outcomes.popleft()
                try:
                    tell()
                except Exception:
                    self.log.failure("a session failed to take its batch's outcome")
        finally:
            self._answering = False
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self.depth == 0 and not self._outcomes:
            waits, self._idle_waits = self._idle_waits, []
            for wait in waits:
                wait.callback(None)

    def _broken(self, failure: Failure) -> None:
        self.log.failure("the ingest writer failed", failure)


def _stored(pending: Pending, appended: Appended) -> Outcome:
    return lambda: pending.pusher.stored(pending.key, appended)


def _not_stored(pending: Pending, error: Exception) -> Outcome:
    return lambda: pending.pusher.not_stored(pending.key, error)
