"""A buffer looked into, verified, and its damage acknowledged (A37)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent import buffer_view
from cortextx.fleet.agent.buffer import Buffer, BufferLimits
from cortextx.fleet.agent.disk import RealDisk
from tests.fleet.test_link import BODY

LIMITS = BufferLimits(soft=2**16, hard=2**17, min_free=0, segment=2**12, cache=2**12)


class Views(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = self.mktemp()
        self.filled()

    def filled(self) -> None:
        """A buffer with several segments, of which 10 entries are acknowledged."""
        buffer = Buffer.open(RealDisk(self.path), LIMITS)
        for _ in range(20):
            buffer.append([BODY] * 10, {"file:x": b"1"})
            buffer.sync()
        buffer.adopt(0)
        buffer.truncate(10)
        buffer.set_aside(20, "InvalidParams")
        buffer.close()

    def damage(self) -> None:
        """Spoil the middle of the second segment."""
        disk = RealDisk(self.path)
        segment = buffer_view.segments(disk)[1]
        file = disk.open(segment.name)
        file.write_at(segment.size // 2, [b"rot!"])
        file.close()
        disk.close()

    def test_what_it_holds(self) -> None:
        """Positions, sizes and totals as the files say; looking changes nothing."""
        disk = RealDisk(self.path)
        names = sorted(disk.names())
        found = buffer_view.inspect(disk)
        self.assertEqual((found["acked_seq"], found["durable_seq"]), (10, 200))
        self.assertEqual(found["set_aside_entries"], 1)
        self.assertEqual(found["segments"], len(found["files"]))
        self.assertEqual(found["files"][0]["first_seq"], 1)
        self.assertEqual(sorted(disk.names()), names)

    def test_a37_damage_is_seen_and_the_rest_is_good(self) -> None:
        """Each segment is judged by itself."""
        self.damage()
        disk = RealDisk(self.path)
        rows = [buffer_view.verify(disk, one) for one in buffer_view.segments(disk)]
        self.assertEqual([row["good"] for row in rows].count(False), 1)
        self.assertFalse(rows[1]["good"])
        self.assertEqual(sum(row["entries"] + row["missing_entries"] for row in rows), 200)

    def test_a37_apart_until_acknowledged(self) -> None:
        """What was set apart is listed until somebody says that they have seen it, and is
        kept under another name after that; more damage is listed again."""
        self.damage()
        buffer = Buffer.open(RealDisk(self.path), LIMITS)
        while (batch := buffer.read(buffer.acked + 1, 1000, 2**20)).bodies:
            buffer.truncate(batch.first + len(batch.bodies) - 1)
        rows = buffer.look(lambda disk: buffer_view.set_apart(disk, 10))
        self.assertEqual([row["what"] for row in rows], ["damaged", "set_aside"])
        self.assertEqual((rows[1]["seq"], rows[1]["reason"]), (20, "InvalidParams"))
        kept = buffer.look(buffer_view.acknowledge)
        self.assertEqual(len(kept), 2)
        self.assertEqual(buffer.look(buffer_view.apart), [])
        self.assertLessEqual(set(kept), set(buffer.look(lambda disk: disk.names())))
        buffer.append([BODY], {})
        buffer.sync()
        self.assertTrue(buffer.set_aside(buffer.last, "again"))
        self.assertEqual(len(buffer.look(buffer_view.apart)), 1)
        [new] = buffer.look(buffer_view.acknowledge)
        self.assertNotIn(new, kept)
        buffer.close()

    def test_the_oldest_entry_is_not_given_to_anybody(self) -> None:
        """A look at it does not count when a server says that it has more (F2)."""
        buffer = Buffer.open(RealDisk(self.mktemp()), LIMITS)
        self.assertIsNone(buffer.oldest())
        buffer.adopt(0)
        buffer.append([BODY], {})
        buffer.sync()
        self.assertEqual(buffer.oldest(), BODY)
        self.assertTrue(buffer.adopt(1).renumbered)
        buffer.close()
