"""Listeners, commands and standard input as sources: bounds, rates, backpressure, restarts."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import msgspec
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from cortextx.errors import ConfigError, StoreFull
from cortextx.fleet.agent.sources.custom import custom_source, settings_of
from cortextx.fleet.agent.sources.custom_settings import (
    ExecSettings,
    StdinSettings,
    SyslogSettings,
    place_of,
)
from cortextx.fleet.agent.sources.exec import ExecSource, ended_how
from cortextx.fleet.agent.sources.feed import FULL_BYTES, HARD_BYTES, PUT_BODIES, Feed
from cortextx.fleet.agent.sources.piped import LineEncoder
from cortextx.fleet.agent.sources.stdin import unusable
from cortextx.fleet.agent.sources.syslog_listeners import Datagrams, SyslogSource
from cortextx.fleet.agent.sources.syslog_streams import Connection, Refused, Streams
from cortextx.fleet.agent.tables import SourceTable, check_source
from cortextx.interfaces.fleet import ILogSource


class Store:
    """A `put` that a test answers by hand, or that refuses."""

    def __init__(self) -> None:
        self.puts: list[list[bytes]] = []
        self.waiting: list[Deferred[int]] = []
        self.by_hand = False
        self.error: Exception | None = None
        self.can_wait: bool | None = None

    def put(self, bodies: list[bytes], checkpoints: Any, can_wait: bool = True) -> Deferred[int]:
        self.can_wait = can_wait
        if self.error is not None:
            return fail(self.error)
        self.puts.append(list(bodies))
        if not self.by_hand:
            return succeed(0)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(b"{" + body) for bodies in self.puts for body in bodies]

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.entries()]


class FeedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.store, self.room = Clock(), Store(), 0
        self.feed = Feed(self.clock, "x", self.store.put, can_wait=True, on_room=self.on_room)

    def on_room(self) -> None:
        self.room += 1

    def test_one_put_takes_all_that_came_meanwhile(self) -> None:
        """Commits come in groups, and in order."""
        self.store.by_hand = True
        for n in range(5):
            self.feed.give([b"%d" % n])
        self.assertEqual(self.store.puts, [[b"0"]])
        self.store.waiting.pop().callback(0)
        self.assertEqual(self.store.puts, [[b"0"], [b"1", b"2", b"3", b"4"]])
        self.feed.give([b"x"] * (PUT_BODIES + 1))
        self.store.waiting.pop().callback(0)
        self.assertEqual(len(self.store.puts[-1]), PUT_BODIES)

    def test_full_and_room(self) -> None:
        """Beyond its bound a feed is full; it says so once there is room, and takes nothing
        beyond the hard bound."""
        self.store.by_hand = True
        body = b"x" * 100_000
        while not self.feed.full:
            self.assertEqual(self.feed.give([body]), 1)
        self.assertTrue(self.feed._size <= FULL_BYTES + 2 * len(body))
        while self.feed.give([body]):
            pass
        self.assertTrue(self.feed._size <= HARD_BYTES + 2 * len(body))
        self.assertEqual(self.room, 0)
        while self.store.waiting:
            self.store.waiting.pop().callback(0)
        self.assertEqual((self.feed.full, self.room, self.feed._size), (False, 1, 0))

    def test_a_full_buffer_is_tried_again(self) -> None:
        """Nothing is lost or doubled when the buffer refuses for a while."""
        self.store.error = StoreFull("full")
        self.feed.give([b"a", b"b"])
        self.clock.advance(1)
        self.assertEqual(self.feed.why, "full")
        self.store.error = None
        self.clock.advance(1)
        self.assertEqual((self.store.puts, self.feed.why), ([[b"a", b"b"]], None))
        self.assertEqual(self.feed.entries, 2)

    def test_one_that_is_no_entry_takes_no_other_with_it(self) -> None:
        def put(bodies: list[bytes], checkpoints: Any, can_wait: bool = True) -> Deferred[int]:
            if b"bad" in bodies:
                return fail(ValueError("no JSON"))
            return self.store.put(bodies, checkpoints)

        feed = Feed(self.clock, "x", put, can_wait=True)
        feed.give([b"a", b"bad", b"c"])
        feed.give([b"d"])
        self.assertEqual([b for bodies in self.store.puts for b in bodies], [b"a", b"c", b"d"])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_drain(self) -> None:
        """A feed ends when all is durable, or when time is up."""
        self.assertIsNone(self.successResultOf(self.feed.drain(5)))
        self.store.by_hand = True
        feed = Feed(self.clock, "x", self.store.put, can_wait=True)
        feed.give([b"a"])
        drained = feed.drain(5)
        self.assertNoResult(drained)
        self.store.waiting.pop().callback(0)
        self.successResultOf(drained)
        feed = Feed(self.clock, "x", self.store.put, can_wait=True)
        feed.give([b"a"])
        drained = feed.drain(5)
        self.clock.advance(5)
        self.successResultOf(drained)
        self.assertEqual(feed.give([b"b"]), 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Transport(StringTransport):
    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()

    def setTcpKeepAlive(self, on: bool) -> None:
        self.keeps_alive = on


class ListenerCase(SynchronousTestCase):
    def source(self, **more: Any) -> SyslogSource:
        self.clock, self.store = Clock(), Store()
        settings = SyslogSettings(**{"transport": "tcp", **more})
        self.made = SyslogSource(
            self.clock, "dev", settings, self.store.put, wall=lambda: 1_000_000.0
        )
        self.settings = settings
        return self.made


class StreamTests(ListenerCase):
    def streams(self, **more: Any) -> Streams:
        source = self.source(**more)
        source._streams = streams = Streams(self.clock, source, self.settings)
        return streams

    def connect(self, streams: Streams, host: str = "192.0.2.1") -> Any:
        protocol = streams.factory().buildProtocol(IPv4Address("TCP", host, 40000))
        protocol.makeConnection(Transport())
        return protocol

    def test_is_a_source(self) -> None:
        verifyObject(ILogSource, self.source())

    def test_a_message(self) -> None:
        peer = self.connect(self.streams())
        peer.dataReceived(b"<11>app: one\n<11>app: tw")
        peer.dataReceived(b"o\n")
        self.assertEqual(self.store.messages(), ["one", "two"])
        self.assertFalse(self.store.can_wait)  # F19
        self.assertEqual(self.store.entries()[0]["metadata"]["syslog"]["peer"], "192.0.2.1")

    def test_a_fault_closes(self) -> None:
        """What came before a framing fault is kept; the connection ends, and is counted."""
        streams = self.streams(framing="octet-counting")
        peer = self.connect(streams)
        peer.dataReceived(b"4 <1>a,oops")
        self.assertTrue(peer.transport.aborted)
        self.assertEqual(self.store.messages(), ["a"])
        self.assertEqual(streams.counters["framing_faults"], 1)

    def test_who_may_send(self) -> None:
        """Only senders of the networks that are allowed get in."""
        streams = self.streams(allow=settings_of(TABLE).allow)
        self.assertIsInstance(self.connect(streams, "192.0.2.9"), Connection)
        self.assertIsInstance(self.connect(streams, "198.51.100.1"), Refused)
        self.assertEqual(self.made.report().counters["refused_peers"], 1)

    def test_the_quietest_makes_room(self) -> None:
        """When all connections are taken, one that was quiet for a minute goes; none that
        was heard."""
        streams = self.streams(max_connections=2)
        first, second = self.connect(streams), self.connect(streams)
        self.assertIsInstance(self.connect(streams), Refused)
        self.clock.advance(61)
        second.dataReceived(b"<1>x\n")
        self.assertIsInstance(self.connect(streams), Connection)
        self.assertEqual((first.transport.aborted, second.transport.aborted), (True, False))

    def test_no_room_no_reading(self) -> None:
        """While the feed is full, or the source paused, no connection is read, a new one
        neither."""
        streams = self.streams()
        self.store.by_hand = True
        first, second = self.connect(streams), self.connect(streams)
        while not self.made._feed.full:
            first.dataReceived(b"<11>app: " + b"x" * 60_000 + b"\n")
        third = self.connect(streams)
        peers = (first, second, third)
        self.assertEqual([p.transport.producerState for p in peers], ["paused"] * 3)
        self.made.pause()
        while self.store.waiting:
            self.store.waiting.pop().callback(0)
        self.assertEqual([p.transport.producerState for p in peers], ["paused"] * 3)
        self.assertEqual(self.made.report().counters["dropped"], 0)
        self.made.resume()
        self.assertEqual([p.transport.producerState for p in peers], ["producing"] * 3)

    def test_a_senders_rate(self) -> None:
        """A sender above its rate is read no faster, and loses nothing."""
        peer = self.connect(self.streams(rate=10.0))
        peer.dataReceived(b"<11>a: x\n" * 10)
        self.assertEqual(peer.transport.producerState, "producing")
        peer.dataReceived(b"<11>a: x\n" * 5)
        self.assertEqual(peer.transport.producerState, "paused")
        self.clock.advance(0.51)
        self.assertEqual(peer.transport.producerState, "producing")
        self.assertEqual(len(self.store.messages()), 15)

    def test_idle(self) -> None:
        """A quiet connection is closed where that is asked for, and one that talks is not."""
        streams = self.streams(idle_secs=30.0)
        peer = self.connect(streams)
        self.clock.advance(29)
        peer.dataReceived(b"<11>a: x\n")
        self.clock.advance(29)
        self.assertFalse(peer.transport.disconnecting)
        self.clock.advance(2)
        self.assertTrue(peer.transport.disconnecting)
        self.assertEqual(streams.counters["idle_closed"], 1)

    def test_the_end_of_a_stream(self) -> None:
        """An unfinished message is kept, and flagged; no timer is left."""
        streams = self.streams(idle_secs=30.0)
        peer = self.connect(streams)
        peer.dataReceived(b"<11>a: unfinis")
        peer.connectionLost()
        self.assertEqual(self.store.messages(), ["unfinis"])
        self.assertEqual(self.store.entries()[0]["metadata"]["cortextx"], {"partial": True})
        self.assertEqual((streams.open, self.clock.getDelayedCalls()), (set(), []))


class DatagramTests(ListenerCase):
    def test_rate_and_networks(self) -> None:
        """Above a sender's rate datagrams are dropped and counted; another's are not."""
        source = self.source(transport="udp", rate=3.0, allow=settings_of(TABLE).allow)
        datagrams = Datagrams(self.clock, source, self.settings)
        for host in ("192.0.2.1", "192.0.2.2", "198.51.100.1"):
            for _ in range(4):
                datagrams.datagramReceived(b"<11>a: x", (host, 514))
        counters = source.report().counters
        self.assertEqual(
            (counters["messages"], counters["rate_limited"], counters["refused_peers"]), (6, 2, 4)
        )

    def test_F37_losses_are_reported_at_most_once_a_minute(self) -> None:
        """What was lost is told soon, then in sums, and each loss once."""
        source = self.source(transport="udp")
        source.lost("rate_limited", 3)
        source._looked()
        source.lost("rate_limited", 2)
        source.lost("overflowed")
        for _ in range(5):
            self.clock.advance(10)
        self.assertEqual([gap["count"] for gap in self.gaps()], [3])
        for _ in range(4):
            self.clock.advance(10)
        found = sorted((gap["reason"], gap["count"]) for gap in self.gaps())
        self.assertEqual(found, [("overflowed", 1), ("rate_limited", 2), ("rate_limited", 3)])

    def gaps(self) -> list[dict[str, Any]]:
        return [entry["metadata"]["cortextx"]["gap"] for entry in self.store.entries()]

    def test_rules_end_messages(self) -> None:
        """A rule that drops a message is counted by the listener, too."""
        clock, store = Clock(), Store()
        source = SyslogSource(
            clock, "dev", SyslogSettings("udp"), store.put, compose=lambda **facts: None
        )
        Datagrams(clock, source, SyslogSettings("udp")).datagramReceived(b"<1>x", ("::1", 1, 0, 0))
        self.assertEqual(source.report().counters["ended_by_rules"], 1)
        self.assertEqual(store.puts, [])


class LineEncoderTests(SynchronousTestCase):
    def test_lines(self) -> None:
        """Each line is an entry; long ones come in parts, the last may be unfinished."""
        encoder = LineEncoder("custom:x", part_bytes=20)
        encoder.app_name, encoder.process_id = "tool", "7"
        bodies = encoder.feed(b'{"level":"warn"}\n\nERROR: b\nx', 0)
        bodies += encoder.feed(b"y" * 45, 0) + encoder.close(0)
        found = [json.loads(b"{" + body) for body in bodies]
        self.assertEqual([e["severity"] for e in found],
                         ["warning", "err", "info", "info", "info"])  # fmt: skip
        self.assertEqual("".join(e["message"] for e in found[2:]), "x" + "y" * 45)
        marks = [e["metadata"]["cortextx"] for e in found[2:]]
        self.assertEqual(marks, [{"part": 1}, {"part": 2}, {"part": 3, "parts": 3,
                                                           "partial": True}])  # fmt: skip
        self.assertEqual({(e["app_name"], e["process_id"]) for e in found}, {("tool", "7")})

    def test_stderr_is_err(self) -> None:
        encoder = LineEncoder("custom:x", severity="err")
        [body] = encoder.feed(b"2026-02-28T23:04:01Z INFO all is well\n", 0)
        found = json.loads(b"{" + body)
        self.assertEqual((found["severity"], found["ts"]), ("err", "2026-02-28T23:04:01Z"))


class ExecTests(SynchronousTestCase):
    """The pauses between runs; real processes are in tests/integration."""

    def test_between_runs_it_rests(self) -> None:
        """A37: waiting for the next run is no trouble after an end that was well."""
        source = ExecSource(Clock(), "x", ExecSettings(("/no",)), Store().put)
        for status, rests in ((1, False), (0, True), (-9, False)):
            source.exited(status, 5.0)
            found = source.report()
            self.assertEqual((found.state, found.details["at_rest"]), ("waiting", rests))

    def test_failures_wait_longer_each_time(self) -> None:
        """A command that cannot start is tried again ever later, up to five minutes."""
        clock, times = Clock(), []

        def spawn(settings: ExecSettings) -> Any:
            times.append(clock.seconds())
            raise FileNotFoundError(2, "No such file", settings.command[0])

        source = ExecSource(
            clock, "x", ExecSettings(("/no",), restart_secs=10.0), Store().put, spawn=spawn
        )
        verifyObject(ILogSource, source)
        source.start()
        for _ in range(1500):
            clock.advance(1)
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        self.assertEqual(waits, [10, 20, 40, 80, 160, 300, 300, 300])
        self.assertIn("No such file", source.report().why or "")
        self.assertEqual(source.report().state, "waiting")
        self.assertFalse(source.report().details["at_rest"])
        self.successResultOf(source.stop())
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_words(self) -> None:
        self.assertEqual(ended_how(3), "exited with status 3")
        self.assertEqual(ended_how(-9), "was ended by SIGKILL")


class StdinTests(SynchronousTestCase):
    def test_only_in_the_foreground(self) -> None:
        """A daemon's standard input is no source, and the source says why."""
        null = os.open(os.devnull, os.O_RDONLY)
        self.addCleanup(os.close, null)
        self.assertIn("foreground", unusable(null) or "")
        ends = os.pipe()
        self.assertIsNone(unusable(ends[0]))
        for end in ends:
            os.close(end)
        self.assertIn("closed", unusable(ends[0]) or "")
        source = custom_source(Clock(), "in", StdinSettings(), Store().put)
        source._descriptor = null  # type: ignore[attr-defined]
        source.start()
        self.assertEqual(source.report().state, "failed")  # type: ignore[attr-defined]


