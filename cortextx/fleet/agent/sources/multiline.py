"""Lines that belong together: a stack trace is one record (PURE).

A record of several lines is whole when the next one begins, when it has reached a cap, or
when its file was quiet for the time-out. Until then it stays in the file: the offset never
points into it (A19), so a stop in the middle cuts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cortextx.core.patterns import compiled
from cortextx.fleet.agent.sources.codings import Coding

MATCHED_CHARS = 4096
"""Characters of a line that a pattern sees."""


@dataclass(frozen=True, slots=True)
class Multiline:
    """Which lines belong together. One of two patterns (RE2, found anywhere in a line):
    `start` matches the first line of every record, `continues` every further line.

    `max_lines` and `max_bytes` end a record (it is marked); `timeout` is in seconds.
    """

    start: str | None = None
    continues: str | None = None
    max_lines: int = 500
    max_bytes: int = 262_144
    timeout: float = 5.0


class Found(NamedTuple):
    """Whole records and the bytes they take, newlines included; `held` bytes of whole
    lines behind them wait for the end of their record; `capped` are the indices of
    records that a cap has ended."""

    records: list[bytes]
    size: int
    held: int = 0
    capped: tuple[int, ...] = ()


class Grouping:
    """The rule of one source. Raises core.patterns.PatternError for a pattern that is none."""

    def __init__(self, rule: Multiline) -> None:
        self.rule = rule
        self._begins = rule.start is not None
        self._pattern = compiled(rule.start or rule.continues or "")

    def begins(self, line: bytes, coding: Coding) -> bool:
        """Whether a line is the first of a record."""
        text = line[: 4 * MATCHED_CHARS].decode(coding.codec, "replace")[:MATCHED_CHARS]
        return self._pattern.found_in(text.removeprefix("\ufeff")) is self._begins

    def grouped(
        self,
        lines: Sequence[bytes],
        coding: Coding,
        *,
        alone: bool = False,
        ended: bool = False,
        forced: bool = False,
    ) -> Found:
        """Put consecutive whole lines together.

        `alone`: the first line is the end of a long one, to which nothing is added.
        `ended`: the last record is whole. `forced`: it must end here, as by a cap.
        """
        rule = self.rule
        newline = coding.newline
        records: list[bytes] = []
        capped: list[int] = []
        current: list[bytes] = []
        taken = size = 0
        if alone and lines:
            records.append(lines[0])
            taken = len(lines[0]) + len(newline)
            lines = lines[1:]
        for line in lines:
            length = len(line) + len(newline)
            if current:
                begins = self.begins(line, coding)
                full = len(current) >= rule.max_lines or size + length > rule.max_bytes
                if begins or full:
                    if not begins:
                        capped.append(len(records))
                    records.append(newline.join(current))
                    taken, size, current = taken + size, 0, []
            current.append(line)
            size += length
        if current and (ended or forced):
            if forced:
                capped.append(len(records))
            records.append(newline.join(current))
            taken, size = taken + size, 0
        return Found(records, taken, size, tuple(capped))
