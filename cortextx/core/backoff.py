"""Full-jitter exponential backoff between attempts to connect, §6 (PURE)."""

from __future__ import annotations

from collections.abc import Callable

STEADY_AFTER = 60.0
"""Seconds of a connection's life after which the attempts count anew (§6)."""


class FullJitter:
    """Delays drawn from 0 to min(cap, base * 2**attempt) seconds (§6).

    The first retry is drawn too, from 0 to `base`, so that hosts which lost their
    server together do not come back together. `random` answers a float from 0 to
    below 1, as `random.Random().random` does.
    """

    __slots__ = ("_attempt", "_random", "base", "cap")

    def __init__(
        self, *, random: Callable[[], float], base: float = 1.0, cap: float = 60.0
    ) -> None:
        self.base = base
        self.cap = cap
        self._random = random
        self._attempt = 0

    @property
    def attempt(self) -> int:
        """How many delays were drawn since the last reset."""
        return self._attempt

    @property
    def ceiling(self) -> float:
        """Seconds that the next delay stays below."""
        # Beyond 2**64 the float is the cap anyway; this keeps the power finite.
        return float(min(self.cap, self.base * 2.0 ** min(self._attempt, 64)))

    def next_delay(self) -> float:
        """Draw the seconds to wait before the next attempt, and count it."""
        delay = self._random() * self.ceiling
        self._attempt += 1
        return delay

    def exhaust(self) -> None:
        """Go to the longest backoff at once (F34, F35): delays are drawn up to `cap`."""
        while self.ceiling < self.cap and self._attempt < 64:
            self._attempt += 1

    def reset(self) -> None:
        """Start over at attempt 0."""
        self._attempt = 0

    def stayed_up(self, seconds: float) -> None:
        """Note that a connection was active for `seconds`: 60 or more reset the count."""
        if seconds >= STEADY_AFTER:
            self.reset()
