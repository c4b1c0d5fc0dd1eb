"""One session's log on a disk: proved, appended to, read in pages (I12, I13) (PURE).

One thread at a time opens, appends, rewrites and closes; any thread may read
meanwhile. What is read is durable, always.

A kill in the middle of a write leaves a torn line. A write long enough for that is
noted beside the log before, and the note outlives the process: it proves that what
follows its offset was published nowhere, and then the torn line is taken back when
the log is opened. After a power cut there is no such proof (I13).

A write that fails is taken back to the last durable byte, which is this writer's
own proof, and that is synced too. A sync that fails proves nothing any more: the
log is broken then, and every later call fails (SessionDamaged).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from cortextx.errors import (
    LocalProtocolError,
    SessionDamaged,
    StoreClosed,
    StoreError,
    StoreFull,
)
from cortextx.interfaces.sessions import JournalPage, JournalState
from cortextx.stores.journal_disk import (
    FULL,
    LOG,
    TOO_MANY,
    JournalDirectory,
    JournalFile,
    remove,
)
from cortextx.stores.journal_proof import (
    CHUNK,
    Doubt,
    Proved,
    SparseOffsets,
    check_new_lines,
    prove,
)

BESIDE = f"{LOG}.new"
"""Where a log is rewritten before it takes the log's name."""
PAGE = 4096
"""Bytes that a kill does not cut in two, or hardly ever; a longer write is noted before."""
HINTS = 32
"""Ends of pages that are remembered, so that a walk does not search its place anew."""


@dataclass(slots=True)
class _Generation:
    """One file that is, or was, the log; `readers` keep it open after a rewrite."""

    file: JournalFile | None = None
    first: int = 1
    head: int = 0
    end: int = 0
    offsets: SparseOffsets = field(default_factory=SparseOffsets)
    hints: OrderedDict[int, int] = field(default_factory=OrderedDict)
    readers: int = 0
    retired: bool = False


