"""The file source: threads that look, open and read for the `Tailer`.

Everything that touches the disk runs in the thread pool, one job a file at a time, a
few in all; so does turning records into entries. Records and checkpoints reach the
buffer in one put; the next read of a file waits until that is durable.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from zope.interface import implementer

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.actions import Action, Close, Emit, Gap, Keep, Open, Read, Say
from cortextx.fleet.agent.sources.globs import (
    Grounds,
    NotAllowed,
    facts,
    scan,
    shown_path,
    static_root,
)
from cortextx.fleet.agent.sources.identity import FileStat
from cortextx.fleet.agent.sources.lines import RecordEncoder
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.agent.sources.tailer import Tailer
from cortextx.interfaces.fleet import ILogSource

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

T = TypeVar("T")
Put = Callable[[Sequence[bytes], Mapping[str, bytes | None]], Deferred[Any]]
MAX_SAID = 1000
"""Refused files that are told of, once each."""
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

    # -- scans -------------------------------------------------------------------------

    def _scan(self) -> None:
        assert self._tailer is not None
        self._timer = None
        self._scanning = True
        watch, held = self._tailer.watch(), dict(self._descriptors)
        looked = self._in_thread(scan, self._settings.paths, self._grounds, watch, held)
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
            action = self._the.next_action(self._now())
            if action is None:
                return
            if isinstance(action, Close):
                self._carry_out([action])
                continue
            self._outstanding += 1
            work = self._open(action) if isinstance(action, Open) else self._read(action)
            work.addErrback(self._failed, "reading files")
            work.addBoth(self._work_ended)

    def _work_ended(self, _: object) -> None:
        self._outstanding -= 1
        self._pump()
        self._ended()

    def _open(self, action: Open) -> Deferred[Any]:
        def opened(found: tuple[int, FileStat, bytes]) -> Deferred[None]:
            descriptor, stat, head = found
            self._descriptors[action.handle] = descriptor
            return self._carry_out(self._the.opened(action.handle, stat, head, self._now()))

        work = self._in_thread(_open_file, self._grounds, action)
        return work.addCallbacks(opened, self._refused, errbackArgs=(action.handle,))

    def _read(self, action: Read) -> Deferred[Any]:
        def read(found: tuple[FileStat, bytes]) -> Deferred[None]:
            return self._carry_out(self._the.bytes_read(action.handle, *found, self._now()))

        work = self._in_thread(_read_file, self._descriptors[action.handle], action)
        return work.addCallbacks(read, self._refused, errbackArgs=(action.handle,))

    def _refused(self, failure: Failure, handle: int) -> Deferred[None]:
        if failure.check(NotAllowed):
            self._say_once(failure.getErrorMessage())
            code = errno.EACCES
        else:
            failure.trap(OSError)
            error = failure.value
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        self._close(handle)
        return self._carry_out(self._the.failed(handle, code, self._now()))

    def _say_refused(self) -> None:
        for path in self._grounds.refused:
            self._say_once(f"{path}: leads outside the directories that this source may read")
        self._grounds.refused.clear()

    def _say_once(self, text: str) -> None:
        """Tell the operator of something that stays as it is (F18)."""
        if text not in self._said and len(self._said) < MAX_SAID:
            self._said.add(text)
            self.log.warn("{name}: {text}", name=self.name, text=text)

    def _carry_out(self, actions: Sequence[Action]) -> Deferred[None]:
        """Do what the tailer asks; fires when an Emit among it has been answered."""
        done: Deferred[None] = succeed(None)
        for action in actions:
            if isinstance(action, Emit):
                done = self._emit(action)
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
        return done

    def _emit(self, emit: Emit) -> Deferred[None]:
        encoder = self._encoders.get(emit.handle)
        if encoder is None:
            source = f"file:{shown_path(emit.home)}"
            encoder = self._encoders[emit.handle] = RecordEncoder(source, self._settings.zone)

        def answered(_: object) -> Deferred[None]:
            return self._carry_out(self._the.put_durable(emit.handle, self._now()))

        def failed(failure: Failure) -> Deferred[None]:
            self._failed(failure, "giving entries to the buffer")
            return self._carry_out(self._the.put_failed(emit.handle, self._now()))

        work = self._in_thread(_encode, encoder, emit, int(self._wall() * 1e6))
        work.addCallback(self._put, emit.checkpoints)
        return work.addCallbacks(answered, failed)

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
        self.log.failure("{name}: {what} failed", failure, name=self.name, what=what)

    def _now(self) -> float:
        return float(self._reactor.seconds())


def _open_file(grounds: Grounds, action: Open) -> tuple[int, FileStat, bytes]:
    descriptor = grounds.open(action.path)
    try:
        return descriptor, facts(os.fstat(descriptor)), os.pread(descriptor, action.size, 0)
    except BaseException:
        os.close(descriptor)
        raise


def _read_file(descriptor: int, action: Read) -> tuple[FileStat, bytes]:
    return facts(os.fstat(descriptor)), os.pread(descriptor, action.size, action.offset)


def _encode(encoder: RecordEncoder, emit: Emit, arrival: int) -> list[bytes]:
    return encoder.encode(
        emit.records,
        arrival,
        min(arrival, emit.mtime_ns // 1000),
        part=emit.part,
        more=emit.more,
        partial=emit.partial,
        at_start=emit.start == 0,
    )
