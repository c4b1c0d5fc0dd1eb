"""What the agent's buffer remembers beside its segments (PURE).

`State` is the content of the state file: how far the server has got, how
positions become seqs (F2), which positions are no more and why. `Ledger` keeps
it, and writes it whole: tmp, fsync, rename, fsync of the directory (A22). An
unreadable state file is kept aside; the one before it serves, or what the
segments themselves tell.
"""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from cortextx.errors import SchemaTooNew
from cortextx.fleet.agent.disk import Disk, read_whole, remove, replace

STATE = "state"
PREVIOUS = "state.previous"
RESERVE = "reserve"
"""A file that gives its blocks back when the disk is so full that no state fits."""
RESERVE_BYTES = 65_536
MAX_LOSSES = 64
"""Unreported losses kept apart; beyond it, evictions join into one range."""
LOSSES_KEY = "buffer:losses"
"""The checkpoint by which a put says that losses up to a number are reported."""

Reason = Literal["evicted", "damaged", "missing", "set_aside"]
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Loss(msgspec.Struct, frozen=True):
    """A range of numbers that will not be sent, and why (A40, F37).

    `count` is how many entries that were; `number` grows, and a put whose
    checkpoints set LOSSES_KEY to it says that this and all before are reported.
    In the state file `first` and `last` are positions, elsewhere seqs.
    """

    number: int
    first: int
    last: int
    count: int
    reason: Reason
    detail: str = ""


class State(msgspec.Struct):
    """The state file; its lists are replaced, never changed.

    Positions count entries from 1; `shift` makes seqs of them.

    `acked` is what the server has, `durable` the newest position known to be on
    disk when this was written, `holes` are positions above `acked` that are no
    more; the rest are totals.
    """

    version: int = 1
    acked: int = 0
    shift: int | None = None
    durable: int = 0
    holes: list[tuple[int, int]] = []
    losses: list[Loss] = []
    next_loss: int = 1
    evicted: int = 0
    damaged: int = 0
    set_aside: int = 0


class _Version(msgspec.Struct):
    version: int


def encode_state(state: State) -> bytes:
    """The state as a line of JSON and its checksum."""
    text = msgspec.json.encode(state)
    return text + b"\n%08x\n" % zlib.crc32(text)


def decode_state(data: bytes) -> State | None:
    """Read a state; None if it is damaged, SchemaTooNew if a newer version wrote it."""
    text, _, checksum = data.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(text):
        return None
    try:
        if msgspec.json.decode(text, type=_Version).version != 1:
            raise SchemaTooNew("the buffer's state file was written by a newer version")
        return msgspec.json.decode(text, type=State)
    except msgspec.MsgspecError:
        return None


def story_of(accepted: int, shift: int | None, given: int) -> str | None:
    """What an operator should know of a buffer that the server did not know (F2).

    `accepted` is the server's newest seq, `given` the newest position that anybody was told.
    """
    if shift is not None:
        return (
            f"the server has entries up to {accepted}, this buffer gave out none beyond"
            f" {given + shift}: it was restored from an older copy, and what it holds was"
            " numbered anew (it may be sent twice)"
        )
    if accepted == 0:
        return None
    return (
        f"this buffer is new, and the server has entries up to {accepted} of this host: the"
        " buffer before it is lost with what it had not sent; files are read from their start"
    )


