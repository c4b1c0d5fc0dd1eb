"""A session's facts on their way to its journal: some groups at once, the rest gathers.

A run that talks fast decides on many facts while a disk syncs. They go to the journal as
one group, and come back as one, so that what an append costs (and what each of a hundred
readers does when the head moves) is paid once a group and not for each fact. A fact that
comes alone does not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

GROUPS_IN_FLIGHT = 2
"""Groups that the journal has at once: one is synced while the next is being written."""


class Appending:
    """See the module. `append` is the journal's.

    `appended` is told of each group that is durable, in order; `failed` that no more
    will be: what gathered is dropped then.
    """

    log = Logger()

    def __init__(
        self,
        append: Callable[[int, Sequence[bytes]], Deferred[None]],
        appended: Callable[[int, Sequence[bytes]], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._append = append
        self._told_appended = appended
        self._told_failed = failed
        self._flying: deque[tuple[int, Sequence[bytes]]] = deque()
        self._first = 0
        self._gathered: list[bytes] = []

    def add(self, first: int, lines: Sequence[bytes]) -> None:
        """Append facts, from `first` on, behind all that were added before."""
        if not self._gathered:
            self._first = first
        self._gathered.extend(lines)
        if len(self._flying) < GROUPS_IN_FLIGHT:
            self.flush()

    def flush(self) -> None:
        """Hand over what gathered, however much the journal has already."""
        if not self._gathered:
            return
        first, lines = self._first, self._gathered
        self._gathered = []
        self._flying.append((first, lines))
        done = self._append(first, lines)
        done.addCallbacks(self._appended, self._failed)
        done.addErrback(lambda failure: self.log.failure("publishing failed", failure))

    def _appended(self, _: None) -> None:
        first, lines = self._flying.popleft()
        self.flush()
        self._told_appended(first, lines)

    def _failed(self, failure: Failure) -> None:
        self._gathered.clear()
        self._told_failed(failure)
