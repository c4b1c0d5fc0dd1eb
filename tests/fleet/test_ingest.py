"""The ingest writer: grouping, order of answers, and what a failed append takes along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import Gauge
from cortextx.errors import StoreClosed, StoreFull
from cortextx.fleet.server.ingest import IngestWriter
from cortextx.interfaces.fleet import Appended, LogBatch


def batch(host: str, first: int, count: int = 1, size: int = 10) -> LogBatch:
    entries: list[Any] = [None] * count
    return LogBatch(host, first, entries, received_at=0, size=size)


class SlowStore:
    """Appends when told to; `appends` are the groups that were asked for."""

    def __init__(self) -> None:
        self.appends: list[tuple[Sequence[LogBatch], Deferred[list[Appended]]]] = []

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        asked: Deferred[list[Appended]] = Deferred()
        self.appends.append((batches, asked))
        return asked

    def finish(self, index: int) -> None:
        batches, asked = self.appends[index]
        asked.callback([Appended(one.last, len(one.entries)) for one in batches])

    def fail(self, index: int, error: Exception) -> None:
        self.appends[index][1].errback(error)


class InstantStore(SlowStore):
    """Has done its work when `append` returns, as a store in memory."""

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        asked = super().append(batches)
        self.finish(len(self.appends) - 1)
        return asked


class Session:
    """Notes what it hears; `then` is called once, in the midst of hearing."""

    def __init__(self, name: str, heard: list[Any]) -> None:
        self.name = name
        self.heard = heard
        self.then: Any = None

    def stored(self, key: int, appended: Appended) -> None:
        self.heard.append((self.name, key, appended.up_to_seq))
        self._then()

    def not_stored(self, key: int, error: Exception) -> None:
        self.heard.append((self.name, key, type(error).__name__))
        self._then()

    def _then(self) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()


class IngestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.heard: list[Any] = []
        self.a = Session("a", self.heard)
        self.b = Session("b", self.heard)
        self.gauge = Gauge(1000, 2000)
        self.store = SlowStore()
        self.writer = IngestWriter(self.store, self.gauge, max_batches=3, max_entries=100)

    def push(self, session: Session, key: int, count: int = 1) -> None:
        pushed = batch(session.name, key, count)
        self.gauge.reserve(pushed.size)
        self.writer.submit(session, key, pushed)

    def groups(self) -> list[list[int]]:
        return [[one.seq_start for one in batches] for batches, _ in self.store.appends]


class Grouping(IngestCase):
    def test_an_idle_writer_does_not_wait(self) -> None:
        """The first batch is on its way to the store when `submit` returns (F10)."""
        self.push(self.a, 1)
        self.assertEqual(self.groups(), [[1]])

    def test_what_waits_goes_in_one_transaction(self) -> None:
        """All that came during an append goes in the next one, in order, up to the bounds."""
        for key in range(1, 7):
            self.push(self.a if key % 2 else self.b, key)
        self.assertEqual(self.groups(), [[1]])
        self.store.finish(0)
        self.assertEqual(self.groups(), [[1], [2, 3, 4]])
        self.store.finish(1)
        self.assertEqual(self.groups(), [[1], [2, 3, 4], [5, 6]])

    def test_entries_bound_a_transaction(self) -> None:
        """A group ends before the batch that would take it beyond `max_entries`."""
        self.push(self.a, 1)
        self.push(self.a, 2, 60)
        self.push(self.a, 3, 41)
        self.push(self.a, 4, 59)
        self.store.finish(0)
        self.assertEqual(self.groups()[1:], [[2]])
        self.store.finish(1)
        self.assertEqual(self.groups()[2:], [[3, 4]])

    def test_a_batch_beyond_the_bound_goes_alone(self) -> None:
        """A single batch of more than `max_entries` is stored all the same."""
        self.push(self.a, 1, 500)
        self.assertEqual(self.groups(), [[1]])

    def test_one_append_at_a_time(self) -> None:
        """No second append begins while one is in flight."""
        self.push(self.a, 1)
        self.push(self.b, 2)
        self.assertEqual(len(self.store.appends), 1)


class Answers(IngestCase):
    def test_nothing_is_said_before_it_is_durable(self) -> None:
        """A session hears of its batch when the append has fired, not before (F10)."""
        self.push(self.a, 1)
        self.assertEqual(self.heard, [])
        self.store.finish(0)
        self.assertEqual(self.heard, [("a", 1, 1)])

    def test_answers_come_in_order(self) -> None:
        """Sessions hear of their batches in the order in which they pushed them."""
        for key in range(1, 6):
            self.push(self.a if key < 4 else self.b, key)
        self.store.finish(0)
        self.store.finish(1)
        self.store.finish(2)
        self.assertEqual([key for _, key, _ in self.heard], [1, 2, 3, 4, 5])

    def test_order_holds_for_a_store_that_answers_at_once(self) -> None:
        """A push made while answers are given is answered after those."""
        self.writer = IngestWriter(InstantStore(), self.gauge)
        self.a.then = lambda: self.push(self.a, 2)
        self.push(self.a, 1)
        self.assertEqual([key for _, key, _ in self.heard], [1, 2])

    def test_the_store_goes_on_while_answers_are_given(self) -> None:
        """The next append has begun before the first answer of the last one is given."""
        begun: list[int] = []
        self.a.then = lambda: begun.append(len(self.store.appends))
        self.push(self.a, 1)
        self.push(self.a, 2)
        self.store.finish(0)
        self.assertEqual(begun, [2])

    def test_a_session_that_fails_harms_no_other(self) -> None:
        """An exception in one session's handling is logged, and the next one hears."""

        def fault() -> None:
            raise RuntimeError("a bug")

        self.push(self.b, 1)
        self.a.then = fault
        self.push(self.a, 2)
        self.push(self.b, 3)
        self.store.finish(0)
        self.store.finish(1)
        self.assertEqual([key for _, key, _ in self.heard], [1, 2, 3])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_the_budget_is_given_back(self) -> None:
        """A batch's bytes are released when it is done with, stored or not."""
        self.push(self.a, 1)
        self.push(self.a, 2)
        self.assertEqual(self.gauge.used, 20)
        self.store.finish(0)
        self.assertEqual(self.gauge.used, 10)
        self.store.fail(1, StoreFull("full"))
        self.assertEqual(self.gauge.used, 0)


