"""The roles of the fleet plane, and the values that pass between them.

All times in these values are integers: microseconds since 1970-01-01T00:00:00Z.
Every method that may wait returns a Deferred. What a server keeps beside logs
and hosts is in `interfaces.fleet_records`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from datetime import datetime

    from twisted.internet.defer import Deferred

T = TypeVar("T")

HostState = Literal["never_connected", "active", "disconnected", "revoked"]


class EntryLike(Protocol):
    """What a store needs of one log entry; `fleet.contract.LogEntry` has it.

    `metadata` is the JSON text of an object, of null, or empty; `severity` a name
    of `core.syslog`.
    """

    @property
    def seq(self) -> int: ...
    @property
    def ts(self) -> datetime: ...
    @property
    def severity(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def facility(self) -> str | None: ...
    @property
    def app_name(self) -> str | None: ...
    @property
    def process_id(self) -> str | None: ...
    @property
    def metadata(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A contiguous run of entries of one host, as one logs.push brought it (F12).

    `size` is the encoded bytes of the push, for budgets.
    """

    host_id: str
    seq_start: int
    entries: Sequence[EntryLike]
    received_at: int
    size: int = 0

    @property
    def last(self) -> int:
        """The seq of the last entry."""
        return self.seq_start + len(self.entries) - 1


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a batch: `up_to_seq` is the host's new accepted_seq (F11).

    `gap` is the (first, last) seqs that this batch showed to be missing (F13).
    `unknown_host` says that the host's row has gone: nothing was stored.
    """

    up_to_seq: int
    stored: int
    gap: tuple[int, int] | None = None
    unknown_host: bool = False


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry as it is stored. `id` grows with every stored entry: the tail's cursor.

    `ts` is UTC, `ts_offset` the minutes east of UTC that the sender wrote (F15);
    `severity` is a number from 0 (emerg) to 7 (debug); `metadata` JSON text or None.
    """

    id: int
    host_id: str
    host: str
    seq: int
    ts: int
    ts_offset: int
    received_at: int
    severity: int
    facility: str | None
    app_name: str | None
    process_id: str | None
    message: str
    source: str
    metadata: str | None


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries are meant. Empty tuples and None mean any.

    `text` is the user's own words: each word must occur, a "quoted phrase" as a
    phrase, whatever characters stand in it (A62). `hosts` are host ids or names,
    `sources` match whole or, ending in `*`, by prefix. `severity_max` is the
    highest number (so 4 means warning and worse). `since` is inclusive, `until`
    exclusive, both of `ts`.
    """

    text: str = ""
    hosts: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    severity_max: int | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of a search; `cursor` is opaque, None when there is no more."""

    entries: Sequence[StoredEntry]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class TailPage:
    """Entries in order of `id`; `cursor` is the highest id that was looked at."""

    entries: Sequence[StoredEntry]
    cursor: int


