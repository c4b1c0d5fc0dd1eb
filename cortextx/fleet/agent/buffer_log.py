"""The segments of the agent's buffer as one log of positions (PURE).

It knows nothing of seqs and limits: blocks are written at its end, made durable,
read back from any position and dropped from its beginning. The newest blocks stay
in memory, so that live traffic is not read back from disk; else at most a few
segments' indexes and one window of entries are held, whatever the backlog (A41).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict

from cortextx.errors import StoreClosed, StoreError
from cortextx.fleet.agent.buffer_blocks import (
    Block,
    Checkpoints,
    Packed,
    SegmentHeader,
    unpack,
)
from cortextx.fleet.agent.buffer_recovery import Recovered, account
from cortextx.fleet.agent.buffer_segments import (
    EndUnproved,
    Growing,
    Index,
    Indexes,
    scan_file,
)
from cortextx.fleet.agent.disk import Disk

ENTRY_OVERHEAD = 32
"""Bytes that the wire adds to an entry's body, at most (`{"seq":…,` and a comma)."""

WORTH_REPLACING = 16_384
"""Bytes of acked blocks in the newest segment for which an empty one takes its place."""


class Log:
    """The log, as it was recovered. Errors of the disk are OSErrors."""

    def __init__(self, disk: Disk, found: Recovered, segment_bytes: int, cache_bytes: int) -> None:
        self._disk = disk
        self._ledger = found.ledger
        self._growing = found.growing
        self._full = found.jumped
        self._segment_bytes = segment_bytes
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[int, Packed] = OrderedDict()
        self._cached = 0
        self._indexes = Indexes()
        self._window: tuple[int, list[bytes]] = (0, [])
        self._directory_dirty = False
        self.segments = found.segments
        self.size = sum(segment.size for segment in found.segments)
        self.checkpoints = found.checkpoints
        self.last = self.durable = found.last
        """The newest position that was written, and that is on stable storage."""
        self.broken: str | None = None
        """Why nothing more is written until the buffer is reopened, or None."""

    @property
    def snapshot_durable(self) -> bool:
        """Whether the newest segment's snapshot of the checkpoints is on stable storage,
        so that older segments may go."""
        return self._growing is not None and self._growing.synced > 0

    # Writing

    def write(self, entries: Packed, checkpoints: Checkpoints, shift: int | None) -> None:
        """Write one block; on an OSError nothing of it is left.

        `shift` is for the head of the segment, should one be begun. Raises
        StoreClosed once broken.
        """
        self.check_usable()
        growing = self._growing
        if growing is None or self._must_roll(growing):
            self._begin(entries, checkpoints, shift)
        else:
            before = growing.segment.size
            try:
                growing.write(self.last + 1, entries, checkpoints)
            except EndUnproved as fault:
                self.broken = f"{fault}; reopen it"
                raise
            self.size += growing.segment.size - before
        if entries.number:
            self._remember(self.last + 1, entries)
        self.last += entries.number
        for key, value in checkpoints.items():
            if value is None:
                self.checkpoints.pop(key, None)
            else:
                self.checkpoints[key] = value

    def sync(self) -> bool:
        """Make all that was written durable; True if there was anything.

        A failed one proves nothing about what reached the disk, and a second try
        would prove no more: the log is broken then (StoreError), and what was not
        durable is cut off.
        """
        self.check_usable()
        growing = self._growing
        if growing is None or growing.synced == growing.segment.size:
            return False
        proved = growing.synced
        try:
            growing.sync()
            if self._directory_dirty:
                self._disk.sync_directory()
        except OSError as fault:
            self.broken = f"a sync failed ({fault.strerror}); reopen it"
            with contextlib.suppress(OSError):
                growing.index.file.truncate(proved)
            raise StoreError(f"the buffer refuses further writes: {self.broken}") from fault
        self._directory_dirty = False
        self.durable = self.last
        return True

    def replace_newest(self, shift: int | None) -> None:
        """Begin an empty segment behind the newest, so that this one may go.

        Does nothing where little could be won. On an OSError nothing of it is left.
        """
        growing = self._growing
        if growing is None or not growing.index.firsts:
            return
        if growing.segment.size - growing.data_start > WORTH_REPLACING:
            self._begin(Packed(b"", 0), {}, shift)
            self.sync()

    def roll(self) -> None:
        """Let the next block begin a segment, so that its head tells the new numbering."""
        self._full = True

    def check_usable(self) -> None:
        """Raise StoreClosed once nothing more may be written."""
        if self.broken is not None:
            raise StoreClosed(f"the buffer takes nothing more: {self.broken}")

    def delete_oldest(self) -> None:
        """Delete the oldest segment; never the newest."""
        segment = self.segments[0]
        self._indexes.drop(segment.first)
        self._disk.unlink(segment.name)
        del self.segments[0]
        self.size -= segment.size

    def forget(self, acked: int) -> None:
        """Blocks up to position `acked` are not asked for again."""
        while self._cache:
            first, entries = next(iter(self._cache.items()))
            if first + entries.number - 1 > acked:
                break
            self._forget_oldest_block()

    def close(self) -> None:
        """Close all files, and take nothing more."""
        self.broken = self.broken or "it is closed"
        self._indexes.clear()
        if self._growing is not None:
            self._growing.index.file.close()
        self._cache.clear()

    def _must_roll(self, growing: Growing) -> bool:
        if not growing.index.firsts and growing.segment.first == self.last + 1:
            return False  # another would have the same name
        # Where the snapshot is large, so is the segment: else little but snapshots is written.
        enough = max(self._segment_bytes, growing.data_start)
        return self._full or growing.segment.size - growing.data_start >= enough

    def _begin(self, entries: Packed, checkpoints: Checkpoints, shift: int | None) -> None:
        """Begin another segment; the one before is made durable whole first."""
        old = self._growing
        self.sync()
        previous = self.segments[-1].first if self.segments else 0
        header = SegmentHeader(self.last + 1, previous, shift)
        new = Growing.begin(self._disk, header, self.checkpoints, entries, checkpoints)
        if old is not None:
            self._indexes.keep(old.segment.first, old.index)
        self._growing = new
        self.segments.append(new.segment)
        self.size += new.segment.size
        self._full = False
        self._directory_dirty = True

    def _remember(self, first: int, entries: Packed) -> None:
        self._cache[first] = entries
        self._cached += len(entries.payload)
        while self._cached > self._cache_bytes and self._cache:
            self._forget_oldest_block()

    def _forget_oldest_block(self) -> None:
        _, entries = self._cache.popitem(last=False)
        self._cached -= len(entries.payload)

    # Reading

    def read(self, position: int, until: int, max_bytes: int) -> list[bytes]:
        """Entries from `position` to `until`, fewer if `max_bytes` is reached.

        None come if the disk does not give the first: what is missing has then
        been noted as lost.
        """
        bodies: list[bytes] = []
        room = max_bytes
        while position <= until:
            if not self._in_window(position) and not self._load(position, until, room):
                break
            first, window = self._window
            stop = min(len(window), until + 1 - first)
            for body in window[position - first : stop]:
                room -= len(body) + ENTRY_OVERHEAD
                if room < 0 and bodies:
                    return bodies
                bodies.append(body)
            position = first + stop
        return bodies

    def blocks_of_oldest(self) -> list[Block]:
        """All readable blocks of the oldest segment."""
        segment = self.segments[0]
        file = self._disk.open(segment.name)
        try:
            return scan_file(file, segment.first, segment.size)[1].blocks
        finally:
            file.close()

    def _in_window(self, position: int) -> bool:
        first, bodies = self._window
        return first <= position < first + len(bodies)

    def _load(self, position: int, until: int, max_bytes: int) -> bool:
        """Bring the block of `position`, and some behind it, into the window."""
        at = bisect_right(self.segments, position, key=lambda segment: segment.first) - 1
        if at < 0:
            self._ledger.lose(position, self.segments[0].first - 1, "missing")
            return False
        index = self._index(at)
        block = index.at(position)
        if block >= 0:
            first = index.firsts[block]
            if first in self._cache:
                bodies = self._from_cache(index, block, until)
            else:
                bodies = self._from_file(index, block, until, max_bytes)
            self._window = (first, bodies)
            if self._in_window(position):
                return True
        self._index(at, fresh=True)
        return False

    def _from_cache(self, index: Index, block: int, until: int) -> list[bytes]:
        bodies: list[bytes] = []
        expected = index.firsts[block]
        for at in range(block, len(index.firsts)):
            first = index.firsts[at]
            if first > until or first != expected or first not in self._cache:
                break
            bodies += unpack(*self._cache[first])
            expected = index.firsts[block] + len(bodies)
        return bodies

    def _from_file(self, index: Index, block: int, until: int, max_bytes: int) -> list[bytes]:
        bodies: list[bytes] = []
        expected = index.firsts[block]
        for found in index.read(block, until + 1, max(max_bytes, 1)):
            if found.first != expected:
                break
            bodies += found.bodies()
            expected = found.last + 1
        return bodies

    def _index(self, at: int, fresh: bool = False) -> Index:
        """The index of segment number `at`; damage that this shows is noted (A37)."""
        segment = self.segments[at]
        growing = self._growing if at == len(self.segments) - 1 else None
        index = growing.index if growing is not None else self._indexes.get(segment.first)
        if index is not None and not fresh:
            return index
        if growing is not None:
            file = growing.index.file
        else:
            self._indexes.drop(segment.first)
            file = self._disk.open(segment.name)
        data, scanned = scan_file(file, segment.first, segment.size)
        index = Index.of(file, scanned.blocks, segment.size)
        until = self.last + 1 if growing is not None else self.segments[at + 1].first
        if account(self._ledger, self._disk, segment, data, scanned.blocks, scanned.bad, until):
            with contextlib.suppress(OSError):  # else the next one says it
                self._ledger.persist(self.durable)
        if growing is not None:
            growing.index = index
        else:
            self._indexes.keep(segment.first, index)
        return index