TABLE = SourceTable(
    kind="custom", name="sw", type="syslog-udp", listen="[::1]:5514",
    allow=("192.0.2.0/24", "2001:db8::/32"), timezone="Europe/Berlin", rate=5.0,
)  # fmt: skip


class TableTests(SynchronousTestCase):
    def test_what_a_table_says(self) -> None:
        """Tables of TOML become settings, and sources of their kind."""
        check_source(TABLE, "agent.toml", "sources[0]")
        found = settings_of(TABLE)
        assert isinstance(found, SyslogSettings)
        self.assertEqual((found.transport, found.address, found.port), ("udp", "::1", 5514))
        self.assertTrue(found.admits("192.0.2.77") and found.admits("2001:db8::1"))
        self.assertFalse(found.admits("198.51.100.1") or found.admits("x"))
        self.assertEqual(str(found.zone), "Europe/Berlin")
        table = SourceTable(
            kind="custom", name="c", type="exec", command=("/bin/x", "-a"), environment=("A=b=c",)
        )
        check_source(table, "agent.toml", "sources[0]")
        run = settings_of(table)
        assert isinstance(run, ExecSettings)
        self.assertEqual(run.environment, (("A", "b=c"),))
        for settings in (found, run, StdinSettings()):
            verifyObject(ILogSource, custom_source(Clock(), "x", settings, Store().put))

    def test_a_bad_table_is_named(self) -> None:
        """The error says which member it is."""
        cases = [
            ({"allow": ("192.0.2.1/24",)}, "allow[0]"),
            ({"listen": "example.org:514"}, "listen"),
            ({"listen": "127.0.0.1"}, "listen"),
            ({"socket_mode": "0666"}, "socket_mode"),
            ({"command": ("/x",)}, "command"),
        ]
        for more, member in cases:
            table = msgspec.structs.replace(TABLE, **more)
            error = self.assertRaises(ConfigError, check_source, table, "a", "sources[0]")
            self.assertEqual(error.field, f"sources[0].{member}")

    def test_places(self) -> None:
        self.assertEqual(place_of("127.0.0.1:514"), ("127.0.0.1", 514))
        self.assertEqual(place_of("[::]:6514"), ("::", 6514))
        self.assertRaises(ValueError, place_of, "example.org:1")
