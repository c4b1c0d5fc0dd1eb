"""What holds of every session journal. `make_journal` and `settle` are the subclass's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from cortextx.errors import LocalProtocolError, SessionLocked, StoreClosed
from cortextx.interfaces.sessions import ISessionJournal, JournalState, SessionKey
from cortextx.testing.disk import SimulatedDisk

T = TypeVar("T")
KEY = SessionKey(agent="echo", scope="private", session="s", owner=1000)


def line(seq: int, text: str = "x", **more: Any) -> bytes:
    """A line of a log in its least form."""
    import json

    return json.dumps({"session_seq": seq, "text": text, **more}, ensure_ascii=False).encode()


def lines(first: int, count: int, text: str = "x") -> list[bytes]:
    """`count` lines from seq `first` on."""
    return [line(seq, text) for seq in range(first, first + count)]


class JournalSteps:
    """What tests of journals do; mixed into a SynchronousTestCase."""

    def make_journal(self) -> Any:
        """A journal of KEY that is not open."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let everything that was asked for happen."""

    def result(self: Any, deferred: Deferred[T]) -> T:
        """What a Deferred fires with."""
        self.settle()
        answer: T = self.successResultOf(deferred)
        return answer

    def failure(self: Any, deferred: Deferred[Any], *kinds: type[Exception]) -> Any:
        """What a Deferred fails with."""
        self.settle()
        return self.failureResultOf(deferred, *kinds).value

    def opened(self) -> Any:
        """An open journal."""
        journal = self.make_journal()
        self.result(journal.open())
        return journal

    def appended(self, journal: Any, first: int, these: Sequence[bytes]) -> None:
        """Append, and see it durable."""
        self.result(journal.append(first, these))

    def walked(self, journal: Any, after: int, max_lines: int, max_bytes: int) -> list[bytes]:
        """All lines above `after`, page by page."""
        found: list[bytes] = []
        while True:
            page = self.result(journal.read(after, max_lines, max_bytes))
            if not page.lines:
                return found
            assert page.first == after + 1, (page.first, after)
            found.extend(page.lines)
            after += len(page.lines)


