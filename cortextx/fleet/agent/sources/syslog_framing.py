"""Cuts a syslog stream into messages: octet counting and newlines, RFC 6587 (PURE).

A message longer than `PART_BYTES` comes out in parts, so that none needs more memory than
that and nothing is cut off (F17). Parts end at character boundaries.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from cortextx.errors import RemoteProtocolError

PART_BYTES = 65_536
"""Bytes of one part, and so at most as many characters."""
MAX_FRAME = 16 * 2**20
"""The longest octet-counted frame; a count beyond it is a fault in the framing."""
COUNT_DIGITS = 8

Framing = Literal["auto", "octet-counting", "newline"]


class Frame(NamedTuple):
    """A message, or part `part` (from 1) of a long one; `more`: it goes on.

    `partial`: the stream ended inside it.
    """

    data: bytes
    part: int = 0
    more: bool = False
    partial: bool = False


class FramingFault(RemoteProtocolError):
    """The stream is framed as no syslog stream is; nothing can be resynchronised.

    `frames` are the good ones before it in the same bytes.
    """

    def __init__(self, why: str, frames: list[Frame]) -> None:
        super().__init__(why)
        self.frames = frames


class SyslogFramer:
    """One stream's framing. "auto": the first bytes decide, for the whole stream.

    Octet counting begins `COUNT SP <`; anything else is newlines. Memory is bounded by
    one part plus what one `feed` brings, and work is linear in the bytes.
    """

    __slots__ = ("_ended", "_framing", "_held", "_left", "_limit", "_part")

    def __init__(self, framing: Framing = "auto", limit: int = PART_BYTES) -> None:
        self._framing = framing
        self._limit = max(limit, 16)
        self._held = bytearray()
        self._left = 0
        self._part = 0
        self._ended = False

    @property
    def pending(self) -> int:
        """Bytes held of a message that is not complete."""
        return len(self._held)

    @property
    def framing(self) -> Framing:
        """What the stream was found to be."""
        return self._framing

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes and return the messages and parts that they complete.

        Raises FramingFault, after which whatever is fed is ignored.
        """
        if self._ended:
            return []
        self._held += data
        fresh = self._framing == "auto"
        if fresh:
            self._decide()
        if self._framing == "newline":
            # Most of what is held was searched before.
            quiet = len(self._held) <= self._limit and b"\n" not in data and not fresh
            return [] if quiet else self._lines()
        if self._framing == "octet-counting":
            quiet = 0 < len(self._held) < min(self._left, self._limit + 1)
            return [] if quiet else self._counted()
        return []

    def close(self) -> list[Frame]:
        """The end of the stream: what is there of an unfinished message."""
        if self._ended:
            return []
        self._ended = True
        rest = bytes(self._held)
        self._held.clear()
        counted = self._framing == "octet-counting"
        if not (self._part or rest) or (counted and not self._left):
            return []
        return [Frame(rest, self._part + 1 if self._part else 0, partial=True)]

    def _decide(self) -> None:
        digits = 0
        held = self._held
        while digits < min(len(held), COUNT_DIGITS + 1) and 48 <= held[digits] <= 57:
            digits += 1
        undecided = len(held) == digits or (len(held) == digits + 1 and held[digits] == 32)
        if 0 < digits <= COUNT_DIGITS and undecided:
            return
        counted = 0 < digits <= COUNT_DIGITS and held[digits : digits + 2] == b" <"
        if held:
            self._framing = "octet-counting" if counted else "newline"

    def _lines(self) -> list[Frame]:
        frames: list[Frame] = []
        *lines, rest = bytes(self._held).split(b"\n")
        for line in lines:
            while len(line) > self._limit:
                size = self._cut(line)
                frames.append(self._next(line[:size], more=True))
                line = line[size:]
            if line or self._part:
                frames.append(self._next(line, more=False))
        while len(rest) > self._limit:
            size = self._cut(rest)
            frames.append(self._next(rest[:size], more=True))
            rest = rest[size:]
        self._held[:] = rest
        return frames

    def _counted(self) -> list[Frame]:
        frames: list[Frame] = []
        held = bytes(self._held)
        at = 0
        while True:
            if not self._left:
                size, at = self._count(held, at, frames)
                if not size:
                    break
                self._left = size
            here = len(held) - at
            if here >= self._left and self._left <= self._limit:
                frame = held[at : at + self._left]
                at += self._left
                self._left = 0
                frames.append(self._next(frame, more=False))
            elif here > self._limit:
                size = self._cut(held[at : at + self._limit + 1])
                frames.append(self._next(held[at : at + size], more=True))
                at += size
                self._left -= size
            else:
                break
        self._held[:] = held[at:]
        return frames

    def _count(self, held: bytes, at: int, frames: list[Frame]) -> tuple[int, int]:
        """A frame's count and where it begins; (0, at) if the count is not all there."""
        # Some senders end each counted frame with a newline that they do not count.
        while held[at : at + 1] == b"\n":
            at += 1
        end = held.find(b" ", at, at + COUNT_DIGITS + 1)
        digits = held[at : at + COUNT_DIGITS + 1] if end < 0 else held[at:end]
        if digits and not (digits.isdigit() and digits[0] != 48):
            self._fault("a frame does not begin with a count", frames)
        if end < 0:
            if len(digits) > COUNT_DIGITS:
                self._fault("a frame's count is too long", frames)
            return 0, at
        if not digits:
            self._fault("a frame does not begin with a count", frames)
        size = int(digits)
        if size > MAX_FRAME:
            self._fault(f"a frame of {size} bytes", frames)
        return size, end + 1

    def _fault(self, why: str, frames: list[Frame]) -> None:
        self._ended = True
        self._held.clear()
        raise FramingFault(why, frames)

    def _next(self, data: bytes, *, more: bool) -> Frame:
        part = self._part + 1 if more or self._part else 0
        self._part = part if more else 0
        return Frame(data, part, more)

    def _cut(self, data: bytes) -> int:
        """Where to end a part of at most `_limit` bytes: not inside a character."""
        size = self._limit
        while size > self._limit - 3 and data[size] & 0xC0 == 0x80:
            size -= 1
        return size if data[size] & 0xC0 != 0x80 else self._limit
