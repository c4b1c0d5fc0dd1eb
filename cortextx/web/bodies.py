"""Bodies of requests: kept only for who may send one, and bounded before that is known.

Who asks stands in a request's head. So it is judged while the body comes: that of a
stranger is read and dropped, but for its first byte, which says that there was one, and
the request is then refused as it would have been. What has come of bodies whose senders
are being looked up is bounded for all connections together.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

UNJUDGED_BYTES = 4 * 1_048_576
"""Bytes of all bodies whose senders are not known yet. A look-up takes about a millisecond."""


@runtime_checkable
class BodyGate(Protocol):
    """A resource below which requests may have bodies."""

    def admits_body(self, headers: Any) -> Deferred[bool]:
        """Whether who sent this head may send a body; never fails. May be cancelled."""


class Unjudged:
    """How much is held for senders that are not known yet, of `limit` bytes."""

    def __init__(self, limit: int = UNJUDGED_BYTES) -> None:
        self.limit = limit
        self.held = 0


class Body(BytesIO):
    """A request's content, as twisted.web writes and reads it.

    Until its sender is known it stays in the pieces in which it came, which are given back
    whole: a buffer that was cut leaves holes, of half its size when measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dropping = False
        self._all: Unjudged | None = None
        self._count = 0
        self._pieces: list[bytes] = []
        self._full: Callable[[], None] | None = None

    def drop(self) -> None:
        """Keep no more than a byte, of what came and of what comes."""
        self._dropping = True
        self._pieces = [piece[:1] for piece in self._pieces[:1]]
        self.seek(0)
        self.truncate(1)
        self.seek(0, 2)

    def judge_by(self, judged: Deferred[bool], all: Unjudged, full: Callable[[], None]) -> None:
        """Count what comes until `judged` fires, and drop it if it says so. `full` is called
        where too much is held of all bodies."""
        self._all, self._full = all, full
        judged.addCallbacks(self._judged, lambda failure: self._judged(False))

    def write(self, data: Any) -> int:
        """Take a piece of the body."""
        if self._dropping:
            if not self.tell():
                super().write(data[:1])
            return len(data)
        if self._all is not None:
            self._count += len(data)
            self._all.held += len(data)
            if self._all.held > self._all.limit:
                full = self._full
                self._judged(False)
                if full is not None:
                    full()
                return len(data)
            self._pieces.append(bytes(data))
            return len(data)
        return super().write(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of any file; what came is put together before."""
        pieces, self._pieces = self._pieces, []
        if pieces:
            super().write(b"".join(pieces))
        return super().seek(offset, whence)

    def _judged(self, admitted: bool) -> None:
        if self._all is None:
            return
        self._all.held -= self._count
        self._all = self._full = None
        if self.closed:
            self._pieces = []
        elif admitted:
            # Where all of it came before, it may be being read: its position is the reader's.
            if self._pieces:
                self.seek(0, 2)
        else:
            self.drop()
