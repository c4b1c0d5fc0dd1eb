"""What a child writes to its standard error, bounded, as lines of the log."""

from __future__ import annotations

from twisted.logger import Logger

MAX_LINE_BYTES = 1000
MAX_BYTES = 64 * 1024
"""Bytes of a run that are logged; the rest is only counted."""


class Complaints:
    """One run's standard error. Never holds more than a line of MAX_LINE_BYTES."""

    log = Logger()

    def __init__(self, run: str) -> None:
        self._run = run
        self._held = b""
        self._bytes = 0

    def came(self, data: bytes) -> None:
        """Take some of it."""
        room = max(0, MAX_BYTES - self._bytes)
        self._bytes += len(data)
        *lines, rest = (self._held + data[:room]).split(b"\n")
        self._held = rest[:MAX_LINE_BYTES]
        for line in lines:
            self._say(line)

    def ended(self) -> None:
        """Log what is left, and how much was not logged."""
        self._say(self._held)
        self._held = b""
        if self._bytes > MAX_BYTES:
            self.log.info(
                "run {run}: {more} more bytes", run=self._run, more=self._bytes - MAX_BYTES
            )

    def _say(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
        if text:
            self.log.info("run {run}: {text}", run=self._run, text=text)
