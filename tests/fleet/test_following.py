"""Pages that are read once for all who follow with one filter (A64)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.server.following import KEPT_SECONDS, Following
from cortextx.interfaces.fleet import EntryFilter, StoredEntry, TailPage

ALL = EntryFilter()


def page(*ids: int, cursor: int = 0) -> TailPage:
    fields: Any = ("host", "name", 1, 0, 0, 0, 6, None, None, None, "message", "source", None)
    return TailPage([StoredEntry(each, *fields) for each in ids], cursor or ids[-1])


class Slow:
    """A store whose answers are given by the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Deferred[TailPage]] = []

    def tail(self, *question: Any) -> Deferred[TailPage]:
        self.asked.append(question)
        self.answers.append(Deferred())
        return self.answers[-1]


class FollowingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.store = Clock(), Slow()
        store: Any = self.store
        self.following = Following(store, self.clock.seconds)

    def ask(self, after: int = 0, which: EntryFilter = ALL) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.following.page(which, after, 10))

    def test_who_asks_the_same_waits_for_one_read(self) -> None:
        """Tails with one filter at one place share one query and one encoding."""
        asked = [self.ask() for _ in range(3)]
        self.store.answers[0].callback(page(1, 2))
        first, *others = [self.successResultOf(one) for one in asked]
        self.assertEqual((first.ids, first.cursor, len(self.store.asked)), ((1, 2), 2, 1))
        self.assertIn(b'"message":"message"', first.rows[0])
        self.assertTrue(all(one is first for one in others))

    def test_other_questions_are_asked(self) -> None:
        """Another filter or another place is another page."""
        self.ask(), self.ask(1), self.ask(0, EntryFilter(severity_max=3))
        self.assertEqual(len(self.store.asked), 3)

    def test_a_page_is_kept_for_a_moment(self) -> None:
        """Who comes a little later gets the page that was read; later it is read anew."""
        self.ask()
        self.store.answers[0].callback(page(1))
        self.assertEqual(self.successResultOf(self.ask()).ids, (1,))
        self.clock.advance(KEPT_SECONDS)
        self.ask()
        self.assertEqual(len(self.store.asked), 2)

    def test_that_nothing_came_is_not_kept(self) -> None:
        """An entry may have been stored since: a tail that waits for it must see it."""
        self.ask(5)
        self.store.answers[0].callback(page(cursor=5))
        self.ask(5)
        self.assertEqual(len(self.store.asked), 2)

    def test_one_goes_the_others_stay(self) -> None:
        """A read is given up when nobody waits for it any more, and not before."""
        first, second = self.ask(), self.ask()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertFalse(self.store.answers[0].called)
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.assertTrue(self.store.answers[0].called)

    def test_a_failure_is_told_to_all_and_not_kept(self) -> None:
        """Who asks after a failed read has it read again."""
        asked = [self.ask(), self.ask()]
        self.store.answers[0].errback(ValueError("no"))
        for one in asked:
            self.failureResultOf(one, ValueError)
        self.ask()
        self.assertEqual(len(self.store.asked), 2)
