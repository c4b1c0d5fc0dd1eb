"""The buffer's adapter: grouping, order, bounds and failures, with the thread played by hand."""

from __future__ import annotations

import errno
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreClosed, StoreError, StoreFull
from cortextx.fleet.agent.buffer import Batch, Buffer, BufferLimits
from cortextx.fleet.agent.buffer_writer import BufferWriter
from cortextx.testing.disk import SimulatedDisk, Synced

LIMITS = BufferLimits(soft=4000, hard=6000, min_free=0, segment=1000, cache=1000)


class HandClock(Clock):
    """A reactor whose thread calls come when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Callable[[], object]] = []

    def callFromThread(self, callable: Callable[..., object], *args: object) -> None:
        self.said.append(lambda: callable(*args))

    def deliver(self) -> None:
        while self.said:
            self.said.pop(0)()


class WriterTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = HandClock()
        self.durable: list[int] = []
        self.joined = 0
        self.make()

    def make(self, **limits: int) -> None:
        self.disk = SimulatedDisk()
        self.writer = BufferWriter(
            self.reactor,
            lambda: Buffer.open(self.disk, LIMITS),
            on_durable=self.durable.append,
            spawn=lambda work: self.join,
            **limits,
        )
        started = self.writer.start()
        self.work()
        self.assertTrue(self.successResultOf(started).new)

    def join(self) -> None:
        self.joined += 1

    def step(self) -> None:
        """One step of the thread, and what it says arrives."""
        self.writer._lane.step()
        self.reactor.deliver()

    def work(self) -> None:
        lane = self.writer._lane
        while lane._next is not None or not lane._jobs.empty():
            self.step()

    def adopt(self, accepted: int) -> None:
        adopted = self.writer.adopt(accepted)
        self.work()
        self.successResultOf(adopted)

    def syncs(self) -> int:
        return sum(isinstance(operation, Synced) for operation in self.disk.log)

    def test_puts_that_wait_become_one_block_and_one_sync(self) -> None:
        self.adopt(100)
        first = self.writer.put([b"0"], {})
        self.work()
        before = self.syncs()
        puts = [self.writer.put([b"1", b"2"], {"k": b"%d" % n}) for n in range(10)]
        for put in [*puts]:
            self.assertNoResult(put)
        self.step()
        self.assertEqual(self.syncs(), before + 1)
        self.assertEqual([self.successResultOf(p) for p in [first, *puts]],
                         [101, *range(103, 122, 2)])  # fmt: skip
        self.assertEqual(self.durable, [101, 121])
        asked = self.writer.checkpoints()
        self.work()
        self.assertEqual(self.successResultOf(asked), {"k": b"9"})

    def test_nothing_fires_before_the_sync(self) -> None:
        put = self.writer.put([b"1"], {})
        self.writer._lane.step()
        self.assertNoResult(put)  # durable, but the reactor was not told yet
        self.reactor.deliver()
        self.assertEqual(self.successResultOf(put), 1)

    def test_deferreds_fire_in_order(self) -> None:
        order: list[int] = []
        for n in range(5):
            self.writer.put([b"%d" % n], {}).addCallback(lambda _, n=n: order.append(n))
            if n == 2:
                self.writer.read(1, 1, 1).addErrback(lambda _: order.append(99))
        self.work()
        self.assertEqual(order, [0, 1, 2, 99, 3, 4])

    def test_reading_follows_what_was_put_before_it(self) -> None:
        self.adopt(0)
        self.writer.put([b"1", b"2"], {})
        read = self.writer.read(1, 10, 1000)
        self.work()
        self.assertEqual(self.successResultOf(read), Batch(1, [b"1", b"2"]))
        cut = self.writer.truncate(2)
        self.work()
        self.successResultOf(cut)
        status = self.writer.status
        self.assertEqual((status.acked, status.last, status.depth), (2, 2, 0))

    def test_before_numbers_there_is_nothing_to_send_F2(self) -> None:
        self.writer.put([b"1"], {})
        self.work()
        self.assertEqual(self.durable, [])
        self.adopt(7)
        self.assertEqual((self.writer.acked, self.writer.last), (7, 8))

    def test_bytes_with_the_thread_are_bounded_and_the_rest_follows(self) -> None:
        self.make(max_pending=2000)
        puts = [self.writer.put([b"x" * 400], {}) for _ in range(12)]
        self.assertLessEqual(self.writer._pending, 2000)
        self.assertGreater(self.writer.pending_bytes, 12 * 400)
        self.step()
        self.assertNoResult(puts[-1])
        self.work()
        self.assertEqual([self.successResultOf(put) for put in puts][-1], 12)
        self.assertEqual(self.writer.pending_bytes, 0)

    def test_a_put_larger_than_the_bound_goes_alone(self) -> None:
        self.make(max_pending=100)
        put = self.writer.put([b"x" * 500], {})
        self.work()
        self.successResultOf(put)

    def test_who_does_not_wait_for_its_puts_is_refused(self) -> None:
        self.make(max_pending=100, max_waiting=1000)
        puts = [self.writer.put([b"x" * 200], {}) for _ in range(9)]
        for put in puts[4:]:
            self.failureResultOf(put, StoreFull)
        self.work()
        self.assertEqual([self.successResultOf(put) for put in puts[:4]], [1, 2, 3, 4])
        self.assertEqual(self.writer.pending_bytes, 0)

    def test_above_soft_those_that_can_wait_do_until_acks_make_room_F19(self) -> None:
        self.adopt(0)
        put: Deferred[int] = self.writer.put([b"x" * 300], {})
        self.work()
        while self.writer.pressure == "ok":
            self.successResultOf(put)
            put = self.writer.put([b"x" * 300], {})
            self.work()
        self.successResultOf(put)
        waiting = [self.writer.put([b"y"], {}), self.writer.put([], {"k": b"1"})]
        self.work()
        self.assertNoResult(waiting[0])
        urgent = self.writer.put([b"z"], {}, can_wait=False)
        self.work()
        last = self.successResultOf(urgent)
        self.writer.truncate(last)
        self.work()
        self.assertEqual([self.successResultOf(w) for w in waiting], [last + 1, last + 1])
        self.assertEqual(self.writer.status.evicted, 0)

    def test_those_that_cannot_wait_push_the_oldest_out_F19(self) -> None:
        self.adopt(0)
        for _ in range(40):
            put = self.writer.put([b"x" * 300], {}, can_wait=False)
            self.work()
            self.successResultOf(put)
        self.assertGreater(self.writer.status.evicted, 0)
        losses = self.writer.losses()
        self.work()
        lost = self.successResultOf(losses)
        self.assertEqual((lost[0].first, len(lost)), (1, self.writer.status.losses))

    def test_held_puts_are_looked_at_again_as_time_passes(self) -> None:
        """Room may come without a job of ours: another program freed disk."""
        free = [10**9]
        self.disk.free = lambda: free[0]  # type: ignore[method-assign]
        limits = BufferLimits(soft=4000, hard=6000, min_free=500, segment=100, cache=0)
        self.writer = BufferWriter(
            self.reactor, lambda: Buffer.open(self.disk, limits), spawn=lambda work: self.join
        )
        self.writer.start()
        for _ in range(4):
            self.writer.put([b"x" * 300], {})
            self.work()
        free[0] = 600
        self.writer.put([b"x"], {})
        self.work()
        self.assertEqual(self.writer.pressure, "soft")
        held = self.writer.put([b"y"], {})
        self.reactor.advance(1)
        self.work()
        self.assertNoResult(held)
        free[0] = 10**9
        self.reactor.advance(1)
        self.work()
        self.successResultOf(held)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_full_disk_fails_the_group_whole_and_the_next_may_succeed(self) -> None:
        self.adopt(0)
        self.disk.fail("write", errno.ENOSPC)
        puts = [self.writer.put([b"1"], {"k": b"1"}), self.writer.put([b"2"], {"k": b"2"})]
        self.work()
        for put in puts:
            self.failureResultOf(put, StoreFull)
        again = self.writer.put([b"3"], {})
        read = self.writer.read(1, 10, 1000)
        asked = self.writer.checkpoints()
        self.work()
        self.assertEqual(self.successResultOf(again), 1)
        self.assertEqual(self.successResultOf(read), Batch(1, [b"3"]))
        self.assertEqual(self.successResultOf(asked), {})
        self.assertEqual(self.durable, [1])

    def test_room_on_the_disk_is_noticed_without_a_put(self) -> None:
        """While a full disk is all that is known it is looked at, and once there seems to be
        room an empty write proves it: nobody needs to put anything (F19)."""
        self.adopt(0)
        capacity, self.disk.capacity = self.disk.capacity, self.disk.capacity - self.disk.free()
        put = self.writer.put([b"1" * 100], {})
        self.work()
        self.failureResultOf(put, StoreFull)
        for _ in range(3):
            self.assertEqual(self.writer.pressure, "hard")
            self.assertIsNotNone(self.writer.status.full)
            self.reactor.advance(1)
            self.work()
        self.disk.capacity = capacity
        for _ in range(2):
            self.reactor.advance(1)
            self.work()
        self.assertEqual((self.writer.pressure, self.writer.status.full), ("ok", None))
        self.assertEqual((self.reactor.getDelayedCalls(), self.writer.pending_bytes), ([], 0))
        self.assertEqual(self.writer.last, 0)

    def test_a_full_disk_whose_entries_are_all_acked_recovers_by_itself_F19(self) -> None:
        """What acked entries take is given back while nobody puts or acks anything."""
        limits = BufferLimits(soft=800_000, hard=1_200_000, min_free=0, segment=100_000, cache=0)
        self.writer = BufferWriter(
            self.reactor, lambda: Buffer.open(self.disk, limits), spawn=lambda work: self.join
        )
        self.writer.start()
        self.adopt(0)
        self.writer.put([b"1" * 60_000], {"k": b"here"})
        self.work()
        self.disk.capacity -= self.disk.free()
        put = self.writer.put([b"2" * 40_000], {})
        self.work()
        self.failureResultOf(put, StoreFull)
        self.writer.truncate(1)
        self.work()
        for _ in range(3):
            self.reactor.advance(1)
            self.work()
        self.assertEqual((self.writer.pressure, self.writer.status.full), ("ok", None))
        again = self.writer.put([b"2" * 40_000], {})
        asked = self.writer.checkpoints()
        self.work()
        self.assertEqual(self.successResultOf(again), 2)
        self.assertEqual(self.successResultOf(asked), {"k": b"here"})

    def test_a_failed_sync_refuses_puts_until_reopened(self) -> None:
        self.adopt(0)
        self.writer.put([b"1"], {})
        self.work()
        self.disk.fail("sync")
        failed = self.writer.put([b"2"], {})
        self.work()
        self.failureResultOf(failed, StoreError)
        self.assertIn("sync failed", self.writer.status.broken or "")
        refused = self.writer.put([b"3"], {})
        read = self.writer.read(1, 10, 1000)
        self.work()
        self.failureResultOf(refused, StoreClosed)
        self.assertEqual(self.successResultOf(read).bodies, [b"1"])
        reopened = self.writer.reopen()
        taken = self.writer.put([b"4"], {})
        self.work()
        self.assertFalse(self.successResultOf(reopened).new)
        self.assertEqual(self.successResultOf(taken), 2)
        self.assertIsNone(self.writer.status.broken)

    def test_what_is_no_json_fails_alone(self) -> None:
        good, bad = self.writer.put([b"1"], {}), self.writer.put([b"\0"], {})
        self.failureResultOf(bad, ValueError)
        self.work()
        self.successResultOf(good)

    def test_a_buffer_that_cannot_be_opened_says_so_and_may_be_tried_again(self) -> None:
        disk = SimulatedDisk({"state": b"x"})
        disk.fail("open")
        writer = BufferWriter(
            self.reactor, lambda: Buffer.open(disk, LIMITS), spawn=lambda work: self.join
        )
        self.writer = writer
        started, put = writer.start(), writer.put([b"1"], {})
        self.work()
        self.failureResultOf(started, StoreError)
        self.failureResultOf(put, StoreClosed)
        again = writer.reopen()
        self.work()
        self.assertTrue(self.successResultOf(again).notes)

    def test_stop_finishes_what_was_taken_and_ends_the_thread(self) -> None:
        put = self.writer.put([b"1"], {})
        stopped = self.writer.stop()
        late = self.writer.put([b"2"], {})
        self.failureResultOf(late, StoreClosed)
        self.work()
        self.successResultOf(put)
        self.successResultOf(stopped)
        self.assertEqual(self.joined, 1)
        self.assertTrue(self.disk.closed)
        self.failureResultOf(self.writer.stop(), StoreClosed)
        self.assertEqual(Buffer.open(SimulatedDisk(self.disk.files()), LIMITS).last, 1)

    def test_stop_fails_what_is_held_back(self) -> None:
        put = self.writer.put([b"x" * 300], {})
        self.work()
        while self.writer.pressure == "ok":
            put = self.writer.put([b"x" * 300], {})
            self.work()
        self.successResultOf(put)
        held = self.writer.put([b"y"], {})
        stopped = self.writer.stop()
        self.failureResultOf(held, StoreClosed)
        self.work()
        self.successResultOf(stopped)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_buffer_that_the_server_did_not_know_is_told_of_F2(self) -> None:
        """A lost one and one that was restored from an older copy; the usual case is none."""
        self.adopt(0)
        self.assertIsNone(self.writer.status.story)
        self.adopt(50)
        self.assertIn("restored", self.writer.status.story or "")
        self.make()
        self.adopt(50)
        self.assertIn("this buffer is new", self.writer.status.story or "")
        self.assertIn("50", self.writer.status.story or "")

    def test_a_hook_that_raises_is_logged_and_changes_nothing(self) -> None:
        self.adopt(0)
        self.writer.on_durable = lambda last: 1 // 0
        put = self.writer.put([b"1"], {})
        self.work()
        self.successResultOf(put)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
