"""The agent's buffer for the reactor: one thread, group commit, Deferreds (F19).

`put` fires once its entries and checkpoints are durable together. A source that
can wait simply waits for that: while the buffer is above its soft bound, such
puts are held back, and the source's backlog stays where it is. A source that
cannot wait passes `can_wait=False`; past the hard bound the oldest entries go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from cortextx.errors import StoreClosed, StoreFull
from cortextx.fleet.agent.buffer import Batch, Buffer, Numbering, Pressure
from cortextx.fleet.agent.buffer_blocks import pack
from cortextx.fleet.agent.buffer_lane import (
    Ask,
    BufferStatus,
    Finish,
    Lane,
    Open,
    Put,
    Report,
)
from cortextx.fleet.agent.buffer_recovery import Recovery
from cortextx.fleet.agent.buffer_set_aside import SetAsideEntry
from cortextx.fleet.agent.buffer_state import Loss
from cortextx.fleet.agent.buffer_view import apart

T = TypeVar("T")
MAX_PENDING_BYTES = 4 * 2**20
"""Bytes that are with the thread at most, unless one put is larger."""
MAX_WAITING_BYTES = 32 * 2**20
"""Bytes that wait for that at most; a put beyond is refused."""
RECHECK_SECONDS = 1.0
"""How often a full disk is looked at again."""
PUT_OVERHEAD = 128


class Reactor(Protocol):
    """What of the reactor is used."""

    def callFromThread(self, callable: Callable[..., object], *args: object) -> None:
        """Call in the reactor's thread."""

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object
    ) -> IDelayedCall:
        """Call after `delay` seconds."""


