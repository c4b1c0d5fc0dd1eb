"""Which file it is, and how far it was read: stat results, fingerprints, checkpoints (PURE).

A file is its device and inode, confirmed by a hash of its first bytes (which grows
with what was read of it) and one of the bytes just before the offset (A07, A10, A13).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from cortextx.fleet.agent.sources.codings import CODINGS, UTF_8

SAMPLE = 1024
"""Bytes at a file's start, and before an offset, that are hashed."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".Z")
_ROTATED = re.compile(r"[.-]\d[\d.T:_-]*", re.ASCII)


class FileStat(NamedTuple):
    """What matters of a stat result; `size` in bytes."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    nlink: int = 1

    @property
    def identity(self) -> tuple[int, int]:
        return (self.dev, self.ino)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a file was read, as it is kept beside its entries.

    `home` is the watched path it was found at first (and is shown as), `path` where it
    was last. `offset` stands at the end of a record; `part` is the number of the last
    part of a long line that ended there, 0 if none is open (F17). `size` and `mtime_ns`
    are the file's when it was read. The hashes cover `head_size` and `before_size` bytes.
    """

    home: str
    path: str
    dev: int
    ino: int
    offset: int
    part: int
    head_size: int
    head_hash: str
    before_size: int
    before_hash: str
    size: int
    mtime_ns: int
    finished: int = 0
    """1 once the file was rotated away, read to its end, and quiet."""
    coding: str = UTF_8
    """A name of `codings.CODINGS`."""
    replaces: int = 0
    """The inode of the file in whose place this one was put, while it is not known whether
    this one begins with what was read of that (A20); 0 for none."""

    def encode(self) -> bytes:
        """JSON; pure ASCII, because paths may hold bytes that are no UTF-8. Short, as there
        may be very many: an array in the order of the members, 0 for what another member
        or the default says, and no zeros at its end."""
        values = [2, *(getattr(self, name) for name in self.__slots__)]
        values[2] = 0 if self.path == self.home else self.path
        values[10] = 0 if self.before_hash == self.head_hash else self.before_hash
        values[14] = 0 if self.coding == UTF_8 else self.coding
        while values[-1] == 0:
            values.pop()
        return json.dumps(values, separators=(",", ":")).encode()


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The inverse of `Checkpoint.encode`; raises ValueError for anything else."""
    try:
        members = json.loads(data)
        if isinstance(members, list):
            version = members[0]
            found = _listed(members[1:])
        else:
            version = members.pop("v") + 1
            found = Checkpoint(**members)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError("no checkpoint of a file") from error
    for name, kind in Checkpoint.__annotations__.items():
        wanted = int if kind == "int" else str
        if type(getattr(found, name)) is not wanted:
            raise ValueError(f"no checkpoint of a file: {name}")
    if (
        version != 2
        or found.coding not in CODINGS
        or min(found.offset, found.part, found.before_size, found.head_size) < 0
    ):
        raise ValueError("no checkpoint of a file: out of range")
    return found


def _listed(values: list[Any]) -> Checkpoint:
    members = dict.fromkeys(Checkpoint.__slots__, 0) | dict(
        zip(Checkpoint.__slots__, values, strict=False)
    )
    for name, other in (("path", members["home"]), ("before_hash", members["head_hash"]),
                        ("coding", UTF_8)):  # fmt: skip
        if members[name] == 0:
            members[name] = other
    return Checkpoint(**members)


def digest(data: bytes) -> str:
    """A short hash of a sample of a file."""
    return blake2b(data, digest_size=8).hexdigest()


def is_compressed(path: str) -> bool:
    """Whether a name is that of a compressed copy, which is never read (F41)."""
    return path.endswith(COMPRESSED)


def is_rotation_of(path: str, home: str) -> bool:
    """Whether `path` is named as rotation names what stood at `home`: `home.1`, `home-2026…`."""
    name, base = os.path.basename(path), os.path.basename(home)
    return name.startswith(base) and _ROTATED.fullmatch(name, len(base)) is not None
