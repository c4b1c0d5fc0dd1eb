"""From the head to live without a gap, whoever comes when (early test 8; B01, B08, B31)."""

from __future__ import annotations

import random

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Message
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.slave.actions import Facts
from cortextx.interaction.slave.attachments import Walk
from tests.interaction.slave.hub import Hub, Master, kinds

SMALL = msgspec.structs.replace(
    DEFAULT_LIMITS,
    max_unacked_events_per_attachment=16,
    max_replay_events_per_batch=5,
    max_attachments=1000,
)


def facts(first: int, count: int, size: int = 10) -> Facts:
    """A page of facts."""
    lines = [b"x" * size] * count
    return Facts(first, lines, lines)


class WalkTests(SynchronousTestCase):
    """One cursor."""

    def walk(self, cursor: int = 0, head: int = 100, window: int | None = 10) -> Walk:
        """A walk."""
        return Walk(cursor=cursor, head=head, window=window, max_bytes=1000, max_lines=7)

    def read(self, walk: Walk, size: int = 10) -> int:
        """Give it what it wants; answers how many lines that were."""
        wanted = walk.wants()
        if wanted is None:
            return 0
        after, lines, _ = wanted
        count = min(lines, walk.head - after)
        page = facts(after + 1, count, size)
        walk.page_read(page, page.lines, range(after + 1, after + count + 1), None)
        return count

    def test_the_window_bounds_what_is_read_I16(self) -> None:
        """No more is read than may be unacknowledged, and an ack makes room."""
        walk = self.walk()
        self.assertEqual([self.read(walk), self.read(walk), self.read(walk)], [7, 3, 0])
        walk.take(10_000)
        self.assertEqual(walk.position, 10)
        self.assertTrue(walk.is_blocked(paused=False))
        self.assertTrue(walk.ack(4))
        self.assertEqual(self.read(walk), 4)

    def test_acks_backwards_or_beyond_are_refused_I32(self) -> None:
        """An ack lies between the newest ack and what was taken for sending."""
        walk = self.walk()
        self.read(walk)
        self.assertFalse(walk.ack(1))  # read, but not sent
        walk.take(30)
        self.assertEqual(walk.position, 3)
        self.assertFalse(walk.ack(4))
        self.assertTrue(walk.ack(3))
        self.assertTrue(walk.ack(3))
        self.assertFalse(walk.ack(2))

    def test_live_content_waits_for_the_facts_that_it_follows(self) -> None:
        """A delta behind fact 2 is sent after fact 2 and before fact 3."""
        walk = self.walk(head=3)
        walk.put_live(b"<delta>", 2, droppable=True)
        self.assertFalse(walk.has_output)
        page = Facts(1, [b"1", b"2", b"3"], [])
        self.assertIsNotNone(walk.wants())
        walk.page_read(page, [b"1", b"2", b"3"], [1, 2, 3], None)
        walk.put(b"<error>")
        self.assertEqual(walk.take(1000), b"<error>12<delta>3")
        self.assertEqual(walk.queued, 0)

    def test_deltas_are_dropped_first_and_facts_never_B32(self) -> None:
        """Beyond half of the room deltas are dropped; what may not be is kept."""
        walk = self.walk(head=0)
        kept = [walk.put_live(b"d" * 100, 0, droppable=True) for _ in range(20)]
        self.assertEqual(kept.count(True), 5)
        self.assertTrue(walk.put_live(b"c" * 900, 0, droppable=False))

    def test_a_reader_of_some_facts_is_not_held_by_the_others(self) -> None:
        """Facts that are passed over need no ack, and move the position."""
        walk = self.walk(head=50)
        for _ in range(20):
            wanted = walk.wants()
            if wanted is None:
                break
            after, lines, _ = wanted
            page = facts(after + 1, min(lines, 50 - after))
            walk.page_read(page, [], [], None)
            walk.take(1000)
        self.assertEqual((walk.position, walk.is_full), (50, False))

    def test_taken_whole_or_byte_by_byte_it_is_the_same(self) -> None:
        """`room` changes the pieces, not the stream."""
        streams = []
        for room in (1, 35, 10_000):
            walk = self.walk(window=None)
            walk.put_live(b"<after 9>", 9, droppable=False)
            stream = b""
            while self.read(walk) or walk.has_output:
                stream += walk.take(room)
            streams.append(stream)
        self.assertEqual(streams[0], streams[1])
        self.assertEqual(streams[0], streams[2])
        self.assertEqual(streams[0].find(b"<after 9>"), 90)
        self.assertEqual(len(streams[0]), 1009)


class HeadToLiveTests(SynchronousTestCase):
    """Early test 8: a thousand random attaches while the writer goes on."""

    def test_a_thousand_attaches_each_see_what_follows_their_cursor_B08(self) -> None:
        """Each attachment gets exactly n+1, n+2, … up to the head; one that never acks
        is let go, and costs nobody anything."""
        dice = random.Random(5)
        hub = Hub()
        deaf = Master(hub, SMALL)
        deaf.attach("deaf", 0, mode="observe")
        writer = Master(hub, SMALL)
        writer.attach("w")
        masters = [Master(hub, SMALL) for _ in range(20)]
        for master in masters:
            master.is_quick = True
        cursors: list[tuple[Master, str, int]] = []
        told: dict[Master, int] = {}

        def settle() -> None:
            """Everybody reads and acknowledges all there is."""
            busy = True
            while busy:
                busy = False
                for master in (*masters, writer):
                    master.read()
                    new = master.frames[told.get(master, 0) :]
                    told[master] = len(master.frames)
                    newest = {
                        frame.correlation.attachment_id or "": frame.session_seq
                        for frame in new
                        if frame.session_seq is not None
                    }
                    for name, seq in newest.items():
                        master.act(master.machine.line_received(_ack(name, seq), hub.now))
                    busy = busy or bool(newest)

        for n in range(1000):
            if n % 25 == 0:
                writer.input(f"r{n}", "x", "w")
                run = hub.box.started()[-1]
                for _ in range(dice.randrange(6)):
                    said = Message("r", run, "assistant", "y" * dice.randrange(2000))
                    hub.spread(hub.box.emit(run, said))
                hub.spread(hub.box.end(run))
            master = dice.choice(masters)
            cursor = dice.choice((0, len(hub.box.log), dice.randrange(len(hub.box.log) + 1)))
            master.attach(f"a{n}", cursor, mode="observe")
            cursors.append((master, f"a{n}", cursor))
            if n % 50 == 0:
                settle()
                hub.pass_time(1.0)
        settle()
        head = len(hub.box.log)
        self.assertGreater(head, 200)
        for master, name, cursor in cursors:
            self.assertEqual(master.facts(name), list(range(cursor + 1, head + 1)), name)
        deaf.read()
        self.assertEqual(deaf.facts("deaf"), list(range(1, 17)))
        self.assertEqual(kinds(deaf.frames)[-1], "slow_consumer")
        self.assertEqual(len(deaf.machine.attachments), 0)


def _ack(attachment: str, seq: int) -> bytes:
    return v2.encode(data.build(data.Ack(), Correlation("c", attachment), session_seq=seq))[:-1]
