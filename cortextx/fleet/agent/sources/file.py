"""The file source: threads that look, open and read for the `Tailer`.

Everything that touches the disk runs in the thread pool, one job a file at a time, a
few in all; so does turning records into entries. One job opens and reads what is due of
several files, as long as that is little, and their records go to the buffer together.
A file's records and its checkpoint are always in one put; the next read of a file waits
until that is durable.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.errors import StoreFull
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.reports import GapReason, gap_reported
from cortextx.fleet.agent.sources.actions import (
    Action,
    Close,
    Emit,
    Gap,
    Keep,
    Open,
    Read,
    Say,
    Scan,
    Watch,
)
from cortextx.fleet.agent.sources.file_settings import FileSettings
from cortextx.fleet.agent.sources.globs import (
    Grounds,
    NotAllowed,
    glob_test,
    scan,
    shown_path,
    static_root,
)
from cortextx.fleet.agent.sources.hints import Hints
from cortextx.fleet.agent.sources.lines import RecordEncoder
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.fleet.agent.sources.rounds import (
    Bytes,
    Opened,
    Step,
    do_all,
    encode_all,
    puts_of,
)
from cortextx.fleet.agent.sources.survey import Faults, Survey, roots_of
from cortextx.fleet.agent.sources.tailer import Tailer
from cortextx.interfaces.fleet import ILogSource

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from cortextx.fleet.agent.composing import Compose

T = TypeVar("T")
Put = Callable[..., Deferred[Any]]
ROUND_STEPS = 64
"""Opens and reads that one job in a thread does at most."""
ROUND_BYTES = 262_144
"""A round takes no further read once this much is expected of it."""
MAX_SAID = 1000
"""Refused files that are told of, once each."""
COUNTERS = (
    "entries", "records", "capped", "partial", "gaps", "gap_bytes", "truncations", "looks", "hints",
)  # fmt: skip
"""What a report counts: records of files, and entries made of them (a long record is
several, one that a rule dropped none); records ended by a cap, and unfinished ones; losses;
files that were truncated or rewritten, whether or not that is a loss (F43); looks at the
disk, and the hints that brought some."""
SOONEST = 0.1
"""Seconds between two looks at the disk, at least, however many hints come."""
REST = 5
"""A look that no hint brought comes not before so many times what the last one took,"""
LONGEST_PAUSE = 30.0
"""but after so many seconds at the latest."""
SHARE = 20
"""A look that a hint brought comes not before so many times what the last one took."""


@implementer(ILogSource)
class FileSource:
    """Tails files into the buffer.

    `put(bodies, checkpoints, can_wait=True)` answers when both are durable, and keeps the
    order of its calls of one kind; `checkpoints()` is what the buffer kept. Both as of
    `start`. `compose` makes the entries, or answers None for one that a rule drops; `wall`
    is seconds since the epoch.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: FileSettings,
        put: Put,
        checkpoints: Callable[[], Mapping[str, bytes]],
        *,
        compose: Compose = encode_body,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._settings = settings
        self._put = put
        self._checkpoints = checkpoints
        self._compose = compose
        self._wall = wall
        self._roots = settings.roots or [static_root(path) for path in settings.paths]
        self._tailer: Tailer | None = None
        self._descriptors: dict[int, int] = {}
        self._encoders: dict[int, RecordEncoder] = {}
        self._said: set[str] = set()
        self._survey = Survey(settings.paths)
        self._opened_as: dict[int, str] = {}
        self._faults = Faults()
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._hints = Hints(reactor, self._hinted, settings.max_watches)
        self._last_look = (0.0, 0.0)
        self._outstanding = 0
        self._scanning = False
        self._more = False
        self._paused = False
        self._running = False
        self._timer: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`."""
        settings = self._settings
        self._grounds = Grounds(
            self._roots, settings.excluded, settings.allowed, left_out=settings.exclude
        )
        matches, wants = glob_test(settings.paths), self._grounds.wants
        self._tailer = Tailer(
            self.name,
            settings.tail,
            self._checkpoints(),
            lambda home: matches(home) and wants(home),
        )
        self._checkpoints = dict  # what is needed of it was taken
        self._running = True
        if settings.notified:
            self._hints.open()
        self._scan()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hints.rest()
        if self._stopped is None:
            self._stopped = Deferred()
            self._ended()
        return self._stopped

    def pause(self) -> None:
        """See `ILogSource.pause`; files are still followed, but not read."""
        self._paused = True

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._paused = False
        self._pump()

    @property
    def open_files(self) -> int:
        """Open descriptors (A17)."""
        return len(self._descriptors)

    def report(self) -> SourceReport:
        """What an operator should know. `details`: `files`, `why` and `faults` as SourceReport
        has them; `open_files`, and how many may be (A17); how many `directories` the kernel
        tells of, and in `directories_why` why that is not all of them; how many files are known,
        how many may be, and in `trouble` whether that is too few."""
        survey, hints = self._survey, self._hints
        why = None
        if survey.files is not None and not survey.matched:
            why = next(iter(survey.why.values()), None)
        state: SourceState = "paused" if self._paused else "waiting" if why else "running"
        details = {
            "files": survey.files,
            "why": survey.why,
            "faults": self._faults.why,
            "open_files": self.open_files,
            "max_open_files": self._settings.tail.max_open,
            "directories": hints.watched,
            "directories_why": hints.why,
            "known_files": 0 if self._tailer is None else self._tailer.known,
            "max_files": self._settings.tail.max_files,
            "trouble": self._trouble(),
        }
        return SourceReport(self.name, "file", state, why, dict(self._counters), details)

    def _trouble(self) -> str | None:
        """Which globs match more files than are followed, if any."""
        most, beyond = self._settings.tail.max_files, self._survey.beyond
        if not beyond:
            return None
        which = ", ".join(f"{glob} ({count} not read)" for glob, count in beyond.items())
        return (
            f"more than max_files = {most} files match: {which}; narrow the glob, remove"
            " old files, or raise max_files"
        )

    # -- scans -------------------------------------------------------------------------

    def _scan(self) -> None:
        assert self._tailer is not None
        self._timer = None
        self._scanning = True
        self._hints.rest()
        self._last_look = (self._now(), 0.0)
        looked = self._in_thread(self._look, self._tailer.watch(), dict(self._descriptors))
        looked.addCallback(self._looked)
        looked.addCallback(lambda _: self._say_refused())
        looked.addErrback(self._failed, "looking for files")
        looked.addBoth(self._scan_ended)

    def _look(self, watch: Watch, held: Mapping[int, int]) -> Scan:
        """See what stands where (in a thread)."""
        self._hints.drain()
        found = self._survey.of(scan(self._settings.paths, self._grounds, watch, held))
        self._hints.watch(roots_of(self._settings.paths), found)
        return found

    def _looked(self, found: Scan) -> None:
        self._faults.scanned(found)
        self._more = found.more
        self._carry_out(self._the.scanned(found, self._now()))

    def _scan_ended(self, _: object) -> None:
        self._scanning = False
        self._counters["looks"] += 1
        began, now = self._last_look[0], self._now()
        self._last_look = (now, now - began)
        if self._running:
            pause = max(self._settings.scan_interval, REST * (now - began))
            pause = 0.0 if self._more else min(pause, LONGEST_PAUSE)
            self._timer = self._reactor.callLater(pause, self._scan)
            self._hints.listen()
        self._pump()
        self._ended()

    def _hinted(self) -> None:
        """Something changed: look at once, but spend little time on that."""
        if self._timer is None or not self._running:
            return
        self._counters["hints"] += 1
        ended, took = self._last_look
        due = ended + max(SOONEST, SHARE * took)
        if due < self._timer.getTime():
            self._timer.reset(max(0.0, due - self._now()))

    # -- work --------------------------------------------------------------------------

    @property
    def _the(self) -> Tailer:
        assert self._tailer is not None
        return self._tailer

    def _pump(self) -> None:
        """Start as much work as may be under way at once."""
        while self._running and not self._paused and self._outstanding < self._settings.concurrency:
            steps = self._next_round()
            if not steps:
                return
            self._outstanding += 1
            work = self._in_thread(do_all, self._grounds, steps)
            work.addCallback(self._done, steps)
            work.addErrback(self._failed, "reading files")
            work.addBoth(self._work_ended)

    def _work_ended(self, _: object) -> None:
        self._outstanding -= 1
        self._pump()
        self._ended()

    def _next_round(self) -> list[Step]:
        """What one job in a thread shall do: one large read, or many small ones."""
        steps: list[Step] = []
        expected = 0
        while len(steps) < ROUND_STEPS and expected < ROUND_BYTES:
            action = self._the.next_action(self._now())
            if action is None:
                break
            if isinstance(action, Close):
                self._close(action.handle)
            elif isinstance(action, Open):
                self._opened_as[action.handle] = action.path
                steps.append((action, -1))
            else:
                expected += action.expected
                steps.append((action, self._descriptors[action.handle]))
        return steps

    def _done(self, results: Sequence[Opened | Bytes | Failure], steps: Sequence[Step]) -> Any:
        """Tell the tailer what came of a round; fires when all that it emits is answered."""
        emits: list[Emit] = []
        for (action, _), result in zip(steps, results, strict=True):
            try:
                emits += self._carry_out(self._tell(action, result))
            except Exception:
                self._failed(Failure(), "reading files")
        return DeferredList([self._emit(some) for some in puts_of(emits)])

    def _tell(self, action: Open | Read, result: Opened | Bytes | Failure) -> list[Action]:
        handle = action.handle
        if isinstance(result, Failure):
            return self._refused(result, handle)
        if self._faults:
            self._faults.read(self._opened_as.get(handle, ""))
        if isinstance(result, Bytes):
            return self._the.bytes_read(handle, result.stat, result.data, self._now())
        self._descriptors[handle] = result.descriptor
        return self._the.opened(handle, result.stat, result.head, self._now())

    def _refused(self, failure: Failure, handle: int) -> list[Action]:
        if failure.check(NotAllowed):
            self._say_once(failure.getErrorMessage())
        code = self._faults.note(self._opened_as.get(handle), failure)
        self._close(handle)
        return self._the.failed(handle, code, self._now())

    def _say_refused(self) -> None:
        for path in self._grounds.refused:
            self._faults.add(path, "leads outside the directories that this source may read")
            self._say_once(f"{path}: leads outside the directories that this source may read")
        self._grounds.refused.clear()

    def _say_once(self, text: str) -> None:
        """Tell the operator of something that stays as it is (F18)."""
        if text not in self._said and len(self._said) < MAX_SAID:
            self._said.add(text)
            self.log.warn("{name}: {text}", name=self.name, text=text)

    def _carry_out(self, actions: Sequence[Action]) -> list[Emit]:
        """Do what the tailer asks, except for Emits, which it answers."""
        emits = []
        for action in actions:
            if isinstance(action, Emit):
                emits.append(action)
            elif isinstance(action, Close):
                self._close(action.handle)
            elif isinstance(action, Keep):
                self._put([], action.checkpoints).addErrback(self._failed, "keeping checkpoints")
            elif isinstance(action, Gap):
                self.log.warn("{name}: {text}", name=self.name, text=action.text)
                self._counters["gaps"] += 1
                self._counters["gap_bytes"] += action.unread or 0
                self._counters["truncations"] += not action.gone
                self._report_gap(action)
            elif isinstance(action, Say):
                report = self.log.warn if action.level == "warn" else self.log.info
                report("{name}: {text}", name=self.name, text=action.text)
                if action.counts is not None:
                    self._counters[action.counts] += 1
        return emits

    def _report_gap(self, gap: Gap) -> None:
        """Put a gap's mark in the buffer; who waits for that is told (F37)."""
        handle = gap.handle
        put = self._put([self._gap_body(gap)], gap.checkpoints, can_wait=handle is None)
        if handle is not None:
            put.addCallbacks(self._gap_durable, self._gap_refused, (handle,), {}, (handle,))
        put.addErrback(self._failed, "reporting a gap")

    def _gap_durable(self, _: object, handle: int) -> None:
        self._carry_out(self._the.put_durable(handle, self._now()))
        self._pump()

    def _gap_refused(self, failure: Failure, handle: int) -> None:
        self._carry_out(self._the.put_failed(handle, self._now()))
        self._failed(failure, "reporting a gap")

    def _emit(self, emits: Sequence[Emit]) -> Deferred[None]:
        """Put the records of several files, and their checkpoints, in the buffer as one."""

        def encoded(results: list[list[bytes] | Failure]) -> Deferred[Any]:
            bodies: list[bytes] = []
            checkpoints: dict[str, bytes | None] = {}
            good = []
            for emit, result in zip(emits, results, strict=True):
                if isinstance(result, Failure):
                    failed(result, [emit])
                else:
                    good.append(emit)
                    bodies += result
                    checkpoints.update(emit.checkpoints)
            if not good:
                return succeed(None)
            self._counters["entries"] += len(bodies)
            put = self._put(bodies, checkpoints)
            return put.addCallbacks(durable, failed, callbackArgs=(good,), errbackArgs=(good,))

        def durable(_: object, good: Sequence[Emit]) -> None:
            self._count(good)
            for emit in good:
                self._carry_out(self._the.put_durable(emit.handle, self._now()))

        def failed(failure: Failure, lost: Sequence[Emit]) -> None:
            self._failed(failure, "giving entries to the buffer")
            for emit in lost:
                self._carry_out(self._the.put_failed(emit.handle, self._now()))

        jobs = [(self._encoder(emit), emit) for emit in emits]
        work = self._in_thread(encode_all, jobs, int(self._wall() * 1e6))
        return work.addCallback(encoded).addErrback(failed, emits)

    def _count(self, emits: Sequence[Emit]) -> None:
        for emit in emits:
            self._counters["records"] += len(emit.records)
            self._counters["capped"] += len(emit.capped)
            self._counters["partial"] += emit.partial

    def _encoder(self, emit: Emit) -> RecordEncoder:
        encoder = self._encoders.get(emit.handle)
        if encoder is None:
            source = f"file:{shown_path(emit.home)}"
            encoder = self._encoders[emit.handle] = RecordEncoder(
                source, self._settings.zone, self._settings.format, self._compose
            )
        return encoder

    def _gap_body(self, gap: Gap) -> bytes:
        source = f"file:{shown_path(gap.home)}"
        reason: GapReason = "vanished" if gap.gone else "truncated"
        now, text = int(self._wall() * 1e6), shown_path(gap.text)
        return gap_reported(source, reason, now, unread_bytes=gap.unread, detail=text)

    def _close(self, handle: int) -> None:
        self._encoders.pop(handle, None)
        self._opened_as.pop(handle, None)
        descriptor = self._descriptors.pop(handle, None)
        if descriptor is not None:
            os.close(descriptor)

    def _ended(self) -> None:
        """Close everything and tell who waits, once nothing is under way."""
        if self._stopped is None or self._scanning or self._outstanding or self._stopped.called:
            return
        for handle in list(self._descriptors):
            self._close(handle)
        self._hints.close()
        self._stopped.callback(None)

    def _in_thread(self, work: Callable[..., T], *args: Any) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work, *args)

    def _failed(self, failure: Failure, what: str) -> None:
        if failure.check(StoreFull):
            # No fault: what was not taken is read again; the agent says it for all sources.
            return
        self.log.failure("{name}: {what} failed", failure, name=self.name, what=what)

    def _now(self) -> float:
        return float(self._reactor.seconds())
