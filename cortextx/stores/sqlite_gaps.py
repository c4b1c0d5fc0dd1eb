# ruff: noqa: S608 - only the names of columns are put together, values are bound.
"""Gaps as the writer notes them, with their causes, and as they are read (F13, F37).

Writing runs inside the transaction of an append, so that a gap, its cause and the
entry that tells it hold together. Reading is by pages, in the order of an index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from cortextx.core.marks import MAX_DETAIL, Lost, SourceGap, read_mark, split
from cortextx.interfaces.fleet import EntryLike, Gap, GapPlace
from cortextx.stores.restored import CAUSE, Run, unsent, without

MAX_INTEGER = 2**63 - 1
MOST_GAPS = 1000
"""Gaps of one answer."""
_BEFORE_ALL = (-(2**63), 0, 0)


def note_gap(
    connection: sqlite3.Connection,
    host: int,
    gap: Run,
    now: int,
    cause: str | None = None,
) -> None:
    """Remember seqs that are known to be missing; `host` is the row's key."""
    first, last = gap
    connection.execute(
        "INSERT INTO gaps (host, first, last, detected_at, cause) VALUES (?, ?, ?, ?, ?)",
        (host, first, last, now, cause),
    )
    lost = last - first + 1
    # Written so that it cannot overflow: seqs go up to 2**63 - 1 (F31).
    connection.execute(
        "UPDATE hosts SET gap_count = gap_count + 1, lost_entries ="
        " CASE WHEN lost_entries > ?1 - ?2 THEN ?1 ELSE lost_entries + ?2 END WHERE key = ?3",
        (MAX_INTEGER, lost, host),
    )


def ahead(connection: sqlite3.Connection) -> set[int]:
    """The keys of the hosts that have gaps above accepted_seq (F26)."""
    rows = connection.execute(
        "SELECT h.key FROM hosts h WHERE EXISTS"
        " (SELECT 1 FROM gaps g WHERE g.host = h.key AND g.last > h.accepted_seq)"
    )
    return {key for (key,) in rows}


def note_restored(
    connection: sqlite3.Connection, host: int, accepted: int, acked: int, now: int
) -> list[Run]:
    """Remember what a host had acked above `accepted`, as far as that is not noted yet (F26)."""
    noted = [run for _, run in _ahead(connection, host, accepted)]
    new = without((accepted + 1, acked), noted)
    for run in new:
        note_gap(connection, host, run, now, CAUSE)
    return new


def settle(
    connection: sqlite3.Connection,
    host: int,
    accepted: int,
    gap: Run | None,
    high_water: int,
) -> list[Run]:
    """Take from the gaps above `accepted` what a batch up to `high_water` brought; answers
    what of `gap`, which it showed, is not noted yet."""
    noted: list[Run] = []
    for gap_id, run in _ahead(connection, host, accepted):
        noted.append(run)
        left = unsent(run, gap, high_water)
        if left == [run]:
            continue
        taken = run[1] - run[0] + 1 - sum(last - first + 1 for first, last in left)
        if left:
            connection.execute(
                "UPDATE gaps SET first = ?, last = ? WHERE id = ?", (*left[0], gap_id)
            )
        else:
            connection.execute("DELETE FROM gaps WHERE id = ?", (gap_id,))
        connection.executemany(
            "INSERT INTO gaps (host, first, last, detected_at, cause, detail)"
            " SELECT host, ?, ?, detected_at, cause, detail FROM gaps WHERE id = ?",
            [(*run, gap_id) for run in left[1:]],
        )
        connection.execute(
            "UPDATE hosts SET gap_count = max(0, gap_count + ?),"
            " lost_entries = max(0, lost_entries - ?) WHERE key = ?",
            (len(left) - 1, taken, host),
        )
    return [] if gap is None else without(gap, noted)


def _ahead(connection: sqlite3.Connection, host: int, accepted: int) -> list[tuple[int, Run]]:
    rows = connection.execute(
        "SELECT id, first, last FROM gaps WHERE host = ? AND last > ? ORDER BY first",
        (host, accepted),
    )
    return [(gap_id, (first, last)) for gap_id, first, last in rows.fetchall()]


def note_marks(
    connection: sqlite3.Connection, host: int, entries: Iterable[EntryLike], now: int
) -> None:
    """Take in what entries of the host's own source say about gaps."""
    for entry in entries:
        mark = read_mark(entry.metadata)
        if isinstance(mark, Lost):
            _explain(connection, host, mark)
        elif isinstance(mark, SourceGap):
            _note_source_gap(connection, host, mark, now)


def _explain(connection: sqlite3.Connection, host: int, lost: Lost) -> None:
    """Give the gaps within these seqs their cause; what has one already keeps it."""
    rows = connection.execute(
        "SELECT id, first, last, detected_at FROM gaps"
        " WHERE host = ? AND last >= ? AND first <= ? AND cause IS NULL",
        (host, lost.first, lost.last),
    ).fetchall()
    for gap_id, first, last, detected_at in rows:
        for part_first, part_last, explained in split((first, last), (lost.first, lost.last)):
            if explained:
                connection.execute(
                    "UPDATE gaps SET first = ?, last = ?, cause = ?, detail = ? WHERE id = ?",
                    (part_first, part_last, lost.reason, lost.detail[:MAX_DETAIL] or None, gap_id),
                )
            else:
                connection.execute(
                    "INSERT INTO gaps (host, first, last, detected_at) VALUES (?, ?, ?, ?)",
                    (host, part_first, part_last, detected_at),
                )


def _note_source_gap(connection: sqlite3.Connection, host: int, gap: SourceGap, now: int) -> None:
    connection.execute(
        "INSERT INTO gaps (host, detected_at, cause, source, detail) VALUES (?, ?, ?, ?, ?)",
        (host, now, gap.reason, gap.source or None, gap.detail and gap.detail[:MAX_DETAIL]),
    )
    connection.execute("UPDATE hosts SET gap_count = gap_count + 1 WHERE key = ?", (host,))


def gaps(
    connection: sqlite3.Connection, host_id: str | None, after: GapPlace | None, limit: int
) -> list[Gap]:
    """See ILogStore."""
    limit = max(0, min(limit, MOST_GAPS))
    hosts: list[int | None] = [None]
    if host_id is not None:
        # More than one where a host was forgotten and enrolled again.
        rows = connection.execute("SELECT key FROM hosts WHERE host_id = ?", (host_id,))
        hosts = [key for (key,) in rows]
    found = [gap for host in hosts for gap in _page(connection, host, after, limit)]
    return sorted(found, key=lambda gap: gap.place)[:limit]


def _page(
    connection: sqlite3.Connection, host: int | None, after: GapPlace | None, limit: int
) -> list[Gap]:
    whose = "" if host is None else " AND g.host = :host"
    at, first, gap_id = _BEFORE_ALL if after is None else after
    rows = connection.execute(
        "SELECT h.host_id, g.first, g.last, g.detected_at, g.cause, g.source, g.detail, g.id"
        " FROM gaps g CROSS JOIN hosts h ON h.key = g.host"
        f" WHERE g.detected_at >= :at{whose}"
        " AND (g.detected_at, coalesce(g.first, 0), g.id) > (:at, :first, :id)"
        " ORDER BY g.detected_at, coalesce(g.first, 0), g.id LIMIT :limit",
        {"at": at, "first": first, "id": gap_id, "host": host, "limit": limit},
    )
    return [Gap(*row) for row in rows]
