"""What one run of `journalctl` wrote, as bodies for the buffer (PURE).

`work` is for a thread: it splits, decodes, checks and composes some hundred KiB at once.
Memory is bounded by the bytes given and by one line of `MAX_LINE`; what is longer is
passed over, counted, and a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cortextx.fleet.agent.reports import GapReason, gap_reported
from cortextx.fleet.agent.sources.journal_entries import (
    SOURCE,
    Record,
    RecordMapper,
    decode_record,
)
from cortextx.fleet.agent.sources.journal_trail import Jumps, Trail

MAX_LINE = 16 * 2**20
"""Bytes of one line; a message of bytes takes up to five times its size in JSON."""


class Lines:
    """Splits a stream at newlines, in time linear in its bytes.

    A line over the limit is passed over; `oversize` counts the bytes of such lines, each
    once it has ended.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._held = 0
        self._skipped = 0
        self.oversize = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The complete lines without their newlines."""
        lines = data.split(b"\n")
        last = lines.pop()
        if lines:
            if self._skipped:
                self.oversize += self._skipped + len(lines.pop(0))
                self._skipped = 0
            else:
                lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._held = [], 0
        self._hold(last)
        return lines

    def _hold(self, part: bytes) -> None:
        if self._skipped:
            self._skipped += len(part)
        elif part:
            self._rest.append(part)
            self._held += len(part)
            if self._held > self._limit:
                self._skipped = self._held
                self._rest, self._held = [], 0


@dataclass(slots=True)
class Made:
    """What some bytes became. `cursor` (and its time, µs) is the last entry's that was
    looked at, None if none was; `doubt` and `persisted` as of `Taken`."""

    bodies: list[bytes] = field(default_factory=list)
    cursor: str | None = None
    at: int = 0
    read: int = 0
    repeated: int = 0
    own: int = 0
    dropped: int = 0
    malformed: int = 0
    oversize: int = 0
    missing: int = 0
    gaps: int = 0
    doubt: bool = False
    persisted: bool = False


class JournalRun:
    """One run's state. Not thread-safe: one `work` at a time."""

    def __init__(self, trail: Trail, mapper: RecordMapper, max_line: int = MAX_LINE) -> None:
        self._trail = trail
        self._mapper = mapper
        self._lines = Lines(max_line)

    def work(self, chunks: list[bytes], now: int, jumps: Jumps = "doubt") -> Made:
        """Turn bytes into bodies; `now` in µs UTC is for reports of gaps, `jumps` as of
        `Trail.take`."""
        made = Made()
        before = self._lines.oversize
        lines = self._lines.feed(b"".join(chunks))
        records: list[Record] = []
        for line in lines:
            record = decode_record(line)
            if record is not None:
                records.append(record)
            elif line:
                made.malformed += 1
        taken = self._trail.take(records, jumps)
        made.repeated, made.missing = taken.repeated, taken.missing
        made.doubt, made.persisted = taken.doubt, taken.persisted
        made.oversize = self._lines.oversize - before
        bodies = made.bodies
        for gap in taken.gaps:
            reason: GapReason = "unreadable" if gap.reason == "unreadable" else "vacuumed"
            detail = None if gap.count is not None else "how many entries is not known"
            bodies.append(gap_reported(SOURCE, reason, now, count=gap.count, detail=detail))
        if made.oversize:
            bodies.append(gap_reported(SOURCE, "oversize", now, unread_bytes=made.oversize))
        if made.malformed:
            detail = "records that are no JSON"
            bodies.append(
                gap_reported(SOURCE, "unreadable", now, count=made.malformed, detail=detail)
            )
        made.gaps = len(bodies)
        self._compose(taken.kept, made)
        if taken.cursor is not None:
            made.cursor, made.at = taken.cursor, _micros(taken.kept[-1])
        return made

    def _compose(self, records: list[Record], made: Made) -> None:
        mapper, bodies = self._mapper, made.bodies
        for record in records:
            made.read += 1
            if mapper.is_own(record):
                made.own += 1
                continue
            for body in mapper.bodies(record):
                if body is None:
                    made.dropped += 1
                else:
                    bodies.append(body)


def _micros(record: Record) -> int:
    try:
        return int(record.realtime)
    except ValueError:
        return 0
