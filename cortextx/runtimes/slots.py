"""How many may go at once; further ones wait in order (PURE)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Begin = Callable[[], None]


class Slots:
    """`count` slots, given in the order in which they were asked for."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Begin] = deque()

    def ask(self, begin: Begin) -> None:
        """Call `begin` as soon as a slot is free, at once if one is; it has the slot then."""
        if self._free:
            self._free -= 1
            begin()
        else:
            self._waiting.append(begin)

    def withdraw(self, begin: Begin) -> bool:
        """Wait no more; answers whether it still waited."""
        try:
            self._waiting.remove(begin)
        except ValueError:
            return False
        return True

    def give_back(self) -> None:
        """Give a slot back, to the next one that waits."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1
