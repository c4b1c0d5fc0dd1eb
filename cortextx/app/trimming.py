"""A session's journal that sheds its oldest quarter whenever it has grown too big (I38).

It is looked at when it is opened and after each append. What may not go stays, so the
log can be above its bound; it is tried again once it has grown by another quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from cortextx.interfaces.sessions import (
    ISessionJournal,
    JournalPage,
    JournalState,
    SessionKey,
)


class Retaining(Protocol):
    """The journal beneath: an ISessionJournal that knows its size, in bytes."""

    key: SessionKey

    @property
    def size(self) -> int:
        """Durable bytes of the log."""

    def open(self) -> Deferred[JournalState]:
        """See ISessionJournal."""

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        """See ISessionJournal."""

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        """See ISessionJournal."""

    def retain(self, keep_bytes: int) -> Deferred[JournalState]:
        """Drop the oldest lines until about `keep_bytes` are left, as far as may be."""

    def close(self) -> Deferred[None]:
        """See ISessionJournal."""


def trimming(
    open_journal: Callable[[SessionKey], Retaining], max_bytes: int
) -> Callable[[SessionKey], ISessionJournal]:
    """Make journals that `open_journal` gives keep to `max_bytes`."""

    def trimmed(key: SessionKey) -> ISessionJournal:
        journal: ISessionJournal = TrimmedJournal(open_journal(key), max_bytes)
        return journal

    return trimmed


@implementer(ISessionJournal)
class TrimmedJournal:
    """See the module."""

    log = Logger()

    def __init__(self, journal: Retaining, max_bytes: int) -> None:
        self.key = journal.key
        self._journal = journal
        self._max = max_bytes
        self._bound = max_bytes
        self._is_trimming = False

    def open(self) -> Deferred[JournalState]:
        """See ISessionJournal."""
        return self._journal.open().addCallback(self._opened)

    def _opened(self, state: JournalState) -> JournalState | Deferred[JournalState]:
        if self._journal.size <= self._bound:
            return state
        # A log that cannot be rewritten (a full disk) is as good as it was.
        return self._trim().addCallback(lambda trimmed: trimmed or state)

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        """See ISessionJournal."""
        return self._journal.append(first, lines).addCallback(self._appended)

    def _appended(self, _: None) -> None:
        if self._journal.size > self._bound and not self._is_trimming:
            self._trim()

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        """See ISessionJournal."""
        return self._journal.read(after, max_lines, max_bytes)

    def close(self) -> Deferred[None]:
        """See ISessionJournal."""
        self._is_trimming = True
        return self._journal.close()

    def _trim(self) -> Deferred[JournalState | None]:
        """Fires with what is retained, or None where that failed; never fails."""
        self._is_trimming = True
        before = self._journal.size

        def trimmed(state: JournalState) -> JournalState:
            self.log.info(
                "{key}: the log had {before} bytes; it begins with {first} now and has {size}",
                key=self.key,
                before=before,
                first=state.first,
                size=self._journal.size,
            )
            return state

        def failed(failure: object) -> None:
            self.log.warn("{key}: the log was not trimmed: {why}", key=self.key, why=failure)

        def over(result: JournalState | None) -> JournalState | None:
            self._is_trimming = False
            self._bound = max(self._max, self._journal.size + self._max // 4)
            return result

        kept = self._journal.retain(self._max - self._max // 4)
        return kept.addCallbacks(trimmed, failed).addCallback(over)
