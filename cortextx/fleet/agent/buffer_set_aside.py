"""The side file of the agent's buffer: entries that the server will never take (PURE, F25).

One JSON object a line, so that it can be read with any tool. A line that a crash
cut short is closed off and not counted; an entry that is set aside again after a
crash is not written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from cortextx.fleet.agent.disk import Disk

SIDE_FILE = "set-aside.jsonl"
MAX_SIDE_BYTES = 64 * 2**20
"""Beyond this the side file takes only the beginning of each body."""
CUT_BYTES = 256
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class SetAsideEntry:
    """One entry that was set aside; `body` is its JSON without seq and opening brace.

    In the side file bytes that are not UTF-8 are escaped as `\\xNN`.
    """

    position: int
    seq: int
    reason: str
    body: bytes


class _Line(msgspec.Struct):
    position: int
    seq: int
    reason: str
    body: str


class SideFile:
    """The side file of one buffer. Errors are OSErrors."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def add(self, entry: SetAsideEntry) -> None:
        """Append an entry; durable on return."""
        new = SIDE_FILE not in self._disk.names()
        file = self._disk.create(SIDE_FILE) if new else self._disk.open(SIDE_FILE)
        try:
            end = file.size()
            if end and any(last.position == entry.position for last in self.newest(1)):
                return
            body = entry.body if end < MAX_SIDE_BYTES else entry.body[:CUT_BYTES]
            text = body.decode("utf-8", "backslashreplace")
            line = _Line(entry.position, entry.seq, entry.reason, text)
            torn = end > 0 and file.read_at(end - 1, 1) != b"\n"
            data = b"\n" * torn + msgspec.json.encode(line) + b"\n"
            try:
                file.write_at(end, [data])
                file.sync()
            except OSError:
                file.truncate(end)
                raise
        finally:
            file.close()
        if new:
            self._disk.sync_directory()

    def newest(self, limit: int) -> list[SetAsideEntry]:
        """The newest entries, oldest first; damaged lines are passed over."""
        found: list[SetAsideEntry] = []
        for text in self._lines_backwards():
            if len(found) >= limit:
                break
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.MsgspecError:
                continue
            body = line.body.encode()
            found.append(SetAsideEntry(line.position, line.seq, line.reason, body))
        return found[::-1]

    def _lines_backwards(self) -> Iterator[bytes]:
        if SIDE_FILE not in self._disk.names():
            return
        file = self._disk.open(SIDE_FILE)
        try:
            start = file.size()
            pieces: list[bytes] = []
            while start > 0:
                size = min(_CHUNK, start)
                start -= size
                head, *rest = file.read_at(start, size).split(b"\n")
                if rest:
                    yield b"".join([rest[-1], *reversed(pieces)])
                    yield from reversed(rest[:-1])
                    pieces = [head]
                else:
                    pieces.append(head)
            yield b"".join(reversed(pieces))
        finally:
            file.close()
