"""Configurations of hosts and groups of hosts, and who is in which group."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cortextx.interfaces.fleet_records import ConfigScope, EffectiveConfig, StoredConfig
from cortextx.stores.records import effective
from cortextx.stores.sqlite_file import transaction
from cortextx.stores.sqlite_hosts import live_key

_SELECT = "SELECT c.scope, c.name, c.members, c.version, c.changed_at FROM configs c"
_LAYERS = """
SELECT c.scope, c.name, c.members, c.version, c.changed_at FROM configs c
LEFT JOIN host_groups g ON c.scope = 'group' AND g.name = c.name AND g.host_id = ?1
WHERE c.scope = 'all' OR g.name IS NOT NULL OR (c.scope = 'host' AND c.name = ?1)
ORDER BY CASE c.scope WHEN 'all' THEN 0 WHEN 'group' THEN 1 ELSE 2 END, g.position
"""


class ConfigTables:
    """What the writer does with them; every public method is one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def set_config(
        self, scope: ConfigScope, name: str, members: Mapping[str, Any] | None, at: int
    ) -> StoredConfig | None:
        """See IConfigs."""
        name = "" if scope == "all" else name
        with transaction(self._connection):
            if scope == "host":
                live_key(self._connection, name)
            version = self._connection.execute(
                "INSERT INTO config_changes (changed_at) VALUES (?)", (at,)
            ).lastrowid
            assert version is not None
            # Only the count matters; AUTOINCREMENT remembers it.
            self._connection.execute("DELETE FROM config_changes WHERE version < ?", (version,))
            if members is None:
                self._connection.execute(
                    "DELETE FROM configs WHERE scope = ? AND name = ?", (scope, name)
                )
                return None
            self._connection.execute(
                "INSERT OR REPLACE INTO configs (scope, name, members, version, changed_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (scope, name, msgspec.json.encode(dict(members)).decode(), version, at),
            )
        return StoredConfig(scope, name, dict(members), version, at)

    def set_groups(self, host_id: str, groups: Sequence[str]) -> None:
        """See IConfigs."""
        with transaction(self._connection):
            live_key(self._connection, host_id)
            self._connection.execute("DELETE FROM host_groups WHERE host_id = ?", (host_id,))
            for position, name in enumerate(dict.fromkeys(groups)):
                self._connection.execute(
                    "INSERT INTO host_groups (host_id, name, position) VALUES (?, ?, ?)",
                    (host_id, name, position),
                )


def configs(connection: sqlite3.Connection) -> list[StoredConfig]:
    """See IConfigs."""
    return [_config(row) for row in connection.execute(f"{_SELECT} ORDER BY c.scope, c.name")]


def effective_config(connection: sqlite3.Connection, host_id: str) -> EffectiveConfig:
    """See IConfigs."""
    rows = connection.execute(_LAYERS, (host_id,))
    return effective(host_id, [_config(row) for row in rows])


def groups_of(connection: sqlite3.Connection, host_id: str) -> list[str]:
    """See IConfigs."""
    rows = connection.execute(
        "SELECT name FROM host_groups WHERE host_id = ? ORDER BY position", (host_id,)
    )
    return [name for (name,) in rows]


def groups(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """See IConfigs."""
    found: dict[str, list[str]] = {}
    for name, host_id in connection.execute(
        "SELECT name, host_id FROM host_groups"
        " UNION SELECT name, NULL FROM configs WHERE scope = 'group' ORDER BY name, host_id"
    ):
        members = found.setdefault(name, [])
        if host_id is not None:
            members.append(host_id)
    return found


def _config(row: tuple[Any, ...]) -> StoredConfig:
    scope, name, members, version, changed_at = row
    return StoredConfig(scope, name, msgspec.json.decode(members), version, changed_at)
