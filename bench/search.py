"""How long the first page of a search takes, by how many entries match.

    python -m bench.search [--entries N] [--runs N] [--dir DIR]

Fills a store with entries of 8 hosts, indexes and merges it as an idle server
would, and asks for the newest 100 entries of each kind, and for the page behind.
Times are of the reading thread alone, in ms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import limits
from cortextx.interfaces.fleet import EntryFilter, LogBatch
from cortextx.stores.sqlite_file import open_reader, open_writer
from cortextx.stores.sqlite_hosts import HostTable
from cortextx.stores.sqlite_search import Reader
from cortextx.stores.sqlite_segments import SegmentTables

AGENTS = 8
PIECE = 100_000
CASES = {
    "everything": EntryFilter(),
    "a word of every entry": EntryFilter(text="connection"),
    "a word of each 7th": EntryFilter(text="accepted"),
    "a word of each 5,000th": EntryFilter(text="user123"),
    "a word of none": EntryFilter(text="nowhere"),
    "two common words": EntryFilter(text="accepted connection"),
    "a common phrase": EntryFilter(text='"accepted connection from"'),
    "a phrase of common words that never occurs": EntryFilter(text='"connection accepted"'),
    "errors": EntryFilter(severity_max=3),
    "errors with a common word": EntryFilter(severity_max=3, text="accepted"),
    "one host": EntryFilter(hosts=("bench-3",)),
    "a common word of one host": EntryFilter(hosts=("bench-3",), text="accepted"),
    "an app that is rare, a common word": EntryFilter(apps=("nothing",), text="accepted"),
    "text without words (scan)": EntryFilter(text="#*#"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure searches.")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    place = tempfile.mkdtemp(dir=options.dir)
    path = os.path.join(place, "store.db")
    connection = open_writer(path, 0)
    fill(connection, options.entries)
    print(f"{os.path.getsize(path) / options.entries:.0f} bytes an entry")
    reader_connection = open_reader(path)
    reader = Reader(reader_connection)
    for name, which in CASES.items():
        first, page = timed(lambda which=which: reader.search(which, 100, True, None), options.runs)
        line = f"{name:45} {len(page.entries):4} found  first page {first}"
        if page.cursor is not None:
            behind, _ = timed(
                lambda which=which, at=page.cursor: reader.search(which, 100, True, at),
                options.runs,
            )
            line += f"  next {behind}"
        print(line, flush=True)
    reader_connection.close()
    connection.close()
    shutil.rmtree(place)
    return 0


def fill(connection: Any, entries: int) -> None:
    """Append, index and merge."""
    began = time.perf_counter()
    segments = SegmentTables(connection, time.perf_counter)
    hosts = HostTable(connection, segments.host_changed)
    ids = [f"00000000-0000-4000-8000-{agent:012d}" for agent in range(AGENTS)]
    for agent, host in enumerate(ids):
        hosts.issue(f"bench-{agent}", host, b"%032d" % agent, 1, 1)
    for start in range(0, entries, PIECE):
        for number, batch in enumerate(limits.batches(AGENTS, PIECE, start // AGENTS)):
            segments.append([LogBatch(ids[number % AGENTS], batch[0].seq, batch, 0)])
            while segments.backlog > 8000:
                segments.index_chunk()
    while segments.index_chunk():
        pass
    while segments.merge_due(idle=True):
        segments.merge_step()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    print(f"{entries} entries in {time.perf_counter() - began:.0f} s")


def timed(ask: Callable[[], Any], runs: int) -> tuple[str, Any]:
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        answer = ask()
        took.append((time.perf_counter() - began) * 1000)
    return f"{statistics.median(took):8.1f} (max {max(took):.1f})", answer


if __name__ == "__main__":
    sys.exit(main())
