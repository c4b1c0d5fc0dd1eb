"""One reader of a session: its cursor, its window of unacknowledged facts, its queue (PURE).

Each walks the log by itself: facts are read when there is room for them, so that a
reader that is slow holds its own page and nothing else (I17, I32, I34). Live content
waits behind the facts that it follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cortextx.interaction.slave.actions import Facts

LIVE_SHARE = 2
"""Live content that may be dropped is, once this part of the room is taken."""


@dataclass(slots=True)
class _Page:
    seqs: Sequence[int]
    frames: Sequence[bytes]
    last: int
    at: int = 0


@dataclass(slots=True)
class _Live:
    behind: int
    frame: bytes


class Walk:
    """See the module. Sizes are in bytes of encoded frames.

    `read` is the newest fact that was read, `position` the newest that was taken for
    sending (or passed over), `acked` the newest that was acknowledged. Without a
    `window` nothing waits for acks.
    """

    def __init__(
        self,
        *,
        cursor: int,
        head: int,
        window: int | None,
        max_bytes: int,
        max_lines: int,
    ) -> None:
        self.head = head
        self.position = cursor
        self.acked = cursor
        self.queued = 0
        self.is_reading = False
        self.blocked_since: float | None = None
        self.read = cursor
        self._window = window
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._unacked: deque[int] = deque()
        self._pages: deque[_Page] = deque()
        self._control: deque[bytes] = deque()
        self._live: deque[_Live] = deque()

    # What is to be read

    def wants(self) -> tuple[int, int, int] | None:
        """What to read next, as (after, lines, bytes), or None; it counts as being read."""
        lines = self._max_lines
        if self._window is not None:
            lines = min(lines, self._window - len(self._unacked))
        room = self._max_bytes - self.queued
        if (
            self.is_reading
            or len(self._pages) > 1
            or self.read >= self.head
            or lines <= 0
            or room <= 0
        ):
            return None
        self.is_reading = True
        return self.read, lines, room

    def page_read(
        self, facts: Facts, frames: Sequence[bytes], seqs: Sequence[int], gap: bytes | None
    ) -> None:
        """Take what was read: `frames` have these `seqs`, others are passed over.

        `gap` is the frame that tells of facts that retention took (I9).
        """
        self.is_reading = False
        last = facts.first + len(facts.lines) - 1
        if last <= self.read:
            return
        if gap is not None:
            self._put_page(_Page((facts.first - 1,), (gap,), facts.first - 1))
        self._put_page(_Page(seqs, frames, last))
        if self._window is not None:
            self._unacked.extend(seqs)
            if not self._unacked:
                self.acked = last
        self.read = last

    def _put_page(self, page: _Page) -> None:
        self._pages.append(page)
        self.queued += sum(map(len, page.frames))

    # What is to be sent

    def put(self, frame: bytes) -> None:
        """A frame that waits for no fact."""
        self._control.append(frame)
        self.queued += len(frame)

    def put_live(self, frame: bytes, behind: int, droppable: bool) -> bool:
        """A frame that follows the fact `behind`; answers False if it was dropped."""
        if droppable and self.queued + len(frame) > self._max_bytes // LIVE_SHARE:
            return False
        self._live.append(_Live(behind, frame))
        self.queued += len(frame)
        return True

    @property
    def is_over(self) -> bool:
        """Whether more waits than may."""
        return self.queued > self._max_bytes

    @property
    def has_output(self) -> bool:
        """Whether `take` would give anything."""
        if self._control or self._pages:
            return True
        return bool(self._live) and self._live[0].behind <= self.position

    def take(self, room: int) -> bytes:
        """Frames in order, until `room` bytes are reached."""
        taken: list[bytes] = []
        size = 0
        while size < room:
            frame = self._next()
            if frame is None:
                break
            taken.append(frame)
            size += len(frame)
        self.queued -= size
        return b"".join(taken)

    def _next(self) -> bytes | None:
        if self._control:
            return self._control.popleft()
        if self._live and self._live[0].behind <= self.position:
            return self._live.popleft().frame
        while self._pages:
            page = self._pages[0]
            if page.at < len(page.frames):
                frame = page.frames[page.at]
                self.position = page.seqs[page.at]
                page.at += 1
                if page.at == len(page.frames):
                    self._end_page(page)
                return frame
            self._end_page(page)
            if self._live and self._live[0].behind <= self.position:
                return self._live.popleft().frame
        return None

    def _end_page(self, page: _Page) -> None:
        self.position = page.last
        self._pages.popleft()

    # Acknowledgements and slowness

    def ack(self, seq: int) -> bool:
        """Take a cumulative acknowledgement; False if it is backwards or too far (I32)."""
        if not self.acked <= seq <= self.position:
            return False
        self.acked = seq
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
        return True

    def is_blocked(self, paused: bool) -> bool:
        """Whether it waits for its reader: for an ack, or, if `paused`, for room."""
        if self._window is not None and len(self._unacked) >= self._window:
            return self.read < self.head
        return paused and self.has_output

    def drop(self) -> None:
        """Forget all that waits."""
        self._pages.clear()
        self._control.clear()
        self._live.clear()
        self.queued = 0
