"""The tail cache gives exactly the pages that the log would, or none."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from cortextx.stores.journal_memory import MemoryJournal
from cortextx.stores.journal_tail import Caches, Tail
from tests.stores.journal_suite import KEY, line


class TailTests(SynchronousTestCase):
    def test_pages_are_those_of_the_log_or_none(self) -> None:
        chance = random.Random(3)
        for limit in (500, 5000, 10**6):
            tail, log = Tail(Caches(), limit), MemoryJournal(KEY)
            self.successResultOf(log.open())
            held = 0
            for _ in range(60):
                first = log.head + 1
                these = [
                    line(seq, "y" * chance.randrange(200))
                    for seq in range(first, first + chance.randrange(1, 9))
                ]
                tail.add(first, these)
                self.successResultOf(log.append(first, these))
                for _ in range(10):
                    after = chance.randrange(log.head)
                    bounds = (chance.randrange(1, 30), chance.randrange(1, 3000))
                    page = tail.page(after, *bounds)
                    if page is not None:
                        held += 1
                        expected = self.successResultOf(log.read(after, *bounds))
                        self.assertEqual((page.first, page.lines), (expected.first, expected.lines))
            self.assertGreater(held, 5)

    def test_quiet_tails_go_first_when_all_together_are_too_big(self) -> None:
        caches = Caches(3000)
        tails = [Tail(caches) for _ in range(3)]
        for tail in tails:
            tail.add(1, [b"x" * 1000])
        self.assertIsNone(tails[0].page(0, 1, 1))
        self.assertIsNotNone(tails[1].page(0, 1, 1))
        tails[1].add(2, [b"x"])
        tails[0].add(2, [b"x" * 1000])
        self.assertIsNone(tails[2].page(0, 1, 1))
