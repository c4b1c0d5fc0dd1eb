"""What the HTTP API answers, as types, for its description and for tests of it (PURE).

Rows come from `fleet.server.rows`; these say which members they have. Moments
are RFC 3339 in UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from cortextx.core.syslog import Severity
from cortextx.fleet.contract import Uuid
from cortextx.interfaces.fleet import HostState
from cortextx.interfaces.fleet_records import ConfigScope, ProbeOutcome, Role


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base: these members and no others."""


class Entry(Answer, frozen=True):
    """A stored entry; `id` is what a tail goes on from, `ts_offset` minutes east of UTC (F15)."""

    id: int
    host: str
    host_id: Uuid
    seq: int
    ts: datetime
    ts_offset: int
    received_at: datetime
    severity: Severity
    facility: str | None
    app_name: str | None
    process_id: str | None
    message: str
    source: str
    metadata: dict[str, Any] | None


class EntryPage(Answer, frozen=True):
    """A page of a search; `cursor` null means that there is no more."""

    entries: list[Entry]
    cursor: str | None


class Entries(Answer, frozen=True):
    """Entries around one."""

    entries: list[Entry]


class Bucket(Answer, frozen=True):
    """How many entries lie in the span that begins at `start`."""

    start: datetime
    count: int


class HistogramAnswer(Answer, frozen=True):
    """Counts in equal spans of `step_seconds`; what lies before `counted_from` may be missing."""

    buckets: list[Bucket]
    step_seconds: float
    total: int
    complete: bool
    counted_from: datetime | None


class Values(Answer, frozen=True):
    """Values that stored entries have."""

    values: list[str]


class ProbableClone(Answer, frozen=True):
    """A host's sessions superseded one another too often (F14), the last time from these."""

    at: datetime
    supersessions: int
    addresses: list[str]


class Host(Answer, frozen=True):
    """A host and what was last seen of it."""

    name: str
    host_id: Uuid | None
    state: HostState
    connected: bool
    connected_since: datetime | None
    last_seen: datetime | None
    last_handshake: datetime | None
    last_disconnect_reason: str | None
    accepted_seq: int
    push_lag_seq: int | None
    queue_depth: int | None
    buffer_bytes: int | None
    lost_entries: int
    gap_count: int
    clock_skew_seconds: float | None
    clock_off: bool
    last_heartbeat: datetime | None
    heartbeat_overdue: bool
    probable_clone: ProbableClone | None
    hostname: str | None
    agent_version: str | None
    remote_address: str | None
    session_id: str | None
    rotation_pending: bool
    token_expires_at: datetime | None
    created_at: datetime


class ShownHost(Host, frozen=True):
    """A host with all that is known of it."""

    platform: dict[str, Any] | None
    capabilities: dict[str, Any] | None
    groups: list[str]


class Hosts(Answer, frozen=True):
    """All hosts, by name."""

    hosts: list[Host]


class Issued(Answer, frozen=True):
    """A pending host; its one-time token and invitation are told this once (F6).

    `replaced`: an invitation of that name which nobody had used is good no more.
    """

    name: str
    host_id: Uuid | None
    token: str
    invitation: str
    replaced: bool
    expires_at: datetime


class Acted(Answer, frozen=True):
    """The host that was acted on."""

    name: str
    host_id: Uuid | None


class GapRow(Answer, frozen=True):
    """Entries that never came (F13); without seqs where they were lost before numbering (F37)."""

    host: str | None
    host_id: Uuid
    first: int | None
    last: int | None
    entries: int
    detected_at: datetime
    cause: str | None
    source: str | None
    detail: str | None


class Gaps(Answer, frozen=True):
    """A page of gaps, the oldest first; with a cursor there may be more."""

    gaps: list[GapRow]
    cursor: str | None


class HostAudit(Answer, frozen=True):
    """Whether all that a host numbered is here, in the range that was asked for."""

    host: str
    host_id: Uuid
    complete: bool
    accepted_seq: int
    missing_entries: int
    awaited_entries: int
    gaps: list[GapRow]
    """A page of them; the numbers above are of all."""
    cursor: str | None


class Point(Answer, frozen=True):
    """One sample."""

    host_id: Uuid
    name: str
    labels: dict[str, str]
    ts: datetime
    value: float


class Points(Answer, frozen=True):
    """Samples by series and time."""

    points: list[Point]


