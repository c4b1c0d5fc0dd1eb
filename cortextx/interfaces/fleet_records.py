"""What a fleet server keeps beside logs and hosts: metrics, probe results, acts, tokens, configs.

Times are integers, microseconds since 1970-01-01T00:00:00Z. Methods fire when
what they wrote is durable, and fail with StoreFull or another StoreError.
A host is named by its host_id; where none has it, they fail with UnknownHost.
Lists of records are newest first; `before` is the `id` of the last one seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from zope.interface import Interface

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

Role = Literal["viewer", "operator", "admin"]
"""What a token of the HTTP API may do (S8): read; also probe and push; everything."""
ProbeOutcome = Literal["ok", "failed", "timeout", "unavailable", "invalid", "lost", "error"]
"""How a probe ended: `invalid` for refused arguments, `lost` with its connection."""
ConfigScope = Literal["all", "group", "host"]


class SampleLike(Protocol):
    """What a store needs of one sample; `fleet.contract.MetricSample` has it.

    `labels` that are no mapping count as none.
    """

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def labels(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class SamplesStored:
    """How many samples of a push were stored, and how many were not (F24)."""

    accepted: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One stored sample. `labels` are sorted pairs."""

    host_id: str
    name: str
    labels: tuple[tuple[str, str], ...]
    ts: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """One probe that was asked of a host, and what came of it (§4.6, §4.7).

    `args` and `output` are JSON texts; `code` is the JSON-RPC error code if it
    failed, `duration_ms` what the agent said. `id` is the store's, 0 before.
    """

    host_id: str
    probe: str
    args: str
    actor: str
    requested_at: int
    finished_at: int
    outcome: ProbeOutcome
    code: int | None = None
    output: str | None = None
    exit_code: int | None = None
    stderr: str | None = None
    duration_ms: int | None = None
    id: int = 0


@dataclass(frozen=True, slots=True)
class AuditAct:
    """One administrative act: who did what to whom. Never a secret in `details` (F23)."""

    id: int
    at: int
    actor: str
    act: str
    subject: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A named token of the HTTP API; the hash is BLAKE3, 32 bytes."""

    name: str
    role: Role
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    token_hash: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The members of an AgentConfig that one scope sets.

    `scope` "all" (`name` is "") is for every host, "group" for a group's, "host"
    for the host whose host_id is `name`. `version` grows with every change.
    """

    scope: ConfigScope
    name: str
    members: Mapping[str, Any]
    version: int
    changed_at: int


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """What a host's scopes set together: a later layer replaces members of an earlier.

    The layers are "all", the host's groups in their order, "host". `version` is
    the highest of theirs, 0 if there is none. The server's defaults are not in it.
    """

    host_id: str
    members: Mapping[str, Any]
    layers: Sequence[StoredConfig]
    version: int


class IMetricStore(Interface):
    """Samples of hosts, kept for a short time (F24)."""

    def store_samples(
        host_id: str, ts: int, samples: Sequence[SampleLike], now: int
    ) -> Deferred[SamplesStored]:
        """Store the samples of one push, all taken at `ts`.

        A sample is dropped if its series (name and labels) is new and the host
        has its full number of series. The same series and `ts` again replaces.
        """

    def metrics(
        host_id: str | None = None,
        names: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
        limit: int = 10_000,
    ) -> Deferred[list[MetricPoint]]:
        """Points by series and time, the newest `limit` of them; `until` is exclusive."""

    def latest_metrics(host_id: str | None = None) -> Deferred[list[MetricPoint]]:
        """The newest point of every series."""


class IProbeRecords(Interface):
    """What probes answered."""

    def record_probe(record: ProbeRecord) -> Deferred[int]:
        """Keep a probe's result; fires with its id."""

    def probe_history(
        host_id: str | None = None,
        probe: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[ProbeRecord]]:
        """The records of one host or all, of one probe or all."""


class IAuditLog(Interface):
    """Administrative acts, in the order in which they were done."""

    def record_act(
        actor: str, act: str, subject: str, details: Mapping[str, Any], at: int
    ) -> Deferred[int]:
        """Keep an act (`act` as "agent.revoke"); fires with its id."""

    def acts(
        subject: str | None = None,
        actor: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[AuditAct]]:
        """The acts on one subject or all, of one actor or all."""


class IApiTokens(Interface):
    """Named tokens of the HTTP API, as hashes only."""

    def add_token(
        name: str, role: Role, token_hash: bytes, at: int, expires_at: int | None = None
    ) -> Deferred[ApiToken]:
        """Add a token; fails with NameTaken while another of that name is not revoked."""

    def list_tokens() -> Deferred[list[ApiToken]]:
        """All tokens by name, revoked ones too."""

    def find_token(token_hash: bytes) -> Deferred[ApiToken | None]:
        """The token with this hash that is not revoked; expiry is the caller's to judge."""

    def revoke_token(name: str, at: int) -> Deferred[ApiToken]:
        """Revoke the token of that name; fails with UnknownName."""

    def tokens_used(used: Mapping[str, int]) -> Deferred[None]:
        """Note when tokens (by name) were last used."""


class IConfigs(Interface):
    """What hosts are configured to do, by host and by group; members are the caller's to check."""

    def set_config(
        scope: ConfigScope, name: str, members: Mapping[str, Any] | None, at: int
    ) -> Deferred[StoredConfig | None]:
        """Replace what a scope sets; None removes it. `version` is new either way.

        Fails with UnknownHost for a host that is none.
        """

    def configs() -> Deferred[list[StoredConfig]]:
        """All of them: "all", then groups and hosts by name."""

    def effective_config(host_id: str) -> Deferred[EffectiveConfig]:
        """What is set for a host; of an unknown host, what is set for all."""

    def set_groups(host_id: str, groups: Sequence[str], at: int) -> Deferred[None]:
        """Put a host into these groups and no others; a later group's config wins."""

    def groups_of(host_id: str) -> Deferred[list[str]]:
        """A host's groups in their order."""

    def groups() -> Deferred[dict[str, list[str]]]:
        """All groups that have members or a config, with their members' host_ids."""
