"""Where in the journal a run of `journalctl` stands, and what it may take (PURE).

A run is started at an entry that was read before, and must show that very entry first:
it is dropped, and reading has gone on by exactly one (A26). If another comes, the entry
was vacuumed, and maybe more were: that is a gap. The same entry twice in a row is one
(A29). Numbers that jump within a run, where nothing is filtered, are a doubt: the run
is given up and another started at the last entry, which then is there or is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cortextx.fleet.agent.sources.journal_entries import Key, Record, key_of


@dataclass(frozen=True, slots=True)
class At:
    """At an entry that was read. `sure`: it must be found again, as the filter is the same;
    `jump`: the next number need not follow, for that was the doubt."""

    cursor: str
    sure: bool = True
    jump: bool = False


@dataclass(frozen=True, slots=True)
class Since:
    """At a time (µs UTC); `lost` if something before it could not be read."""

    micros: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Recover:
    """At the oldest entry, since nothing at or behind `cursor` was found. What belongs to
    the same series and is not newer was read."""

    cursor: str


Position = At | Since | Recover
Jumps = Literal["doubt", "gap", "count"]
"""What a jump of numbers is: a reason to look again, a gap, or nothing but counted."""


@dataclass(slots=True)
class Lost:
    """A gap in what was read: `count` entries if that is known."""

    reason: str
    count: int | None


@dataclass(slots=True)
class Taken:
    """What of some records is new. With `doubt`, those from the jump on are not in it;
    `persisted`: a jump that was doubted is still there."""

    kept: list[Record] = field(default_factory=list)
    gaps: list[Lost] = field(default_factory=list)
    repeated: int = 0
    missing: int = 0
    cursor: str | None = None
    doubt: bool = False
    persisted: bool = False


class Trail:
    """The way of one run. `whole`: nothing is filtered, so numbers tell of losses."""

    def __init__(self, position: Position, *, whole: bool) -> None:
        self._whole = whole
        self._sure = isinstance(position, At) and position.sure
        self._again = isinstance(position, At) and position.jump
        self._recovering = isinstance(position, Recover)
        self._owed = isinstance(position, Since) and position.lost
        self._unchecked = False
        self._start: Key | None = None
        self._last: Key | None = None
        self._last_cursor: str | None = None
        self.verified = isinstance(position, Since)
        if not isinstance(position, Since):
            self._start = self._last = key_of(position.cursor)
            self._last_cursor = position.cursor

    def take(self, records: Sequence[Record], jumps: Jumps = "doubt") -> Taken:
        """Go through records in the order in which they came; `jumps` says what those are."""
        taken = Taken()
        kept = taken.kept
        for record in records:
            cursor = record.cursor
            key = key_of(cursor)
            if not self.verified and not self._verify(key, cursor, taken):
                continue
            last = self._last
            if key is None or last is None:
                if cursor == self._last_cursor:
                    taken.repeated += 1
                    continue
            elif key == last:
                taken.repeated += 1
                continue
            elif (
                self._whole
                and key[1] > last[1] + 1
                and key[0] == last[0]
                and not self._jumped(key[1] - last[1] - 1, jumps, taken)
            ):
                break
            if self._owed:
                self._owed = False
                taken.gaps.append(Lost("unreadable", None))
            self._unchecked = self._again = False
            self._last, self._last_cursor = key, cursor
            taken.cursor = cursor
            kept.append(record)
        return taken

    def _verify(self, key: Key | None, cursor: str, taken: Taken) -> bool:
        """Whether this record is new; until one is, the start's own entry is looked for."""
        start = self._start
        if cursor == self._last_cursor or (key is not None and key == start):
            taken.repeated += 1
            self.verified = True
            return False
        if key is not None and start is not None and key.series == start.series:
            if key.number <= start.number:
                taken.repeated += 1
                return False
            count = key.number - start.number - 1 if self._whole else None
        else:
            count = None
        self.verified = self._unchecked = True
        if self._sure or self._recovering:
            taken.gaps.append(Lost("vacuumed", count))
        return True

    def _jumped(self, count: int, jumps: Jumps, taken: Taken) -> bool:
        """Whether to go on beyond a jump of so many numbers."""
        if self._unchecked:
            return True
        if self._again:
            taken.persisted = True
        elif jumps == "doubt":
            taken.doubt = True
            return False
        taken.missing += count
        if jumps != "count":
            last = taken.gaps[-1] if taken.gaps else None
            if last is not None and last.reason == "unreadable" and last.count is not None:
                last.count += count
            else:
                taken.gaps.append(Lost("unreadable", count))
        return True
