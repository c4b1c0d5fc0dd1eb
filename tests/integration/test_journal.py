"""The journald source with a real systemd-journald, journalctl and systemd-journal-remote."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import msgspec
from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from cortextx.errors import StoreFull
from cortextx.fleet.agent.sources.journal_entries import OwnTraces
from cortextx.fleet.agent.sources.journal_settings import JournalSettings, command
from cortextx.fleet.agent.sources.journal_source import JournalSource
from cortextx.fleet.contract import LogEntry
from tests.integration.journald import Journald
from tests.integration.peers import need

REMOTE = "/lib/systemd/systemd-journal-remote"


class Buffer:
    """A buffer in memory that takes its time.

    A raised `life` is a crash: what is under way is lost, and so is all that the sources
    of lives before put from then on.
    """

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.bodies: list[bytes] = []
        self.life = 0
        self.refuse = 0
        self.delay = 0.001

    def of_this_life(self):
        """The put of a source that begins now."""
        life = self.life

        def put(bodies, checkpoints, can_wait=True) -> Deferred:
            return deferLater(reactor, self.delay, self.take, life, bodies, checkpoints)

        return put

    def take(self, life, bodies, checkpoints) -> None:
        if life != self.life:
            return
        if self.refuse:
            self.refuse -= 1
            raise StoreFull("full")
        self.bodies += bodies
        self.kept.update(checkpoints)

    @property
    def entries(self) -> list[LogEntry]:
        decoder = msgspec.json.Decoder(LogEntry)
        return [decoder.decode(b'{"seq":1,' + body) for body in self.bodies]

    @property
    def numbers(self) -> list[int]:
        """Those of the messages `n N`."""
        return [int(e.message[2:]) for e in self.entries if e.message.startswith("n ")]

    @property
    def gaps(self) -> list[LogEntry]:
        return [entry for entry in self.entries if entry.source == "custom:cortextx"]


class JournalCase(TestCase):
    timeout = 100

    def setUp(self) -> None:
        self.buffer = Buffer()
        self.sources: list[JournalSource] = []

    def begin(self, directory: str, own: OwnTraces | None = None, **settings) -> JournalSource:
        kept = dict(self.buffer.kept)
        source = JournalSource(
            reactor, "journal", JournalSettings(directory=directory, **settings),
            self.buffer.of_this_life(), lambda: kept, own=own or OwnTraces(),
        )  # fmt: skip
        self.sources.append(source)
        source.start()
        return source

    @inlineCallbacks
    def tearDown(self):
        for source in self.sources:
            yield source.stop()

    @inlineCallbacks
    def until(self, ready, what: str, seconds: float = 40.0):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                told = [source.report() for source in self.sources]
                raise AssertionError(f"waited for {what}: {told} {len(self.buffer.bodies)}")
            yield deferLater(reactor, 0.05)


class JournaldTests(JournalCase):
    def small(self, use: str = "4M", size: str = "512K") -> Journald:
        return Journald(self, f"RuntimeMaxFileSize={size}", f"RuntimeMaxUse={use}")

    @inlineCallbacks
    def test_fields_bytes_and_long_messages(self):
        """What an entry is made of; bytes that are no text are kept; long ones are parted."""
        journald = self.small()
        journald.send(
            MESSAGE=b"bad \xff byte", PRIORITY=b"3", SYSLOG_FACILITY=b"3", SYSLOG_IDENTIFIER=b"prog"
        )
        journald.send(MESSAGE=b"x" * 70_000 + b"\nline two", PRIORITY=b"9")
        subprocess.run(
            [need("logger"), "-u", journald.devlog, "-p", "auth.warning", "-t", "door", "knock"],
            check=True, timeout=20,
        )  # fmt: skip
        self.begin(journald.directory)
        yield self.until(lambda: any(e.app_name == "door" for e in self.buffer.entries), "logger")
        found = [
            e for e in self.buffer.entries if e.app_name in ("prog", "door") or "x" in e.message
        ]
        bad = next(e for e in found if e.app_name == "prog")
        self.assertEqual((bad.message, bad.severity, bad.facility), ("bad � byte", "err", "daemon"))
        self.assertIn(b'"raw":"YmFkIP8gYnl0ZQ=="', bytes(bad.metadata))
        parts = [e.message for e in found if e.message.startswith("x")]
        self.assertEqual("".join(parts), "x" * 70_000 + "\nline two")
        self.assertEqual(len(parts), 2)
        door = next(e for e in found if e.app_name == "door")
        self.assertEqual(
            (door.message, door.severity, door.facility, door.source),
            ("knock", "warning", "auth", "journald"),
        )
        self.assertIn(b'"_TRANSPORT":"syslog"', bytes(door.metadata))

    @inlineCallbacks
    def test_a25_rotation_under_load_repeats_and_stops_nothing(self):
        """A25: tiny files that rotate all the time, with stops and crashes: each entry once."""
        journald = self.small(use="60M")
        count = 12_000
        writing = deferToThread(self.write_slowly, journald, count)
        source = self.begin(journald.directory)
        for number in range(8):
            yield deferLater(reactor, 0.4)
            if number in (2, 5):
                if number == 5:
                    self.buffer.life += 1
                yield source.stop()
                self.buffer.life += 1
                source = self.begin(journald.directory)
            else:
                journald.rotate()
        yield writing
        yield self.until(lambda: len(self.buffer.numbers) >= count, "all entries")
        yield deferLater(reactor, 0.3)
        self.assertEqual(self.buffer.numbers, list(range(count)))
        self.assertEqual(self.buffer.gaps, [])
        files = [f for _, _, names in os.walk(journald.directory) for f in names]
        self.assertGreater(len(files), 8)

    def write_slowly(self, journald: Journald, count: int) -> None:
        for first in range(0, count, 50):
            journald.write(first, first + 50)
            time.sleep(0.012)

    @inlineCallbacks
    def test_a26_neither_the_first_nor_the_last_entry_is_lost_or_repeated(self):
        """A26: stopped and started at every single entry, reading goes on by exactly one."""
        journald = self.small()
        for number in range(12):
            journald.write(number, number + 1)
            source = self.begin(journald.directory)
            yield self.until(lambda n=number: n in self.buffer.numbers, "the entry")
            yield source.stop()
        self.assertEqual(self.buffer.numbers, list(range(12)))
        self.assertEqual(self.buffer.gaps, [])

    @inlineCallbacks
    def test_a26_a_vacuumed_cursor_is_a_gap_and_reading_goes_on_at_the_oldest(self):
        """A26: the entry after a cursor that is gone is not taken for the cursor's own."""
        journald = self.small(use="2M")
        journald.write(0, 10)
        source = self.begin(journald.directory)
        yield self.until(lambda: len(self.buffer.numbers) == 10, "the first entries")
        yield source.stop()
        yield deferToThread(journald.write, 10, 12_000)
        yield deferLater(reactor, 1.0)
        oldest = journald.ctl("--output=cat", "SYSLOG_IDENTIFIER=numbers").split(b"\n")[0]
        self.begin(journald.directory)
        yield self.until(lambda: 11_999 in self.buffer.numbers, "the last entry")
        numbers = self.buffer.numbers
        self.assertEqual(numbers[10:], list(range(int(oldest[2:]), 12_000)))
        self.assertEqual(len(self.buffer.gaps), 1)
        self.assertIn(b'"reason":"vacuumed"', bytes(self.buffer.gaps[0].metadata))
        lost = int(oldest[2:]) - 10
        self.assertIn(b'"count":%d' % lost, bytes(self.buffer.gaps[0].metadata))

    @inlineCallbacks
    def test_a28_vacuum_under_reading_neither_stops_nor_spins_nor_repeats(self):
        """A28: journald removes files while they are read: what is left comes once, in
        order, and what is not is a gap."""
        journald = self.small(use="2M")
        self.buffer.delay = 0.05
        source = self.begin(journald.directory)
        yield deferToThread(journald.write, 0, 60_000)
        yield self.until(lambda: 59_999 in self.buffer.numbers, "the last entry")
        numbers = self.buffer.numbers
        self.assertEqual(numbers, sorted(set(numbers)))
        # journald writes a few entries of its own.
        told = sum(int(gap.message.split(": ")[1].split()[0]) for gap in self.buffer.gaps)
        self.assertAlmostEqual(told, 60_000 - len(numbers), delta=10)
        self.assertLess(source.counters["runs"], 40)
        journald.write(60_000, 60_001)
        yield self.until(lambda: 60_000 in self.buffer.numbers, "one more")

    @inlineCallbacks
    def test_a28_the_whole_journal_removed_and_begun_anew(self):
        """A28: with another series of numbers reading goes on, in the same run or the next."""
        journald = self.small()
        journald.write(0, 10)
        source = self.begin(journald.directory)
        yield self.until(lambda: len(self.buffer.numbers) == 10, "the first entries")
        journald.stop()
        for name in os.listdir(journald.directory):
            shutil.rmtree(os.path.join(journald.directory, name))
        journald.start()
        journald.write(10, 20)
        yield self.until(lambda: 19 in self.buffer.numbers, "the new journal")
        yield source.stop()
        self.begin(journald.directory)
        journald.write(20, 30)
        yield self.until(lambda: 29 in self.buffer.numbers, "the next run")
        self.assertEqual(self.buffer.numbers, list(range(30)))

    @inlineCallbacks
    def test_a35_what_the_agent_itself_logs_is_not_read(self):
        """A35: entries of the agent's own pid are passed, and their checkpoint is kept."""
        journald = self.small()
        pid = str(os.getpid())
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip().replace("-", "")
        journald.write(0, 3)
        other = "import socket,sys;s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM);"
        other += "s.connect(sys.argv[1]);s.send(b'MESSAGE=other\\n')"
        subprocess.run([sys.executable, "-c", other, journald._socket], check=True, timeout=20)
        source = self.begin(journald.directory, OwnTraces(pid=pid, boot=boot))
        yield self.until(
            lambda: "other" in [entry.message for entry in self.buffer.entries], "the other entry"
        )
        yield deferLater(reactor, 0.2)
        self.assertEqual(self.buffer.numbers, [])
        self.assertEqual(source.counters["own"], 3)

    @inlineCallbacks
    def test_a_buffer_that_refuses_costs_no_entry(self):
        """F19: a put that failed is read again, from what is durable."""
        journald = self.small()
        journald.write(0, 500)
        self.buffer.refuse = 2
        self.begin(journald.directory)
        yield self.until(lambda: len(self.buffer.numbers) >= 500, "all entries")
        self.assertEqual(self.buffer.numbers, list(range(500)))

    @inlineCallbacks
    def test_pause_and_resume(self):
        """F19: a source that is paused gives nothing, and then all."""
        journald = self.small(use="60M")
        source = self.begin(journald.directory)
        source.pause()
        journald.write(0, 3000)
        yield deferLater(reactor, 0.5)
        before = len(self.buffer.numbers)
        yield deferLater(reactor, 0.3)
        self.assertEqual(len(self.buffer.numbers), before)
        source.resume()
        yield self.until(lambda: len(self.buffer.numbers) >= 3000, "all entries")
        self.assertEqual(self.buffer.numbers, list(range(3000)))


