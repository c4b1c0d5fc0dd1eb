"""A store for tests that records what is appended, fails when told, and waits when told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from twisted.internet.defer import Deferred, fail
from zope.interface import alsoProvides, implementer

from cortextx.interfaces.fleet import (
    Appended,
    Decide,
    EntryFilter,
    Gap,
    GapPlace,
    Histogram,
    HostRecord,
    IHostRegistry,
    ILogStore,
    LogBatch,
    Presence,
    SearchPage,
    StoredEntry,
    StoreStats,
    TailPage,
)
from cortextx.interfaces.fleet_records import (
    IApiTokens,
    IAuditLog,
    IConfigs,
    IMetricStore,
    IProbeRecords,
)
from cortextx.stores.memory import MemoryStore

T = TypeVar("T")


@implementer(ILogStore, IHostRegistry)
class ScriptedStore:
    """Passes everything on to `inner`, except for appends that are held or fail.

    `appended` is what each call of `append` brought, whatever became of it.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self.appended: list[list[LogBatch]] = []
        self._failures: deque[Exception] = deque()
        self._holding = False
        self._held: list[tuple[Sequence[LogBatch], Deferred[list[Appended]]]] = []
        alsoProvides(self, IApiTokens, IAuditLog, IConfigs, IMetricStore, IProbeRecords)

    def __getattr__(self, name: str) -> Any:
        # What is kept beside logs and hosts: the inner store's, as it is.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def fail_next(self, *errors: Exception) -> None:
        """Let the next appends fail, each with one of `errors`."""
        self._failures.extend(errors)

    def hold(self) -> None:
        """Let appends wait until `release`."""
        self._holding = True

    def release(self) -> None:
        """Carry out what was held, in order, and hold no longer."""
        self._holding = False
        held, self._held = self._held, []
        for batches, waiting in held:
            self._append(batches).chainDeferred(waiting)

    @property
    def held(self) -> int:
        """The number of appends that wait."""
        return len(self._held)

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        """See ILogStore."""
        self.appended.append(list(batches))
        if not self._holding:
            return self._append(batches)
        waiting: Deferred[list[Appended]] = Deferred()
        self._held.append((batches, waiting))
        return waiting

    def _append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        if self._failures:
            return fail(self._failures.popleft())
        answer: Deferred[list[Appended]] = self.inner.append(batches)
        return answer

    def search(
        self, which: EntryFilter, limit: int, newest_first: bool = True, cursor: str | None = None
    ) -> Deferred[SearchPage]:
        """See ILogStore."""
        page: Deferred[SearchPage] = self.inner.search(which, limit, newest_first, cursor)
        return page

    def tail(self, which: EntryFilter, after: int, limit: int) -> Deferred[TailPage]:
        """See ILogStore."""
        page: Deferred[TailPage] = self.inner.tail(which, after, limit)
        return page

    def head(self) -> Deferred[int]:
        """See ILogStore."""
        head: Deferred[int] = self.inner.head()
        return head

    def oldest(self) -> Deferred[int]:
        """See ILogStore."""
        oldest: Deferred[int] = self.inner.oldest()
        return oldest

    def restored(self, host_id: str, acked: int, now: int) -> Deferred[Gap | None]:
        """See ILogStore."""
        noted: Deferred[Gap | None] = self.inner.restored(host_id, acked, now)
        return noted

    def gaps(
        self, host_id: str | None = None, after: GapPlace | None = None, limit: int = 1000
    ) -> Deferred[list[Gap]]:
        """See ILogStore."""
        gaps: Deferred[list[Gap]] = self.inner.gaps(host_id, after, limit)
        return gaps

    def histogram(self, which: EntryFilter, buckets: int) -> Deferred[Histogram]:
        """See ILogStore."""
        counted: Deferred[Histogram] = self.inner.histogram(which, buckets)
        return counted

    def context(
        self, entry_id: int, before: int, after: int, same_source: bool = False
    ) -> Deferred[list[StoredEntry]]:
        """See ILogStore."""
        found: Deferred[list[StoredEntry]] = self.inner.context(
            entry_id, before, after, same_source
        )
        return found

    def known_values(
        self, kind: Literal["app", "source"], prefix: str = "", limit: int = 100
    ) -> Deferred[list[str]]:
        """See ILogStore."""
        names: Deferred[list[str]] = self.inner.known_values(kind, prefix, limit)
        return names

    def stats(self) -> Deferred[StoreStats]:
        """See ILogStore."""
        stats: Deferred[StoreStats] = self.inner.stats()
        return stats

    def issue(
        self, name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        row: Deferred[HostRecord] = self.inner.issue(name, host_id, token_hash, expires_at, now)
        return row

    def judge(self, host_id: str, token_hash: bytes, decide: Decide[T]) -> Deferred[T]:
        """See IHostRegistry."""
        verdict: Deferred[T] = self.inner.judge(host_id, token_hash, decide)
        return verdict

    def update(
        self, host_id: str, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        row: Deferred[HostRecord] = self.inner.update(host_id, change)
        return row

    def update_row(
        self, key: int, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        row: Deferred[HostRecord] = self.inner.update_row(key, change)
        return row

    def forget_row(self, key: int) -> Deferred[None]:
        """See IHostRegistry."""
        gone: Deferred[None] = self.inner.forget_row(key)
        return gone

    def forget(self, host_id: str) -> Deferred[None]:
        """See IHostRegistry."""
        gone: Deferred[None] = self.inner.forget(host_id)
        return gone

    def find(self, ref: str) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        rows: Deferred[list[HostRecord]] = self.inner.find(ref)
        return rows

    def list_hosts(self) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        rows: Deferred[list[HostRecord]] = self.inner.list_hosts()
        return rows

    def seen(self, updates: Sequence[Presence]) -> Deferred[None]:
        """See IHostRegistry."""
        done: Deferred[None] = self.inner.seen(updates)
        return done
