"""That a log is whole: every line parses, seqs follow one another, no torn end (I13) (PURE).

The proof reads in chunks that end with a line. A chunk is proved in one call of the
JSON decoder; only where that fails is it walked line by line, to find the first byte
in doubt, or to accept what is odd but sound (a lone surrogate of an old writer).
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from cortextx.stores.journal_disk import JournalFile

CHUNK = 65_536
"""Bytes read at a time, and about how far apart the known offsets lie."""


class _Numbered(msgspec.Struct, gc=False):
    session_seq: int


_lines = msgspec.json.Decoder(_Numbered)
_list = msgspec.json.Decoder(list[_Numbered])


class Doubt(Exception):
    """What stands from `offset` on (bytes from the start) cannot be proved."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset
        self.why = why


@dataclass(slots=True)
class SparseOffsets:
    """Where some of the lines begin, about every CHUNK bytes.

    One thread adds, any may look up: an offset is there before its seq.
    """

    seqs: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))

    def note(self, seq: int, offset: int) -> None:
        """Line `seq` begins at `offset`; kept if the last known one is far enough off."""
        if not self.offsets or offset - self.offsets[-1] >= CHUNK:
            self.offsets.append(offset)
            self.seqs.append(seq)

    def before(self, seq: int) -> tuple[int, int]:
        """A line at or before `seq`, which must not be before the first: (seq, offset)."""
        at = bisect_right(self.seqs, seq) - 1
        return self.seqs[at], self.offsets[at]

    def first_from(self, offset: int) -> int | None:
        """The seq of the first known line at or behind `offset`, or None."""
        at = bisect_left(self.offsets, offset)
        return self.seqs[at] if at < len(self.seqs) else None


@dataclass(slots=True)
class Proved:
    """A log as far as it is proved: seqs `first` to `head`, `end` bytes."""

    first: int = 1
    head: int = 0
    end: int = 0
    offsets: SparseOffsets = field(default_factory=SparseOffsets)
    doubt: Doubt | None = None


def prove(file: JournalFile, size: int) -> Proved:
    """Read the first `size` bytes of a log; `doubt` tells where the proof ends, if it does.

    OSErrors of reading pass through.
    """
    proved = Proved()
    held: list[bytes] = []
    at = 0
    while at < size:
        piece = file.read_at(at, min(CHUNK, size - at))
        if not piece:
            proved.doubt = Doubt(proved.end, "the log ends before its size")
            return proved
        at += len(piece)
        cut = piece.rfind(b"\n") + 1
        if not cut:
            held.append(piece)
            continue
        chunk = b"".join((*held, piece[:cut]))
        held = [piece[cut:]] if cut < len(piece) else []
        try:
            count = check_lines(chunk, proved.head + 1 if proved.end else None)
        except Doubt as doubt:
            _walk_good(chunk[: doubt.offset], proved)
            proved.doubt = Doubt(proved.end, doubt.why)
            return proved
        _advance(proved, chunk, count)
    if held:
        proved.doubt = Doubt(proved.end, "the last line does not end")
    return proved


def _walk_good(chunk: bytes, proved: Proved) -> None:
    if chunk:
        _advance(proved, chunk, chunk.count(b"\n"))


def _advance(proved: Proved, chunk: bytes, count: int) -> None:
    if not proved.end:
        proved.first = _seq_of(chunk[: chunk.index(b"\n")])
        proved.head = proved.first - 1
    proved.offsets.note(proved.head + 1, proved.end)
    proved.head += count
    proved.end += len(chunk)


def check_lines(chunk: bytes, first: int | None) -> int:
    """Check whole lines, newlines included, that begin with seq `first` (None: any).

    Returns how many they are; raises Doubt with the offset of the first bad line.
    """
    count = chunk.count(b"\n")
    # Two values in one line, or one in two, would be told from these counts.
    if chunk[:1] == b"{" and chunk[-2:] == b"}\n" and chunk.count(b"}\n{") == count - 1:
        try:
            if not chunk.isascii():
                chunk.decode()
            numbered = _lines.decode_lines(chunk)
        except (ValueError, RecursionError):
            return _check_slowly(chunk, first)
        start = numbered[0].session_seq
        if len(numbered) == count and start > 0 and (first is None or start == first):
            seqs = [line.session_seq for line in numbered]
            if seqs == list(range(start, start + count)):
                return count
    return _check_slowly(chunk, first)


def check_new_lines(data: bytes, count: int, first: int) -> None:
    """Check `count` lines of our own, newlines included, before they are written.

    Cheaper than `check_lines` by half; raises Doubt. A newline within a line makes an
    element too many, or none at all.
    """
    try:
        if not data.isascii():
            data.decode()
        numbered = _list.decode(b"[" + data[:-1].replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        numbered = []
    seqs = [line.session_seq for line in numbered]
    if seqs != list(range(first, first + count)) and check_lines(data, first) != count:
        raise Doubt(0, "expected lines without newlines")


def _check_slowly(chunk: bytes, first: int | None) -> int:
    at = count = 0
    while at < len(chunk):
        end = chunk.find(b"\n", at)
        if end < 0:
            raise Doubt(at, "the line does not end")
        try:
            seq = _seq_of(chunk[at:end])
        except (ValueError, RecursionError):
            raise Doubt(at, "the line is not a JSON object with its session_seq") from None
        if seq < 1 or (first is not None and seq != first + count):
            expected = f"session_seq {first + count}" if first is not None else "a session_seq"
            raise Doubt(at, f"expected {expected}, found {seq}")
        if first is None:
            first = seq
        count += 1
        at = end + 1
    return count


def _seq_of(line: bytes) -> int:
    """The line's session_seq; ValueError (or RecursionError) if it is no line of a log."""
    value = json.loads(line.decode(), parse_constant=_refuse)
    seq = value.get("session_seq") if isinstance(value, dict) else None
    if type(seq) is not int:
        raise ValueError("no session_seq")
    return seq


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
