"""GET /tail: entries as they are stored, as server-sent events (A64).

An event's id is the entry's, so that a client that was cut off, by whatever, and
for however long, goes on where it was: Last-Event-ID, or `after`. Nothing is
doubled, and nothing is left out but with an event `gap` that says so: a client
that once had caught up and then reads too slowly is moved on to the newest
entries, if it wants to (`max_lag`). Whatever it does, ingest does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.task import deferLater

from cortextx.core import jsontext
from cortextx.fleet.server.rows import entry_row
from cortextx.interfaces.fleet import EntryFilter, StoredEntry
from cortextx.web.api_logs import Filter
from cortextx.web.problems import Problem, wrong
from cortextx.web.routes import Call, Route
from cortextx.web.sources import Sources
from cortextx.web.sse import EventSink, event, position

PAGE = 200
"""Entries that are fetched at a time: what a stream may hold in memory."""
MAX_TAILS = 200
"""Streams at a time."""
FOLLOW_PAUSE = 0.05
"""Seconds between two looks, so that every commit need not cost a query."""
ALIVE_SECONDS = 15.0
"""How often an idle stream shows that it is there, and its token is looked at again."""
MAX_LAST = 10_000
MAX_LAG = 1_000_000

Position = Annotated[int, Meta(ge=0, le=2**62)]


class TailParams(Filter, frozen=True):
    """Where to begin: behind the id `after`, or with the `last` entries, else with what comes.

    `max_lag` is how many entries of the whole store a client that reads too slowly
    may fall behind before it is moved on; 0 for never.
    """

    after: Position | None = None
    last: Annotated[int, Meta(ge=0, le=MAX_LAST)] | None = None
    max_lag: Annotated[int, Meta(ge=0, le=MAX_LAG)] = 100_000


class TailRoutes:
    """The one route that streams."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.open = 0

    def routes(self) -> Sequence[Route]:
        """The route."""
        return (
            Route(
                method="GET",
                path="/tail",
                role="viewer",
                name="tail",
                run=self.tail,
                params=TailParams,
                stream=True,
                text=(
                    "Entries in the order in which they were stored. Events: `entry` (an Entry,"
                    " with its id), `gap` (a TailGap: entries were left out), and comments that"
                    " keep the connection alive. Goes on behind Last-Event-ID."
                ),
            ),
        )

    async def tail(self, call: Call) -> None:
        """Stream until the client goes, or its token does."""
        if self.open >= MAX_TAILS:
            raise Problem(503, "too_many_tails", f"{MAX_TAILS} tails are open already")
        self.open += 1
        try:
            await Tail(self._sources, call).run()
        finally:
            self.open -= 1


class Tail:
    """One stream."""

    def __init__(self, sources: Sources, call: Call) -> None:
        assert call.events is not None and call.still_allowed is not None
        self._reactor = sources.reactor
        self._store = sources.store
        self._writer = sources.fleet.writer
        self._sink: EventSink = call.events
        self._still_allowed = call.still_allowed
        self._params: TailParams = call.params
        self._which: EntryFilter = self._params.filter()
        self._after = _last_event_id(call.last_event_id, self._params)
        self._told = 0
        self._checked = self._reactor.seconds()

    async def run(self) -> None:
        """Send what there is, then what comes."""
        cursor, first = await self._begin()
        # A filter that the store refuses is still a problem, not a broken stream.
        await self._store.tail(self._which, cursor, 1)
        self._sink.begin()
        await self._send(first)
        cursor = await self._within_the_store(cursor)
        caught_up = False
        while True:
            # Asked before the query, so that no commit falls between the two.
            commit = self._writer.next_commit()
            try:
                page = await self._store.tail(self._which, cursor, PAGE)
                await self._send(page.entries)
                behind, cursor = page.cursor > cursor, max(cursor, page.cursor)
                if caught_up:
                    cursor = await self._move_on(cursor)
                await self._check(cursor)
                if behind:
                    continue
                if not caught_up and cursor > self._told:
                    # Who only wants what there is can go now.
                    self._told = cursor
                    await self._sink.send([position(cursor)])
                caught_up = True
                commit.addTimeout(ALIVE_SECONDS, self._reactor)
                await commit
            except TimedOut:
                await self._check(cursor)
            finally:
                commit.addErrback(lambda _: None)
                commit.cancel()
            await deferLater(self._reactor, FOLLOW_PAUSE)

    async def _begin(self) -> tuple[int, list[StoredEntry]]:
        """Where the stream begins, and the newest entries before that if they were asked for."""
        if self._after is not None:
            return self._after, []
        head = await self._store.head()
        count = self._params.last or 0
        found: list[StoredEntry] = []
        cursor: str | None = None
        while len(found) < count:
            page = await self._store.search(
                self._which, min(PAGE, count - len(found)), True, cursor
            )
            found += [entry for entry in page.entries if entry.id <= head]
            cursor = page.cursor
            if cursor is None:
                break
        found.sort(key=lambda entry: entry.id)
        return head, found

    async def _send(self, entries: Sequence[StoredEntry]) -> None:
        await self._sink.send(
            event("entry", jsontext.encode(entry_row(entry)), entry.id) for entry in entries
        )
        if entries:
            self._told = entries[-1].id

    async def _within_the_store(self, cursor: int) -> int:
        """Say so if the position that was asked for is not in the store: it is beyond the
        newest entry where an older store was restored (F26), or what follows it has been
        dropped since, being too old. 0 is all that there is."""
        head = await self._store.head()
        if cursor > head:
            return await self._gap(cursor, head, "store_restored")
        oldest = await self._store.tail(EntryFilter(), cursor, 1)
        # Every entry's id is one more than that of the entry before it.
        if cursor and oldest.entries and oldest.entries[0].id > cursor + 1:
            return await self._gap(cursor, oldest.entries[0].id - 1, "expired")
        return cursor

    async def _move_on(self, cursor: int) -> int:
        """Leave out what a client that reads too slowly will never catch up with."""
        head = await self._store.head()
        if not self._params.max_lag or head - cursor <= self._params.max_lag:
            return cursor
        return await self._gap(cursor, head, "slow_reader")

    async def _gap(self, after: int, to: int, reason: str) -> int:
        gap = {"after": after, "to": to, "reason": reason}
        await self._sink.send([event("gap", jsontext.encode(gap), to)])
        self._told = to
        return to

    async def _check(self, cursor: int) -> None:
        """Now and then see that the token is still good (else Problem is raised), and show
        that the stream is alive, and how far it has looked."""
        now = self._reactor.seconds()
        if now - self._checked < ALIVE_SECONDS:
            return
        self._checked = now
        await self._still_allowed()
        if cursor > self._told:
            self._told = cursor
            await self._sink.send([position(cursor)])
        else:
            await self._sink.send([b": alive\n\n"])


def _last_event_id(header: str | None, params: TailParams) -> int | None:
    """Where to go on; the header wins, as a browser that reconnects repeats the rest."""
    if header is None or header == "":
        return params.after
    if not (header.isascii() and header.isdigit() and len(header) < 19):
        raise wrong("Last-Event-ID", "the id of an event")
    return int(header)
