"""The routes that read logs: search, histogram, context, known values, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from cortextx.core.syslog import SEVERITY_NUMBER, Severity
from cortextx.fleet.server.rows import entry_row, gap_row, micros, moment
from cortextx.interfaces.fleet import EntryFilter
from cortextx.web import answers
from cortextx.web.gap_pages import cursor_of, place_of
from cortextx.web.problems import wrong
from cortextx.web.routes import Call, Params, Route
from cortextx.web.sources import Sources

MAX_PAGE = 1000
MAX_TEXT = 1000
"""Characters of a search: percent-encoded they must fit a request's head."""
Time = Annotated[datetime, Meta(tz=True)]
Id = Annotated[int, Meta(ge=0, lt=10**18)]
Several = Annotated[tuple[str, ...], Meta(max_length=100)]


class Filter(Params, frozen=True):
    """Which entries: words, hosts by id or name, sources whole or as `prefix*`.

    `severity_min` means this one and worse; `since` is inclusive, `until` exclusive.
    """

    text: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    hosts: Several = field(default=(), name="host")
    apps: Several = field(default=(), name="app")
    sources: Several = field(default=(), name="source")
    severity_min: Severity | None = None
    since: Time | None = None
    until: Time | None = None

    def filter(self) -> EntryFilter:
        """The same as the store takes it."""
        severity = self.severity_min
        return EntryFilter(
            text=self.text,
            hosts=self.hosts,
            apps=self.apps,
            sources=self.sources,
            severity_max=None if severity is None else SEVERITY_NUMBER[severity],
            since=moment_of("since", self.since),
            until=moment_of("until", self.until),
        )


def moment_of(name: str, at: datetime | None) -> int | None:
    """A parameter in µs UTC; raises Problem 400 for what is none in UTC (as 0001-01-01+01:00)."""
    if at is None:
        return None
    try:
        return micros(at.astimezone(UTC))
    except OverflowError:
        raise wrong(name, "a time of the years 1 to 9999") from None


class SearchParams(Filter, frozen=True):
    """A page of a search."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Annotated[str, Meta(max_length=200)] | None = None
    order: Literal["newest_first", "oldest_first"] = "newest_first"


class HistogramParams(Filter, frozen=True):
    """A histogram's number of spans."""

    buckets: Annotated[int, Meta(ge=1, le=1000)] = 60


class ContextParams(Params, frozen=True):
    """How many entries before and after; `same_source` leaves out other sources."""

    before: Annotated[int, Meta(ge=0, le=500)] = 20
    after: Annotated[int, Meta(ge=0, le=500)] = 20
    same_source: bool = False


class ValueParams(Params, frozen=True):
    """Values that begin with `prefix`."""

    prefix: Annotated[str, Meta(max_length=1024)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class GapParams(Params, frozen=True):
    """A page of those of one host, by id or name, or of all."""

    host: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class LogRoutes:
    """The routes over a server's logs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._store = sources.store

    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (
            Route(
                method="GET",
                path="/search",
                role="viewer",
                name="search",
                run=self.search,
                params=SearchParams,
                answer=answers.EntryPage,
                searches=True,
                text="Entries in the order of their time, a page at a time.",
            ),
            Route(
                method="GET",
                path="/histogram",
                role="viewer",
                name="histogram",
                run=self.histogram,
                params=HistogramParams,
                answer=answers.HistogramAnswer,
                searches=True,
                text="How many entries match, over time.",
            ),
            Route(
                method="GET",
                path="/entries/{id}/context",
                role="viewer",
                name="context",
                run=self.context,
                params=ContextParams,
                names={"id": Id},
                answer=answers.Entries,
                searches=True,
                text="An entry and what its host sent right before and after it.",
            ),
            Route(
                method="GET",
                path="/values/{kind}",
                role="viewer",
                name="values",
                run=self.values,
                params=ValueParams,
                names={"kind": Literal["app", "source", "host"]},
                answer=answers.Values,
                text="Names to choose from: `app`, `source` or `host`.",
            ),
            Route(
                method="GET",
                path="/gaps",
                role="viewer",
                name="gaps",
                run=self.gaps,
                params=GapParams,
                answer=answers.Gaps,
                text="What the server never got, and why, as far as it was told (F13, F37).",
            ),
        )

    async def search(self, call: Call) -> Any:
        """Entries; a store's page may be shorter than `limit`, with a cursor all the same."""
        params: SearchParams = call.params
        newest_first = params.order == "newest_first"
        page = await self._store.search(params.filter(), params.limit, newest_first, params.cursor)
        return {"entries": [entry_row(entry) for entry in page.entries], "cursor": page.cursor}

    async def histogram(self, call: Call) -> Any:
        """Counts in equal spans."""
        params: HistogramParams = call.params
        counted = await self._store.histogram(params.filter(), params.buckets)
        return {
            "buckets": [
                {"start": moment(counted.start + number * counted.step), "count": count}
                for number, count in enumerate(counted.counts)
            ],
            "step_seconds": counted.step / 1e6,
            "total": sum(counted.counts),
            "complete": counted.complete,
            "counted_from": moment(counted.counted_from),
        }

    async def context(self, call: Call) -> Any:
        """The neighbours of an entry."""
        params: ContextParams = call.params
        text = call.names["id"]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise wrong("id", "the id of an entry")
        found = await self._store.context(
            int(text), params.before, params.after, params.same_source
        )
        return {"entries": [entry_row(entry) for entry in found]}

    async def values(self, call: Call) -> Any:
        """What stands in stored entries."""
        params: ValueParams = call.params
        match call.names["kind"]:
            case "host":
                names = sorted({record.name for record in await self._store.list_hosts()})
                found = [name for name in names if name.startswith(params.prefix)][: params.limit]
            case "app" | "source" as kind:
                found = await self._store.known_values(kind, params.prefix, params.limit)
            case _:
                raise wrong("kind", "app, source or host")
        return {"values": found}

    async def gaps(self, call: Call) -> Any:
        """All gaps, or those of one host."""
        params: GapParams = call.params
        host_id = None
        if params.host is not None:
            _, host_id = await self._sources.enrolled(params.host)
        found = await self._store.gaps(host_id, place_of(params.cursor), params.limit)
        names = await self._sources.names()
        return {
            "gaps": [gap_row(gap, names.get(gap.host_id)) for gap in found],
            "cursor": cursor_of(found[-1]) if len(found) == params.limit else None,
        }
