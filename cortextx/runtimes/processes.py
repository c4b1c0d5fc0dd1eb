"""One child process of a run, with all that it started, from birth to the last of it.

Its own session and process group, only the descriptors that are named here, a clean
environment, the owner's identity (S1; see `runtimes.launch`). It ends by itself or is
told to, and `ended` fires once nothing of it is left, whatever it forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.runtimes.launch import STATUS_FD
from cortextx.runtimes.remains import RECEIPT_VARIABLE

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

DRAIN_SECONDS = 1.0
"""How long the output of a process that has ended may take to come to its end."""
STATUS_BYTES = 1000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAUNCHER = str(Path(__file__).with_name("launch.py"))
_FDS = {0: "w", 1: "r", 2: "r", STATUS_FD: "r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start: `command` as a list, never through a shell.

    `owner` is the UID to run as; `cwd` must really lie below `root`. `environment` is
    all that the child gets beside PATH, LANG, HOME, USER, LOGNAME, PWD and the receipt.
    """

    command: Sequence[str]
    owner: int
    cwd: str
    root: str
    receipt: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: with a code, by a signal, or never begun, and why (`refusal`)."""

    code: int | None = None
    signal: int | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.refusal is not None:
            return f"it could not be started ({self.refusal})"
        if self.signal is not None:
            return f"it was ended by signal {self.signal}"
        return f"it ended with code {self.code}"


class Receiver(Protocol):
    """Who hears a child."""

    def output_came(self, data: bytes) -> None:
        """Take what it wrote to its standard output."""

    def complaint_came(self, data: bytes) -> None:
        """Take what it wrote to its standard error."""


def may_run_as(owner: int) -> bool:
    """Whether this process can start children as that UID (S1)."""
    return os.geteuid() in (0, owner)


@implementer(IPushProducer)
class _Input:
    """Knows whether a child reads what it is told."""

    full = False

    def pauseProducing(self) -> None:
        self.full = True

    def resumeProducing(self) -> None:
        self.full = False

    def stopProducing(self) -> None:
        self.full = False


class ChildProcess(ProcessProtocol):
    """A child from `start` until `ended` fires, which it does once and never fails.

    `end_remains` ends what else carries the receipts given.
    """

    log = Logger()
    transport: Any

    def __init__(
        self,
        reactor: Any,
        launch: Launch,
        receiver: Receiver,
        end_remains: Callable[[Sequence[str]], Deferred[None]],
        killpg: Callable[[int, int], None] = os.killpg,
    ) -> None:
        self.ended: Deferred[Ended] = Deferred()
        self._reactor = reactor
        self._launch = launch
        self._receiver = receiver
        self._end_remains = end_remains
        self._killpg = killpg
        self._pid: int | None = None
        self._exit: Failure | None = None
        self._status = b""
        self._open = set(_FDS) - {0}
        self._remains_gone = False
        self._paused = False
        self._input = _Input()
        self._force: IDelayedCall | None = None
        self._drain: IDelayedCall | None = None

    @property
    def is_over(self) -> bool:
        """Whether `ended` has fired."""
        return self.ended.called

    @property
    def input_is_full(self) -> bool:
        """Whether much of what was written to it is still unread."""
        return self._input.full

    def start(self) -> None:
        """Start it. Whatever is wrong is told by `ended`."""
        owner = self._launch.owner
        if not may_run_as(owner):
            self._refuse(f"this slave cannot run as uid {owner}")
            return
        uid = "-" if owner == os.geteuid() else str(owner)
        launch = [sys.executable, "-I", "-S", _LAUNCHER, uid, self._launch.cwd, self._launch.root]
        try:
            self._reactor.spawnProcess(
                self,
                sys.executable,
                [*launch, *self._launch.command],
                env=self._environment(),
                childFDs=_FDS,
            )
        except (OSError, ValueError, TypeError) as error:
            self._refuse(str(error))

    def write(self, data: bytes) -> None:
        """Write to its standard input; lost once that is closed."""
        if self._pid is not None and self.transport is not None:
            self.transport.write(data)

    def close_input(self) -> None:
        """Close its standard input behind what was written."""
        if self._pid is not None and self.transport is not None:
            self.transport.unregisterProducer()
            self.transport.closeStdin()

    def pause(self) -> None:
        """Read its output no more; it waits once the pipe is full."""
        self._paused = True
        if self.transport is not None:
            self.transport.pauseProducing()
        if self._drain is not None and self._drain.active():
            self._drain.cancel()
            self._drain = None

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self.transport is not None:
            self.transport.resumeProducing()
        self._settle()

    def end(self, grace: float) -> None:
        """Ask its group to end (SIGTERM), and kill it `grace` seconds later (B23).

        Its output is read on. Asked again, only a grace of 0 makes a difference.
        """
        if self._paused:
            self.resume()
        if self._pid is None or self._exit is not None:
            return
        if grace > 0 and self._force is not None:
            return
        if grace > 0:
            self._signal(signal.SIGTERM)
            self._force = self._reactor.callLater(grace, self._kill)
        else:
            self._kill()

    # From the process

    def connectionMade(self) -> None:
        self._pid = self.transport.pid
        self.transport.registerProducer(self._input, True)
        if self._paused:
            self.transport.pauseProducing()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        if childFD == 1:
            self._receiver.output_came(data)
        elif childFD == 2:
            self._receiver.complaint_came(data)
        else:
            self._status += data[: STATUS_BYTES - len(self._status)]

    def childConnectionLost(self, childFD: int) -> None:
        self._open.discard(childFD)
        self._settle()

    def processExited(self, reason: Failure) -> None:
        """The first of its group is gone; so must the rest be now, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._killpg(self._pid or 0, signal.SIGKILL)
        self._exit = reason
        if self._force is not None and self._force.active():
            self._force.cancel()
        self._end_remains([self._launch.receipt]).addBoth(self._remains_ended)

    # The end

    def _remains_ended(self, _result: object) -> None:
        self._remains_gone = True
        self._settle()

    def _settle(self) -> None:
        """Fire `ended` once nothing is left alive and all output was read."""
        if not self._remains_gone or self.ended.called:
            return
        if self._open:
            if self._drain is None and not self._paused:
                self._drain = self._reactor.callLater(DRAIN_SECONDS, self._give_up_output)
            return
        if self._drain is not None and self._drain.active():
            self._drain.cancel()
        self._close_pipes()
        assert self._exit is not None
        self.ended.callback(self._read(self._exit))

    def _give_up_output(self) -> None:
        self.log.warn("the output of a process that ended does not end")
        self._open.clear()
        self._settle()

    def _close_pipes(self) -> None:
        if self.transport is not None:
            self.transport.loseConnection()
            self.transport.closeChildFD(STATUS_FD)

    def _read(self, reason: Failure) -> Ended:
        if self._status:
            return Ended(refusal=self._status.decode("utf-8", "replace"))
        match reason.value:
            case ProcessDone():
                return Ended(code=0)
            case ProcessTerminated(exitCode=code, signal=number):
                return Ended(code=code, signal=number)
        return Ended(refusal=reason.getErrorMessage())

    def _refuse(self, why: str) -> None:
        self.ended.callback(Ended(refusal=why))

    # Signals

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pid is None or self._exit is not None:
            return
        try:
            self._killpg(self._pid, number)
        except ProcessLookupError:
            # It leads no group yet, for it is not far enough to have forked.
            with contextlib.suppress(Exception):
                self.transport.signalProcess(number)
        except PermissionError:
            self.log.failure("a child's group may not be signalled")

    def _environment(self) -> dict[str, str]:
        own = {"PATH": PATH, "LANG": "C.UTF-8", **self._launch.environment}
        return {**own, RECEIPT_VARIABLE: self._launch.receipt}