def start_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Run `work` on a thread of its own; returns what waits for its end."""
    thread = threading.Thread(target=work, name="agent-buffer", daemon=True)
    thread.start()
    return thread.join


class BufferWriter:
    """A buffer on its thread. All methods are for the reactor's thread.

    Errors: StoreFull (nothing was stored; the next put may succeed), StoreClosed
    (stopped, not open, or broken by a failed sync: see `reopen`), StoreError.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        open_buffer: Callable[[], Buffer],
        *,
        on_durable: Callable[[int], None] | None = None,
        max_pending: int = MAX_PENDING_BYTES,
        max_waiting: int = MAX_WAITING_BYTES,
        spawn: Callable[[Callable[[], None]], Callable[[], None]] = start_thread,
    ) -> None:
        """`open_buffer` is called on the thread; `on_durable` with the newest durable seq
        after each group, once entries are numbered."""
        self._reactor = reactor
        self._spawn = spawn
        self._max_pending = max_pending
        self._max_waiting = max_waiting
        self._lane = Lane(open_buffer, self._from_thread)
        self._held: deque[Put] = deque()
        self._urgent: deque[Put] = deque()
        self._pending = 0
        self._waiting = 0
        self._recheck: IDelayedCall | None = None
        self._open = False
        self._join: Callable[[], None] | None = None
        self.on_durable = on_durable
        self.status = BufferStatus()

    # What it looks like

    @property
    def acked(self) -> int:
        """As `Buffer.acked`, after the latest job."""
        return self.status.acked

    @property
    def last(self) -> int:
        """As `Buffer.last`, after the latest job."""
        return self.status.last

    @property
    def depth(self) -> int:
        """As `Buffer.depth`, after the latest job."""
        return self.status.depth

    @property
    def size(self) -> int:
        """As `Buffer.size`, after the latest job."""
        return self.status.size

    @property
    def pressure(self) -> Pressure:
        """As `Buffer.pressure`, after the latest job."""
        return self.status.pressure

    @property
    def pending_bytes(self) -> int:
        """Bytes of puts that are not durable yet, waiting ones included."""
        return self._pending + self._waiting

    # Life

    def start(self) -> Deferred[Recovery]:
        """Start the thread and open the buffer; fires with what was found.

        If that fails, `reopen` may be tried again; `stop` is due in any case.
        """
        self._open = True
        self._join = self._spawn(self._lane.run)
        return self.reopen()

    def reopen(self) -> Deferred[Recovery]:
        """Open the buffer anew, as after a failed sync, once its cause is mended."""
        if not self._open:
            return fail(StoreClosed("the buffer is not open"))
        done: Deferred[Recovery] = Deferred()
        self._lane.submit(Open(done))
        return done

    def stop(self) -> Deferred[None]:
        """Finish what is with the thread, close; fires when the thread has ended.

        Puts that were held back fail with StoreClosed: their sources have them.
        """
        if not self._open:
            return fail(StoreClosed("the buffer is not open"))
        self._open = False
        self._cancel_recheck()
        while self._urgent:
            self._submit(self._urgent.popleft())
        held, self._held = self._held, deque()
        self._waiting = 0
        done: Deferred[None] = Deferred()
        self._lane.submit(Finish(done))
        for put in held:
            put.token.errback(StoreClosed("the buffer was closed before there was room"))
        return done.addBoth(self._ended)

    # Work

    def put(
        self,
        bodies: Sequence[bytes],
        checkpoints: Mapping[str, bytes | None],
        *,
        can_wait: bool = True,
    ) -> Deferred[int]:
        """Store entries and set checkpoints, as one; fires once they are durable.

        The value is the seq of the last of them (its position while not numbered).
        Puts of one kind become durable, and fire, in the order given; one that can
        wait may be overtaken by those that cannot. Fails with ValueError for what
        is no JSON, and as the class says.
        """
        if not self._open:
            return fail(StoreClosed("the buffer is not open"))
        try:
            entries = pack(bodies)
        except ValueError:
            return fail(Failure())
        size = len(entries.payload) + PUT_OVERHEAD * (1 + len(checkpoints))
        if self._waiting and self._waiting + size > self._max_waiting:
            return fail(StoreFull("too much waits for the buffer"))
        done: Deferred[int] = Deferred()
        (self._held if can_wait else self._urgent).append(
            Put(done, entries, dict(checkpoints), not can_wait, size)
        )
        self._waiting += size
        self._release()
        return done

    def ask(self, work: Callable[[Buffer], T]) -> Deferred[T]:
        """Do anything with the buffer, on its thread, after what was asked before."""
        if not self._open:
            return fail(StoreClosed("the buffer is not open"))
        done: Deferred[T] = Deferred()
        self._lane.submit(Ask(done, work))
        return done

    def read(self, first_seq: int, max_entries: int, max_bytes: int) -> Deferred[Batch]:
        """As `Buffer.read`."""
        return self.ask(lambda buffer: buffer.read(first_seq, max_entries, max_bytes))

    def adopt(self, accepted_seq: int) -> Deferred[Numbering]:
        """As `Buffer.adopt`."""
        return self.ask(lambda buffer: buffer.adopt(accepted_seq))

    def truncate(self, acked: int) -> Deferred[None]:
        """As `Buffer.truncate`."""
        return self.ask(lambda buffer: buffer.truncate(acked))

    def set_aside(self, seq: int, reason: str) -> Deferred[bool]:
        """As `Buffer.set_aside`."""
        return self.ask(lambda buffer: buffer.set_aside(seq, reason))

    def checkpoints(self) -> Deferred[dict[str, bytes]]:
        """As `Buffer.checkpoints`."""
        return self.ask(lambda buffer: buffer.checkpoints())

    def losses(self) -> Deferred[list[Loss]]:
        """As `Buffer.losses`."""
        return self.ask(lambda buffer: buffer.losses())

    def set_aside_entries(self, limit: int = 100) -> Deferred[list[SetAsideEntry]]:
        """As `Buffer.set_aside_entries`."""
        return self.ask(lambda buffer: buffer.set_aside_entries(limit))

    def oldest(self) -> Deferred[bytes | None]:
        """As `Buffer.oldest`."""
        return self.ask(lambda buffer: buffer.oldest())

    def apart(self) -> Deferred[list[str]]:
        """As `buffer_view.apart`."""
        return self.ask(lambda buffer: buffer.look(apart))

    def quarantined(self) -> Deferred[list[str]]:
        """As `Buffer.quarantined`."""
        return self.ask(lambda buffer: buffer.quarantined())

    # Inside

    def _submit(self, put: Put) -> None:
        self._waiting -= put.size
        self._pending += put.size
        self._lane.submit(put)

    def _has_room(self, put: Put) -> bool:
        return self._pending == 0 or self._pending + put.size <= self._max_pending

    def _release(self) -> None:
        """Give the thread what it may have now."""
        while self._urgent and self._has_room(self._urgent[0]):
            self._submit(self._urgent.popleft())
        flows = self.status.pressure == "ok"
        while flows and self._held and not self._urgent and self._has_room(self._held[0]):
            self._submit(self._held.popleft())
        pressed = not flows or self.status.full is not None
        if pressed and self._recheck is None and self._open:
            self._recheck = self._reactor.callLater(RECHECK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._recheck = None
        if self.status.full is None or self.status.pressure != "ok" or self._held:
            self._lane.submit(Ask(None, Buffer.relieve))
            return
        # There seems to be room again, and nobody who would notice: an empty put does.
        self._waiting += PUT_OVERHEAD
        self._submit(Put(None, pack([]), {}, False, PUT_OVERHEAD))

    def _from_thread(self, report: Report) -> None:
        self._reactor.callFromThread(self._reported, report)

    def _reported(self, report: Report) -> None:
        if report.status is not None:
            if report.status.broken and not self.status.broken:
                reason = report.status.broken
                self.log.critical("the agent's buffer takes nothing more: {why}", why=reason)
            if report.status.story and report.status.story != self.status.story:
                self.log.warn("buffer: {story}", story=report.status.story)
            self.status = report.status
        self._pending -= report.freed
        self._release()
        for token, value, error in report.outcomes:
            if token is None:
                continue
            if error is not None:
                token.errback(Failure(error))
            else:
                token.callback(value)
        if report.stored and self.on_durable is not None and self.status.next_seq is not None:
            try:
                self.on_durable(self.status.last)
            except Exception:
                self.log.failure("the hook for durable entries failed")

    def _cancel_recheck(self) -> None:
        call, self._recheck = self._recheck, None
        if call is not None and call.active():
            call.cancel()

    def _ended(self, result: Any) -> Any:
        self._cancel_recheck()
        if self._join is not None:
            self._join()
        return result
