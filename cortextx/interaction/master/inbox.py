"""Events that wait for the application, bounded (PURE).

Text that streams is merged while it waits, and dropped where too much waits: it is
live only, and the message that it grows into is a fact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from cortextx.interaction.data import Delta
from cortextx.interaction.master.events import Event

MAX_BYTES = 8 << 20
MERGED_CHARACTERS = 65_536
EVENT_BYTES = 256
"""What an event counts for beside its content."""


class Inbox:
    """See the module. Sizes are bytes of the frames that the events came in."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._waiting: deque[tuple[Event, int]] = deque()
        self._max_bytes = max_bytes
        self.held = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more than what waits should come."""
        return self.held >= self._max_bytes

    def put(self, event: Event, size: int) -> None:
        """Add an event that came in a frame of `size` bytes."""
        if isinstance(event.content, Delta) and (
            self._merge(event, event.content) or self.held > self._max_bytes // 2
        ):
            return
        self._waiting.append((event, size + EVENT_BYTES))
        self.held += size + EVENT_BYTES

    def _merge(self, event: Event, delta: Delta) -> bool:
        if not self._waiting:
            return False
        last, before = self._waiting[-1]
        if not isinstance(last.content, Delta) or last.run_id != event.run_id:
            return False
        text = last.content.text + delta.text
        if len(text) > MERGED_CHARACTERS:
            return False
        self._waiting[-1] = (replace(last, content=Delta(text)), before + len(delta.text))
        self.held += len(delta.text)
        return True

    def take(self) -> Event | None:
        """The oldest event."""
        if not self._waiting:
            return None
        event, size = self._waiting.popleft()
        self.held -= size
        return event
