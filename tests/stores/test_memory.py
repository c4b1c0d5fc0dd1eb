"""The reference store, bare and behind the scripted one, passes the suite of all stores."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.errors import StoreFull
from cortextx.stores.memory import MemoryStore
from cortextx.testing.stores import ScriptedStore
from tests.stores.suite import HASH, HOST, LogStoreSuite, run_of
from tests.stores.suite_records import RecordsSuite


class MemoryStoreTests(LogStoreSuite, TestCase):
    def make_store(self) -> MemoryStore:
        return MemoryStore()


class MemoryRecordsTests(RecordsSuite, TestCase):
    def make_store(self) -> MemoryStore:
        return MemoryStore()


class ScriptedRecordsTests(RecordsSuite, TestCase):
    def make_store(self) -> ScriptedStore:
        return ScriptedStore()


class ScriptedStoreTests(LogStoreSuite, TestCase):
    def make_store(self) -> ScriptedStore:
        return ScriptedStore()


class ScriptTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = ScriptedStore()
        self.successResultOf(self.store.issue("h", HOST, HASH, 0, 0))

    def test_an_append_that_was_told_to_fail_stores_nothing(self) -> None:
        self.store.fail_next(StoreFull("x"))
        self.failureResultOf(self.store.append([run_of(1, 2)]), StoreFull)
        self.assertEqual(self.successResultOf(self.store.head()), 0)
        self.successResultOf(self.store.append([run_of(1, 2)]))
        self.assertEqual([len(call) for call in self.store.appended], [1, 1])

    def test_held_appends_are_carried_out_in_order_on_release(self) -> None:
        self.store.hold()
        first = self.store.append([run_of(1, 2)])
        second = self.store.append([run_of(3, 4)])
        self.assertNoResult(first)
        self.assertEqual(self.store.held, 2)
        self.store.release()
        self.assertEqual(self.successResultOf(first)[0].up_to_seq, 2)
        self.assertEqual(self.successResultOf(second)[0].up_to_seq, 4)
