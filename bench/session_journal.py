"""Durable events/s through the journal: the first measurement of bench.session.

The journals run as in bench.journal: real threads, a real reactor, calls of 16 lines, as
a busy slave makes them. They note what they wrote in which groups; the bare loop then
makes the same writes and fdatasyncs, one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from bench.journal import Run, bare, made_lines
from cortextx.app.process import share_the_lock, tune_memory
from cortextx.stores.journal_log import Log

LINES = 16
FLIGHT = 1024
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def same_writes(root: str, groups: Sequence[tuple[str, Sequence[bytes]]]) -> float:
    """Seconds for what the journals wrote, in one thread."""
    files: dict[str, tuple[int, int]] = {}
    for path, _ in groups:
        if path not in files:
            name = f"{root}/same-{len(files)}"
            files[path] = (os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 0)
    begun = time.perf_counter()
    for path, lines in groups:
        file, offset = files[path]
        data = b"\n".join(lines) + b"\n"
        os.pwrite(file, data, offset)
        os.fdatasync(file)
        files[path] = (file, offset + len(data))
    took = time.perf_counter() - begun
    for file, _ in files.values():
        os.close(file)
    return took


def measure_journal(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """In a process of its own: it needs a reactor, and the switch interval of a slave."""
    words = [str(options.events), str(options.rounds), options.directory or tempfile.gettempdir()]
    done = subprocess.run(
        [sys.executable, "-m", "bench.session_journal", *words],
        stdout=subprocess.PIPE, cwd=ROOT, check=True, timeout=options.seconds * 2, text=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    words = [
        f"{row['sessions']} sessions {row['per_s']:,.0f} events/s, {row['ratio']:.2f} of the same"
        f" writes in a loop, {row['ideal']:.2f} of one that groups all"
        for row in rows
    ]
    return {"rows": rows}, "; ".join(words)


async def main(reactor: Any, arguments: Sequence[str]) -> None:
    events, rounds, directory = int(arguments[0]), int(arguments[1]), arguments[2]
    share_the_lock()
    tune_memory()
    groups: list[tuple[str, Sequence[bytes]]] = []
    append = Log.append

    def noted(self: Log, first: int, lines: Sequence[bytes]) -> None:
        append(self, first, lines)
        groups.append((self.path, lines))

    Log.append = noted  # type: ignore[method-assign]
    for sessions in (1, 10, 100):
        flight = max(1, FLIGHT // LINES // sessions)
        count = max(flight * 4, events // sessions // LINES)
        batches = [made_lines(1 + at * LINES, LINES) for at in range(count)]
        total = count * LINES * sessions
        rates: list[tuple[float, float, float, float]] = []
        for _ in range(rounds):
            root = tempfile.mkdtemp(dir=directory)
            groups.clear()
            try:
                ours = await Run(reactor, root, batches, sessions, flight).run()
                same = same_writes(root, groups)
                ideal = bare(root, batches, sessions, flight)
            finally:
                shutil.rmtree(root)
            rates.append((total / ours, same / ours, ideal / ours, total / len(groups)))
        columns = [statistics.median(column) for column in zip(*rates, strict=True)]
        names = ("per_s", "ratio", "ideal", "lines_a_group")
        row = {"sessions": sessions, **dict(zip(names, columns, strict=True))}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    from twisted.internet.defer import Deferred
    from twisted.internet.task import react

    react(lambda reactor: Deferred.fromCoroutine(main(reactor, sys.argv[1:])))
