"""The threads that touch sessions' logs: few, shared by all sessions, in order for each (I19).

A session has a channel. While a thread works on a channel, what is submitted there
gathers; appends that wait behind one another become one write and one sync. Channels
with work wait in a queue of their own kind, so many sessions are served in turn, and
long work (the proof of a log, its rewriting) never holds up another session's append.

Answers come back on the reactor's thread, many in one hop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from cortextx.errors import StoreError
from cortextx.stores.journal_log import Log

GROUP_BYTES = 2**20
"""A group takes no further append beyond this."""
WRITERS = 4
READERS = 2
LONG_WORKERS = 2

Answer = Callable[[Any, Exception | None], None]
"""Called on the reactor's thread with a value, or with what went wrong."""


class Reactor(Protocol):
    """What of the reactor is used."""

    def callFromThread(self, callable: Callable[..., object], *args: object) -> None:
        """Call on the reactor's thread."""


class Append(NamedTuple):
    """Lines to be made durable. After a failure, those of the same `epoch` fail too."""

    first: int
    lines: Sequence[bytes]
    size: int
    epoch: int
    answer: Answer


class Work(NamedTuple):
    """Anything else to be done with the log; `long` if it may take a while."""

    call: Callable[[Log], Any]
    long: bool
    answer: Answer


class _Call(NamedTuple):
    """A function to be called on some thread."""

    call: Callable[[], Any]
    answer: Answer


class Channel:
    """One session's jobs, in order, at most one thread at a time."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._jobs: deque[Append | Work] = deque()
        self._lock = threading.Lock()
        self._scheduled = False
        self._failed_epoch = -1

    def add(self, job: Append | Work) -> bool | None:
        """Let a job wait; None if the channel is scheduled already, else whether it is long."""
        with self._lock:
            self._jobs.append(job)
            if self._scheduled:
                return None
            self._scheduled = True
            return isinstance(job, Work) and job.long

    def next(self) -> bool | None:
        """What comes after a step: None for nothing, else whether it is long."""
        with self._lock:
            self._scheduled = bool(self._jobs)
            if not self._jobs:
                return None
            job = self._jobs[0]
            return isinstance(job, Work) and job.long

    def step(self, answered: Callable[[Answer, Any, Exception | None], None]) -> None:
        """Do the first job, or the appends that wait there."""
        with self._lock:
            group, work = self._gather()
        if work is not None:
            try:
                value = work.call(self.log)
            except Exception as error:
                answered(work.answer, None, error)
            else:
                answered(work.answer, value, None)
            return
        failure = self._write(group)
        for append in group:
            answered(append.answer, None, failure)

    def _gather(self) -> tuple[list[Append], Work | None]:
        group: list[Append] = []
        size = 0
        while self._jobs and size < GROUP_BYTES:
            job = self._jobs[0]
            if isinstance(job, Work):
                if not group:
                    self._jobs.popleft()
                return group, None if group else job
            if group and job.epoch != group[0].epoch:
                break
            self._jobs.popleft()
            group.append(job)
            size += job.size
        return group, None

    def _write(self, group: list[Append]) -> Exception | None:
        if group[0].epoch <= self._failed_epoch:
            return StoreError("an append before this one failed")
        try:
            if len(group) == 1:
                self.log.append(group[0].first, group[0].lines)
            else:
                self.log.append(group[0].first, [line for each in group for line in each.lines])
        except Exception as error:
            self._failed_epoch = group[0].epoch
            return error
        return None


class Lanes:
    """The threads, and the way back. Methods are for the reactor's thread."""

    def __init__(
        self,
        reactor: Reactor,
        writers: int = WRITERS,
        readers: int = READERS,
        long_workers: int = LONG_WORKERS,
    ) -> None:
        """With no threads at all, somebody has to call `work` (as tests do)."""
        self._reactor = reactor
        self._appends: SimpleQueue[Channel | None] = SimpleQueue()
        self._long: SimpleQueue[Channel | _Call | None] = SimpleQueue()
        self._reads: SimpleQueue[_Call | None] = SimpleQueue()
        self._answers: deque[tuple[Answer, Any, Exception | None]] = deque()
        self._lock = threading.Lock()
        self._called = False
        self._threads: list[threading.Thread] = []
        self._plan = (
            [(self._write_step, self._appends)] * writers
            + [(self._long_step, self._long)] * long_workers
            + [(self._read_step, self._reads)] * readers
        )

    # Life

    def start(self) -> None:
        """Start the threads."""
        for number, (step, _) in enumerate(self._plan):
            name = f"journal-{number}"
            thread = threading.Thread(target=self._run, args=(step,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Let the threads end once they have done what was submitted; wait for them."""
        if not self._threads:
            return
        for _, queue in self._plan:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _run(self, step: Callable[[], bool]) -> None:
        while step():
            pass

    def work(self) -> None:
        """Do all that waits on this thread, where there are no threads."""
        while not (self._appends.empty() and self._long.empty() and self._reads.empty()):
            for queue, step in (
                (self._appends, self._write_step),
                (self._long, self._long_step),
                (self._reads, self._read_step),
            ):
                if not queue.empty():
                    step()

    # Jobs

    def submit(self, channel: Channel, job: Append | Work) -> None:
        """Let a job of a session be done after all that was submitted for it before."""
        self._schedule(channel, channel.add(job))

    def read(self, call: Callable[[], Any], answer: Answer) -> None:
        """Call a function on a reading thread."""
        self._reads.put(_Call(call, answer))

    def long(self, call: Callable[[], Any], answer: Answer) -> None:
        """Call a function that takes a while, out of any session's order."""
        self._long.put(_Call(call, answer))

    def _schedule(self, channel: Channel, long: bool | None) -> None:
        if long is not None:
            (self._long if long else self._appends).put(channel)

    def _write_step(self) -> bool:
        return self._channel_step(self._appends.get())

    def _long_step(self) -> bool:
        job = self._long.get()
        return self._call_step(job) if isinstance(job, _Call) else self._channel_step(job)

    def _channel_step(self, channel: Channel | None) -> bool:
        if channel is None:
            return False
        channel.step(self._answered)
        self._flush()
        self._schedule(channel, channel.next())
        return True

    def _read_step(self) -> bool:
        return self._call_step(self._reads.get())

    def _call_step(self, job: _Call | None) -> bool:
        if job is None:
            return False
        try:
            value = job.call()
        except Exception as error:
            self._answered(job.answer, None, error)
        else:
            self._answered(job.answer, value, None)
        self._flush()
        return True

    # Answers

    def _answered(self, answer: Answer, value: Any, error: Exception | None) -> None:
        self._answers.append((answer, value, error))

    def _flush(self) -> None:
        with self._lock:
            if self._called:
                return
            self._called = True
        self._reactor.callFromThread(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._called = False
        for _ in range(len(self._answers)):
            answer, value, error = self._answers.popleft()
            answer(value, error)
