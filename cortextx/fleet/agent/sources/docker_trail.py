"""Frames of one container as records: partials joined, what was read before passed (PURE).

A container's log is read again from the time of the last frame that is in the buffer
(`since` includes it), separately for stdout and stderr. Frames are passed until that
very frame has come: its time to the nanosecond, and as many of that time as were read.
If a later one comes first, the daemon has removed what was between: a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from cortextx.fleet.agent.sources.docker_frames import Frame
from cortextx.fleet.contract import MAX_MESSAGE_CHARS

MAX_JOINED = 4 * MAX_MESSAGE_CHARS
"""Bytes of one line that are held; a longer one is given in parts (F17)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def nanos(time: bytes) -> int:
    """ns since 1970 of a daemon's RFC 3339 time. Raises ValueError."""
    text = time.decode("ascii")
    whole = text[:19]
    rest = text[19:]
    fraction = 0
    if rest.startswith("."):
        digits = rest[1:10] if rest.endswith("Z") else rest[1:-6]
        digits = digits.rstrip("Z")
        fraction = int(digits.ljust(9, "0"))
        rest = rest[1 + len(digits) :]
    moment = datetime.fromisoformat(whole + ("+00:00" if rest == "Z" else rest))
    return (moment - _EPOCH) // _SECOND * 1_000_000_000 + fraction


def since_text(at: int) -> str:
    """ns as the API's `since`: seconds, a point, nine digits."""
    return f"{at // 1_000_000_000}.{at % 1_000_000_000:09d}"


class StreamMark(msgspec.Struct, omit_defaults=True):
    """How far a stream is in the buffer: the last frame's time (ns), how many frames of
    that time; `high`, the highest time, where the clock went back; `part`, the parts of
    an unfinished line that were given."""

    at: int
    count: int = 1
    high: int = 0
    part: int = 0


class ContainerMark(msgspec.Struct, omit_defaults=True):
    """A container's checkpoint: a mark a stream, and the time (ns) of the first start."""

    begin: int = 0
    streams: dict[str, StreamMark] = {}


def decode_mark(data: bytes | None) -> ContainerMark | None:
    """What a checkpoint says; None for one that cannot be read."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=ContainerMark)
    except (msgspec.MsgspecError, UnicodeError):
        return None


@dataclass(frozen=True, slots=True)
class Joined:
    """A line, or a part of one: `part` is the number of its first part (0: it is whole),
    `more` says that it goes on, `partial` that it ended without a newline."""

    stream: str
    time: bytes
    text: bytes = field(repr=False)
    part: int = 0
    more: bool = False
    partial: bool = False


@dataclass(slots=True)
class _Stream:
    mark: StreamMark | None
    wanted: StreamMark | None
    passed: int = 0
    held: list[bytes] = field(default_factory=list)
    size: int = 0
    first: bytes = b""
    frames: list[int] = field(default_factory=list)
    part: int = 0
    due: float = 0.0


class ContainerTrail:
    """One following of a container's log. `timeout` is for partials, in seconds.

    `patient`: the clock was set back, so frames are passed whatever their time until the
    wanted one comes, or `nothing_more` is said.
    """

    def __init__(self, mark: ContainerMark, *, timeout: float = 5.0, patient: bool = False) -> None:
        self._begin = mark.begin
        self._timeout = timeout
        self._patient = patient
        self._streams: dict[str, _Stream] = {
            name: _Stream(found if found.count else None, found, part=found.part)
            for name, found in mark.streams.items()
        }
        self.repeated = 0
        self.gaps = 0
        """Gaps that were found and not reported yet; the reader sets it to 0."""

    @property
    def mark(self) -> ContainerMark:
        """What is read and was given: a checkpoint once the buffer has it."""
        streams = {}
        for name, stream in self._streams.items():
            if stream.mark is not None:
                streams[name] = stream.mark
            elif stream.frames:
                # Nothing was given yet, but this must be read again.
                streams[name] = StreamMark(stream.frames[0], 0)
        return ContainerMark(self._begin, streams)

    def take(self, frame: Frame, now: float) -> list[Joined]:
        """What a frame completes. Raises ValueError for a time that is none."""
        at = nanos(frame.time)
        stream = self._streams.get(frame.stream)
        if stream is None:
            stream = self._streams[frame.stream] = _Stream(None, None)
        if stream.wanted is not None and self._was_read(stream, at):
            self.repeated += 1
            return []
        content = frame.content
        if not stream.frames:
            stream.first = frame.time
            stream.due = now + self._timeout
        stream.frames.append(at)
        if content.endswith(b"\n"):
            stream.held.append(content[:-1])
            return [self._give(frame.stream, stream)]
        stream.held.append(content)
        stream.size += len(content)
        if stream.size > MAX_JOINED:
            return [self._give(frame.stream, stream, more=True)]
        return []

    def time_passed(self, now: float) -> list[Joined]:
        """Give what waited too long for its line's end."""
        return [
            self._give(name, stream, more=True)
            for name, stream in self._streams.items()
            if stream.frames and now >= stream.due
        ]

    def ended(self) -> list[Joined]:
        """The container stopped: what has no newline gets none."""
        return [
            self._give(name, stream, partial=True)
            for name, stream in self._streams.items()
            if stream.held
        ]

    def nothing_more(self) -> None:
        """No older frame will come: those that were wanted are not there any more."""
        for stream in self._streams.values():
            if stream.wanted is not None and stream.passed < stream.wanted.count:
                stream.wanted = None
                self.gaps += 1

    @property
    def seeking(self) -> bool:
        """Whether a frame that was read is still looked for."""
        return any(stream.wanted is not None for stream in self._streams.values())

    def _was_read(self, stream: _Stream, at: int) -> bool:
        wanted = stream.wanted
        assert wanted is not None
        if wanted.count == 0 and at >= wanted.at:
            stream.wanted = None
            return False
        if at == wanted.at:
            stream.passed += 1
            if stream.passed >= wanted.count:
                stream.wanted = None
            return True
        if at < wanted.at or self._patient or at <= wanted.high:
            return True
        stream.wanted = None
        if stream.passed < wanted.count:
            self.gaps += 1
        return False

    def _give(
        self, name: str, stream: _Stream, more: bool = False, partial: bool = False
    ) -> Joined:
        text = b"".join(stream.held)
        kept = b""
        if more:
            kept = _unfinished(text)
            text = text[: len(text) - len(kept)]
        first, part = stream.first, stream.part
        if more or part:
            part = part or 1
        parts = max(1, -(-_characters(text) // MAX_MESSAGE_CHARS)) if more else 0
        stream.part = part + parts if more else 0
        mark = stream.mark
        for at in stream.frames:
            mark = _advanced(mark, at)
        assert mark is not None
        stream.mark = StreamMark(mark.at, mark.count, mark.high, stream.part)
        stream.held, stream.size, stream.frames = [], 0, []
        if kept:
            stream.held, stream.size = [kept], len(kept)
        return Joined(name, first, text, part, more, partial)


def _advanced(mark: StreamMark | None, at: int) -> StreamMark:
    if mark is None:
        return StreamMark(at)
    if at == mark.at:
        return StreamMark(at, mark.count + 1, mark.high)
    if at < mark.at:
        return StreamMark(at, 1, max(mark.high, mark.at))
    return StreamMark(at, 1, mark.high if mark.high > at else 0)


def _characters(text: bytes) -> int:
    return len(text.decode("utf-8", "surrogateescape"))


def _unfinished(text: bytes) -> bytes:
    """The first bytes of a UTF-8 character at the end of `text`."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            size = 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
            return text[len(text) - back :] if size > back else b""
    return b""
