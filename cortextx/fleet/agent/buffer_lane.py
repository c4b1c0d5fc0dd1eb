"""The one thread that touches the agent's buffer, and how it groups what waits (PURE).

Jobs run in the order in which they were submitted. Puts that wait behind one
another become one block and one sync: while the disk works on a group, the next
one gathers, so nothing ever waits idle to fill a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from cortextx.errors import StoreClosed
from cortextx.fleet.agent.buffer import Buffer, Pressure
from cortextx.fleet.agent.buffer_blocks import Checkpoints, Packed

GROUP_BYTES = 2**20
"""A group takes no further put beyond this."""


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """The buffer as it was after the latest job; the members are `Buffer`'s."""

    acked: int = 0
    last: int = 0
    next_seq: int | None = None
    depth: int = 0
    size: int = 0
    pressure: Pressure = "ok"
    evicted: int = 0
    damaged: int = 0
    set_aside: int = 0
    losses: int = 0
    broken: str | None = None
    full: str | None = None
    story: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Entries and checkpoints to be made durable; `token` names it in the report."""

    token: Any
    entries: Packed
    checkpoints: Checkpoints
    may_evict: bool
    size: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Anything else to be done with the buffer."""

    token: Any
    work: Callable[[Buffer], Any]


@dataclass(frozen=True, slots=True)
class Open:
    """Open the buffer, closing it before if it is open; the answer is its Recovery."""

    token: Any


@dataclass(frozen=True, slots=True)
class Finish:
    """Close the buffer; the last job."""

    token: Any


class Outcome(NamedTuple):
    """What became of a job: a value, or an error."""

    token: Any
    value: Any
    error: Exception | None


class Report(NamedTuple):
    """The outcomes of a step; `stored` says whether it made puts durable, `freed` their
    bytes whether or not."""

    outcomes: Sequence[Outcome]
    status: BufferStatus | None
    stored: bool
    freed: int


Job = Put | Ask | Open | Finish


class Lane:
    """A queue of jobs and the loop that does them; `submit` may be called from any thread."""

    def __init__(self, open_buffer: Callable[[], Buffer], report: Callable[[Report], None]) -> None:
        """`report` is called on the lane's thread."""
        self._open_buffer = open_buffer
        self._report = report
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._next: Job | None = None
        self._buffer: Buffer | None = None

    def submit(self, job: Job) -> None:
        """Let `job` be done after all that was submitted before."""
        self._jobs.put(job)

    def run(self) -> None:
        """Work until Finish."""
        while self.step():
            pass

    def step(self) -> bool:
        """Do the next job, or the puts that wait there; False after Finish."""
        job = self._next or self._jobs.get()
        self._next = None
        if isinstance(job, Put):
            puts = self._gather(job)
            outcomes, stored = self._write(puts)
            freed = sum(put.size for put in puts)
            self._report(Report(outcomes, self._status(), stored, freed))
            return True
        outcome = self._do(job)
        self._report(Report([outcome], self._status(), False, 0))
        return not isinstance(job, Finish)

    def _gather(self, first: Put) -> list[Put]:
        puts = [first]
        size = first.size
        while size < GROUP_BYTES:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if not isinstance(job, Put):
                self._next = job
                break
            puts.append(job)
            size += job.size
        return puts

    def _write(self, puts: list[Put]) -> tuple[list[Outcome], bool]:
        try:
            buffer = self._opened()
            checkpoints = dict(puts[0].checkpoints)
            for put in puts[1:]:
                checkpoints.update(put.checkpoints)
            may_evict = any(put.may_evict for put in puts)
            buffer.append_packed([put.entries for put in puts], checkpoints, may_evict)
            buffer.sync()
        except Exception as error:
            return [Outcome(put.token, None, error) for put in puts], False
        last = buffer.last
        outcomes = []
        for put in reversed(puts):
            outcomes.append(Outcome(put.token, last, None))
            last -= put.entries.number
        return outcomes[::-1], True

    def _do(self, job: Ask | Open | Finish) -> Outcome:
        value: Any = None
        try:
            match job:
                case Ask(_, work):
                    value = work(self._opened())
                case Open():
                    self._close()
                    self._buffer = self._open_buffer()
                    value = self._buffer.recovery
                case Finish():
                    self._close()
        except Exception as error:
            return Outcome(job.token, None, error)
        return Outcome(job.token, value, None)

    def _opened(self) -> Buffer:
        if self._buffer is None:
            raise StoreClosed("the buffer is not open")
        return self._buffer

    def _close(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.close()

    def _status(self) -> BufferStatus | None:
        buffer = self._buffer
        if buffer is None:
            return None
        return BufferStatus(
            buffer.acked,
            buffer.last,
            buffer.next_seq,
            buffer.depth,
            buffer.size,
            buffer.pressure,
            buffer.evicted,
            buffer.damaged,
            buffer.set_aside_count,
            buffer.unreported,
            buffer.broken,
            buffer.full,
            buffer.story,
        )
