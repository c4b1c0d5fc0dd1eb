"""One noisy source cannot keep the others from the buffer (A43)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreFull
from cortextx.fleet.agent.fair_puts import AHEAD, MAX_WAITING, QUANTUM, FairPuts

KIB = 1024


class Buffer:
    """Takes puts and answers them when told."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bool, Deferred[int]]] = []
        self.bytes = 0
        self.refusing: Exception | None = None

    def put(
        self, bodies: Sequence[bytes], checkpoints: Mapping[str, bytes | None], *, can_wait: bool
    ) -> Deferred[int]:
        if self.refusing is not None:
            return fail(self.refusing)
        done: Deferred[int] = Deferred()
        self.taken.append((bodies[0][:1], can_wait, done))
        return done

    def answer(self, number: int = 1) -> None:
        for _ in range(number):
            self.taken.pop(0)[2].callback(1)


class Fairness(SynchronousTestCase):
    def setUp(self) -> None:
        self.buffer = Buffer()
        self.fair = FairPuts(self.buffer.put)

    def names(self) -> list[bytes]:
        return [name for name, _, _ in self.buffer.taken]

    def fill(self, name: str, number: int, size: int, can_wait: bool = True) -> list[Any]:
        way = self.fair.way(name)
        return [way([name.encode() * size], {}, can_wait=can_wait) for _ in range(number)]

    def test_a43_a_noisy_source_starves_nobody(self) -> None:
        """Behind one that has megabytes waiting, another's words are among the next."""
        self.fill("n", 100, 64 * KIB)
        [quiet] = self.fill("q", 1, 100)
        self.assertNotIn(b"q", self.names())
        given = 0
        while b"q" not in self.names():
            self.buffer.answer()
            given += 1
        self.assertLessEqual(given, AHEAD // (64 * KIB) + 2)
        self.buffer.answer(len(self.buffer.taken))
        self.successResultOf(quiet)

    def test_a43_shares_are_equal_in_bytes(self) -> None:
        """Large and small puts of two sources get the same bytes through."""
        self.fill("a", 400, 4 * KIB)
        self.fill("b", 40, 128 * KIB)
        sizes = {b"a": 4 * KIB, b"b": 128 * KIB}
        through = {b"a": 0, b"b": 0}
        while min(through.values()) < 10**6:
            name = self.names()[0]
            through[name] += sizes[name]
            self.buffer.answer()
        # What went straight through before anybody waited is not fairness's affair.
        self.assertLess(abs(through[b"a"] - through[b"b"]), AHEAD + 4 * QUANTUM)

    def test_what_is_ahead_is_bounded(self) -> None:
        """The buffer holds little, whoever gives how much."""
        for name in "abc":
            self.fill(name, 50, 32 * KIB)
        self.assertLessEqual(len(self.buffer.taken) * 32 * KIB, AHEAD + 32 * KIB)

    def test_a_sources_puts_keep_their_order(self) -> None:
        """They fire in the order given, and each with the buffer's own answer."""
        fired: list[int] = []
        for number, done in enumerate(self.fill("a", 30, 50 * KIB)):
            done.addCallback(lambda _, number=number: fired.append(number))
        while self.buffer.taken:
            self.buffer.answer()
        self.assertEqual(fired, list(range(30)))
        self.assertEqual(self.fair.waiting("a"), 0)

    def test_what_cannot_wait_is_not_behind_what_waits(self) -> None:
        """While the buffer holds files back, a listener's entries still go (F19)."""
        self.fill("f", 100, 64 * KIB)
        self.fill("u", 1, 100, can_wait=False)
        self.assertEqual(self.buffer.taken[-1][:2], (b"u", False))

    def test_too_much_of_one_source_fails_alone(self) -> None:
        """Memory is bounded: the put that is too much is refused, others' are not."""
        number = MAX_WAITING // (1024 * KIB) + 4
        results = self.fill("n", number, 1024 * KIB)
        self.failureResultOf(results.pop(), StoreFull)
        for done in results:
            done.addErrback(lambda failure: failure.trap(StoreFull))
        [other] = self.fill("q", 1, 100)
        self.assertNoResult(other)

    def test_a_buffer_that_refuses(self) -> None:
        """Its failure is the put's, and the next ones go on."""
        self.buffer.refusing = StoreFull("full")
        for done in self.fill("a", 20, 128 * KIB):
            self.failureResultOf(done, StoreFull)
        self.buffer.refusing = None
        self.fill("a", 1, 100)
        self.assertEqual(self.names(), [b"a"])
