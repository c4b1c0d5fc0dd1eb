"""The journald source: runs of `journalctl`, their output in threads, the buffer (F41).

One chunk of output is in a thread, and one put under way, at a time; the rest waits in
a bounded list, then in the pipe, then in the journal. A put that fails ends the run:
the next begins at what is durable.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.errors import StoreClosed, StoreFull
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.journal_child import JournalChild
from cortextx.fleet.agent.sources.journal_entries import Compose, OwnTraces, RecordMapper
from cortextx.fleet.agent.sources.journal_life import JournalLife
from cortextx.fleet.agent.sources.journal_run import JournalRun, Made
from cortextx.fleet.agent.sources.journal_settings import JournalSettings, command
from cortextx.fleet.agent.sources.journal_trail import At, Recover, Since, Trail
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.interfaces.fleet import ILogSource

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

CHUNK = 262_144
"""Bytes of journalctl's output that one job in a thread takes."""
LOOK_FOR = 15.0
"""Seconds in which a run must show the entry it was started at."""
REST_AFTER = 20.0
"""Seconds of pause after which the child is ended: it would hold on to what is vacuumed."""
KEEP_EVERY = 5.0
"""Seconds between checkpoints that go with no entry."""
SAY_EVERY = 60.0
"""Seconds between two words of the same kind to the operator (A35)."""


