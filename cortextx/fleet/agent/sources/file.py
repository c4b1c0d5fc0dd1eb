"""The file source: threads that look, open and read for the `Tailer`.

Everything that touches the disk runs in the thread pool, one job a file at a time, a
few in all; so does turning records into entries. One job opens and reads what is due of
several files, as long as that is little, and their records go to the buffer together.
A file's records and its checkpoint are always in one put; the next read of a file waits
until that is durable.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.errors import StoreFull
from cortextx.fleet.agent.entries import encode_body
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
)
from cortextx.fleet.agent.sources.globs import (
    Grounds,
    NotAllowed,
    glob_test,
    scan,
    shown_path,
    static_root,
)
from cortextx.fleet.agent.sources.lines import RecordEncoder
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.agent.sources.rounds import (
    Bytes,
    Opened,
    Step,
    do_all,
    encode_all,
    puts_of,
)
from cortextx.fleet.agent.sources.tailer import GONE, Tailer
from cortextx.interfaces.fleet import ILogSource

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

T = TypeVar("T")
Put = Callable[[Sequence[bytes], Mapping[str, bytes | None]], Deferred[Any]]
ROUND_STEPS = 64
"""Opens and reads that one job in a thread does at most."""
ROUND_BYTES = 131_072
"""A round takes no further read once this much is expected of it."""
MAX_SAID = 1000
"""Refused files that are told of, once each."""
MAX_FAULTS = 1000
"""Files whose faults are known, for a status."""
AGENT_SOURCE = "custom:cortextx"
"""What only the agent knows (F37)."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """One file source's configuration.

    `paths` are globs. Real paths must lie below one of `roots`, by default the globs'
    own fixed parts, which suits what the agent's own configuration declares; for what a
    server asks for, give the log directories (F18, S2) and the `allowed` globs.
    Nothing below `excluded` is read: the agent's state directory (A35). `zone` is for
    times without an offset, None the host's own.
    """

    paths: Sequence[str]
    roots: Sequence[str] = ()
    excluded: Sequence[str] = ()
    allowed: Sequence[str] = ()
    scan_interval: float = 1.0
    concurrency: int = 2
    zone: tzinfo | None = None
    tail: TailSettings = field(default_factory=TailSettings)


@dataclass(frozen=True, slots=True)
class FileReport:
    """How a file source is: `files` are the files that each glob matched last, None before
    the first scan; `why` says of a glob why that is none, `faults` of a file why it is not
    read."""

    files: Mapping[str, int] | None
    why: Mapping[str, str]
    faults: Mapping[str, str]


@implementer(ILogSource)
class FileSource:
    """Tails files into the buffer.

    `put(bodies, checkpoints)` answers when both are durable, and keeps the order of its
    calls; `checkpoints()` is what the buffer kept. Both as of `start`.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: FileSettings,
        put: Put,
        checkpoints: Callable[[], Mapping[str, bytes]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._settings = settings
        self._put = put
        self._checkpoints = checkpoints
        self._wall = wall
        self._roots = settings.roots or [static_root(path) for path in settings.paths]
        self._tailer: Tailer | None = None
        self._descriptors: dict[int, int] = {}
        self._encoders: dict[int, RecordEncoder] = {}
        self._said: set[str] = set()
        self._survey = _Survey(settings.paths)
        self._opened_as: dict[int, str] = {}
        self._faults: dict[str, _Fault] = {}
        self._outstanding = 0
        self._scanning = False
        self._paused = False
        self._running = False
        self._timer: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`."""
        self._tailer = Tailer(self.name, self._settings.tail, self._checkpoints())
        self._grounds = Grounds(self._roots, self._settings.excluded, self._settings.allowed)
        self._running = True
        self._scan()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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

    def report(self) -> FileReport:
        """What an operator should know of the files."""
        faults = {path: fault.why for path, fault in self._faults.items()}
        return FileReport(self._survey.files, self._survey.why, faults)

    # -- scans -------------------------------------------------------------------------

    def _scan(self) -> None:
        assert self._tailer is not None
        self._timer = None
        self._scanning = True
        watch, held = self._tailer.watch(), dict(self._descriptors)
        paths, survey = self._settings.paths, self._survey
        looked = self._in_thread(lambda: survey.of(scan(paths, self._grounds, watch, held)))
        looked.addCallback(self._forget_faults)
        looked.addCallback(lambda found: self._carry_out(self._the.scanned(found, self._now())))
        looked.addCallback(lambda _: self._say_refused())
        looked.addErrback(self._failed, "looking for files")
        looked.addBoth(self._scan_ended)

    def _scan_ended(self, _: object) -> None:
        self._scanning = False
        if self._running:
            self._timer = self._reactor.callLater(self._settings.scan_interval, self._scan)
        self._pump()
        self._ended()

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
            self._faults.pop(self._opened_as.get(handle, ""), None)
        if isinstance(result, Bytes):
            return self._the.bytes_read(handle, result.stat, result.data, self._now())
        self._descriptors[handle] = result.descriptor
        return self._the.opened(handle, result.stat, result.head, self._now())

    def _refused(self, failure: Failure, handle: int) -> list[Action]:
        if failure.check(NotAllowed):
            self._say_once(failure.getErrorMessage())
            code = errno.EACCES
        else:
            failure.trap(OSError)
            error = failure.value
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        self._note_fault(handle, code, failure)
        self._close(handle)
        return self._the.failed(handle, code, self._now())

    def _note_fault(self, handle: int, code: int, failure: Failure) -> None:
        """Remember for a status that a file is not read."""
        path = self._opened_as.get(handle)
        if path is None or code in GONE:
            return
        why = f"cannot be read ({os.strerror(code)})"
        if failure.check(NotAllowed):
            why = failure.getErrorMessage().removeprefix(f"{path}: ")
        self._add_fault(path, why)

    def _add_fault(self, path: str, why: str) -> None:
        if path in self._faults or len(self._faults) < MAX_FAULTS:
            self._faults[path] = _Fault(why)

    def _forget_faults(self, found: Scan) -> Scan:
        """Forget those of paths where nothing stands any more, or another file."""
        if self._faults:
            there = {seen.real: seen.stat.identity for seen in found.files}
            there |= {seen.path: seen.stat.identity for seen in found.files}
            for path, fault in list(self._faults.items()):
                if path not in there or fault.identity not in (None, there[path]):
                    del self._faults[path]
                else:
                    fault.identity = there[path]
        return found

    def _say_refused(self) -> None:
        for path in self._grounds.refused:
            self._add_fault(path, "leads outside the directories that this source may read")
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
                body = self._gap_body(action)
                self._put([body], action.checkpoints).addErrback(self._failed, "reporting a gap")
            elif isinstance(action, Say):
                report = self.log.warn if action.level == "warn" else self.log.info
                report("{name}: {text}", name=self.name, text=action.text)
        return emits

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
            put = self._put(bodies, checkpoints)
            return put.addCallbacks(durable, failed, callbackArgs=(good,), errbackArgs=(good,))

        def durable(_: object, good: Sequence[Emit]) -> None:
            for emit in good:
                self._carry_out(self._the.put_durable(emit.handle, self._now()))

        def failed(failure: Failure, lost: Sequence[Emit]) -> None:
            self._failed(failure, "giving entries to the buffer")
            for emit in lost:
                self._carry_out(self._the.put_failed(emit.handle, self._now()))

        jobs = [(self._encoder(emit), emit) for emit in emits]
        work = self._in_thread(encode_all, jobs, int(self._wall() * 1e6))
        return work.addCallback(encoded).addErrback(failed, emits)

    def _encoder(self, emit: Emit) -> RecordEncoder:
        encoder = self._encoders.get(emit.handle)
        if encoder is None:
            source = f"file:{shown_path(emit.home)}"
            encoder = self._encoders[emit.handle] = RecordEncoder(source, self._settings.zone)
        return encoder

    def _gap_body(self, gap: Gap) -> bytes:
        facts_of_it = {"kind": "file", "source": f"file:{shown_path(gap.home)}"}
        if gap.unread is not None:
            facts_of_it["unread_bytes"] = str(gap.unread)
        return encode_body(
            ts=int(self._wall() * 1e6),
            severity="warning",
            message=shown_path(gap.text),
            source=AGENT_SOURCE,
            app_name="cortex-agent",
            metadata={"cortextx": {"gap": facts_of_it}},
        )

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


@dataclass(slots=True)
class _Fault:
    """Why a file is not read; `identity` is that of the file, once a scan has told it."""

    why: str
    identity: tuple[int, int] | None = None


class _Survey:
    """How many files each glob matched in the last scan; `of` is called in its thread."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._tests = {pattern: glob_test([pattern]) for pattern in patterns}
        self._paths: set[str] | None = None
        self.files: dict[str, int] | None = None
        self.why: dict[str, str] = {}

    def of(self, found: Scan) -> Scan:
        """Take in what a scan found; answers it."""
        paths = {seen.path for seen in found.files if seen.matched}
        if self.files is None or paths != self._paths:
            self._paths = paths
            self.files = {pattern: sum(map(test, paths)) for pattern, test in self._tests.items()}
        self.why = {
            pattern: _why_none(pattern) for pattern, count in self.files.items() if not count
        }
        return found


def _why_none(pattern: str) -> str:
    """Why a glob matches no file, as far as that can be seen."""
    root = static_root(pattern)
    try:
        os.scandir(root).close()
    except OSError as error:
        return f"{root}: {error.strerror}"
    return "no file matches"
