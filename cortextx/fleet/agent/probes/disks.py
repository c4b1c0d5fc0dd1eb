"""disk.usage and disk.largest: where the space is, and what takes it (S2, S3)."""

from __future__ import annotations

import heapq
import os
import stat
import time
from typing import Any

import psutil

from cortextx.fleet.agent.probes.catalogue import LargestArgs, MountArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

BLOCK = 512
"""Bytes of a block as `st_blocks` counts them, whatever the file system."""
_READ_ONLY = ("squashfs", "iso9660")
MAX_SEEN = 1_000_000
"""Hard links that are remembered, so that no file counts twice."""


def usage(args: MountArgs, place: Place) -> dict[str, Any]:
    """Size, use and inodes of each file system that is mounted, in bytes."""
    rows = []
    for part in psutil.disk_partitions(all=args.mount is not None):
        if args.mount is not None and part.mountpoint != args.mount:
            continue
        if args.mount is None and part.fstype in _READ_ONLY:
            continue
        row: dict[str, Any] = {"mount": part.mountpoint, "device": part.device, "type": part.fstype}
        try:
            found = os.statvfs(part.mountpoint)
        except OSError as error:
            rows.append({**row, "fault": error.strerror})
            continue
        size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bfree
        available = found.f_frsize * found.f_bavail
        used = size - free
        row |= {
            "size_bytes": size,
            "used_bytes": used,
            "available_bytes": available,
            "used_percent": _percent(used, used + available),
            "inodes": found.f_files,
            "inodes_used_percent": _percent(found.f_files - found.f_ffree, found.f_files),
            "read_only": bool(found.f_flag & os.ST_RDONLY),
        }
        rows.append(row)
    if args.mount is not None and not rows:
        raise ProbeFault(f"nothing is mounted at {args.mount}")
    return {"file_systems": rows}


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0


def largest(args: LargestArgs, place: Place) -> dict[str, Any]:
    """The largest files, and directories with all that is below them, in bytes on disk.

    One file system is walked, no link is followed, and what the time did not suffice
    for is said (`complete`).
    """
    found = os.lstat(args.path)
    if not stat.S_ISDIR(found.st_mode):
        raise ProbeFault(f"{args.path} is not a directory (links are not followed)")
    walk = _Walk(found.st_dev, args.limit, time.monotonic() + place.seconds_left)
    total = walk.walk(args.path)
    return {
        "path": args.path,
        "total_bytes": total,
        "files_seen": walk.files,
        "unreadable": walk.unreadable,
        "complete": walk.complete,
        "largest_files": _ranked(walk.largest_files),
        "largest_directories": _ranked(walk.largest_folders),
    }


def _ranked(heap: list[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"bytes": size, "path": path} for size, path in sorted(heap, reverse=True)]


class _Walk:
    """One walk, depth first and without recursion; a folder is done after what it holds."""

    def __init__(self, device: int, limit: int, until: float) -> None:
        self._device = device
        self._limit = limit
        self._until = until
        self._linked: set[int] = set()
        self.largest_files: list[tuple[int, str]] = []
        self.largest_folders: list[tuple[int, str]] = []
        self.files = self.unreadable = 0
        self.complete = True

    def walk(self, top: str) -> int:
        sizes = {top: 0}
        parents: dict[str, str] = {}
        pending = [(top, False)]
        while pending:
            path, done = pending.pop()
            if done:
                size = sizes.pop(path)
                self._offer(self.largest_folders, size, path)
                if path == top:
                    return size
                sizes[parents.pop(path)] += size
                continue
            pending.append((path, True))
            if time.monotonic() > self._until:
                self.complete = False
                continue
            for inner in self._look(path, sizes):
                sizes[inner] = 0
                parents[inner] = path
                pending.append((inner, False))
        return 0

    def _look(self, folder: str, sizes: dict[str, int]) -> list[str]:
        inside: list[str] = []
        try:
            entries = os.scandir(folder)
        except OSError:
            self.unreadable += 1
            return inside
        with entries:
            while True:
                try:
                    entry = next(entries, None)
                except OSError:
                    self.unreadable += 1
                    break
                if entry is None:
                    break
                self._count(folder, entry, inside, sizes)
        return inside

    def _count(
        self, folder: str, entry: os.DirEntry[str], inside: list[str], sizes: dict[str, int]
    ) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            self.unreadable += 1
            return
        if found.st_dev != self._device:
            return
        if stat.S_ISDIR(found.st_mode):
            inside.append(entry.path)
            return
        if found.st_nlink > 1:
            if found.st_ino in self._linked:
                return
            if len(self._linked) < MAX_SEEN:
                self._linked.add(found.st_ino)
        size = found.st_blocks * BLOCK
        self.files += 1
        sizes[folder] += size
        self._offer(self.largest_files, size, entry.path)

    def _offer(self, heap: list[tuple[int, str]], size: int, path: str) -> None:
        if len(heap) < self._limit:
            heapq.heappush(heap, (size, path))
        elif size > heap[0][0]:
            heapq.heapreplace(heap, (size, path))
