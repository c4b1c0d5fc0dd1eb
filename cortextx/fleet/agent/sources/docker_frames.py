"""The Engine API's log stream as frames: stdcopy's multiplexed form, and that of a TTY (PURE).

Every frame, with timestamps asked for, is `TIME SP CONTENT`; the content of a line's last
frame ends in a newline, that of the pieces before (16 KiB each) does not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_FRAME = 4 * 2**20
"""Bytes of one frame; Docker's have 16 KiB and a time."""
PIECE = 16_384
"""Bytes after which a daemon cuts a long line."""
STREAMS = {1: "stdout", 2: "stderr"}

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")


class DockerFault(Exception):
    """The daemon sent what is no log stream; the text says what."""


class Frame(NamedTuple):
    """`stream` is stdout or stderr, `time` as the daemon wrote it, `content` what follows."""

    stream: str
    time: bytes
    content: bytes


def _frame(stream: str, payload: bytes) -> Frame:
    found = _TIME.match(payload)
    if found is None:
        raise DockerFault(f"a log line without a time: {payload[:40]!r}")
    end = found.end()
    return Frame(stream, payload[: end - 1], payload[end:])


class Multiplexed:
    """Takes stdcopy's form apart: eight bytes (stream, three zeros, big-endian length),
    then the payload. Raises DockerFault for anything else."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._data)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now."""
        buffer = self._data
        buffer += data
        frames = []
        at, end = 0, len(buffer)
        while end - at >= 8:
            kind, size = buffer[at], int.from_bytes(buffer[at + 4 : at + 8], "big")
            if kind > 3 or any(buffer[at + 1 : at + 4]) or size > MAX_FRAME:
                raise DockerFault(f"no frame: {bytes(buffer[at : at + 8])!r}")
            if end - at - 8 < size:
                break
            payload = bytes(buffer[at + 8 : at + 8 + size])
            at += 8 + size
            if kind == 3:
                raise DockerFault(payload[:200].decode("utf-8", "replace"))
            if payload:
                frames.append(_frame(STREAMS.get(kind, "stdout"), payload))
        del buffer[:at]
        return frames


class Terminal:
    """Takes a TTY's form apart: lines, where a long one has a time before each piece."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0

    @property
    def pending(self) -> int:
        """Bytes of a line that has not ended."""
        return len(self._data)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now: whole lines, and full pieces of long ones."""
        buffer = self._data
        buffer += data
        frames: list[Frame] = []
        at = 0
        while True:
            size = self._complete(at)
            if size == 0:
                break
            frame = _frame("stdout", bytes(buffer[at : at + size]))
            if frame.content.endswith(b"\r\n"):
                frame = frame._replace(content=frame.content[:-2] + b"\n")
            frames.append(frame)
            at += size
            self._searched = at
        del buffer[:at]
        self._searched -= at
        if len(buffer) > MAX_FRAME:
            raise DockerFault("a line that does not end")
        return frames

    def _complete(self, at: int) -> int:
        """The size of the frame at `at`; 0 if more is needed."""
        buffer = self._data
        found = _TIME.match(buffer, at)
        if found is None:
            if len(buffer) - at > 40:
                raise DockerFault(f"a log line without a time: {bytes(buffer[at : at + 40])!r}")
            return 0
        end = found.end() + PIECE
        newline = buffer.find(b"\n", max(at, self._searched), end + 1)
        if newline >= 0:
            return newline + 1 - at
        if len(buffer) >= end + 36 and _TIME.match(buffer, end):
            return end - at
        if len(buffer) < end + 36:
            self._searched = max(at, min(len(buffer), end))
            return 0
        # A daemon that does not cut there.
        newline = buffer.find(b"\n", end)
        return 0 if newline < 0 else newline + 1 - at
