"""Newline-framed streams, bounded and linear in the bytes received (PURE).

Every byte is searched once for a newline and copied a fixed number of times,
however the stream is cut into chunks. What is held never contains a newline, so
there is nothing to search again.
"""

from __future__ import annotations

from cortextx.errors import FrameTooLong, RemoteProtocolError


class LineFramer:
    r"""Cuts a stream of bytes into lines of at most `limit` bytes, "\n" included.

    Lines come out without their newline; an empty line is `b""`, and a "\r" stays.
    After a fault the framer is dead: it holds nothing and ignores what is fed (I22:
    nothing is resynchronised).
    """

    __slots__ = ("_failed", "_held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = bytearray()
        self._failed = False

    @property
    def pending(self) -> int:
        """Bytes held of a line that is not complete; always below `limit`."""
        return len(self._held)

    @property
    def failed(self) -> bool:
        """Whether a fault ended this stream."""
        return self._failed

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the lines that they complete, in order.

        Raises FrameTooLong as soon as a line cannot fit in `limit`, newline seen
        or not; its `lines` are the lines before the fault, for the caller to
        handle first. Whole and chunked feeding give the same lines and fault.
        """
        if self._failed:
            return []
        if data.find(b"\n") < 0:
            if len(self._held) + len(data) >= self.limit:
                raise self._fault([])
            self._held += data
            return []
        lines = data.split(b"\n")
        rest = lines.pop()
        too_long = len(self._held) + len(lines[0]) >= self.limit
        if self._held and not too_long:
            lines[0] = bytes(self._held) + lines[0]
            self._held.clear()
        if too_long or max(map(len, lines)) >= self.limit or len(rest) >= self.limit:
            raise self._fault([] if too_long else self._before_fault(lines))
        self._held += rest
        return lines

    def close(self) -> None:
        """Note the end of the stream; raises RemoteProtocolError inside a line."""
        incomplete = bool(self._held)
        self._held.clear()
        if incomplete:
            self._failed = True
            raise RemoteProtocolError("the stream ends without a final newline")

    def _before_fault(self, lines: list[bytes]) -> list[bytes]:
        for place, line in enumerate(lines):
            if len(line) >= self.limit:
                return lines[:place]
        return lines

    def _fault(self, lines: list[bytes]) -> FrameTooLong:
        self._failed = True
        self._held.clear()
        return FrameTooLong(self.limit, lines)
