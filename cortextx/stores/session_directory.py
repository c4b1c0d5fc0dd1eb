"""A session's directory for real: files opened by it, and the session's lock held with it.

It plays the role `stores.journal_disk.JournalDirectory`. The directory itself is made
with the first file, so that asking for a session that is not there leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.journal_disk import LOG
from cortextx.stores.session_lock import (
    FILE_MODE,
    SessionLock,
    lock_file,
    make_directories,
    sync_directory,
)
from cortextx.stores.session_paths import SessionRoot


class RealFile:
    """A JournalFile over a descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts; a short write goes on until it is whole or fails."""
        wanted = sum(map(len, parts))
        done = os.pwritev(self._descriptor, parts, offset)
        rest = b"".join(parts)[done:] if done < wanted else b""
        while rest:
            written = os.pwrite(self._descriptor, rest, offset + wanted - len(rest))
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            rest = rest[written:]

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """fdatasync: content, and as much metadata as finding it again needs."""
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            # What the kernel holds now may never reach the disk: let nobody read it.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            raise

    def size(self) -> int:
        """The file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SessionDirectory:
    """The directory of `key`, with its lock held until `close` (I14)."""

    def __init__(self, root: SessionRoot, key: SessionKey) -> None:
        """Take the lock; raises SessionLocked or StoreError."""
        self.path = root.checked_directory(key)
        self._lock = SessionLock(root.lock(key))
        self._lock.take()

    def create(self, name: str) -> RealFile:
        """Make a new, empty file of mode 0600, and the directory if need be."""
        make_directories(self.path)
        return self._open(name, os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> RealFile:
        """Open a file for reading and writing."""
        return self._open(name, 0)

    def _open(self, name: str, flags: int) -> RealFile:
        path = os.path.join(self.path, name)
        descriptor = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        if name.startswith(LOG):  # the log, and what is to become the log
            try:
                lock_file(descriptor, path)
            except BaseException:
                os.close(descriptor)
                raise
        return RealFile(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.rename(os.path.join(self.path, old), os.path.join(self.path, new))

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(os.path.join(self.path, name))

    def sync_directory(self) -> None:
        """fsync of the directory."""
        sync_directory(self.path)

    def writing(self, offset: int) -> None:
        """Note it in the lock's file."""
        self._lock.note(offset)

    def written(self) -> None:
        """Take the note back."""
        self._lock.note(None)

    def unfinished(self) -> int | None:
        """What a killed writer noted."""
        return self._lock.noted()

    def close(self) -> None:
        """Release the lock, and leave no lock file for a session that is not there."""
        self._lock.release(forget=not os.path.isdir(self.path))
