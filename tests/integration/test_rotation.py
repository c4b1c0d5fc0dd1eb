"""The file source with real files, threads and time: rotation under load, and logrotate.

Cases A01, A02, A04, A05, A07, A08, A16 and A19; each test ends in a count of every line.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from hashlib import blake2b
from shutil import rmtree

import msgspec
from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from cortextx.fleet.agent.sources.file import FileSource
from cortextx.fleet.agent.sources.file_settings import FileSettings
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.contract import LogEntry
from tests.integration.peers import need


class Buffer:
    """A buffer in memory that takes its time, and loses what is under way in a crash."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.bodies: list[bytes] = []
        self.life = 0

    def put(self, bodies, checkpoints, can_wait=True) -> Deferred:
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
        self.splits = True
        """Whether lines are written in two halves, as by a program with a small buffer."""
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
            cut = len(lines) // 3 if self.splits else 0
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
    def check(self, unknown: bool = False):
        """All lines are there, once; within one file's span in their order. No loss is
        reported, or (`unknown`) only that a file is gone whose end nobody knows."""
        self.writer.ended.set()
        self.writer.join()
        for _ in range(600):
            yield deferLater(reactor, 0.05)
            if len(self.buffer.bodies) >= self.writer.count:
                break
        yield deferLater(reactor, 0.3)
        yield self.source.stop()
        lines, gaps = self.found()
        if unknown:
            gaps = [gap for gap in gaps if b"unread_bytes" in bytes(gap.metadata)]
        self.assertEqual(gaps, [])
        numbers = [int(line.split()[1]) for line in lines]
        self.assertEqual(sorted(numbers), list(range(self.writer.count)))
        self.assertTrue(all(line.endswith(" of the log") for line in lines))
        return numbers

    def rotate(self, keep: int) -> None:
        for index in range(keep, 0, -1):
            if os.path.exists(f"{self.path}.{index}"):
                os.rename(f"{self.path}.{index}", f"{self.path}.{index + 1}")
        os.rename(self.path, f"{self.path}.1")

    @inlineCallbacks
    def test_a02_two_hundred_rotations_under_load_with_restarts(self):
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

    def config(self, *directives: str, name: str = "rotate.conf") -> list[str]:
        """A command that makes logrotate rotate now."""
        program = need("logrotate")
        os.chmod(self.place, 0o755)
        config = os.path.join(self.place, name)
        with open(config, "w") as file:
            lines = "".join(f" {line}\n" for line in ("rotate 200", "missingok", *directives))
            file.write(f"{self.path} {{\n{lines}}}\n")
        os.chmod(config, 0o644)
        return [program, "--force", "--state", os.path.join(self.place, "state"), config]

    def run_logrotate(self, command: list[str]) -> Deferred:
        return deferToThread(
            subprocess.run, command, check=True, timeout=20, stdin=subprocess.DEVNULL
        )

    @inlineCallbacks
    def test_a01_a04_a05_a16_logrotate_a_hundred_times_under_load(self):
        """Real logrotate with `create`, a late signal and compression of the second oldest:
        a hundred times, the agent stopped in the middle of some, killed in others. (While it
        is down nothing is compressed: what nobody reads in time is lost, and said to be.)"""
        compress = self.config("create", "compress", "delaycompress")
        plain = self.config("create", name="plain.conf")
        for number in range(100):
            yield deferLater(reactor, 0.05)
            stopped = number % 10 == 5
            if stopped:
                if number % 20 == 15:
                    self.buffer.life += 1
                yield self.source.stop()
            yield self.run_logrotate(plain if stopped else compress)
            yield deferLater(reactor, 0.03)
            self.writer.reopen.set()
            if stopped:
                self.buffer.life += 1
                self.source = self.start()
                yield deferLater(reactor, 0.5)
        yield self.check(unknown=True)
        self.assertGreater(self.writer.count, 10_000)
        compressed = [name for name in os.listdir(self.place) if name.endswith(".gz")]
        self.assertGreater(len(compressed), 80)

    @inlineCallbacks
    def test_a07_a08_copytruncate_loses_only_what_it_says(self):
        """Real logrotate with `copytruncate`, forty times: no line twice or broken, all but
        those of the moments between copy and truncation; no more is reported as lost than is.
        (Lines are written whole: else a truncation between two halves leaves half a line.)"""
        self.writer.splits = False
        yield deferLater(reactor, 0.1)
        command = self.config("copytruncate")
        for _ in range(40):
            yield deferLater(reactor, 0.1)
            yield self.run_logrotate(command)
        self.writer.ended.set()
        self.writer.join()
        yield deferLater(reactor, 1.5)
        yield self.source.stop()
        lines, gaps = self.found()
        numbers = [int(line.split()[1]) for line in lines]
        self.assertEqual(len(set(numbers)), len(numbers), "no line twice")
        self.assertTrue(all(line.endswith(" of the log") for line in lines))
        self.assertEqual(numbers, sorted(numbers))
        self.assertGreater(len(numbers), self.writer.count * 0.5)
        missing = set(range(self.writer.count)) - set(numbers)
        told = self.source.report().counters["gap_bytes"]
        self.assertLessEqual(told, sum(len(f"line {n} of the log\n") for n in missing))
        self.assertEqual(len(gaps), self.source.report().counters["gaps"])

    def found(self) -> tuple[list[str], list[LogEntry]]:
        """The lines that came, and what the source said itself."""
        decoder = msgspec.json.Decoder(LogEntry)
        entries = [decoder.decode(b'{"seq":1,' + body) for body in self.buffer.bodies]
        lines = [entry.message for entry in entries if entry.source.startswith("file:")]
        return lines, [entry for entry in entries if entry.source == "custom:cortextx"]


