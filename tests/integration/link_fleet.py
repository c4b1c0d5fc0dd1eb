"""Many agents' links in one process: real connections and real reconnecting, without logs.

    python -m tests.integration.link_fleet

Reads one JSON object from stdin, {"url": …, "tokens": […]}, a link for each token, and
prints a line `NUMBER SECONDS` (of the steady clock) each time a link becomes active.
Ends when stdin is closed.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, succeed

from cortextx.app.process import keep_steady_time, raise_file_limit
from cortextx.core.backoff import FullJitter
from cortextx.fleet.agent.buffer import Batch, Numbering
from cortextx.fleet.agent.link import Link
from cortextx.fleet.agent.protocol import Connector
from cortextx.fleet.agent.runner import LinkRunner
from cortextx.fleet.contract import Capabilities, HelloParams, Platform

reactor: Any = _reactor


class EmptyBuffer:
    """A buffer that never holds anything."""

    depth = size = 0

    def read(self, first_seq: int, max_entries: int, max_bytes: int) -> Deferred[Batch]:
        return succeed(Batch(first_seq, []))

    def adopt(self, accepted_seq: int) -> Deferred[Numbering]:
        return succeed(Numbering(accepted_seq, accepted_seq, False))

    def truncate(self, acked: int) -> Deferred[None]:
        return succeed(None)

    def set_aside(self, seq: int, reason: str) -> Deferred[bool]:
        return succeed(False)


class NoFiles:
    """Where a token would be stored; the link itself remembers it."""

    def store_token(self, token: str, replaced: str | None = None) -> None:
        pass

    def reserve(self) -> None:
        pass

    def delete_token(self) -> None:
        pass


CAPABILITIES = Capabilities(
    supported_probes=[], sources=["file"], max_batch_entries=1000, compression=[]
)


class Watcher:
    """Says each time when its link is active."""

    def __init__(self, number: int) -> None:
        self.number = number

    def configure(self, config: object, pushed: bool) -> None:
        print(self.number, f"{time.monotonic():.3f}", flush=True)

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def config_refused(self, reason: str) -> None:
        pass

    def samples(self) -> Deferred[None]:
        return succeed(None)

    def report_restored(self, first: int, last: int) -> None:
        pass

    def pause_sources(self) -> None:
        pass

    def resume_sources(self) -> None:
        pass


def make_link(number: int, url: str, token: str) -> LinkRunner:
    """One agent, with random numbers of its own."""
    chance = random.SystemRandom().random
    hello = HelloParams(
        protocol_version=1,
        agent_version="0.1.0",
        hostname=f"linked-{number}",
        host_id=f"00000000-0000-4000-8000-{number:012d}",
        platform=Platform(os="linux", arch="x86_64", kernel="6.1"),
        capabilities=CAPABILITIES,
        token=token,
        resume_from_seq=0,
    )
    link = Link(hello, 0, FullJitter(random=chance), chance)
    buffer: Any = EmptyBuffer()
    files: Any = NoFiles()
    connector = Connector(reactor, url, "link-fleet")
    return LinkRunner(reactor, link, buffer, files, connector, Watcher(number), time.time)


def main() -> None:
    """Run until stdin ends."""
    raise_file_limit()
    keep_steady_time(reactor)
    order = json.loads(sys.stdin.readline())
    for number, token in enumerate(order["tokens"]):
        link = make_link(number, order["url"], token)
        reactor.callLater(number * order.get("spread", 0.002), link.start)
    reactor.callInThread(_wait_for_end)
    reactor.run()


def _wait_for_end() -> None:
    sys.stdin.read()
    reactor.callFromThread(reactor.stop)


if __name__ == "__main__":
    main()
