"""Facts on their way to the journal gather behind two groups, and lose neither order nor one."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreError
from cortextx.interaction.slave.appending import Appending

Group = tuple[int, list[bytes]]


class AppendingTests(SynchronousTestCase):
    """A journal that answers when it is told to."""

    def setUp(self) -> None:
        self.calls: list[Group] = []
        self.waiting: list[Deferred[None]] = []
        self.durable: list[Group] = []
        self.failures: list[Failure] = []
        self.appending = Appending(self._append, self._appended, self.failures.append)

    def _append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        self.calls.append((first, list(lines)))
        done: Deferred[None] = Deferred()
        self.waiting.append(done)
        return done

    def _appended(self, first: int, lines: Sequence[bytes]) -> None:
        self.durable.append((first, list(lines)))

    def test_a_fact_that_comes_alone_does_not_wait(self) -> None:
        self.appending.add(1, [b"1"])
        self.assertEqual(self.calls, [(1, [b"1"])])
        self.waiting.pop(0).callback(None)
        self.assertEqual(self.durable, [(1, [b"1"])])
        self.appending.add(2, [b"2"])
        self.assertEqual(self.calls[1:], [(2, [b"2"])])

    def test_what_comes_while_two_groups_are_away_is_one_group(self) -> None:
        for seq in range(1, 9):
            self.appending.add(seq, [b"%d" % seq])
        self.assertEqual(self.calls, [(1, [b"1"]), (2, [b"2"])])
        self.waiting.pop(0).callback(None)
        self.assertEqual(self.calls[2:], [(3, [b"3", b"4", b"5", b"6", b"7", b"8"])])
        self.appending.add(9, [b"9"])
        self.waiting.pop(0).callback(None)
        self.waiting.pop(0).callback(None)
        self.waiting.pop(0).callback(None)
        self.assertEqual(self.durable, self.calls)
        self.assertEqual([first for first, _ in self.calls], [1, 2, 3, 9])

    def test_a_flush_hands_over_what_gathered(self) -> None:
        """A session that closes has what was decided on in its log."""
        for seq in range(1, 5):
            self.appending.add(seq, [b"%d" % seq])
        self.appending.flush()
        self.assertEqual(self.calls[2:], [(3, [b"3", b"4"])])
        self.appending.flush()
        self.assertEqual(len(self.calls), 3)

    def test_after_a_failure_nothing_that_gathered_is_appended(self) -> None:
        """I13: facts behind one that is not on disk are not either."""
        for seq in range(1, 5):
            self.appending.add(seq, [b"%d" % seq])
        self.waiting.pop(0).errback(StoreError("full"))
        self.waiting.pop(0).errback(StoreError("full"))
        self.assertEqual(len(self.failures), 2)
        self.appending.flush()
        self.assertEqual(len(self.calls), 2)
        self.assertEqual(self.durable, [])

    def test_a_journal_that_answers_at_once_is_told_of_in_order(self) -> None:
        appending = Appending(self._at_once, self._appended, self.failures.append)
        for seq in range(1, 4):
            appending.add(seq, [b"%d" % seq])
        self.assertEqual(self.durable, [(1, [b"1"]), (2, [b"2"]), (3, [b"3"])])

    def _at_once(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        done = self._append(first, lines)
        done.callback(None)
        return done
