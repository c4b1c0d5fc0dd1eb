"""kill -9 of a process that appends to the SQLite store: acked is stored, once and whole."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time

from twisted.trial.unittest import SynchronousTestCase

from cortextx.interfaces.fleet import EntryFilter
from cortextx.stores.sqlite_file import open_reader
from cortextx.stores.sqlite_search import Reader

HOSTS = [f"2b9a0b3a-7e3c-4d2a-9c0e-{number:012d}" for number in range(3)]
SIZE = 70
ROUNDS = 8
MARKED = "needle"
"""A word of one entry in each batch."""

CHILD = """
import sys
from twisted.internet.task import react
from twisted.internet.defer import Deferred
from cortextx.stores.sqlite import SqliteSettings, SqliteStore
from cortextx.stores.sqlite_segments import SegmentLimits
from tests.integration.test_store_kill import HOSTS, MARKED, SIZE
from tests.stores.suite import batch, entry

async def fill(reactor):
    store = SqliteStore(reactor, sys.argv[1], SqliteSettings(SegmentLimits(rows=2000)))
    await store.start()
    for number, host in enumerate(HOSTS):
        if not await store.find(host):
            await store.issue(f"host{number}", host, b"%032d" % number, 1, 1)
    at = {host: (await store.find(host))[0].accepted_seq for host in HOSTS}
    print("open", *at.values(), flush=True)
    while True:
        group = []
        for host in HOSTS:
            first = at[host] + 1
            at[host] += SIZE
            group.append(batch(host, [
                entry(seq, f"{MARKED if seq == first else 'hay'} {seq}")
                for seq in range(first, first + SIZE)
            ]))
        for host, answer in zip(HOSTS, await store.append(group)):
            assert answer.up_to_seq == at[host] and answer.gap is None, answer
        print(*at.values(), flush=True)

react(lambda reactor: Deferred.fromCoroutine(fill(reactor)))
"""


class KillTests(SynchronousTestCase):
    def test_acked_is_stored_whole_and_accepted_seq_agrees_with_it(self) -> None:
        """F10, F11: and every entry is found, indexed before the kill or not (F38)."""
        path = self.mktemp()
        chance = random.Random(11)
        before = [0] * len(HOSTS)
        for _ in range(ROUNDS):
            acked = self.one_life(path, chance.uniform(0.0, 0.5), before)
            before = self.check(path, acked)
        self.assertGreater(min(before), 1000)

    def one_life(self, path: str, seconds: float, before: list[int]) -> list[int]:
        """Run the child and kill it; answers what it said is durable, by host."""
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None and child.stderr is not None
        try:
            first = child.stdout.readline().split()
            if not first:
                self.fail(child.stderr.read().decode())
            self.assertEqual([int(word) for word in first[1:]], before)
            time.sleep(seconds)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        said = child.stdout.read().split(b"\n")
        child.stdout.close()
        child.stderr.close()
        # The last piece is empty, or a line that was cut.
        return [int(word) for word in said[-2].split()] if len(said) > 1 else before

    def check(self, path: str, acked: list[int]) -> list[int]:
        """Look at the file as it lies there; answers accepted_seq by host."""
        # Opened for writing once, so that the write-ahead log can be recovered.
        writer = sqlite3.connect(path)
        self.assertEqual(writer.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
        accepted = [
            writer.execute("SELECT accepted_seq FROM hosts WHERE host_id = ?", (host,)).fetchone()[
                0
            ]
            for host in HOSTS
        ]
        for known, stored in zip(acked, accepted, strict=True):
            self.assertGreaterEqual(stored, known)
            self.assertEqual(stored % SIZE, 0)
        self.assertEqual(len(set(accepted)), 1, "a transaction was stored in part")
        tables = [name for (name,) in writer.execute(
            "SELECT 'logs_' || printf('%06d', number) FROM segments ORDER BY number"
        )]  # fmt: skip
        found = sorted(
            row for table in tables for row in writer.execute(f"SELECT host, seq FROM {table}")
        )
        expected = [(key, seq) for key in (1, 2, 3) for seq in range(1, accepted[0] + 1)]
        self.assertEqual(found, expected)
        connection = open_reader(path)
        reader = Reader(connection)
        needles = 0
        cursor = None
        while True:
            page = reader.search(EntryFilter(text=MARKED), 1000, True, cursor)
            needles += len(page.entries)
            cursor = page.cursor
            if cursor is None:
                break
        connection.close()
        writer.close()
        self.assertEqual(needles, len(HOSTS) * accepted[0] // SIZE)
        return accepted
