"""What can be wrong with a frame, and the codes of error frames (PURE; I7, I22, I23).

A `FramingFault` ends the connection: the bytes are no frame, and nothing behind
them can be trusted. A `ShapeFault` is a readable frame that breaks a rule, and
carries as much of its correlation as is safe to answer to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from cortextx.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from cortextx.interaction.correlation import Correlation

MAX_FRAME_BYTES = 256 * 1024
"""Bytes of an encoded frame, its newline included; both versions."""

MAX_DEPTH = 127
"""Arrays and objects within one another in a frame, the frame itself included."""


class Code(StrEnum):
    """The codes of v2 error frames (I7)."""

    UNSUPPORTED_VERSION = "unsupported_version"
    BAD_FRAME = "bad_frame"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    UNKNOWN_ATTACHMENT = "unknown_attachment"
    DUPLICATE_ATTACHMENT = "duplicate_attachment"
    LIMIT_EXCEEDED = "limit_exceeded"
    BUSY = "busy"
    SLOW_CONSUMER = "slow_consumer"
    REQUEST_CONFLICT = "request_conflict"
    COMMAND_CONFLICT = "command_conflict"
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_COMMAND = "unknown_command"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_AGENT = "unknown_agent"
    CURSOR_AHEAD = "cursor_ahead"
    INVALID_ACK = "invalid_ack"
    SESSION_LOCKED = "session_locked"
    SESSION_IO = "session_io"
    ORIGIN_LOST = "origin_lost"
    INTERNAL = "internal"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without a change."""
        return self in _RETRYABLE

    @property
    def errno(self) -> str:
        """The errno name that says it to a v1 client."""
        return _ERRNO.get(self, "EINVAL")


_RETRYABLE = frozenset({Code.BUSY, Code.SLOW_CONSUMER, Code.LIMIT_EXCEEDED, Code.SESSION_LOCKED})
_ERRNO = {
    Code.UNSUPPORTED_VERSION: "EPROTONOSUPPORT",
    Code.UNAUTHENTICATED: "EACCES",
    Code.FORBIDDEN: "EACCES",
    Code.LIMIT_EXCEEDED: "EAGAIN",
    Code.BUSY: "EBUSY",
    Code.SLOW_CONSUMER: "EAGAIN",
    Code.UNKNOWN_RUN: "ESRCH",
    Code.UNKNOWN_SESSION: "ENOENT",
    Code.UNKNOWN_AGENT: "ENOENT",
    Code.CURSOR_AHEAD: "ERANGE",
    Code.SESSION_LOCKED: "EBUSY",
    Code.SESSION_IO: "EIO",
    Code.ORIGIN_LOST: "ECANCELED",
    Code.INTERNAL: "EIO",
}


class FrameFault(RemoteProtocolError):
    """A peer's frame is refused.

    `field` is the path at fault and `expected` what should stand there: words of
    ours that never repeat the peer's, fit to be sent back.
    """

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


class FramingFault(FrameFault):
    """The bytes are not one line of UTF-8 JSON within the bounds (I22).

    `too_long` says that it is for their number.
    """

    def __init__(self, field: str, expected: str, *, too_long: bool = False) -> None:
        super().__init__(field, expected)
        self.too_long = too_long


class ShapeFault(FrameFault):
    """A readable frame is not one of this ABI, or not one for its sender (I23).

    `correlation` is the longest prefix that an error may safely be answered with,
    or None where not even the connection is told (then the stream ends too).
    """

    def __init__(self, field: str, expected: str, correlation: Correlation | None = None) -> None:
        super().__init__(field, expected)
        self.correlation = correlation


class RequestFault(FrameFault):
    """A v1 frame or flat line is readable, but wrong.

    `request_id` is the request's where it could be told; `errno` names the error.
    """

    errno = "EINVAL"

    def __init__(self, field: str, expected: str, request_id: str | None = None) -> None:
        super().__init__(field, expected)
        self.request_id = request_id


class IllegalFrame(LocalProtocolError, ValueError):
    """A frame was put together that the ABI forbids.

    Out of our own code it is a bug. It is a ValueError so that the JSON border
    turns it into a JsonShapeError where a peer's frame is decoded.
    """


def content(line: bytes) -> bytes:
    """The JSON text of a line; raises FramingFault unless it is one line within bounds."""
    if len(line) > MAX_FRAME_BYTES:
        raise too_long()
    if line.find(b"\n") != len(line) - 1 or not line:
        raise FramingFault("$", "one JSON value and exactly one newline behind it")
    return line[:-1]


def too_long() -> FramingFault:
    """The fault of a line that exceeds the bound, complete or not."""
    return FramingFault("$", f"a frame of at most {MAX_FRAME_BYTES} bytes", too_long=True)
