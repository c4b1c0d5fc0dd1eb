"""Bounds on what a peer may cost: bytes counted, memory reserved, rates (PURE)."""

from __future__ import annotations

from typing import Literal

Level = Literal["ok", "soft", "hard"]
"""What a reservation meets: room, the soft mark, or the hard limit."""


class ByteCounter:
    """Counts bytes against a limit, once (F3)."""

    __slots__ = ("limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0

    @property
    def exceeded(self) -> bool:
        """Whether more than `limit` bytes were counted."""
        return self.total > self.limit

    @property
    def left(self) -> int:
        """Bytes that may still come, never below 0."""
        return max(0, self.limit - self.total)

    def add(self, count: int) -> bool:
        """Count `count` bytes; returns whether the total is still within the limit."""
        self.total += count
        return self.total <= self.limit


class Gauge:
    """A budget (bytes, or any unit) shared by many, with a soft mark and a hard limit.

    An amount is reserved only when `reserve` answers "ok", or "soft" to a caller
    that said it may go `beyond_soft`. Otherwise nothing is held, and nothing is to
    be released. An empty gauge has room for any amount up to `hard`, so that one
    big item can never be refused for ever.
    """

    __slots__ = ("_used", "hard", "soft")

    def __init__(self, soft: int, hard: int) -> None:
        if not 0 < soft <= hard:
            raise ValueError("a gauge needs 0 < soft <= hard")
        self.soft = soft
        self.hard = hard
        self._used = 0

    @property
    def used(self) -> int:
        """The amount reserved now."""
        return self._used

    @property
    def above_soft(self) -> bool:
        """Whether the amount reserved now is beyond the soft mark."""
        return self._used > self.soft

    def level(self, amount: int) -> Level:
        """Say what reserving `amount` would meet, without reserving it."""
        total = self._used + amount
        if total > self.hard:
            return "hard"
        if total > self.soft and self._used:
            return "soft"
        return "ok"

    def reserve(self, amount: int, *, beyond_soft: bool = False) -> Level:
        """Reserve `amount` if there is room for it; see the class for what is held."""
        level = self.level(amount)
        if level == "ok" or (level == "soft" and beyond_soft):
            self._used += amount
        return level

    def release(self, amount: int) -> None:
        """Give back what was reserved; giving back more than that is a bug (ValueError)."""
        if not 0 <= amount <= self._used:
            raise ValueError(f"{amount} released, {self._used} reserved")
        self._used -= amount


class LeakyBucket:
    """A rate limit: `rate` units a second on the average, `burst` at once.

    An amount beyond `burst` is taken when the bucket is full, and paid for
    afterwards. `now` is in seconds; a clock that steps back adds nothing.
    """

    __slots__ = ("_room", "_seen", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError("a bucket needs a positive rate and burst")
        self.rate = rate
        self.burst = burst
        self._room = burst
        self._seen: float | None = None

    def take(self, amount: float, now: float) -> float:
        """Take `amount`: 0.0 if taken, else the seconds to wait; then nothing was taken."""
        if self._seen is not None and now > self._seen:
            self._room = min(self.burst, self._room + (now - self._seen) * self.rate)
        self._seen = now if self._seen is None else max(now, self._seen)
        needed = min(amount, self.burst)
        # The tolerance lets a caller in that waited exactly as long as it was told.
        if self._room + 1e-9 * self.burst >= needed:
            self._room -= amount
            return 0.0
        return (needed - self._room) / self.rate

    def put_back(self, amount: float) -> None:
        """Undo a `take` of `amount` that came to nothing."""
        self._room = min(self.burst, self._room + amount)

    def is_full(self, now: float) -> bool:
        """Whether, by `now`, all that was taken has been made up for."""
        since = 0.0 if self._seen is None else max(0.0, now - self._seen)
        return self._room + since * self.rate >= self.burst
