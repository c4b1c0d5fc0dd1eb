"""Pages of what was stored, read and encoded once for all who follow it.

Ten tails with one filter ask for the same page within a moment of each other: the
first has it read, the others wait for it or find it kept. A page is kept for a
moment only, and only while it leads on: "nothing new" has to be asked anew, as an
entry may have come since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from cortextx.core import jsontext
from cortextx.fleet.server.rows import entry_row

if TYPE_CHECKING:
    from cortextx.interfaces.fleet import EntryFilter, ILogStore, TailPage

KEPT_SECONDS = 1.0
"""How long a page is kept for those who come a little later."""
KEPT_BYTES = 4 * 1024 * 1024
"""Bytes of rows that are kept at most."""

Key = tuple[Any, int, int]


@dataclass(frozen=True, slots=True)
class RowPage:
    """Entries in the order of their ids, each as JSON; `cursor` as in TailPage."""

    ids: tuple[int, ...]
    rows: tuple[bytes, ...]
    cursor: int
    size: int
    """Bytes of all rows."""


class Following:
    """Reads pages for all tails. `seconds` only grows."""

    def __init__(self, store: ILogStore, seconds: Callable[[], float]) -> None:
        self._store = store
        self._seconds = seconds
        self._asked: dict[Key, _Asked] = {}
        self._kept: OrderedDict[Key, tuple[float, RowPage]] = OrderedDict()
        self._kept_bytes = 0

    async def page(self, which: EntryFilter, after: int, limit: int) -> RowPage:
        """As ILogStore.tail; the store is asked once for all who ask the same meanwhile."""
        key = (which, after, limit)
        self._drop_old()
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(self._store.tail(which, after, limit))
            asked.reading.addBoth(self._read, key, asked)
        return await asked.wait()

    def _read(self, result: TailPage | Failure, key: Key, asked: _Asked) -> None:
        if self._asked.get(key) is asked:
            del self._asked[key]
        page: RowPage | Failure
        if isinstance(result, Failure):
            page = result
        else:
            try:
                page = row_page(result)
            except Exception:
                page = Failure()
            else:
                if page.cursor > key[1]:
                    self._keep(key, page)
        asked.tell(page)

    def _keep(self, key: Key, page: RowPage) -> None:
        self._kept[key] = (self._seconds() + KEPT_SECONDS, page)
        self._kept_bytes += page.size
        while self._kept_bytes > KEPT_BYTES:
            self._drop()

    def _drop_old(self) -> None:
        now = self._seconds()
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            self._drop()

    def _drop(self) -> None:
        _, (_, page) = self._kept.popitem(last=False)
        self._kept_bytes -= page.size


class _Asked:
    """A page that is being read, and who waits for it; when nobody does, it is given up."""

    def __init__(self, reading: Deferred[Any]) -> None:
        self.reading = reading
        self._waiting: list[Deferred[RowPage]] = []
        self._page: RowPage | Failure | None = None

    def wait(self) -> Deferred[RowPage]:
        waiting: Deferred[RowPage] = Deferred(self._gone)
        if self._page is not None:
            waiting.callback(self._page)
        else:
            self._waiting.append(waiting)
        return waiting

    def tell(self, page: RowPage | Failure) -> None:
        self._page = page
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(page)

    def _gone(self, waiting: Deferred[RowPage]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            if not self._waiting:
                self.reading.cancel()


def row_page(page: TailPage) -> RowPage:
    """A page with its entries as JSON."""
    rows = tuple(jsontext.encode(entry_row(entry)) for entry in page.entries)
    ids = tuple(entry.id for entry in page.entries)
    return RowPage(ids, rows, page.cursor, sum(map(len, rows)))
