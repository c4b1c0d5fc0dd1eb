"""The one thread that writes, and what it does when nothing waits.

Jobs run in the order in which they were put. An answer is delivered as soon as
its transaction is durable; only then does the thread look after the full-text
index, the write-ahead log and merging. Indexing is forced once it is ROWS_BEHIND
or SECONDS_BEHIND behind (F38 allows 2 s), else it waits for an idle moment.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from cortextx.errors import CortexError, StoreClosed, StoreError
from cortextx.interfaces.fleet import Appended, LogBatch
from cortextx.stores.retention import Retention
from cortextx.stores.sqlite_acts import ActTables
from cortextx.stores.sqlite_configs import ConfigTables
from cortextx.stores.sqlite_file import as_store_error, check_room, open_writer
from cortextx.stores.sqlite_hosts import HostTable
from cortextx.stores.sqlite_lanes import Reactor
from cortextx.stores.sqlite_metrics import MetricTables
from cortextx.stores.sqlite_retention import RetentionWork
from cortextx.stores.sqlite_segments import SegmentLimits, SegmentTables

T = TypeVar("T")

ROWS_BEHIND = 16_384
"""Rows without full-text index from which on indexing goes before appending."""
ROWS_WORTH = 4096
"""Rows that are worth a transaction of indexing in an idle moment."""
SECONDS_BEHIND = 1.0
"""The longest time that a row stays without full-text index on purpose."""
QUIET_SECONDS = 0.2
"""How long no job came before merging begins: a gap between two appends is no idle moment."""
RETRY_SECONDS = 5.0
"""The pause after indexing, merging or a checkpoint failed."""
PRESS_SECONDS = 0.1
"""How long appends wait for retention at a time where the store is well beyond its bound."""
CHECKPOINT_BYTES = 24 * 1024 * 1024
"""Bytes of the write-ahead log, as estimated, after which it is written back."""
IDLE_CHECKPOINT_BYTES = 4 * 1024 * 1024
"""The same for an idle moment."""
WAL_LARGE = 65_536
"""Pages of the log (256 MiB) at which readers are waited for, to start it anew."""
WAL_FACTOR = 3
"""Bytes in the write-ahead log for each byte of a batch, full-text index included."""


class WritingThread:
    """Owns the writing connection. All public methods are the reactor thread's."""

    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        path: str,
        limits: SegmentLimits,
        max_bytes: int | None,
        *,
        retention: Retention,
        reserve: int,
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._reactor = reactor
        self._path = path
        self._limits = limits
        self._max_bytes = max_bytes
        self._retention = retention
        self._reserve = reserve
        self._now = now
        self._clock = clock
        self._queue: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._accepting = False
        self._ready: Deferred[None] = Deferred()
        self._ended: Deferred[None] = Deferred()
        self._unwritten = 0
        self._appended = 0
        self._last_job = 0.0
        self._behind_since: float | None = None
        self._retry_at = 0.0
        self.head = 0
        """The id of the newest entry that is durable."""
        self.backlog = 0
        """Rows that the full-text index does not hold yet."""
        self.excess = 0
        """Bytes beyond the bound about which retention can do nothing."""

    def start(self) -> Deferred[None]:
        """Open the database on the thread; fails with SchemaTooNew or StoreError."""
        self._accepting = True
        self._thread.start()
        return self._ready

    def put(self, job: Callable[[WritingThread], T]) -> Deferred[T]:
        """Run a job on the thread; fires when what it wrote is durable."""
        if not self._accepting:
            return fail(StoreClosed("the store is not open"))
        answer: Deferred[T] = Deferred()
        self._queue.put((lambda: job(self), answer))
        return answer

    def stop(self) -> Deferred[None]:
        """Do what was put, close the database; fires when the thread has ended."""
        if self._accepting:
            self._accepting = False
            self._queue.put(None)
        return self._ended

    # From here on all runs on the thread.

    def append(self, batches: Sequence[LogBatch]) -> list[Appended]:
        """Store batches (a job); whatever goes wrong is a StoreError."""
        size = sum(batch.size or 400 * len(batch.entries) for batch in batches)
        if self._reserve:
            # A tenth of a second of appends is more than a small reserve: so before each one.
            check_room(self._path, self._reserve + WAL_FACTOR * size)
        try:
            results = self.segments.append(batches)
        except (sqlite3.Error, CortexError):
            raise
        except Exception as error:
            raise StoreError(f"an entry cannot be stored: {type(error).__name__}") from error
        self._appended = sum(answer.stored for answer in results)
        self._wrote(size)
        return results

    def retain(self, retention: Retention, reserve: int | None) -> None:
        """Keep things for as long as this says, and so many bytes of the disk free (a job)."""
        if reserve is not None:
            self._reserve = reserve
        self._limit_segments(retention)
        self.retention.retention = retention
        self.retention.look()

    def _limit_segments(self, retention: Retention) -> None:
        """Have segments end where dropping one is a small part of the bound."""
        bytes = min(self._limits.bytes, retention.segment_bytes or self._limits.bytes)
        self.segments.limits = replace(self._limits, bytes=bytes)

    def _run(self) -> None:
        try:
            try:
                self._connection = open_writer(self._path, self._now(), self._max_bytes)
                self.segments = SegmentTables(self._connection, self._clock)
                self._limit_segments(self._retention)
                self.hosts = HostTable(self._connection, self.segments.host_changed)
                self.metrics = MetricTables(self._connection)
                self.acts = ActTables(self._connection)
                self.configs = ConfigTables(self._connection)
                self.retention = RetentionWork(
                    self._connection,
                    self.segments,
                    self.metrics,
                    self._retention,
                    self._now,
                    self._clock,
                )
            except sqlite3.Error as error:
                raise as_store_error(error) from error
        except Exception:
            self._accepting = False
            self._reactor.callFromThread(self._ready.errback, Failure())
            self._reactor.callFromThread(self._ended.callback, None)
            return
        self._look()
        self._reactor.callFromThread(self._ready.callback, None)
        try:
            self._work()
        except Exception:
            self.log.failure("the store's writer stopped by a fault of ours")
        finally:
            self._accepting = False
            self._refuse_rest()
            self._close()
            self._reactor.callFromThread(self._ended.callback, None)

    def _work(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=self._patience())
            except Empty:
                self._in_peace(self._idle)
                continue
            if job is None:
                return
            self._do(*job)
            self._in_peace(self._between)

    def _do(self, job: Callable[[], Any], answer: Deferred[Any]) -> None:
        result: Any
        try:
            result = job()
        except sqlite3.Error as error:
            result = Failure(as_store_error(error))
        except Exception:
            result = Failure()
        self._look()
        self._last_job = self._clock()
        self._reactor.callFromThread(answer.callback, result)

    def _look(self) -> None:
        self.head = self.segments.head
        self.backlog = self.segments.backlog
        if not self.backlog:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock()

    def _patience(self) -> float:
        """Seconds to wait for a job before there is something else to do."""
        now = self._clock()
        if now < self._retry_at:
            return self._retry_at - now
        if self.backlog >= ROWS_WORTH:
            return 0.0
        if self.segments.merge_due(idle=True):
            return max(0.0, self._last_job + QUIET_SECONDS - now)
        patience = self.retention.patience()
        if self._behind_since is not None:
            return max(0.0, min(patience, self._behind_since + SECONDS_BEHIND - now))
        return min(patience, 1.0) if self._unwritten >= IDLE_CHECKPOINT_BYTES else patience

    def _in_peace(self, work: Callable[[], None]) -> None:
        """Do housekeeping; if it fails, say so and leave it alone for a while."""
        if self._clock() < self._retry_at:
            return
        try:
            work()
        except sqlite3.Error as error:
            self._retry_at = self._clock() + RETRY_SECONDS
            self.log.error(
                "the store's housekeeping failed and will be tried again: {error}",
                error=as_store_error(error),
            )
        self._look()

    def _between(self) -> None:
        """After a job, while others may wait."""
        if self._late() or self.backlog >= ROWS_BEHIND:
            self._catch_up()
        if self.segments.merge_due(idle=False):
            self.segments.merge_step()
        if self.retention.due(idle=False):
            self._retain()
            until = self._clock() + PRESS_SECONDS
            while self.retention.pressing and self._clock() < until:
                self._retain()
        if self._unwritten >= CHECKPOINT_BYTES:
            self._checkpoint()

    def _idle(self) -> None:
        if self.backlog >= ROWS_WORTH or self._late():
            self._index()
        elif self.segments.merge_due(idle=True):
            self.segments.merge_step()
            self._wrote(0)
        elif self.retention.due(idle=True):
            self._retain()
            if self._unwritten >= CHECKPOINT_BYTES or not self.retention.working:
                self._checkpoint()
        elif self.backlog:
            self._index()
        else:
            self._checkpoint()

    def _retain(self) -> None:
        self._unwritten += self.retention.step()
        excess = self.retention.excess
        if excess and not self.excess:
            self.log.warn(
                "the store holds {excess} bytes more than max_mib allows: what is left is the"
                " newest entries, or samples, probe results, acts and gaps, which go by their days",
                excess=excess,
            )
        self.excess = excess

    def _late(self) -> bool:
        """Whether a row has waited for the full-text index for as long as it should."""
        since = self._behind_since
        return since is not None and self._clock() - since >= SECONDS_BEHIND

    def _catch_up(self) -> None:
        """Index faster than rows come in, without making them wait for all of a backlog."""
        enough = 2 * self._appended
        fed = self._index()
        while self.segments.backlog >= ROWS_BEHIND and fed < enough:
            fed += self._index()

    def _index(self) -> int:
        fed = self.segments.index_chunk()
        if fed:
            self._wrote(fed * 50)
            # What is left came later than what was fed.
            self._behind_since = None
        return fed

    def _wrote(self, size: int) -> None:
        self._unwritten += WAL_FACTOR * size + 65_536

    def _checkpoint(self) -> None:
        self._unwritten = 0
        _, pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if pages >= WAL_LARGE:
            # Readers kept it from starting anew; none of them lasts long.
            self._connection.execute("PRAGMA busy_timeout = 200")
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            self._connection.execute("PRAGMA busy_timeout = 5000")

    def _refuse_rest(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                return
            if job is not None:
                error = Failure(StoreClosed("the store was closed"))
                self._reactor.callFromThread(job[1].callback, error)

    def _close(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error as error:
            self.log.error("closing the database failed: {error}", error=as_store_error(error))
