"""The machine that tails the files of one source (PURE).

Reading keeps no bytes between two reads: every read starts at the end of a record, a
little before it even, so that the bytes before the offset are compared each time
(A07), and offsets sit at record boundaries always (A19). A partial last line stays in
the file until it is whole, or its file was quiet for long; lines that belong together
stay until they are all there. A file has at most one read or put under way, so its
records keep their order; `next_action` is fair among files, and takes the same time
however many there are (see `turns`). The adapter carries out what it answers, several
at once if it likes, and reports back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
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
from cortextx.fleet.agent.sources.codings import CODINGS, PLAIN, Coding, coding_of
from cortextx.fleet.agent.sources.identity import SAMPLE, FileStat, digest, is_rotation_of
from cortextx.fleet.agent.sources.lines import SURE_BYTES
from cortextx.fleet.agent.sources.multiline import Found, Grouping
from cortextx.fleet.agent.sources.rotation import Files, TailSettings
from cortextx.fleet.agent.sources.tail import HELD, LAST, LIVE, Mark, Tail
from cortextx.fleet.agent.sources.turns import Turns

GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""Errors that only say that a path leads nowhere now; the next scan knows more."""


class Tailer:
    """See the module. `now` is in seconds of any clock that does not go back.

    `wanted` says of a home whether this source (still) reads what stands there.
    """

    def __init__(
        self,
        name: str,
        settings: TailSettings,
        checkpoints: Mapping[str, bytes],
        wanted: Callable[[str], bool] = lambda home: True,
    ) -> None:
        self._settings = settings
        self._grouping = None if settings.multiline is None else Grouping(settings.multiline)
        self._wide = SAMPLE + max(
            SURE_BYTES, self._grouping.rule.max_bytes if self._grouping else 0
        )
        self._files = Files(name, settings, wanted)
        self._pending: list[Action] = self._files.restore(checkpoints)
        self._turns = Turns(settings.max_open)
        self._reads: dict[int, Read] = {}

    @property
    def open_files(self) -> int:
        """Open handles, for a metric (A17)."""
        return self._turns.open_files

    @property
    def known(self) -> int:
        """Files that are followed, those of which nothing is due included."""
        return len(self._files.calm) + len(self._files.tails)

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
            if not self._files.rest(tail):
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
        if tail.replaces is not None:
            return self._compare(tail, tail.replaces, stat, head, now)
        mark = tail.mark
        if mark.head_size and digest(head[: mark.head_size]) != mark.head_hash:
            if not tail.matched:
                return [self._close(tail), *self._files.gone(tail, now)]
            return self._not_the_same(tail, stat, now)
        tail.take_stat(stat, now)
        if tail.to_end:
            coding = coding_of(self._settings.encoding, head)
            tail.mark = Mark(head_size=len(head), head_hash=digest(head), coding=coding)
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
        same = stat.size >= mark.offset and not (lead and digest(data[:lead]) != mark.before_hash)
        if tail.replaces is not None:
            return self._compared(tail, tail.replaces, stat, same, now)
        if not same:
            return self._not_the_same(tail, stat, now)
        tail.take_stat(stat, now)
        tail.verified = tail.largest = stat.size
        body = data[lead:]
        at_end = len(data) < read.size
        if tail.flush and tail.eof != (stat.size, stat.mtime_ns):
            tail.flush = 0
        if not mark.offset:
            before = tail.coding_before
            tail.mark = replace(mark, coding=coding_of(self._settings.encoding, body, before))
        coding = CODINGS[tail.mark.coding]
        found = self._found(tail, coding, body, at_end)
        if found.records:
            return [self._emit_found(tail, data, coding, found, at_end)]
        nuls = coding.nuls(body) if body[:1] == b"\0" else 0
        if nuls and (len(body) >= SURE_BYTES or tail.flush == LAST):
            self._skip_nuls(tail, data, nuls, coding)
            return []
        if len(body) - found.held >= SURE_BYTES:
            return [self._emit_part(tail, data, coding, body)]
        if not at_end:
            tail.wide = True
            self._schedule(tail)
            return []
        flush, tail.flush = tail.flush, 0
        self._reached_end(tail, found.held)
        if flush == LAST and body:
            return [self._emit(tail, data, [body], len(body), 0, partial=True)]
        if flush == LIVE:
            tail.tried = tail.eof
            settled = coding.settled(body)
            if settled:
                return [self._emit_part(tail, data, coding, body[:settled], flush=LIVE)]
        self._schedule(tail)
        return []

    def put_durable(self, handle: int, now: float) -> list[Action]:
        """The last Emit of this handle is in the buffer for good."""
        tail = self._files.tails[handle]
        self._rest(tail)
        tail.durable, tail.stale_key, tail.before = tail.mark, None, None
        self._schedule(tail)
        return []

    def put_failed(self, handle: int, now: float) -> list[Action]:
        """The last Emit of this handle is not in the buffer: its bytes are read again."""
        tail = self._files.tails[handle]
        self._rest(tail)
        if tail.before is not None:
            (tail.durable, tail.verified, tail.largest), tail.before = tail.before, None
        tail.mark = tail.durable or Mark()
        tail.nuls = 0
        tail.eof = tail.tried = None
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
        known, tail.unreadable = tail.unreadable, True
        tail.retry = now + self._settings.retry_after
        if known:
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
        size = max(self._wide if tail.wide else 0, self._settings.read_bytes)
        if tail.to_end:
            start = max(0, tail.stat.size - SURE_BYTES) & ~1
        else:
            start = tail.mark.offset - tail.mark.before_size
        size = max(size, self._wide) if tail.to_end else size
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

    def _found(self, tail: Tail, coding: Coding, body: bytes, at_end: bool) -> Found:
        """The whole records that stand in `body`."""
        if coding is PLAIN and self._grouping is None:
            end = body.rfind(b"\n") + 1
            records = body[:end].split(b"\n")
            records.pop()
            return Found(records, end)
        lines = coding.lines(body)
        size = sum(map(len, lines)) + len(lines) * coding.unit
        if self._grouping is None or not lines:
            return Found(lines, size)
        alone, ended = tail.mark.part > 0, tail.flush > 0
        found = self._grouping.grouped(lines, coding, alone=alone, ended=ended)
        if found.records:
            return found
        if (tail.wide and not at_end) or len(body) - size >= SURE_BYTES:
            # It fills the largest read, or a long line stands behind it: it ends there.
            return self._grouping.grouped(lines, coding, forced=True)
        return found

    def _emit_found(
        self, tail: Tail, data: bytes, coding: Coding, found: Found, at_end: bool
    ) -> Emit:
        """Give whole records on; at the file's end, what is left is a partial one."""
        records, size, held, capped = found
        if len(records) > self._settings.max_records:
            del records[self._settings.max_records :]
            size = sum(map(len, records)) + len(records) * coding.unit
            at_end = False
            capped = tuple(index for index in capped if index < len(records))
        rest = len(data) - tail.mark.before_size - size - held
        tail.wide = False
        if tail.flush == HELD:
            tail.flush = 0
        if at_end and rest < SURE_BYTES:
            self._reached_end(tail, held)
        return self._emit(tail, data, records, size, 0, capped=capped)

    def _emit_part(
        self, tail: Tail, data: bytes, coding: Coding, body: bytes, flush: int = 0
    ) -> Emit:
        """Give the next part of a line that is too long, or waited for its end too long."""
        size = coding.part_size(body)
        rest = size < len(body)
        tail.flush = flush if rest else 0
        partial = flush == LIVE and not rest
        part = tail.mark.part + 1
        return self._emit(tail, data, [body[:size]], size, part, more=True, partial=partial)

    def _skip_nuls(self, tail: Tail, data: bytes, size: int, coding: Coding) -> None:
        """Step over NULs that a crash or a copytruncate left before a record, or the next
        part of one; they are counted in what comes next."""
        mark = tail.mark
        tail.mark = mark.moved(data, mark.offset - mark.before_size, size, mark.part)
        tail.nuls += size // coding.unit
        self._schedule(tail)

    def _reached_end(self, tail: Tail, held: int) -> None:
        tail.wide = False
        tail.held = held > 0
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
        capped: tuple[int, ...] = (),
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
            tail.stat.mtime_ns, part, more, partial, nuls, mark.coding, capped,
        )  # fmt: skip

    def _found_end(self, tail: Tail, stat: FileStat, start: int, data: bytes) -> list[Action]:
        """Begin behind the last whole record of what is there (F41, start = end)."""
        tail.to_end = False
        coding = CODINGS[tail.mark.coding]
        lines = coding.lines(data)
        size = sum(map(len, lines)) + len(lines) * coding.unit
        size = size or (0 if start == 0 else len(data) - len(data) % coding.unit)
        if start == 0:
            tail.mark = Mark(coding=coding.name).moved(data, 0, size, 0)
        else:
            at_start = replace(tail.mark, offset=start)
            tail.mark = at_start.moved(data, start, size, 0)
        tail.stat = stat
        tail.verified = tail.largest = stat.size
        tail.durable = tail.mark
        self._schedule(tail)
        return [Keep(self._files.kept(tail))]

    def _compare(
        self, tail: Tail, old: Tail, stat: FileStat, head: bytes, now: float
    ) -> list[Action]:
        """A file was put in the place of another: see whether it begins as that (A20)."""
        mark = old.mark
        fits = mark.head_size and stat.size >= mark.offset
        if not fits or digest(head[: mark.head_size]) != mark.head_hash:
            return self._compared(tail, old, stat, False, now)
        tail.mark = mark
        tail.take_stat(stat, now)
        self._schedule(tail)
        return []

    def _compared(
        self, tail: Tail, old: Tail, stat: FileStat, same: bool, now: float
    ) -> list[Action]:
        """What was read of the old file is known to stand in the new one, or not to."""
        tail.replaces = None
        if not same:
            tail.mark, tail.eof = Mark(), None
        tail.durable = tail.mark
        tail.take_stat(stat, now)
        kept = self._files.kept(tail)
        actions: list[Action] = []
        if same and old.busy:
            old.finished = now
        elif same and self._files.tails.get(old.handle) is old:
            if old.is_open:
                actions.append(self._close(old))
            keep = self._files.drop(old, now)
            kept = {**(keep.checkpoints if keep is not None else {}), **kept}
        self._schedule(tail)
        what = (
            f"goes on at byte {tail.mark.offset}" if same else "another file, read from its start"
        )
        return [*actions, Say("info", f"{tail.home}: replaced; {what}"), Keep(kept)]

    def _not_the_same(self, tail: Tail, stat: FileStat, now: float) -> list[Action]:
        """Other bytes stand where this file's were: it was written anew, or its inode went
        to a file of another name, which is then met like any new one (A10)."""
        name, home = os.path.basename(tail.path), os.path.basename(tail.home)
        if name == home or is_rotation_of(name, home) or not tail.matched:
            return self._start_over(tail, stat)
        return [self._close(tail), *self._files.gone(tail, now)]

    def _start_over(self, tail: Tail, stat: FileStat) -> list[Action]:
        """The file is not what was read: truncated, rewritten, or another in its inode."""
        tail.stat = stat
        unread = tail.known_unread
        before = tail.durable, tail.verified, tail.largest
        tail.coding_before = tail.mark.coding
        tail.mark = tail.durable = Mark()
        tail.eof, tail.wide, tail.flush, tail.nuls, tail.held = None, False, 0, 0, False
        tail.verified = tail.largest = stat.size
        kept = self._files.kept(tail)
        if unread and tail.finished is None:
            tail.before, tail.busy = before, True
            text = (
                f"{tail.home}: truncated or rewritten with {unread} known bytes unread; "
                "read again from its start"
            )
            return [Gap(tail.home, unread, text, kept, handle=tail.handle)]
        self._schedule(tail)
        text = f"{tail.home}: truncated or rewritten; read again from its start"
        return [Say("info", text, counts="truncations"), Keep(kept)]

    def _check_quiet(self, tail: Tail, now: float) -> list[Action]:
        """See what has waited long enough: what stands unfinished at a file's end; and a
        rotated file that is read and was quiet for `rotate_wait` is finished (A17)."""
        if tail.finished is not None or tail.busy or tail.unread:
            return []
        if tail.stat.size > tail.mark.offset and tail.grown == 0.0:
            tail.grown = now
        quiet = now - tail.grown
        if tail.held and self._grouping is not None and quiet >= self._grouping.rule.timeout:
            tail.flush = HELD
            return []
        if tail.rotated is None:
            self._check_partial(tail, quiet)
            return []
        if min(quiet, now - tail.rotated) < self._settings.rotate_wait:
            return []
        if tail.stat.size > tail.mark.offset:
            tail.flush = LAST
            return []
        tail.finished = now
        actions: list[Action] = [self._close(tail)] if tail.is_open else []
        if tail.stat.nlink == 0 or (tail.durable is None and not tail.matched):
            keep = self._files.drop(tail, now)
        else:
            keep = Keep(self._files.kept(tail))
        return [*actions, keep] if keep is not None else actions

    def _check_partial(self, tail: Tail, quiet: float) -> None:
        """A live file's unfinished line is given as a part once it was quiet for long."""
        after = self._settings.partial_after
        waits = tail.stat.size > tail.mark.offset and not tail.held and tail.tried != tail.eof
        if after and quiet >= after and waits:
            tail.flush = LIVE
