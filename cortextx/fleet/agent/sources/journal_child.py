"""One `journalctl` as a child process: what it writes, bounded, until it ends.

It ends with the agent, whatever becomes of that: a `journalctl --follow` watches its
stdout, whose reader is gone then. Its stdin is empty, its environment small.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

HIGH_BYTES = 1_048_576
"""Bytes that wait to be taken at most, and one read: then the child waits for the pipe."""
PIPE_BYTES = 524_288
MAX_ERRORS = 4096
KILL_AFTER = 3.0
"""Seconds that the child has to end when told to."""
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_URLIFY": "0"}


class JournalChild(ProcessProtocol):
    """The reading end. `arrived` is called when there is something to `take`, `gone` once
    with what was written to stderr when it has ended and all was read."""

    def __init__(
        self, reactor: Any, arrived: Callable[[], None], gone: Callable[[bytes], None]
    ) -> None:
        self._reactor = reactor
        self._arrived = arrived
        self._gone = gone
        self._chunks: list[bytes] = []
        self._pausing = False
        self._kill: Any = None
        self._ending = False
        self.held = 0
        self.received = 0
        self.errors = b""
        self.ended = False

    def spawn(self, command: list[str]) -> None:
        """Start it; raises OSError if that is impossible."""
        program = shutil.which(command[0])
        if program is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        env = {**ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath)}
        self._reactor.spawnProcess(
            self, program, command, env=env, childFDs={0: "w", 1: "r", 2: "r"}
        )

    def connectionMade(self) -> None:
        """Twisted's name: it runs."""
        assert self.transport is not None
        self.transport.closeStdin()
        # With room in the pipe, it goes on while a thread works on what it wrote.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._pipe().fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def outReceived(self, data: bytes) -> None:
        """Twisted's name."""
        if self._ending:
            return
        self._chunks.append(data)
        self.held += len(data)
        self.received += len(data)
        if self.held >= HIGH_BYTES and not self._pausing:
            self._pausing = True
            self._pipe().stopReading()
        self._arrived()

    def errReceived(self, data: bytes) -> None:
        """Twisted's name."""
        self.errors = (self.errors + data)[-MAX_ERRORS:]

    def processEnded(self, reason: Failure) -> None:
        """Twisted's name: it ended and its pipes are closed."""
        self.ended = True
        if self._kill is not None and self._kill.active():
            self._kill.cancel()
        self._gone(self.errors)

    def take(self, size: int) -> list[bytes]:
        """About `size` bytes of what was read, at least one chunk if there is any."""
        taken, total = [], 0
        for chunk in self._chunks:
            taken.append(chunk)
            total += len(chunk)
            if total >= size:
                break
        del self._chunks[: len(taken)]
        self.held -= total
        if self._pausing and self.held < HIGH_BYTES // 2 and not self.ended:
            self._pausing = False
            self._pipe().startReading()
        return taken

    def end(self) -> None:
        """Tell it to end, and make it."""
        if self.ended or self._kill is not None:
            return
        self._chunks, self.held, self._ending = [], 0, True
        if self._pausing:
            # Else its end would never be seen.
            self._pausing = False
            self._pipe().startReading()
        self._signal("TERM")
        self._kill = self._reactor.callLater(KILL_AFTER, self._signal, "KILL")

    def forget(self) -> None:
        """Nobody wants to know any more of it."""
        self._arrived = lambda: None
        self._gone = lambda errors: None

    def outConnectionLost(self) -> None:
        """Twisted's name: stdout is closed, so nothing can be paused any more."""
        self._pausing = False

    def _pipe(self) -> Any:
        transport: Any = self.transport
        return transport.pipes[1]

    def _signal(self, name: str) -> None:
        assert self.transport is not None
        with contextlib.suppress(ProcessExitedAlready):
            self.transport.signalProcess(name)
