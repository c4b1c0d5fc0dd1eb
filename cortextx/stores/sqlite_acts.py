# ruff: noqa: S608 - names of columns are our own, values are bound.
"""Probe results, administrative acts and tokens of the HTTP API, as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from cortextx.errors import NameTaken, UnknownName
from cortextx.interfaces.fleet_records import ApiToken, AuditAct, ProbeRecord, Role
from cortextx.stores.sqlite_file import transaction
from cortextx.stores.sqlite_hosts import any_key

MOST_RECORDS = 1000
"""Records of one answer."""
_PROBE = tuple(f.name for f in fields(ProbeRecord) if f.name not in ("host_id", "id"))
_TOKEN = tuple(f.name for f in fields(ApiToken))
_TOKENS = f"SELECT {', '.join(_TOKEN)} FROM api_tokens"


class ActTables:
    """What the writer does with them; every method is one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def record_probe(self, record: ProbeRecord) -> int:
        """See IProbeRecords; of a forgotten host too, for it may go while a probe runs."""
        with transaction(self._connection):
            host = any_key(self._connection, record.host_id)
            values = [getattr(record, name) for name in _PROBE]
            made = self._connection.execute(
                f"INSERT INTO probe_records (host, {', '.join(_PROBE)})"
                f" VALUES (?{',?' * len(_PROBE)})",
                [host, *values],
            ).lastrowid
        assert made is not None
        return made

    def record_act(
        self, actor: str, act: str, subject: str, details: Mapping[str, Any], at: int
    ) -> int:
        """See IAuditLog."""
        text = msgspec.json.encode(dict(details)).decode()
        with transaction(self._connection):
            made = self._connection.execute(
                "INSERT INTO acts (at, actor, act, subject, details) VALUES (?, ?, ?, ?, ?)",
                (at, actor, act, subject, text),
            ).lastrowid
        assert made is not None
        return made

    def add_token(
        self, name: str, role: Role, token_hash: bytes, at: int, expires_at: int | None
    ) -> ApiToken:
        """See IApiTokens."""
        with transaction(self._connection):
            if self._live(name) is not None:
                raise NameTaken(f"a token named {name!r} is there already")
            self._connection.execute(
                "INSERT INTO api_tokens (name, role, token_hash, created_at, expires_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (name, role, token_hash, at, expires_at),
            )
        return ApiToken(name, role, at, expires_at, token_hash=token_hash)

    def revoke_token(self, name: str, at: int) -> ApiToken:
        """See IApiTokens."""
        with transaction(self._connection):
            key = self._live(name)
            if key is None:
                raise UnknownName(f"no token is named {name!r}")
            self._connection.execute(
                "UPDATE api_tokens SET revoked_at = ? WHERE key = ?", (at, key)
            )
            row = self._connection.execute(f"{_TOKENS} WHERE key = ?", (key,)).fetchone()
        return ApiToken(*row)

    def tokens_used(self, used: Mapping[str, int]) -> None:
        """See IApiTokens."""
        with transaction(self._connection):
            for name, at in used.items():
                self._connection.execute(
                    "UPDATE api_tokens SET last_used_at = max(coalesce(last_used_at, ?1), ?1)"
                    " WHERE name = ?2 AND revoked_at IS NULL",
                    (at, name),
                )

    def _live(self, name: str) -> int | None:
        row = self._connection.execute(
            "SELECT key FROM api_tokens WHERE name = ? AND revoked_at IS NULL", (name,)
        ).fetchone()
        return None if row is None else int(row[0])


def probe_history(
    connection: sqlite3.Connection,
    host_id: str | None,
    probe: str | None,
    before: int | None,
    limit: int,
) -> list[ProbeRecord]:
    """See IProbeRecords."""
    names = ", ".join(f"p.{name}" for name in _PROBE)
    rows = connection.execute(
        f"SELECT h.host_id, p.id, {names} FROM probe_records p JOIN hosts h ON h.key = p.host"
        " WHERE (?1 IS NULL OR h.host_id = ?1) AND (?2 IS NULL OR p.probe = ?2) AND p.id < ?3"
        " ORDER BY p.id DESC LIMIT ?4",
        (host_id, probe, _before(before), _most(limit)),
    )
    return [
        ProbeRecord(host_id=row[0], id=row[1], **dict(zip(_PROBE, row[2:], strict=True)))
        for row in rows
    ]


def acts(
    connection: sqlite3.Connection,
    subject: str | None,
    actor: str | None,
    before: int | None,
    limit: int,
) -> list[AuditAct]:
    """See IAuditLog."""
    rows = connection.execute(
        "SELECT id, at, actor, act, subject, details FROM acts"
        " WHERE (?1 IS NULL OR subject = ?1) AND (?2 IS NULL OR actor = ?2) AND id < ?3"
        " ORDER BY id DESC LIMIT ?4",
        (subject, actor, _before(before), _most(limit)),
    )
    return [
        AuditAct(number, at, who, what, whom, msgspec.json.decode(details))
        for number, at, who, what, whom, details in rows
    ]


def list_tokens(connection: sqlite3.Connection) -> list[ApiToken]:
    """See IApiTokens."""
    return [ApiToken(*row) for row in connection.execute(f"{_TOKENS} ORDER BY name, key")]


def find_token(connection: sqlite3.Connection, token_hash: bytes) -> ApiToken | None:
    """See IApiTokens."""
    row = connection.execute(
        f"{_TOKENS} WHERE token_hash = ? AND revoked_at IS NULL", (token_hash,)
    ).fetchone()
    return None if row is None else ApiToken(*row)


def _before(before: int | None) -> int:
    return 2**63 - 1 if before is None else before


def _most(limit: int) -> int:
    return max(0, min(limit, MOST_RECORDS))
