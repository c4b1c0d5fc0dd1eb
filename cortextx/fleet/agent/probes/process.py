"""One probe's child process, seen from the agent: what it says, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import ProcessProtocol

if TYPE_CHECKING:
    from twisted.python.failure import Failure

STDERR_BYTES = 8192
"""Bytes of stderr that are kept, the first."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended: by an exit code or a signal. `too_much` says that it was
    ended because it said more than it may."""

    output: bytes = field(repr=False)
    stderr: str = field(repr=False)
    exit_code: int | None
    signal: int | None
    too_much: bool


class ProbeProcess(ProcessProtocol):
    """Collects at most `limit` bytes; `ended` is called once, when the process is gone and
    its pipes are closed."""

    def __init__(self, limit: int, ended: Callable[[Ended], Any]) -> None:
        self._limit = limit
        self._tell = ended
        self._out = bytearray()
        self._err = bytearray()
        self._too_much = False
        self._killed = False
        self._pid: int | None = None

    def connectionMade(self) -> None:
        assert self.transport is not None
        self._pid = self.transport.pid
        if self._killed:
            self.kill()

    def give(self, order: bytes) -> None:
        """Tell the process what to do, and that this is all."""
        if self.transport is not None:
            self.transport.write(order)
            self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        if len(self._out) + len(data) > self._limit:
            self._too_much = True
            self.kill()
            return
        self._out += data

    def errReceived(self, data: bytes) -> None:
        self._err += data[: STDERR_BYTES - len(self._err)]

    def processExited(self, reason: Failure) -> None:
        # What the process left behind in its group would hold the pipes.
        self._kill_group()

    def processEnded(self, reason: Failure) -> None:
        self._pid = None
        status = reason.value
        self._tell(
            Ended(
                bytes(self._out),
                self._err.decode(errors="replace"),
                getattr(status, "exitCode", None),
                getattr(status, "signal", None),
                self._too_much,
            )
        )

    def kill(self) -> None:
        """End the process and all of its group, by force."""
        self._killed = True
        if self._pid is None:
            return
        self._kill_group()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
