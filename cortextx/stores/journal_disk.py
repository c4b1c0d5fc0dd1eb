"""The directory of one session as its log sees it: a small role (PURE).

The role is small so that `cortextx.testing.disk` can play it, record every
operation and rebuild what a crash may leave. Names are plain file names, errors
are OSErrors (and SessionLocked where another process owns a file), all calls block.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Protocol

LOG = "events.jsonl"
"""The durable log (session-files)."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""There was no room on the disk; the same may succeed later."""
TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""No more files can be open now, which says nothing of the file."""


class JournalFile(Protocol):
    """An open file."""

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


class JournalDirectory(Protocol):
    """A session's directory; it need not be there before the first `create`."""

    def create(self, name: str) -> JournalFile:
        """Make a new, empty file; FileExistsError if there is one."""

    def open(self, name: str) -> JournalFile:
        """Open a file for reading and writing; FileNotFoundError if there is none."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what has that name."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def sync_directory(self) -> None:
        """Return once all creations, renames and removals are on stable storage."""

    def writing(self, offset: int) -> None:
        """Note, for as long as the system runs, that the log is written from `offset` on."""

    def written(self) -> None:
        """Note that this writing is over: it is durable, or taken back."""

    def unfinished(self) -> int | None:
        """Where a writer that was killed was writing since this system was started."""

    def close(self) -> None:
        """Give the directory, and the session's lock, back."""


def remove(directory: JournalDirectory, name: str) -> None:
    """Remove a file, or do nothing if there is none."""
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(name)


def replace(directory: JournalDirectory, name: str, data: bytes) -> None:
    """Put `data` in place of a file, whole or not at all (beside, fsync, rename).

    The rename is durable with the next `sync_directory`.
    """
    beside = f"{name}.new"
    remove(directory, beside)
    file = directory.create(beside)
    try:
        file.write_at(0, [data])
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            directory.unlink(beside)
        raise
    finally:
        file.close()
    directory.rename(beside, name)
