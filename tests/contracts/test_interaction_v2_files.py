"""interaction/v2, what it demands of the durable log and its lock; each test cites its section."""

from __future__ import annotations

import os
from dataclasses import replace

from cortextx.errors import SessionDamaged, SessionLocked
from cortextx.interfaces.sessions import JournalState
from cortextx.stores.session_paths import SessionRoot, relative_path
from tests.stores.journal_suite import KEY, JournalSteps, lines
from tests.stores.test_journal import FileCase


class OrderingTests(FileCase, JournalSteps):
    """Ordering and audience."""

    def test_a_fact_is_on_disk_before_its_append_fires(self) -> None:
        journal = self.opened()
        sizes: list[int] = []
        journal.append(1, lines(1, 3)).addCallback(
            lambda _: sizes.append(os.stat(self.path).st_size)
        )
        self.assertEqual(os.path.exists(self.path), False)
        self.settle()
        self.assertEqual(sizes, [sum(map(len, lines(1, 3))) + 3])

    def test_session_seq_is_strictly_increasing_and_given_once(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 3))
        for first in (0, 1, 3, 5):
            self.settle()
            self.assertTrue(self.failureResultOf(journal.append(first, lines(first, 1))))
        self.assertEqual(self.walked(journal, 0, 10, 10_000), lines(1, 3))


class FailureTests(FileCase, JournalSteps):
    """Backpressure, failure, and reconnect."""

    def test_an_incomplete_tail_is_a_session_error_and_is_not_truncated(self) -> None:
        os.makedirs(os.path.dirname(self.path))
        torn = b"\n".join(lines(1, 3))[:-4]
        with open(self.path, "wb") as file:
            file.write(torn)
        self.failure(self.make_journal().open(), SessionDamaged)
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), torn)


class SplitBrainTests(FileCase, JournalSteps):
    """Peer authorization and split brain."""

    def test_the_lock_is_held_before_attach_and_a_contender_gets_nothing(self) -> None:
        self.appended(self.opened(), 1, lines(1, 3))
        contender = self.make_journal()
        self.failure(contender.open(), SessionLocked)
        for call in (contender.append(4, lines(4, 1)), contender.read(0, 1, 1000)):
            self.settle()
            self.assertTrue(self.failureResultOf(call))

    def test_takeover_comes_after_release_and_validates_the_tail(self) -> None:
        journal = self.opened()
        self.appended(journal, 1, lines(1, 3))
        self.result(journal.close())
        self.assertEqual(self.result(self.make_journal().open()), JournalState(1, 3))

    def test_the_lock_is_keyed_by_the_whole_canonical_path(self) -> None:
        root = SessionRoot.at(self.root)
        keys = [
            KEY,
            replace(KEY, owner=1001),
            replace(KEY, agent="other"),
            replace(KEY, session="t"),
            replace(KEY, scope="shared", owner=None, space="1000"),
        ]
        self.assertEqual(len({root.lock(key) for key in keys}), len(keys))
        self.assertEqual(len({relative_path(key) for key in keys}), len(keys))
