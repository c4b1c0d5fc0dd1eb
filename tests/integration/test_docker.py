"""The Docker source with an Engine API over a Unix socket, and with podman's."""

from __future__ import annotations

import time

import msgspec
from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from cortextx.errors import StoreFull
from cortextx.fleet.agent.sources.docker_settings import DockerSettings
from cortextx.fleet.agent.sources.docker_source import DockerSource
from cortextx.fleet.contract import LogEntry
from tests.integration.engine import BUFFER, Engine
from tests.integration.podman import Podman


class Buffer:
    """A buffer in memory that takes its time, and loses what is under way in a crash."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.bodies: list[bytes] = []
        self.life = 0
        self.refuse = 0

    def put(self, bodies, checkpoints, can_wait=True) -> Deferred:
        return deferLater(reactor, 0.001, self.take, self.life, bodies, checkpoints)

    def take(self, life, bodies, checkpoints) -> None:
        if life != self.life:
            return
        if self.refuse:
            self.refuse -= 1
            raise StoreFull("full")
        self.bodies += bodies
        for key, value in checkpoints.items():
            self.kept[key] = value
            if value is None:
                del self.kept[key]

    @property
    def entries(self) -> list[LogEntry]:
        decoder = msgspec.json.Decoder(LogEntry)
        return [decoder.decode(b'{"seq":1,' + body) for body in self.bodies]

    @property
    def texts(self) -> list[str]:
        return [entry.message for entry in self.entries]


class DockerCase(TestCase):
    timeout = 100
    socket = ""

    def setUp(self):
        self.buffer = Buffer()
        self.sources: list[DockerSource] = []

    def begin(self, **settings) -> DockerSource:
        kept = dict(self.buffer.kept)
        source = DockerSource(
            reactor,
            "docker",
            DockerSettings(socket=self.socket, **{"look_every": 0.5, **settings}),
            self.buffer.put,
            lambda: kept,
            own=frozenset(),
        )
        self.sources.append(source)
        source.start()
        return source

    @inlineCallbacks
    def until(self, ready, what: str, seconds: float = 20.0):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                told = [source.report() for source in self.sources]
                raise AssertionError(f"waited for {what}: {told} {self.buffer.texts[-20:]}")
            yield deferLater(reactor, 0.02)

    @inlineCallbacks
    def quiet(self, seconds: float = 0.8):
        yield deferLater(reactor, seconds)

    @inlineCallbacks
    def stop_sources(self):
        for source in self.sources:
            yield source.stop()


class EngineTests(DockerCase):
    @inlineCallbacks
    def setUp(self):
        super().setUp()
        self.engine = Engine(reactor, self)
        self.socket = self.engine.socket
        self.addCleanup(self.end)
        yield self.engine.start()

    @inlineCallbacks
    def end(self):
        yield self.stop_sources()
        if self.engine.port is not None:
            yield self.engine.stop()
        yield deferLater(reactor, 0.05)

    @inlineCallbacks
    def test_what_an_entry_is_made_of(self):
        """Name, time, stream, labels and a severity read from the line."""
        box = self.engine.run(
            "web", labels={"com.docker.compose.service": "front", "maintainer": "x"}
        )
        self.engine.write(box, b"2026-01-01T00:00:00Z ERROR no such page\n", 2)
        self.begin()
        yield self.until(lambda: self.buffer.bodies, "the entry")
        (entry,) = self.buffer.entries
        self.assertEqual((entry.source, entry.severity), ("docker:web", "err"))
        self.assertEqual(int(entry.ts.timestamp() * 1e3), self.engine.clock // 10**6)
        facts = msgspec.json.decode(entry.metadata)["docker"]
        self.assertEqual(facts["stream"], "stderr")
        self.assertEqual(facts["labels"], {"com.docker.compose.service": "front"})
        self.assertEqual(facts["id"], box.id[:12])

    @inlineCallbacks
    def test_a31_partials_are_joined_and_streams_do_not_mix(self):
        """A31: long lines of both streams, interleaved, and one of exactly 16,384 bytes."""
        box = self.engine.run("app")
        self.begin()
        exact = b"e" * BUFFER
        long_out, long_err = b"o" * 50_000, b"r" * 40_000
        for at in range(0, 50_000, 5_000):
            self.engine.write(box, long_out[at : at + 5_000], 1)
            self.engine.write(box, long_err[at : at + 5_000], 2)
        self.engine.write(box, b"\n", 2)
        self.engine.write(box, b"\n", 1)
        self.engine.write(box, exact + b"\nnext\n", 1)
        yield self.until(lambda: "next" in self.buffer.texts, "the last line")
        self.assertEqual(
            sorted(self.buffer.texts),
            sorted([long_out.decode(), long_err.decode(), exact.decode(), "next"]),
        )

    @inlineCallbacks
    def test_a31_a_partial_that_is_never_ended_is_given_after_a_time(self):
        """A31: after the time-out what is there is given, and the rest as its next part."""
        box = self.engine.run("app")
        self.begin(partial_secs=0.2)
        self.engine.write(box, b"x" * BUFFER)
        yield self.until(lambda: self.buffer.bodies, "the part")
        self.engine.write(box, b"the end\n")
        yield self.until(lambda: len(self.buffer.bodies) == 2, "the rest")
        marks = [msgspec.json.decode(e.metadata)["cortextx"] for e in self.buffer.entries]
        self.assertEqual(marks, [{"part": 1}, {"part": 2, "parts": 2}])
        self.assertEqual("".join(self.buffer.texts), "x" * BUFFER + "the end")

    @inlineCallbacks
    def test_a31_an_endless_line_is_given_in_parts(self):
        """A31, F17: 1 MB without a newline is held to its cap only, and whole in the end."""
        box = self.engine.run("app")
        self.begin()
        line = bytes(97 + n % 26 for n in range(1_000_000))
        self.engine.write(box, line + b"\n")
        self.engine.write(box, b"next\n")
        yield self.until(lambda: "next" in self.buffer.texts, "the last line")
        self.assertEqual("".join(self.buffer.texts[:-1]), line.decode())
        marks = [msgspec.json.decode(e.metadata).get("cortextx") for e in self.buffer.entries]
        parts = [mark["part"] for mark in marks[:-1]]
        self.assertEqual(parts, list(range(1, len(parts) + 1)))
        self.assertEqual(marks[-2]["parts"], len(parts))

    @inlineCallbacks
    def test_a31_terminal_containers(self):
        """A31: a TTY's stream has no frames; a long line is joined there too."""
        box = self.engine.run("shell", tty=True)
        self.engine.write(box, b"hello\n" + b"y" * (2 * BUFFER + 5) + b"\nbye\n")
        self.begin()
        yield self.until(lambda: "bye" in self.buffer.texts, "the last line")
        self.assertEqual(self.buffer.texts, ["hello", "y" * (2 * BUFFER + 5), "bye"])

    @inlineCallbacks
    def test_a32_stop_start_rename_and_recreate(self):
        """A32: the same container goes on where it was, under its new name; a new one of
        the old name is another."""
        box = self.engine.run("app")
        self.begin()
        self.engine.write(box, b"n 0\nn 1\n")
        yield self.until(lambda: len(self.buffer.bodies) == 2, "the first lines")
        self.engine.end(box)
        yield self.quiet(0.3)
        self.engine.again(box)
        self.engine.write(box, b"n 2\n")
        yield self.until(lambda: "n 2" in self.buffer.texts, "a line after the restart", 5)
        self.engine.end(box)
        self.engine.write(box, b"n 3\n")
        self.engine.again(box)
        self.engine.rename(box, "app-old")
        yield self.until(lambda: "n 3" in self.buffer.texts, "a line at the restart", 5)
        yield self.quiet()
        self.engine.write(box, b"n 4\n")
        new = self.engine.run("app")
        self.engine.write(new, b"n 5\n")
        yield self.until(lambda: len(self.buffer.bodies) >= 6, "the new container", 5)
        found = {entry.message: entry.source for entry in self.buffer.entries}
        self.assertEqual(self.buffer.texts, [f"n {n}" for n in range(6)])
        self.assertEqual((found["n 4"], found["n 5"]), ("docker:app-old", "docker:app"))
        self.engine.remove(box)
        yield self.until(lambda: f"docker:{box.id}" not in self.buffer.kept, "the checkpoint")
        self.assertIn(f"docker:{new.id}", self.buffer.kept)

    @inlineCallbacks
    def test_a32_the_same_nanosecond_is_neither_lost_nor_repeated(self):
        """A32: with many lines of one time, restarts between them cost and double nothing."""
        box = self.engine.run("app")
        at = self.engine.clock
        for number in range(12):
            self.engine.write(box, b"n %d\n" % number, at=at + number // 5)
            source = self.begin()
            yield self.until(lambda n=number: f"n {n}" in self.buffer.texts, "the line")
            yield source.stop()
        self.assertEqual(self.buffer.texts, [f"n {n}" for n in range(12)])

    @inlineCallbacks
    def test_a32_a_crash_in_a_partial_of_one_stream(self):
        """A31, A32: what was held of stdout is read again, stderr's lines behind it are not."""
        box = self.engine.run("app")
        source = self.begin()
        self.engine.write(box, b"o" * BUFFER, 1)
        self.engine.write(box, b"err 1\n", 2)
        yield self.until(lambda: "err 1" in self.buffer.texts, "stderr's line")
        self.buffer.life += 1
        yield source.stop()
        self.engine.write(box, b"end\n", 1)
        self.engine.write(box, b"err 2\n", 2)
        self.begin()
        yield self.until(lambda: len(self.buffer.bodies) >= 3, "the rest")
        yield self.quiet(0.3)
        self.assertEqual(
            sorted(self.buffer.texts), sorted(["err 1", "o" * BUFFER + "end", "err 2"])
        )

    @inlineCallbacks
    def test_a_daemon_that_restarts_and_a_buffer_that_refuses(self):
        """Nothing is lost or doubled by either, under load."""
        box = self.engine.run("app")
        self.begin()
        for number in range(3000):
            self.engine.write(box, b"n %d\n" % number, 1 + number % 2)
            if number % 50 == 0:
                yield deferLater(reactor, 0.003)
            if number == 1000:
                yield self.engine.stop()
                yield self.engine.start()
            if number in (500, 2000):
                self.buffer.refuse = 1
        yield self.until(lambda: len(self.buffer.bodies) >= 3000, "all lines")
        yield self.quiet()
        numbers = [int(text[2:]) for text in self.buffer.texts]
        self.assertEqual(sorted(numbers), list(range(3000)))

    @inlineCallbacks
    def test_a_log_that_was_rotated_away_is_a_gap(self):
        """F37: what the daemon removed before it was read is told."""
        box = self.engine.run("app")
        self.engine.write(box, b"n 0\n")
        source = self.begin()
        yield self.until(lambda: self.buffer.bodies, "the line")
        yield source.stop()
        self.engine.write(box, b"n 1\nn 2\nn 3\n")
        del box.records[:2]
        self.begin()
        yield self.until(lambda: "n 3" in self.buffer.texts, "the last line")
        marks = [e for e in self.buffer.entries if e.source == "custom:cortextx"]
        self.assertEqual(len(marks), 1)
        self.assertIn(b'"source":"docker:app"', bytes(marks[0].metadata))

    @inlineCallbacks
    def test_a46_a_clock_that_was_set_back(self):
        """A46: a checkpoint in the future hides nothing that is written now."""
        box = self.engine.run("app")
        hour = 3600 * 10**9
        self.engine.write(box, b"n 0\n", at=self.engine.clock + hour)
        source = self.begin()
        yield self.until(lambda: self.buffer.bodies, "the line")
        yield source.stop()
        self.engine.write(box, b"n 1\n")
        self.begin()
        yield self.until(lambda: "n 1" in self.buffer.texts, "the line of now")
        yield self.quiet(0.3)
        self.assertEqual(self.buffer.texts, ["n 0", "n 1"])

    @inlineCallbacks
    def test_exclusion_and_unreadable_logs(self):
        """Excluded names, the opt-out label, and a driver without logs cost nothing."""
        quiet = [
            self.engine.run("noise"),
            self.engine.run("off", labels={"cortextx.logs": "false"}),
        ]
        broken = self.engine.run("journal-driver", status=501)
        good = self.engine.run("good")
        for box in [*quiet, broken, good]:
            self.engine.write(box, b"hello\n")
        source = self.begin(exclude=("noi*",))
        yield self.until(lambda: self.buffer.bodies, "the line")
        yield self.quiet(1.5)
        self.assertEqual([e.source for e in self.buffer.entries], ["docker:good"])
        self.assertEqual(source.report().details["followed"], ["good"])
        asked = [uri for uri in self.engine.asked if f"{broken.id}/logs" in uri]
        self.assertLess(len(asked), 4)

    @inlineCallbacks
    def test_no_daemon_yet(self):
        """A source waits for its daemon, says so, and then goes on."""
        yield self.engine.stop()
        source = self.begin()
        yield self.quiet(0.3)
        self.assertEqual(source.report().state, "waiting")
        yield self.engine.start()
        box = self.engine.run("app")
        self.engine.write(box, b"hello\n")
        yield self.until(lambda: self.buffer.bodies, "the line")
        self.assertEqual(source.report().state, "running")


class PodmanTests(DockerCase):
    @inlineCallbacks
    def test_a32_podman_restarts_renames_and_long_lines(self):
        """A31, A32: with the real thing, whose times have whole seconds only: every line
        once, over restarts of the container and of the source."""
        podman = yield deferToThread(Podman, self)
        self.addCleanup(self.stop_sources)
        self.socket = podman.socket
        script = (
            "for n in 0 1 2 3 4 5 6 7; do echo out $n; echo err $n >&2; sleep 0.1; done;"
            "head -c 40000 /dev/zero | tr '\\0' x; echo"
        )
        yield deferToThread(podman.run, "one", script)
        source = self.begin()
        yield self.until(lambda: "out 3" in self.buffer.texts, "some lines")
        yield source.stop()
        self.begin()
        yield self.until(lambda: any("xxx" in text for text in self.buffer.texts), "the long line")
        yield deferToThread(podman.rename, "one", "two")
        yield deferToThread(podman.start, "two")
        yield self.until(lambda: len(self.buffer.texts) >= 34, "the second run")
        yield self.quiet(2.0)
        lines = [f"{stream} {n}" for stream in ("out", "err") for n in range(8)] + ["x" * 40_000]
        self.assertEqual(sorted(self.buffer.texts), sorted(lines * 2))
        self.assertEqual(
            [entry.source for entry in self.buffer.entries],
            ["docker:one"] * 17 + ["docker:two"] * 17,
        )
