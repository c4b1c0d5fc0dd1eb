# ruff: noqa: S608 - names of tables come from numbers of the catalogue, values are bound.
"""Backup of a running store, its restoration, and the check of a database file.

All functions block: they are for a thread or a process of their own. A backup
is one consistent state, copied from a snapshot, so that it need not begin anew
when the writer commits; it is one file without a write-ahead log.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from cortextx.errors import SchemaTooNew, StoreError
from cortextx.stores.sqlite_acts import ActTables
from cortextx.stores.sqlite_damage import damaged, is_damage
from cortextx.stores.sqlite_file import (
    APPLICATION_ID,
    open_writer,
    snapshot,
    sqlite_errors,
    upgrades,
)

STEP_PAGES = 2048
"""Pages that are copied between two looks at `carry_on`."""
SIDE_FILES = ("-wal", "-shm", "-journal")


DAMAGED = ".damaged"
"""What a copy with faults is called, behind the name that it was to have."""
_TREE = re.compile(r"\b[Tt]ree (\d+)\b")


class CopyDamaged(StoreError):
    """A copy was made and is kept as `kept`, but it has `faults`, as the database has."""

    def __init__(self, kept: str, faults: tuple[str, ...]) -> None:
        more = f", and {len(faults) - 1} faults more" if len(faults) > 1 else ""
        super().__init__(f"the copy is damaged: {faults[0]}{more}; it is kept as {kept}")
        self.kept = kept
        self.faults = faults


@dataclass(frozen=True, slots=True)
class BackupMade:
    """What a backup holds."""

    path: str
    size: int
    entries: int
    hosts: int
    head: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check found: `faults` in words, none if all is well."""

    version: int
    entries: int
    hosts: int
    head: int
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def backup(
    path: str, target: str, carry_on: Callable[[float], bool] = lambda done: True
) -> BackupMade:
    """Copy the database at `path`, which may be in use, to a new file `target` (0600).

    `carry_on` is told the part that is done (0 to 1) and answers False to give
    up. The target appears only when it is whole, sound and on disk. Raises StoreError
    or StoreFull; then nothing is left of it. A process that is killed leaves a file
    `target.partial`, which the next backup to the same target replaces. Raises
    CopyDamaged where the copy has faults: it stays as `target.damaged`.
    """
    if os.path.exists(target):
        raise StoreError(f"{target} is there already")
    partial = target + ".partial"
    try:
        _make_file(partial)
        with sqlite_errors():
            _copy(path, partial, carry_on)
            with closing(sqlite3.connect(partial, isolation_level=None)) as made:
                made.execute("PRAGMA journal_mode = DELETE")
        found = verify(partial, deep=False, carry_on=lambda: carry_on(1.0), texts=True)
        _sync(partial)
        os.rename(partial, target if found.sound else target + DAMAGED)
        _sync(os.path.dirname(os.path.abspath(target)))
    except OSError as error:
        _remove(partial)
        raise StoreError(f"{target}: {error.strerror}") from error
    except BaseException:
        _remove(partial)
        raise
    if not found.sound:
        raise CopyDamaged(target + DAMAGED, found.faults)
    return BackupMade(target, os.path.getsize(target), found.entries, found.hosts, found.head)


def left_over(target: str) -> list[str]:
    """The files beside `target` that backups left which were killed, to be removed by hand."""
    directory = os.path.dirname(os.path.abspath(target))
    ending = os.path.splitext(target)[1] + ".partial"
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(ending)]


