"""The index beside an agent's sessions: list, current, by-cwd (session-files).

It is a convenience that anybody may rebuild: nothing in it decides anything. Writers
take turns by an flock on its directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from blake3 import blake3

from cortextx.stores.session_lock import FILE_MODE, make_directories, sync_directory

LIST = "list"
CURRENT = "current"
BY_CWD = "by-cwd"


def cwd_hash(cwd: str) -> str:
    """The name of a directory's file in by-cwd: 32 hex digits."""
    return blake3(os.fsencode(cwd)).hexdigest(length=16)


def updated(index: str, session: str, cwd: str | None) -> None:
    """Note that `session` is the one that changed last. OSErrors pass through."""
    by_cwd = None if cwd is None else os.path.join(index, BY_CWD, cwd_hash(cwd))
    if (
        listed(index)[:1] == [session]
        and _read(os.path.join(index, CURRENT)).strip() == session
        and (by_cwd is None or _read(by_cwd).strip() == session)
    ):
        return
    with _turn(index):
        names = [session, *(name for name in listed(index) if name != session)]
        _replace(os.path.join(index, LIST), "".join(f"{name}\n" for name in names))
        _replace(os.path.join(index, CURRENT), f"{session}\n")
        if by_cwd is not None:
            make_directories(os.path.dirname(by_cwd))
            _replace(by_cwd, f"{session}\n")


def removed(index: str, session: str) -> None:
    """Note that `session` is no more."""
    if not os.path.isdir(index):
        return
    with _turn(index):
        names = [name for name in listed(index) if name != session]
        _replace(os.path.join(index, LIST), "".join(f"{name}\n" for name in names))
        if _read(os.path.join(index, CURRENT)).strip() == session:
            _replace(os.path.join(index, CURRENT), f"{names[0]}\n" if names else "")
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(os.path.join(index, BY_CWD)):
                path = os.path.join(index, BY_CWD, name)
                if _read(path).strip() == session:
                    os.unlink(path)


def listed(index: str) -> list[str]:
    """The sessions' names, newest first; none without an index."""
    return _read(os.path.join(index, LIST)).split()


@contextlib.contextmanager
def _turn(index: str) -> Iterator[None]:
    make_directories(index)
    descriptor = os.open(index, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _replace(path: str, text: str) -> None:
    beside = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(beside, flags, FILE_MODE), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)
    sync_directory(os.path.dirname(path))
