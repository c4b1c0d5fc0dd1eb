"""The agent's durable buffer: entries and source checkpoints, from append to ack (PURE).

What is appended and synced survives a crash at any point, once, and agrees with
the checkpoints that came with it (A19, A49). Positions number entries from 1;
`seq = position + shift`, and the shift is given by the first `adopt` (F2). Every
call blocks and is for one thread; `fleet.agent.buffer_writer` is the adapter.

Only synced entries are read, so none is sent that a crash could take back and
whose number another entry would then get.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import msgspec

from cortextx.errors import BufferDamaged, LocalProtocolError, StoreError, StoreFull
from cortextx.fleet.agent.buffer_blocks import Checkpoints, Packed, joined, pack
from cortextx.fleet.agent.buffer_log import Log
from cortextx.fleet.agent.buffer_recovery import Recovery, quarantined, recover
from cortextx.fleet.agent.buffer_set_aside import SetAsideEntry, SideFile
from cortextx.fleet.agent.buffer_state import FULL, LOSSES_KEY, Loss, story_of
from cortextx.fleet.agent.disk import Disk

T = TypeVar("T")
MIB = 2**20
OWN_SOURCE = b'"source":"custom:cortextx"'
"""Entries of this source are evicted last (F37): they are carried over."""
MAX_RESCUED_BYTES = 65_536
"""Bytes of such entries that are carried over from one evicted segment."""

Pressure = Literal["ok", "soft", "hard"]


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """The bounds of a buffer (F19), all in bytes.

    Above `soft`, sources that can wait should; above `hard` the oldest entries go.
    With less than `min_free` left on the file system the buffer does not grow
    beyond what it holds then, or `floor` if that is more. `cache` is how much of
    the newest blocks stays in memory.
    """

    soft: int = 256 * MIB
    hard: int = 512 * MIB
    min_free: int = 64 * MIB
    segment: int = 4 * MIB
    cache: int = 2 * MIB

    def __post_init__(self) -> None:
        """ValueError for bounds so narrow that the newest segment alone fills them."""
        if self.soft < 4 * self.segment or self.hard < self.soft + 2 * self.segment:
            raise ValueError("soft must be at least 4 segments, hard 2 segments more")

    @property
    def floor(self) -> int:
        """What the buffer may use however little disk is free."""
        return 4 * self.segment


class Batch(NamedTuple):
    """Entries in order; `first` is the seq of the first, beyond what was asked after a hole."""

    first: int
    bodies: list[bytes]


class Numbering(NamedTuple):
    """What `adopt` settled: the newest acked seq, the newest durable one.

    `renumbered` calls for a warning: the server knew of seqs that this buffer had
    not given out, and what was not acked got other numbers (F2).
    """

    acked: int
    last: int
    renumbered: bool


class Buffer:
    """A buffer in one directory. Open it with `Buffer.open`."""

    def __init__(self, disk: Disk, limits: BufferLimits) -> None:
        """Open what the disk holds; `open` is the same with words for errors."""
        self._disk = disk
        self._limits = limits
        found = recover(disk)
        self._ledger = found.ledger
        self._state = found.ledger.state
        self._log = Log(disk, found, limits.segment, limits.cache)
        self._ceiling: int | None = None
        self._full: str | None = None
        self._fault: str | None = None
        self._wanted = 0
        self._rescued: list[bytes] = []
        self._side = SideFile(disk)
        # The newest position that anybody can have been told of: an earlier process may
        # have sent all that is on disk, this one has sent what it has read.
        self._given = self._log.durable
        self.recovery: Recovery = found.report
        self.story: str | None = None
        """What `adopt` found to be told: that the buffer is not the one that the server knew."""

    @classmethod
    def open(cls, disk: Disk, limits: BufferLimits | None = None) -> Buffer:
        """Open a buffer, or begin one in an empty directory.

        Raises SchemaTooNew, StoreFull or StoreError.
        """
        try:
            return cls(disk, limits or BufferLimits())
        except OSError as fault:
            raise _store_error(fault, "the buffer cannot be opened") from fault

    # What it holds

    @property
    def numbered(self) -> bool:
        """Whether entries have seqs yet (F2)."""
        return self._state.shift is not None

    @property
    def acked(self) -> int:
        """The newest seq that the server has (a position while not numbered)."""
        return self._state.acked + (self._state.shift or 0)

    @property
    def last(self) -> int:
        """The newest seq that is durable here (a position while not numbered)."""
        return self._log.durable + (self._state.shift or 0)

    @property
    def next_seq(self) -> int | None:
        """The seq that the next entry will get; None while not numbered (F2)."""
        shift = self._state.shift
        return None if shift is None else self._log.last + 1 + shift

    @property
    def depth(self) -> int:
        """Durable entries that the server does not have."""
        return self._log.durable - self._state.acked - self._ledger.missing(self._log.durable)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._log.size

    @property
    def pressure(self) -> Pressure:
        """How full the buffer is (F19): from "soft" on, sources that can wait should.

        After a write that found no room it is "hard" until that one would find it.
        """
        limits = self._limits
        if self._full is not None and not self._has_room_again():
            return "hard"
        free = self._free()
        if self._log.size < limits.floor:
            free = limits.min_free * 2
        if self._log.size >= limits.hard or free < limits.min_free:
            return "hard"
        if self._log.size >= limits.soft or free < limits.min_free * 2:
            return "soft"
        return "ok"

    @property
    def full(self) -> str | None:
        """Why the latest write found no room or failed, until one succeeds; None if it did."""
        return self._full or self._fault

    @property
    def evicted(self) -> int:
        """Entries that were evicted, ever (F19)."""
        return self._state.evicted

    @property
    def damaged(self) -> int:
        """Entries that were lost to damage, ever (A37)."""
        return self._state.damaged

    @property
    def set_aside_count(self) -> int:
        """Entries that were set aside, ever (F25)."""
        return self._state.set_aside

    @property
    def broken(self) -> str | None:
        """Why nothing more is written until the buffer is reopened, or None."""
        return self._log.broken

    def quarantined(self) -> list[str]:
        """The files with damaged bytes: health is red until someone moves them away (A37)."""
        return quarantined(self._disk)

    def look(self, work: Callable[[Disk], T]) -> T:
        """What `buffer_view` finds in the directory; OSErrors come as StoreError."""
        try:
            return work(self._disk)
        except OSError as fault:
            raise _store_error(fault, "the buffer's directory cannot be read") from fault

    def oldest(self) -> bytes | None:
        """The body of the oldest entry that the server does not have, if there is one.

        It does not count as given to anybody (see `adopt`).
        """
        stretch = next(self._ledger.parts(self._state.acked + 1, self._log.durable), None)
        if stretch is None:
            return None
        bodies = self._log.read(stretch[0], stretch[0], 1)
        return bodies[0] if bodies else None

    def checkpoints(self) -> dict[str, bytes]:
        """The checkpoints of all sources, as of the last append."""
        return dict(self._log.checkpoints)

    def losses(self) -> list[Loss]:
        """The ranges that are lost and not yet reported, with their seqs (F37).

        Empty while entries are not numbered. A put that sets LOSSES_KEY to a loss's
        number (decimal) reports it and all before, in one with the put's entries.
        """
        shift = self._state.shift
        if shift is None:
            return []
        return [
            msgspec.structs.replace(loss, first=loss.first + shift, last=loss.last + shift)
            for loss in self._state.losses
        ]

    @property
    def unreported(self) -> int:
        """How many losses are not reported yet, numbered or not."""
        return len(self._state.losses)

    # Appending

    def append(
        self, bodies: Sequence[bytes], checkpoints: Checkpoints, may_evict: bool = True
    ) -> int:
        """Append entries and set checkpoints, as one; not durable before `sync`.

        Returns the newest entry's position (`seq` once numbered). Raises ValueError
        for what is no JSON, StoreFull if there is no room (nothing is then stored,
        and the next call may succeed), StoreError, and StoreClosed once broken.
        """
        return self.append_packed([pack(bodies)], checkpoints, may_evict)

    def append_packed(
        self, packs: Sequence[Packed], checkpoints: Checkpoints, may_evict: bool = True
    ) -> int:
        """Append several puts in one block, as `append` does."""
        self._log.check_usable()
        entries = joined(packs)
        try:
            self._make_room(len(entries.payload), may_evict)
            if self._rescued:
                entries = joined([pack(self._rescued), entries])
            try:
                self._log.write(entries, checkpoints, self._state.shift)
            except OSError as fault:
                if fault.errno not in FULL or not self.relieve():
                    raise
                self._log.write(entries, checkpoints, self._state.shift)
        except OSError as fault:
            error = _store_error(fault, "the buffer cannot be written")
            if fault.errno in FULL:
                self._ceiling = max(self._log.size, self._limits.floor)
                self._note_full(error, len(entries.payload))
            else:
                self._fault = str(error)
            raise error from fault
        except StoreFull as error:
            self._note_full(error, len(entries.payload))
            raise
        self._full, self._wanted = None, 0
        if entries.payload:  # what has none needs no new segment, and proves less
            self._fault = None
        self._rescued = []
        return self._log.last + (self._state.shift or 0)

    def sync(self) -> None:
        """Make all that was appended durable (one fdatasync a group).

        A failed one proves nothing about what reached the disk, and a second try
        would prove no more: the buffer then refuses to write until reopened
        (StoreError now, StoreClosed later), and what was not durable is cut off.
        """
        if self._log.sync() and self._state.losses:
            reported = self._log.checkpoints.get(LOSSES_KEY, b"")
            if reported.isdigit():
                self._ledger.reported(int(reported))

    # Sending

    def read(self, first_seq: int, max_entries: int, max_bytes: int) -> Batch:
        """Durable entries from `first_seq` on, in order and without a hole between them.

        `max_bytes` counts ENTRY_OVERHEAD for each; one entry comes however long it is.
        `Batch.first` is beyond `first_seq` where what was asked is gone; no bodies
        means that there is nothing more. Raises BufferDamaged if the disk reads
        differently each time.
        """
        shift = self._numbering()
        position = max(first_seq - shift, self._state.acked + 1)
        attempts = 0
        while True:
            stretch = next(self._ledger.parts(position, self._log.durable), None)
            if stretch is None:
                return Batch(max(position, self._log.durable + 1) + shift, [])
            attempts = attempts + 1 if stretch[0] == position else 0
            position = stretch[0]
            until = min(stretch[1], position + max_entries - 1)
            bodies = self._log.read(position, until, max_bytes)
            if bodies:
                self._given = max(self._given, position + len(bodies) - 1)
                return Batch(position + shift, bodies)
            if attempts > 3:
                raise BufferDamaged("the buffer cannot be read", position + shift, until + shift)

    def adopt(self, accepted_seq: int) -> Numbering:
        """Take over what the server says it has (§7, F2, F26); durable on return.

        Brand new: the first entry gets `accepted_seq + 1`. Within what is known:
        `acked` moves up. Beyond all that can ever have been sent (a buffer restored
        from a copy, with what was appended since): what is not acked is renumbered to
        follow it. Below `acked`: nothing changes.
        """
        if self._log.broken is None:
            self.sync()
        state = self._state
        acked, renumbered = state.acked, False
        try:
            given = max(self._given, acked)
            if state.shift is None or accepted_seq > given + state.shift:
                renumbered = state.shift is not None
                story = story_of(accepted_seq, state.shift, given)
                with self._ledger.change(self._log.durable):
                    state.shift = accepted_seq - acked
                self._log.roll()
                self.story = story
            elif accepted_seq - state.shift > acked:
                with self._ledger.change(self._log.durable):
                    self._ledger.advance(accepted_seq - state.shift)
                self._drop_acked(persisted=True)
        except OSError as fault:
            raise _store_error(fault, "the numbering cannot be written") from fault
        return Numbering(self.acked, self.last, renumbered)

    def truncate(self, acked: int) -> None:
        """The server has all up to seq `acked`: drop it.

        The position is written before any segment is deleted (A38); until then
        it is only remembered, as the server says it again at the next hello.
        """
        position = acked - self._numbering()
        if position > self._log.durable:
            raise LocalProtocolError(f"acked {acked} was never durable here")
        if position > self._state.acked:
            self._ledger.advance(position)
            self._drop_acked()

    def relieve(self) -> bool:
        """Give back all that acked entries still take, for a disk that is full (F19).

        That is what an earlier fault left, and where nothing waits to be sent the newest
        segment too: an empty one takes its place. True if anything was given back.
        """
        size = self._log.size
        with contextlib.suppress(OSError, StoreError):
            self._drop_acked()
            if self._log.broken is None and self._state.acked >= self._log.last:
                self._ledger.with_reserve(lambda: self._log.replace_newest(self._state.shift))
                self._drop_acked()
        return self._log.size < size

    def set_aside(self, seq: int, reason: str) -> bool:
        """Keep entry `seq` in the side file and read on past it (F25); durable on return.

        False if there is no such entry (any more).
        """
        shift = self._numbering()
        batch = self.read(seq, 1, 1)
        if batch.first != seq or not batch.bodies:
            return False
        try:
            self._side.add(SetAsideEntry(seq - shift, seq, reason, batch.bodies[0]))
            with self._ledger.change(self._log.durable):
                self._ledger.lose(seq - shift, seq - shift, "set_aside", reason)
        except OSError as fault:
            raise _store_error(fault, f"entry {seq} cannot be set aside") from fault
        return True

    def set_aside_entries(self, limit: int = 100) -> list[SetAsideEntry]:
        """The newest entries that were set aside, oldest first (F25)."""
        return self._side.newest(limit)

    def close(self) -> None:
        """Sync, write the state, and give the directory back; a second call does nothing."""
        if self._log.broken is None:
            with contextlib.suppress(OSError, StoreError):
                self.sync()
                self._ledger.persist(self._log.durable)
        self._log.close()
        self._disk.close()

    # Bounds

    def _make_room(self, wanted: int, may_evict: bool) -> None:
        """Evict so that `wanted` more bytes fit below the ceiling (F19).

        The ceiling is `hard`, or where free disk ran short the size of that moment:
        the buffer then does not grow, but gives nothing up for others either.
        """
        short = self._free() < self._limits.min_free
        if short and self._ceiling is None:
            self._ceiling = max(self._log.size, self._limits.floor)
        ceiling = min(self._limits.hard, self._ceiling or self._limits.hard)
        if not short:
            self._ceiling = None
        if self._log.size + wanted > ceiling:
            self.relieve()
        while self._log.size + wanted > ceiling and len(self._log.segments) > 1:
            if not may_evict:
                raise StoreFull("the buffer is full")
            self._evict()

    def _evict(self) -> None:
        """Drop the oldest segment: counted, noted durably, then deleted (F19, A40)."""
        if not self._log.snapshot_durable:
            self.sync()
        first, until = self._log.segments[0].first, self._log.segments[1].first
        rescued = self._own_entries_of_oldest()
        with self._ledger.change(self._log.durable):
            self._ledger.lose(first, until - 1, "evicted")
        self._rescued += rescued
        self._log.delete_oldest()

    def _own_entries_of_oldest(self) -> list[bytes]:
        """What the agent itself reported in the oldest segment, the newest of it (F37)."""
        kept: list[bytes] = []
        room = MAX_RESCUED_BYTES
        for block in reversed(self._log.blocks_of_oldest()):
            if OWN_SOURCE not in block.payload:
                continue
            for at, body in reversed(list(enumerate(block.bodies(), block.first))):
                if OWN_SOURCE in body and len(body) <= room and any(self._ledger.parts(at, at)):
                    kept.append(body)
                    room -= len(body)
        return kept[::-1]

    def _drop_acked(self, persisted: bool = False) -> None:
        """Delete segments of which all is acked, once that is written (A38)."""
        acked, segments = self._state.acked, self._log.segments
        self._log.forget(acked)
        if len(segments) < 2 or segments[1].first > acked + 1 or not self._log.snapshot_durable:
            return
        try:
            if not persisted:
                self._ledger.persist(self._log.durable)
            while len(segments) > 1 and segments[1].first <= acked + 1:
                self._log.delete_oldest()
        except OSError as fault:
            raise _store_error(fault, "acked segments cannot be dropped") from fault
        self._ledger.refill_reserve()

    def _note_full(self, error: StoreError, wanted: int) -> None:
        self._full, self._wanted = str(error), max(self._wanted, wanted)

    def _has_room_again(self) -> bool:
        """Whether what found no room would find it now, as far as can be seen."""
        free, limits = self._free(), self._limits
        ceiling = limits.hard if free >= limits.min_free else self._ceiling or limits.hard
        return free >= self._wanted and self._log.size + self._wanted <= ceiling

    def _free(self) -> int:
        try:
            return self._disk.free()
        except OSError as fault:
            self._fault = str(_store_error(fault, "the buffer cannot be written"))
            return 0

    def _numbering(self) -> int:
        if self._state.shift is None:
            raise LocalProtocolError("entries have no seqs before the first adopt")
        return self._state.shift


def _store_error(fault: OSError, what: str) -> StoreError:
    text = f"{what}: {fault.strerror or fault}"
    return StoreFull(text) if fault.errno in FULL else StoreError(text)
