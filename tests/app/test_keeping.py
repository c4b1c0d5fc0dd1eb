"""How long things are kept, from the server's file to the store."""

from __future__ import annotations

import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.keeping import DAY, MIB, keep_as, retention, store_settings
from cortextx.fleet.server.keeping import StoreTable
from cortextx.fleet.server.settings import ServerSettings
from cortextx.stores.memory import MemoryStore
from cortextx.stores.retention import Retention

FILE = b"""
[store]
keep_days = 90
max_mib = 100
metrics_days = 1.5
keep_lesser = [{ severity = "warning", days = 14 }, { severity = "crit", days = 30 }]
reserve_mib = 64
"""


class KeepingTests(SynchronousTestCase):
    def test_the_file_says_what_is_kept(self) -> None:
        table = msgspec.toml.decode(FILE, type=ServerSettings).store
        rules = retention(table)
        self.assertEqual((rules.entries, rules.metrics), (90 * DAY, 1.5 * DAY))
        self.assertEqual(rules.lesser, ((4, 14 * DAY), (2, 30 * DAY)))
        self.assertEqual(rules.max_bytes, 100 * MIB)
        settings = store_settings(table)
        self.assertEqual((settings.retention, settings.reserve), (rules, 64 * MIB))

    def test_without_a_table_entries_stay_for_ever(self) -> None:
        """Nothing that hosts sent is deleted unless somebody said so."""
        rules = retention(StoreTable())
        self.assertEqual((rules.entries, rules.max_bytes, rules.lesser), (None, None, ()))
        self.assertEqual(rules, Retention())

    def test_faults_in_the_file_are_refused(self) -> None:
        for line in (
            "keep_days = 0",
            "keep_day = 1",
            'keep_lesser = [{ severity = "x", days = 1 }]',
        ):
            with self.assertRaises(msgspec.ValidationError):
                msgspec.toml.decode(f"[store]\n{line}".encode(), type=ServerSettings)

    def test_a_running_store_takes_up_new_rules_if_it_has_any(self) -> None:
        told: list[Retention] = []

        class Store:
            def set_retention(self, rules: Retention, reserve: int) -> Deferred[None]:
                told.append(rules)
                return succeed(None)

        self.successResultOf(keep_as(Store(), StoreTable(keep_days=1)))
        self.assertEqual(told[0].entries, DAY)
        self.successResultOf(keep_as(MemoryStore(), StoreTable()))
