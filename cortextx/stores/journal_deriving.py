"""When a journal's derived files are brought up to date: after a pause, off the hot path.

A round reads the log on a thread for long work, so neither appends nor readers wait
for it. The next one comes no sooner than ten times as long as the last one took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.journal_lanes import Lanes
from cortextx.stores.journal_log import Log
from cortextx.stores.session_derived import derive
from cortextx.stores.session_index import updated

DERIVE_AFTER = 1.0
"""Seconds after a change."""
PAUSE = 10
"""How many times as long as the last round took the next one is put off."""


class DerivingReactor(Protocol):
    """What of the reactor is used."""

    def callFromThread(self, callable: Callable[..., object], *args: object) -> None: ...

    def callLater(self, delay: float, callable: Callable[..., Any]) -> IDelayedCall: ...

    def seconds(self) -> float: ...


class Deriving:
    """The rounds of one journal. Methods are for the reactor's thread."""

    log = Logger()

    def __init__(
        self,
        reactor: DerivingReactor,
        lanes: Lanes,
        log: Log,
        key: SessionKey,
        index: str,
        after: float,
    ) -> None:
        self._reactor = reactor
        self._lanes = lanes
        self._log = log
        self._key = key
        self._index = index
        self._after = after
        self._delayed: IDelayedCall | None = None
        self._dirty = False
        self._running = False
        self._took = 0.0
        self._waiting: Deferred[None] | None = None

    def changed(self) -> None:
        """Note that the log has grown."""
        self._dirty = True
        if self._delayed is None and not self._running and self._waiting is None:
            delay = max(self._after, self._took * PAUSE)
            self._delayed = self._reactor.callLater(delay, self._round)

    def finish(self) -> Deferred[None]:
        """Do the last round, if one is due; fires when none is going on."""
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        if not self._dirty and not self._running:
            return succeed(None)
        self._waiting = Deferred()
        if not self._running:
            self._round()
        return self._waiting

    def _round(self) -> None:
        self._delayed = None
        self._dirty = False
        self._running = True
        begun = self._reactor.seconds()

        def answered(_: None, error: Exception | None) -> None:
            self._running = False
            self._took = self._reactor.seconds() - begun
            if error is not None:
                self.log.warn("{path} is not derived: {why}", path=self._log.path, why=error)
            if self._waiting is None:
                if self._dirty:
                    self.changed()
            elif self._dirty:
                self._round()
            else:
                self._waiting.callback(None)

        self._lanes.long(self._derive, answered)

    def _derive(self) -> None:
        saved = derive(self._log, self._log.directory, self._key)
        if saved is not None:
            updated(self._index, self._key.session, saved.cwd)
