"""Sessions' journals against a bare loop that appends the same lines with the same syncs.

The limit: one thread, a file a session, each group one write and one fdatasync, groups
as large as what is in flight for a session. The journals: real threads and a real
reactor, one append a call of `--lines` lines, the next called when one is durable.
Rounds alternate; medians and the median of the ratios are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

from cortextx.app.process import share_the_lock, tune_memory
from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.journal import FileJournals

LINE = (
    b'{"abi":"cortexfs.interaction/v2","correlation":{"request_id":"request-000001",'
    b'"run_id":"run-000001"},"session_seq":%d,"event":{"side":"slave","kind":"event",'
    b'"durable":true,"data":{"type":"message","role":"assistant","text":"%s"}},'
    b'"ts":"2026-05-16T09:00:00.000000Z"}'
)
TEXT = b"a line of an answer, as models write them " * 2


def made_lines(first: int, count: int) -> list[bytes]:
    """Lines of about 300 bytes."""
    return [LINE % (seq, TEXT) for seq in range(first, first + count)]


def bare(root: str, batches: list[list[bytes]], sessions: int, flight: int) -> float:
    """Seconds for the bare loop: `batches` go to each session, `flight` at a time."""
    files = [
        os.open(f"{root}/bare-{at}", os.O_RDWR | os.O_CREAT | os.O_TRUNC) for at in range(sessions)
    ]
    begun = time.perf_counter()
    offset = 0
    for at in range(0, len(batches), flight):
        data = b"".join(b"\n".join(batch) + b"\n" for batch in batches[at : at + flight])
        for file in files:
            os.pwrite(file, data, offset)
            os.fdatasync(file)
        offset += len(data)
    took = time.perf_counter() - begun
    for file in files:
        os.close(file)
    return took


class Run:
    """One round with journals."""

    def __init__(
        self, reactor: Any, root: str, batches: list[list[bytes]], sessions: int, flight: int
    ):
        self._reactor = reactor
        self._batches = batches
        self._flight = flight
        self._journals = FileJournals(reactor, root)
        self._open = [
            self._journals.journal(
                SessionKey(agent="bench", scope="private", session=f"s{at}", owner=0)
            )
            for at in range(sessions)
        ]
        self.took = 0.0

    async def run(self) -> float:
        """Seconds from the first append to the last that is durable."""
        from twisted.internet.defer import gatherResults

        self._journals.start()
        await gatherResults([journal.open() for journal in self._open])
        begun = time.perf_counter()
        await gatherResults([self._driven(journal) for journal in self._open])
        took = time.perf_counter() - begun
        await self._journals.stop()
        return took

    def _driven(self, journal: Any) -> Any:
        from twisted.internet.defer import Deferred

        finished: Deferred[None] = Deferred()
        batches = self._batches
        state = {"next": 0, "seq": 1, "open": 0}

        def send(_: None = None) -> None:
            state["open"] -= 1
            more()

        def more() -> None:
            while state["open"] < self._flight and state["next"] < len(batches):
                batch = batches[state["next"]]
                state["next"] += 1
                state["open"] += 1
                first = state["seq"]
                state["seq"] += len(batch)
                journal.append(first, batch).addCallbacks(send, finished.errback)
            if not state["open"]:
                finished.callback(None)

        more()
        return finished


async def main(reactor: Any, options: argparse.Namespace) -> None:
    """Print a table."""
    share_the_lock()
    tune_memory()
    print("sessions  in flight  lines  bare events/s  journal events/s  ratio")
    for sessions in options.sessions:
        for flight in options.flight:
            each = max(1, flight // sessions)
            count = max(each * 4, options.events // sessions // options.lines)
            batches = [made_lines(1 + at * options.lines, options.lines) for at in range(count)]
            total = count * options.lines * sessions
            rates: list[tuple[float, float]] = []
            for _ in range(options.rounds):
                root = tempfile.mkdtemp(dir=options.directory)
                try:
                    took = bare(root, batches, sessions, each)
                    ours = await Run(reactor, root, batches, sessions, each).run()
                    rates.append((total / took, total / ours))
                finally:
                    shutil.rmtree(root)
            ratio = statistics.median(ours / limit for limit, ours in rates)
            limit, ours = (statistics.median(column) for column in zip(*rates, strict=True))
            print(
                f"{sessions:8}  {each * sessions:9}  {options.lines:5}  {limit:13,.0f}"
                f"  {ours:16,.0f}  {ratio:5.2f}",
                flush=True,
            )


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--flight", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--lines", type=int, default=1, help="lines an append")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=".", help="where the files are made")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    from twisted.internet.defer import Deferred
    from twisted.internet.task import react

    react(lambda reactor: Deferred.fromCoroutine(main(reactor, parsed(sys.argv[1:]))))