class Ledger:
    """The state, its file, and the accounts that are drawn from it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.state = State()
        self.notes: list[str] = []
        self.trusted = True
        """Whether the newest state that was ever written is the one in hand."""

    def load(self) -> bool:
        """Read the state file or what stands in for it; False if there is none at all."""
        names = set(self._disk.names())
        remove(self._disk, f"{STATE}.tmp")
        for name in (STATE, PREVIOUS):
            if name not in names:
                continue
            data = self._content(name)
            state = decode_state(data)
            if state is not None:
                self.state = state
                return True
            self.trusted = False
            replace(self._disk, f"{name}.damaged", data)
            self.notes.append(f"{name} was unreadable and is kept as {name}.damaged")
        return False

    def persist(self, durable: int) -> None:
        """Write the state file; `durable` is the newest position that is on disk.

        On a full disk the reserve is spent to make it possible all the same, and if
        that is gone, the copy of the state before.
        """
        self.state.durable = max(self.state.durable, durable)
        data = encode_state(self.state)
        # A damaged state must not take the place of the one before it.
        previous = PREVIOUS if self.trusted else None
        try:
            self.with_reserve(lambda: replace(self._disk, STATE, data, previous))
        except OSError as fault:
            if fault.errno not in FULL or previous not in self._disk.names():
                raise
            # The copy is worth less than what cannot be given back without a new state.
            self._disk.unlink(PREVIOUS)
            replace(self._disk, STATE, data, previous)
        self.trusted = True

    def with_reserve(self, work: Callable[[], None]) -> None:
        """Do what needs a little room; on a full disk, again without the reserve."""
        try:
            work()
        except OSError as fault:
            if fault.errno not in FULL or RESERVE not in self._disk.names():
                raise
            self._disk.unlink(RESERVE)
            work()

    @contextlib.contextmanager
    def change(self, durable: int) -> Iterator[None]:
        """Change the state and persist it; on an OSError the state is as before."""
        before = msgspec.structs.asdict(self.state)
        try:
            yield
            self.persist(durable)
        except OSError:
            for name, value in before.items():
                setattr(self.state, name, value)
            raise

    def refill_reserve(self) -> None:
        """Make the reserve anew if it was spent; a failure is no matter."""
        if RESERVE in self._disk.names():
            return
        with contextlib.suppress(OSError):
            file = self._disk.create(RESERVE)
            try:
                file.write_at(0, [bytes(RESERVE_BYTES)])
                file.sync()
            finally:
                file.close()

    def advance(self, position: int) -> None:
        """All up to `position` is done with."""
        state = self.state
        state.acked = max(state.acked, position)
        state.holes = [hole for hole in state.holes if hole[1] > state.acked]

    def lose(self, first: int, last: int, reason: Reason, detail: str = "") -> int:
        """Note that positions `first` to `last` are no more; returns how many that adds.

        What was acked or lost before is not counted, nor reported, again.
        """
        parts = list(self.parts(first, last))
        count = sum(end - start + 1 for start, end in parts)
        if not count:
            return 0
        state = self.state
        start, end = parts[0][0], parts[-1][1]
        self._add_hole(start, end)
        match reason:
            case "evicted":
                state.evicted += count
            case "set_aside":
                state.set_aside += count
            case _:
                state.damaged += count
        added = count
        if len(state.losses) >= MAX_LOSSES:
            newest = state.losses[-1]
            if (newest.reason, newest.detail, newest.last + 1) == (reason, detail, start):
                state.losses = state.losses[:-1]
                start, count = newest.first, newest.count + count
        loss = Loss(state.next_loss, start, end, count, reason, detail)
        state.losses = [*state.losses, loss]
        state.next_loss += 1
        return added

    def reported(self, number: int) -> None:
        """Losses up to `number` have been reported."""
        state = self.state
        state.losses = [loss for loss in state.losses if loss.number > number]
        state.next_loss = max(state.next_loss, number + 1)

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What of `first` to `last` is neither acked nor a hole."""
        first = max(first, self.state.acked + 1)
        for start, end in self.state.holes:
            if end < first:
                continue
            if start > last:
                break
            if start > first:
                yield first, start - 1
            first = end + 1
        if first <= last:
            yield first, last

    def missing(self, last: int) -> int:
        """How many positions above `acked`, up to `last`, are holes."""
        acked = self.state.acked
        return sum(
            min(end, last) - max(start, acked + 1) + 1
            for start, end in self.state.holes
            if start <= last and end > acked
        )

    def _add_hole(self, first: int, last: int) -> None:
        merged: list[tuple[int, int]] = []
        for hole in sorted([*self.state.holes, (first, last)]):
            if merged and hole[0] <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], hole[1]))
            else:
                merged.append(hole)
        self.state.holes = merged

    def _content(self, name: str) -> bytes:
        file = self._disk.open(name)
        try:
            return read_whole(file, file.size())
        finally:
            file.close()
