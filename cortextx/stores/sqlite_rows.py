# ruff: noqa: S608 - names of tables and columns are our own, values are bound.
"""Log entries as rows of a segment: one statement for up to a thousand of them.

Python's sqlite3 gives the interpreter lock away once a statement and has to win
it back afterwards. Beside a busy reactor thread that costs up to a switch
interval, so `executemany`, a step a row, falls from 174,000 to 1,400 rows/s
where one statement of 1,000 rows keeps 57,000 (measured; bench/README.md).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from cortextx.core.syslog import SEVERITY_NUMBER
from cortextx.interfaces.fleet import EntryLike

COLUMNS = (
    "id", "host", "seq", "ts", "ts_offset", "received_at", "severity", "facility", "app_name",
    "process_id", "message", "source", "metadata",
)  # fmt: skip
WIDTH = len(COLUMNS)
APP_COLUMN = COLUMNS.index("app_name")
SOURCE_COLUMN = COLUMNS.index("source")
MOST_ROWS = 1000
"""Rows of the largest statement; times WIDTH well below SQLite's 32,766 variables."""
COARSE = 128
"""Sizes above this are multiples of it, so that few large statements are ever prepared."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def flatten(
    entries: Iterable[EntryLike], first_id: int, host: int, received_at: int
) -> tuple[list[Any], int, int]:
    """The values of all rows one after another, and the lowest and highest ts (µs UTC).

    Times keep the sender's offset in minutes (F15); NUL becomes U+FFFD (F16).
    """
    values: list[Any] = []
    extend = values.extend
    lowest, highest = 2**63, -(2**63)
    number = SEVERITY_NUMBER
    epoch, utc = _EPOCH, UTC
    for entry_id, entry in enumerate(entries, first_id):
        moment = entry.ts
        since = moment - epoch
        ts = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        offset = 0 if moment.tzinfo is utc else _offset(moment)
        if ts < lowest:
            lowest = ts
        if ts > highest:
            highest = ts
        message = entry.message
        if "\0" in message:
            message = message.replace("\0", "\ufffd")
        facility, app_name, process_id = entry.facility, entry.app_name, entry.process_id
        if facility is not None and "\0" in facility:
            facility = facility.replace("\0", "\ufffd")
        if app_name is not None and "\0" in app_name:
            app_name = app_name.replace("\0", "\ufffd")
        if process_id is not None and "\0" in process_id:
            process_id = process_id.replace("\0", "\ufffd")
        metadata = entry.metadata
        if metadata is not None:
            metadata = _metadata(metadata)
        extend(
            (
                entry_id,
                host,
                entry.seq,
                ts,
                offset,
                received_at,
                number[entry.severity],
                facility,
                app_name,
                process_id,
                message,
                entry.source,
                metadata,
            )
        )
    return values, lowest, highest


def insert(connection: sqlite3.Connection, table: str, values: list[Any]) -> None:
    """Insert rows given as `flatten` gives them, in as few statements as is sensible."""
    start = 0
    for rows in statement_sizes(len(values) // WIDTH):
        end = start + rows * WIDTH
        connection.execute(_insert_sql(table, rows), values[start:end])
        start = end


def statement_sizes(rows: int) -> Iterator[int]:
    """Split a number of rows into the rows of each statement."""
    while rows >= MOST_ROWS:
        yield MOST_ROWS
        rows -= MOST_ROWS
    if rows >= COARSE:
        yield rows - rows % COARSE
        rows %= COARSE
    if rows:
        yield rows


def _insert_sql(table: str, rows: int) -> str:
    row = "(" + ",".join("?" * WIDTH) + ")"
    return f"INSERT INTO {table} ({','.join(COLUMNS)}) VALUES {','.join([row] * rows)}"


def _offset(moment: datetime) -> int:
    offset = moment.utcoffset()
    return 0 if offset is None else round(offset.total_seconds() / 60)


def _metadata(metadata: Any) -> str | None:
    text: str = metadata if isinstance(metadata, str) else bytes(metadata).decode()
    if not text or text == "null":
        return None
    if "\\u0000" in text:
        return _NUL_ESCAPE.sub("\\1\ufffd", text)
    return text
