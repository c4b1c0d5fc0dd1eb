# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Reading on where the file is damaged: what cannot be read is left out, and counted.

A row whose text is no UTF-8 any more is mended with replacement characters; one
that makes no sense, or stands on a page that SQLite cannot read, is left out. All
this is tried only where the fast way has failed, so that a sound file pays nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

import msgspec
from twisted.logger import Logger

from cortextx.interfaces.fleet import StoredEntry
from cortextx.stores.sqlite_plan import ENTRY, Key, SegmentView

T = TypeVar("T")

MOST_IDS = 100_000
"""Ids that are remembered as damaged; beyond, the count stays where it is."""
CHECKED_ROWS = 500
MOST_SPLITS = 4000
"""Statements that one search for the readable part of a range may lose."""
_DAY = 86_400_000_000
_MOMENTS = range(-62_135_596_800_000_000 - _DAY, 253_402_300_800_000_000 + _DAY)
"""µs that a date can say, with whatever offset it has."""
_READING = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
}
_BAD_SECTOR = {
    sqlite3.SQLITE_IOERR_READ,
    sqlite3.SQLITE_IOERR_SHORT_READ,
    sqlite3.SQLITE_IOERR_CORRUPTFS,
}
_TYPES = (int, str, str, int, int, int, int, int, str, str, str, str, str, str)
_MAY_BE_NONE = (8, 9, 10, 13)
_SHAPES = frozenset(
    product(
        *(
            (kind, type(None)) if number in _MAY_BE_NONE else (kind,)
            for number, kind in enumerate(_TYPES)
        )
    )
)
"""The types that the values of a sound entry can have, one after another."""


class Damage:
    """Which entries of a store were found damaged since it was opened; for any thread."""

    log = Logger()

    def __init__(self, tell: bool = True) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._ids: set[int] = set()

    @property
    def rows(self) -> int:
        """The number of entries that are mended or left out where they are asked for."""
        return len(self._ids)

    def note(self, ids: Iterable[int], why: object) -> None:
        """These are damaged; the log is told of the first."""
        with self._lock:
            first = not self._ids
            for entry_id in ids:
                if len(self._ids) >= MOST_IDS:
                    break
                self._ids.add(entry_id)
        if self._tell and first and self._ids:
            self.log.error(
                "the store is damaged at the entry {id}: {why}. Damaged entries are mended or"
                " left out; `cortextx server verify` finds all, a backup can be restored",
                id=min(self._ids),
                why=why,
            )


def is_damage(error: Exception) -> bool:
    """Whether this is what reading a damaged file brings, and not a query that was given up."""
    if isinstance(error, msgspec.DecodeError):
        return True
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # The module's own: text that is no UTF-8.
        return isinstance(error, sqlite3.OperationalError)
    if code == sqlite3.SQLITE_ERROR:
        return "JSON" in str(error)
    return code & 0xFF in _READING or code in _BAD_SECTOR


def is_sound(row: Sequence[Any]) -> bool:
    """Whether the values of an entry, as StoredEntry has them, can be ones that were stored."""
    return (
        tuple(map(type, row)) in _SHAPES
        and 0 <= row[7] <= 7
        and row[4] in _MOMENTS
        and row[6] in _MOMENTS
        and -1440 < row[5] < 1440
    )


def mended(
    connection: sqlite3.Connection, sql: str, entry_id: int, damage: Damage
) -> StoredEntry | None:
    """The entry that `sql` selects by :id, as well as it can be read; None if it cannot."""
    faults: list[str] = []

    def text_of(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            faults.append("its text is no UTF-8")
            return data.decode("utf-8", "replace")

    before = connection.text_factory
    connection.text_factory = text_of
    entry = None
    try:
        row = connection.execute(sql, {"id": entry_id}).fetchone()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        faults.append(str(error))
    else:
        if row is None or not is_sound(row) or row[0] != entry_id:
            faults.append("its values make no sense")
        elif row[13] is None or _is_json(row[13]):
            entry = StoredEntry(*row)
        else:
            faults.append("its metadata is no JSON")
            entry = StoredEntry(*[*row[:13], None])
    finally:
        connection.text_factory = before
    if faults:
        damage.note([entry_id], faults[0])
    return entry


def readable(first: int, last: int, ask: Callable[[int, int], list[T]], damage: Damage) -> list[T]:
    """What `ask` answers for the ids from `first` to `last`, where it can; in their order.

    Where it fails the range is halved, down to the ids that stand on damaged pages.
    """
    found: list[T] = []
    left = MOST_SPLITS
    todo = [(first, last)]
    while todo:
        low, high = todo.pop()
        try:
            found += ask(low, high)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            if not is_damage(error):
                raise
            left -= 1
            if low == high or left <= 0:
                damage.note(range(low, min(high, low + MOST_IDS) + 1), error)
                continue
            middle = (low + high) // 2
            todo += [(middle + 1, high), (low, middle)]
    return found


def damaged(connection: sqlite3.Connection, number: int, first: int, last: int) -> int:
    """How many entries of a segment, with ids from `first` to `last`, are damaged.

    Reads all of them, which no check of SQLite's does: it looks at no text.
    """
    damage = Damage(tell=False)
    table = f"logs_{number:06d} l JOIN hosts h ON h.key = l.host"
    for low in range(first, last + 1, CHECKED_ROWS):
        high = min(last, low + CHECKED_ROWS - 1)
        found: set[int] = set()
        try:
            (text,) = connection.execute(
                f"SELECT json_group_array(json_array({ENTRY})) FROM {table}"
                " WHERE l.id >= ? AND l.id <= ?",
                (low, high),
            ).fetchone()
            found = {row[0] for row in msgspec.json.decode(text) if is_sound(row)}
        except (sqlite3.Error, msgspec.DecodeError) as error:
            if not is_damage(error):
                raise
        for entry_id in range(low, high + 1):
            if entry_id not in found and _is_there(connection, number, entry_id):
                mended(
                    connection, f"SELECT {ENTRY} FROM {table} WHERE l.id = :id", entry_id, damage
                )
    return damage.rows


def _is_there(connection: sqlite3.Connection, number: int, entry_id: int) -> bool:
    """False for an entry that retention has dropped; True where its page cannot be read."""
    sql = f"SELECT 1 FROM logs_{number:06d} WHERE id = ?"
    try:
        return connection.execute(sql, (entry_id,)).fetchone() is not None
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
    return True


def keys_of(
    connection: sqlite3.Connection, segment: SegmentView, where: str, values: dict[str, Any]
) -> Callable[[int, int], list[Key]]:
    """A question for `readable`: (ts, id) of the rows of a range that meet a condition on `l`."""

    def ask(low: int, high: int) -> list[Key]:
        # A single row is sought by its id alone, so that no page beside its own is read.
        at = "l.id = :low" if low == high else "l.id >= :low AND l.id <= :high"
        rows = connection.execute(
            f"SELECT l.ts, l.id FROM {segment.logs} l NOT INDEXED WHERE {at}{where} ORDER BY l.id",
            {**values, "low": low, "high": high},
        ).fetchall()
        return [row for row in rows if type(row[0]) is int and low <= row[1] <= high]

    return ask


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True
