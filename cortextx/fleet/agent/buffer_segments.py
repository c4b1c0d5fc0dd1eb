"""The segment files of the agent's buffer: names, the one that grows, reading back (PURE).

A segment is named by its first position and holds a few MiB. Only the newest
grows; before a new one is begun the old one is synced whole, so a torn end can
only be in the newest (or in one that was just being begun).
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cortextx.errors import StoreError
from cortextx.fleet.agent.buffer_blocks import (
    DATA,
    SNAPSHOT,
    Bad,
    Block,
    Checkpoints,
    Packed,
    Scan,
    SegmentHeader,
    decode_block,
    encode_block,
    encode_segment_header,
    scan,
)
from cortextx.fleet.agent.disk import Disk, DiskFile, read_whole, remove, replace

SUFFIX = ".seg"
QUARANTINE = "quarantine-"
"""What the names of files with damaged bytes begin with."""
SEEN = "acknowledged-"
"""What the names of files begin with that somebody has looked at; nothing deletes them."""
MAX_QUARANTINED_BYTES = 64 * 2**20
NO_ENTRIES = Packed(b"", 0)


class EndUnproved(StoreError):
    """A failed write could not be undone."""


def segment_name(first: int) -> str:
    """The file name of the segment that begins at position `first`."""
    return f"{first:020d}{SUFFIX}"


def segment_first(name: str) -> int | None:
    """The first position of a segment by its file name; None for other names."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdecimal() else None


@dataclass(slots=True)
class Index:
    """Where the blocks of one segment stand: first positions and offsets, ascending."""

    file: DiskFile
    firsts: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    end: int = 0

    @classmethod
    def of(cls, file: DiskFile, blocks: Iterable[Block], end: int) -> Index:
        """The index of a scanned segment."""
        index = cls(file)
        for block in blocks:
            if block.count:
                index.add(block.first, block.offset, block.end)
        index.end = end
        return index

    def add(self, first: int, offset: int, end: int) -> None:
        """Note a block with entries."""
        self.firsts.append(first)
        self.offsets.append(offset)
        self.end = end

    def at(self, position: int) -> int:
        """The block that may hold `position`; -1 if all blocks lie above."""
        return bisect_right(self.firsts, position) - 1

    def read(self, at: int, until: int, max_bytes: int) -> list[Block]:
        """Blocks from number `at` on, in one read: up to position `until` or `max_bytes`.

        Stops short at the first that cannot be read whole.
        """
        start = self.offsets[at]
        stop = min(bisect_left(self.offsets, start + max_bytes), bisect_left(self.firsts, until))
        stop = max(stop, at + 1)
        end = self.offsets[stop] if stop < len(self.offsets) else self.end
        try:
            data = self.file.read_at(start, end - start)
        except OSError:
            return []
        blocks: list[Block] = []
        offset = 0
        while offset < len(data):
            block = decode_block(data, offset, start)
            if block is None:
                break
            if block.count:
                blocks.append(block)
            offset = block.end - start
        return blocks


@dataclass(slots=True)
class Segment:
    """A segment file: its first position and its bytes."""

    first: int
    size: int

    @property
    def name(self) -> str:
        """The file's name."""
        return segment_name(self.first)


class Growing:
    """The newest segment, at whose end blocks are written."""

    def __init__(self, segment: Segment, index: Index, synced: int) -> None:
        self.segment = segment
        self.index = index
        self.synced = synced
        """The offset up to which the file is on stable storage."""
        self.data_start = 0
        """Where the blocks behind the snapshot begin."""

    @classmethod
    def begin(
        cls,
        disk: Disk,
        header: SegmentHeader,
        checkpoints: Mapping[str, bytes],
        entries: Packed,
        updates: Checkpoints,
    ) -> Growing:
        """Begin a segment with a snapshot of all checkpoints and a first block.

        On an OSError nothing of it is left.
        """
        segment = Segment(header.first, 0)
        remove(disk, segment.name)  # what an earlier failure may have left
        file = disk.create(segment.name)
        growing = cls(segment, Index(file), 0)
        head = [encode_segment_header(header)]
        head += encode_block(SNAPSHOT, header.first, NO_ENTRIES, checkpoints, 0)
        start = sum(map(len, head))
        block = encode_block(DATA, header.first, entries, updates, 0)
        try:
            file.write_at(0, head + block)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                remove(disk, segment.name)
            raise
        growing.data_start = start
        growing._wrote(header.first, entries.number, start, start + sum(map(len, block)))
        return growing

    def write(self, first: int, entries: Packed, updates: Checkpoints) -> None:
        """Write one block at the end.

        On an OSError the end is put back where it was, durably: after a crash nothing of
        this may stand behind a part of the next. Should that fail too, EndUnproved comes:
        nobody knows any more where the file ends.
        """
        end = self.segment.size
        block = encode_block(DATA, first, entries, updates, self.synced)
        try:
            self.index.file.write_at(end, block)
        except OSError as fault:
            try:
                self.index.file.truncate(end)
                self.index.file.sync()
            except OSError:
                raise EndUnproved(f"a failed write stands: {fault.strerror}") from fault
            raise
        self._wrote(first, entries.number, end, end + sum(map(len, block)))

    def sync(self) -> None:
        """Make all that was written durable."""
        self.index.file.sync()
        self.synced = self.segment.size

    def _wrote(self, first: int, count: int, offset: int, end: int) -> None:
        if count:
            self.index.add(first, offset, end)
        self.index.end = self.segment.size = end


class Indexes:
    """The indexes of the few segments that are being read."""

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._kept: OrderedDict[int, Index] = OrderedDict()

    def get(self, first: int) -> Index | None:
        """The index of the segment that begins at `first`, if it is kept."""
        index = self._kept.get(first)
        if index is not None:
            self._kept.move_to_end(first)
        return index

    def keep(self, first: int, index: Index) -> None:
        """Keep an index; the one that was longest unused may go for it."""
        self.drop(first)
        self._kept[first] = index
        if len(self._kept) > self._limit:
            _, oldest = self._kept.popitem(last=False)
            oldest.file.close()

    def drop(self, first: int) -> None:
        """Forget an index."""
        index = self._kept.pop(first, None)
        if index is not None:
            index.file.close()

    def clear(self) -> None:
        """Forget all."""
        for first in list(self._kept):
            self.drop(first)


def scan_file(file: DiskFile, first: int, size: int) -> tuple[bytes, Scan]:
    """Read and check a whole segment."""
    data = read_whole(file, size)
    return data, scan(data, first)


def quarantine(disk: Disk, segment: int, bad: Bad, data: bytes) -> str | None:
    """Copy a damaged stretch aside; its file's name, or None if it lay there already.

    Under its name or as acknowledged: what somebody has looked at does not come back.
    Beyond MAX_QUARANTINED_BYTES in all, an empty file stands for the bytes.
    """
    name = f"{QUARANTINE}{segment:020d}-{bad.offset}"
    names = disk.names()
    piece = data[bad.offset : bad.end]
    for other in names:
        seen = other.startswith(SEEN) and other.endswith(f"-{name}")
        if other == name or (seen and disk.size(other) in (0, len(piece))):
            return None
    kept = sum(disk.size(other) for other in names if other.startswith(QUARANTINE))
    replace(disk, name, piece if kept + len(piece) <= MAX_QUARANTINED_BYTES else b"")
    return name
