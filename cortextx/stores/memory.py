"""The reference store: logs and host registry in memory, lost with the process.

It says what the interfaces mean: the same tests run on every store. It searches
by looking at every entry.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from zope.interface import implementer

from cortextx.core.delivery import place
from cortextx.core.marks import MAX_DETAIL, OWN_SOURCE, Lost, SourceGap, read_mark, split
from cortextx.core.syslog import SEVERITY_NUMBER
from cortextx.errors import BadQuery, UnknownEntry, UnknownHost
from cortextx.interfaces.fleet import (
    Appended,
    Candidates,
    Decide,
    EntryFilter,
    EntryLike,
    Gap,
    GapPlace,
    Histogram,
    HostRecord,
    IHostRegistry,
    ILogStore,
    LogBatch,
    Presence,
    SearchPage,
    StoredEntry,
    StoreStats,
    TailPage,
)
from cortextx.stores.memory_beside import MemoryBeside
from cortextx.stores.records import reissued, seen
from cortextx.stores.restored import CAUSE, Run, unsent, without

T = TypeVar("T")
MOST_GAPS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1)
_CURSOR = re.compile(r"([no])(-?\d{1,19})\.(\d{1,19})\Z")
_ITEM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_TOKEN = re.compile(r"[^\W_]+")


@implementer(ILogStore, IHostRegistry)
class MemoryStore(MemoryBeside):
    """All of the server's stores in one; every method has done its work when it returns."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[StoredEntry] = []
        self._by_time: list[tuple[int, int]] = []
        self._gaps: list[Gap] = []
        self._hosts: dict[int, HostRecord] = {}
        self._keys = 0

    # ILogStore

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        """See ILogStore."""
        return maybeDeferred(lambda: [self._append(batch) for batch in batches])

    def search(
        self, which: EntryFilter, limit: int, newest_first: bool = True, cursor: str | None = None
    ) -> Deferred[SearchPage]:
        """See ILogStore."""
        return maybeDeferred(self._search, which, limit, newest_first, cursor)

    def tail(self, which: EntryFilter, after: int, limit: int) -> Deferred[TailPage]:
        """See ILogStore."""
        return maybeDeferred(self._tail, which, after, limit)

    def head(self) -> Deferred[int]:
        """See ILogStore."""
        return maybeDeferred(lambda: len(self._entries))

    def oldest(self) -> Deferred[int]:
        """See ILogStore."""
        return maybeDeferred(lambda: 1)

    def gaps(
        self, host_id: str | None = None, after: GapPlace | None = None, limit: int = 1000
    ) -> Deferred[list[Gap]]:
        """See ILogStore."""
        numbered = [replace(gap, id=number) for number, gap in enumerate(self._gaps, 1)]
        found = [
            gap
            for gap in numbered
            if host_id in (None, gap.host_id) and (after is None or gap.place > after)
        ]
        found.sort(key=lambda gap: gap.place)
        return maybeDeferred(lambda: found[: max(0, min(limit, MOST_GAPS))])

    def restored(self, host_id: str, acked: int, now: int) -> Deferred[Gap | None]:
        """See ILogStore."""
        return maybeDeferred(self._restored, host_id, acked, now)

    def histogram(self, which: EntryFilter, buckets: int) -> Deferred[Histogram]:
        """See ILogStore."""
        return maybeDeferred(self._histogram, which, buckets)

    def context(
        self, entry_id: int, before: int, after: int, same_source: bool = False
    ) -> Deferred[list[StoredEntry]]:
        """See ILogStore."""
        return maybeDeferred(self._context, entry_id, before, after, same_source)

    def known_values(
        self, kind: Literal["app", "source"], prefix: str = "", limit: int = 100
    ) -> Deferred[list[str]]:
        """See ILogStore."""
        names = {e.app_name if kind == "app" else e.source for e in self._entries}
        found = sorted(name for name in names if name is not None and name.startswith(prefix))
        return maybeDeferred(lambda: found[:limit])

    def stats(self) -> Deferred[StoreStats]:
        """See ILogStore."""
        oldest = self._entries[0].received_at if self._entries else None
        return maybeDeferred(
            StoreStats,
            entries=len(self._entries),
            segments=1,
            size=0,
            free=0,
            oldest=oldest,
            unindexed=0,
            hosts=len(self._hosts),
            gaps=len(self._gaps),
        )

    def is_host(self, host_id: str) -> bool:
        """Whether a host has this id."""
        return self._owner(host_id) is not None

    # IHostRegistry

    def issue(
        self, name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return maybeDeferred(self._issue, name, host_id, token_hash, expires_at, now)

    def judge(self, host_id: str, token_hash: bytes, decide: Decide[T]) -> Deferred[T]:
        """See IHostRegistry."""
        return maybeDeferred(self._judge, host_id, token_hash, decide)

    def update(
        self, host_id: str, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return maybeDeferred(lambda: self._put(change(self._known(host_id))))

    def update_row(
        self, key: int, change: Callable[[HostRecord], HostRecord]
    ) -> Deferred[HostRecord]:
        """See IHostRegistry."""
        return maybeDeferred(lambda: self._put(change(self._at(key))))

    def forget(self, host_id: str) -> Deferred[None]:
        """See IHostRegistry."""
        return maybeDeferred(lambda: self._forget(self._known(host_id)))

    def forget_row(self, key: int) -> Deferred[None]:
        """See IHostRegistry."""
        return maybeDeferred(lambda: self._forget(self._at(key)))

    def find(self, ref: str) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        return maybeDeferred(lambda: [h for h in self._rows() if ref in (h.host_id, h.name)])

    def list_hosts(self) -> Deferred[list[HostRecord]]:
        """See IHostRegistry."""
        return maybeDeferred(self._rows)

    def seen(self, updates: Sequence[Presence]) -> Deferred[None]:
        """See IHostRegistry."""
        return maybeDeferred(self._seen, updates)

    # What a test may want to do to a registry

    def snapshot(self) -> dict[int, HostRecord]:
        """A copy of the registry, as a backup holds one."""
        return dict(self._hosts)

    def restore(self, snapshot: dict[int, HostRecord]) -> None:
        """Put the registry back to a backup."""
        self._hosts = dict(snapshot)

    def _append(self, batch: LogBatch) -> Appended:
        row = self._owner(batch.host_id)
        if row is None:
            return Appended(0, 0, unknown_host=True)
        placed = place(row.accepted_seq, batch.seq_start, len(batch.entries))
        for entry in batch.entries[placed.skip :]:
            self._store(row, entry, batch)
        self._put(replace(row, accepted_seq=placed.high_water))
        for run in self._settle(batch.host_id, row.accepted_seq, placed.gap, placed.high_water):
            self._note_gap(Gap(batch.host_id, *run, batch.received_at))
        for entry in batch.entries[placed.skip :]:
            if entry.source == OWN_SOURCE:
                self._take_mark(batch, read_mark(entry.metadata))
        return Appended(placed.high_water, len(batch.entries) - placed.skip, placed.gap)

    def _note_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._count_gaps(gap.host_id, 1, gap.entries)

    def _count_gaps(self, host_id: str, gaps: int, entries: int) -> None:
        row = self._known(host_id)
        lost = row.lost_entries + entries
        self._put(replace(row, gap_count=row.gap_count + gaps, lost_entries=lost))

    def _settle(self, host_id: str, accepted: int, gap: Run | None, high: int) -> list[Run]:
        """As `sqlite_gaps.settle` does."""
        noted, gaps = [], []
        for one in self._gaps:
            if one.host_id != host_id or one.first is None or (one.last or 0) <= accepted:
                gaps.append(one)
                continue
            run = (one.first, one.last or 0)
            noted.append(run)
            left = [replace(one, first=first, last=last) for first, last in unsent(run, gap, high)]
            gaps += left
            taken = one.entries - sum(part.entries for part in left)
            self._count_gaps(host_id, len(left) - 1, -taken)
        self._gaps = gaps
        return [] if gap is None else without(gap, noted)

    def _restored(self, host_id: str, acked: int, now: int) -> Gap | None:
        row = self._owner(host_id)
        if row is None or acked <= row.accepted_seq:
            return None
        mine = [gap for gap in self._gaps if gap.host_id == host_id]
        noted = [(gap.first, gap.last) for gap in mine if gap.first and gap.last]
        new = without((row.accepted_seq + 1, acked), noted)
        for run in new:
            self._note_gap(Gap(host_id, *run, now, CAUSE))
        return Gap(host_id, new[0][0], new[-1][1], now, CAUSE) if new else None

    def _take_mark(self, batch: LogBatch, mark: Lost | SourceGap | None) -> None:
        if isinstance(mark, SourceGap):
            detail = mark.detail and mark.detail[:MAX_DETAIL]
            gap = Gap(
                batch.host_id,
                None,
                None,
                batch.received_at,
                mark.reason,
                mark.source or None,
                detail,
            )
            self._note_gap(gap)
        elif mark is not None:
            gaps: list[Gap] = []
            for gap in self._gaps:
                gaps += _explained(gap, mark) if gap.host_id == batch.host_id else [gap]
            self._gaps = gaps

    def _store(self, row: HostRecord, entry: EntryLike, batch: LogBatch) -> None:
        offset = entry.ts.utcoffset() or timedelta(0)
        metadata = bytes(entry.metadata or b"").decode()
        stored = StoredEntry(
            id=len(self._entries) + 1,
            host_id=batch.host_id,
            host=row.name,
            seq=entry.seq,
            ts=(entry.ts - _EPOCH) // _MICROSECOND,
            ts_offset=offset // _MINUTE,
            received_at=batch.received_at,
            severity=SEVERITY_NUMBER[entry.severity],
            facility=entry.facility,
            app_name=entry.app_name,
            process_id=entry.process_id,
            message=entry.message,
            source=entry.source,
            metadata=None if metadata in ("", "null") else metadata,
        )
        self._entries.append(stored)
        insort(self._by_time, (stored.ts, stored.id))

    def _search(
        self, which: EntryFilter, limit: int, newest_first: bool, cursor: str | None
    ) -> SearchPage:
        if limit < 1:
            raise BadQuery("limit", "a number of at least 1")
        matches = self._matcher(which)
        keys: Iterable[tuple[int, int]] = self._by_time
        after = None if cursor is None else _read_cursor(cursor, newest_first)
        if newest_first:
            keys = (k for k in reversed(self._by_time) if after is None or k < after)
        else:
            keys = (k for k in self._by_time if after is None or k > after)
        found = [e for e in (self._entries[id - 1] for _, id in keys) if matches(e)]
        page = found[:limit]
        if len(found) <= limit:
            return SearchPage(page, None)
        return SearchPage(page, f"{'n' if newest_first else 'o'}{page[-1].ts}.{page[-1].id}")

    def _tail(self, which: EntryFilter, after: int, limit: int) -> TailPage:
        if limit < 1:
            raise BadQuery("limit", "a number of at least 1")
        matches = self._matcher(which)
        # A cursor from beyond the head comes from another life of this store.
        cursor = min(max(0, after), len(self._entries))
        found: list[StoredEntry] = []
        for entry in self._entries[cursor:]:
            cursor = entry.id
            if matches(entry):
                found.append(entry)
                if len(found) == limit:
                    break
        return TailPage(found, cursor)

    def _matcher(self, which: EntryFilter) -> Callable[[StoredEntry], bool]:
        wanted = [_tokens(item) or item for item in _items(which.text)]
        hosts: set[str | None] = set()
        for ref in which.hosts:
            rows = [h for h in self._hosts.values() if ref in (h.host_id, h.name)]
            if not rows:
                raise UnknownHost(f"no host is {ref!r}")
            hosts.update(h.host_id for h in rows)

        def matches(entry: StoredEntry) -> bool:
            return (
                (not which.hosts or entry.host_id in hosts)
                and (not which.apps or entry.app_name in which.apps)
                and (not which.sources or any(_is_source(s, entry.source) for s in which.sources))
                and (which.severity_max is None or entry.severity <= which.severity_max)
                and (which.since is None or entry.ts >= which.since)
                and (which.until is None or entry.ts < which.until)
                and all(_occurs(item, entry.message) for item in wanted)
            )

        return matches

    def _rows(self) -> list[HostRecord]:
        return sorted(self._hosts.values(), key=lambda row: (row.name, row.key))

    def _owner(self, host_id: str) -> HostRecord | None:
        return next((row for row in self._hosts.values() if row.host_id == host_id), None)

    def _known(self, host_id: str) -> HostRecord:
        row = self._owner(host_id)
        if row is None:
            raise UnknownHost(f"no host is {host_id!r}")
        return row

    def _put(self, row: HostRecord) -> HostRecord:
        self._hosts[row.key] = row
        return row

    def _issue(
        self, name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> HostRecord:
        row = None if host_id is None else self._owner(host_id)
        if row is not None:
            return self._put(reissued(row, name, token_hash, expires_at))
        self._keys += 1
        return self._put(
            HostRecord(
                key=self._keys,
                name=name,
                host_id=host_id,
                state="never_connected",
                created_at=now,
                token_hash=token_hash,
                token_expires_at=expires_at,
            )
        )

    def _judge(self, host_id: str, token_hash: bytes, decide: Decide[T]) -> T:
        unbound = next(
            (
                row
                for row in self._hosts.values()
                if row.host_id is None and row.token_hash == token_hash
            ),
            None,
        )
        verdict, row = decide(Candidates(self._owner(host_id), unbound))
        if row is not None:
            self._put(row)
        return verdict

    def _at(self, key: int) -> HostRecord:
        if key not in self._hosts:
            raise UnknownHost("the host's row has gone")
        return self._hosts[key]

    def _forget(self, row: HostRecord) -> None:
        del self._hosts[row.key]
        if row.host_id is not None:
            self.forget_configs(row.host_id)

    def _histogram(self, which: EntryFilter, buckets: int) -> Histogram:
        if not 1 <= buckets <= 1000:
            raise BadQuery("buckets", "a number from 1 to 1000")
        matches = self._matcher(which)
        times = [ts for ts, _ in self._by_time]
        start = which.since if which.since is not None else min(times, default=0)
        until = which.until if which.until is not None else max(times, default=0) + 1
        step = max(1, -(-(max(start, until) - start) // buckets))
        counts = [0] * buckets
        for entry in self._entries:
            if start <= entry.ts < until and matches(entry):
                counts[(entry.ts - start) // step] += 1
        return Histogram(start, step, counts)

    def _context(
        self, entry_id: int, before: int, after: int, same_source: bool
    ) -> list[StoredEntry]:
        for field, number in (("before", before), ("after", after)):
            if not 0 <= number <= 500:
                raise BadQuery(field, "a number from 0 to 500")
        if not 1 <= entry_id <= len(self._entries):
            raise UnknownEntry(f"no entry has the id {entry_id}")
        meant = self._entries[entry_id - 1]
        beside = [
            e
            for e in self._entries
            if e.host_id == meant.host_id and (not same_source or e.source == meant.source)
        ]
        beside.sort(key=lambda e: e.seq)
        at = beside.index(meant)
        return beside[max(0, at - before) : at + after + 1]

    def _seen(self, updates: Sequence[Presence]) -> None:
        for update in updates:
            row = self._owner(update.host_id)
            if row is not None:
                self._put(seen(row, update))


def _explained(gap: Gap, lost: Lost) -> list[Gap]:
    """A gap, in the parts of which some are known to be this loss."""
    if gap.cause is not None or gap.first is None or gap.last is None:
        return [gap]
    detail = lost.detail[:MAX_DETAIL] or None
    return [
        replace(gap, first=first, last=last, cause=lost.reason, detail=detail)
        if explained
        else replace(gap, first=first, last=last)
        for first, last, explained in split((gap.first, gap.last), (lost.first, lost.last))
    ]


def _read_cursor(cursor: str, newest_first: bool) -> tuple[int, int]:
    found = _CURSOR.match(cursor)
    if found is None or (found[1] == "n") is not newest_first:
        raise BadQuery("cursor", "the cursor of a page of this search")
    return int(found[2]), int(found[3])


def _items(text: str) -> list[str]:
    """The words and quoted phrases of a user's text."""
    return [m[1] if m[1] is not None else m[2] for m in _ITEM.finditer(text) if m[1] or m[2]]


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.casefold())


def _occurs(item: str | list[str], message: str) -> bool:
    """Whether a phrase of tokens, or a text that has none, stands in a message."""
    if isinstance(item, str):
        return item in message
    tokens = _tokens(message)
    return any(tokens[at : at + len(item)] == item for at in range(len(tokens) - len(item) + 1))


def _is_source(pattern: str, source: str) -> bool:
    if pattern.endswith("*"):
        return source.startswith(pattern[:-1])
    return source == pattern
