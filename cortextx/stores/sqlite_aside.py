"""Long work on the database beside everything else: a thread for each piece of it.

For backups and checks, which are few and last for minutes. They end early when
the store is stopped or when the caller cancels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from cortextx.errors import StoreClosed, StoreError
from cortextx.stores.sqlite_lanes import Reactor

T = TypeVar("T")

MOST = 2
"""Pieces of work at a time."""


class LongWork:
    """All methods are the reactor thread's."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._given_up: list[threading.Event] = []
        self._stopped = False
        self._ended: Deferred[None] = Deferred()

    def run(self, work: Callable[[Callable[[], bool]], T]) -> Deferred[T]:
        """Run `work` on a thread; it is given what says whether to carry on."""
        if self._stopped:
            return fail(StoreClosed("the store is closed"))
        if len(self._given_up) >= MOST:
            return fail(StoreError(f"{MOST} backups or checks run already: try again later"))
        given_up = threading.Event()
        self._given_up.append(given_up)
        answer: Deferred[T] = Deferred(lambda _: given_up.set())

        def run() -> None:
            result: Any
            try:
                result = work(lambda: not given_up.is_set())
            except Exception:
                result = Failure()
            self._reactor.callFromThread(self._done, given_up, answer, result)

        threading.Thread(target=run, name="store-aside", daemon=True).start()
        return answer

    def stop(self) -> Deferred[None]:
        """Give up all of it; fires when the threads are done."""
        if not self._stopped:
            self._stopped = True
            for given_up in self._given_up:
                given_up.set()
            if not self._given_up:
                self._ended.callback(None)
        waiting: Deferred[None] = Deferred()
        self._ended.chainDeferred(waiting)
        return waiting

    def _done(self, given_up: threading.Event, answer: Deferred[Any], result: Any) -> None:
        self._given_up.remove(given_up)
        if not answer.called:
            answer.callback(result)
        # Whoever was answered may have stopped it, and so ended it already.
        if self._stopped and not self._given_up and not self._ended.called:
            self._ended.callback(None)
