"""Dropping a segment under load: how long appends wait, and whether the file shrinks.

Three segments are filled, then batches are appended at a steady rate, first
alone, then while retention drops the oldest segment. Prints the time that an
append takes (p50, p99, worst) in both, and the size of the file before and after.

    python -m bench.retention [--rows N] [--rate ENTRIES_PER_SECOND]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any

import msgspec
from twisted.internet import task
from twisted.internet.defer import Deferred

from bench.workload import entries
from cortextx.fleet.contract import LogEntry
from cortextx.interfaces.fleet import LogBatch
from cortextx.stores.retention import Retention
from cortextx.stores.sqlite import SqliteSettings, SqliteStore
from cortextx.stores.sqlite_segments import SegmentLimits

HOST = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
BATCH = 1000
_decode = msgspec.json.Decoder(list[LogEntry])


def batch(first: int) -> LogBatch:
    """The batch of BATCH entries from the seq `first`."""
    made = _decode.decode(msgspec.json.encode(list(entries(1, first, BATCH))))
    return LogBatch(HOST, first, made, time.time_ns() // 1000, 320 * BATCH)


def figures(times: list[float]) -> str:
    """p50, p99 and the worst, in ms."""
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return (
        f"p50 {times[len(times) // 2] * 1e3:6.1f} ms  p99 {p99 * 1e3:6.1f} ms"
        f"  worst {times[-1] * 1e3:6.1f} ms  ({len(times)} appends)"
    )


class Load:
    """Appends batches at a rate, and notes how long each took."""

    def __init__(self, on: Any, store: SqliteStore, first: int, rate: float) -> None:
        self.on, self.store, self.first, self.rate = on, store, first, rate
        # Decoding is not what is measured.
        self.ready = [batch(first + number * BATCH) for number in range(int(rate / BATCH) * 60)]

    async def until(self, done: Any, least: float) -> list[float]:
        """Append until `done()` and for at least so many seconds."""
        times = []
        began = due = time.perf_counter()
        while self.ready and (time.perf_counter() - began < least or not await done()):
            at = time.perf_counter()
            await self.store.append([self.ready.pop(0)])
            times.append(time.perf_counter() - at)
            due += BATCH / self.rate
            await task.deferLater(self.on, max(0.0, due - time.perf_counter()))
        return times


def size_of(path: str) -> int:
    """Bytes of a file."""
    return os.path.getsize(path)


async def measure(on: Any, rows: int, rate: float, path: str) -> None:
    """Fill, then append with and without retention."""
    settings = SqliteSettings(SegmentLimits(rows=rows, daily=False))
    store = SqliteStore(on, path, settings)
    await store.start()
    await store.issue("bench", HOST, b"h" * 32, 1, 1)
    for first in range(1, 3 * rows + 1, BATCH):
        await store.append([batch(first)])
    while store.backlog:
        await task.deferLater(on, 0.1)
    size = size_of(path)
    load = Load(on, store, 3 * rows + 1, rate)

    async def yes() -> bool:
        return True

    print(f"3 segments of {rows:,} rows, then {rate:,.0f} entries/s in batches of {BATCH}")
    print(f"without retention  {figures(await load.until(yes, 5.0))}")
    before = await store.stats()
    await store.set_retention(Retention(max_bytes=int(size * 0.9), keep_free=0))
    began = time.perf_counter()

    async def shrunk() -> bool:
        now = await store.stats()
        return now.entries < before.entries and now.free < 1_000_000

    times = await load.until(shrunk, 1.0)
    took = time.perf_counter() - began
    print(f"dropping a segment {figures(times)}")
    # The file is truncated when the write-ahead log has been written back.
    await task.deferLater(on, 3.0)
    after = size_of(path)
    print(f"gone after {took:.1f} s; the file: {size / 1e6:,.0f} MB, now {after / 1e6:,.0f} MB")
    await store.stop()


def main() -> None:
    """Run it in a directory of its own."""
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cxbench", dir="/var/tmp") as directory:
        path = os.path.join(directory, "store.db")
        task.react(lambda on: Deferred.fromCoroutine(measure(on, given.rows, given.rate, path)), ())


if __name__ == "__main__":
    main()
