"""Whether the store that is opened is the one that was there before.

A file `store.made` beside the database says when it was made. Where it is there,
or a write-ahead log is, and the database is not, somebody has removed it: that is
said aloud, for as long as the file says so, since agents send again only what
they still hold (F26).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cortextx.core import jsontext
from cortextx.errors import ConfigError, JsonError, SchemaTooNew, StoreError, StoreFull

MARK = "store.made"


@dataclass(frozen=True, slots=True)
class Made:
    """When a store was made (µs UTC; None for one from before this was noted), and
    whether another had been there."""

    at: int | None
    instead: bool = False


def about_to_open(path: str, now: int) -> Made:
    """To be called before the database at `path` is opened; `now` is µs UTC.

    A write-ahead log whose database is gone is put aside under another name: SQLite
    would delete it, and with it what had not come into the database. Raises
    ConfigError where the directory cannot be written.
    """
    mark = os.path.join(os.path.dirname(path), MARK)
    noted = _read(mark)
    if os.path.exists(path) and os.path.getsize(path):
        made = noted or Made(None)
    else:
        log = path + "-wal"
        lost_log = os.path.exists(log) and os.path.getsize(log) > 0
        made = Made(now, instead=noted is not None or lost_log)
        if lost_log:
            _do(log, lambda: os.rename(log, f"{log}.aside-{now // 1_000_000}"))
    if made.instead and made != noted:
        _do(mark, lambda: _write(mark, made))
    return made


def opened(path: str, made: Made) -> None:
    """The database is there now: note it. Not before, as making it may have failed.

    Raises ConfigError where the directory cannot be written.
    """
    mark = os.path.join(os.path.dirname(path), MARK)
    if _read(mark) != made:
        _do(mark, lambda: _write(mark, made))


def cannot_open(path: str, error: StoreError) -> StoreError:
    """The same error, with the file's name and what there is to do."""
    match error:
        case SchemaTooNew():
            what = "update cortextx, or put an older backup there"
        case StoreFull():
            what = "make room on its disk"
        case _:
            what = (
                "`cortextx doctor` and `cortextx server verify` look at it,"
                " `cortextx server restore FILE` puts a backup in its place"
            )
    return StoreError(f"the store {path} cannot be opened: {error}. Next: {what}")


def forget(path: str) -> None:
    """Another database is put at `path` on purpose."""
    mark = os.path.join(os.path.dirname(path), MARK)
    if os.path.exists(mark):
        _do(mark, lambda: os.unlink(mark))


def _read(mark: str) -> Made | None:
    try:
        with open(mark, "rb") as file:
            made: Made = jsontext.decode(file.read(1000), Made)
            return made
    except FileNotFoundError:
        return None
    except (OSError, JsonError):
        return Made(None)


def _write(mark: str, made: Made) -> None:
    partial = mark + ".partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(jsontext.encode(made) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, mark)


def _do(path: str, change: Callable[[], None]) -> None:
    try:
        change()
    except OSError as error:
        raise ConfigError(path, "state directory", f"writable ({error.strerror})") from None


def warning(made: Made, at: str | None) -> str | None:
    """What is to be said of a store that took another's place at `at`; None of any other."""
    if not made.instead:
        return None
    return (
        f"the store that was here is gone: a new, empty one was made at {at}. Put a backup in its"
        f" place with `cortextx server restore`, or remove the file {MARK} beside it to go on so"
    )
