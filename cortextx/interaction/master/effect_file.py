"""A record of effects in a file, one line a change, each on disk before it counts (B43).

One process at a time: the file is locked as long as it is open. A last line without
its end is a write that never counted, and is cut. Blocks for a disk's time at `note`.
"""

from __future__ import annotations

import errno
import fcntl
import os

from cortextx.errors import StoreError, StoreFull
from cortextx.interaction.master.effects import Effect, MemoryEffects, line_of, read_effect

REWRITE_BYTES = 4 << 20
"""A file beyond this is written anew with what is known when it is opened."""


class FileEffects:
    """See the module; an EffectRecord. Raises StoreError for what is no such file."""

    def __init__(self, path: str, max_effects: int = 10_000) -> None:
        self._known = MemoryEffects(max_effects)
        self._path = path
        self._failed = False
        self._file = _locked(path)
        self._read()

    def find(self, effect_id: str) -> Effect | None:
        """See EffectRecord."""
        return self._known.find(effect_id)

    def note(self, effect: Effect) -> None:
        """See EffectRecord."""
        if self._failed:
            raise StoreError(f"{self._path}: an earlier write failed; open it anew")
        line = line_of(effect)
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, end)
            raise StoreFull(f"{self._path}: {error.strerror}") from error
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._failed = True
            raise StoreError(f"{self._path}: {error.strerror}") from error
        self._known.note(effect)

    def close(self) -> None:
        """Let go of the file; once is enough."""
        found, self._file = self._file, -1
        if found >= 0:
            os.close(found)

    def _read(self) -> None:
        size = os.fstat(self._file).st_size
        content = os.pread(self._file, size, 0)
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            effect = read_effect(line)
            if effect is None:
                raise StoreError(f"{self._path}: line {number} is no effect")
            self._known.note(effect)
        if whole < size:
            os.ftruncate(self._file, whole)
        if whole > REWRITE_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        beside = _locked(self._path + ".new")
        os.ftruncate(beside, 0)
        for effect in self._known.effects:
            os.write(beside, line_of(effect))
        os.fsync(beside)
        os.rename(self._path + ".new", self._path)
        os.close(self._file)
        self._file = beside


def _locked(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    found = os.open(path, flags, 0o600)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        raise StoreError(f"{path}: another process uses it") from None
    return found
