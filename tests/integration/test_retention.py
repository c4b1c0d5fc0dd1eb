"""Retention while the store is in use: its threads, and a whole server that is killed."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.interfaces.fleet import EntryFilter
from cortextx.stores.retention import Retention
from cortextx.stores.sqlite import SqliteSettings, SqliteStore
from cortextx.stores.sqlite_backup import verify
from cortextx.stores.sqlite_segments import SegmentLimits
from tests.integration.faults import PushingHost
from tests.integration.processes import ServerProcess
from tests.stores.suite import HASH, HOST, NOON_US, batch, entry, run_of, seqs
from tests.stores.suite_records import PROBE
from tests.stores.test_sqlite import size_of

HOUR = 3600.0
HOUR_US = 3_600_000_000
MIB = 1024 * 1024
ROUNDS = int(os.environ.get("CORTEXTX_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("CORTEXTX_KILL_SEED", "0")) or random.randrange(1, 2**32)
RULES = """
[store]
max_mib = 16
keep_days = 0.0001
keep_lesser = [{ severity = "err", days = 0.00002 }]
"""
"""Seconds of age, so that in every life of the server all three rules are at work."""


class RunningTests(TestCase):
    """Retention in a store that is in use."""

    timeout = 30

    def opened(self, settings: SqliteSettings) -> Deferred[SqliteStore]:
        self.now = NOON_US
        store = SqliteStore(reactor, self.mktemp(), settings, now=lambda: self.now)
        self.addCleanup(store.stop)
        return store.start().addCallback(lambda _: store)

    async def until(self, store: SqliteStore, entries: int) -> None:
        while (await store.stats()).entries != entries:
            await deferLater(reactor, 0.02)  # type: ignore[arg-type]

    async def test_searches_and_tails_see_what_is_left_and_the_file_is_smaller(self) -> None:
        store = await self.opened(SqliteSettings(SegmentLimits(rows=1000)))
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        for first in range(1, 5001, 500):
            await store.append([run_of(first, first + 499)])
        await store.record_probe(PROBE)
        size = (await store.stats()).size
        await store.set_retention(Retention(max_bytes=450_000, keep_free=0))
        while (await store.stats()).entries > 2500:
            await deferLater(reactor, 0.02)  # type: ignore[arg-type]
        page = await store.search(EntryFilter(text="message"), 1000, newest_first=False)
        self.assertEqual(page.entries[0].seq % 1000, 1)
        tail = await store.tail(EntryFilter(), 0, 3)
        self.assertEqual(seqs(tail.entries), seqs(page.entries[:3]))
        await store.append([run_of(5001, 5001)])
        self.assertEqual(await store.head(), 5001)
        for _ in range(200):
            if size_of(store.path) < size * 0.5:
                break
            await deferLater(reactor, 0.05)  # type: ignore[arg-type]
        self.assertLess(size_of(store.path), size * 0.5)

    async def test_rules_of_age_are_carried_out_without_being_asked(self) -> None:
        store = await self.opened(
            SqliteSettings(SegmentLimits(rows=10), retention=Retention(entries=HOUR))
        )
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        await store.append([run_of(1, 10)])
        self.now += 5 * HOUR_US
        await store.append([batch(HOST, [entry(11)], self.now)])
        await self.until(store, 1)
        self.assertEqual(seqs((await store.search(EntryFilter(), 9)).entries), [11])


class KilledWhileDropping(SynchronousTestCase):
    """kill -9 across passes of retention, under load (F10, F13)."""

    def test_every_rule_at_once_through_kill_after_kill(self) -> None:
        """What is acked was stored, none of it twice, and nothing is taken for lost though
        most of it has been dropped since; the file is sound after each kill and stays near
        its bound; what is left of a host are its newest entries."""
        chance = random.Random(SEED)
        state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, state, ignore_errors=True)
        with open(os.path.join(state, "cortex-server.toml"), "w") as file:
            file.write(RULES)
        database = os.path.join(state, "server", "store.db")
        server = ServerProcess(state)
        self.addCleanup(server.end)
        host, port = server.started().address
        hosts = []
        for number in range(3):
            host_id = f"2b9a0b3a-7e3c-4d2a-9c0e-{number:012d}"
            connection, token = server.enrolled(host_id)
            connection.socket.close()
            hosts.append(
                PushingHost((host, port), host_id, token, size=400, message="words " * 200)
            )
            self.addCleanup(hosts[-1].join, 10)
            self.addCleanup(hosts[-1].give_up)
        for one in hosts:
            one.start()
        largest = 0
        for _ in range(ROUNDS):
            time.sleep(chance.uniform(1.0, 3.0))
            largest = max(largest, os.path.getsize(database))
            server.kill()
            self.assertEqual(verify(database).faults, (), f"seed {SEED}")
            server = ServerProcess(state, listen=f"tcp:{port}:interface={host}")
            self.addCleanup(server.end)
            server.started()
        for one in hosts:
            one.finish()
        for one in hosts:
            one.join(15)
            self.assertFalse(one.is_alive(), f"seed {SEED}")
            self.assertIsNone(one.fault, f"seed {SEED}")
        with server.admin() as admin:
            rows, _ = admin.call("agent.list")
            kept, _ = admin.call("search.tail", after=0, limit=1000)
        self.assertEqual({(row["gap_count"], row["lost_entries"]) for row in rows}, {(0, 0)})
        self.assertEqual(
            sorted(row["accepted_seq"] for row in rows), sorted(one.made for one in hosts)
        )
        made = sum(one.made for one in hosts)
        self.assertGreater(made * 1400, 32 * MIB, "too little to be bounded")
        # The bound, a tenth of it, and what one transaction brings.
        self.assertLess(largest, 28 * MIB)
        self.assertEqual(len({(row["host_id"], row["seq"]) for row in kept}), len(kept))
        server.end()
        self.assertEqual(verify(database).faults, (), f"seed {SEED}")
