"""The apps and sources that stored entries name, kept beside the entries.

To find them among the entries would mean to read all of them. Names that no
segment holds any more go with retention; of an unbounded number of names the
first `MOST` are kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

MOST = 20_000
"""Names that are remembered of each kind in one segment."""


class KnownValues:
    """What the writer has noted for the segment that is open."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._segment = 0
        self._seen: dict[str, set[str]] = {}

    def forget(self) -> None:
        """Remember nothing, because a transaction came to nothing or rows were removed."""
        self._segment = 0

    def note(self, segment: int, kind: str, values: Iterable[str | None]) -> None:
        """Note names that entries of a segment have, in the open transaction."""
        if segment != self._segment:
            self._segment = segment
            self._seen = {"app": set(), "source": set()}
        seen = self._seen[kind]
        new = set(values) - seen
        new.discard(None)
        for value in new:
            if value is not None and len(seen) < MOST:
                seen.add(value)
                self._connection.execute(
                    "INSERT INTO known_values (kind, value, segment) VALUES (?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET segment = excluded.segment",
                    (kind, value, segment),
                )


def known_values(connection: sqlite3.Connection, kind: str, prefix: str, limit: int) -> list[str]:
    """The names of a kind that start with `prefix`, sorted by code point."""
    rows = connection.execute(
        "SELECT value FROM known_values WHERE kind = ?1 AND value >= ?2"
        " AND substr(value, 1, length(?2)) = ?2 ORDER BY value LIMIT ?3",
        (kind, prefix, limit),
    )
    return [value for (value,) in rows]


def forget_older(connection: sqlite3.Connection) -> None:
    """Remove the names that only segments which are gone had, in the open transaction."""
    connection.execute(
        "DELETE FROM known_values WHERE segment <"
        " (SELECT coalesce(min(number), 0) FROM segments WHERE state <> 'dropping')"
    )
