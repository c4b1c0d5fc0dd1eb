"""What waits to be sent on one connection: whose turn it is, how much, for how long (PURE).

Attachments are served in turn, some bytes each (I17). What waits here, and what the
transport may still hold, is bounded for each attachment and for all together (I16);
facts are read only where there is room for them, so that many replays at once wait for
each other instead of going beyond the bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cortextx.interaction.data import Limits
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.slave.attachments import Attachment

QUANTUM = 32_768
"""Bytes that an attachment is sent before it is the next one's turn."""
PAGE_BYTES = 262_144


class Outbound:
    """See the module. Times are in seconds; `slow_seconds` is how long a reader may stop."""

    def __init__(self, limits: Limits, slow_seconds: float) -> None:
        self.is_paused = False
        self._limit = limits.max_outbound_bytes_per_connection
        self._share = self._limit // 4 * 3
        self._slow = slow_seconds
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._turns: deque[Attachment] = deque()  # those that have output
        self._served: list[Attachment] = []
        self._starved: dict[Attachment, None] = {}
        self._blocked: set[Attachment] = set()
        self._waiting = 0  # bytes that wait in attachments
        self._reserved = 0  # bytes that are being read
        self._handed = 0
        self._paused_since: float | None = None

    @property
    def queued(self) -> int:
        """Bytes that wait here, and those that the transport may still hold (I16)."""
        return self._control_bytes + self._handed + self._waiting

    @property
    def is_over(self) -> bool:
        """Whether more waits than the connection may have."""
        return self.queued > self._limit

    @property
    def has_control(self) -> bool:
        """Whether a frame of the connection itself waits."""
        return bool(self._control)

    @property
    def deadline(self) -> float | None:
        """When somebody will have been slow for too long."""
        since = [
            each.walk.blocked_since
            for each in self._blocked
            if each.walk is not None and each.walk.blocked_since is not None
        ]
        first = min(since, default=None)
        times = [] if first is None else [first + self._slow]
        if self._paused_since is not None:
            times.append(self._paused_since + 2 * self._slow)
        return min(times, default=None)

    # What is put in

    def put(self, frame: bytes) -> None:
        """A frame of the connection itself, or of no attachment that is there."""
        self._control.append(frame)
        self._control_bytes += len(frame)

    def changed(self, attachment: Attachment) -> None:
        """Keep count of what waits in an attachment, and of who has output."""
        walk = attachment.walk
        assert walk is not None
        self._waiting += walk.queued - attachment.counted
        attachment.counted = walk.queued
        if walk.has_output and not attachment.is_ready:
            attachment.is_ready = True
            self._turns.append(attachment)

    def removed(self, attachment: Attachment) -> None:
        """Forget all that waits in it."""
        if attachment.walk is not None:
            attachment.walk.drop()
            self.changed(attachment)
        if attachment.is_ready:
            self._turns.remove(attachment)
            attachment.is_ready = False
        self.was_read(attachment)
        self._starved.pop(attachment, None)
        self._blocked.discard(attachment)

    # What is to be read

    def wanted(self, attachment: Attachment) -> tuple[int, int, int] | None:
        """What to read next for it, as (after, lines, bytes), or None for now."""
        if attachment.walk is None:
            return None
        held = self.queued + self._reserved
        if held and held + MAX_FRAME_BYTES > self._share and self._is_moving:
            if attachment.walk.may_read:
                self._starved[attachment] = None
            return None
        wanted = attachment.walk.wants()
        if wanted is None:
            return None
        after, lines, room = wanted
        size = min(room, PAGE_BYTES)
        attachment.reserved = max(size, min(MAX_FRAME_BYTES, self._share))
        self._reserved += attachment.reserved
        return after, lines, size

    @property
    def _is_moving(self) -> bool:
        """Whether something is on its way that will make room.

        Else all that waits is live content behind facts that are to be read first.
        """
        return bool(self._turns or self._control or self._reserved or self._handed)

    def was_read(self, attachment: Attachment) -> None:
        """What was wanted for it is there."""
        self._reserved -= attachment.reserved
        attachment.reserved = 0

    # To the transport

    def take(self, may_have: Callable[[Attachment], bool]) -> bytes:
        """What is to be written next: one part of one attachment's frames, or nothing.

        `may_have` is asked before each; it removes one that may not.
        """
        while True:
            if self._control:
                sent = b"".join(self._control)
                self._control.clear()
                self._control_bytes = 0
                self._handed += len(sent)
                return sent
            if not self._turns:
                return b""
            attachment = self._turns[0]
            if not may_have(attachment):
                continue
            self._turns.popleft()
            attachment.is_ready = False
            walk = attachment.walk
            assert walk is not None
            before = walk.position
            sent = walk.take(QUANTUM)
            if walk.position > before or not walk.is_full:
                walk.blocked_since = None
            self.changed(attachment)
            self._served.append(attachment)
            if sent:
                self._handed += len(sent)
                return sent

    def sent(self) -> list[Attachment]:
        """All was written that could be; answers those for whom there may be room now."""
        hungry = [*self._served, *self._starved]
        self._served.clear()
        self._starved.clear()
        if not self.is_paused:
            self._handed = 0
        return hungry

    def paused(self, now: float) -> None:
        """The transport takes no more for now."""
        self.is_paused = True
        self._paused_since = now
        for attachment in self._turns:
            self.watch(attachment, now)

    def resumed(self) -> None:
        """The transport has sent all it had."""
        self.is_paused = False
        self._paused_since = None
        self._handed = 0
        for attachment in list(self._blocked):  # the master reads, if slowly
            walk = attachment.walk
            if walk is not None and not walk.is_full:
                walk.blocked_since = None
                self._blocked.discard(attachment)

    # Slowness (I34)

    def watch(self, attachment: Attachment, now: float) -> None:
        """Note since when an attachment waits for its master."""
        walk = attachment.walk
        if walk is None:
            return
        if not walk.is_blocked(self.is_paused):
            walk.blocked_since = None
            self._blocked.discard(attachment)
            return
        self._blocked.add(attachment)
        if walk.blocked_since is None:
            walk.blocked_since = now

    def slow(self, now: float) -> list[Attachment]:
        """Those that were slow for too long."""
        found = []
        for attachment in list(self._blocked):
            self.watch(attachment, now)
            walk = attachment.walk
            since = None if walk is None else walk.blocked_since
            if since is not None and now - since >= self._slow:
                found.append(attachment)
        return found

    def is_stuck(self, now: float) -> bool:
        """Whether the transport has taken nothing for far too long."""
        since = self._paused_since
        return since is not None and now - since >= 2 * self._slow
