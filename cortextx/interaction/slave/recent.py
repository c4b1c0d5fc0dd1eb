"""Facts without the wait for a disk, and facts from wherever they are (I38).

Most readers are at the head: the newest facts are kept as lines and as what frames are
made of, so that a hundred readers cost one encoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cortextx.errors import JsonError
from cortextx.interaction.slave.actions import Facts
from cortextx.interaction.slave.lines import read_line, tail_of
from cortextx.interfaces.sessions import ISessionJournal

RECENT_BYTES = 262_144
"""Bytes of the newest facts that readers at the head get without the journal."""
PAGE_LINES = 4096
PAGE_BYTES = 262_144


class Recent:
    """The newest durable facts, without a hole up to the head."""

    def __init__(self, max_bytes: int = RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._facts: deque[tuple[bytes, bytes]] = deque()
        self._first = 1
        self._bytes = 0
        self._asked: tuple[int, int, int] | None = None
        self._page: Facts | None = None

    def keep(self, first: int, lines: Sequence[bytes]) -> None:
        """Facts from `first` on became durable, behind those that are kept."""
        self._asked = None
        if not self._facts:
            self._first = first
        for line in lines:
            tail = tail_of(line)
            self._facts.append((line, tail))
            self._bytes += len(line) + len(tail)
        while self._bytes > self._max_bytes:
            line, tail = self._facts.popleft()
            self._first += 1
            self._bytes -= len(line) + len(tail)

    def page(self, after: int, max_lines: int, max_bytes: int) -> Facts | None:
        """Facts behind `after` within both bounds, at least one; None if they are not here.

        Readers at the head ask for the same one after the other: they share the answer.
        """
        asked = (after, max_lines, max_bytes)
        if asked != self._asked:
            self._asked, self._page = asked, self._made(after, max_lines, max_bytes)
        return self._page

    def _made(self, after: int, max_lines: int, max_bytes: int) -> Facts | None:
        start = after + 1 - self._first
        if start < 0 or start >= len(self._facts):
            return None
        lines: list[bytes] = []
        tails: list[bytes] = []
        size = 0
        for n in range(start, min(len(self._facts), start + max_lines)):
            line, tail = self._facts[n]
            size += len(tail)
            if lines and size > max_bytes:
                break
            lines.append(line)
            tails.append(tail)
        return Facts(after + 1, lines, tails)


async def fetch(journal: ISessionJournal, seqs: Sequence[int]) -> Facts:
    """The facts with these seqs, those included that retention carried on (I38)."""
    lines = [await _fetch(journal, seq) for seq in seqs]
    found = [line for line in lines if line is not None]
    return Facts(seqs[0], found, [tail_of(line) for line in found])


async def _fetch(journal: ISessionJournal, seq: int) -> bytes | None:
    page = await journal.read(seq - 1, 1, 1)
    if page.lines and page.first == seq:
        return bytes(page.lines[0])
    at = 0  # retention may have carried it on, in whatever line it found room
    while True:
        page = await journal.read(at, PAGE_LINES, PAGE_BYTES)
        if not page.lines:
            return None
        for line in page.lines:
            for carried in _carried(line):
                if read_line(carried).session_seq == seq:
                    return carried
        at = page.first + len(page.lines) - 1


def _carried(line: bytes) -> list[bytes]:
    try:
        beside = read_line(line).x
    except JsonError:
        return []
    return [] if beside is None else [bytes(raw) for raw in beside.carried]
