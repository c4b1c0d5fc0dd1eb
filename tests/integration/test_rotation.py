"""The file source with real files, threads and time: rotation under load, and logrotate."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from shutil import rmtree

import msgspec
from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from cortextx.fleet.agent.sources.file import FileSettings, FileSource
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.contract import LogEntry
from tests.integration.peers import need


class Buffer:
    """A buffer in memory that takes its time, and loses what is under way in a crash."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.bodies: list[bytes] = []
        self.life = 0

    def put(self, bodies, checkpoints) -> Deferred:
        return deferLater(reactor, 0.002, self.take, self.life, bodies, checkpoints)

    def take(self, life, bodies, checkpoints) -> None:
        if life != self.life:
            return
        self.bodies += bodies
        for key, value in checkpoints.items():
            self.kept[key] = value
            if value is None:
                del self.kept[key]


class Writer(threading.Thread):
    """Writes numbered lines as a logging program does, and reopens its file when told."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.count = 0
        self.ended = threading.Event()
        self.reopen = threading.Event()
        self.start()

    def run(self) -> None:
        file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        while not self.ended.is_set():
            if self.reopen.is_set():
                self.reopen.clear()
                file.close()
                file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            lines = b"".join(
                b"line %d of the log\n" % n for n in range(self.count, self.count + 20)
            )
            cut = len(lines) // 3
            file.write(lines[:cut])
            file.write(lines[cut:])
            self.count += 20
            time.sleep(0.002)
        file.close()


class RotationTests(TestCase):
    timeout = 110

    def setUp(self) -> None:
        self.place = tempfile.mkdtemp()
        self.addCleanup(rmtree, self.place)
        self.path = os.path.join(self.place, "app.log")
        self.buffer = Buffer()
        self.writer = Writer(self.path)
        self.addCleanup(self.writer.ended.set)
        self.source = self.start()

    def start(self) -> FileSource:
        settings = FileSettings(
            [os.path.join(self.place, "*.log")],
            scan_interval=0.05,
            tail=TailSettings(rotate_wait=1.0),
        )
        kept = dict(self.buffer.kept)
        source = FileSource(reactor, "app", settings, self.buffer.put, lambda: kept)
        source.start()
        return source

    @inlineCallbacks
    def restart(self, crash: bool):
        if crash:
            self.buffer.life += 1
        yield self.source.stop()
        self.buffer.life += 1
        self.source = self.start()

    @inlineCallbacks
    def check(self):
        """All lines are there, once; within one file's span in their order."""
        self.writer.ended.set()
        self.writer.join()
        for _ in range(600):
            yield deferLater(reactor, 0.05)
            if len(self.buffer.bodies) >= self.writer.count:
                break
        yield deferLater(reactor, 0.3)
        yield self.source.stop()
        decoder = msgspec.json.Decoder(LogEntry)
        found = [decoder.decode(b'{"seq":1,' + body) for body in self.buffer.bodies]
        odd = [entry.message for entry in found if not entry.source.startswith("file:")]
        self.assertEqual(odd, [])
        numbers = [int(entry.message.split()[1]) for entry in found]
        self.assertEqual(sorted(numbers), list(range(self.writer.count)))
        self.assertTrue(all(entry.message.endswith(" of the log") for entry in found))
        return numbers

    def rotate(self, keep: int) -> None:
        for index in range(keep, 0, -1):
            if os.path.exists(f"{self.path}.{index}"):
                os.rename(f"{self.path}.{index}", f"{self.path}.{index + 1}")
        os.rename(self.path, f"{self.path}.1")

    @inlineCallbacks
    def test_A02_two_hundred_rotations_under_load_with_restarts(self):
        """A01, A04, A05, A19: with stops and crashes between, each line comes once."""
        for number in range(200):
            yield deferLater(reactor, 0.02)
            self.rotate(200)
            yield deferLater(reactor, 0.01)
            self.writer.reopen.set()
            if number % 20 == 7:
                yield self.restart(crash=number % 40 == 7)
        yield self.check()
        self.assertGreater(self.writer.count, 10_000)

    @inlineCallbacks
    def test_logrotate_under_load(self):
        """Real logrotate, `create` with a late signal, thirty times, with restarts."""
        program = need("logrotate")
        os.chmod(self.place, 0o755)
        config = os.path.join(self.place, "rotate.conf")
        with open(config, "w") as file:
            file.write(f"{self.path} {{\n rotate 100\n create\n missingok\n}}\n")
        os.chmod(config, 0o644)
        state = os.path.join(self.place, "state")
        for number in range(30):
            yield deferLater(reactor, 0.1)
            subprocess.run([program, "--force", "--state", state, config], check=True, timeout=20)
            yield deferLater(reactor, 0.05)
            self.writer.reopen.set()
            if number % 10 == 5:
                yield self.restart(crash=number == 15)
        yield self.check()
