"""Programs at a terminal of their own: what they print is waited for, what is typed is sent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from unittest import TestCase

SECONDS = 20.0
ROWS, COLUMNS = 40, 100
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ERASED = re.compile(r"\x1b\[0?J")
_CURSOR_ASKED = b"\x1b[6n"


def own_terminal() -> None:
    """In the child: the terminal on stdin is the one that ^C comes from."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A process at a pseudo-terminal; it ends with the test."""

    def __init__(self, test: TestCase, args: Sequence[str], env: Mapping[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            list(args),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **env},
            preexec_fn=own_terminal,  # nothing here has threads
        )
        os.close(slave)
        self.raw = b""
        self._looked = 0
        test.addCleanup(self.end)

    @property
    def text(self) -> str:
        """What was printed so far; of control sequences only erasing counts, as a new line."""
        text = _ERASED.sub("\n", self.raw.decode("utf-8", "replace"))
        return _ESCAPE.sub("", text).replace("\r", "")

    def send(self, text: str) -> None:
        """Type."""
        os.write(self.master, text.encode())

    def line(self, text: str) -> None:
        """Type a line and Enter."""
        self.send(text + "\r")

    def expect(self, wanted: str, seconds: float = SECONDS) -> str:
        """Wait for a text after what was found before; answers what came up to its end."""
        end = time.monotonic() + seconds
        while True:
            found = self.text.find(wanted, self._looked)
            if found >= 0:
                before, self._looked = self._looked, found + len(wanted)
                return self.text[before : self._looked]
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"{wanted!r} did not come, but: {self.text[self._looked :]!r}")

    def quiet(self, seconds: float) -> str:
        """What comes in so many seconds."""
        before = len(self.text)
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            pass
        return self.text[before:]

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for its end; answers its exit code (-N for a signal)."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"it goes on, after: {self.text[-1000:]!r}")
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.master)

    def _read(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65_536)
        except OSError:
            return False
        self.raw += data
        if _CURSOR_ASKED in data:
            os.write(self.master, b"\x1b[1;1R")  # as a terminal answers
        return bool(data)
