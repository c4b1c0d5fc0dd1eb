"""The newest lines of the logs in memory, so that live followers need no disk (PURE).

All tails share one budget: the tails of sessions that are quiet longest go first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

from cortextx.interfaces.sessions import JournalPage

CACHE_BYTES = 32 * 2**20
"""Bytes of lines in all tails together."""
TAIL_BYTES = 2**20
"""Bytes of lines in one tail."""
LINE_OVERHEAD = 96
"""Bytes that a line costs beside its text."""


class Caches:
    """What all tails hold together."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._held = 0
        self._tails: OrderedDict[Tail, int] = OrderedDict()

    def held(self, tail: Tail, size: int) -> None:
        """Note that `tail` has grown or shrunk to `size` bytes, and make room."""
        self._held += size - self._tails.pop(tail, 0)
        if size:
            self._tails[tail] = size
        while self._held > self._limit and self._tails:
            next(iter(self._tails)).clear()


class Tail:
    """The newest durable lines of one log."""

    def __init__(self, caches: Caches, limit: int = TAIL_BYTES) -> None:
        self._caches = caches
        self._limit = limit
        self._first = 1
        self._lines: list[bytes] = []
        self._ends: list[int] = []  # of each line, counted on and on

    def add(self, first: int, lines: Sequence[bytes]) -> None:
        """Take lines that have become durable, with the seqs from `first` on."""
        if not self._lines:
            self._first = first
        end = self._ends.pop() if self._ends else 0
        self._ends.extend(accumulate([len(line) + 1 for line in lines], initial=end))
        if not self._lines:
            del self._ends[0]  # where the first line begins is no line's end
        self._lines.extend(lines)
        if self._size() > self._limit:
            self._shrink()
        self._caches.held(self, self._size())

    def page(self, after: int, max_lines: int, max_bytes: int) -> JournalPage | None:
        """A page as a journal gives it, or None if it begins before the tail."""
        at = after + 1 - self._first
        if at < 0 or at >= len(self._lines):
            return None
        begin = self._begin(at)
        stop = min(at + max_lines, bisect_right(self._ends, begin + max_bytes))
        return JournalPage(after + 1, self._lines[at : max(stop, at + 1)])

    def clear(self) -> None:
        """Hold nothing."""
        self._lines = []
        self._ends = []
        self._caches.held(self, 0)

    def _begin(self, at: int) -> int:
        return self._ends[at] - len(self._lines[at]) - 1

    def _size(self) -> int:
        if not self._lines:
            return 0
        return self._ends[-1] - self._begin(0) + LINE_OVERHEAD * len(self._lines)

    def _shrink(self) -> None:
        while self._lines and self._size() > self._limit // 2:
            drop = len(self._lines) // 2 + 1
            del self._lines[:drop]
            del self._ends[:drop]
            self._first += drop
