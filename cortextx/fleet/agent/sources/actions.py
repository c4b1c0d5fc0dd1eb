"""What a scan tells the tailer, and what the tailer asks of its adapter (PURE)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cortextx.fleet.agent.sources.calm import Calm
from cortextx.fleet.agent.sources.codings import UTF_8
from cortextx.fleet.agent.sources.compressed import Copy
from cortextx.fleet.agent.sources.identity import FileStat


@dataclass(frozen=True, slots=True)
class Watch:
    """What a scan looks at besides the globs.

    `homes` is who stood at which watched path last, and where that is now: where another
    file stands there, or none though the home is not known to be `vacant`, the scan lists
    that directory too, as it does the `directories`; for a vacant home only where the
    directory has changed since its time in `listed`. The files in `calm` are compared: one
    that is as it was is not told of. At most `room` files that are not known come new, and
    `step` of them at once.
    `strays` are paths outside the globs. `handles` are open; those that no path leads to
    are asked.
    """

    homes: Mapping[str, tuple[tuple[int, int], str]]
    vacant: frozenset[str]
    strays: Sequence[str]
    directories: frozenset[str]
    handles: Mapping[int, tuple[int, int]]
    listed: Mapping[str, int] = field(default_factory=dict)
    calm: Calm = field(default_factory=Calm)
    room: int = sys.maxsize
    step: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Seen:
    """A regular file: `path` as it was found, `real` without links; `matched` by a glob."""

    path: str
    real: str
    stat: FileStat
    matched: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found. `handles` are those that no path led to, with the path that the
    kernel knows them by, if any; `listed` the directories that were read whole, with their
    time of change (ns; 0 if that may not tell of the next one). `awake` are the homes of
    calm files that are not as they were. `counts` says how many files each glob matched,
    `beyond` how many of them there was no room for; `more`: others come with the next scan.
    `copies` are the compressed ones in the listed directories; `calm_in` says how many calm
    files that are as they were each directory holds.
    """

    files: Sequence[Seen]
    handles: Mapping[int, tuple[FileStat, str | None]] = field(default_factory=dict)
    listed: Mapping[str, int] = field(default_factory=dict)
    awake: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    beyond: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    copies: Sequence[Copy] = ()
    calm_in: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """Open `path` and read its first `size` bytes; answer with `opened` or `failed`."""

    handle: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Read:
    """Take a stat result, then read; answer with `bytes_read` or `failed`.

    About `expected` bytes are there, as far as is known: for who reads several at once.
    """

    handle: int
    offset: int
    size: int
    expected: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """Close a handle on which no answer is owed."""

    handle: int


@dataclass(frozen=True, slots=True)
class Emit:
    """Put these records and checkpoints in the buffer as one; answer with `put_durable`
    or `put_failed`. For `part`, `more` and `partial` see `lines.RecordEncoder.encode`;
    `start` is the offset of the first record, `mtime_ns` the file's; `nuls` NULs
    stood before the records. `coding` is a name of `codings.CODINGS`; `capped` are the
    indices of records that a cap has ended (multiline)."""

    handle: int
    home: str
    start: int
    records: Sequence[bytes] = field(repr=False)
    checkpoints: Mapping[str, bytes | None] = field(repr=False)
    mtime_ns: int
    part: int = 0
    more: bool = False
    partial: bool = False
    nuls: int = 0
    coding: str = UTF_8
    capped: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Put checkpoints (None: delete) in the buffer; nothing waits for it."""

    checkpoints: Mapping[str, bytes | None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of `home` that will never be read (A08, F37); `unread` None if unknown.

    It goes into the buffer as one with its checkpoints, so it is reported once. `gone`:
    the file vanished; else it was truncated or rewritten. With a `handle` it must not wait
    (what was lost cannot be seen any more after the agent's end), nothing of that file is
    read meanwhile, and it is answered with `put_durable` or `put_failed`.
    """

    home: str
    unread: int | None
    text: str
    checkpoints: Mapping[str, bytes | None] = field(repr=False)
    gone: bool = False
    handle: int | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """Log for the operator; `level` is info or warn. `counts` names what goes up by one."""

    level: str
    text: str
    counts: str | None = None


Action = Open | Read | Close | Emit | Keep | Gap | Say
