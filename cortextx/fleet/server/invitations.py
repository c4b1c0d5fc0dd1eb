"""Rows that nobody has claimed yet: how they are made, made again, and named (F6).

A pending row without a host_id is all that an invitation is. A name has one such row
at most: who issues again for it has lost the first invitation, or did not mean it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cortextx.errors import UnknownHost

if TYPE_CHECKING:
    from cortextx.interfaces.fleet import HostRecord, IHostRegistry

KEY = "key:"
"""What begins a reference to a row that has no host_id, as `key:7`."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A pending row and its one-time token, which is shown once.

    `replaced`: an unspent invitation of this name was there, and is good no more.
    """

    record: HostRecord
    token: str = field(repr=False)
    invitation: str = field(repr=False)
    replaced: bool = False


def unclaimed(record: HostRecord) -> bool:
    """Whether a row is an invitation that no host has used, for whichever host comes (F6)."""
    return record.host_id is None and record.state == "never_connected"


async def pending_row(
    registry: IHostRegistry,
    name: str,
    host_id: str | None,
    token_hash: bytes,
    expires_at: int,
    now: int,
) -> tuple[HostRecord, bool]:
    """The row of a new one-time token, and whether an invitation of that name was replaced.

    Times are µs UTC. With a host_id the registry decides (F29).
    """
    if host_id is not None:
        return await registry.issue(name, host_id, token_hash, expires_at, now), False
    for record in (await registry.find(name))[::-1]:
        if record.name != name or not unclaimed(record):
            continue

        def change(row: HostRecord) -> HostRecord:
            # A hello may have claimed it since.
            if not unclaimed(row):
                return row
            return replace(row, token_hash=token_hash, token_expires_at=expires_at)

        try:
            changed = await registry.update_row(record.key, change)
        except UnknownHost:
            continue
        if changed.token_hash == token_hash:
            return changed, True
    return await registry.issue(name, None, token_hash, expires_at, now), False


async def rows_named(registry: IHostRegistry, ref: str) -> list[HostRecord]:
    """The rows that `ref` names: a host_id, a name, or `key:N`."""
    found = await registry.find(ref)
    if not found and ref.startswith(KEY):
        found = [row for row in await registry.list_hosts() if ref == f"{KEY}{row.key}"]
    return found


def chosen(found: Sequence[HostRecord]) -> HostRecord | None:
    """The one row that is meant where nothing is destroyed: an enrolled host goes before
    invitations of its name. None if several may be meant (F39)."""
    enrolled = [record for record in found if not unclaimed(record)]
    meant = enrolled or found
    return meant[0] if len(meant) == 1 else None


def told_apart(found: Sequence[HostRecord]) -> str:
    """How rows of one name can be named, for a hint."""
    return ", ".join(
        f"{record.host_id or f'{KEY}{record.key}'}"
        f" ({'an invitation nobody used' if unclaimed(record) else record.state})"
        for record in found
    )
