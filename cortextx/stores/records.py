"""What every store does to hosts' rows and configs, whatever it keeps them in (PURE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cortextx.interfaces.fleet import HostRecord, Presence
from cortextx.interfaces.fleet_records import EffectiveConfig, StoredConfig

_SEEN = ("last_seen", "last_disconnect_reason", "queue_depth", "buffer_bytes", "push_lag_seq",
         "clock_skew")  # fmt: skip


def reissued(record: HostRecord, name: str, token_hash: bytes, expires_at: int) -> HostRecord:
    """Let an existing host enrol anew with a one-time token, keeping its accepted_seq (F29).

    The token that the host works with until then stays good as `token_hash_prev`
    until the new one is spent, so that an issue in error bricks nobody; a revoked
    host has none. Its live session, if any, loses its claim on the row.
    """
    kept, kept_until = record.token_hash, record.token_expires_at
    if record.state == "never_connected":
        kept, kept_until = record.token_hash_prev, record.prev_expires_at
    elif record.state == "revoked":
        kept, kept_until = None, None
    return replace(
        record,
        name=name,
        state="never_connected",
        token_hash=token_hash,
        token_expires_at=expires_at,
        token_hash_prev=kept,
        prev_expires_at=kept_until,
        rotation_pending=False,
    )


def seen(record: HostRecord, update: Presence) -> HostRecord:
    """Write what was seen of a live host into its row.

    An update of another session than the row's changes nothing. A host that is
    revoked, or that is to enrol, stays so.
    """
    if update.session_id is not None and update.session_id != record.session_id:
        return record
    known = {name: getattr(update, name) for name in _SEEN if getattr(update, name) is not None}
    if update.state is not None and record.state in ("active", "disconnected"):
        known["state"] = update.state
    return replace(record, **known)


def effective(host_id: str, layers: Sequence[StoredConfig]) -> EffectiveConfig:
    """What these layers set together; a member of a later one replaces the earlier one's."""
    members: dict[str, Any] = {}
    for layer in layers:
        members.update(layer.members)
    version = max((layer.version for layer in layers), default=0)
    return EffectiveConfig(host_id, members, tuple(layers), version)
