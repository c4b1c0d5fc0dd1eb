"""The lock of a session: one slave owns it, and the system frees it with the process (I14).

It is an flock on a file whose name derives from the session's path alone, below the
state root, and so meets every slave that uses that root, whatever it was told to call
it. The descriptor is close-on-exec: what a runtime starts does not inherit it.

The file says who holds the lock, and from where on the log is being written. That is
not synced, and so is proof only until the system is started anew: a note that its
writer did not take back tells that the writer was killed in the middle, and that
nothing from that offset on was ever published.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from functools import cache

from cortextx.errors import SessionLocked, StoreError, StoreFull
from cortextx.stores.journal_disk import FULL, TOO_MANY

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_NOTE_AT = 256
_NOTE_BYTES = 64
_ALL_LOCKS = "/proc/locks"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def make_directories(path: str) -> None:
    """Make a directory and those above it, 0700, each durable in its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(made, DIRECTORY_MODE)
        sync_directory(os.path.dirname(made))


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, path: str, holder: str = "another process") -> None:
    """Lock an open file for this descriptor alone; raises SessionLocked at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SessionLocked(f"{holder} ({path})") from None


class SessionLock:
    """Held from `take` until `release`, or the end of the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def take(self) -> None:
        """Take it; raises SessionLocked, which names the holder, StoreFull or StoreError."""
        try:
            make_directories(os.path.dirname(self.path))
            while self._descriptor < 0:
                self._try()
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            text = f"process {os.getpid()}, since {since}\n".ljust(_NOTE_AT)
            os.pwrite(self._descriptor, text.encode(), 0)
        except OSError as fault:
            self.release()
            kind = StoreFull if fault.errno in FULL + TOO_MANY else StoreError
            raise kind(f"{self.path} cannot be locked: {fault.strerror}") from fault

    def _try(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, FILE_MODE)
        try:
            lock_file(descriptor, self.path, _holder(descriptor))
            if _is_still(descriptor, self.path):
                self._descriptor, descriptor = descriptor, -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def is_held(self) -> bool:
        """Whether somebody seems to hold it, without being in anybody's way."""
        try:
            inode = os.stat(self.path, follow_symlinks=False).st_ino
            with open(_ALL_LOCKS, encoding="ascii") as file:
                found = [line.split() for line in file]
        except OSError:
            return False
        return any("FLOCK" in each and each[-3].endswith(f":{inode}") for each in found)

    def note(self, offset: int | None) -> None:
        """Note that the log is being written from `offset` on, or is not (None)."""
        text = "" if offset is None else f"{_boot_id()} {offset}"
        os.pwrite(self._descriptor, text.ljust(_NOTE_BYTES).encode(), _NOTE_AT)

    def noted(self) -> int | None:
        """The offset that was noted, unless the system was started since."""
        found = os.pread(self._descriptor, _NOTE_BYTES, _NOTE_AT).decode("ascii", "replace").split()
        valid = len(found) == 2 and found[0] == _boot_id() and found[1].isdecimal()
        return int(found[1]) if valid else None

    def release(self, forget: bool = False) -> None:
        """Give it back; a second call does nothing. `forget` removes its file as well."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if forget:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(descriptor)


def _is_still(descriptor: int, path: str) -> bool:
    """Whether the locked file still has its name, which a former owner may have removed."""
    held = os.fstat(descriptor)
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, _NOTE_AT, 0).decode("utf-8", "replace").strip()
    return text if text.isprintable() and text else "another process"


@cache
def _boot_id() -> str:
    """What is different whenever the system was started anew; "" proves nothing."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
