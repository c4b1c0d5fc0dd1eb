"""What a compressed copy of a rotated log tells, though it is not read (A16, F41).

A file that was compressed while nobody looked is gone, but its copy says how long it was:
gzip keeps the original's size and time. So it is known whether all of it had been read, or
how much had not.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from cortextx.fleet.agent.sources.identity import SAMPLE, digest, is_rotation_of
from cortextx.fleet.agent.sources.tail import Tail

SUFFIX = ".gz"
MAX_COPIES = 500
"""Copies of one directory that are looked at, the newest."""
_HEAD = 8192
_WRAP = 2**32
_SECOND = 1_000_000_000


class Copy(NamedTuple):
    """A gzip file: the original's `size` (modulo 4 GiB), time of change and first bytes."""

    path: str
    size: int
    mtime_ns: int
    head: bytes


def copies(paths: Iterable[str]) -> list[Copy]:
    """The gzip files among these (in a thread). Links are not followed (S2)."""
    found = []
    for path in paths:
        if path.endswith(SUFFIX):
            try:
                found.append((os.lstat(path).st_mtime_ns, path))
            except OSError:
                continue
    made = [_copy(path) for _, path in sorted(found, reverse=True)[:MAX_COPIES]]
    return [copy for copy in made if copy is not None]


def _copy(path: str) -> Copy | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = os.fstat(descriptor)
        if stat.st_size < 18:
            return None
        packed = os.pread(descriptor, _HEAD, 0)
        (size,) = struct.unpack("<I", os.pread(descriptor, 4, stat.st_size - 4))
        head = zlib.decompressobj(wbits=31).decompress(packed, SAMPLE)
    except (OSError, zlib.error, struct.error):
        return None
    finally:
        os.close(descriptor)
    return Copy(path, size, stat.st_mtime_ns, head)


def copy_of(tail: Tail, found: Iterable[Copy]) -> Copy | None:
    """The copy of this file, if there is one: named as it or as a rotation of its home, with
    its first bytes, not older than it was when last seen, and at least as long as was read."""
    mark = tail.mark
    fitting = []
    for copy in found:
        name = copy.path.removesuffix(SUFFIX)
        directories = {os.path.dirname(tail.path), os.path.dirname(tail.home)}
        if name not in (tail.path, tail.home) and not (
            os.path.dirname(name) in directories and is_rotation_of(name, tail.home)
        ):
            continue
        head = copy.head[: mark.head_size]
        long_enough = copy.size >= mark.offset or mark.offset >= _WRAP
        recent = copy.mtime_ns >= tail.stat.mtime_ns - _SECOND
        if recent and long_enough and mark.head_size and digest(head) == mark.head_hash:
            fitting.append(copy)
    # The next one after what was seen: later ones are of later files with the same head.
    return min(fitting, key=lambda copy: copy.mtime_ns, default=None)


def unread_in(copy: Copy, tail: Tail) -> int:
    """Bytes of the original that had not been read."""
    return (copy.size - tail.mark.offset) % _WRAP
