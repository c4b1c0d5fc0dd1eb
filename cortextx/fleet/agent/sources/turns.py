"""Whose turn it is among many files, and who gives up its descriptor (PURE).

Three kinds of files take turns: those that must be opened first, those just opened, and
those that were read before and have more. So one with much to read and thousands with
one line each all advance, and no more are opened than are read. No step walks
the files: each queue is entered at its end and left at its front (or its end), and a
file that must wait for another is put aside until that one has moved.
"""

from __future__ import annotations

from collections import OrderedDict

from cortextx.fleet.agent.sources.tail import Tail

TURNS = 8
"""Reads after which an open file may be closed, though it has more, if others wait."""

Queue = OrderedDict[int, Tail]


class Turns:
    """The open and the due files of one source, by handle."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._open: dict[int, Tail] = {}
        self._opening = 0
        self._unopened: Queue = OrderedDict()
        self._fresh: Queue = OrderedDict()
        self._again: Queue = OrderedDict()
        self._kinds = (self._unopened, self._fresh, self._again)
        self._kind = 0
        self._idle: Queue = OrderedDict()
        self._spare: Queue = OrderedDict()
        self._sated: Queue = OrderedDict()
        self._waiting: dict[int, Queue] = {}

    @property
    def open_files(self) -> int:
        """Files that are open or being opened."""
        return len(self._open) + self._opening

    @property
    def is_full(self) -> bool:
        """Whether a file must be closed before another is opened."""
        return self.open_files >= self._max_open

    # -- who is due --------------------------------------------------------------------

    def due(self, tail: Tail) -> None:
        """A file has something to read; it goes to the end of its queue, or stays in it."""
        if not tail.is_open:
            self._unopened.setdefault(tail.handle, tail)
            return
        self._not_idle(tail)
        (self._again if tail.turns else self._fresh).setdefault(tail.handle, tail)
        if tail.turns >= TURNS:
            self._sated.setdefault(tail.handle, tail)

    def idle(self, tail: Tail) -> None:
        """A file has nothing to read at present; the one that is so longest closes first."""
        if tail.is_open and tail.handle not in self._spare:
            self._idle.setdefault(tail.handle, tail)

    def wait(self, tail: Tail, other: Tail) -> None:
        """Put a due file aside until `other` has moved."""
        self._waiting.setdefault(other.handle, OrderedDict())[tail.handle] = tail
        self.idle(tail)

    def moved(self, tail: Tail) -> None:
        """Who waited for this file is due again."""
        for other in self._waiting.pop(tail.handle, {}).values():
            if not other.busy:
                self.due(other)

    def look_again(self) -> None:
        """Nobody waits any more: after a scan all who have something to read are due."""
        self._waiting.clear()

    def take(self, *, open_only: bool) -> Tail | None:
        """The next file, out of its queue; with `open_only` none that must be opened."""
        for _ in self._kinds:
            kind = self._kinds[self._kind]
            if kind and not (open_only and kind is self._unopened):
                handle, tail = kind.popitem(last=False)
                self._sated.pop(handle, None)
                return tail
            self._next_kind()
        return None

    def put_back(self, tail: Tail) -> None:
        """This file, which must be opened, cannot be yet: it stays the first of its kind."""
        self._unopened[tail.handle] = tail
        self._unopened.move_to_end(tail.handle, last=False)

    # -- who is open -------------------------------------------------------------------

    def opens(self) -> None:
        """A file is being opened; then it is another kind's turn."""
        self._opening += 1
        self._next_kind()

    def reads(self, tail: Tail) -> None:
        """An open file is being read; then it is another kind's turn."""
        tail.turns += 1
        self._next_kind()
        self._not_idle(tail)

    def not_opened(self) -> None:
        """The opening of a file has ended without one."""
        self._opening -= 1

    def opened(self, tail: Tail) -> None:
        """A file is open."""
        self._opening -= 1
        tail.is_open = True
        tail.turns = 0
        self._open[tail.handle] = tail

    def closed(self, tail: Tail) -> None:
        """A file is closed; if it was due, it is to be opened again."""
        tail.is_open = False
        self._open.pop(tail.handle, None)
        self._not_idle(tail)
        self._sated.pop(tail.handle, None)
        for kind in (self._fresh, self._again):
            if kind.pop(tail.handle, None) is not None:
                self.due(tail)

    def to_close(self) -> Tail | None:
        """The file whose descriptor can best be had: the one idle longest, then rotated
        ones, which can be found again by their new names unless they were deleted, then
        one that has had its turns."""
        while self._idle:
            handle, tail = self._idle.popitem(last=False)
            if tail.stat.nlink and tail.rotated is None:
                return tail
            if tail.stat.nlink:
                self._spare[handle] = tail
        while self._spare:
            tail = self._spare.popitem(last=False)[1]
            if tail.stat.nlink:
                return tail
        while self._sated:
            tail = self._sated.popitem(last=False)[1]
            if tail.stat.nlink and tail.rotated is None:
                return tail
        return None

    def _next_kind(self) -> None:
        self._kind = (self._kind + 1) % len(self._kinds)

    def _not_idle(self, tail: Tail) -> None:
        self._idle.pop(tail.handle, None)
        self._spare.pop(tail.handle, None)