class Log:
    """The log `events.jsonl` of one session. Errors: see ISessionJournal."""

    def __init__(self, open_directory: Callable[[], JournalDirectory], path: str) -> None:
        """`open_directory` takes the session's lock; `path` is for messages."""
        self.path = path
        self._open_directory = open_directory
        self.taken_back = 0
        """Bytes of an append that `open` took back, as a kill had cut it short."""
        self._directory: JournalDirectory | None = None
        self._now = _Generation()
        self._lock = threading.Lock()
        self._broken: SessionDamaged | None = None

    @property
    def state(self) -> JournalState:
        """What is durable."""
        return JournalState(self._now.first, self._now.head)

    @property
    def directory(self) -> JournalDirectory:
        """Where the log is, for what is derived from it; raises as any other call."""
        return self._usable()

    @property
    def size(self) -> int:
        """Durable bytes."""
        return self._now.end

    @property
    def offsets(self) -> SparseOffsets:
        """Where some lines begin."""
        return self._now.offsets

    # Life

    def open(self) -> JournalState:
        """Lock, prove, and sync what a killed predecessor may have left unsynced."""
        directory = self._open_directory()
        generation = _Generation()
        try:
            try:
                generation.file = directory.open(LOG)
            except FileNotFoundError:
                generation.file = None
            with contextlib.suppress(OSError):
                remove(directory, BESIDE)
            if generation.file is not None:
                proved = self._proved(generation.file, directory)
                generation.file.sync()
                generation.first, generation.head = proved.first, proved.head
                generation.end, generation.offsets = proved.end, proved.offsets
            if directory.unfinished() is not None:
                directory.written()
        except OSError as fault:
            self._give_back(directory, generation)
            if fault.errno in TOO_MANY:
                raise _as_store_error(self.path, fault) from fault
            raise SessionDamaged(self.path, 0, fault.strerror or "it cannot be read") from fault
        except StoreError:
            self._give_back(directory, generation)
            raise
        self._directory, self._now, self._broken = directory, generation, None
        return self.state

    def _proved(self, file: JournalFile, directory: JournalDirectory) -> Proved:
        proved = prove(file, file.size())
        if proved.doubt is None:
            return proved
        begun = directory.unfinished()
        if begun is None or proved.end < begun:
            raise SessionDamaged(self.path, proved.doubt.offset, proved.doubt.why)
        # Its writer was killed in the middle of an append that nobody has heard of.
        self.taken_back = file.size() - proved.end
        file.truncate(proved.end)
        proved.doubt = None
        return proved

    def _give_back(self, directory: JournalDirectory, generation: _Generation) -> None:
        if generation.file is not None:
            generation.file.close()
        directory.close()

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        directory, self._directory = self._directory, None
        if directory is not None:
            self._retire(self._now)
            directory.close()

    # Writing

    def append(self, first: int, lines: Sequence[bytes]) -> None:
        """Append lines with the seqs from `first` on, and sync."""
        if not lines:
            return
        directory = self._usable()
        now = self._now
        if first != now.head + 1:
            raise LocalProtocolError(f"expected seq {now.head + 1} to be appended, not {first}")
        data = b"\n".join(lines) + b"\n"
        try:
            check_new_lines(data, len(lines), first)
        except Doubt as doubt:
            raise LocalProtocolError(f"not a line of a log: {doubt.why}") from None
        created = now.file is None
        file = now.file if now.file is not None else self._create(directory)
        now.file = file
        noted = len(data) > PAGE
        try:
            if noted:
                directory.writing(now.end)
            file.write_at(now.end, [data])
        except OSError as fault:
            raise self._taken_back(file, fault, directory) from fault
        self._sync(file, directory if created or not now.end else None)
        if noted:
            self._noted_end(directory)
        self._note(now, first, lines)
        now.end += len(data)
        now.head += len(lines)

    def _note(self, now: _Generation, first: int, lines: Sequence[bytes]) -> None:
        now.offsets.note(first, now.end)
        ends = list(accumulate(map(len, lines)))  # newlines are counted apart
        for far in range(CHUNK, ends[-1] + len(lines), CHUNK):
            at = bisect_left(ends, far) + 1
            if at < len(lines):
                now.offsets.note(first + at, now.end + ends[at - 1] + at)

    def _create(self, directory: JournalDirectory) -> JournalFile:
        try:
            return directory.create(LOG)
        except OSError as fault:
            raise _as_store_error(self.path, fault) from fault

    def _taken_back(
        self, file: JournalFile, fault: OSError, directory: JournalDirectory
    ) -> StoreError:
        try:
            file.truncate(self._now.end)
            file.sync()
        except OSError as worse:
            return self._break(worse)
        self._noted_end(directory)
        return _as_store_error(self.path, fault)

    def _noted_end(self, directory: JournalDirectory) -> None:
        """Take the note back; a note that stayed would prove something false."""
        try:
            directory.written()
        except OSError as fault:
            raise self._break(fault) from fault

    def _sync(self, file: JournalFile, directory: JournalDirectory | None) -> None:
        try:
            file.sync()
            if directory is not None:
                directory.sync_directory()
        except OSError as fault:
            raise self._break(fault) from fault

    def _break(self, fault: OSError) -> SessionDamaged:
        why = f"it could not be made durable: {fault.strerror}"
        self._broken = SessionDamaged(self.path, self._now.end, why)
        return self._broken

    def _usable(self) -> JournalDirectory:
        if self._directory is None:
            raise StoreClosed("the session's log is not open")
        if self._broken is not None:
            raise SessionDamaged(self.path, self._broken.offset, self._broken.why)
        return self._directory

    # Rewriting (I38)

    def rewrite(self, first: int, mend: Callable[[int, bytes], bytes]) -> None:
        """Begin the log with line `first`, which must be there; `mend` may change lines.

        Beside, sync, rename: a crash leaves the one log or the other.
        """
        directory = self._usable()
        if not self._now.first <= first <= self._now.head:
            raise LocalProtocolError(f"expected a retained seq, not {first}")
        made = _Generation(first=first, head=first - 1)
        try:
            remove(directory, BESIDE)
            made.file = directory.create(BESIDE)
            self._copy(first, mend, made, made.file)
            made.file.sync()
            directory.rename(BESIDE, LOG)
        except (OSError, StoreError) as fault:
            self._drop_beside(directory, made)
            raise _as_store_error(self.path, fault) from fault
        try:
            directory.sync_directory()
        except OSError as fault:
            raise self._break(fault) from fault
        with self._lock:
            old, self._now = self._now, made
        self._retire(old)

    def _drop_beside(self, directory: JournalDirectory, made: _Generation) -> None:
        if made.file is not None:
            made.file.close()
        with contextlib.suppress(OSError):
            remove(directory, BESIDE)

    def _copy(
        self, first: int, mend: Callable[[int, bytes], bytes], made: _Generation, file: JournalFile
    ) -> None:
        after = first - 1
        while after < self._now.head:
            page = self.read(after, 4096, 2**20)
            lines = [mend(seq, line) for seq, line in enumerate(page.lines, page.first)]
            data = b"\n".join(lines) + b"\n"
            try:
                check_new_lines(data, len(lines), page.first)
            except Doubt as doubt:
                raise StoreError(f"{self.path} cannot be rewritten: {doubt.why}") from None
            file.write_at(made.end, [data])
            self._note(made, page.first, lines)
            made.end += len(data)
            made.head += len(lines)
            after = made.head

    # Reading

    def read(self, after: int, max_lines: int, max_bytes: int) -> JournalPage:
        """A page, see ISessionJournal; any thread."""
        self._usable()
        with self._lock:
            now = self._now
            if now.retired:
                raise StoreClosed("the session's log is not open")
            now.readers += 1
            head, end = now.head, now.end
            first = max(after + 1, now.first)
            hint = now.hints.get(first)
        try:
            if first > head or now.file is None:
                return JournalPage(first, ())
            seq, offset = (first, hint) if hint is not None else now.offsets.before(first)
            lines, stop = _lines_from(now.file, offset, end, first - seq, max_lines, max_bytes)
        except OSError as fault:
            raise StoreError(f"{self.path} cannot be read: {fault.strerror}") from fault
        finally:
            self._leave(now)
        with self._lock:
            now.hints[first + len(lines)] = stop
            if len(now.hints) > HINTS:
                now.hints.popitem(last=False)
        return JournalPage(first, lines)

    def _leave(self, generation: _Generation) -> None:
        with self._lock:
            generation.readers -= 1
        self._close_if_idle(generation)

    def _retire(self, generation: _Generation) -> None:
        with self._lock:
            generation.retired = True
        self._close_if_idle(generation)

    def _close_if_idle(self, generation: _Generation) -> None:
        with self._lock:
            if not generation.retired or generation.readers:
                return
            file, generation.file = generation.file, None
        if file is not None:
            file.close()


