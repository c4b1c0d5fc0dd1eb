# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Statements of a reader: each answers in one row of JSON.

sqlite3 has to win the interpreter lock back after every row, and beside a busy
reactor that wait is the dearest part of reading. Rows that are not indexed yet
are put through a full-text index in memory, so that words mean the same there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cortextx.stores.sqlite_plan import SegmentView, json_array


class Statements:
    """Runs statements on a reading connection.

    `check` is called before each one and raises to give up.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.check: Callable[[], None] = lambda: None
        connection.execute(
            "CREATE VIRTUAL TABLE temp.probe USING fts5"
            " (message, content='', columnsize=0, tokenize='unicode61')"
        )

    def json(self, sql: str, values: dict[str, Any]) -> Any:
        """The one value of a statement's one row, which is JSON."""
        self.check()
        (text,) = self.connection.execute(sql, values).fetchone()
        return msgspec.json.decode(text)

    def matching(
        self, segment: SegmentView, match: str, ids: Sequence[int], indexed: bool
    ) -> set[int]:
        """Which of these rows of a segment match a full-text query."""
        if not ids:
            return set()
        values = {"match": match, "ids": json_array(ids), "low": min(ids), "high": max(ids)}
        if indexed:
            return set(
                self.json(
                    f"SELECT json_group_array(rowid) FROM (SELECT rowid FROM {segment.fts}"
                    f" WHERE {segment.fts} MATCH :match AND rowid BETWEEN :low AND :high)"
                    " WHERE +rowid IN (SELECT value FROM json_each(:ids))",
                    values,
                )
            )
        self.check()
        self.connection.execute(
            "INSERT INTO temp.probe (rowid, message)"
            f" SELECT l.id, l.message FROM json_each(:ids) i CROSS JOIN {segment.logs} l"
            " ON l.id = i.value",
            {"ids": values["ids"]},
        )
        try:
            return set(
                self.json(
                    "SELECT json_group_array(rowid) FROM temp.probe WHERE probe MATCH :match",
                    {"match": match},
                )
            )
        finally:
            self._clear_probe()

    def has_token(self, text: str) -> bool:
        """Whether the tokenizer finds a token in `text`, which holds no quote."""
        self.connection.execute("INSERT INTO temp.probe (rowid, message) VALUES (1, ?)", (text,))
        try:
            found = self.connection.execute(
                "SELECT 1 FROM temp.probe WHERE probe MATCH ?", (f'"{text}"',)
            ).fetchone()
            return found is not None
        finally:
            self._clear_probe()

    def _clear_probe(self) -> None:
        self.connection.execute("INSERT INTO temp.probe (probe) VALUES ('delete-all')")
