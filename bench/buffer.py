"""How fast the agent's buffer is, as a ratio to bare write + fdatasync of the same bytes.

    python -m bench.buffer [--entries N] [--rounds N] [--directory DIR] [--json]

Both run in turn on the same file system, in the same groups; a ratio is the median
over the rounds. Then: the adapter with its thread under a real reactor, reading a
backlog back, and opening a small and a ten times larger backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from cortextx.fleet.agent.buffer import Buffer, BufferLimits
from cortextx.fleet.agent.buffer_blocks import DATA, encode_block, pack
from cortextx.fleet.agent.buffer_writer import BufferWriter
from cortextx.fleet.agent.disk import RealDisk

GROUPS = (10, 100, 1000)
LIMITS = BufferLimits(soft=4 * 2**30, hard=8 * 2**30, min_free=0)
MESSAGE = "Accepted publickey for deploy from 10.0.0.4 port 40122 ssh2: ED25519 session opened"


def make_bodies(count: int) -> list[bytes]:
    """Entries of about 300 bytes."""
    return [
        b'"ts":"2026-05-16T19:42:50.%06dZ","severity":"info","message":"%s request %d took %d us",'
        b'"source":"file:/var/log/service/current.log","app_name":"service","process_id":"%d",'
        b'"metadata":{"unit":"service.service","boot":"5f1e6b"}}'
        % (n % 1_000_000, MESSAGE.encode(), n, n * 7919 % 100_000, n % 30_000)
        for n in range(count)
    ]


def raw(directory: str, bodies: list[bytes], group: int) -> float:
    """Entries/s of write + fdatasync of the very bytes that the buffer would write."""
    blocks = [
        b"".join(encode_block(DATA, at + 1, pack(bodies[at : at + group]), {"file:a": b"1"}, 0))
        for at in range(0, len(bodies), group)
    ]
    path = os.path.join(directory, "raw")
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    began = time.perf_counter()
    for block in blocks:
        os.write(file, block)
        os.fdatasync(file)
    seconds = time.perf_counter() - began
    os.close(file)
    os.unlink(path)
    return len(bodies) / seconds


def buffered(directory: str, bodies: list[bytes], group: int) -> float:
    """Entries/s of append + sync, segments and all."""
    path = os.path.join(directory, "buffer")
    buffer = Buffer.open(RealDisk(path), LIMITS)
    began = time.perf_counter()
    for at in range(0, len(bodies), group):
        buffer.append(bodies[at : at + group], {"file:a": b"%d" % at})
        buffer.sync()
    seconds = time.perf_counter() - began
    buffer.close()
    shutil.rmtree(path)
    return len(bodies) / seconds


def through_writer(directory: str, bodies: list[bytes], put: int, sources: int) -> float:
    """Entries/s through the adapter: `sources` each with one put of `put` entries out."""
    path = os.path.join(directory, "writer")
    seconds = [0.0]

    async def main(reactor: Any) -> None:
        writer = BufferWriter(reactor, lambda: Buffer.open(RealDisk(path), LIMITS))
        await writer.start()
        await writer.adopt(0)
        done: Deferred[None] = Deferred()
        state = [0, sources]

        def more(_: object) -> None:
            at = state[0]
            if at >= len(bodies):
                state[1] -= 1
                if state[1] == 0:
                    done.callback(None)
                return
            state[0] = at + put
            given = writer.put(bodies[at : at + put], {"file:a": b"%d" % at})
            given.addCallbacks(more, done.errback)

        began = time.perf_counter()
        for _ in range(sources):
            more(None)
        await done
        seconds[0] = time.perf_counter() - began
        await writer.stop()

    try:
        react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
    except SystemExit as end:
        if end.code:
            raise
    shutil.rmtree(path)
    return len(bodies) / seconds[0]


def read_back(directory: str, bodies: list[bytes]) -> float:
    """Entries/s of reading a backlog from disk in batches of 1000."""
    path = os.path.join(directory, "backlog")
    fill(path, bodies, 1)
    buffer = Buffer.open(RealDisk(path), LIMITS)
    buffer.adopt(0)
    began = time.perf_counter()
    seq = 1
    while batch := buffer.read(seq, 1000, 900_000).bodies:
        seq += len(batch)
    seconds = time.perf_counter() - began
    buffer.close()
    shutil.rmtree(path)
    if seq != len(bodies) + 1:
        raise SystemExit(f"read up to {seq - 1} of {len(bodies)}")
    return len(bodies) / seconds


def fill(path: str, bodies: list[bytes], times: int) -> None:
    """Make a backlog."""
    buffer = Buffer.open(RealDisk(path), LIMITS)
    for _ in range(times):
        for at in range(0, len(bodies), 1000):
            buffer.append(bodies[at : at + 1000], {"file:a": b"1"})
    buffer.sync()
    buffer.close()


def opening(path: str) -> tuple[float, int]:
    """Milliseconds to open a backlog and read its first batch, and peak KiB, in a fresh process."""
    command = [sys.executable, "-m", "bench.buffer", "--open", path]
    said = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.split()
    return float(said[0]), int(said[1])


def open_here(path: str) -> None:
    """The child of `opening`."""
    began = time.perf_counter()
    buffer = Buffer.open(RealDisk(path), LIMITS)
    if not buffer.numbered:
        buffer.adopt(0)
    buffer.read(1, 1000, 900_000)
    took = (time.perf_counter() - began) * 1000
    print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Measure, and print a line for people and one of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=".")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_here(options.open)
        return
    directory = tempfile.mkdtemp(prefix="bench-buffer-", dir=options.directory)
    try:
        result = measure(directory, options.entries, options.rounds)
    finally:
        shutil.rmtree(directory)
    if not options.json:
        print(summary(result))
    print(json.dumps(result))


def measure(directory: str, entries: int, rounds: int) -> dict[str, Any]:
    """All measurements."""
    bodies = make_bodies(entries)
    result: dict[str, Any] = {"entry_bytes": sum(map(len, bodies)) // entries}
    for group in GROUPS:
        some = bodies[: group * 500]
        pairs = [
            (raw(directory, some, group), buffered(directory, some, group)) for _ in range(rounds)
        ]
        result[f"group_{group}"] = {
            "entries_per_s": round(statistics.median(b for _, b in pairs)),
            "raw_entries_per_s": round(statistics.median(r for r, _ in pairs)),
            "ratio": round(statistics.median(b / r for r, b in pairs), 3),
        }
    result["writer_10x100_per_s"] = round(through_writer(directory, bodies, 100, 10))
    result["read_per_s"] = round(read_back(directory, bodies))
    opened = []
    for times in (1, 10):
        path = os.path.join(directory, f"backlog-{times}")
        fill(path, bodies, times)
        opened.append(min(opening(path) for _ in range(3)))
        shutil.rmtree(path)
    (small_ms, small_kib), (large_ms, large_kib) = opened
    result["open"] = {
        "small_ms": round(small_ms, 1),
        "tenfold_ms": round(large_ms, 1),
        "rss_ratio": round(large_kib / small_kib, 3),
    }
    return result


def summary(result: dict[str, Any]) -> str:
    """The line for people."""
    parts = [
        f"{group}/group: {result[f'group_{group}']['entries_per_s']:,}/s"
        f" = {result[f'group_{group}']['ratio']:.2f} of raw"
        for group in GROUPS
    ]
    parts.append(f"writer: {result['writer_10x100_per_s']:,}/s")
    parts.append(f"read: {result['read_per_s']:,}/s")
    opened = result["open"]
    parts.append(
        f"open: {opened['small_ms']} ms, tenfold backlog {opened['tenfold_ms']} ms,"
        f" memory x{opened['rss_ratio']}"
    )
    return "buffer (durable entries): " + "; ".join(parts)


if __name__ == "__main__":
    main()
