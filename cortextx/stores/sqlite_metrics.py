# ruff: noqa: S608 - only question marks are put together, values are bound.
"""Samples of hosts: a row for each series, and its points by time (F24)."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cortextx.interfaces.fleet_records import MetricPoint, SampleLike, SamplesStored
from cortextx.stores.sqlite_file import transaction
from cortextx.stores.sqlite_hosts import live_key

MOST_SERIES = 2000
"""Series of one host; samples of further ones are dropped."""
MOST_LABELS = 4096
"""Characters of a series' labels, as JSON."""
MOST_POINTS = 100_000
"""Points of one answer."""
REMEMBERED = 200_000
"""Series whose keys the writer keeps in memory."""
_SIZES = (64, 8, 1)
"""Rows of a statement: few sizes, so that they stay prepared."""
_INSERT = {
    size: "INSERT OR REPLACE INTO metric_points (series, ts, value, received_at) VALUES "
    + ",".join(["(?,?,?,?)"] * size)
    for size in _SIZES
}


class MetricTables:
    """What the writer does with samples; every public method is one transaction."""

    def __init__(self, connection: sqlite3.Connection, most_series: int = MOST_SERIES) -> None:
        self._connection = connection
        self._most = most_series
        self._series: dict[tuple[int, str, str], int] = {}

    def forget(self) -> None:
        """Remember no series, because rows of them were removed."""
        self._series.clear()

    def store(
        self, host_id: str, ts: int, samples: Sequence[SampleLike], now: int
    ) -> SamplesStored:
        """Store one push that came `now`; see IMetricStore."""
        try:
            with transaction(self._connection):
                host = live_key(self._connection, host_id)
                points = {}
                accepted = 0
                for sample in samples:
                    series = self._series_of(host, sample)
                    if series is not None:
                        accepted += 1
                        points[series] = sample.value
                self._insert([each for key, v in points.items() for each in (key, ts, v, now)])
        except BaseException:
            self.forget()
            raise
        return SamplesStored(accepted, len(samples) - accepted)

    def _series_of(self, host: int, sample: SampleLike) -> int | None:
        labels = _labels(sample.labels)
        if not math.isfinite(sample.value) or len(labels) > MOST_LABELS:
            return None
        known = self._series.get((host, sample.name, labels))
        if known is None:
            known = self._find_or_make(host, sample.name, labels)
            if known is not None:
                if len(self._series) >= REMEMBERED:
                    self.forget()
                self._series[host, sample.name, labels] = known
        return known

    def _find_or_make(self, host: int, name: str, labels: str) -> int | None:
        row = self._connection.execute(
            "SELECT key FROM metric_series WHERE host = ? AND name = ? AND labels = ?",
            (host, name, labels),
        ).fetchone()
        if row is not None:
            return int(row[0])
        (series,) = self._connection.execute(
            "SELECT count(*) FROM metric_series WHERE host = ?", (host,)
        ).fetchone()
        if series >= self._most:
            return None
        return self._connection.execute(
            "INSERT INTO metric_series (host, name, labels) VALUES (?, ?, ?)", (host, name, labels)
        ).lastrowid

    def _insert(self, values: list[Any]) -> None:
        at = 0
        for size in _SIZES:
            while len(values) - at >= 4 * size:
                self._connection.execute(_INSERT[size], values[at : at + 4 * size])
                at += 4 * size


def metrics(
    connection: sqlite3.Connection,
    host_id: str | None,
    names: Sequence[str],
    since: int | None,
    until: int | None,
    limit: int,
) -> list[MetricPoint]:
    """The newest points that are meant, by series and time."""
    rows = connection.execute(
        "SELECT * FROM (SELECT h.host_id, s.name, s.labels, p.ts, p.value"
        " FROM metric_series s JOIN hosts h ON h.key = s.host"
        " JOIN metric_points p ON p.series = s.key"
        " WHERE (?1 IS NULL OR h.host_id = ?1)"
        " AND (?2 = '[]' OR s.name IN (SELECT value FROM json_each(?2)))"
        " AND p.ts >= ?3 AND p.ts < ?4 ORDER BY p.ts DESC LIMIT ?5) ORDER BY 1, 2, 3, 4",
        (
            host_id,
            msgspec.json.encode(list(names)).decode(),
            -(2**63) if since is None else since,
            2**63 - 1 if until is None else until,
            max(0, min(limit, MOST_POINTS)),
        ),
    )
    return [_point(row) for row in rows]


def latest(connection: sqlite3.Connection, host_id: str | None) -> list[MetricPoint]:
    """The newest point of every series."""
    rows = connection.execute(
        "SELECT h.host_id, s.name, s.labels, p.ts, p.value"
        " FROM metric_series s JOIN hosts h ON h.key = s.host AND h.forgotten_at IS NULL"
        " JOIN metric_points p ON p.series = s.key AND p.ts ="
        " (SELECT max(ts) FROM metric_points WHERE series = s.key)"
        " WHERE ?1 IS NULL OR h.host_id = ?1 ORDER BY 1, 2, 3 LIMIT ?2",
        (host_id, MOST_POINTS),
    )
    return [_point(row) for row in rows]


def _labels(labels: Any) -> str:
    if not isinstance(labels, Mapping) or not labels:
        return "[]"
    return msgspec.json.encode(sorted(labels.items())).decode()


def _point(row: tuple[Any, ...]) -> MetricPoint:
    host_id, name, labels, ts, value = row
    pairs = msgspec.json.decode(labels, type=tuple[tuple[str, str], ...])
    return MetricPoint(host_id, name, pairs, ts, value)
