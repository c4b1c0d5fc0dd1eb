"""Facts that were decided on and are not durable yet, and what waits for them (PURE).

A fact gets its seq here, when it is decided on. What shall happen because of it (the
start of a run, its end, the answer to a command) waits until its line is on disk (I12).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cortextx.interaction.data import Data
from cortextx.interaction.slave.actions import Append, Resolve, SessionAction
from cortextx.interaction.slave.lines import Beside, Ids, encode_line


class Writing:
    """See the module. `head` is the newest fact, `durable` the newest on disk.

    `wall` gives the time in µs; `flying` counts the bytes on their way to the disk.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self.head = 0
        self.durable = 0
        self.flying = 0
        self._wall = wall
        self._due: deque[tuple[int, SessionAction]] = deque()
        self._groups: deque[tuple[int, int]] = deque()
        self._lines: list[bytes] = []

    def append(self, content: Data, ids: Ids, beside: Beside | None = None) -> int:
        """Decide on a fact; answers its seq. LocalProtocolError if no frame can say it."""
        seq = self.head + 1
        line = encode_line(content, ids, seq=seq, wall=self._wall(), beside=beside)
        self.head = seq
        self._lines.append(line)
        return seq

    def then(self, action: SessionAction) -> None:
        """Let this happen once all facts up to now are durable."""
        self._due.append((self.head, action))

    def group(self) -> Append | None:
        """The facts that were decided on since the last time."""
        if not self._lines:
            return None
        lines, self._lines = self._lines, []
        size = sum(map(len, lines))
        self._groups.append((self.head, size))
        self.flying += size
        return Append(self.head - len(lines) + 1, lines)

    def written(self, head: int) -> list[SessionAction]:
        """All facts up to `head` are durable; answers what waited for them."""
        self.durable = head
        while self._groups and self._groups[0][0] <= head:
            self.flying -= self._groups.popleft()[1]
        due: list[SessionAction] = []
        while self._due and self._due[0][0] <= head:
            due.append(self._due.popleft()[1])
        return due

    def abandon(self) -> list[Resolve]:
        """Nothing more becomes durable; answers the runs' answers that still waited."""
        waited = [action for _, action in self._due if isinstance(action, Resolve)]
        self._due.clear()
        self._lines.clear()
        return waited