class JournalSuite(JournalSteps):
    """The tests; mixed into a SynchronousTestCase."""

    def test_it_provides_the_interface(self: Any) -> None:
        verifyObject(ISessionJournal, self.make_journal())

    def test_a_new_session_is_empty(self: Any) -> None:
        journal = self.make_journal()
        self.assertEqual(self.result(journal.open()), JournalState(1, 0))
        page = self.result(journal.read(0, 10, 1000))
        self.assertEqual((page.first, list(page.lines)), (1, []))

    def test_what_is_appended_is_read_in_order(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 3))
        self.appended(journal, 4, lines(4, 1))
        page = self.result(journal.read(0, 10, 10_000))
        self.assertEqual((page.first, list(page.lines)), (1, lines(1, 4)))

    def test_calls_may_overlap_and_keep_their_order(self: Any) -> None:
        journal = self.opened()
        done: list[int] = []
        for first in range(1, 60, 3):
            journal.append(first, lines(first, 3)).addCallback(lambda _, at=first: done.append(at))
        self.settle()
        self.assertEqual(done, list(range(1, 60, 3)))
        self.assertEqual(self.walked(journal, 0, 7, 10_000), lines(1, 60))

    def test_an_append_of_nothing_does_nothing(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, [])
        self.appended(journal, 1, lines(1, 1))
        self.assertEqual(journal.head, 1)

    def test_what_does_not_follow_the_head_is_refused_and_changes_nothing(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 2))
        for first in (1, 2, 4):
            self.failure(journal.append(first, lines(first, 1)), LocalProtocolError)
        self.appended(journal, 3, lines(3, 1))
        self.assertEqual(self.walked(journal, 0, 10, 10_000), lines(1, 3))

    def test_lines_that_would_make_the_log_unprovable_are_refused(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 1))
        for bad in (b"", b"{}", line(7), line(2) + b"\n", line(2)[:-1], b'{"session_seq":2}{}'):
            self.failure(journal.append(2, [bad]), LocalProtocolError)
            self.failure(journal.append(2, [line(2), bad]), LocalProtocolError)
        self.appended(journal, 2, [line(2)])
        self.assertEqual(self.walked(journal, 0, 10, 10_000), lines(1, 2))

    def test_a_page_keeps_both_bounds_and_has_one_line_at_least(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 50, "y" * 100))
        size = len(line(10, "y" * 100)) + 1
        read = lambda after, most, space: list(self.result(journal.read(after, most, space)).lines)  # noqa: E731
        self.assertEqual(read(9, 3, 10**6), lines(10, 3, "y" * 100))
        self.assertEqual(read(9, 50, 3 * size), lines(10, 3, "y" * 100))
        self.assertEqual(read(9, 50, 3 * size - 1), lines(10, 2, "y" * 100))
        self.assertEqual(read(9, 50, 1), lines(10, 1, "y" * 100))
        self.assertEqual(read(48, 50, 10**6), lines(49, 2, "y" * 100))

    def test_every_cursor_and_page_size_gives_the_same_lines(self: Any) -> None:
        journal = self.opened()
        these = [line(seq, "é" * (seq * 37 % 400)) for seq in range(1, 301)]
        self.appended(journal, 1, these)
        for after in range(0, 300, 23):
            for most in (1, 17, 1000):
                self.assertEqual(self.walked(journal, after, most, 4000), these[after:])

    def test_a_cursor_at_or_beyond_the_head_gets_an_empty_page(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 2))
        for after in (2, 3, 1000):
            self.assertEqual(list(self.result(journal.read(after, 10, 1000)).lines), [])

    def test_a_line_longer_than_any_page_is_read_whole(self: Any) -> None:
        journal = self.opened()
        these = [line(1), line(2, "z" * 500_000), line(3)]
        self.appended(journal, 1, these)
        self.assertEqual(self.walked(journal, 0, 10, 1000), these)

    def test_b28_a_second_open_of_the_same_session_fails_and_names_the_holder(self: Any) -> None:
        # B28, I14
        self.opened()
        fault = self.failure(self.make_journal().open(), SessionLocked)
        self.assertIn("process", fault.holder)

    def test_a_closed_journal_can_be_opened_anew_with_what_it_held(self: Any) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 5))
        self.result(journal.close())
        self.failure(journal.append(6, lines(6, 1)), StoreClosed)
        self.failure(journal.read(0, 10, 1000), StoreClosed)
        again = self.make_journal()
        self.assertEqual(self.result(again.open()), JournalState(1, 5))
        self.appended(again, 6, lines(6, 1))
        self.assertEqual(self.walked(again, 0, 4, 10_000), lines(1, 6))

    def test_close_finishes_what_was_appended_before(self: Any) -> None:
        journal = self.opened()
        appending = journal.append(1, lines(1, 5))
        closing = journal.close()
        self.settle()
        self.successResultOf(appending)
        self.successResultOf(closing)
        self.assertEqual(self.result(self.make_journal().open()), JournalState(1, 5))


class SimulatedSession(SimulatedDisk):
    """A session's directory on a simulated disk; its note outlives a process, not a crash."""

    note: int | None = None

    def writing(self, offset: int) -> None:
        """See JournalDirectory."""
        self.note = offset

    def written(self) -> None:
        """See JournalDirectory."""
        self.note = None

    def unfinished(self) -> int | None:
        """See JournalDirectory."""
        return self.note


class Inline(Clock):
    """A reactor for tests: what a thread would ask of it happens when `run` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, tuple[Any, ...]]] = []

    def callFromThread(self, callable: Any, *args: Any) -> None:
        """Note the call."""
        self.asked.append((callable, args))

    def run(self) -> bool:
        """Make the calls; whether there were any."""
        calls, self.asked = self.asked, []
        for call, args in calls:
            call(*args)
        return bool(calls)