GapPlace = tuple[int, int, int]
"""A position in the order of gaps: when it was seen, its first seq or 0, its id."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Seqs that a host numbered and the server never got (F13); how and when seen.

    `cause` is what the host said of it (F37): evicted, damaged, missing, set_aside, or
    restored for what this server had once acked (F26), which its hello already tells;
    None while it said nothing. A gap
    without seqs (`first` and `last` None) is what a source lost before it was numbered,
    with `source` and a `cause` as "truncated".
    """

    host_id: str
    first: int | None
    last: int | None
    detected_at: int
    cause: str | None = None
    source: str | None = None
    detail: str | None = None
    id: int = field(default=0, compare=False)

    @property
    def place(self) -> GapPlace:
        """Where it stands in the order of all gaps."""
        return self.detected_at, self.first or 0, self.id

    @property
    def entries(self) -> int:
        """How many seqs are missing; 0 for a gap without seqs."""
        return 0 if self.first is None or self.last is None else self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many entries match, by `ts`: bucket n is [start + n * step, start + (n + 1) * step).

    Not `complete` when time was up: then what was not counted lies before
    `counted_from`, as far as entries came in the order of their `ts`.
    """

    start: int
    step: int
    counts: Sequence[int]
    complete: bool = True
    counted_from: int | None = None


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds. `size` is the bytes of its files, `free` those of them to be reused.

    `oldest` is when the first of the entries that are held came (µs), None when empty;
    `unindexed` the entries that the full-text index does not hold yet (F38);
    `damaged` those that were found damaged since the store was opened, and are
    mended or left out of what is read. `excess` are the bytes beyond the bound that is
    set for the store, about which retention can do nothing.
    """

    entries: int
    segments: int
    size: int
    free: int
    oldest: int | None
    unindexed: int
    hosts: int
    gaps: int
    disk_free: int | None = None
    damaged: int = 0
    excess: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """A row of the host registry (the contract's `agents`).

    Hashes are BLAKE3, 32 bytes. A never_connected row's `token_hash` is that of a
    one-time token, good until `token_expires_at`; elsewhere `token_expires_at` is
    None unless the token was told to expire (F7). `host_id` None means that the
    first hello with the token binds it (F6).
    """

    key: int
    name: str
    host_id: str | None
    state: HostState
    created_at: int
    token_hash: bytes | None = field(default=None, repr=False)
    token_expires_at: int | None = None
    token_hash_prev: bytes | None = field(default=None, repr=False)
    prev_expires_at: int | None = None
    rotation_pending: bool = False
    accepted_seq: int = 0
    session_id: str | None = None
    hostname: str | None = None
    agent_version: str | None = None
    platform: str | None = None
    capabilities: str | None = None
    remote_address: str | None = None
    last_handshake: int | None = None
    last_seen: int | None = None
    last_disconnect_reason: str | None = None
    queue_depth: int | None = None
    buffer_bytes: int | None = None
    push_lag_seq: int | None = None
    clock_skew: int | None = None
    lost_entries: int = 0
    gap_count: int = 0


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a registry finds for a hello: the row that owns the host_id, and the
    pending unbound row whose one-time token was sent (F6, F29)."""

    owner: HostRecord | None
    unbound: HostRecord | None


Decide = Callable[[Candidates], tuple[T, HostRecord | None]]
"""Answers a verdict, and the row to write back (matched by `key`) or None.

