"""What is kept for how long: the rules of retention, without a database (PURE).

Entries are judged by when they came, not by the time that they carry, so that a
host with a wrong clock loses nothing early and keeps nothing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DAY = 86_400_000_000
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds; None for ever.

    `entries` is the age of whole segments by their newest entry. `lesser` are
    pairs (severity number, seconds): what is less severe than that number goes
    after that time, so (4, 604800) keeps only warnings and worse after a week.
    `max_bytes` bounds what the file holds: above it the oldest segments go, the
    newest excepted. `keep_free` bytes of the file are left unused rather than
    given back, for what comes next.
    """

    entries: float | None = None
    lesser: tuple[tuple[int, float], ...] = ()
    max_bytes: int | None = None
    metrics: float | None = 7 * 86_400.0
    probes: float | None = 30 * 86_400.0
    acts: float | None = 400 * 86_400.0
    gaps: float | None = 400 * 86_400.0
    keep_free: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention knows of a segment, oldest first in every list of them."""

    number: int
    rows: int
    day: int
    last_received: int | None
    kept_severity: int | None

    @property
    def newest(self) -> int:
        """When its newest entry came at the latest (µs)."""
        return (self.day + 1) * DAY if self.last_received is None else self.last_received


def expired(segments: Sequence[SegmentAge], retention: Retention, now: int) -> list[int]:
    """The numbers of the segments that are too old; `now` is µs UTC."""
    if retention.entries is None:
        return []
    limit = before(now, retention.entries)
    return [segment.number for segment in segments if segment.rows and segment.newest < limit]


def too_many(segments: Sequence[SegmentAge], retention: Retention, used: int) -> int | None:
    """The segment to drop because `used` bytes are too many, if there is one."""
    if retention.max_bytes is None or used <= retention.max_bytes:
        return None
    held = [segment.number for segment in segments[:-1] if segment.rows]
    return held[0] if held else None


def to_thin(
    segments: Sequence[SegmentAge], retention: Retention, now: int
) -> tuple[int, int] | None:
    """The next segment that holds entries which are not severe enough for its age.

    As (number, the highest severity number that stays); never the newest segment.
    """
    for segment in segments[:-1]:
        kept = [level for level, age in retention.lesser if segment.newest < before(now, age)]
        if segment.rows and kept:
            level = min(kept)
            if segment.kept_severity is None or segment.kept_severity > level:
                return segment.number, level
    return None


def before(now: int, age: float) -> int:
    """The moment (µs) that lies `age` seconds before `now`."""
    return now - int(age * 1_000_000)
