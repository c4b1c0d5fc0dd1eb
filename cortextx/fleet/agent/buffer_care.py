"""Looks after the agent's buffer: its fill, its losses, and a disk that fails (F19, F37).

Once a second it lets the sources rest while the buffer fills, tells the server what was
lost, and opens the buffer anew after a failed sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from cortextx.errors import CortexError, StoreFull
from cortextx.fleet.agent.reports import losses_reported

if TYPE_CHECKING:
    from cortextx.fleet.agent.buffer_writer import BufferWriter
    from cortextx.fleet.agent.running import RunningSources

BETWEEN_WORDS = 60.0
"""Seconds between two words to the operator about a buffer without room."""
REOPEN_SECONDS = 10.0
"""How often a buffer that a failed sync has broken is opened anew."""


class BufferCare:
    """See the module; `micros` answers µs UTC."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        buffer: BufferWriter,
        sources: RunningSources,
        micros: Callable[[], int],
    ) -> None:
        self._reactor = reactor
        self._buffer = buffer
        self._sources = sources
        self._micros = micros
        self._reopen_at = 0.0
        self._say_full_at = 0.0

    async def look(self) -> None:
        """Do what is due; raises nothing that the buffer says."""
        status, now = self._buffer.status, self._reactor.seconds()
        if status.full is not None and now >= self._say_full_at:
            self._say_full_at = now + BETWEEN_WORDS
            self.log.warn("nothing more can be buffered for now: {why}", why=status.full)
        try:
            if status.broken is not None and now >= self._reopen_at:
                self._reopen_at = now + REOPEN_SECONDS
                self.log.warn("the buffer is opened anew: {why}", why=status.broken)
                await self._buffer.reopen()
            elif status.losses and status.next_seq is not None and status.broken is None:
                await self._report_losses()
        except StoreFull:
            # That is said above.
            pass
        except CortexError as error:
            self.log.warn("the buffer is in trouble: {why}", why=error)
        if self._buffer.pressure == "ok":
            self._sources.release("buffer")
        elif "buffer" not in self._sources.held_by:
            if status.full is None:
                self.log.warn("the buffer is filling: the sources rest until it is sent")
            self._sources.hold("buffer")

    async def _report_losses(self) -> None:
        """Tell the server what the buffer lost, once (F37)."""
        losses = await self._buffer.losses()
        if losses:
            bodies, mark = losses_reported(losses, self._micros())
            await self._buffer.put(bodies, mark, can_wait=False)
