"""A service that is started step by step, undone backwards, and ends the process if it fails.

What the two services that `twistd` runs have in common. Each step that was taken is
put on a list with what undoes it; stopping, and a start that fails, go through the
list from its end. Nothing of the server's or the agent's is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger

from cortextx.app.process import end_process, tell_systemd
from cortextx.errors import CortexError, in_words


class SteppedService(Service):
    """See the module. A subclass gives `begin`, whose steps it notes with `undo_by`.

    `started` fires when `begin` calls it back. `fail` is called with the reactor and
    the reason of a failed start, by default to end the process with exit code 1.
    `what` names the service in messages; undoing one step takes `patience` seconds
    at most.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        plugin: str,
        what: str,
        patience: float,
        fail: Callable[[Any, str], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._what = what
        self._patience = patience
        self._fail = partial(end_process, plugin) if fail is None else fail
        self._starting: Deferred[None] | None = None
        self._undo: list[tuple[str, Callable[[], Any]]] = []
        self.started: Deferred[None] = Deferred()

    async def begin(self) -> None:
        """Take all the steps, and call `started` back."""
        raise NotImplementedError

    def undo_by(self, what: str, step: Callable[[], Any]) -> None:
        """A step was taken; `step` undoes it, now or by a Deferred."""
        self._undo.append((what, step))

    def startService(self) -> None:
        super().startService()
        self._starting = Deferred.fromCoroutine(self.begin())
        self._starting.addErrback(self._start_failed)
        self._starting.addErrback(lambda failure: self.log.failure("starting failed", failure))

    def stopService(self) -> Deferred[None]:
        """Undo all that was done, the newest first; fires when it is done."""
        super().stopService()
        tell_systemd("STOPPING=1")
        starting, self._starting = self._starting, None
        if starting is not None and not starting.called:
            starting.cancel()
        return Deferred.fromCoroutine(self._undo_all())

    async def _undo_all(self) -> None:
        undo, self._undo = self._undo[::-1], []
        for what, step in undo:
            done = maybeDeferred(step)
            done.addTimeout(self._patience, self._reactor)
            try:
                await done
            except Exception:
                self.log.failure("{what} could not be stopped cleanly", what=what)

    def _start_failed(self, failure: Any) -> Deferred[None]:
        if failure.check(CancelledError):
            # Stopped while it started.
            return Deferred.fromCoroutine(self._undo_all())
        if isinstance(failure.value, CortexError):
            message = str(failure.value)
        else:
            self.log.failure("the {what} cannot start", failure, what=self._what)
            message = f"the {self._what} cannot start: {in_words(failure.value)}"
        return Deferred.fromCoroutine(self._give_up(message))

    async def _give_up(self, message: str) -> None:
        await self._undo_all()
        if self.running:
            self._fail(self._reactor, message)