def verify(
    path: str,
    deep: bool = True,
    carry_on: Callable[[], bool] = lambda: True,
    texts: bool = False,
) -> Verified:
    """Check a database file, in use or not, without changing it.

    SQLite's own check of every page (`deep`) or of the structure alone, then what
    must hold between our tables. Every entry is read where it is `deep`, or with
    `texts`. `carry_on` answers False to give up. Raises
    SchemaTooNew, or StoreError where there is no database of ours to check.
    """
    if not os.path.isfile(path):
        raise StoreError(f"{path} is no file")
    with closing(_open_to_read(path)) as connection:
        connection.set_progress_handler(lambda: not carry_on(), 200_000)
        faults: list[str] = []
        version = entries = hosts = head = 0
        if not carry_on():
            raise StoreError("the check was given up")
        try:
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            if mark != APPLICATION_ID:
                raise StoreError(f"{path} is no database of this server")
            (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
            if version > max(upgrades()):
                raise SchemaTooNew(f"{path} has schema version {version}: use a newer program")
            with snapshot(connection):
                entries, hosts, head = _counts(connection)
                for found in (
                    _structure(connection, deep),
                    _bonds(connection),
                    _entries(connection) if deep or texts else (),
                ):
                    # One by one: what was found stays, though the next look may fail.
                    for fault in found:
                        faults.append(fault)
        except sqlite3.DatabaseError as error:
            if not carry_on():
                raise StoreError("the check was given up") from error
            faults.append(f"it cannot be read: {error}")
    return Verified(version, entries, hosts, head, tuple(faults))


@dataclass(frozen=True, slots=True)
class Restoring:
    """Who restores, and when (µs UTC): the restored database tells of it among its acts."""

    actor: str
    at: int
    details: Mapping[str, Any] = field(default_factory=dict)


def restore(source: str, path: str, aside: str, act: Restoring | None = None) -> Verified:
    """Put a verified backup in the place of the database at `path`, which nobody may use.

    What was there is kept as `aside` (a path that is free). Raises StoreError if
    the backup has a fault; then nothing was changed. With an `act` the database is
    brought to this program's schema, and records the act (S8) before it takes its place.
    """
    found = verify(source)
    if not found.sound:
        raise StoreError(f"{source} is damaged: {found.faults[0]}")
    if os.path.exists(aside):
        raise StoreError(f"{aside} is there already")
    partial = path + ".partial"
    try:
        _make_file(partial)
        with sqlite_errors():
            _copy(source, partial, lambda done: True)
            if act is not None:
                _record(partial, act)
        _sync(partial)
        for suffix in ("", *SIDE_FILES):
            if os.path.exists(path + suffix):
                os.rename(path + suffix, aside + suffix)
        os.rename(partial, path)
        _sync(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        _remove(partial)
        raise StoreError(f"{path}: {error.strerror}") from error
    except BaseException:
        _remove(partial)
        raise
    return found


def _copy(path: str, target: str, carry_on: Callable[[float], bool]) -> None:
    def step(_status: int, remaining: int, total: int) -> None:
        if not carry_on(1.0 - remaining / total if total else 1.0):
            raise StoreError("the backup was given up")

    with (
        closing(_open_to_read(path)) as source,
        closing(sqlite3.connect(target, isolation_level=None)) as made,
        snapshot(source),
    ):
        # The snapshot begins with the first read; held, it keeps the copy from starting anew.
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        made.execute("PRAGMA synchronous = OFF")
        source.backup(made, pages=STEP_PAGES, progress=step)


def _record(path: str, act: Restoring) -> None:
    with closing(open_writer(path, act.at)) as connection:
        ActTables(connection).record_act(act.actor, "server.restore", "server", act.details, act.at)
        connection.execute("PRAGMA journal_mode = DELETE")


def _open_to_read(path: str) -> sqlite3.Connection:
    with sqlite_errors():
        connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None
        )
        connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def _counts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    entries, head = connection.execute(
        "SELECT coalesce(sum(CASE WHEN state <> 'dropping' THEN rows END), 0),"
        " coalesce(max(last_id), 0) FROM segments"
    ).fetchone()
    (hosts,) = connection.execute(
        "SELECT count(*) FROM hosts WHERE forgotten_at IS NULL"
    ).fetchone()
    return entries, hosts, head


def _structure(connection: sqlite3.Connection, deep: bool) -> Iterator[str]:
    check = "integrity_check" if deep else "quick_check"
    try:
        lines = [line for (line,) in connection.execute(f"PRAGMA {check}(20)").fetchall()]
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        yield from _tables(connection)
        return
    if lines == ["ok"]:
        return
    names = dict(connection.execute("SELECT rootpage, name FROM sqlite_master"))

    def named(found: re.Match[str]) -> str:
        name = names.get(int(found[1]))
        return found[0] if name is None else f"{found[0]} ({name})"

    for line in lines:
        yield f"SQLite: {_TREE.sub(named, line)}"


def _tables(connection: sqlite3.Connection) -> Iterator[str]:
    """Which tables cannot be read, where the check of all of them fails by that."""
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    ).fetchall()
    for (name,) in tables:
        try:
            (line,) = connection.execute(f"PRAGMA quick_check('{name}')").fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            line = str(error)
        if line != "ok":
            yield f"SQLite: table {name}: {line}"


def _entries(connection: sqlite3.Connection) -> Iterator[str]:
    """Whether each entry can be read, and makes sense."""
    segments = connection.execute(
        "SELECT number, first_id, last_id FROM segments WHERE state <> 'dropping' AND rows > 0"
    ).fetchall()
    for number, first_id, last_id in segments:
        count = damaged(connection, number, first_id, last_id)
        if count:
            yield f"segment {number}: {count} entries are damaged"


def _bonds(connection: sqlite3.Connection) -> Iterator[str]:
    """What must hold between segments, their tables and the hosts."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    segments = connection.execute(
        "SELECT number, first_id, last_id, rows, indexed_to FROM segments"
        " WHERE state <> 'dropping' ORDER BY first_id, number"
    ).fetchall()
    before = 0
    for number, first_id, last_id, rows, indexed_to in segments:
        logs, fts = f"logs_{number:06d}", f"fts_{number:06d}"
        if logs not in tables or fts not in tables:
            yield f"segment {number}: its tables are missing"
            continue
        try:
            yield from _range(connection, number, first_id, last_id, rows)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            yield f"segment {number}: its entries cannot all be read: {error}"
        if first_id <= before or indexed_to > last_id:
            yield f"segment {number}: its range of ids cannot be"
        before = last_id


def _range(
    connection: sqlite3.Connection, number: int, first_id: int, last_id: int, rows: int
) -> Iterator[str]:
    """Whether a segment's table holds what the catalogue says of it."""
    logs = f"logs_{number:06d}"
    count, lowest, highest = connection.execute(
        f"SELECT count(*), min(id), max(id) FROM {logs}"
    ).fetchone()
    if count != rows:
        yield f"segment {number}: {count} entries where the catalogue says {rows}"
    if count and not first_id <= lowest <= highest <= last_id:
        yield f"segment {number}: ids {lowest} to {highest} outside of its range"
    for host, high in connection.execute(
        f"SELECT h.key, max(l.seq) FROM hosts h JOIN {logs} l ON l.host = h.key"
        " WHERE h.forgotten_at IS NULL GROUP BY h.key HAVING max(l.seq) > h.accepted_seq"
    ).fetchall():
        yield f"segment {number}: host {host} has an entry {high} above its accepted_seq"


def _make_file(path: str) -> None:
    _remove(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _remove(path: str) -> None:
    for suffix in ("", *SIDE_FILES):
        try:
            os.unlink(path + suffix)
        except FileNotFoundError:
            continue


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
