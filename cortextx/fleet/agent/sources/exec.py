"""Commands whose output is logs: run without a shell, in a group of their own, for good.

Standard output is read as lines of any form, standard error as lines of severity err. A
command that ends is started again, after failures later each time. While the buffer takes
nothing the command waits in its own writes. It ends with the agent, however that ends.
"""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.custom_settings import ExecSettings
from cortextx.fleet.agent.sources.feed import Feed
from cortextx.fleet.agent.sources.guard import MARK, Guard
from cortextx.fleet.agent.sources.piped import LineEncoder, PipeReader
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.interfaces.fleet import ILogSource

LONGEST_PAUSE = 300.0
STEADY_SECONDS = 60.0
"""A command that ran for so long is no repeated failure."""
DRAIN_SECONDS = 5.0
TAIL_SECONDS = 1.0
"""How long output is waited for once a command and its group have ended."""
POLL_SECONDS = 0.25
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@implementer(ILogSource)
class ExecSource:
    """One command that is kept running; only an agent's own configuration has such (F18)."""

    log = Logger()
    can_wait = True

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: ExecSettings,
        put: Callable[..., Deferred[Any]],
        checkpoints: Callable[[], Mapping[str, bytes]] = dict,
        *,
        compose: Callable[..., bytes | None] = encode_body,
        wall: Callable[[], float] = time.time,
        spawn: Callable[[ExecSettings], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.name = name
        self._source = f"custom:{name}"
        self._reactor = reactor
        self._settings = settings
        self._compose = compose
        self._wall = wall
        self._spawn = spawn or popen
        self._guard: Guard | None = None
        if spawn is None:
            self._guard = Guard()
        self._feed = Feed(reactor, name, put, can_wait=True, on_room=self._read_or_not)
        self._run: Run | None = None
        self._running = False
        self._held = False
        self._timer: Any = None
        self._pause = settings.restart_secs
        self._why: str | None = None
        self._rests = False
        self._ended: Deferred[None] | None = None
        self._counters = {"bytes": 0, "starts": 0, "failures": 0, "ended_by_rules": 0}

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`."""
        self._running = True
        self._begin()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`: SIGTERM to the group, and SIGKILL when time is up."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._running = False
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._run is not None:
            self._ended = Deferred()
            self._run.end(self._settings.stop_secs)
            self._read_or_not()
            await self._ended
        if self._guard is not None:
            await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), self._guard.close)
        await self._feed.drain(DRAIN_SECONDS)

    def pause(self) -> None:
        """See `ILogSource.pause`: the command waits once its pipe is full."""
        self._held = True
        self._read_or_not()

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._held = False
        self._read_or_not()

    def report(self) -> SourceReport:
        """How the command is."""
        state: SourceState = "running" if self._run is not None else "waiting"
        if self._held:
            state = "paused"
        details: dict[str, Any] = {"type": "exec", "command": self._settings.command[0]}
        details["at_rest"] = self._run is None and self._rests
        if self._run is not None:
            details["pid"] = self._run.pid
        counters = {**self._counters, "entries": self._feed.entries}
        return SourceReport(
            self.name, "custom", state, self._why or self._feed.why, counters, details
        )

    # -- one run -----------------------------------------------------------------------

    def _begin(self) -> None:
        settings, mark = self._settings, secrets.token_hex(8)
        if self._guard is not None:
            settings = replace(settings, environment=(*settings.environment, (MARK, mark)))
        try:
            process = self._spawn(settings)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._again(f"cannot start: {error}", failed=True)
            return
        if self._guard is not None:
            self._guard.watch(process.pid, mark)
        self._counters["starts"] += 1
        self._run = Run(self._reactor, process, self._encoders(process.pid), self)
        self._read_or_not()

    def _encoders(self, pid: int) -> tuple[LineEncoder, LineEncoder]:
        made = []
        for severity in (None, "err"):
            encoder = LineEncoder(
                self._source,
                zone=self._settings.zone,
                form=self._settings.format,
                part_bytes=self._settings.part_bytes,
                severity=severity,
                compose=self._compose,
            )
            encoder.app_name = os.path.basename(self._settings.command[0])
            encoder.process_id = str(pid)
            made.append(encoder)
        return made[0], made[1]

    def received(self, size: int, bodies: list[bytes]) -> None:
        """Output has come, `size` bytes of it."""
        self._counters["bytes"] += size
        self._feed.give(bodies)
        self._read_or_not()

    def ending(self) -> None:
        """The command has ended and is about to be reaped."""
        if self._guard is not None:
            self._guard.release()
            self._guard.sweep()

    def exited(self, status: int, ran: float) -> None:
        """The command has ended and all that it wrote was read; `ran` in seconds."""
        run, self._run = self._run, None
        if run is not None:
            self._counters["ended_by_rules"] += run.ended_by_rules
        if self._ended is not None:
            self._ended.callback(None)
            return
        if ran >= STEADY_SECONDS:
            self._pause = self._settings.restart_secs
        why = ended_how(status)
        if status:
            body = self._compose(
                ts=int(self._wall() * 1e6),
                severity="warning",
                message=f"the command {why} after {ran:.1f} s",
                source=self._source,
                app_name="cortex-agent",
                metadata={"cortextx": {"exec": {"status": status, "ran_secs": round(ran, 3)}}},
            )
            self._feed.give([] if body is None else [body])
        self._again(f"the command {why}", failed=status != 0)

    def _again(self, why: str, failed: bool) -> None:
        """Start it again after a pause."""
        pause = self._pause if failed else self._settings.restart_secs
        self._pause = min(pause * 2, LONGEST_PAUSE) if failed else self._settings.restart_secs
        self._counters["failures"] += failed
        if failed:
            self.log.warn("{name}: {why}; again in {s:.0f} s", name=self.name, why=why, s=pause)
        self._why, self._rests = why, not failed
        if self._running:
            self._timer = self._reactor.callLater(pause, self._begin)

    def _read_or_not(self) -> None:
        if self._run is not None:
            # One that is to end must not be stuck in a write.
            self._run.read(self._ended is not None or not (self._held or self._feed.full))


