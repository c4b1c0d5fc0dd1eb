"""Standard input as a source: `make 2>&1 | twistd -n cortex-agent …`.

It exists only where the process runs in the foreground: a daemon's is /dev/null.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.custom_settings import StdinSettings
from cortextx.fleet.agent.sources.feed import Feed
from cortextx.fleet.agent.sources.piped import LineEncoder, PipeReader
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.interfaces.fleet import ILogSource

DRAIN_SECONDS = 5.0


@implementer(ILogSource)
class StdinSource:
    """Reads the lines of `descriptor` until its end. Who writes to it waits for the buffer."""

    log = Logger()
    can_wait = True

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: StdinSettings,
        put: Callable[..., Deferred[Any]],
        checkpoints: Callable[[], Mapping[str, bytes]] = dict,
        *,
        compose: Callable[..., bytes | None] = encode_body,
        wall: Callable[[], float] = time.time,
        descriptor: int = 0,
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._wall = wall
        self._descriptor = descriptor
        self._feed = Feed(reactor, name, put, can_wait=True, on_room=self._read_or_not)
        self._encoder = LineEncoder(
            f"custom:{name}",
            zone=settings.zone,
            form=settings.format,
            part_bytes=settings.part_bytes,
            compose=compose,
        )
        self._reader: PipeReader | None = None
        self._held = False
        self._state: SourceState = "waiting"
        self._why: str | None = None
        self._bytes = 0

    def start(self) -> None:
        """See `ILogSource.start`."""
        why = unusable(self._descriptor)
        if why is not None:
            self._state, self._why = "failed", why
            self.log.error("{name}: {why}", name=self.name, why=why)
            return
        self._state = "running"
        self._reader = PipeReader(
            self._reactor, os.dup(self._descriptor), self._received, self._ended
        )
        self._read_or_not()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        if self._reader is not None:
            self._reader.close()
        return self._feed.drain(DRAIN_SECONDS)

    def pause(self) -> None:
        """See `ILogSource.pause`."""
        self._held = True
        self._read_or_not()

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._held = False
        self._read_or_not()

    def report(self) -> SourceReport:
        """How it is."""
        state: SourceState = "paused" if self._held and self._reader else self._state
        counters = {
            "entries": self._feed.entries,
            "bytes": self._bytes,
            "ended_by_rules": self._encoder.ended_by_rules,
        }
        why = self._why or self._feed.why
        # An input that has ended was read to its end: nothing is wrong with that.
        details = {"type": "stdin", "at_rest": self._state == "waiting"}
        return SourceReport(self.name, "custom", state, why, counters, details)

    def _received(self, data: bytes) -> None:
        self._bytes += len(data)
        self._feed.give(self._encoder.feed(data, int(self._wall() * 1e6)))
        self._read_or_not()

    def _ended(self) -> None:
        self._feed.give(self._encoder.close(int(self._wall() * 1e6)))
        self._reader = None
        self._state, self._why = "waiting", "the input has ended"

    def _read_or_not(self) -> None:
        if self._reader is None:
            return
        if self._held or self._feed.full:
            self._reader.stopReading()
        else:
            self._reader.startReading()


def unusable(descriptor: int) -> str | None:
    """Why a descriptor is nobody's input, or None."""
    try:
        found = os.fstat(descriptor)
        null = os.stat(os.devnull)
    except OSError:
        return "standard input is closed: it can be read in the foreground only"
    if found.st_rdev == null.st_rdev and found.st_rdev:
        return "standard input is /dev/null: it can be read in the foreground only"
    return None
