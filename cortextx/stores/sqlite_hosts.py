# ruff: noqa: S608 - names of tables and columns are our own, values are bound.
"""The host registry's rows, on the writer's connection (F5 to F8, F29).

Hosts are found by the live rows only; a forgotten one stays behind without its
secrets, because entries and gaps name their host by its key. `accepted_seq` and
the counts of gaps belong to `SegmentTables.append` and are never written here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from cortextx.errors import UnknownHost
from cortextx.interfaces.fleet import Candidates, Decide, HostRecord, Presence, T
from cortextx.stores.records import reissued, seen
from cortextx.stores.sqlite_file import transaction

COLUMNS = tuple(field.name for field in fields(HostRecord))
_KEPT = ("key", "created_at", "accepted_seq", "lost_entries", "gap_count")
_WRITTEN = tuple(name for name in COLUMNS if name not in _KEPT)
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM hosts WHERE forgotten_at IS NULL"
_UPDATE = f"UPDATE hosts SET {', '.join(f'{name} = ?' for name in _WRITTEN)} WHERE key = ?"


def find(connection: sqlite3.Connection, ref: str) -> list[HostRecord]:
    """The rows whose host_id or name is `ref`, by name and age."""
    return _read(connection, " AND (host_id = ?1 OR name = ?1) ORDER BY name, key", ref)


def list_hosts(connection: sqlite3.Connection) -> list[HostRecord]:
    """All rows, by name."""
    return _read(connection, " ORDER BY name, key")


def live_key(connection: sqlite3.Connection, host_id: str) -> int:
    """The key of the row that owns a host_id; raises UnknownHost."""
    row = connection.execute(
        "SELECT key FROM hosts WHERE host_id = ? AND forgotten_at IS NULL", (host_id,)
    ).fetchone()
    if row is None:
        raise UnknownHost(f"no host {host_id} is registered")
    return int(row[0])


def any_key(connection: sqlite3.Connection, host_id: str) -> int:
    """The key of the newest row with a host_id, forgotten or not; raises UnknownHost."""
    row = connection.execute(
        "SELECT key FROM hosts WHERE host_id = ?"
        " ORDER BY forgotten_at IS NULL DESC, key DESC LIMIT 1",
        (host_id,),
    ).fetchone()
    if row is None:
        raise UnknownHost(f"no host {host_id} is registered")
    return int(row[0])


class HostTable:
    """The registry as its only writer sees it; every method is one transaction.

    `changed` hears the host_id of every row that was written, or None for one
    that has none.
    """

    def __init__(
        self, connection: sqlite3.Connection, changed: Callable[[str | None], None]
    ) -> None:
        self._connection = connection
        self._changed = changed

    def issue(
        self, name: str, host_id: str | None, token_hash: bytes, expires_at: int, now: int
    ) -> HostRecord:
        """Make a pending row, or let the row that owns `host_id` enrol anew (F6, F29)."""
        with transaction(self._connection):
            owner = None if host_id is None else self._owner(host_id)
            if owner is not None:
                return self._write(reissued(owner, name, token_hash, expires_at))
            key = self._connection.execute(
                "INSERT INTO hosts (name, host_id, state, created_at, token_hash,"
                " token_expires_at) VALUES (?, ?, 'never_connected', ?, ?, ?)",
                (name, host_id, now, token_hash, expires_at),
            ).lastrowid
            self._changed(host_id)
            return _read(self._connection, " AND key = ?", key)[0]

    def judge(self, host_id: str, token_hash: bytes, decide: Decide[T]) -> T:
        """Show `decide` the candidates of a hello and write back what it answers."""
        with transaction(self._connection):
            unbound = _read(
                self._connection,
                " AND host_id IS NULL AND token_hash = ?",
                token_hash,
            )
            candidates = Candidates(self._owner(host_id), unbound[0] if unbound else None)
            verdict, record = decide(candidates)
            if record is not None:
                self._write(record)
        return verdict

    def update(self, host_id: str, change: Callable[[HostRecord], HostRecord]) -> HostRecord:
        """Change one row."""
        with transaction(self._connection):
            return self._write(change(self._known(host_id)))

    def update_row(self, key: int, change: Callable[[HostRecord], HostRecord]) -> HostRecord:
        """Change the row with this key."""
        with transaction(self._connection):
            return self._write(change(self._at(key)))

    def forget(self, host_id: str, now: int) -> None:
        """Remove a row from the registry; what it sent stays searchable."""
        with transaction(self._connection):
            self._forget(self._known(host_id), now)

    def forget_row(self, key: int, now: int) -> None:
        """The same by the row's key."""
        with transaction(self._connection):
            self._forget(self._at(key), now)

    def seen(self, updates: Sequence[Presence]) -> None:
        """Write what was seen of live hosts, in one transaction."""
        with transaction(self._connection):
            for update in updates:
                record = self._owner(update.host_id)
                if record is None:
                    continue
                changed = seen(record, update)
                if changed != record:
                    self._write(changed)

    def _owner(self, host_id: str) -> HostRecord | None:
        rows = _read(self._connection, " AND host_id = ?", host_id)
        return rows[0] if rows else None

    def _at(self, key: int) -> HostRecord:
        rows = _read(self._connection, " AND key = ?", key)
        if not rows:
            raise UnknownHost("the host's row has gone")
        return rows[0]

    def _forget(self, record: HostRecord, now: int) -> None:
        """Take its secrets and its configuration; retention takes the rest in its time."""
        self._connection.execute(
            "UPDATE hosts SET forgotten_at = ?, token_hash = NULL, token_hash_prev = NULL,"
            " session_id = NULL WHERE key = ?",
            (now, record.key),
        )
        if record.host_id is not None:
            self._connection.execute(
                "DELETE FROM configs WHERE scope = 'host' AND name = ?", (record.host_id,)
            )
            self._connection.execute("DELETE FROM host_groups WHERE host_id = ?", (record.host_id,))
        self._changed(record.host_id)

    def _known(self, host_id: str) -> HostRecord:
        record = self._owner(host_id)
        if record is None:
            raise UnknownHost(f"no host {host_id} is registered")
        return record

    def _write(self, record: HostRecord) -> HostRecord:
        values: list[Any] = [getattr(record, name) for name in _WRITTEN]
        self._connection.execute(_UPDATE, [*values, record.key])
        self._changed(record.host_id)
        return _read(self._connection, " AND key = ?", record.key)[0]


def _read(connection: sqlite3.Connection, condition: str, *values: Any) -> list[HostRecord]:
    rows = connection.execute(_SELECT + condition, values)
    return [_record(row) for row in rows]


def _record(row: tuple[Any, ...]) -> HostRecord:
    members = dict(zip(COLUMNS, row, strict=True))
    members["rotation_pending"] = bool(members["rotation_pending"])
    return HostRecord(**members)
