"""The face of the SQLite store for what is kept beside logs and hosts.

Writes go to the writer's thread, reads to the lane of short reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import implementer

from cortextx.interfaces.fleet_records import (
    ApiToken,
    AuditAct,
    ConfigScope,
    EffectiveConfig,
    IApiTokens,
    IAuditLog,
    IConfigs,
    IMetricStore,
    IProbeRecords,
    MetricPoint,
    ProbeRecord,
    Role,
    SampleLike,
    SamplesStored,
    StoredConfig,
)
from cortextx.stores import sqlite_acts, sqlite_configs, sqlite_metrics
from cortextx.stores.sqlite_lanes import ReadingLane
from cortextx.stores.sqlite_writer import WritingThread


@implementer(IMetricStore, IProbeRecords, IAuditLog, IApiTokens, IConfigs)
class SqliteBeside:
    """The records' half of a store."""

    _writer: WritingThread
    _reads: ReadingLane

    # IMetricStore

    def store_samples(
        self, host_id: str, ts: int, samples: Sequence[SampleLike], now: int
    ) -> Deferred[SamplesStored]:
        """See IMetricStore."""
        return self._writer.put(lambda w: w.metrics.store(host_id, ts, samples, now))

    def metrics(
        self,
        host_id: str | None = None,
        names: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
        limit: int = 10_000,
    ) -> Deferred[list[MetricPoint]]:
        """See IMetricStore."""
        return self._reads.ask(
            lambda r: r.read(
                lambda c: sqlite_metrics.metrics(c, host_id, names, since, until, limit)
            )
        )

    def latest_metrics(self, host_id: str | None = None) -> Deferred[list[MetricPoint]]:
        """See IMetricStore."""
        return self._reads.ask(lambda r: r.read(lambda c: sqlite_metrics.latest(c, host_id)))

    # IProbeRecords

    def record_probe(self, record: ProbeRecord) -> Deferred[int]:
        """See IProbeRecords."""
        return self._writer.put(lambda w: w.acts.record_probe(record))

    def probe_history(
        self,
        host_id: str | None = None,
        probe: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[ProbeRecord]]:
        """See IProbeRecords."""
        return self._reads.ask(
            lambda r: r.read(lambda c: sqlite_acts.probe_history(c, host_id, probe, before, limit))
        )

    # IAuditLog

    def record_act(
        self, actor: str, act: str, subject: str, details: Mapping[str, Any], at: int
    ) -> Deferred[int]:
        """See IAuditLog."""
        return self._writer.put(lambda w: w.acts.record_act(actor, act, subject, details, at))

    def acts(
        self,
        subject: str | None = None,
        actor: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[AuditAct]]:
        """See IAuditLog."""
        return self._reads.ask(
            lambda r: r.read(lambda c: sqlite_acts.acts(c, subject, actor, before, limit))
        )

    # IApiTokens

    def add_token(
        self, name: str, role: Role, token_hash: bytes, at: int, expires_at: int | None = None
    ) -> Deferred[ApiToken]:
        """See IApiTokens."""
        return self._writer.put(lambda w: w.acts.add_token(name, role, token_hash, at, expires_at))

    def list_tokens(self) -> Deferred[list[ApiToken]]:
        """See IApiTokens."""
        return self._reads.ask(lambda r: r.read(sqlite_acts.list_tokens))

    def find_token(self, token_hash: bytes) -> Deferred[ApiToken | None]:
        """See IApiTokens."""
        return self._reads.ask(lambda r: r.read(lambda c: sqlite_acts.find_token(c, token_hash)))

    def revoke_token(self, name: str, at: int) -> Deferred[ApiToken]:
        """See IApiTokens."""
        return self._writer.put(lambda w: w.acts.revoke_token(name, at))

    def tokens_used(self, used: Mapping[str, int]) -> Deferred[None]:
        """See IApiTokens."""
        return self._writer.put(lambda w: w.acts.tokens_used(used))

    # IConfigs

    def set_config(
        self, scope: ConfigScope, name: str, members: Mapping[str, Any] | None, at: int
    ) -> Deferred[StoredConfig | None]:
        """See IConfigs."""
        return self._writer.put(lambda w: w.configs.set_config(scope, name, members, at))

    def configs(self) -> Deferred[list[StoredConfig]]:
        """See IConfigs."""
        return self._reads.ask(lambda r: r.read(sqlite_configs.configs))

    def effective_config(self, host_id: str) -> Deferred[EffectiveConfig]:
        """See IConfigs."""
        return self._reads.ask(
            lambda r: r.read(lambda c: sqlite_configs.effective_config(c, host_id))
        )

    def set_groups(self, host_id: str, groups: Sequence[str], at: int) -> Deferred[None]:
        """See IConfigs."""
        return self._writer.put(lambda w: w.configs.set_groups(host_id, groups))

    def groups_of(self, host_id: str) -> Deferred[list[str]]:
        """See IConfigs."""
        return self._reads.ask(lambda r: r.read(lambda c: sqlite_configs.groups_of(c, host_id)))

    def groups(self) -> Deferred[dict[str, list[str]]]:
        """See IConfigs."""
        return self._reads.ask(lambda r: r.read(sqlite_configs.groups))