@implementer(ILogSource)
class JournalSource:
    """Follows the journal into the buffer. Constructor and calls as of every source."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: JournalSettings,
        put: Callable[..., Deferred[Any]],
        checkpoints: Callable[[], Mapping[str, bytes]],
        *,
        compose: Compose = encode_body,
        wall: Callable[[], float] = time.time,
        own: OwnTraces | None = None,
    ) -> None:
        self.name = name
        self.key = f"journald:{name}"
        self._reactor = reactor
        self._settings = settings
        self._put = put
        self._checkpoints = checkpoints
        self._wall = wall
        traces = own or own_traces()
        traces = traces._replace(units=traces.units | frozenset(settings.exclude_units))
        self._mapper = RecordMapper(compose, traces)
        self._life: JournalLife | None = None
        self._child: JournalChild | None = None
        self._run: JournalRun | None = None
        self._working = False
        self._putting = False
        self._made: Made | None = None
        self._late: bytes | None = None
        self._kept_at = 0.0
        self._said: dict[str, float] = {}
        self._why: str | None = "not started"
        self._failed_for_good = False
        self._timers: dict[str, IDelayedCall] = {}
        self._paused = False
        self._running = False
        self._stopped: Deferred[None] | None = None
        self.counters: Counter[str] = Counter()

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`."""
        self._running = True
        begin = self._micros()
        if self._settings.start == "start":
            begin = max(0, begin - int(self._settings.since_secs * 1e6))
        self._life = JournalLife(
            self._checkpoints().get(self.key),
            begin=begin,
            filter_key=self._settings.filter_key,
            random=random.random,
            privileged=os.geteuid() == 0,
        )
        if self._life.fresh:
            # So that a start after a crash begins where this one did.
            self._late = self._life.checkpoint
            self._keep_late()
        self._spawn()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        self._running = False
        for name in list(self._timers):
            self._cancel(name)
        if self._stopped is None:
            self._stopped = Deferred()
            self._keep_late()
            if self._child is not None:
                self._child.end()
            self._check_stopped()
        return self._stopped

    def pause(self) -> None:
        """See `ILogSource.pause`."""
        self._paused = True
        self._later("rest", REST_AFTER, self._rest)

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._paused = False
        self._cancel("rest")
        if self._running and self._child is None and "spawn" not in self._timers:
            self._spawn()
        self._pump()

    def report(self) -> SourceReport:
        """How it is."""
        state: SourceState = "running"
        if self._paused:
            state = "paused"
        elif self._failed_for_good:
            state = "failed"
        elif self._child is None or self._why is not None:
            state = "waiting"
        return SourceReport(self.name, "journald", state, self._why, dict(self.counters))

    # -- the child ---------------------------------------------------------------------

    @property
    def _the(self) -> JournalLife:
        assert self._life is not None
        return self._life

    def _spawn(self) -> None:
        if not self._running or self._child is not None or self._paused:
            return
        life, position = self._the, self._the.position()
        cursor = position.cursor if isinstance(position, At) else None
        since = position.micros if isinstance(position, Since) else None
        try:
            line = command(self._settings, cursor=cursor, since=since)
        except ValueError as error:
            self._failed_for_good, self._why = True, str(error)
            self.log.error("{name}: {why}", name=self.name, why=error)
            return
        life.started()
        trail = Trail(position, whole=self._settings.whole)
        child = JournalChild(self._reactor, self._pump, self._gone)
        self._child, self._run = child, JournalRun(trail, self._mapper)
        self.counters["runs"] += 1
        try:
            child.spawn(line)
        except OSError as error:
            child.ended = True
            self._gone(f"{self._settings.program}: {error.strerror}".encode())
            return
        self._why = None
        if isinstance(position, At):
            self._later("look", LOOK_FOR, self._overdue)
        elif isinstance(position, Recover):
            self._say("recover", "the journal has nothing at or behind what was read last")

    def _overdue(self) -> None:
        """Nothing came of a run that should have shown the entry that it began at."""
        child = self._child
        if child is None or child.received:
            return
        self._the.nothing_found()
        child.end()

    def _rest(self) -> None:
        """A long pause began: the next run will see what was vacuumed meanwhile."""
        if self._paused and self._child is not None:
            self._child.end()

    def _gone(self, errors: bytes) -> None:
        """The child has ended; what it wrote before is still worked on."""
        if self._the_rest_is_worked_on():
            return
        child, self._child, self._run, self._made = self._child, None, None, None
        assert child is not None
        self._cancel("look")
        words = " / ".join(errors.decode("utf-8", "replace").split("\n")[-3:]).strip(" /")
        if self._running and not self._paused:
            if words:
                self._say("ended", f"journalctl ended: {words[:300]}")
            self._why = words[:300] or None
            self._later("spawn", self._the.ended(errors), self._spawn)
        self._check_stopped()

    def _the_rest_is_worked_on(self) -> bool:
        child = self._child
        if child is None:
            return True
        busy = self._working or self._putting or self._made is not None
        return busy or (self._running and not self._paused and child.held > 0)

    # -- its output --------------------------------------------------------------------

    def _pump(self) -> None:
        """Let a thread work on the next chunk, and a put be under way."""
        child, run = self._child, self._run
        if child is None or run is None:
            return
        idle = not self._working and self._made is None
        if self._running and not self._paused and idle and child.held:
            self._working = True
            chunks = child.take(CHUNK)
            pool = self._reactor.getThreadPool()
            jumps = self._the.jumps(self._now())
            work = deferToThreadPool(self._reactor, pool, run.work, chunks, self._micros(), jumps)
            work.addCallback(self._worked, child)
            work.addErrback(self._work_broken, child)
        elif child.ended and not self._the_rest_is_worked_on():
            self._gone(child.errors)

    def _worked(self, made: Made, child: JournalChild) -> None:
        self._working = False
        if child is self._child:
            self._made = made
            self._cancel("look")
            self._settle(made)
            self._give()
        self._pump()
        self._check_stopped()

    def _settle(self, made: Made) -> None:
        if made.persisted:
            self._the.persisted(self._now())
        if made.doubt:
            self.counters["doubts"] += 1
            self._the.doubted()

    def _give(self) -> None:
        """Put what was made in the buffer, after what was made before."""
        made, child = self._made, self._child
        if made is None or child is None or self._putting:
            return
        self._made = None
        self._count(made)
        mark = None if made.cursor is None else self._the.mark(made.cursor, made.at)
        if not made.bodies:
            if mark is not None:
                self._late = mark
                if self._now() >= self._kept_at + KEEP_EVERY or made.doubt:
                    self._keep_late()
        else:
            self._late = None
            self._kept_at = self._now()
            self._putting = True
            put = self._put(made.bodies, {} if mark is None else {self.key: mark})
            put.addCallbacks(self._stored, self._not_stored, (mark, child), {}, (child,))
            put.addErrback(self._broken, child)
        if made.doubt:
            child.end()

    def _stored(self, _: object, mark: bytes | None, child: JournalChild) -> None:
        self._putting = False
        if mark is not None:
            self._the.durable(mark)
        self._give()
        self._pump()
        self._check_stopped()

    def _not_stored(self, failure: Failure, child: JournalChild) -> None:
        """The run ends, and what it read is read again."""
        self._putting = False
        self._made = None
        if not failure.check(StoreFull, StoreClosed):
            self.log.failure("{name}: giving entries to the buffer failed", failure, name=self.name)
        self._give_up(child, self._the.refused())

    def _work_broken(self, failure: Failure, child: JournalChild) -> None:
        self._working = False
        self._broken(failure, child)

    def _broken(self, failure: Failure, child: JournalChild) -> None:
        """A fault of ours: the run ends."""
        self.log.failure("{name}: reading the journal failed", failure, name=self.name)
        self._give_up(child, self._the.refused())

    def _give_up(self, child: JournalChild, delay: float) -> None:
        if self._child is child:
            child.end()
            self._child, self._run, self._made, self._late = None, None, None, None
            self._cancel("look")
            child.forget()
            if self._running:
                self._later("spawn", delay, self._spawn)
        self._check_stopped()

    def _keep_late(self) -> None:
        """Keep a checkpoint that goes with no entry: own entries were passed."""
        mark, self._late = self._late, None
        if mark is None or self._putting:
            self._late = mark
            return
        self._kept_at = self._now()
        put = self._put([], {self.key: mark})
        put.addCallbacks(lambda _: self._the.durable(mark), lambda _: None)

    def _count(self, made: Made) -> None:
        facts = {
            "entries": len(made.bodies) - made.gaps,
            "repeated": made.repeated,
            "own": made.own,
            "dropped": made.dropped,
            "malformed": made.malformed,
            "oversize_bytes": made.oversize,
            "missing_numbers": made.missing,
            "gaps": made.gaps,
        }
        for name, count in facts.items():
            if count:
                self.counters[name] += count

    # -- timers and words --------------------------------------------------------------

    def _later(self, name: str, delay: float, what: Callable[[], None]) -> None:
        self._cancel(name)

        def due() -> None:
            del self._timers[name]
            what()

        self._timers[name] = self._reactor.callLater(delay, due)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _say(self, kind: str, text: str) -> None:
        now = self._now()
        if now >= self._said.get(kind, float("-inf")) + SAY_EVERY:
            self._said[kind] = now
            self.log.warn("{name}: {text}", name=self.name, text=text)

    def _check_stopped(self) -> None:
        stopped, child = self._stopped, self._child
        if stopped is None or stopped.called or self._working or self._putting:
            return
        if child is None or child.ended:
            self._child = None
            stopped.callback(None)

    def _micros(self) -> int:
        return int(self._wall() * 1e6)

    def _now(self) -> float:
        return float(self._reactor.seconds())


def own_traces() -> OwnTraces:
    """By what this process is known in the journal (A35)."""
    found = re.search(r"/([^/\n]+\.service)\s*$", _read("/proc/self/cgroup"), re.MULTILINE)
    unit = found[1] if found is not None else ""
    units = frozenset() if not unit or unit.startswith("user@") else frozenset({unit})
    boot = _read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
    return OwnTraces(units, str(os.getpid()), boot, socket.gethostname())


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65_536)
    except OSError:
        return ""
