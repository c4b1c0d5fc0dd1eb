"""The machine that tails the files of one source (PURE).

Reading keeps no bytes between two reads: every read starts at the end of a record, a
little before it even, so that the bytes before the offset are compared each time
(A07), and offsets sit at record boundaries always (A19). A partial last line stays in
the file until it is whole, or its file is rotated and quiet. A file has at most one
read or put under way, so its records keep their order; `next_action` is fair among
files, and takes the same time however many there are (see `turns`). The adapter carries
out what it answers, several at once if it likes, and reports back.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

from cortextx.fleet.agent.sources.actions import (
    Action,
    Close,
    Emit,
    Gap,
    Keep,
    Open,
    Read,
    Say,
    Scan,
    Watch,
)
from cortextx.fleet.agent.sources.identity import SAMPLE, FileStat, digest
from cortextx.fleet.agent.sources.lines import SURE_BYTES, part_bytes
from cortextx.fleet.agent.sources.rotation import Files, TailSettings
from cortextx.fleet.agent.sources.tail import Mark, Tail
from cortextx.fleet.agent.sources.turns import Turns

GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""Errors that only say that a path leads nowhere now; the next scan knows more."""


class Tailer:
    """See the module. `now` is in seconds of any clock that does not go back."""

    def __init__(self, name: str, settings: TailSettings, checkpoints: Mapping[str, bytes]) -> None:
        self._settings = settings
        self._files = Files(name, settings)
        self._pending: list[Action] = self._files.restore(checkpoints)
        self._turns = Turns(settings.max_open)
        self._reads: dict[int, Read] = {}

    @property
    def open_files(self) -> int:
        """Open handles, for a metric (A17)."""
        return self._turns.open_files

    def watch(self) -> Watch:
        """What the next scan shall look at besides the globs."""
        return self._files.watch()

    # -- inputs ------------------------------------------------------------------------

    def scanned(self, scan: Scan, now: float) -> list[Action]:
        """A scan has ended. Handles that were closed meanwhile may still be in it."""
        actions, self._pending = self._pending, []
        actions += self._files.scanned(scan, now)
        self._turns.look_again()
        for tail in list(self._files.tails.values()):
            actions += self._check_quiet(tail, now)
            self._schedule(tail)
        return actions

    def next_action(self, now: float) -> Open | Read | Close | None:
        """The next piece of work, or None if there is none at present."""
        turns = self._turns
        no_room = False
        while (tail := turns.take(open_only=no_room)) is not None:
            if self._files.tails.get(tail.handle) is not tail:
                continue
            if tail.retry > now:
                turns.idle(tail)
                continue
            other = self._files.comes_before(tail, now)
            if other is not None:
                turns.wait(tail, other)
                continue
            if not tail.is_open and turns.is_full:
                turns.put_back(tail)
                closing = turns.to_close()
                if closing is not None:
                    return self._close(closing)
                no_room = True
                continue
            tail.busy = True
            if tail.is_open:
                return self._read(tail)
            turns.opens()
            return Open(tail.handle, tail.path, SAMPLE)
        return None

    def opened(self, handle: int, stat: FileStat, head: bytes, now: float) -> list[Action]:
        """A file is open; `head` is its first bytes."""
        tail = self._files.tails[handle]
        self._rest(tail)
        if stat.identity != tail.stat.identity:
            self._turns.not_opened()
            return [Close(handle)]
        self._turns.opened(tail)
        mark = tail.mark
        if mark.head_size and digest(head[: mark.head_size]) != mark.head_hash:
            if not tail.matched:
                return [self._close(tail), *self._files.gone(tail, now)]
            return self._start_over(tail, stat)
        tail.take_stat(stat, now)
        if tail.to_end:
            tail.mark = Mark(head_size=len(head), head_hash=digest(head))
        self._schedule(tail)
        return []

    def bytes_read(self, handle: int, stat: FileStat, data: bytes, now: float) -> list[Action]:
        """A read has ended; `stat` was taken just before it."""
        tail = self._files.tails[handle]
        self._rest(tail)
        tail.retry, tail.unreadable = 0.0, False
        read = self._reads.pop(handle)
        if tail.to_end:
            return self._found_end(tail, stat, read.offset, data)
        mark = tail.mark
        lead = mark.before_size
        if stat.size < mark.offset or (lead and digest(data[:lead]) != mark.before_hash):
            return self._start_over(tail, stat)
        tail.take_stat(stat, now)
        tail.verified = tail.largest = stat.size
        body = data[lead:]
        at_end = len(data) < read.size
        end = body.rfind(b"\n") + 1
        if end:
            return [self._emit_lines(tail, data, body[:end], at_end)]
        if body[:1] == b"\0" and (len(body) >= SURE_BYTES or tail.flush):
            self._skip_nuls(tail, data, len(body) - len(body.lstrip(b"\0")))
            return []
        if len(body) >= SURE_BYTES:
            size = part_bytes(body)
            part = mark.part + 1
            return [self._emit(tail, data, [body[:size]], size, part, more=True)]
        if not at_end:
            tail.wide = True
        elif tail.flush and body:
            tail.flush = False
            self._reached_end(tail)
            return [self._emit(tail, data, [body], len(body), 0, partial=True)]
        else:
            tail.flush = False
            self._reached_end(tail)
        self._schedule(tail)
        return []

    def put_durable(self, handle: int, now: float) -> list[Action]:
        """The last Emit of this handle is in the buffer for good."""
        tail = self._files.tails[handle]
        self._rest(tail)
        tail.durable, tail.stale_key = tail.mark, None
        self._schedule(tail)
        return []

    def put_failed(self, handle: int, now: float) -> list[Action]:
        """The last Emit of this handle is not in the buffer: its bytes are read again."""
        tail = self._files.tails[handle]
        self._rest(tail)
        tail.mark = tail.durable or Mark()
        tail.nuls = 0
        tail.eof = None
        tail.retry = now + self._settings.retry_after
        self._schedule(tail)
        return []

    def failed(self, handle: int, code: int, now: float) -> list[Action]:
        """An Open or Read failed with errno `code`; the handle is closed."""
        tail = self._files.tails[handle]
        if self._reads.pop(handle, None) is None:
            self._turns.not_opened()
        self._close(tail)
        self._rest(tail)
        if code in GONE:
            return []
        first, tail.unreadable = not tail.unreadable, True
        tail.retry = now + self._settings.retry_after
        if not first:
            return []
        reason = errno.errorcode.get(code, str(code))
        return [Say("warn", f"{tail.path}: cannot be read ({reason}); tried again later")]

    # -- inside ------------------------------------------------------------------------

    def _schedule(self, tail: Tail) -> None:
        if tail.busy:
            return
        if tail.unread:
            self._turns.due(tail)
        else:
            self._turns.idle(tail)

    def _read(self, tail: Tail) -> Read:
        size = SURE_BYTES + SAMPLE if tail.wide else self._settings.read_bytes
        if tail.to_end:
            start = max(0, tail.stat.size - SURE_BYTES)
        else:
            start = tail.mark.offset - tail.mark.before_size
        size = max(size, SURE_BYTES + SAMPLE) if tail.to_end else size
        expected = min(size, max(0, tail.stat.size - start))
        read = self._reads[tail.handle] = Read(tail.handle, start, size, expected)
        self._turns.reads(tail)
        return read

    def _rest(self, tail: Tail) -> None:
        """What was under way for this file has ended; others may have waited for that."""
        tail.busy = False
        self._turns.moved(tail)

    def _close(self, tail: Tail) -> Close:
        self._turns.closed(tail)
        return Close(tail.handle)

    def _emit_lines(self, tail: Tail, data: bytes, body: bytes, at_end: bool) -> Emit:
        """Give whole records on; at the file's end, what is left is a partial one."""
        records = body.split(b"\n")
        records.pop()
        if len(records) > self._settings.max_records:
            del records[self._settings.max_records :]
            body = body[: sum(map(len, records)) + len(records)]
            at_end = False
        rest = len(data) - tail.mark.before_size - len(body)
        tail.wide = False
        if at_end and rest < SURE_BYTES:
            self._reached_end(tail)
        return self._emit(tail, data, records, len(body), 0)

    def _skip_nuls(self, tail: Tail, data: bytes, size: int) -> None:
        """Step over NULs that a crash or a copytruncate left before a record, or the next
        part of one; they are counted in what comes next."""
        mark = tail.mark
        tail.mark = mark.moved(data, mark.offset - mark.before_size, size, mark.part)
        tail.nuls += size
        self._schedule(tail)

    def _reached_end(self, tail: Tail) -> None:
        tail.wide = False
        tail.eof = (tail.stat.size, tail.stat.mtime_ns)

    def _emit(
        self,
        tail: Tail,
        data: bytes,
        records: list[bytes],
        consumed: int,
        part: int,
        *,
        more: bool = False,
        partial: bool = False,
    ) -> Emit:
        mark = tail.mark
        if not part and mark.part:
            part = mark.part + 1
        start = mark.offset - mark.before_size
        tail.mark = mark.moved(data, start, consumed, part if more else 0)
        tail.busy = True
        nuls, tail.nuls = tail.nuls, 0
        return Emit(
            tail.handle, tail.home, mark.offset, records, self._files.kept(tail),
            tail.stat.mtime_ns, part, more, partial, nuls,
        )  # fmt: skip

    def _found_end(self, tail: Tail, stat: FileStat, start: int, data: bytes) -> list[Action]:
        """Begin behind the last whole record of what is there (F41, start = end)."""
        tail.to_end = False
        size = data.rfind(b"\n") + 1 or (0 if start == 0 else len(data))
        if start == 0:
            tail.mark = Mark().moved(data, 0, size, 0)
        else:
            at_start = replace(tail.mark, offset=start)
            tail.mark = at_start.moved(data, start, size, 0)
        tail.stat = stat
        tail.verified = tail.largest = stat.size
        tail.durable = tail.mark
        self._schedule(tail)
        return [Keep(self._files.kept(tail))]

    def _start_over(self, tail: Tail, stat: FileStat) -> list[Action]:
        """The file is not what was read: truncated, rewritten, or another in its inode."""
        tail.stat = stat
        unread = tail.known_unread
        tail.mark = tail.durable = Mark()
        tail.eof, tail.wide, tail.flush, tail.nuls = None, False, False, 0
        tail.verified = tail.largest = stat.size
        kept = self._files.kept(tail)
        self._schedule(tail)
        if unread and tail.finished is None:
            text = (
                f"{tail.home}: truncated or rewritten with {unread} known bytes unread; "
                "read again from its start"
            )
            return [Gap(tail.home, unread, text, kept)]
        text = f"{tail.home}: truncated or rewritten; read again from its start"
        return [Say("info", text), Keep(kept)]

    def _check_quiet(self, tail: Tail, now: float) -> list[Action]:
        """A rotated file that is read and was quiet for `rotate_wait` is finished (A17)."""
        if tail.rotated is None or tail.finished is not None or tail.busy or tail.unread:
            return []
        if now - max(tail.rotated, tail.grown) < self._settings.rotate_wait:
            return []
        if tail.stat.size > tail.mark.offset:
            tail.flush = True
            return []
        tail.finished = now
        actions: list[Action] = [self._close(tail)] if tail.is_open else []
        if tail.stat.nlink == 0 or (tail.durable is None and not tail.matched):
            keep = self._files.drop(tail, now)
        else:
            keep = Keep(self._files.kept(tail))
        return [*actions, keep] if keep is not None else actions