def _lines_from(
    file: JournalFile, offset: int, end: int, skip: int, max_lines: int, max_bytes: int
) -> tuple[list[bytes], int]:
    """Lines from `offset` up to `end`, without the first `skip`; and where the last ends."""
    lines: list[bytes] = []
    taken = 0
    held: list[bytes] = []
    at = stop = offset
    while at < end:
        piece = file.read_at(at, min(CHUNK, end - at))
        if not piece:
            raise OSError(errno.EIO, "the log is shorter than it was")
        at += len(piece)
        found = piece.split(b"\n")
        if len(found) == 1:
            held.append(piece)
            continue
        found[0] = b"".join((*held, found[0]))
        held = [found.pop()]
        for line in found:
            size = len(line) + 1
            if skip:
                skip -= 1
            elif lines and taken + size > max_bytes:
                return lines, stop
            else:
                lines.append(line)
                taken += size
                if len(lines) >= max_lines:
                    return lines, stop + size
            stop += size
    return lines, stop


def _as_store_error(path: str, fault: OSError | StoreError) -> StoreError:
    if isinstance(fault, StoreError):
        return fault
    if fault.errno in FULL + TOO_MANY:
        return StoreFull(f"{path}: {fault.strerror}")
    return StoreError(f"{path}: {fault.strerror}")
