"""Searching a big store from the reactor: p50 and p99 of the first page, by selectivity.

Fills a store with made-up entries (bench.workload), lets the full-text index
catch up, and asks for the newest 100 entries again and again, each time with
other words or bounds of the same kind.

    python -m bench.search_store [--rows N] [--repeat N] [--keep DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred

from bench.workload import START
from cortextx.core.syslog import SEVERITIES
from cortextx.fleet.contract import LogEntry
from cortextx.interfaces.fleet import EntryFilter, LogBatch
from cortextx.stores.sqlite import SqliteSettings, SqliteStore

HOSTS = 20
BATCH = 5000
PAGE = 100
_VERBS = ("accepted", "rejected", "opened", "closed", "started", "finished", "retried")
_APPS = ("sshd", "nginx", "postgres", "kernel", "cron", "systemd", "dockerd", "api")
EPOCH = int(START.timestamp() * 1e6)
STEP = 2000
"""Microseconds between two entries."""


def host_id(number: int) -> str:
    """The id of a host."""
    return f"2b9a0b3a-7e3c-4d2a-9c0e-{number:012d}"


def batches(rows: int) -> Iterator[LogBatch]:
    """All entries, the hosts in turns."""
    from datetime import timedelta

    draw = random.Random(7)
    seqs = [1] * HOSTS
    weights = (80, 8, 7, 4, 1)
    levels = ("info", "notice", "warning", "err", "debug")
    for first in range(0, rows, BATCH):
        host = first // BATCH % HOSTS
        severities = draw.choices(levels, weights, k=BATCH)
        made = []
        for n in range(BATCH):
            user = draw.randrange(5000)
            rare = f" rare{(first + n) % 100_000}"
            made.append(
                LogEntry(
                    seq=seqs[host] + n,
                    ts=START + timedelta(microseconds=(first + n) * STEP),
                    severity=severities[n],
                    message=(
                        f"{draw.choice(_VERBS)} connection from 10.{draw.randrange(16)}."
                        f"{draw.randrange(256)}.{draw.randrange(256)} port"
                        f" {draw.randrange(1024, 65_536)} for user{user} request"
                        f" {draw.getrandbits(48):012x}{rare}"
                    ),
                    source=f"file:/var/log/{_APPS[user % 8]}.log",
                    app_name=_APPS[user % 8],
                )
            )
        yield LogBatch(host_id(host), seqs[host], made, EPOCH + first * STEP, 320 * BATCH)
        seqs[host] += BATCH


def kinds(rows: int, draw: random.Random) -> dict[str, Callable[[], EntryFilter]]:
    """What is asked for, by its name."""
    span = rows * STEP

    def hour() -> dict[str, int]:
        since = EPOCH + draw.randrange(max(1, span))
        return {"since": since, "until": since + 600_000_000}

    return {
        "everything": lambda: EntryFilter(),
        "one word in 100,000": lambda: EntryFilter(text=f"rare{draw.randrange(100_000)}"),
        "one word in 5,000": lambda: EntryFilter(text=f"user{draw.randrange(5000)}"),
        "a word of one in 7": lambda: EntryFilter(text=draw.choice(_VERBS)),
        "a word of all": lambda: EntryFilter(text="connection"),
        "two common words, none together": lambda: EntryFilter(text="accepted rejected"),
        "common word and rare one": lambda: EntryFilter(
            text=f"connection user{draw.randrange(5000)}"
        ),
        "a word that is nowhere": lambda: EntryFilter(text=f"absent{draw.random()}"),
        "a phrase": lambda: EntryFilter(text=f'"{draw.choice(_VERBS)} connection from"'),
        "common word, one host": lambda: EntryFilter(
            text="opened", hosts=(host_id(draw.randrange(HOSTS)),)
        ),
        "one app": lambda: EntryFilter(apps=(draw.choice(_APPS),)),
        "err and worse": lambda: EntryFilter(severity_max=SEVERITIES.index("err")),
        "ten minutes, common word": lambda: EntryFilter(text="closed", **hour()),
        "ten minutes, LIKE": lambda: EntryFilter(text="***", **hour()),
        "LIKE over everything, none": lambda: EntryFilter(text="***"),
    }


def size_of(path: str) -> int:
    """Bytes of a file."""
    return os.path.getsize(path)


async def measure(on: Any, rows: int, repeat: int, path: str) -> None:
    """Fill, then ask."""
    store = SqliteStore(on, path, SqliteSettings(search_seconds=120.0))
    await store.start()
    if not await store.head():
        began = time.perf_counter()
        for number in range(HOSTS):
            await store.issue(f"host{number}", host_id(number), b"%032d" % number, 1, 1)
        for one in batches(rows):
            await store.append([one])
        while store.backlog:
            await task.deferLater(on, 0.2)
        print(f"{rows:,} rows filled in {time.perf_counter() - began:.0f} s")
    await task.deferLater(on, 5.0)
    print(f"{size_of(path) / 1e6:,.0f} MB, {(await store.stats()).segments} segments")
    draw = random.Random(1)
    for name, make in kinds(rows, draw).items():
        times: list[float] = []
        found = 0
        while len(times) < repeat and sum(times) < 20:
            which = make()
            at = time.perf_counter()
            page = await store.search(which, PAGE)
            times.append(time.perf_counter() - at)
            found += len(page.entries)
        times.sort()
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        print(
            f"{name:34} p50 {times[len(times) // 2] * 1e3:8.1f} ms  p99 {p99 * 1e3:8.1f} ms"
            f"  {found / len(times):5.0f} entries  ({len(times)})"
        )
    at = time.perf_counter()
    whole = await store.histogram(EntryFilter(), 60)
    print(f"histogram of everything: {time.perf_counter() - at:.2f} s, complete {whole.complete}")
    at = time.perf_counter()
    whole = await store.histogram(EntryFilter(text="opened"), 60)
    print(f"histogram of a word of one in 7: {time.perf_counter() - at:.2f} s, {whole.complete}")
    await store.stop()


def main() -> None:
    """Run it in a directory of its own, or in one that is kept."""
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--keep", metavar="DIR")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cxbench", dir="/var/tmp") as directory:
        path = os.path.join(given.keep or directory, "store.db")
        task.react(
            lambda on: Deferred.fromCoroutine(measure(on, given.rows, given.repeat, path)), ()
        )


if __name__ == "__main__":
    main()
