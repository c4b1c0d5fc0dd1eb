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

from cortextx.stores.sqlite_damage import Damage, keys_of, readable
from cortextx.stores.sqlite_plan import (
    Key,
    Plan,
    SegmentView,
    hint_condition,
    json_array,
    time_conditions,
)

PROBE = (
    "CREATE VIRTUAL TABLE temp.probe USING fts5"
    " (message, content='', columnsize=0, tokenize='unicode61')"
)


class Statements:
    """Runs statements on a reading connection.

    `check` is called before each one and raises to give up; `damage` is told of
    what cannot be read.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.check: Callable[[], None] = lambda: None
        self.damage = Damage()
        connection.execute(PROBE)
        self._apart: sqlite3.Connection | None = None

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

    def complete(self, segment: SegmentView, first: int, last: int) -> bool:
        """Whether a walk over these ids of a segment comes to its end.

        One ends early, and without an error, at a row whose id is damaged. A walk the
        other way would pass that row, or end there too, with other rows behind it.
        """
        counts = [
            self.connection.execute(
                f"SELECT count(*) FROM (SELECT id FROM {segment.logs} NOT INDEXED"
                f" WHERE id >= ? AND id <= ? ORDER BY id {order} LIMIT -1)",
                (first, last),
            ).fetchone()
            for order in ("ASC", "DESC")
        ]
        return bool(counts[0] == counts[1])

    def around_damage(
        self, segment: SegmentView, plan: Plan, first: int, last: int, host: int | None = None
    ) -> list[Key]:
        """What meets the plan among these ids of a segment, by walking its table alone, in
        the order of ids; what cannot be read is left out (`sqlite_damage`)."""
        where = plan.where + time_conditions(None, 1) + hint_condition(plan.text)
        where += plan.where_host if host is None else " AND l.host = :host"
        keys = keys_of(self.connection, segment, where, {**plan.values, "host": host})

        def ask(low: int, high: int) -> list[Key]:
            self.check()
            found = keys(low, high)
            if low < high and not self.complete(segment, low, high):
                if high - low == 1:
                    self.damage.note([high], "an entry's id is damaged")
                raise sqlite3.OperationalError("entries are missing")
            if not plan.text.match:
                return found
            ids = [entry_id for _, entry_id in found]
            matches = self._matching_apart(segment, plan.text.match, ids)
            return [key for key in found if key[1] in matches]

        return readable(max(first, segment.first_id), last, ask, self.damage)

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

    def _matching_apart(self, segment: SegmentView, match: str, ids: Sequence[int]) -> set[int]:
        """As `matching`, on a database of its own: once a page could not be read, SQLite
        refuses all writing until the transaction ends, to temporary tables too."""
        rows = self.connection.execute(
            "SELECT l.id, CAST(l.message AS BLOB)"
            f" FROM json_each(?) i CROSS JOIN {segment.logs} l ON l.id = i.value",
            (json_array(ids),),
        ).fetchall()
        if self._apart is None:
            self._apart = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._apart.execute(PROBE)
        apart = self._apart
        apart.executemany(
            "INSERT INTO probe (rowid, message) VALUES (?, ?)",
            [(entry_id, (text or b"").decode("utf-8", "replace")) for entry_id, text in rows],
        )
        found = apart.execute("SELECT rowid FROM probe WHERE probe MATCH ?", (match,)).fetchall()
        apart.execute("INSERT INTO probe (probe) VALUES ('delete-all')")
        return {entry_id for (entry_id,) in found}

    def _clear_probe(self) -> None:
        self.connection.execute("INSERT INTO temp.probe (probe) VALUES ('delete-all')")
