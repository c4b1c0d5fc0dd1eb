"""The reference of what is kept beside logs and hosts, in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from zope.interface import implementer

from cortextx.errors import NameTaken, UnknownHost, UnknownName
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
from cortextx.stores.records import effective

Series = tuple[str, str, tuple[tuple[str, str], ...]]

MOST_SERIES = 2000


@implementer(IMetricStore, IProbeRecords, IAuditLog, IApiTokens, IConfigs)
class MemoryBeside:
    """The records' half of a store; every method has done its work when it returns."""

    def __init__(self) -> None:
        self._points: defaultdict[Series, dict[int, float]] = defaultdict(dict)
        self._probes: list[ProbeRecord] = []
        self._acts: list[AuditAct] = []
        self._tokens: list[ApiToken] = []
        self._configs: dict[tuple[ConfigScope, str], StoredConfig] = {}
        self._versions = 0
        self._groups: dict[str, list[str]] = {}

    def is_host(self, host_id: str) -> bool:
        """Whether a host has this id."""
        raise NotImplementedError

    # IMetricStore

    def store_samples(
        self, host_id: str, ts: int, samples: Sequence[SampleLike], now: int
    ) -> Deferred[SamplesStored]:
        """See IMetricStore."""
        return maybeDeferred(self._store_samples, host_id, ts, samples)

    def metrics(
        self,
        host_id: str | None = None,
        names: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
        limit: int = 10_000,
    ) -> Deferred[list[MetricPoint]]:
        """See IMetricStore."""
        found = [
            MetricPoint(*series, ts, value)
            for series, points in self._points.items()
            for ts, value in points.items()
            if host_id in (None, series[0])
            and (not names or series[1] in names)
            and (since is None or ts >= since)
            and (until is None or ts < until)
        ]
        found = sorted(found, key=lambda point: -point.ts)[: max(0, limit)]
        found.sort(key=lambda point: (point.host_id, point.name, point.labels, point.ts))
        return maybeDeferred(lambda: found)

    def latest_metrics(self, host_id: str | None = None) -> Deferred[list[MetricPoint]]:
        """See IMetricStore."""
        found = [
            MetricPoint(*series, max(points), points[max(points)])
            for series, points in sorted(self._points.items())
            if points and host_id in (None, series[0])
        ]
        return maybeDeferred(lambda: found)

    # IProbeRecords

    def record_probe(self, record: ProbeRecord) -> Deferred[int]:
        """See IProbeRecords."""
        return maybeDeferred(self._record_probe, record)

    def probe_history(
        self,
        host_id: str | None = None,
        probe: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[ProbeRecord]]:
        """See IProbeRecords."""
        found = [
            record
            for record in reversed(self._probes)
            if host_id in (None, record.host_id)
            and probe in (None, record.probe)
            and (before is None or record.id < before)
        ]
        return maybeDeferred(lambda: found[: max(0, limit)])

    # IAuditLog

    def record_act(
        self, actor: str, act: str, subject: str, details: Mapping[str, Any], at: int
    ) -> Deferred[int]:
        """See IAuditLog."""
        made = AuditAct(len(self._acts) + 1, at, actor, act, subject, dict(details))
        self._acts.append(made)
        return maybeDeferred(lambda: made.id)

    def acts(
        self,
        subject: str | None = None,
        actor: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Deferred[list[AuditAct]]:
        """See IAuditLog."""
        found = [
            act
            for act in reversed(self._acts)
            if subject in (None, act.subject)
            and actor in (None, act.actor)
            and (before is None or act.id < before)
        ]
        return maybeDeferred(lambda: found[: max(0, limit)])

    # IApiTokens

    def add_token(
        self, name: str, role: Role, token_hash: bytes, at: int, expires_at: int | None = None
    ) -> Deferred[ApiToken]:
        """See IApiTokens."""

        def add() -> ApiToken:
            if self._live(name) is not None:
                raise NameTaken(f"a token named {name!r} is there already")
            self._tokens.append(ApiToken(name, role, at, expires_at, token_hash=token_hash))
            return self._tokens[-1]

        return maybeDeferred(add)

    def list_tokens(self) -> Deferred[list[ApiToken]]:
        """See IApiTokens."""
        return maybeDeferred(lambda: sorted(self._tokens, key=lambda token: token.name))

    def find_token(self, token_hash: bytes) -> Deferred[ApiToken | None]:
        """See IApiTokens."""
        found = [t for t in self._tokens if t.token_hash == token_hash and t.revoked_at is None]
        return maybeDeferred(lambda: found[0] if found else None)

    def revoke_token(self, name: str, at: int) -> Deferred[ApiToken]:
        """See IApiTokens."""

        def revoke() -> ApiToken:
            place = self._live(name)
            if place is None:
                raise UnknownName(f"no token is named {name!r}")
            self._tokens[place] = replace(self._tokens[place], revoked_at=at)
            return self._tokens[place]

        return maybeDeferred(revoke)

    def tokens_used(self, used: Mapping[str, int]) -> Deferred[None]:
        """See IApiTokens."""
        for name, at in used.items():
            place = self._live(name)
            if place is not None:
                last = self._tokens[place].last_used_at
                self._tokens[place] = replace(
                    self._tokens[place], last_used_at=at if last is None else max(at, last)
                )
        return maybeDeferred(lambda: None)

    # IConfigs

    def set_config(
        self, scope: ConfigScope, name: str, members: Mapping[str, Any] | None, at: int
    ) -> Deferred[StoredConfig | None]:
        """See IConfigs."""
        return maybeDeferred(self._set_config, scope, name, members, at)

    def configs(self) -> Deferred[list[StoredConfig]]:
        """See IConfigs."""
        return maybeDeferred(lambda: [self._configs[key] for key in sorted(self._configs)])

    def effective_config(self, host_id: str) -> Deferred[EffectiveConfig]:
        """See IConfigs."""
        keys: list[tuple[ConfigScope, str]] = [("all", "")]
        keys += [("group", name) for name in self._groups.get(host_id, ())]
        keys.append(("host", host_id))
        layers = [self._configs[key] for key in keys if key in self._configs]
        return maybeDeferred(effective, host_id, layers)

    def set_groups(self, host_id: str, groups: Sequence[str], at: int) -> Deferred[None]:
        """See IConfigs."""

        def put() -> None:
            self._check_host(host_id)
            self._groups[host_id] = list(dict.fromkeys(groups))

        return maybeDeferred(put)

    def groups_of(self, host_id: str) -> Deferred[list[str]]:
        """See IConfigs."""
        return maybeDeferred(lambda: list(self._groups.get(host_id, ())))

    def groups(self) -> Deferred[dict[str, list[str]]]:
        """See IConfigs."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for host_id, names in sorted(self._groups.items()):
            for name in names:
                found[name].append(host_id)
        for scope, name in self._configs:
            if scope == "group":
                found[name] += []
        return maybeDeferred(lambda: dict(sorted(found.items())))

    def forget_configs(self, host_id: str) -> None:
        """Remove what is configured for a host that is forgotten."""
        self._configs.pop(("host", host_id), None)
        self._groups.pop(host_id, None)

    def _check_host(self, host_id: str) -> None:
        if not self.is_host(host_id):
            raise UnknownHost(f"no host is {host_id!r}")

    def _live(self, name: str) -> int | None:
        places = enumerate(self._tokens)
        return next((at for at, t in places if t.name == name and t.revoked_at is None), None)

    def _store_samples(self, host_id: str, ts: int, samples: Sequence[SampleLike]) -> SamplesStored:
        self._check_host(host_id)
        accepted = 0
        for sample in samples:
            labels = sample.labels if isinstance(sample.labels, Mapping) else {}
            series = (host_id, sample.name, tuple(sorted(labels.items())))
            full = sum(known[0] == host_id for known in self._points) >= MOST_SERIES
            if isfinite(sample.value) and (series in self._points or not full):
                self._points[series][ts] = sample.value
                accepted += 1
        return SamplesStored(accepted, len(samples) - accepted)

    def _record_probe(self, record: ProbeRecord) -> int:
        self._check_host(record.host_id)
        self._probes.append(replace(record, id=len(self._probes) + 1))
        return len(self._probes)

    def _set_config(
        self, scope: ConfigScope, name: str, members: Mapping[str, Any] | None, at: int
    ) -> StoredConfig | None:
        name = "" if scope == "all" else name
        if scope == "host":
            self._check_host(name)
        self._versions += 1
        if members is None:
            self._configs.pop((scope, name), None)
            return None
        made = StoredConfig(scope, name, dict(members), self._versions, at)
        self._configs[scope, name] = made
        return made
