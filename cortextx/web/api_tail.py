"""GET /tail: entries as they are stored, as server-sent events (A64).

An event's id is the entry's, so that a client that was cut off, by whatever, and
for however long, goes on where it was: Last-Event-ID, or `after`. Nothing is
doubled, and nothing is left out but with an event `gap` that says so: a client
that once had caught up and then reads too slowly is moved on to the newest
entries, if it wants to (`max_lag`). Whatever it does, ingest does not wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from typing import Annotated

from msgspec import Meta
from twisted.internet.defer import TimeoutError as TimedOut
from twisted.internet.task import deferLater

from cortextx.core import jsontext
from cortextx.fleet.server.following import RowPage
from cortextx.interfaces.fleet import EntryFilter
from cortextx.web.api_logs import Filter
from cortextx.web.flow import PIECE_BYTES
from cortextx.web.problems import wrong
from cortextx.web.routes import Call, Route
from cortextx.web.sources import Sources
from cortextx.web.sse import EventSink, event, position

PAGE = 200
"""Entries that are fetched at a time; the store ends a page of large ones earlier."""
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
        await Tail(self._sources, call).run()


class Tail:
    """One stream."""

    def __init__(self, sources: Sources, call: Call) -> None:
        assert call.events is not None and call.still_allowed is not None
        self._reactor = sources.reactor
        self._store = sources.store
        self._following = sources.fleet.following
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
        cursor, last = await self._begin()
        # A filter that the store refuses is still a problem, not a broken stream.
        await self._store.tail(self._which, cursor, 1)
        self._sink.begin()
        await self._send_these(last)
        cursor = await self._within_the_store(cursor)
        caught_up = False
        while True:
            # Asked before the query, so that no commit falls between the two.
            commit = self._writer.next_commit()
            try:
                page = await self._following.page(self._which, cursor, PAGE)
                behind, cursor = page.cursor > cursor, max(cursor, self._write(page))
                # While a client does not read, nothing is held for it.
                del page
                await self._sink.room()
                if caught_up:
                    cursor = await self._move_on(cursor)
                await self._check(cursor)
                if behind:
                    continue
                if not caught_up and cursor > self._told:
                    # Who only wants what there is can go now.
                    self._told = cursor
                    await self._say(position(cursor))
                caught_up = True
                commit.addTimeout(ALIVE_SECONDS, self._reactor)
                await commit
            except TimedOut:
                await self._check(cursor)
            finally:
                commit.addErrback(lambda _: None)
                commit.cancel()
            await deferLater(self._reactor, FOLLOW_PAUSE)

    async def _begin(self) -> tuple[int, list[int]]:
        """Where the stream begins, and the ids of the newest entries before that, if they
        were asked for: the entries themselves might be too large to hold all at once."""
        if self._after is not None:
            return self._after, []
        head = await self._store.head()
        count = self._params.last or 0
        found: list[int] = []
        cursor: str | None = None
        while len(found) < count:
            page = await self._store.search(
                self._which, min(PAGE, count - len(found)), True, cursor
            )
            found += [entry.id for entry in page.entries if entry.id <= head]
            cursor = page.cursor
            # Not to be held while the next one is waited for.
            del page
            if cursor is None:
                break
        return head, sorted(found)

    async def _send_these(self, ids: Sequence[int]) -> None:
        """Send the entries with these ids, which the filter matches, in their order."""
        wanted, at = frozenset(ids), 0
        while at < len(ids):
            page = await self._following.page(self._which, ids[at] - 1, PAGE)
            come = self._write(page, wanted)
            del page
            await self._sink.room()
            at = max(at + 1, bisect_right(ids, come))

    def _write(self, page: RowPage, wanted: Container[int] | None = None) -> int:
        """Write the entries of a page for as long as the client takes them; how far that came."""
        piece = bytearray()
        for entry_id, row in zip(page.ids, page.rows, strict=True):
            if wanted is not None and entry_id not in wanted:
                continue
            piece += event("entry", row, entry_id)
            self._told = entry_id
            if len(piece) >= PIECE_BYTES:
                self._sink.write(bytes(piece))
                piece.clear()
                if self._sink.paused:
                    return entry_id
        if piece:
            self._sink.write(bytes(piece))
        return page.cursor

    async def _say(self, events: bytes) -> None:
        self._sink.write(events)
        await self._sink.room()

    async def _within_the_store(self, cursor: int) -> int:
        """Say so if the position that was asked for is not in the store: it is beyond the
        newest entry where an older store was restored (F26), or what follows it has been
        dropped since, being too old. 0 is all that there is. What rules of severity took out
        in between was not to be kept, and is no gap."""
        head = await self._store.head()
        if cursor > head:
            return await self._gap(cursor, head, "store_restored")
        oldest = await self._store.oldest()
        if cursor and oldest > cursor + 1:
            return await self._gap(cursor, oldest - 1, "expired")
        return cursor

    async def _move_on(self, cursor: int) -> int:
        """Leave out what a client that reads too slowly will never catch up with."""
        head = await self._store.head()
        if not self._params.max_lag or head - cursor <= self._params.max_lag:
            return cursor
        return await self._gap(cursor, head, "slow_reader")

    async def _gap(self, after: int, to: int, reason: str) -> int:
        gap = {"after": after, "to": to, "reason": reason}
        await self._say(event("gap", jsontext.encode(gap), to))
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
            await self._say(position(cursor))
        else:
            await self._say(b": alive\n\n")


def _last_event_id(header: str | None, params: TailParams) -> int | None:
    """Where to go on; the header wins, as a browser that reconnects repeats the rest."""
    if header is None or header == "":
        return params.after
    if not (header.isascii() and header.isdigit() and len(header) < 19):
        raise wrong("Last-Event-ID", "the id of an event")
    return int(header)
