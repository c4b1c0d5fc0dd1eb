"""The many files of which nothing is due, in little room (PURE).

A file that was read to its end, is closed and stands at its home needs no machine: a few
bytes tell whether it has changed, and its checkpoint, which the buffer holds too, tells the
rest on the day that it does. So a hundred thousand old files cost a few hundred bytes each,
and a scan compares them without telling of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from os import stat_result

from cortextx.fleet.agent.sources.identity import FileStat

_FACTS = struct.Struct("<QQQqQ")
_IDENTITY = struct.Struct("<QQ")


class Calm:
    """Files by home. Only `tailer` changes it, and never while a scan is under way."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, home: object) -> bool:
        return home in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def add(self, home: str, stat: FileStat, checkpoint: bytes) -> None:
        """A file has come to rest; the checkpoint is the buffer's own object, if possible."""
        self._kept[home] = (_FACTS.pack(*stat), checkpoint)

    def pop(self, home: str) -> tuple[FileStat, bytes]:
        """What was said of a file with `add`; it is forgotten here. KeyError if unknown."""
        packed, checkpoint = self._kept.pop(home)
        return FileStat(*_FACTS.unpack(packed)), checkpoint

    def identity(self, home: str) -> tuple[int, int]:
        """The device and inode of the file that stood at `home`."""
        device, inode = _IDENTITY.unpack_from(self._kept[home][0])
        return device, inode

    def checkpoint(self, home: str) -> bytes:
        """The checkpoint of the file that stood at `home`."""
        return self._kept[home][1]

    def mark_of(self, home: str, found: stat_result | FileStat) -> int | None:
        """A number that stands for this file, if exactly it stands at `home` still."""
        kept = self._kept.get(home)
        if kept is None:
            return None
        if isinstance(found, FileStat):
            packed = _FACTS.pack(*found)
        else:
            packed = _FACTS.pack(
                found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_nlink
            )
        return id(kept) if packed == kept[0] else None

    def missed(self, met: set[int]) -> list[str]:
        """The homes of those whose number is not among `met`."""
        return [home for home, kept in self._kept.items() if id(kept) not in met]

    def among(self, identities: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of `identities` that files here have."""
        asked = {_IDENTITY.pack(*identity): identity for identity in identities}
        if not asked:
            return set()
        heads = (kept[0][: _IDENTITY.size] for kept in self._kept.values())
        return {asked[head] for head in heads if head in asked}

    def identities(self) -> set[tuple[int, int]]:
        """All devices and inodes."""
        return {self.identity(home) for home in self._kept}
