"""How readers are told that more facts are durable: at once, and then once a turn.

A journal makes many facts durable in one sync and says so one by one. The first is told
at once; what follows in the same turn of the reactor is told together at its end, so
that a hundred readers are woken once or twice for a group, and not for each fact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall


class Heads:
    """See the module; `tell` is called with the newest durable seq."""

    def __init__(self, reactor: Any, tell: Callable[[int], None]) -> None:
        self._reactor = reactor
        self._tell = tell
        self._untold = 0
        self._turn: IDelayedCall | None = None

    def moved(self, head: int) -> None:
        """All facts up to `head` are durable."""
        if self._turn is None:
            self._turn = self._reactor.callLater(0, self._turned)
            self._tell(head)
        else:
            self._untold = head

    def flush(self) -> None:
        """Tell what was not told yet, and leave nothing behind."""
        if self._turn is not None:
            self._turn.cancel()
            self._turned()

    def _turned(self) -> None:
        self._turn = None
        head, self._untold = self._untold, 0
        if head:
            self._tell(head)
