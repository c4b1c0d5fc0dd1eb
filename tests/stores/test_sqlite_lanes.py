"""Reading threads: every question ends, and the thread is free for the next."""

from __future__ import annotations

from queue import Empty, Queue
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreClosed, StoreError
from cortextx.stores.sqlite_file import open_writer
from cortextx.stores.sqlite_lanes import INTERRUPT_AGAIN, ReadingLane
from cortextx.stores.sqlite_search import Reader

ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


class PumpedReactor(Clock):
    """A clock whose calls from threads run, and which goes on, while the test waits."""

    def __init__(self) -> None:
        super().__init__()
        self.from_threads: Queue[Any] = Queue()

    def callFromThread(self, callable: Any, *args: Any) -> None:
        self.from_threads.put((callable, args))

    def wait(self, waited: Deferred[Any]) -> Any:
        got: list[Any] = []
        waited.addBoth(got.append)
        for _ in range(500):
            if got:
                break
            try:
                call, args = self.from_threads.get(timeout=0.02)
            except Empty:
                self.advance(INTERRUPT_AGAIN)
            else:
                call(*args)
        if isinstance(got[0], Failure):
            got[0].raiseException()
        return got[0]


class LaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        path = self.mktemp()
        connection = open_writer(path, 0)
        self.addCleanup(connection.close)
        self.reactor = PumpedReactor()
        self.lane = ReadingLane(self.reactor, path, "test", threads=1, seconds=100, most=3)
        self.lane.start()
        self.addCleanup(lambda: self.reactor.wait(self.lane.stop()))
        self.running: Queue[None] = Queue()

    def endless(self, reader: Reader) -> Any:
        self.running.put(None)
        return reader._connection.execute(ENDLESS).fetchone()

    def test_a_question_that_takes_too_long_is_told_so_and_interrupted(self) -> None:
        asked = self.lane.ask(self.endless)
        self.running.get(timeout=10)
        self.reactor.advance(100)
        error = self.failureResultOf(asked, StoreError).value
        self.assertIn("100 s", str(error))
        self.assertEqual(self.reactor.wait(self.lane.ask(lambda reader: 7)), 7)

    def test_waiting_counts(self) -> None:
        """A question behind a slow one is told in time, and then never asked."""
        first = self.lane.ask(self.endless)
        self.running.get(timeout=10)
        asked: list[int] = []
        second = self.lane.ask(lambda reader: asked.append(1))
        self.reactor.advance(100)
        self.failureResultOf(first, StoreError)
        self.failureResultOf(second, StoreError)
        self.reactor.wait(self.lane.ask(lambda reader: None))
        self.assertEqual(asked, [])

    def test_who_cancels_frees_the_thread(self) -> None:
        asked = self.lane.ask(self.endless)
        self.running.get(timeout=10)
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.reactor.wait(self.lane.ask(lambda reader: 7)), 7)
        self.reactor.advance(INTERRUPT_AGAIN)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_too_many_questions_are_refused(self) -> None:
        asked = [self.lane.ask(self.endless) for _ in range(3)]
        self.failureResultOf(self.lane.ask(lambda reader: 7), StoreError)
        for one in asked:
            one.cancel()
            self.failureResultOf(one, CancelledError)
        self.assertEqual(self.reactor.wait(self.lane.ask(lambda reader: 7)), 7)

    def test_stopping_gives_up_what_runs(self) -> None:
        asked = self.lane.ask(self.endless)
        self.running.get(timeout=10)
        stopped = self.lane.stop()
        self.failureResultOf(asked, StoreClosed)
        self.reactor.wait(stopped)
        self.failureResultOf(self.lane.ask(lambda reader: 7), StoreClosed)

    def test_a_question_that_fails_harms_no_other(self) -> None:
        with self.assertRaises(StoreError):
            self.reactor.wait(
                self.lane.ask(lambda reader: reader._connection.execute("SELECT * FROM nothing"))
            )
        self.assertEqual(self.reactor.wait(self.lane.ask(lambda reader: 7)), 7)
