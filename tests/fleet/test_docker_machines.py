"""The Docker source without a daemon: frames, partials, resuming, containers."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyClass

from cortextx.fleet.agent.sources.docker_api import EngineApi
from cortextx.fleet.agent.sources.docker_frames import (
    MAX_FRAME,
    PIECE,
    DockerFault,
    Frame,
    Multiplexed,
    Terminal,
)
from cortextx.fleet.agent.sources.docker_roster import Container, Follow, Forget, Rename, Roster
from cortextx.fleet.agent.sources.docker_settings import DockerSettings
from cortextx.fleet.agent.sources.docker_source import DockerSource
from cortextx.fleet.agent.sources.docker_trail import (
    ContainerMark,
    ContainerTrail,
    StreamMark,
    nanos,
    since_text,
)
from cortextx.interfaces.fleet import ILogSource

T = b"2026-01-02T03:04:05."
BASE = 1_767_323_045 * 10**9


def at(nano: int) -> bytes:
    return T + b"%09dZ" % nano


def frame(nano: int, content: bytes, stream: str = "stdout") -> Frame:
    return Frame(stream, at(nano), content)


def wire(kind: int, payload: bytes) -> bytes:
    return bytes((kind, 0, 0, 0)) + len(payload).to_bytes(4, "big") + payload


class FrameTests(SynchronousTestCase):
    def test_a31_frames_whole_and_byte_by_byte(self):
        """A31: two streams, an empty line, bytes that look like a header."""
        parts = [(1, b"one\n"), (2, b"\x01\0\0\0\0\0\0\5\n"), (1, b"\n"), (2, b"no end")]
        data = b"".join(wire(kind, at(n) + b" " + text) for n, (kind, text) in enumerate(parts))
        names = {1: "stdout", 2: "stderr"}
        expected = [Frame(names[kind], at(n), text) for n, (kind, text) in enumerate(parts)]
        for size in (1, 3, len(data)):
            reader = Multiplexed()
            found = [f for i in range(0, len(data), size) for f in reader.feed(data[i : i + size])]
            self.assertEqual(found, expected)
            self.assertEqual(reader.pending, 0)

    def test_what_is_no_stream_is_a_fault(self):
        """Bounds: kinds, zeros, sizes and times are checked."""
        for bad in (
            b"HTTP/1.1", wire(1, b"no time\n"), b"\x01\0\0\1\0\0\0\1x",
            b"\x01\0\0\0" + (MAX_FRAME + 1).to_bytes(4, "big"), wire(3, b"the daemon failed"),
        ):  # fmt: skip
            self.assertRaises(DockerFault, Multiplexed().feed, bad)

    def test_a31_a_terminals_long_line(self):
        """A31: without frames, pieces are found by their size and the time before each."""
        text = b"x" * (2 * PIECE + 9)
        pieces = [text[:PIECE], text[PIECE : 2 * PIECE], text[2 * PIECE :] + b"\r\n"]
        data = at(1) + b" hi\r\n" + b"".join(at(2) + b" " + piece for piece in pieces)
        data += at(3) + b" " + b"y" * PIECE + b"\r\n" + at(4) + b" z\r\n"
        for size in (1, 1000, len(data)):
            reader = Terminal()
            found = [f for i in range(0, len(data), size) for f in reader.feed(data[i : i + size])]
            trail = ContainerTrail(ContainerMark())
            lines = [line.text for f in found for line in trail.take(f, 0.0)]
            self.assertEqual(lines, [b"hi", text, b"y" * PIECE, b"z"])

    def test_times(self):
        """Nanoseconds are exact, other offsets and fewer digits are read."""
        self.assertEqual(nanos(at(7)), BASE + 7)
        self.assertEqual(nanos(b"2026-01-02T04:04:05.5+01:00"), BASE + 500_000_000)
        self.assertEqual(nanos(b"2026-01-02T03:04:05Z"), BASE)
        self.assertEqual(since_text(BASE + 7), "1767323045.000000007")
        self.assertRaises(ValueError, nanos, b"2026-13-02T03:04:05Z")


class TrailTests(SynchronousTestCase):
    def test_a31_streams_do_not_mix_and_exact_pieces_are_whole(self):
        """A31: a line of exactly 16,384 bytes is a full piece and an empty one."""
        trail = ContainerTrail(ContainerMark())
        took = trail.take(frame(1, b"o" * PIECE), 0.0)
        took += trail.take(frame(2, b"e" * PIECE, "stderr"), 0.0)
        took += trail.take(frame(1, b"\n"), 0.0)
        took += trail.take(frame(2, b"!\n", "stderr"), 0.0)
        self.assertEqual(
            [(line.stream, line.text, line.time) for line in took],
            [("stdout", b"o" * PIECE, at(1)), ("stderr", b"e" * PIECE + b"!", at(2))],
        )

    def test_a31_time_out_and_end(self):
        """A31: a partial is given after its time, goes on as the next part, and ends."""
        trail = ContainerTrail(ContainerMark(), timeout=5.0)
        trail.take(frame(1, b"one"), 10.0)
        self.assertEqual(trail.time_passed(14.9), [])
        (line,) = trail.time_passed(15.0)
        self.assertEqual((line.text, line.part, line.more), (b"one", 1, True))
        trail.take(frame(1, b" two"), 16.0)
        (line,) = trail.ended()
        self.assertEqual((line.text, line.part, line.partial), (b" two", 2, True))

    def test_a31_the_cap(self):
        """A31: an endless line is given in parts, and no character is torn."""
        trail = ContainerTrail(ContainerMark())
        text = "é".encode() * 300_000
        lines = []
        for n in range(0, len(text), 16_383):
            lines += trail.take(frame(1, text[n : n + 16_383]), 0.0)
        lines += trail.take(frame(1, b"\n"), 0.0)
        self.assertEqual(b"".join(line.text for line in lines), text)
        for line in lines:
            line.text.decode()
        self.assertEqual(lines[0].part, 1)
        self.assertFalse(lines[-1].more)

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=25
        ),
        st.lists(st.integers(0, 24), max_size=6),
    )
    def test_a32_restarts_anywhere_give_each_line_once(self, steps, stops):
        """A31, A32: equal times, partials of two streams, restarts at any frame: exact."""
        log: list[Frame] = []
        now = 0
        for number, (step, err, ends) in enumerate(steps):
            now += step
            text = b"%d" % number + (b"\n" if ends else b"-")
            log.append(frame(now, text, "stderr" if err else "stdout"))
        log += [frame(now, b"end\n"), frame(now, b"end\n", "stderr")]
        expected = {
            name: b"".join(f.content for f in log if f.stream == name).split(b"\n")[:-1]
            for name in ("stdout", "stderr")
        }
        found: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        mark = ContainerMark(begin=BASE)
        for stop in [*sorted(stops), len(log)]:
            times = [each.at for each in mark.streams.values()]
            since = min(times) if times else mark.begin
            trail = ContainerTrail(mark)
            for each in log[:stop]:
                if nanos(each.time) >= since:
                    for line in trail.take(each, 0.0):
                        found[line.stream].append(line.text)
                        mark = trail.mark
            self.assertEqual(trail.gaps, 0)
        self.assertEqual(found, expected)

    def test_a_removed_frame_is_a_gap(self):
        """F37: a later frame before the one that was read last."""
        trail = ContainerTrail(ContainerMark(0, {"stdout": StreamMark(BASE + 5, 2)}))
        self.assertEqual(trail.take(frame(5, b"a\n"), 0.0), [])
        self.assertEqual(len(trail.take(frame(6, b"b\n"), 0.0)), 1)
        self.assertEqual(trail.gaps, 1)

    def test_a46_a_clock_that_went_back(self):
        """A46: what was read before the jump is passed whatever its time, what follows is new."""
        trail = ContainerTrail(ContainerMark())
        log = [frame(500, b"a\n"), frame(900, b"b\n"), frame(100, b"c\n"), frame(101, b"d\n")]
        for each in log[:3]:
            trail.take(each, 0.0)
        mark = trail.mark
        self.assertEqual(mark.streams["stdout"], StreamMark(BASE + 100, 1, BASE + 900))
        again = ContainerTrail(mark)
        # The daemon shows what is not older than the mark, in the order of its file.
        found = [line.text for each in log for line in again.take(each, 0.0)]
        self.assertEqual((found, again.gaps), ([b"d"], 0))


class RosterTests(SynchronousTestCase):
    def roster(self, own=(), **facts) -> Roster:
        return Roster(DockerSettings(**facts), frozenset(own), random.Random(1).random)

    def test_a32_stop_start_and_rename(self):
        """A32: read to the end after a stop, again after a start; a new name is told."""
        roster = self.roster()
        box = Container("1" * 64, "app", "i")
        self.assertEqual(roster.listed([box], 0.0), [Follow(box)])
        self.assertEqual(roster.listed([box], 1.0), [])
        roster.ended(box.id, 5, 2.0)
        still = Container(box.id, "app", "i", running=False)
        self.assertEqual(roster.listed([still], 3.0), [Follow(still)])
        roster.ended(box.id, 0, 3.5)
        self.assertEqual(roster.listed([still], 10.0), [])
        named = Container(box.id, "new", "i")
        self.assertEqual(roster.listed([named], 11.0), [Rename(named), Follow(named)])

    def test_a32_an_event_between_two_lists(self):
        """A32: one that started and stopped meanwhile is read again."""
        roster = self.roster()
        box = Container("1" * 64, "app", "i", running=False)
        roster.listed([box], 0.0)
        roster.ended(box.id, 0, 1.0)
        self.assertEqual(roster.listed([box], 5.0), [])
        roster.changed(box.id)
        self.assertEqual(roster.listed([box], 6.0), [Follow(box)])

    def test_a_container_that_is_gone_is_forgotten(self):
        """Its checkpoint goes when two lists have it no more, also one of an earlier life."""
        roster = self.roster()
        box = Container("1" * 64, "app", "i", running=False)
        roster.listed([box], 0.0)
        roster.ended(box.id, 0, 1.0)
        self.assertEqual(roster.listed([], 2.0, ["2" * 64]), [])
        self.assertEqual(set(roster.listed([], 3.0)), {Forget("1" * 64), Forget("2" * 64)})

    def test_a35_own_and_unwanted_containers(self):
        """A35: the agent's own container, excluded names, the opt-out label."""
        roster = self.roster(own=["1" * 64], include=("a*",), exclude=("ab*",))
        rows = [
            Container("1" * 64, "a0", "i"), Container("2" * 64, "abc", "i"),
            Container("3" * 64, "b", "i"), Container("4" * 64, "a1", "i"),
            Container("5" * 64, "a2", "i", {"cortextx.logs": "false"}),
        ]  # fmt: skip
        self.assertEqual(roster.listed(rows, 0.0), [Follow(rows[3])])

    def test_bounds_and_failures(self):
        """Too many wait; what fails is tried later, what cannot be read is left."""
        roster = self.roster(max_containers=2)
        rows = [Container(str(n) * 64, f"c{n}", "i") for n in range(3)]
        self.assertEqual(len(roster.listed(rows, 0.0)), 2)
        self.assertEqual(roster.waiting, 1)
        roster.failed(rows[0].id, 1.0, for_good=True)
        self.assertEqual(roster.listed(rows, 1.0), [Follow(rows[2])])
        roster.failed(rows[1].id, 2.0)
        self.assertEqual(roster.due(2.1), [])
        self.assertEqual(roster.due(60.0), [Follow(rows[1])])


class SourceTests(SynchronousTestCase):
    def test_it_is_a_log_source(self):
        """The class keeps the interface's word."""
        self.assertTrue(verifyClass(ILogSource, DockerSource))

    def test_connections_say_nothing_in_the_log(self):
        """Each look at the daemon is a connection: none of them has lines of its own."""
        reactor = MemoryReactorClock()
        asked = Deferred.fromCoroutine(EngineApi(reactor, "/no/such").containers())
        [(path, factory, *_)] = reactor.unixClients
        self.assertEqual((path, factory._wrappedFactory.noisy), ("/no/such", False))
        asked.addErrback(lambda _: None)
        asked.cancel()
