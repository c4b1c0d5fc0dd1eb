"""The search for the one entry that a server will never take (PURE, F25, F35).

The contract refuses a batch whole. So a refused run of entries is halved until
the entry stands alone; only when it alone was refused three times is it given
up. The rest of the run passes on the way.
"""

from __future__ import annotations

TIMES = 3
"""How often an entry must be refused alone before it is set aside (F35)."""


class PoisonSearch:
    """What is known of refused runs; `limit` says how many entries to send next."""

    __slots__ = ("_first", "_last", "_times")

    def __init__(self) -> None:
        self._first = 0
        self._last = 0
        self._times: dict[int, int] = {}

    @property
    def searching(self) -> bool:
        """Whether a refused run has not been got past yet; then pushes go one at a time."""
        return self._last > 0

    def limit(self, first: int, most: int) -> int:
        """The number of entries that a push from `first` may carry, `most` otherwise.

        Within a refused run it is half of what remains, so that the bad entry
        is found in a logarithmic number of pushes.
        """
        if not self.searching or not self._first <= first <= self._last:
            return most
        return min(most, max(1, (self._last - first + 1) // 2))

    def refused(self, first: int, last: int) -> int | None:
        """Note that the push of `first` to `last` was refused for what it holds.

        Returns the seq to set aside, if it is now sure, else None.
        """
        if first == last:
            times = self._times.get(first, 0) + 1
            self._times[first] = times
            if times >= TIMES:
                self.forget(first)
                return first
        if not self.searching or first < self._first or last <= self._last:
            self._first, self._last = first, last
        return None

    def passed(self, acked: int) -> None:
        """Note that all up to `acked` is durable: nothing there is suspect any more."""
        self._times = {seq: times for seq, times in self._times.items() if seq > acked}
        if acked >= self._last:
            self._first = self._last = 0

    def forget(self, seq: int) -> None:
        """Note that `seq` was set aside, and with it the run in which it was found."""
        self._times.pop(seq, None)
        self._first = self._last = 0

    def clear(self) -> None:
        """Forget everything: the entries have got new numbers (F2)."""
        self._times.clear()
        self._first = self._last = 0
