"""What the API holds for its clients at a time: bytes of answers, streams, searches.

All of it is bounded for each token and in all, so that a client that asks much and
reads nothing costs a known amount of memory, and takes no other client's place.
Over a bound a request is refused: 429 where the token has its share already, 503
where all of it is taken, both with Retry-After.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from cortextx.errors import CortexError
from cortextx.web.problems import RETRY_SECONDS, Problem

PIECE_BYTES = 65_536
"""What is written at a time, waiting for the reader in between."""


class FlowLimits(Protocol):
    """The bounds; the table `[server]` of the settings has them."""

    @property
    def api_answer_bytes(self) -> int: ...
    @property
    def api_answer_bytes_per_token(self) -> int: ...
    @property
    def api_tails(self) -> int: ...
    @property
    def api_tails_per_token(self) -> int: ...
    @property
    def api_searches_per_token(self) -> int: ...


class Flow:
    """Counts what is under way. `limits` are asked each time: a reload may change them."""

    def __init__(self, limits: Callable[[], FlowLimits]) -> None:
        self._limits = limits
        self._bytes: Counter[str] = Counter()
        self._tails: Counter[str] = Counter()
        self._searches: Counter[str] = Counter()
        self._turns: dict[str, DeferredLock] = {}

    @property
    def unread(self) -> int:
        """Bytes of answers that have not been taken yet."""
        return self._bytes.total()

    def check(self, who: str) -> None:
        """Raise Problem if no more can be sent to that token now: so nothing is begun."""
        self._room(who, 1)

    @contextmanager
    def sending(self, who: str, size: int) -> Iterator[None]:
        """While an answer of `size` bytes is sent; raises Problem where it has no room.

        An answer above the bounds is sent all the same when it is the only one.
        """
        self._room(who, size)
        with _counted(self._bytes, who, size):
            yield

    @contextmanager
    def tailing(self, who: str) -> Iterator[None]:
        """While a stream is open."""
        limits = self._limits()
        if self._tails[who] >= limits.api_tails_per_token:
            raise _too_much(f"the token has {limits.api_tails_per_token} tails open already")
        if self._tails.total() >= limits.api_tails:
            raise _busy("too_many_tails", f"{limits.api_tails} tails are open already")
        with _counted(self._tails, who, 1):
            yield

    @asynccontextmanager
    async def searching(self, who: str) -> AsyncIterator[None]:
        """While the store is searched, counted or scanned for a token.

        A token's searches take turns, so that many of one keep no other's waiting for
        longer than one of them takes.
        """
        most = self._limits().api_searches_per_token
        if self._searches[who] >= most:
            raise _too_much(f"{most} searches of the token are under way already")
        with _counted(self._searches, who, 1):
            turn = self._turns.setdefault(who, DeferredLock())
            try:
                await turn.acquire()
                try:
                    yield
                finally:
                    turn.release()
            finally:
                if not turn.locked:
                    self._turns.pop(who, None)

    def _room(self, who: str, size: int) -> None:
        limits = self._limits()
        own, all_of_it = self._bytes[who], self.unread
        if own and own + size > limits.api_answer_bytes_per_token:
            raise _too_much("answers to the token wait to be read: read them first")
        if all_of_it and all_of_it + size > limits.api_answer_bytes:
            raise _busy("unread_answers", "too many answers wait to be read by their clients")


@contextmanager
def _counted(counter: Counter[str], who: str, amount: int) -> Iterator[None]:
    counter[who] += amount
    try:
        yield
    finally:
        counter[who] -= amount
        if not counter[who]:
            del counter[who]


def _too_much(detail: str) -> Problem:
    return Problem(429, "too_many_requests", detail, headers={"Retry-After": RETRY_SECONDS})


def _busy(code: str, detail: str) -> Problem:
    return Problem(503, code, detail, headers={"Retry-After": RETRY_SECONDS})


class Stalled(CortexError):
    """A client takes nothing of what it is sent."""


@implementer(IPushProducer)
class Paced:
    """Writes to a request as fast as its client reads, and has it wait in between.

    A client that takes nothing for `stall_seconds` is told of as Stalled.
    """

    def __init__(self, reactor: Any, request: Any, stall_seconds: float) -> None:
        self._reactor = reactor
        self._request = request
        self._stall_seconds = stall_seconds
        self._waiting: Deferred[None] | None = None
        self.paused = False
        """Whether the connection takes no more for now."""

    async def room(self) -> None:
        """Wait until the client can take more; raises Stalled if it takes nothing."""
        if not self.paused:
            return
        self._waiting = Deferred()
        try:
            await self._waiting.addTimeout(self._stall_seconds, self._reactor)
        except TimedOut:
            raise Stalled(f"nothing was taken for {self._stall_seconds:g} s") from None

    async def send_body(self, body: bytes) -> None:
        """Write a whole body, a piece at a time, and return when the last has room."""
        self._request.registerProducer(self, True)
        view = memoryview(body)
        for start in range(0, len(view), PIECE_BYTES):
            self._request.write(bytes(view[start : start + PIECE_BYTES]))
            await self.room()
        self._request.unregisterProducer()

    def pauseProducing(self) -> None:
        """See IPushProducer."""
        self.paused = True

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        self.paused = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    def stopProducing(self) -> None:
        """See IPushProducer: the client has gone, which cancels who sends."""
        self.paused = False
