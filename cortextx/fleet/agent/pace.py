"""How much a link may have unanswered: push size and window, by the answers (PURE, F36).

A slow uplink must not hold more than about five seconds of data, or the pongs
and heartbeats behind it come too late. So a connection starts small, doubles
with every quick answer, and halves with every slow one. What was learned stays
for the next connection, except that its window starts at one again.
"""

from __future__ import annotations

WINDOW = 4
"""Pushes that may be unanswered at most."""
MOST_BYTES = 921_600
"""Encoded bytes of one push at most: 900 KiB, below the frame limit of §2."""
LEAST_BYTES = 16_384
"""Bytes below which a push is not shrunk further (one entry may still be larger)."""
FIRST_BYTES = 32_768
"""Bytes of the first push of an agent's life: on a wire of 5 KB/s that takes 7 s, not the
half a minute after which a server is taken for dead."""
SLOW = 5.0
"""Seconds: an answer that took longer than this shrinks the pace."""
QUICK = 1.0
"""Seconds: an answer that took less than this widens it."""


class Pace:
    """The window (pushes) and the size of a push (bytes) that the path bears."""

    __slots__ = ("push_bytes", "window")

    def __init__(self) -> None:
        self.window = 1
        self.push_bytes = FIRST_BYTES

    def connected(self) -> None:
        """Begin a connection: carefully, with one push (F35)."""
        self.window = 1

    def answered(self, seconds: float) -> None:
        """Note that a push was acknowledged `seconds` after it was sent."""
        if seconds > SLOW:
            self._shrink()
        elif seconds < QUICK:
            self.window = min(WINDOW, self.window + 1)
            self.push_bytes = min(MOST_BYTES, self.push_bytes * 2)

    def timed_out(self) -> None:
        """Note that an answer never came."""
        self.window = 1
        self.push_bytes = max(LEAST_BYTES, self.push_bytes // 4)

    def _shrink(self) -> None:
        self.window = max(1, self.window // 2)
        self.push_bytes = max(LEAST_BYTES, self.push_bytes // 2)