class ProbeRow(Answer, frozen=True):
    """One probe that was run on a host, and what came of it (§4.6)."""

    id: int
    host: str | None
    host_id: Uuid
    probe: str
    args: Any
    actor: str
    requested_at: datetime
    finished_at: datetime
    outcome: ProbeOutcome
    code: int | None
    output: Any
    exit_code: int | None
    stderr: str | None
    duration_ms: int | None


class Probes(Answer, frozen=True):
    """Probes, the newest first; go on with `before` = `next`, null at the end."""

    probes: list[ProbeRow]
    next: int | None


class Layer(Answer, frozen=True):
    """What one scope sets."""

    scope: ConfigScope
    name: str
    members: dict[str, Any]
    version: int
    changed_at: datetime


class Layers(Answer, frozen=True):
    """All that is set, for all hosts, for groups, for single hosts; what nobody sets is
    as in `defaults`."""

    configs: list[Layer]
    defaults: dict[str, Any]


class ConfigSet(Answer, frozen=True):
    """What was set, its version (null if nothing is set any more), and who was told."""

    scope: ConfigScope
    name: str
    version: int | None
    told: list[Uuid]


class ConfigPushed(Answer, frozen=True):
    """Who was told."""

    told: list[Uuid]


class HostGroups(Answer, frozen=True):
    """The groups that a host is in, and who was told another config for it."""

    host_id: Uuid
    groups: list[str]
    told: list[Uuid]


class Told(Answer, frozen=True):
    """When a host was told a config last, in its live session."""

    at: datetime
    fingerprint: str


class HostConfig(Answer, frozen=True):
    """What a host is to do (§4.1), which scopes had their part in it, and what it was told.

    `ignored` members are not good for this version of the server.
    """

    host: str
    host_id: Uuid
    groups: list[str]
    config: dict[str, Any]
    fingerprint: str
    layers: list[Layer]
    version: int
    ignored: list[str]
    told: Told | None
    in_step: bool


class Group(Answer, frozen=True):
    """A group of hosts."""

    name: str
    host_ids: list[Uuid]


class Groups(Answer, frozen=True):
    """All groups, by name."""

    groups: list[Group]


class Act(Answer, frozen=True):
    """An administrative act (S8)."""

    id: int
    at: datetime
    actor: str
    act: str
    subject: str
    details: dict[str, Any]


class Acts(Answer, frozen=True):
    """Acts, the newest first; go on with `before` = `next`, null at the end."""

    acts: list[Act]
    next: int | None


class Token(Answer, frozen=True):
    """A named token; the token itself is told when it is made, and never again."""

    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class Tokens(Answer, frozen=True):
    """All tokens, by name."""

    tokens: list[Token]


class NewToken(Token, frozen=True):
    """A token that was just made."""

    token: str


class Who(Answer, frozen=True):
    """Who the request's token is."""

    name: str
    role: Role


class Admission(Answer, frozen=True):
    """Connections that have not authenticated yet, and what was refused before that."""

    hellos_in_flight: int
    refused_connections: int
    refused_hellos: int


class Samples(Answer, frozen=True):
    """Samples that hosts pushed (F24)."""

    accepted: int
    dropped: int


class Ingest(Answer, frozen=True):
    """What waits for the store, and what it took since the start."""

    waiting_batches: int
    waiting_bytes: int
    commits: int
    entries: int
    failed_commits: int
    quota_refusals: int


class Stored(Answer, frozen=True):
    """How much is stored; sizes in bytes."""

    entries: int
    segments: int
    size: int
    free: int
    oldest: datetime | None
    unindexed: int
    hosts: int
    gaps: int
    disk_free: int | None
    damaged: int
    """Entries that were found damaged since the server's start."""
    excess: int
    """Bytes beyond `max_mib` about which retention can do nothing."""
    made_at: datetime | None
    """When the store was made, if that is known."""


class Status(Answer, frozen=True):
    """How the server is."""

    version: str
    pid: int
    started_at: datetime
    listen: list[str]
    connections: int
    live_hosts: int
    hosts: dict[str, int]
    newest_entry_id: int
    admission: Admission
    ingest: Ingest
    metrics: Samples
    waiting_probes: int
    store: Stored
    warnings: list[str]
    """What an operator should look at."""


class TailGap(Answer, frozen=True):
    """The data of an event `gap`: entries behind `after`, up to `to`, were left out.

    With `store_restored` the client had come further than this store ever did; with
    `expired` what it had not got yet was dropped for its age.
    """

    after: int
    to: int
    reason: Literal["slow_reader", "store_restored", "expired"]
