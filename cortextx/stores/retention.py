"""What is kept for how long: the rules of retention, without a database (PURE).

Entries are judged by when they came, not by the time that they carry, so that a
host with a wrong clock loses nothing early and keeps nothing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DAY = 86_400_000_000
"""Microseconds."""
PARTS = 16
"""Into how many segments at least what `max_bytes` allows is cut."""
SMALLEST_SEGMENT = 1024 * 1024
"""Bytes: a segment's own tables are about 40 KiB."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds; None for ever.

    `entries` is the age of whole segments by their newest entry. `lesser` are
    pairs (severity number, seconds): what is less severe than that number goes
    after that time, so (4, 604800) keeps only warnings and worse after a week.
    `max_bytes` bounds what the file holds: above it the oldest segments go, but not
    the one that is being written; segments are cut so that this is a small part of
    it (`segment_bytes`). `keep_free` bytes of the file are left unused rather than
    given back, for what comes next; under a small `max_bytes` fewer (`spare`).
    """

    entries: float | None = None
    lesser: tuple[tuple[int, float], ...] = ()
    max_bytes: int | None = None
    metrics: float | None = 7 * 86_400.0
    probes: float | None = 30 * 86_400.0
    acts: float | None = 400 * 86_400.0
    gaps: float | None = 400 * 86_400.0
    keep_free: int = 16 * 1024 * 1024

    @property
    def segment_bytes(self) -> int | None:
        """Where a segment has to end so that dropping one is a small step; None for anywhere."""
        if self.max_bytes is None:
            return None
        return max(SMALLEST_SEGMENT, self.max_bytes // PARTS)

    @property
    def spare(self) -> int:
        """Unused bytes of the file that are not given back to the disk."""
        return self.keep_free if self.max_bytes is None else min(
            self.keep_free, self.max_bytes // PARTS
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention knows of a segment, oldest first in every list of them.

    `bytes` is what its entries had on the wire.
    """

    number: int
    rows: int
    day: int
    last_received: int | None
    kept_severity: int | None
    bytes: int = 0

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


@dataclass(frozen=True, slots=True)
class Cut:
    """What is to go because there is too much: the segment `number`, of which the newest
    `keep` (a share from 0 to 1) of entries may stay."""

    number: int
    keep: float = 0.0


def too_many(segments: Sequence[SegmentAge], retention: Retention, used: int) -> Cut | None:
    """What to drop because `used` bytes are too many, if there is anything.

    A segment from before there was such a bound may be most of what there is: it is
    trimmed, so that a new bound does not cost all entries. Entries keep a quarter of
    the bound, however much else there is (samples, gaps), which has rules of its own.
    """
    limit, fine = retention.max_bytes, retention.segment_bytes
    held = [segment for segment in segments if segment.rows]
    entries = sum(segment.bytes for segment in held)
    if limit is None or fine is None or used <= limit or entries <= limit // 4:
        return None
    oldest = held[0]
    size = min(used * oldest.bytes // entries, 2 * oldest.bytes)
    if oldest.bytes > 2 * fine and used - size < limit // 2:
        return Cut(oldest.number, max(0.0, 1.0 - (used - limit * 3 // 4) / size))
    return None if oldest is segments[-1] else Cut(oldest.number)


def to_thin(
    segments: Sequence[SegmentAge], retention: Retention, now: int
) -> tuple[int, int] | None:
    """The next segment that holds entries which are not severe enough for its age.

    As (number, the highest severity number that stays). A segment is as old as its
    newest entry, the one that is written to included.
    """
    for segment in segments:
        kept = [level for level, age in retention.lesser if segment.newest < before(now, age)]
        if segment.rows and kept:
            level = min(kept)
            if segment.kept_severity is None or segment.kept_severity > level:
                return segment.number, level
    return None


def before(now: int, age: float) -> int:
    """The moment (µs) that lies `age` seconds before `now`."""
    return now - int(age * 1_000_000)
