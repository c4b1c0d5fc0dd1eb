"""Which sources run now: the plan carried out, and who holds them back.

Sources rest while anybody says so: the link, when nothing can be sent for long
(F34), or the buffer, when it fills (F19). What they do not read stays where it is.
One that cannot wait (`can_wait` is False: a listener for datagrams) never rests: what
comes meanwhile would be lost, and the buffer has room kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger

from cortextx.errors import CortexError
from cortextx.fleet.agent.sources.report import SourceReport

if TYPE_CHECKING:
    from cortextx.fleet.agent.policy import SourceGroup
    from cortextx.interfaces.fleet import ILogSource

Checkpoints = dict[str, bytes]
MakeSource = Callable[["SourceGroup", Checkpoints], "ILogSource"]


class RunningSources:
    """The sources of one agent, one for each group.

    A group that changes is stopped before it starts anew, with the checkpoints
    of then. Changes are carried out one after the other; the newest wins.
    """

    log = Logger()

    def __init__(self, make: MakeSource, checkpoints: Callable[[], Deferred[Checkpoints]]) -> None:
        self._make = make
        self._checkpoints = checkpoints
        self._running: dict[SourceGroup, ILogSource] = {}
        self._wanted: tuple[SourceGroup, ...] = ()
        self._holds: set[str] = set()
        self._changing: Deferred[None] | None = None
        self._busy = False
        self._ended = False
        self._faults: dict[SourceGroup, str] = {}

    @property
    def running(self) -> tuple[SourceGroup, ...]:
        """What runs."""
        return tuple(self._running)

    @property
    def held_by(self) -> list[str]:
        """Who holds the sources back."""
        return sorted(self._holds)

    def reports(self) -> list[SourceReport]:
        """How those that run and can tell are."""
        told = (getattr(source, "report", None) for source in self._running.values())
        found = [report() for report in told if report is not None]
        for group, why in self._faults.items():
            found.append(SourceReport(group.name, group.kind, "failed", why))
        return found

    def apply(self, wanted: Iterable[SourceGroup]) -> None:
        """Run just these from now on."""
        self._wanted = tuple(wanted)
        if not self._busy and not self._ended:
            self._changing = Deferred.fromCoroutine(self._change())
            self._changing.addErrback(self._failed)

    def hold(self, who: str) -> None:
        """Let the sources rest until `who` releases them."""
        if not self._holds:
            for source in self._running.values():
                _pause(source)
        self._holds.add(who)

    def release(self, who: str) -> None:
        """Take back a `hold`."""
        if who not in self._holds:
            return
        self._holds.discard(who)
        if not self._holds:
            for source in self._running.values():
                if getattr(source, "can_wait", True):
                    source.resume()

    async def stop(self) -> None:
        """Stop all; returns when nothing more will be given to the buffer."""
        self._ended = True
        if self._busy and self._changing is not None:
            await self._changing
        await self._stop(list(self._running))

    async def _change(self) -> None:
        self._busy = True
        try:
            while not self._ended and set(self._wanted) != {*self._running, *self._faults}:
                before = self._wanted
                self._faults = {g: why for g, why in self._faults.items() if g in before}
                await self._stop([group for group in self._running if group not in before])
                checkpoints = await self._checkpoints()
                if not self._ended and self._wanted == before:
                    self._start_missing(checkpoints)
                    break
        finally:
            self._busy = False

    async def _stop(self, which: list[SourceGroup]) -> None:
        stops = [maybeDeferred(self._running.pop(group).stop) for group in which]
        for stopped, failure in await DeferredList(stops, consumeErrors=True):
            if not stopped:
                self.log.failure("a source did not stop cleanly", failure)

    def _start_missing(self, checkpoints: Checkpoints) -> None:
        for group in self._wanted:
            if group in self._running or group in self._faults:
                continue
            try:
                source = self._make(group, checkpoints)
                source.start()
            except CortexError as error:
                self.log.error("source {name} cannot start: {why}", name=group.name, why=error)
                self._faults[group] = f"it cannot start: {error}"
                continue
            except Exception as error:
                self.log.failure("source {name} cannot start", name=group.name)
                self._faults[group] = f"it cannot start: {error}"
                continue
            self._faults.pop(group, None)
            self._running[group] = source
            if self._holds:
                _pause(source)

    def _failed(self, failure: Any) -> None:
        self.log.failure("the sources could not be changed", failure)


def _pause(source: ILogSource) -> None:
    if getattr(source, "can_wait", True):
        source.pause()
