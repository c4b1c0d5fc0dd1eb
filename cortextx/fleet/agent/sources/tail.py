"""One file that is being tailed: where it stands, and how far it was read (PURE)."""

from __future__ import annotations

from dataclasses import dataclass, field

from cortextx.fleet.agent.sources.codings import UTF_8
from cortextx.fleet.agent.sources.identity import SAMPLE, Checkpoint, FileStat, digest


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file that reading can go on from; see `Checkpoint`."""

    offset: int = 0
    part: int = 0
    head_size: int = 0
    head_hash: str = ""
    before_size: int = 0
    before_hash: str = ""
    coding: str = UTF_8

    def moved(self, window: bytes, window_start: int, consumed: int, part: int) -> Mark:
        """The mark `consumed` bytes further on; `window` is the file from `window_start`
        up to there at least."""
        offset = self.offset + consumed
        end = offset - window_start
        before = window[max(0, end - SAMPLE) : end]
        head_size, head_hash = self.head_size, self.head_hash
        if window_start == 0 and head_size < SAMPLE:
            head = window[: min(SAMPLE, offset)]
            head_size, head_hash = len(head), digest(head)
        return Mark(offset, part, head_size, head_hash, len(before), digest(before), self.coding)


HELD, LIVE, LAST = 1, 2, 3


@dataclass(eq=False, slots=True)
class Tail:
    """`home` is the watched path it belongs to, `path` where it is now (without links).

    `eof` is the (size, mtime_ns) up to which all whole records were read, None if
    there may be more. A file that does not stand at its home is `rotated` (since when,
    in seconds); it is `finished` when it was read to its end and stayed quiet.
    `largest` is the largest size seen of it, `verified` the size when it was last read;
    `home_mtime_ns` its time of change when it was last seen at home.
    Until `retry` nothing is tried, because it is `unreadable` or the buffer refused its put.
    `turns` is how often it was read since it was opened, `nuls` how many NUL bytes just
    before the mark were stepped over without a record that they were counted in.
    `after` is the file whose first `gate` bytes come before this one's first.
    `flush` says that what waits at the file's end is to come now: HELD lines of a record
    (multiline), a LIVE file's unfinished line, or the LAST of a rotated one. `held`: there
    are such lines. `tried` is the `eof` at which a live file's end was given already.
    `replaces` is the file that stood at this home until this one was put in its place,
    as long as it is not known whether this one begins with what was read of that (A20).
    `kept` is the checkpoint that was made of it last. `before` is `durable`, `verified` and
    `largest` as they were before a truncation whose gap is not durable yet.
    """

    handle: int
    home: str
    path: str
    stat: FileStat
    mark: Mark = field(default_factory=Mark)
    durable: Mark | None = None
    matched: bool = True
    restored: bool = False
    located: bool = True
    stale_key: str | None = None
    is_open: bool = False
    busy: bool = False
    turns: int = 0
    wide: bool = False
    to_end: bool = False
    flush: int = 0
    held: bool = False
    tried: tuple[int, int] | None = None
    replaces: Tail | None = None
    coding_before: str = UTF_8
    nuls: int = 0
    eof: tuple[int, int] | None = None
    rotated: float | None = None
    finished: float | None = None
    grown: float = 0.0
    retry: float = 0.0
    unreadable: bool = False
    absent: int = 0
    home_mtime_ns: int = 0
    largest: int = 0
    verified: int = 0
    after: Tail | None = None
    gate: int = 0
    before: tuple[Mark | None, int, int] | None = None
    kept: bytes | None = None

    @property
    def unread(self) -> bool:
        """Whether a read is due."""
        if self.flush or self.to_end:
            return True
        if self.stat.size == 0 and self.mark.offset == 0:
            return False
        return self.eof != (self.stat.size, self.stat.mtime_ns)

    def passed(self, now: float) -> bool:
        """Whether what comes behind this file may be read: its first `gate` bytes are
        durable, or cannot be had at present."""
        if self.finished is not None or (self.unreadable and self.retry > now):
            return True
        if self.busy:
            return False
        if self.mark.offset >= self.gate:
            return True
        return self.eof is not None and not self.unread and not self.held

    @property
    def rests(self) -> bool:
        """Whether nothing is due of this file, nor will be until it changes: all of it is
        durable, and it stands at its home, closed."""
        mark, size = self.mark, self.stat.size
        return (
            mark.offset == size
            and not (self.is_open or self.busy or self.unread or self.held or self.absent)
            and not (mark.part or self.nuls or self.unreadable)
            and self.matched
            and self.located
            and self.durable == mark
            and (self.rotated, self.finished, self.stale_key) == (None, None, None)
            and self.replaces is None
            and self.before is None
        )

    def take_stat(self, stat: FileStat, now: float) -> None:
        """A stat result of this very file."""
        if stat.size != self.stat.size or stat.mtime_ns != self.stat.mtime_ns:
            self.grown = now
        self.stat = stat
        self.largest = max(self.largest, stat.size)

    @property
    def known_unread(self) -> int:
        """Bytes known to have stood behind the offset of what the file was before now."""
        known = self.largest if self.stat.size < self.largest else self.verified
        return max(0, known - self.mark.offset)

    def checkpoint(self) -> Checkpoint:
        """The mark as it is kept."""
        mark, stat = self.mark, self.stat
        return Checkpoint(
            home=self.home, path=self.path, dev=stat.dev, ino=stat.ino, offset=mark.offset,
            part=mark.part, head_size=mark.head_size, head_hash=mark.head_hash,
            before_size=mark.before_size, before_hash=mark.before_hash,
            size=stat.size, mtime_ns=stat.mtime_ns, finished=int(self.finished is not None),
            coding=mark.coding, replaces=self.replaces.stat.ino if self.replaces else 0,
        )  # fmt: skip


def is_whole(kept: Checkpoint) -> bool:
    """Whether a checkpoint is of a file that was read to its end and stood at its home."""
    return kept.offset == kept.size and not (kept.part or kept.finished or kept.replaces)


def woken_tail(handle: int, kept: Checkpoint, stat: FileStat) -> Tail:
    """A tail of which nothing was due while its file was as `stat` says."""
    tail = restored_tail(handle, kept)
    tail.stat, tail.eof = stat, (stat.size, stat.mtime_ns)
    tail.largest = tail.verified = stat.size
    tail.home_mtime_ns = stat.mtime_ns
    return tail


def restored_tail(handle: int, kept: Checkpoint) -> Tail:
    """A tail from its checkpoint; whether the file is still that one shows when it is opened."""
    mark = Mark(
        kept.offset, kept.part, kept.head_size, kept.head_hash, kept.before_size,
        kept.before_hash, kept.coding,
    )  # fmt: skip
    stat = FileStat(kept.dev, kept.ino, kept.size, kept.mtime_ns)
    tail = Tail(handle, kept.home, kept.path, stat, mark, mark, restored=True, located=False)
    tail.largest = tail.verified = kept.size
    tail.home_mtime_ns = kept.mtime_ns
    if kept.offset == kept.size:
        tail.eof = (kept.size, kept.mtime_ns)
    if kept.finished:
        tail.rotated = tail.finished = 0.0
    return tail
