"""One flat directory as the agent's buffer sees it: a small role, and the real one (PURE).

The role is small so that `cortextx.testing.disk` can play it, record every
operation and rebuild what a crash may leave. Names are plain file names. All
calls block; they belong on the buffer's own thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from cortextx.errors import StoreError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
SALVAGE_BYTES = 4096
"""The grain in which a file with unreadable places is read."""


class DiskFile(Protocol):
    """An open file. Errors are OSErrors."""

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts, one behind the other, or raise with some of it written."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the file's end."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return once the file's content and size are on stable storage."""

    def size(self) -> int:
        """The file's size in bytes."""

    def close(self) -> None:
        """Close; nothing is promised about what was not synced."""


class Disk(Protocol):
    """A directory. Errors are OSErrors."""

    def names(self) -> list[str]:
        """The names of all files."""

    def create(self, name: str) -> DiskFile:
        """Make a new, empty file; FileExistsError if there is one."""

    def open(self, name: str) -> DiskFile:
        """Open a file for reading and writing; FileNotFoundError if there is none."""

    def size(self, name: str) -> int:
        """A file's size in bytes."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what has that name."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def sync_directory(self) -> None:
        """Return once all creations, renames and removals are on stable storage."""

    def free(self) -> int:
        """Bytes that may still be written here by us."""

    def close(self) -> None:
        """Give the directory (and its lock) back."""


def remove(disk: Disk, name: str) -> None:
    """Remove a file, or do nothing if there is none."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(name)


def replace(disk: Disk, name: str, data: bytes, previous: str | None = None) -> None:
    """Put `data` in place of file `name`, whole or not at all, durably (A22).

    Beside it, fsync, rename, fsync of the directory. With `previous`, the old
    content stays under that name; should a crash fall between the two renames,
    it stands there alone.
    """
    beside = f"{name}.tmp"
    remove(disk, beside)
    file = disk.create(beside)
    try:
        file.write_at(0, [data])
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(beside)
        raise
    finally:
        file.close()
    if previous is not None:
        with contextlib.suppress(FileNotFoundError):
            disk.rename(name, previous)
    disk.rename(beside, name)
    disk.sync_directory()


def read_whole(file: DiskFile, size: int) -> bytes:
    """The first `size` bytes; places that cannot be read come as zeros."""
    try:
        return file.read_at(0, size)
    except OSError as fault:
        if fault.errno != errno.EIO:
            raise
    salvaged = bytearray(size)
    for offset in range(0, size, SALVAGE_BYTES):
        with contextlib.suppress(OSError):
            piece = file.read_at(offset, min(SALVAGE_BYTES, size - offset))
            salvaged[offset : offset + len(piece)] = piece
    return bytes(salvaged)


class RealFile:
    """A DiskFile over a descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts; a short write goes on until it is whole or fails."""
        wanted = sum(map(len, parts))
        done = os.pwritev(self._descriptor, parts, offset)
        if done == wanted:
            return
        rest = b"".join(parts)[done:]
        while rest:
            written = os.pwrite(self._descriptor, rest, offset + wanted - len(rest))
            if written == 0:
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
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        """The file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """A Disk over a directory of its own (0700), locked against a second process.

    The lock is an flock on the directory: it ends with the process and is not
    passed on to programs that it executes.
    """

    def __init__(self, path: str) -> None:
        """Make the directory if need be, and lock it.

        StoreError if it is in use by another process, or cannot be used at all.
        """
        self.path = path
        try:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as fault:
            raise StoreError(f"{path} cannot be used: {fault.strerror}") from fault
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            os.close(self._directory)
            busy = isinstance(fault, BlockingIOError)
            why = "is in use by another process" if busy else f"cannot be locked: {fault.strerror}"
            raise StoreError(f"{path} {why}") from None

    def names(self) -> list[str]:
        """The names of all files."""
        return os.listdir(self._directory)

    def create(self, name: str) -> RealFile:
        """Make a new, empty file of mode 0600."""
        return self._open(name, os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> RealFile:
        """Open a file for reading and writing."""
        return self._open(name, 0)

    def size(self, name: str) -> int:
        """A file's size in bytes."""
        return os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._directory)

    def sync_directory(self) -> None:
        """fsync of the directory."""
        os.fsync(self._directory)

    def free(self) -> int:
        """Bytes that an ordinary user may still write on this file system.

        Raises OSError if the directory was removed: what is still written is nowhere.
        """
        if os.fstat(self._directory).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the directory was removed")
        facts = os.fstatvfs(self._directory)
        return facts.f_bavail * facts.f_frsize

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    def _open(self, name: str, flags: int) -> RealFile:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return RealFile(os.open(name, flags, FILE_MODE, dir_fd=self._directory))
