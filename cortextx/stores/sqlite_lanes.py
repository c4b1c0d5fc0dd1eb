"""Threads that read: a queue, a few threads, and an end to every question.

A question has a deadline from the moment it is asked, waiting included; when that
passes, or when the caller cancels, a running statement is interrupted, so that no
question holds a thread for good.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from cortextx.errors import StoreClosed, StoreError
from cortextx.stores.sqlite_damage import Damage
from cortextx.stores.sqlite_file import open_reader, sqlite_errors
from cortextx.stores.sqlite_search import Reader

T = TypeVar("T")

INTERRUPT_AGAIN = 0.05
"""Seconds after which a question that was given up and still runs is interrupted again."""

ANSWERS_AHEAD = 2
"""Answers of a thread that the reactor may not have taken yet; each may be megabytes."""


class Reactor(Protocol):
    """What a store needs of a reactor."""

    def callFromThread(self, callable: Callable[..., Any], *args: Any) -> None: ...

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any) -> IDelayedCall: ...


class _Question(Generic[T]):
    """One thing asked; the lock keeps an interrupt from hitting the question after it."""

    def __init__(self, ask: Callable[[Reader], T], give_up: Callable[[_Question[T]], None]) -> None:
        self.ask = ask
        self.answer: Deferred[T] = Deferred(lambda _: give_up(self))
        self.deadline: IDelayedCall | None = None
        self.again: IDelayedCall | None = None
        self._lock = threading.Lock()
        self._running: sqlite3.Connection | None = None
        self._given_up = False

    def begin(self, connection: sqlite3.Connection) -> bool:
        """Note on which connection it runs; False when nobody waits for it."""
        with self._lock:
            if not self._given_up:
                self._running = connection
            return not self._given_up

    def ended(self) -> None:
        """Note that its connection is free again."""
        with self._lock:
            self._running = None

    def give_up(self) -> bool:
        """Make it end, wherever it is; whether it still runs."""
        with self._lock:
            self._given_up = True
            if self._running is not None:
                self._running.interrupt()
            return self._running is not None

    def check(self) -> None:
        """Raise if it was given up; the caller is told something else."""
        if self._given_up:
            raise StoreError("the question was given up")


class ReadingLane:
    """A queue of questions and the threads that answer them, each with a connection.

    All methods are called on the reactor's thread. At most `most` questions wait.
    `niceness` is how far the threads stand back where the processor is short.
    """

    def __init__(
        self,
        reactor: Reactor,
        path: str,
        name: str,
        *,
        threads: int,
        seconds: float,
        most: int,
        damage: Damage | None = None,
        niceness: int = 0,
    ) -> None:
        self._reactor = reactor
        self._path = path
        self._niceness = niceness
        self._damage = damage
        self._seconds = seconds
        self._most = most
        self._queue: SimpleQueue[_Question[Any] | None] = SimpleQueue()
        self._open: set[_Question[Any]] = set()
        self._stopped = False
        self._running = 0
        self._ended: Deferred[None] = Deferred()
        self._untaken = threading.Semaphore(threads * ANSWERS_AHEAD)
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads; the database must exist."""
        for thread in self._threads:
            self._running += 1
            thread.start()

    def ask(self, ask: Callable[[Reader], T]) -> Deferred[T]:
        """Run `ask` on one of the threads; fails with StoreError when it takes too long."""
        if self._stopped:
            return fail(StoreClosed("the store is closed"))
        if len(self._open) >= self._most:
            return fail(StoreError(f"{self._most} queries wait already: try again later"))
        question = _Question(ask, self._give_up)
        self._open.add(question)
        question.deadline = self._reactor.callLater(self._seconds, self._too_late, question)
        self._queue.put(question)
        # Also called when the caller cancels: the deadline goes with the question.
        return question.answer.addBoth(self._answered, question)

    def stop(self) -> Deferred[None]:
        """Give up all questions; fires when the threads have ended."""
        if self._stopped:
            return self._ended
        self._stopped = True
        for question in list(self._open):
            self._give_up(question)
            self._tell(question, Failure(StoreClosed("the store was closed")))
        for _ in range(self._running):
            self._queue.put(None)
        if not self._running:
            self._ended.callback(None)
        return self._ended

    def _thread_ended(self) -> None:
        self._running -= 1
        if not self._running and self._stopped:
            self._ended.callback(None)

    def _answered(self, result: Any, question: _Question[Any]) -> Any:
        self._open.discard(question)
        if question.deadline is not None and question.deadline.active():
            question.deadline.cancel()
        return result

    def _give_up(self, question: _Question[Any]) -> None:
        if question.give_up():
            # An interrupt that comes just before a statement begins has no effect.
            question.again = self._reactor.callLater(INTERRUPT_AGAIN, self._give_up, question)

    def _too_late(self, question: _Question[Any]) -> None:
        self._give_up(question)
        error = StoreError(
            f"the query took longer than {self._seconds:g} s:"
            " narrow it by time, by host or by rarer words"
        )
        self._tell(question, Failure(error))

    def _finished(self, question: _Question[Any], result: Any) -> None:
        self._untaken.release()
        if question.again is not None and question.again.active():
            question.again.cancel()
        self._tell(question, result)

    def _tell(self, question: _Question[Any], result: Any) -> None:
        if not question.answer.called:
            question.answer.callback(result)

    def _run(self) -> None:
        reader: Reader | None = None
        connection: sqlite3.Connection | None = None
        stand_back(self._niceness)
        while (question := self._queue.get()) is not None:
            result: Any
            try:
                with sqlite_errors():
                    if connection is None or reader is None:
                        connection = open_reader(self._path)
                        reader = Reader(connection, self._damage)
                    if not question.begin(connection):
                        continue
                    reader.guard(question.check)
                    result = question.ask(reader)
            except Exception:
                result = Failure()
            finally:
                question.ended()
            self._untaken.acquire()
            self._reactor.callFromThread(self._finished, question, result)
            # Not to be kept alive until the next question comes.
            del question, result
        if connection is not None:
            connection.close()
        self._reactor.callFromThread(self._thread_ended)


def stand_back(niceness: int) -> None:
    """Have this thread alone yield the processor to the others, where the system can.

    On Linux a thread has a niceness of its own; elsewhere it is the process's.
    """
    if not niceness or not sys.platform.startswith("linux"):
        return
    own = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + niceness)
    except OSError:
        # A sandbox may forbid it; reading is right without it too.
        return


def as_reactor(reactor: object) -> Reactor:
    """A reactor by its interfaces, as what this module needs of it."""
    return cast(Reactor, reactor)
