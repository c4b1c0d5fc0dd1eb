"""The table `[store]` of the server's file, as the SQLite store takes it."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed

from cortextx.core.syslog import SEVERITY_NUMBER
from cortextx.fleet.server.keeping import StoreTable
from cortextx.stores.retention import Retention
from cortextx.stores.sqlite import SqliteSettings

MIB = 1024 * 1024
DAY = 86_400.0


def retention(table: StoreTable) -> Retention:
    """What is kept for how long."""
    return Retention(
        entries=_seconds(table.keep_days),
        lesser=tuple(
            (SEVERITY_NUMBER[rule.severity], rule.days * DAY) for rule in table.keep_lesser
        ),
        max_bytes=None if table.max_mib is None else table.max_mib * MIB,
        metrics=_seconds(table.metrics_days),
        probes=_seconds(table.probes_days),
        acts=_seconds(table.acts_days),
        gaps=_seconds(table.gaps_days),
    )


def store_settings(table: StoreTable) -> SqliteSettings:
    """How the store behaves."""
    return SqliteSettings(retention=retention(table), reserve=table.reserve_mib * MIB)


def keep_as(store: Any, table: StoreTable) -> Deferred[None]:
    """Have a store that runs keep things for as long as this says, if it can."""
    change = getattr(store, "set_retention", None)
    if change is None:
        return succeed(None)
    changed: Deferred[None] = change(retention(table), table.reserve_mib * MIB)
    return changed


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * DAY
