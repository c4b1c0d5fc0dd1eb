"""The database file: how a connection to it is made, its schema, its errors.

What cannot be changed later without rewriting the file is set when it is made:
`auto_vacuum`, without which dropping a segment would never shrink it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from urllib.parse import quote

from cortextx.errors import SchemaTooNew, StoreError, StoreFull

APPLICATION_ID = 0x43585431
"""What marks a SQLite file as ours ("CXT1")."""
WRITER_CACHE = 64 * 1024 * 1024
"""Bytes of page cache of the writer: the tail pages of four indexes stay in it."""
READER_CACHE = 16 * 1024 * 1024
WAL_KEPT = 64 * 1024 * 1024
"""Bytes that the write-ahead log keeps of its file once it has been emptied."""
WAL_SAFETY_PAGES = 32_768
"""SQLite checkpoints by itself here, were the writer's own checkpoints to fail."""
STATEMENTS = 64

_FULL = {
    sqlite3.SQLITE_IOERR_WRITE,  # a quota (EDQUOT) or a file size limit
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def as_store_error(error: sqlite3.Error) -> StoreError:
    """Say what a SQLite error means to the caller."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL or code in _FULL:
        return StoreFull("the disk is full, or a quota or limit of the store is reached")
    if code & 0xFF == sqlite3.SQLITE_INTERRUPT:
        return StoreError("the query was interrupted")
    return StoreError(f"SQLite: {error}")


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """Turn what SQLite raises inside into StoreFull or StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_store_error(error) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, durable when it ends well, else without any effect."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read one consistent state until the end."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def open_writer(path: str, now: int, max_bytes: int | None = None) -> sqlite3.Connection:
    """Open the database for writing, making or upgrading it as needed.

    `now` is µs UTC, noted with an upgrade; `max_bytes` bounds the file. Raises
    SchemaTooNew, StoreFull or StoreError. Only one process and thread may hold a
    writer.
    """
    _make_private(path)
    with sqlite_errors():
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
        )
        try:
            _prepare(connection)
            _upgrade(connection, now)
            if max_bytes is not None:
                (page,) = connection.execute("PRAGMA page_size").fetchone()
                connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page)}")
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: str) -> sqlite3.Connection:
    """Open the database for reading only; temporary tables may be written."""
    with sqlite_errors():
        connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(path))}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE // 1024}")
        connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def check_room(path: str, reserve: int) -> None:
    """Raise StoreFull if the disk has less than `reserve` bytes left for us.

    What is left so serves administrative acts, which are small, and retention.
    """
    try:
        disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if disk.f_bavail * disk.f_frsize < reserve:
        raise StoreFull(f"the disk has less than {reserve} bytes left")


def _make_private(path: str) -> None:
    # Made by us with its mode first: SQLite gives its other files the same one.
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        if not os.path.exists(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _prepare(connection: sqlite3.Connection) -> None:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    elif mark != APPLICATION_ID:
        raise StoreError("the database file is not one of this server's")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Some builds overwrite what is deleted, which full-text merges do all the time.
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE // 1024}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_SAFETY_PAGES}")


def upgrades() -> dict[int, str]:
    """The SQL that leads to each schema version from the one before."""
    files = resources.files("cortextx.stores.schema").iterdir()
    numbered = {file.name[:-4]: file for file in files if file.name.endswith(".sql")}
    return {
        int(name): file.read_text("utf-8")
        for name, file in sorted(numbered.items())
        if name.isdigit()
    }


def segment_layout(layout: int, number: int) -> list[str]:
    """The statements that make the segment `number` of this layout."""
    file = resources.files("cortextx.stores.schema") / f"segment_{layout}.sql"
    lines = file.read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return text.replace("000000", f"{number:06d}").strip().rstrip(";").split(";")


def _upgrade(connection: sqlite3.Connection, now: int) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_version"
        " (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)"
    )
    (version,) = connection.execute(
        "SELECT coalesce(max(version), 0) FROM schema_version"
    ).fetchone()
    steps = upgrades()
    known = max(steps)
    if version > known:
        raise SchemaTooNew(
            f"the database has schema version {version}, this program knows {known}:"
            " use the newer program that wrote it"
        )
    for step in range(version + 1, known + 1):
        noted = f"INSERT INTO schema_version VALUES ({step}, {int(now)})"  # noqa: S608
        try:
            # executescript commits what is open, so the transaction is in the script.
            connection.executescript(f"BEGIN IMMEDIATE;\n{steps[step]}\n;{noted};\nCOMMIT;")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