class Run:
    """One process: its pipes, its end, and its group's."""

    def __init__(
        self,
        reactor: Any,
        process: subprocess.Popen[bytes],
        encoders: tuple[LineEncoder, LineEncoder],
        owner: ExecSource,
    ) -> None:
        self.pid = process.pid
        self._reactor = reactor
        self._process = process
        self._owner = owner
        self._encoders = encoders
        self._began = reactor.seconds()
        self._status: int | None = None
        self._over = False
        self._timer: Any = None
        self._readers: list[PipeReader] = []
        assert process.stdout is not None and process.stderr is not None
        for pipe, encoder in zip((process.stdout, process.stderr), encoders, strict=True):
            descriptor = os.dup(pipe.fileno())
            pipe.close()
            self._readers.append(self._reader(descriptor, encoder))
        self._watch: ExitWatch | None = None
        try:
            self._watch = ExitWatch(reactor, os.pidfd_open(process.pid), self._looked)
        except OSError:
            self._looked()

    @property
    def ended_by_rules(self) -> int:
        """Lines that rules dropped."""
        return sum(encoder.ended_by_rules for encoder in self._encoders)

    def read(self, reading: bool) -> None:
        """Read the pipes, or let the process wait."""
        for reader in self._readers:
            if reading:
                reader.startReading()
            else:
                reader.stopReading()

    def end(self, seconds: float) -> None:
        """SIGTERM to the group, SIGKILL after `seconds`."""
        if self._status is None:
            self._signal(signal.SIGTERM)
            if self._timer is not None and self._timer.active():
                self._timer.cancel()
            self._timer = self._reactor.callLater(seconds, self._kill)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._watch is None:
            self._looked()

    def _signal(self, number: int) -> None:
        # Only before the process is reaped, so the group is its own and nobody else's.
        if self._status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _reader(self, descriptor: int, encoder: LineEncoder) -> PipeReader:
        def received(data: bytes) -> None:
            arrival = int(self._owner._wall() * 1e6)
            self._owner.received(len(data), encoder.feed(data, arrival))

        def ended() -> None:
            self._readers = [one for one in self._readers if one.fileno() >= 0]
            self._owner.received(0, encoder.close(int(self._owner._wall() * 1e6)))
            self._done()

        return PipeReader(self._reactor, descriptor, received, ended)

    def _looked(self) -> None:
        """The process has ended, or may have."""
        if self._status is not None:
            return
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # Somebody else has reaped it: its group may be another's by now.
            self._status = self._process.returncode = 0
        else:
            if found is None:
                self._timer = self._reactor.callLater(POLL_SECONDS, self._looked)
                return
            self._owner.ending()
            self._signal(signal.SIGKILL)  # what is left of its group ends with it
            self._status = self._process.wait()
        if self._watch is not None:
            self._watch.close()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.read(True)
        self._timer = self._reactor.callLater(TAIL_SECONDS, self._close)
        self._done()

    def _close(self) -> None:
        for reader in list(self._readers):
            reader.close()

    def _done(self) -> None:
        if self._status is None or self._readers:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if not self._over:
            self._over = True
            self._owner.exited(self._status, self._reactor.seconds() - self._began)


class ExitWatch(FileDescriptor):
    """A descriptor of a process, which is readable once that has ended."""

    connected = 1

    def __init__(self, reactor: Any, descriptor: int, on_exit: Callable[[], None]) -> None:
        super().__init__(reactor)
        self._descriptor = descriptor
        self._on_exit = on_exit
        self.startReading()

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._descriptor

    def doRead(self) -> None:
        """The process has ended."""
        self._on_exit()

    def close(self) -> None:
        """Watch no more."""
        if self._descriptor >= 0:
            self.stopReading()
            os.close(self._descriptor)
            self._descriptor = -1

    def connectionLost(self, reason: Failure) -> None:
        """See `FileDescriptor.connectionLost`."""
        self.close()


def popen(settings: ExecSettings) -> subprocess.Popen[bytes]:
    """Start a command: a session of its own, few variables, no descriptors of ours (S1)."""
    home = "/"
    more: Any = {}
    if settings.user is not None:
        try:
            person = pwd.getpwnam(settings.user)
        except KeyError:
            raise ValueError(f"there is no user {settings.user}") from None
        home = person.pw_dir
        if person.pw_uid != os.geteuid():
            more = {
                "user": person.pw_uid,
                "group": person.pw_gid,
                "extra_groups": os.getgrouplist(settings.user, person.pw_gid),
            }
    return subprocess.Popen(  # noqa: S603
        settings.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=settings.directory,
        env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": home, **dict(settings.environment)},
        start_new_session=True,
        close_fds=True,
        umask=0o077,
        **more,
    )


def ended_how(status: int) -> str:
    """Words for a status as `Popen` has it: negative for a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
