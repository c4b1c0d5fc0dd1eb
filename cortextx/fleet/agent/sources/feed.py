"""Entries on their way from a source without checkpoints to the buffer.

One put is under way at a time and takes all that came meanwhile, so a source commits in
groups by itself. What waits is bounded: a source that can make its sender wait reads no
more while the feed is `full`, others drop, and count, what has no room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from cortextx.errors import StoreFull

FULL_BYTES = 2 * 2**20
"""Bytes waiting beyond which a source should read no more."""
ROOM_BYTES = 2**20
"""Bytes waiting below which it may go on."""
HARD_BYTES = 8 * 2**20
"""Bytes waiting beyond which nothing is taken."""
PUT_BODIES = 4000
PUT_BYTES = 2**20
"""What one put takes at most, unless one body is larger."""
RETRY_SECONDS = 1.0
OVERHEAD = 64
"""Bytes counted for each body beside its own."""


class Feed:
    """What waits to be put. `on_room` is called when a feed that was full is so no longer."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        name: str,
        put: Callable[..., Deferred[Any]],
        *,
        can_wait: bool,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._reactor = reactor
        self._name = name
        self._put = put
        self._can_wait = can_wait
        self._on_room = on_room
        self._waiting: list[bytes] = []
        self._size = 0
        self._busy = False
        self._singly = 0
        self._retry: Any = None
        self._was_full = False
        self._drained: Deferred[None] | None = None
        self._deadline: Any = None
        self._ended = False
        self.entries = 0
        """Entries that are durable."""
        self.why: str | None = None
        """Why the buffer took nothing the last time."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be read for now."""
        return self._was_full

    def give(self, bodies: Sequence[bytes]) -> int:
        """Take entries; answers how many of them, from the first, there was room for."""
        taken = 0
        for body in bodies:
            if self._size >= HARD_BYTES or self._ended:
                break
            self._waiting.append(body)
            self._size += len(body) + OVERHEAD
            taken += 1
        if self._size > FULL_BYTES:
            self._was_full = True
        if not self._busy and self._retry is None:
            self._next()
        return taken

    def drain(self, seconds: float) -> Deferred[None]:
        """End the feed: fires when all is durable, or `seconds` have passed. Once only."""
        self._drained = Deferred()
        done = self._drained
        if self._size == 0:
            self._end()
        else:
            self._deadline = self._reactor.callLater(seconds, self._end)
        return done

    def _next(self) -> None:
        self._retry = None
        if not self._waiting or self._ended:
            return
        count = size = 0
        for body in self._waiting:
            if count and (self._singly or size + len(body) > PUT_BYTES or count >= PUT_BODIES):
                break
            count += 1
            size += len(body)
        self._singly = max(0, self._singly - 1)
        batch = self._waiting[:count]
        self._busy = True
        put = maybeDeferred(self._put, batch, {}, can_wait=self._can_wait)
        put.addCallbacks(self._durable, self._failed, (count, size), {}, (count, size))
        put.addErrback(lambda failure: self.log.failure("a source's feed failed", failure))

    def _durable(self, _: object, count: int, size: int) -> None:
        self._busy = False
        self.why = None
        self.entries += count
        self._done_with(count, size)

    def _done_with(self, count: int, size: int) -> None:
        del self._waiting[:count]
        self._size -= size + OVERHEAD * count
        self._next()
        if self._was_full and self._size < ROOM_BYTES:
            self._was_full = False
            self._on_room()
        if self._size == 0 and self._drained is not None:
            self._end()

    def _failed(self, failure: Failure, count: int, size: int) -> None:
        self._busy = False
        if failure.check(ValueError):
            # A bug of ours: one of them is no entry. The others shall not be lost for it.
            if count > 1:
                self._singly = count
                self._next()
            else:
                self.log.failure("{name}: an entry was lost", failure, name=self._name)
                self._done_with(count, size)
            return
        if self.why is None and not failure.check(StoreFull):
            text = failure.getErrorMessage()
            self.log.warn("{name}: the buffer takes nothing: {text}", name=self._name, text=text)
        self.why = failure.getErrorMessage()
        if not self._ended:
            self._retry = self._reactor.callLater(RETRY_SECONDS, self._next)

    def _end(self) -> None:
        self._ended = True
        for timer in (self._retry, self._deadline):
            if timer is not None and timer.active():
                timer.cancel()
        done, self._drained = self._drained, None
        if done is not None:
            done.callback(None)
