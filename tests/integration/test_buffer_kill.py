"""kill -9 of a process that fills a buffer: what it promised is there, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.errors import StoreError
from cortextx.fleet.agent.buffer import Buffer, BufferLimits
from cortextx.fleet.agent.buffer_writer import BufferWriter
from cortextx.fleet.agent.disk import RealDisk

LIMITS = BufferLimits(soft=64 * 2**20, hard=128 * 2**20, min_free=0, segment=65_536, cache=65_536)
ROUNDS = 15

CHILD = """
import sys
from cortextx.fleet.agent.buffer import Buffer
from cortextx.fleet.agent.disk import RealDisk
from tests.integration.test_buffer_kill import LIMITS, body
buffer = Buffer.open(RealDisk(sys.argv[1]), LIMITS)
if not buffer.numbered:
    buffer.adopt(0)
count = int(buffer.checkpoints().get("file:n", b"0"))
print("open", count, flush=True)
while True:
    size = 1 + count * 7 % 50
    bodies = [body(n) for n in range(count + 1, count + size + 1)]
    count += size
    buffer.append(bodies, {"file:n": b"%d" % count})
    buffer.sync()
    print(count, flush=True)
    if count % 3 == 0:
        buffer.truncate(max(buffer.acked, count - 4000))
"""


def body(number: int) -> bytes:
    """Entry `number`."""
    return b'"message":"%d %s","source":"file:/a"}' % (number, b"x" * (number % 97))


class KillTests(SynchronousTestCase):
    def test_what_was_promised_survives_kill_9_once_A19(self) -> None:
        path = self.mktemp()
        chance = random.Random(7)
        before = 0
        for _ in range(ROUNDS):
            promised = self.one_life(path, chance.uniform(0.0, 0.12), before)
            before = self.check(path, promised)
        self.assertGreater(before, 1000)

    def one_life(self, path: str, seconds: float, before: int) -> int:
        """Run the child, kill it; what it said is durable."""
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            first = child.stdout.readline().split()
            if not first:
                self.fail(child.stderr.read().decode())
            self.assertEqual(int(first[1]), before)
            time.sleep(seconds)
        finally:
            child.send_signal(signal.SIGKILL)
            said, _ = child.communicate(timeout=20)
        # A last line without its end may be cut in the middle of the number.
        lines = said[: said.rfind(b"\n") + 1].split()
        return int(lines[-1]) if lines else before

    def check(self, path: str, promised: int) -> int:
        buffer = Buffer.open(RealDisk(path), LIMITS)
        try:
            self.assertEqual((buffer.recovery.notes, buffer.recovery.lost), ((), 0))
            count = int(buffer.checkpoints().get("file:n", b"0"))
            self.assertGreaterEqual(count, promised)
            self.assertEqual(buffer.last, count)
            seq = buffer.acked + 1
            self.assertLessEqual(buffer.acked, max(0, count - 3900))
            while bodies := buffer.read(seq, 1000, 2**20).bodies:
                self.assertEqual(bodies, [body(n) for n in range(seq, seq + len(bodies))])
                seq += len(bodies)
            self.assertEqual(seq, count + 1)
            return count
        finally:
            buffer.close()

    def test_a_second_process_is_kept_out(self) -> None:
        path = self.mktemp()
        disk = RealDisk(path)
        try:
            other = subprocess.run(
                [sys.executable, "-c", CHILD, path], capture_output=True, timeout=20, check=False
            )
            self.assertIn(b"in use by another process", other.stderr)
            # A program that we execute does not inherit the lock.
            child = subprocess.Popen(
                [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
            )
            self.addCleanup(child.communicate)
        finally:
            disk.close()
        RealDisk(path).close()


class ThreadTests(TestCase):
    """The adapter with its real thread and a real disk."""

    timeout = 20

    async def test_many_puts_at_once_are_durable_in_order(self) -> None:
        path = self.mktemp()
        writer = BufferWriter(reactor, lambda: Buffer.open(RealDisk(path), LIMITS))
        await writer.start()
        await writer.adopt(0)
        order: list[int] = []
        puts: list[Deferred[None]] = [
            writer.put([body(n)], {"file:n": b"%d" % n}).addCallback(order.append)
            for n in range(1, 2001)
        ]
        await DeferredList(puts, fireOnOneErrback=True)
        self.assertEqual(order, list(range(1, 2001)))
        batch = await writer.read(1, 5000, 2**24)
        self.assertEqual(len(batch.bodies), 2000)
        await writer.truncate(1500)
        self.assertEqual(writer.depth, 500)
        await writer.stop()
        buffer = Buffer.open(RealDisk(path), LIMITS)
        self.addCleanup(buffer.close)
        self.assertEqual((buffer.acked, buffer.last), (1500, 2000))

    async def test_a_locked_buffer_is_said(self) -> None:
        path = self.mktemp()
        disk = RealDisk(path)
        self.addCleanup(disk.close)
        writer = BufferWriter(reactor, lambda: Buffer.open(RealDisk(path), LIMITS))
        started = writer.start()
        await self.assertFailure(started, StoreError)
        await writer.stop()

    def test_the_lock_is_one_for_all_names_of_the_directory(self) -> None:
        path = self.mktemp()
        disk = RealDisk(path)
        self.addCleanup(disk.close)
        os.symlink(os.path.abspath(path), path + ".link")
        self.assertRaises(StoreError, RealDisk, path + ".link")
