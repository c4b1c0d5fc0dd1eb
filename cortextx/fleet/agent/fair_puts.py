"""The way from the sources to the buffer, which one noisy source cannot fill (A43).

Every source has a queue of its own. The queues take turns by bytes, and only a little
is with the buffer at once, so a source that has much to say waits for its own words
only. What can wait (F19) and what cannot are two rounds: the buffer keeps back the
former while it fills, and must not keep back the latter with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, fail

from cortextx.errors import StoreFull

QUANTUM = 65_536
"""Bytes that a source may add to its turn each time that one comes round."""
AHEAD = 524_288
"""Bytes of a round that are with the buffer at most, beyond one put."""
MAX_WAITING = 16 * 2**20
"""Bytes of one source that may wait; beyond it a put fails with StoreFull."""
OVERHEAD = 128

Checkpoints = Mapping[str, "bytes | None"]
Give = Callable[..., "Deferred[Any]"]


class _Put(NamedTuple):
    bodies: Sequence[bytes]
    checkpoints: Checkpoints
    size: int
    done: Deferred[Any]


class _Queue:
    """One source's puts; `credit` is the bytes that it may still give in this turn."""

    __slots__ = ("bytes", "credit", "puts")

    def __init__(self) -> None:
        self.puts: deque[_Put] = deque()
        self.bytes = 0
        self.credit = 0


class _Round:
    """Sources that take turns (deficit round robin)."""

    def __init__(self, give: Give, can_wait: bool) -> None:
        self._give = give
        self._can_wait = can_wait
        self._queues: dict[str, _Queue] = {}
        self._turns: deque[str] = deque()
        self._ahead = 0
        self._busy = False

    def put(self, source: str, bodies: Sequence[bytes], checkpoints: Checkpoints) -> Deferred[Any]:
        size = sum(map(len, bodies)) + OVERHEAD * (1 + len(checkpoints))
        if not self._turns and self._ahead + size <= AHEAD:
            # Nobody waits: there is nothing to be fair about.
            return self._hand_over(bodies, checkpoints, size)
        queue = self._queues.get(source)
        if queue is None:
            queue = self._queues[source] = _Queue()
        if queue.puts and queue.bytes + size > MAX_WAITING:
            return fail(StoreFull(f"too much of {source} waits for the buffer"))
        if not queue.puts:
            queue.credit = 0
            self._turns.append(source)
        put = _Put(bodies, checkpoints, size, Deferred())
        queue.puts.append(put)
        queue.bytes += size
        self._go_on()
        return put.done

    def waiting(self, source: str) -> int:
        queue = self._queues.get(source)
        return 0 if queue is None else queue.bytes

    def _hand_over(
        self, bodies: Sequence[bytes], checkpoints: Checkpoints, size: int
    ) -> Deferred[Any]:
        self._ahead += size
        return self._give(bodies, checkpoints, can_wait=self._can_wait).addBoth(self._done, size)

    def _done(self, result: Any, size: int) -> Any:
        self._ahead -= size
        self._go_on()
        return result

    def _go_on(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._turns and self._ahead < AHEAD:
                self._turn()
        finally:
            self._busy = False

    def _turn(self) -> None:
        """Give what the first source's credit allows; then it is another's turn."""
        source = self._turns[0]
        queue = self._queues[source]
        queue.credit += QUANTUM
        while queue.puts and queue.puts[0].size <= queue.credit:
            if self._ahead >= AHEAD:
                # It goes on here, without more credit.
                queue.credit -= QUANTUM
                return
            put = queue.puts.popleft()
            queue.credit -= put.size
            queue.bytes -= put.size
            self._hand_over(put.bodies, put.checkpoints, put.size).chainDeferred(put.done)
        self._turns.popleft()
        if queue.puts:
            self._turns.append(source)
        else:
            del self._queues[source]


class FairPuts:
    """All sources' ways to `give`, which is the buffer writer's `put`."""

    def __init__(self, give: Give) -> None:
        self._patient = _Round(give, can_wait=True)
        self._urgent = _Round(give, can_wait=False)

    def way(self, source: str) -> Give:
        """One source's `put(bodies, checkpoints, can_wait=True)`; it fires, or fails, as the
        writer's does. Puts of one kind keep their order."""

        def put(
            bodies: Sequence[bytes], checkpoints: Checkpoints, can_wait: bool = True
        ) -> Deferred[Any]:
            chosen = self._patient if can_wait else self._urgent
            return chosen.put(source, bodies, checkpoints)

        return put

    def waiting(self, source: str) -> int:
        """Bytes of a source that wait for their turn."""
        return self._patient.waiting(source) + self._urgent.waiting(source)
