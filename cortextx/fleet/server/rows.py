"""Values of the fleet as people and programs see them: hosts, entries, gaps (PURE).

The admin socket, the HTTP API and so the command line show the same members.
Times are RFC 3339 in UTC, severities names; no hash of a token is ever in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from cortextx.core.syslog import SEVERITIES
from cortextx.fleet.server.configs import fingerprint

if TYPE_CHECKING:
    from cortextx.fleet.server.clones import CloneWatch
    from cortextx.fleet.server.host_configs import HostConfig
    from cortextx.fleet.server.presence import Lags
    from cortextx.interfaces.fleet import Gap, HostRecord, StoredEntry
    from cortextx.interfaces.fleet_records import ProbeRecord, StoredConfig

MAX_SKEW = 300_000_000
"""A clock that is further off than this is told (µs, F15, A46)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


class LiveSession(Protocol):
    """What is asked of a host's live session."""

    @property
    def since(self) -> int:
        """Since when it is active, µs UTC."""

    @property
    def last_beat(self) -> int | None:
        """When its newest heartbeat came, µs UTC."""


class Connected(Protocol):
    """Who knows which hosts are connected: the fleet server."""

    @property
    def clones(self) -> CloneWatch:
        """Who supersedes itself too often."""

    def live(self, host_id: str | None) -> LiveSession | None:
        """The live session of a host."""

    def heartbeat_overdue(self, host_id: str | None) -> bool:
        """Whether a live host has sent no heartbeat for long (A53)."""

    @property
    def lags(self) -> Lags:
        """How far hosts are behind."""


def host_row(record: HostRecord, fleet: Connected) -> dict[str, Any]:
    """A host as `agent list` shows it; no hash of a token is in it (F23)."""
    live = fleet.live(record.host_id)
    clone = fleet.clones.report(record.host_id)
    skew = record.clock_skew
    return {
        "name": record.name,
        "host_id": record.host_id,
        # After a re-issue the row waits for the new token; who is connected is active all the same.
        "state": "active" if live and record.state == "never_connected" else record.state,
        "connected": live is not None,
        "connected_since": None if live is None else moment(live.since),
        "last_seen": moment(record.last_seen),
        "last_handshake": moment(record.last_handshake),
        "last_disconnect_reason": record.last_disconnect_reason,
        "accepted_seq": record.accepted_seq,
        "push_lag_seq": fleet.lags.of(record),
        "queue_depth": record.queue_depth,
        "buffer_bytes": record.buffer_bytes,
        "lost_entries": record.lost_entries,
        "gap_count": record.gap_count,
        "clock_skew_seconds": None if skew is None else skew / 1e6,
        "clock_off": skew is not None and abs(skew) > MAX_SKEW,
        "last_heartbeat": None if live is None else moment(live.last_beat),
        "heartbeat_overdue": fleet.heartbeat_overdue(record.host_id),
        "probable_clone": None
        if clone is None
        else {
            "at": moment(clone.at),
            "supersessions": clone.supersessions,
            "addresses": list(clone.addresses),
        },
        "hostname": record.hostname,
        "agent_version": record.agent_version,
        "remote_address": record.remote_address,
        "session_id": record.session_id,
        "rotation_pending": record.rotation_pending,
        "token_expires_at": moment(record.token_expires_at),
        "created_at": moment(record.created_at),
    }


def entry_row(entry: StoredEntry) -> dict[str, Any]:
    """An entry as search and tail show it; `ts_offset` is in minutes east of UTC (F15)."""
    return {
        "id": entry.id,
        "host": entry.host,
        "host_id": entry.host_id,
        "seq": entry.seq,
        "ts": moment(entry.ts),
        "ts_offset": entry.ts_offset,
        "received_at": moment(entry.received_at),
        "severity": SEVERITIES[entry.severity],
        "facility": entry.facility,
        "app_name": entry.app_name,
        "process_id": entry.process_id,
        "message": entry.message,
        "source": entry.source,
        "metadata": json_of(entry.metadata),
    }


def gap_row(gap: Gap, host: str | None) -> dict[str, Any]:
    """A gap as audits show it; `host` is the host's name, if it still has one."""
    return {
        "host": host,
        "host_id": gap.host_id,
        "first": gap.first,
        "last": gap.last,
        "entries": gap.entries,
        "detected_at": moment(gap.detected_at),
        "cause": gap.cause,
        "source": gap.source,
        "detail": gap.detail,
    }


def probe_row(record: ProbeRecord, host: str | None) -> dict[str, Any]:
    """A probe and what came of it; a failure's data stands as `output`."""
    return {
        "id": record.id,
        "host": host,
        "host_id": record.host_id,
        "probe": record.probe,
        "args": json_of(record.args),
        "actor": record.actor,
        "requested_at": moment(record.requested_at),
        "finished_at": moment(record.finished_at),
        "outcome": record.outcome,
        "code": record.code,
        "output": json_of(record.output),
        "exit_code": record.exit_code,
        "stderr": record.stderr,
        "duration_ms": record.duration_ms,
    }


def layer_row(layer: StoredConfig) -> dict[str, Any]:
    """What one scope sets."""
    return {
        "scope": layer.scope,
        "name": layer.name,
        "members": dict(layer.members),
        "version": layer.version,
        "changed_at": moment(layer.changed_at),
    }


def config_row(shown: HostConfig, record: HostRecord, groups: Sequence[str]) -> dict[str, Any]:
    """What a host is told (§4.1), by which layers, and whether it was told that last."""
    told = shown.told
    return {
        "host": record.name,
        "host_id": shown.host_id,
        "groups": list(groups),
        "config": shown.wanted,
        "fingerprint": fingerprint(shown.wanted),
        "layers": [layer_row(layer) for layer in shown.layers],
        "version": shown.version,
        "ignored": list(shown.ignored),
        "told": None
        if told is None
        else {"at": moment(told.at), "fingerprint": fingerprint(told.config)},
        "in_step": shown.in_step,
    }


def json_of(text: str | None) -> Raw | None:
    """Stored JSON, to be sent as it is but on one line: a raw newline is never in a string."""
    return Raw(text.replace("\n", " ")) if text else None


def moment(at: int | None) -> str | None:
    """µs since the epoch as RFC 3339 in UTC, to the microsecond.

    An entry's own time may be up to a day outside the years 1 to 9999 in UTC, as it has
    an offset (F15); such a one is shown as the first or last moment that can be written.
    """
    if at is None:
        return None
    at = min(max(at, _FIRST), _LAST)
    return f"{_second(at // 1_000_000)}.{at % 1_000_000:06}Z"


@lru_cache(maxsize=4096)
def _second(at: int) -> str:
    """Seconds since the epoch as date and time: rows that are shown together share many."""
    return (_EPOCH + timedelta(seconds=at)).isoformat()[:-6]


def micros(at: datetime) -> int:
    """A moment as µs since the epoch."""
    return (at - _EPOCH) // _MICROSECOND