class LoadTests(TestCase):
    """What is very long, and what is very many."""

    timeout = 110

    def setUp(self) -> None:
        self.place = tempfile.mkdtemp()
        self.addCleanup(rmtree, self.place)

    def start(self, put, **settings) -> FileSource:
        settings = FileSettings([os.path.join(self.place, "*.log")], **settings)
        source = FileSource(reactor, "load", settings, put, dict)
        source.start()
        return source

    @inlineCallbacks
    def test_f17_a_line_of_100_mb_takes_little_memory(self):
        """It comes in parts, whole, and the process grows by less than 40 MB."""
        size, parts = 100_000_000, []
        line = (b"0123456789abcdef" * 65_536)[:1_000_000]
        with open(os.path.join(self.place, "a.log"), "wb") as file:
            for _ in range(size // len(line)):
                file.write(line)
            file.write(b"\nnext\n")
        hashes, ended = blake2b(), Deferred()

        def put(bodies, checkpoints, can_wait=True):
            for body in bodies:
                entry = msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry)
                if entry.message == "next":
                    reactor.callLater(0, ended.callback, None)
                    continue
                hashes.update(entry.message.encode())
                parts.append(msgspec.json.decode(entry.metadata)["cortextx"])
            return succeed(None)

        before = resident()
        source = self.start(put)
        yield ended.addTimeout(90, reactor)
        grown = resident() - before
        yield source.stop()
        wanted = blake2b()
        for _ in range(size // len(line)):
            wanted.update(line)
        self.assertEqual(hashes.digest(), wanted.digest())
        self.assertEqual([mark["part"] for mark in parts], list(range(1, len(parts) + 1)))
        self.assertEqual(parts[-1]["parts"], len(parts))
        self.assertLess(grown, 40e6)

    @inlineCallbacks
    def test_five_thousand_files_take_little_memory_and_are_heard_at_once(self):
        """All are followed with a bounded number of descriptors and one watch; a line in one
        of them comes without waiting for the next look, which is a minute away."""
        bodies = []

        def put(some, checkpoints, can_wait=True):
            bodies.extend(some)
            return succeed(None)

        for number in range(5000):
            with open(os.path.join(self.place, f"{number}.log"), "wb") as file:
                file.write(b"line\n")
        before = resident()
        source = self.start(put, scan_interval=60.0)
        yield until(lambda: len(bodies) == 5000 and source.report().counters["looks"])
        self.assertLess(resident() - before, 40e6)
        details = source.report().details
        self.assertLessEqual(details["open_files"], details["max_open_files"])
        self.assertEqual((details["directories"], details["directories_why"]), (1, None))
        with open(os.path.join(self.place, "77.log"), "ab") as file:
            file.write(b"another\n")
        began = time.monotonic()
        yield until(lambda: len(bodies) == 5001)
        self.assertLess(time.monotonic() - began, 20)
        yield source.stop()


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@inlineCallbacks
def until(holds, seconds: float = 60.0):
    """Wait until something holds; fails after `seconds`."""
    for _ in range(int(seconds / 0.02)):
        if holds():
            return
        yield deferLater(reactor, 0.02)
    raise AssertionError("waited in vain")
