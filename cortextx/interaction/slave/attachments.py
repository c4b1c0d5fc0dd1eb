"""One reader of a session: its cursor, its window of unacknowledged facts, its queue (PURE).

Each walks the log by itself: facts are read when there is room for them, so that a
reader that is slow holds its own page and nothing else (I17, I32, I34). Live content
waits behind the facts that it follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cortextx.interaction.data import Attach
from cortextx.interaction.slave.actions import Facts
from cortextx.interaction.v2 import Capability, Frame
from cortextx.interfaces.sessions import AttachClaim, Mode, SessionKey

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
        if not self.may_read:
            return None
        lines = self._max_lines
        if self._window is not None:
            lines = min(lines, self._window - len(self._unacked))
        self.is_reading = True
        return self.read, lines, max(1, self._max_bytes - self.queued)

    @property
    def may_read(self) -> bool:
        """Whether there is more to read, and room for it.

        Live content that waits for facts takes no room from them: it would wait for ever.
        """
        return (
            self.read < self.head
            and not self.is_reading
            and len(self._pages) < 2
            and not self.is_full
            and (self.queued < self._max_bytes or not self.has_output)
        )

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
            size += self._many(room - size, taken)
            if size >= room:
                break
            frame = self._next()
            if frame is None:
                break
            taken.append(frame)
            size += len(frame)
        self.queued -= size
        return b"".join(taken)

    def _many(self, room: int, taken: list[bytes]) -> int:
        """Take what is in the first page at once, where nothing comes in between."""
        if not self._pages or self._control:
            return 0
        page = self._pages[0]
        if self._live and self._live[0].behind <= page.last:
            return 0
        size, at, frames = 0, page.at, page.frames
        while size < room and at < len(frames):
            size += len(frames[at])
            at += 1
        if at > page.at:
            taken.extend(frames[page.at : at])
            self.position = page.seqs[at - 1]
            page.at = at
        if at == len(frames):
            self._end_page(page)
        return size

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

    @property
    def is_full(self) -> bool:
        """Whether as many facts wait for an acknowledgement as may."""
        return self._window is not None and len(self._unacked) >= self._window

    @property
    def has_more(self) -> bool:
        """Whether anything is to be sent, be it read already or not."""
        return self.has_output or self.read < self.head

    def is_blocked(self, paused: bool) -> bool:
        """Whether it waits for its reader: for an ack, or, if `paused`, for room."""
        return (self.is_full and self.read < self.head) or (paused and self.has_more)

    def drop(self) -> None:
        """Forget all that waits."""
        self._pages.clear()
        self._control.clear()
        self._live.clear()
        self.queued = 0


@dataclass(slots=True, eq=False)
class Attachment:
    """A logical session attachment; `walk` is there once it is attached.

    `generation` is that of the rules which it was judged by, `own` the newest requests
    that it sent, `fetching` the number of old facts that are being read for it.
    """

    id: str
    asker: int
    key: SessionKey
    claim: AttachClaim
    place: Attach
    mode: Mode
    capabilities: tuple[Capability, ...]
    generation: int
    walk: Walk | None = None
    waiting: list[Frame] = field(default_factory=list)
    own: dict[str, None] = field(default_factory=dict)
    fetching: int = 0
    counted: int = 0
    reserved: int = 0
    is_ready: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether it may have facts of others' requests."""
        return "observe" in self.capabilities or "replay" in self.capabilities
