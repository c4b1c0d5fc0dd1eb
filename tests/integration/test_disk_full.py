"""A disk that is really full: a small tmpfs under the store, filled and emptied again."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest, SynchronousTestCase, TestCase

from cortextx.app.cli.faults import Refused
from cortextx.errors import StoreFull
from cortextx.interfaces.fleet import EntryFilter
from cortextx.stores.sqlite import SqliteSettings, SqliteStore
from cortextx.stores.sqlite_backup import verify
from tests import wire
from tests.integration.peers import need
from tests.integration.processes import ServerProcess
from tests.stores.suite import HASH, HOST, NOON_US, batch, entry

MIB = 1024 * 1024
BACKPRESSURE = -32020


def small_disk(test: Any, path: str, mebibytes: int) -> None:
    """Put a tmpfs of so many MiB at `path` for the time of a test; only root can."""
    mount, umount = need("mount"), need("umount")
    if os.geteuid() != 0:
        raise SkipTest("only root can mount a tmpfs")
    os.makedirs(path, mode=0o700, exist_ok=True)
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0700", "tmpfs", path],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if done.returncode:
        raise SkipTest(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    test.addCleanup(subprocess.run, [umount, "-l", path], timeout=20, check=False)


def fill_up(path: str, leave: int) -> None:
    """Fill the disk that holds `path` with that file, but for so many bytes."""
    with open(path, "wb") as ballast, contextlib.suppress(OSError):
        disk = os.statvfs(os.path.dirname(path))
        os.posix_fallocate(ballast.fileno(), 0, max(1, disk.f_bavail * disk.f_frsize - leave))


def exhaust(path: str) -> None:
    """Append to that file until its disk has not a byte left."""
    with open(path, "ab", buffering=0) as ballast:
        for size in (65_536, 512):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(b"x" * size)


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class StoreTests(TestCase):
    """The store alone, without a reserve, so that SQLite itself meets the end of the disk."""

    timeout = 60

    async def test_nothing_is_stored_in_part_and_the_same_call_succeeds_later(self) -> None:
        directory = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        disk = os.path.join(directory, "disk")
        small_disk(self, disk, 24)
        store = SqliteStore(reactor, os.path.join(disk, "store.db"), SqliteSettings(reserve=0))
        self.addCleanup(store.stop)
        await store.start()
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        fill_up(os.path.join(disk, "ballast"), 6 * MIB)
        stored = refused = 0
        while refused < 3:
            self.assertLess(stored, 200_000)
            messages = [
                entry(stored + n, f"entry {stored + n} " + "x" * 300) for n in range(1, 501)
            ]
            try:
                await store.append([batch(HOST, messages)])
                stored += 500
            except StoreFull:
                refused += 1
                (row,) = await store.find(HOST)
                self.assertEqual((row.accepted_seq, await store.head()), (stored, stored))
        os.unlink(os.path.join(disk, "ballast"))
        (answer,) = await store.append([batch(HOST, messages)])
        self.assertEqual((answer.up_to_seq, answer.gap), (stored + 500, None))
        page = await store.search(EntryFilter(text=f'"entry {stored + 1}"'), 9)
        self.assertEqual(len(page.entries), 1)
        await store.stop()
        found = verify(store.path)
        self.assertEqual((found.faults, found.entries), ((), stored + 500))


class ServerTests(SynchronousTestCase):
    """A server process: -32020 while the disk is full, then on without a restart."""

    def setUp(self) -> None:
        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)

    def test_pushes_are_put_off_and_taken_once_there_is_room(self) -> None:
        """F9, F10: refused with -32020 and retry_after_ms; hellos and searches go on."""
        disk = os.path.join(self.state, "server")
        small_disk(self, disk, 96)
        server = ServerProcess(self.state)
        self.addCleanup(server.end)
        server.started()
        connection, _ = server.enrolled()
        self.addCleanup(connection.socket.close)
        pushed = connection.call(wire.push(2, 1, 500))
        self.assertEqual(pushed["result"]["up_to_seq"], 500)
        ballast = os.path.join(disk, "ballast")
        fill_up(ballast, 2 * MIB)
        first = 501
        while "result" in (answer := connection.call(wire.push(first, first, 100))):
            first += 100
            self.assertLess(first, 100_000)
        self.assertEqual(answer["error"]["code"], BACKPRESSURE)
        self.assertGreater(answer["error"]["data"]["retry_after_ms"], 0)
        with server.admin() as admin:
            rows, _ = admin.call("search", limit=1, order="newest_first")
        self.assertEqual(rows[0]["seq"], first - 1)
        os.unlink(ballast)
        for attempt in range(100):
            answer = connection.call(wire.push(f"again {attempt}", first, 100))
            if "result" in answer:
                break
            self.assertEqual(answer["error"]["code"], BACKPRESSURE)
            time.sleep(0.05)
        self.assertEqual(answer["result"]["up_to_seq"], first + 99)
        with server.admin() as admin:
            self.assertEqual(admin.call("gaps")[0], [])
        server.terminate()
        found = verify(os.path.join(disk, "store.db"))
        self.assertEqual((found.faults, found.entries), ((), first + 99))

    def test_a_server_that_was_killed_on_a_full_disk_starts(self) -> None:
        """Not a byte is free: it starts all the same, says so, is not ready, answers what it can,
        refuses administrative acts aloud, and goes on by itself once there is room."""
        small_disk(self, self.state, 48)
        first = ServerProcess(self.state)
        self.addCleanup(first.end)
        connection, _ = first.started().enrolled()
        self.addCleanup(connection.socket.close)
        pushed = connection.call(wire.push(2, 1, 500))
        self.assertEqual(pushed["result"]["up_to_seq"], 500)
        ballast = os.path.join(self.state, "ballast")
        exhaust(ballast)
        first.kill()
        exhaust(ballast)
        logs = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, logs, ignore_errors=True)
        port = free_port()
        server = ServerProcess(self.state, listen=f"tcp:{port}:interface=127.0.0.1", logs=logs)
        self.addCleanup(server.end)
        self.assertEqual(self.answer(port), (503, "the store can write nothing\n"))
        self.assertFalse(os.path.exists(server.address_file))
        self.assertIn("make room on its disk", server.log)
        with server.admin() as admin:
            rows, _ = admin.call("search", limit=1, order="newest_first")
            self.assertEqual(rows[0]["seq"], 500)
            for op, args in (
                ("agent.issue", {"name": "one", "host_id": None}),
                ("agent.rotate", {"host": wire.HOST_ID}),
                ("agent.revoke", {"host": wire.HOST_ID}),
                ("config.set", {"config": {"heartbeat_interval_secs": 60}}),
                ("group.set", {"host": wire.HOST_ID, "groups": ["a"]}),
                ("token.add", {"name": "one", "role": "viewer"}),
                ("agent.forget", {"host": wire.HOST_ID}),
            ):
                refused = self.assertRaises(Refused, admin.call, op, **args)
                self.assertEqual(refused.code, "store_full", op)
            self.assertEqual(len(admin.call("agent.list")[0]), 1)
        os.unlink(ballast)
        server.started()
        end = time.monotonic() + 20
        while (said := self.answer(port)) != (200, "ready\n"):
            self.assertLess(time.monotonic(), end, said)
            time.sleep(0.1)
        server.terminate()

    def test_a_store_that_cannot_be_opened_for_want_of_room(self) -> None:
        """A log of SQLite's that has to be made anew needs room: the server waits for it."""
        small_disk(self, self.state, 48)
        first = ServerProcess(self.state)
        self.addCleanup(first.end)
        first.started().issue()
        first.terminate()
        ballast = os.path.join(self.state, "ballast")
        exhaust(ballast)
        logs = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, logs, ignore_errors=True)
        server = ServerProcess(self.state, logs=logs)
        self.addCleanup(server.end)
        end = time.monotonic() + 20
        while "trying again" not in server.log:
            self.assertLess(time.monotonic(), end, server.log)
            time.sleep(0.05)
        self.assertIsNone(server.process.poll())
        os.unlink(ballast)
        server.started()
        server.terminate()

    def answer(self, port: int) -> tuple[int, str]:
        """The status and text of /readyz, once somebody listens."""
        end = time.monotonic() + 20
        while True:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                link.request("GET", "/readyz")
                came = link.getresponse()
                return came.status, came.read().decode()
            except ConnectionError:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            finally:
                link.close()
