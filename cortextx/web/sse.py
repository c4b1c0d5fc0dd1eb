"""Server-sent events to one client that may read slowly (WHATWG HTML, 9.2).

Nothing is buffered here: who sends looks at `paused` and waits for `room`, so that
what a slow client has not read yet is not read from the store either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortextx.web.flow import Paced


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


class EventSink(Paced):
    """Writes events to a request.

    `began` is called before the head of the answer goes out: from then on no
    status can be told.
    """

    def __init__(
        self, reactor: Any, request: Any, stall_seconds: float, began: Callable[[], None]
    ) -> None:
        super().__init__(reactor, request, stall_seconds)
        self._began = began

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

    def write(self, events: bytes) -> None:
        """Write events; whoever does waits for `room` before it writes more."""
        self._request.write(events)