class OrphanTests(JournalCase):
    def test_journalctl_ends_with_an_agent_that_was_killed(self):
        """No journalctl outlives kill -9 of the process that reads it."""
        journald = Journald(self)
        line = command(JournalSettings(directory=journald.directory))
        code = (
            "import subprocess,sys,time\n"
            "c=subprocess.Popen(sys.argv[1:],stdin=subprocess.DEVNULL,stdout=subprocess.PIPE)\n"
            "print(c.pid,flush=True);time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code, *line], stdout=subprocess.PIPE)
        self.addCleanup(parent.wait)
        self.addCleanup(parent.kill)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.send_signal(signal.SIGKILL)
        for _ in range(200):
            try:
                with open(f"/proc/{child}/stat") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except FileNotFoundError:
                return
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        self.fail("journalctl still runs")


class RemoteTests(JournalCase):
    """Journal files made by systemd-journal-remote: other machines, several boots."""

    def setUp(self) -> None:
        super().setUp()
        need("journalctl")
        if not os.path.exists(REMOTE):
            need("systemd-journal-remote")
        self.place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)

    def make(self, name: str, records: list[tuple[int, str]]) -> None:
        """A file with records (boot, message), a second from one to the next."""
        now = int(time.time()) - 3600
        text = "".join(
            f"__REALTIME_TIMESTAMP={(now + at) * 1_000_000}\n"
            f"__MONOTONIC_TIMESTAMP={1_000_000 * (at + 1)}\n_BOOT_ID={str(boot) * 32}\n"
            f"_MACHINE_ID={'9' * 32}\n_HOSTNAME=far\nMESSAGE={message}\nPRIORITY=4\n\n"
            for at, (boot, message) in enumerate(records)
        )
        path = os.path.join(self.place, f"{name}.journal")
        subprocess.run(
            [REMOTE, "-o", path, "-"], input=text.encode(), check=True, timeout=30,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @inlineCallbacks
    def test_earlier_boots_are_read_too(self):
        """`--follow` alone would show the newest boot only."""
        self.make("remote", [(1, "n 0"), (1, "n 1"), (2, "n 2"), (3, "n 3")])
        self.begin(self.place)
        yield self.until(lambda: len(self.buffer.numbers) >= 4, "all boots")
        self.assertEqual(self.buffer.numbers, [0, 1, 2, 3])
        self.assertIn(b'"_HOSTNAME":"far"', bytes(self.buffer.entries[0].metadata))
        self.assertEqual(self.buffer.entries[0].severity, "warning")

    @inlineCallbacks
    def test_a28_a_damaged_file_is_passed_and_the_next_is_read(self):
        """A28: a file cut and overwritten in the middle ends nothing."""
        self.make("a", [(1, f"n {n}") for n in range(200)])
        path = os.path.join(self.place, "a.journal")
        with open(path, "r+b") as file:
            file.seek(60_000)
            file.write(os.urandom(2000))
        self.make("b", [(2, f"n {n}") for n in range(1000, 1200)])
        source = self.begin(self.place)
        yield self.until(lambda: 1199 in self.buffer.numbers, "the other file", 60)
        numbers = self.buffer.numbers
        self.assertEqual([n for n in numbers if n >= 1000], list(range(1000, 1200)))
        self.assertEqual(len(numbers), len(set(numbers)))
        self.assertLess(source.counters["runs"], 20)
