"""The SQLite store: logs and host registry in one file, beside the reactor.

One thread writes (`sqlite_writer`), a few read (`sqlite_lanes`); this is their
face on the reactor's thread. Nothing is opened before `start`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from cortextx.errors import StoreClosed
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
    T,
    TailPage,
)
from cortextx.stores import sqlite_counts, sqlite_gaps, sqlite_known
from cortextx.stores.retention import Retention
from cortextx.stores.sqlite_aside import LongWork
from cortextx.stores.sqlite_backup import BackupMade, Verified, backup, verify
from cortextx.stores.sqlite_beside import SqliteBeside
from cortextx.stores.sqlite_damage import Damage
from cortextx.stores.sqlite_lanes import ReadingLane, as_reactor
from cortextx.stores.sqlite_segments import SegmentLimits
from cortextx.stores.sqlite_writer import WritingThread

SEARCH_NICENESS = 10
"""How far searches stand back for ingest: a scan gets what is left of the processor, and a
tenth of it where nothing is."""


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """How a store behaves.

    `search_seconds` bound a search and `read_seconds` every other read, waiting
    included. `max_bytes` is the largest database file, beyond which appends fail
    with StoreFull; None for no limit but the disk's. While the disk has less than
    `reserve` bytes free, appends fail with StoreFull too.
    """

    segments: SegmentLimits = field(default_factory=SegmentLimits)
    search_threads: int = 2
    search_seconds: float = 10.0
    read_seconds: float = 10.0
    waiting_searches: int = 64
    waiting_reads: int = 1024
    max_bytes: int | None = None
    retention: Retention = field(default_factory=Retention)
    reserve: int = 32 * 1024 * 1024


def wall_clock() -> int:
    """Now, µs UTC."""
    return time.time_ns() // 1000


@implementer(ILogStore, IHostRegistry)
class SqliteStore(SqliteBeside):
    """All of the server's stores over one SQLite file.

    `reactor` needs callFromThread and callLater. `now` is the wall clock (µs
    UTC), `clock` seconds that only grow; both may be asked on other threads.
    Searches and the other reads have threads of their own, so that a slow search
    holds up no tail, and neither ever holds up the writer.
    """

    def __init__(
        self,
        reactor: object,
        path: str,
        settings: SqliteSettings = SqliteSettings(),
        *,
        now: Callable[[], int] = wall_clock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        on = as_reactor(reactor)
        self.path = path
        self._now = now
        self._writer = WritingThread(
            on,
            path,
            settings.segments,
            settings.max_bytes,
            retention=settings.retention,
            reserve=settings.reserve,
            now=now,
            clock=clock,
        )
        self._damage = Damage()
        self._searches = ReadingLane(
            on,
            path,
            "store-search",
            threads=settings.search_threads,
            seconds=settings.search_seconds,
            most=settings.waiting_searches,
            damage=self._damage,
            niceness=SEARCH_NICENESS,
        )
        self._reads = ReadingLane(
            on,
            path,
            "store-read",
            threads=1,
            seconds=settings.read_seconds,
            most=settings.waiting_reads,
            damage=self._damage,
        )
        self._aside = LongWork(on)
        self._state = "new"

    def start(self) -> Deferred[None]:
        """Open the file, making or upgrading it; fires when the store can be used.

        Fails with SchemaTooNew, StoreFull or another StoreError.
        """
        self._state = "open"
        return self._writer.start().addCallback(self._opened)

    def stop(self) -> Deferred[None]:
        """Finish what was asked of the writer, give up what was asked of readers.

        Fires when all threads have ended and the file is closed.
        """
        if self._state == "new":
            return succeed(None)
        self._state = "closed"
        reads, searches, aside = self._reads.stop(), self._searches.stop(), self._aside.stop()
        # The last connection to close empties the write-ahead log: the writer's.
        reads.addCallback(lambda _: searches).addCallback(lambda _: aside)
        return reads.addCallback(lambda _: self._writer.stop())

    @property
    def backlog(self) -> int:
        """Entries that are not in the full-text index yet (F38)."""
        return self._writer.backlog

    # ILogStore

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        """See ILogStore."""
        return self._writer.put(lambda writer: writer.append(batches))

    def search(
        self, which: EntryFilter, limit: int, newest_first: bool = True, cursor: str | None = None
    ) -> Deferred[SearchPage]:
        """See ILogStore. A page may end before `limit` where entries are large."""
        return self._searches.ask(lambda r: r.search(which, limit, newest_first, cursor))

    def tail(self, which: EntryFilter, after: int, limit: int) -> Deferred[TailPage]:
        """See ILogStore. An `after` beyond the head (of a restored store) is the head."""
        return self._reads.ask(lambda reader: reader.tail(which, after, limit))

    def head(self) -> Deferred[int]:
        """See ILogStore."""
        if self._state != "open":
            return fail(StoreClosed("the store is not open"))
        return succeed(self._writer.head)

    def oldest(self) -> Deferred[int]:
        """See ILogStore."""
        return self._reads.ask(lambda reader: reader.oldest())

    def gaps(
        self, host_id: str | None = None, after: GapPlace | None = None, limit: int = 1000
    ) -> Deferred[list[Gap]]:
        """See ILogStore."""
        return self._reads.ask(
            lambda r: r.read(lambda c: sqlite_gaps.gaps(c, host_id, after, limit))
        )

    def restored(self, host_id: str, acked: int, now: int) -> Deferred[Gap | None]:
        """See ILogStore."""
        return self._writer.put(lambda w: w.segments.restored(host_id, acked, now))

    def histogram(self, which: EntryFilter, buckets: int) -> Deferred[Histogram]:
        """See ILogStore."""
        return self._searches.ask(lambda reader: reader.histogram(which, buckets))

    def context(
        self, entry_id: int, before: int, after: int, same_source: bool = False
    ) -> Deferred[list[StoredEntry]]:
        """See ILogStore."""
        return self._searches.ask(
            lambda reader: reader.context(entry_id, before, after, same_source)
        )

    def known_values(
        self, kind: Literal["app", "source"], prefix: str = "", limit: int = 100
    ) -> Deferred[list[str]]:
        """See ILogStore."""
        return self._reads.ask(
            lambda r: r.read(lambda c: sqlite_known.known_values(c, kind, prefix, limit))
        )

    def stats(self) -> Deferred[StoreStats]:
        """See ILogStore."""
        counted = self._reads.ask(lambda r: r.read(lambda c: sqlite_counts.stats(c, self.path)))
        return counted.addCallback(lambda stats: self._counted(stats))

    def _counted(self, stats: StoreStats) -> StoreStats:
        """With what is not in the file."""
        return replace(stats, damaged=self._damage.rows, excess=self._writer.excess)

    def set_retention(self, retention: Retention, reserve: int | None = None) -> Deferred[None]:
        """Change what is kept for how long, and the disk's reserve (bytes) if given.

        Fires when the writer has taken it up.
        """
        return self._writer.put(lambda writer: writer.retain(retention, reserve))

    def backup(self, target: str) -> Deferred[BackupMade]:
        """Copy the running store to a new file; fails with StoreError or StoreFull."""
        return self._aside.run(lambda on: backup(self.path, target, lambda done: on()))

    def verify(self, deep: bool = True) -> Deferred[Verified]:
        """Check the running store's file."""
        return self._aside.run(lambda on: verify(self.path, deep, on))

    # IHostRegistry

    def issue(
        self, name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return self._writer.put(
            lambda writer: writer.hosts.issue(name, host_id, token_hash, expires_at, now)
        )

    def judge(self, host_id: str, token_hash: bytes, decide: Decide[T]) -> Deferred[T]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.judge(host_id, token_hash, decide))

    def update(
        self, host_id: str, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.update(host_id, change))

    def update_row(
        self, key: int, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.update_row(key, change))

    def forget(self, host_id: str) -> Deferred[None]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.forget(host_id, self._now()))

    def forget_row(self, key: int) -> Deferred[None]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.forget_row(key, self._now()))

    def find(self, ref: str) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        return self._reads.ask(lambda reader: reader.find(ref))

    def list_hosts(self) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        return self._reads.ask(lambda reader: reader.list_hosts())

    def seen(self, updates: Sequence[Presence]) -> Deferred[None]:
        """See IHostRegistry."""
        return self._writer.put(lambda writer: writer.hosts.seen(updates))

    def _opened(self, _: None) -> None:
        self._reads.start()
        self._searches.start()