class Failures(IngestCase):
    def test_a_failure_takes_along_all_that_waits(self) -> None:
        """Nothing that queued behind a failed append is stored: it would turn a refusal
        into loss (F33)."""
        self.push(self.a, 1)
        self.push(self.a, 2)
        self.push(self.b, 3)
        self.push(self.a, 4)
        self.push(self.a, 5)
        self.store.fail(0, StoreFull("full"))
        self.assertEqual(len(self.store.appends), 1)
        self.assertEqual(
            self.heard,
            [(name, key, "StoreFull") for key, name in enumerate("aabaa", 1)],
        )
        self.assertEqual(self.writer.depth, 0)

    def test_the_writer_goes_on_after_a_failure(self) -> None:
        """What is pushed after a failure is appended as ever."""
        self.push(self.a, 1)
        self.store.fail(0, StoreFull("full"))
        self.push(self.a, 1)
        self.store.finish(1)
        self.assertEqual(self.heard, [("a", 1, "StoreFull"), ("a", 1, 1)])

    def test_a_store_that_raises_is_a_failed_append(self) -> None:
        """An append that raises instead of failing is answered, and logged as our fault."""

        class Broken(SlowStore):
            def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
                raise RuntimeError("a bug")

        self.writer = IngestWriter(Broken(), self.gauge)
        self.push(self.a, 1)
        self.assertEqual(self.heard, [("a", 1, "RuntimeError")])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_push_made_while_refusals_are_told_is_new(self) -> None:
        """A session that pushes again on hearing of a refusal is not refused along."""
        self.push(self.a, 1)
        self.push(self.a, 2)
        self.b.then = None
        self.a.then = lambda: self.push(self.b, 9)
        self.store.fail(0, StoreFull("full"))
        self.assertEqual(self.groups()[1:], [[9]])


class Ending(IngestCase):
    def test_idle_waits_for_the_last_answer(self) -> None:
        """`idle` fires when the last batch has been answered, at once if there is none."""
        self.successResultOf(self.writer.idle())
        self.push(self.a, 1)
        waiting = self.writer.idle()
        self.assertNoResult(waiting)
        self.store.finish(0)
        self.successResultOf(waiting)

    def test_a_closed_writer_refuses(self) -> None:
        """After `close` a push is refused, what was taken before is stored."""
        self.push(self.a, 1)
        closing = self.writer.close()
        self.push(self.b, 2)
        self.assertEqual(self.heard, [("b", 2, StoreClosed.__name__)])
        self.assertNoResult(closing)
        self.store.finish(0)
        self.successResultOf(closing)

    def test_a_commit_is_told_to_whom_it_may_concern(self) -> None:
        """`next_commit` fires after an append; one that was cancelled is forgotten."""
        first, second = self.writer.next_commit(), self.writer.next_commit()
        second.addErrback(lambda _: None)
        second.cancel()
        self.push(self.a, 1)
        self.assertNoResult(first)
        self.store.finish(0)
        self.successResultOf(first)
        self.assertNoResult(self.writer.next_commit())
