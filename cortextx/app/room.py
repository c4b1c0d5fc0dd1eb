"""Starting on a full disk: what needs room is tried again until there is some.

A server that is up, though it stores nothing, answers searches, drops old segments by
its retention and tells agents to wait; one that ends does none of it, and its service
manager may give up starting it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from cortextx.app.process import tell_systemd
from cortextx.app.store_made import cannot_open
from cortextx.errors import StoreError, StoreFull

RETRY_SECONDS = 5.0
"""How long to wait between two attempts."""

log = Logger()


class OpeningStore:
    """Makes and starts a store, for as long as it takes; `stop` stops what there is of it."""

    def __init__(self, reactor: Any, path: str, make: Callable[[Any, str], Any]) -> None:
        self._reactor = reactor
        self._path = path
        self._make = make
        self._store: Any = None

    async def open(self) -> Any:
        """The store, started; raises StoreError where it is not for want of room."""
        while True:
            store = self._store = self._make(self._reactor, self._path)
            try:
                await store.start()
            except StoreFull as error:
                log.error(
                    "{why}; trying again every {seconds:.0f} s, nothing is served until then",
                    why=cannot_open(self._path, error),
                    seconds=RETRY_SECONDS,
                )
                tell_systemd(
                    f"STATUS=waiting for room on the disk of {self._path}\n"
                    f"EXTEND_TIMEOUT_USEC={round(4e6 * RETRY_SECONDS)}"
                )
                self._store = None
                await store.stop()
                await pause(self._reactor, RETRY_SECONDS)
            except StoreError as error:
                raise cannot_open(self._path, error) from error
            else:
                return store

    def stop(self) -> Any:
        """Stop the store, if there is one; fires when it has stopped."""
        return None if self._store is None else self._store.stop()


class WrittenLater:
    """A small file that is written now, or as soon as there is room for it."""

    def __init__(self, reactor: Any, what: str, write: Callable[[], None]) -> None:
        self._reactor = reactor
        self._what = what
        self._write = write
        self._call: IDelayedCall | None = None

    def begin(self) -> None:
        """Write it, or begin to try."""
        again, self._call = self._call is not None, None
        try:
            self._write()
        except OSError as error:
            if not again:
                log.error(
                    "{what} cannot be written: {why}; trying again every {seconds:.0f} s. Next:"
                    " make room on its disk",
                    what=self._what,
                    why=error.strerror or type(error).__name__,
                    seconds=RETRY_SECONDS,
                )
            self._call = self._reactor.callLater(RETRY_SECONDS, self.begin)
        else:
            if again:
                log.info("{what} is written", what=self._what)

    def stop(self) -> None:
        """Try no longer."""
        if self._call is not None:
            self._call.cancel()
            self._call = None


def pause(reactor: Any, seconds: float) -> Deferred[None]:
    """Fires after a while; may be cancelled."""
    over: Deferred[None] = Deferred(lambda _: call.cancel())
    call = reactor.callLater(seconds, over.callback, None)
    return over