It is pure: it may run on another thread, and again if a transaction is retried.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is known of a live host, written now and then in one go, not per heartbeat.

    Members that are None leave the stored value as it is.
    """

    host_id: str
    session_id: str | None = None
    last_seen: int | None = None
    state: HostState | None = None
    last_disconnect_reason: str | None = None
    queue_depth: int | None = None
    buffer_bytes: int | None = None
    push_lag_seq: int | None = None
    clock_skew: int | None = None


class ILogStore(Interface):
    """Where log entries live. `append` owns accepted_seq and the gaps (F10, F13)."""

    def append(batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        """Store the new entries of all batches in one transaction, in the order given.

        Fires once that is durable, with one answer a batch in the same order.
        Fails with StoreFull or another StoreError; then nothing of it is stored.
        """

    def search(
        which: EntryFilter, limit: int, newest_first: bool = True, cursor: str | None = None
    ) -> Deferred[SearchPage]:
        """Find entries in the order of `ts`, `limit` at most.

        Sees every entry whose append has fired (F38). Fails with BadQuery for a
        cursor that is none, and with UnknownHost for a host that is none.
        """

    def tail(which: EntryFilter, after: int, limit: int) -> Deferred[TailPage]:
        """Read the entries with an id above `after`, in that order, `limit` at most.

        An `after` beyond the head, which comes from before a restoration, is the head.
        """

    def oldest() -> Deferred[int]:
        """The lowest id that retention has not dropped with its whole segment; the head + 1
        where nothing is left. Of what lies above it, rules of severity may have taken some."""

    def head() -> Deferred[int]:
        """The id of the newest entry; 0 for an empty store."""

    def gaps(
        host_id: str | None = None, after: GapPlace | None = None, limit: int = 1000
    ) -> Deferred[list[Gap]]:
        """The recorded gaps of one host, or of all, oldest first: those behind the place
        `after`, `limit` at most, and never more than 1000. Fewer than that are the last."""

    def restored(host_id: str, acked: int, now: int) -> Deferred[Gap | None]:
        """Note as a gap what a host had acked above its accepted_seq (F26), which stays as it is.

        Fires with the seqs that are newly noted, None if there are none. Should the host
        push some of them later, they are stored and are taken from the gap.
        """

    def histogram(which: EntryFilter, buckets: int) -> Deferred[Histogram]:
        """Count the matching entries in `buckets` (1 to 1000) equal spans of time.

        From `which.since` to `which.until`, or else to the ends of what is stored.
        Fails as `search` does.
        """

    def context(
        entry_id: int, before: int, after: int, same_source: bool = False
    ) -> Deferred[list[StoredEntry]]:
        """An entry and what its host sent right before and after it, in the order of seq.

        With `same_source`, only what came from the same source. Fails with UnknownEntry.
        """

    def known_values(
        kind: Literal["app", "source"], prefix: str = "", limit: int = 100
    ) -> Deferred[list[str]]:
        """The apps or sources of the stored entries that start with `prefix`, sorted."""

    def stats() -> Deferred[StoreStats]:
        """How much is stored."""


class IHostRegistry(Interface):
    """Who may connect: hosts, their token hashes and what was last seen of them."""

    def issue(
        name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> Deferred[HostRecord]:
        """Make a pending row with a one-time token (F6).

        With the `host_id` of an existing row, that row gets the token and may
        enrol anew (F29), keeping its accepted_seq.
        """

    def judge(host_id: str, token_hash: bytes, decide: Decide[T]) -> Deferred[T]:
        """Look up the candidates, decide, and write the row back: one transaction.

        `token_hash` finds the unbound pending row; comparing hashes is `decide`'s.
        Fires once the write is durable.
        """

    def update(host_id: str, change: Callable[[HostRecord], HostRecord]) -> Deferred[HostRecord]:
        """Change one row in one transaction; fails with UnknownHost."""

    def update_row(key: int, change: Callable[[HostRecord], HostRecord]) -> Deferred[HostRecord]:
        """The same by the row's key, for rows that have no host_id yet."""

    def forget(host_id: str) -> Deferred[None]:
        """Remove a host's row; fails with UnknownHost."""

    def forget_row(key: int) -> Deferred[None]:
        """The same by the row's key."""

    def find(ref: str) -> Deferred[list[HostRecord]]:
        """The rows whose host_id or name is `ref`."""

    def list_hosts() -> Deferred[list[HostRecord]]:
        """All rows, by name."""

    def seen(updates: Sequence[Presence]) -> Deferred[None]:
        """Write what was seen of live hosts; an update of a forgotten host is dropped.

        An update with a `session_id` applies only while that is the row's session.
        """


class ILogSource(Interface):
    """One running source of an agent, which gives entries to the agent's buffer."""

    name: str = Attribute("The source's configured name, unique within the agent.")

    def start() -> None:
        """Begin to read, from the checkpoint that the buffer keeps for this source."""

    def stop() -> Deferred[None]:
        """Stop reading; fires when nothing more will be given to the buffer."""

    def pause() -> None:
        """Stop giving entries for now (F19); what is not read stays where it is."""

    def resume() -> None:
        """Go on after `pause`."""


class IProbe(Interface):
    """One read-only probe that an agent can run (§4.6, F27)."""

    name: str = Attribute("The probe's registry key.")

    def run(args: dict[str, Any], timeout: float) -> Deferred[Any]:
        """Run within `timeout` seconds; fires with the value of ProbeOutput.output."""
