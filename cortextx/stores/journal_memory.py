"""The journal of a temp session: in memory, and gone with the process (I18).

It is also the reference for what a journal does.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from cortextx.errors import LocalProtocolError, SessionLocked, StoreClosed
from cortextx.interfaces.sessions import ISessionJournal, JournalPage, JournalState, SessionKey
from cortextx.stores.journal_proof import Doubt, check_new_lines


@implementer(ISessionJournal)
class MemoryJournal:
    """See ISessionJournal. What it holds outlives `close`, and may be opened again."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.first = 1
        self.size = 0
        self._lines: list[bytes] = []
        self._opened = False

    @property
    def head(self) -> int:
        """The newest seq."""
        return self.first + len(self._lines) - 1

    def open(self) -> Deferred[JournalState]:
        """See ISessionJournal."""
        if self._opened:
            return fail(SessionLocked("this process"))
        self._opened = True
        return succeed(JournalState(self.first, self.head))

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        """See ISessionJournal."""
        if not self._opened:
            return fail(StoreClosed("the session's log is not open"))
        if first != self.head + 1:
            return fail(LocalProtocolError(f"expected seq {self.head + 1} to follow, not {first}"))
        data = b"".join(line + b"\n" for line in lines)
        try:
            if lines:
                check_new_lines(data, len(lines), first)
        except Doubt as doubt:
            return fail(LocalProtocolError(f"not a line of a log: {doubt.why}"))
        self._lines.extend(lines)
        self.size += len(data)
        return succeed(None)

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        """See ISessionJournal."""
        if not self._opened:
            return fail(StoreClosed("the session's log is not open"))
        first = max(after + 1, self.first)
        lines = self._lines[first - self.first :][:max_lines]
        taken = count = 0
        for line in lines:
            taken += len(line) + 1
            if count and taken > max_bytes:
                break
            count += 1
        return succeed(JournalPage(first, lines[:count]))

    def retain(self, keep_bytes: int) -> Deferred[JournalState]:
        """Keep everything: a temp session ends with its process."""
        return succeed(JournalState(self.first, self.head))

    def close(self) -> Deferred[None]:
        """See ISessionJournal."""
        self._opened = False
        return succeed(None)
