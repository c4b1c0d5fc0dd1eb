"""A journal that sheds its oldest quarter (I38)."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.trimming import trimming
from cortextx.errors import StoreFull
from cortextx.interfaces.sessions import ISessionJournal, JournalPage, JournalState, SessionKey

KEY = SessionKey(agent="echo", scope="private", session="default", owner=1000)


class Paper:
    """A journal whose lines have the sizes that they are said to have; `least` must stay."""

    def __init__(self, size: int = 0, least: int = 0) -> None:
        self.key = KEY
        self.size = size
        self.least = least
        self.kept: list[int] = []
        self.fault: Exception | None = None
        self.waits: Deferred[None] | None = None

    def open(self) -> Deferred[JournalState]:
        return succeed(JournalState(1, 9))

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        self.size += sum(map(len, lines))
        return succeed(None)

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        return succeed(JournalPage(after + 1, (b"line",)))

    def retain(self, keep_bytes: int) -> Deferred[JournalState]:
        self.kept.append(keep_bytes)
        if self.fault is not None:
            return fail(self.fault)
        if self.waits is not None:
            return self.waits.addCallback(lambda _: self._retained(keep_bytes))
        return succeed(self._retained(keep_bytes))

    def _retained(self, keep_bytes: int) -> JournalState:
        self.size = max(keep_bytes, self.least)
        return JournalState(5, 9)

    def close(self) -> Deferred[None]:
        return succeed(None)


class Trimming(SynchronousTestCase):
    def opened(self, paper: Paper) -> tuple[ISessionJournal, JournalState]:
        journal = trimming(lambda key: paper, 1000)(KEY)
        return journal, self.successResultOf(journal.open())

    def test_a_small_log_is_left_alone(self) -> None:
        """At its bound nothing goes, neither when opened nor after an append."""
        paper = Paper(900)
        journal, state = self.opened(paper)
        journal.append(10, [b"x" * 100])
        self.assertEqual((paper.kept, state), ([], JournalState(1, 9)))
        self.assertEqual(self.successResultOf(journal.read(3, 1, 1)), JournalPage(4, (b"line",)))

    def test_a_big_log_is_trimmed_as_it_is_opened(self) -> None:
        """Who opens it is told what is retained."""
        paper = Paper(1001)
        _, state = self.opened(paper)
        self.assertEqual((paper.kept, state), ([750], JournalState(5, 9)))

    def test_an_append_beyond_the_bound_sheds_a_quarter(self) -> None:
        """One rewriting buys room for a quarter of the bound."""
        paper = Paper(900)
        journal, _ = self.opened(paper)
        for _ in range(60):
            journal.append(10, [b"x" * 10])
        self.assertEqual(paper.kept, [750, 750])

    def test_while_one_goes_on_no_other_begins(self) -> None:
        """Appends do not wait for it, nor do they ask for it again."""
        paper = Paper(900)
        paper.waits = Deferred()
        journal, _ = self.opened(paper)
        for _ in range(20):
            self.successResultOf(journal.append(10, [b"x" * 10]))
        self.assertEqual(paper.kept, [750])
        paper.waits.callback(None)
        self.assertEqual(paper.size, 750)

    def test_what_must_stay_is_not_tried_over_and_over(self) -> None:
        """A log above its bound for an unfinished run is tried once a quarter."""
        paper = Paper(900, least=2000)
        journal, _ = self.opened(paper)
        journal.append(10, [b"x" * 200])
        for _ in range(25):
            journal.append(10, [b"x" * 10])
        self.assertEqual(paper.kept, [750])
        journal.append(10, [b"x" * 10])
        self.assertEqual(paper.kept, [750, 750])

    def test_a_failure_costs_nothing_but_room(self) -> None:
        """Where the disk is full the log is opened and goes on as it was."""
        paper = Paper(2000)
        paper.fault = StoreFull("no space")
        with capturedLogs() as logs:
            journal, state = self.opened(paper)
            self.successResultOf(journal.append(10, [b"x"]))
        self.assertEqual(state, JournalState(1, 9))
        self.assertEqual([event["log_level"] for event in logs], [LogLevel.warn])

    def test_nothing_is_trimmed_once_it_closes(self) -> None:
        """Closing waits for no rewriting."""
        paper = Paper(900)
        journal, _ = self.opened(paper)
        closed = journal.close()
        journal.append(10, [b"x" * 200])
        self.successResultOf(closed)
        self.assertEqual(paper.kept, [])
