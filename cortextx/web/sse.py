"""Server-sent events to one client that may read slowly (WHATWG HTML, 9.2).

Nothing is buffered here beyond one piece: `send` waits while the connection does
not take more, so that what a slow client has not read yet is not read from the
store either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from cortextx.errors import CortexError

PIECE_BYTES = 65_536
"""Events are written in pieces of about this size, waiting for the reader in between."""


class Stalled(CortexError):
    """A client of a stream takes nothing."""


def event(kind: str | None, data: bytes, id: int | None = None) -> bytes:
    """One event; `data` must not have a newline in it, as JSON on one line has none."""
    lines: list[bytes] = []
    if id is not None:
        lines.append(b"id: %d" % id)
    if kind is not None:
        lines.append(b"event: " + kind.encode())
    return b"\n".join([*lines, b"data: " + data, b"", b""])


def position(id: int) -> bytes:
    """Tell the client how far it has come, without an event (its Last-Event-ID)."""
    return b"id: %d\n\n" % id


@implementer(IPushProducer)
class EventSink:
    """Writes events to a request, as fast as its client reads.

    A client that takes nothing for `stall_seconds` is cut off. `began` is called
    before the head of the answer goes out: from then on no status can be told.
    """

    def __init__(
        self, reactor: Any, request: Any, stall_seconds: float, began: Callable[[], None]
    ) -> None:
        self._reactor = reactor
        self._request = request
        self._stall_seconds = stall_seconds
        self._began = began
        self._waiting: Deferred[None] | None = None
        self._paused = False
        self.stalls = 0

    def begin(self) -> None:
        """Send the head of the answer."""
        request = self._request
        self._began()
        request.setHeader(b"Content-Type", b"text/event-stream; charset=utf-8")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.registerProducer(self, True)
        # So that the client knows at once that it is connected.
        request.write(b": tail\n\n")

    def end(self) -> None:
        """The stream is over."""
        self._request.unregisterProducer()
        self._request.finish()

    async def send(self, pieces: Iterable[bytes]) -> None:
        """Write events and wait until the client can take more.

        Fails with Stalled if it takes nothing for too long.
        """
        piece = bytearray()
        for each in pieces:
            piece += each
            if len(piece) >= PIECE_BYTES:
                await self._write(bytes(piece))
                piece.clear()
        if piece:
            await self._write(bytes(piece))

    async def _write(self, piece: bytes) -> None:
        self._request.write(piece)
        if not self._paused:
            return
        self.stalls += 1
        self._waiting = Deferred()
        try:
            await self._waiting.addTimeout(self._stall_seconds, self._reactor)
        except TimedOut:
            raise Stalled(f"nothing was taken for {self._stall_seconds:g} s") from None

    def pauseProducing(self) -> None:
        """See IPushProducer."""
        self._paused = True

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        self._paused = False
        self._go_on()

    def stopProducing(self) -> None:
        """See IPushProducer: the client has gone, which cancels who sends."""
        self._paused = False

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)
