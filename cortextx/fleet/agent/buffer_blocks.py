"""How the agent's buffer looks on disk: segment headers and blocks (PURE).

A segment file is one header and then blocks. A block is the atomic unit: the
entries of a group of puts and, with the same checksum, what these puts say of
their sources' checkpoints; so offsets never disagree with what is buffered
(A19). The first block of a segment is a snapshot of all checkpoints.

Entries are joined by newlines: they are JSON, where a raw newline can only be
white space, and a raw NUL cannot occur at all. Magics begin with NUL, so no
entry can be taken for a block.

Integers are little-endian, checksums CRC-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from cortextx.errors import SchemaTooNew

VERSION = 1
DATA, SNAPSHOT = 0, 1
"""The kinds of block."""
MAX_PUT_BYTES = 16 * 2**20
"""The largest joined size of the entries of one put."""

_BLOCK = struct.Struct("<4sBBHQIIIII")
_SEGMENT = struct.Struct("<4sHHQQq")
_CHECKSUM = struct.Struct("<I")
_BLOCK_MAGIC = b"\0CXB"
_SEGMENT_MAGIC = b"\0CXS"
BLOCK_HEADER_BYTES = _BLOCK.size + _CHECKSUM.size
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CHECKSUM.size
_NUMBERED = 1

Checkpoints = Mapping[str, bytes | None]
"""What puts say of sources: the new checkpoint by key, None to forget the key."""

_encode_checkpoints = msgspec.msgpack.Encoder().encode
_decode_checkpoints = msgspec.msgpack.Decoder(dict[str, bytes | None]).decode


class Packed(NamedTuple):
    """Entries as they stand in a block: joined, and their number."""

    payload: bytes
    number: int


def pack(bodies: Sequence[bytes]) -> Packed:
    """Join the entries of one put.

    Raises ValueError for an empty body, a raw NUL, or more than MAX_PUT_BYTES.
    """
    payload = b"\n".join(bodies)
    if bodies and payload.count(b"\n") != len(bodies) - 1:
        payload = b"\n".join([body.replace(b"\n", b" ") for body in bodies])
    if b"\0" in payload or not all(bodies):
        raise ValueError("an entry is empty or holds a raw NUL: it is not JSON")
    if len(payload) > MAX_PUT_BYTES:
        raise ValueError(f"a put of {len(payload)} bytes exceeds {MAX_PUT_BYTES}")
    return Packed(payload, len(bodies))


def joined(packs: Sequence[Packed]) -> Packed:
    """Several puts as one."""
    if len(packs) == 1:
        return packs[0]
    full = [p for p in packs if p.number]
    return Packed(b"\n".join([p.payload for p in full]), sum([p.number for p in full]))


def unpack(payload: bytes, count: int) -> list[bytes]:
    """The entries of a block."""
    return payload.split(b"\n") if count else []


class SegmentHeader(NamedTuple):
    """The head of a segment: its first position, its predecessor's (0: none) and the
    numbering (`seq - position`, None: not numbered yet) when it was begun."""

    first: int
    previous: int
    shift: int | None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The bytes of a segment's head."""
    flags = 0 if header.shift is None else _NUMBERED
    head = _SEGMENT.pack(
        _SEGMENT_MAGIC, VERSION, flags, header.first, header.previous, header.shift or 0
    )
    return head + _CHECKSUM.pack(zlib.crc32(head))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """Read a segment's head; None if damaged, SchemaTooNew if a newer version wrote it."""
    head = data[: _SEGMENT.size]
    checksum = data[_SEGMENT.size : SEGMENT_HEADER_BYTES]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(head):
        return None
    magic, version, flags, first, previous, shift = _SEGMENT.unpack(head)
    if magic != _SEGMENT_MAGIC:
        return None
    if version != VERSION:
        raise SchemaTooNew(f"the buffer has format {version}, this version reads {VERSION}")
    return SegmentHeader(first, previous, shift if flags & _NUMBERED else None)


@dataclass(frozen=True, slots=True)
class Block:
    """A checked block: where it stands in its segment, and what it holds.

    `synced` is the offset up to which the segment was on stable storage when the
    block was written: what lies below is proved, whatever follows is not.
    """

    offset: int
    end: int
    kind: int
    first: int
    count: int
    synced: int
    payload: bytes
    updates: bytes

    @property
    def last(self) -> int:
        """The position of the last entry (`first - 1` if there is none)."""
        return self.first + self.count - 1

    def bodies(self) -> list[bytes]:
        """The entries."""
        return unpack(self.payload, self.count)

    def checkpoints(self) -> dict[str, bytes | None]:
        """The updates of checkpoints; of a snapshot: all of them."""
        return _decode_checkpoints(self.updates) if self.updates else {}


def encode_block(
    kind: int, first: int, entries: Packed, checkpoints: Checkpoints, synced: int
) -> list[bytes]:
    """A block as parts to be written one behind the other."""
    updates = _encode_checkpoints(checkpoints) if checkpoints else b""
    payload, count = entries
    head = _BLOCK.pack(
        _BLOCK_MAGIC,
        VERSION,
        kind,
        0,
        first,
        count,
        len(payload),
        len(updates),
        synced,
        zlib.crc32(updates, zlib.crc32(payload)),
    )
    return [head + _CHECKSUM.pack(zlib.crc32(head)), payload, updates]


def decode_block(data: bytes, at: int, base: int = 0) -> Block | None:
    """The block at `data[at:]`, where data[0] stands at offset `base`; None if none is whole."""
    body = at + BLOCK_HEADER_BYTES
    if len(data) < body or not data.startswith(_BLOCK_MAGIC, at):
        return None
    head = data[at : at + _BLOCK.size]
    if _CHECKSUM.unpack_from(data, at + _BLOCK.size)[0] != zlib.crc32(head):
        return None
    _, version, kind, _, first, count, size, more, synced, checksum = _BLOCK.unpack(head)
    end = body + size + more
    if version != VERSION or end > len(data):
        return None
    payload = data[body : body + size]
    updates = data[body + size : end]
    if zlib.crc32(updates, zlib.crc32(payload)) != checksum:
        return None
    return Block(base + at, base + end, kind, first, count, synced, payload, updates)


@dataclass(frozen=True, slots=True)
class Bad:
    """A stretch of a segment that holds no whole block; `expected` is the next position."""

    offset: int
    end: int
    expected: int


def looks_torn(data: bytes, bad: Bad) -> bool:
    """Whether a stretch is what a write leaves that was not finished, and no damage.

    Such a write lacks its end, or has NULs in place of pages that were never written;
    entries hold no NUL, and bytes that are there but differ are damage.
    """
    at, size = bad.offset, bad.end - bad.offset
    if at == 0:
        return len(data) < SEGMENT_HEADER_BYTES or not any(data[:SEGMENT_HEADER_BYTES])
    if size < BLOCK_HEADER_BYTES:
        return True
    head, body = data[at : at + _BLOCK.size], at + BLOCK_HEADER_BYTES
    stated = _CHECKSUM.unpack_from(data, at + _BLOCK.size)[0]
    if stated != zlib.crc32(head) or head[:4] != _BLOCK_MAGIC:
        return not any(head[:8]) or not any(data[body - 8 : body])
    payload, updates = _BLOCK.unpack(head)[6:8]
    return body + payload + updates > bad.end or b"\0" in data[body : body + payload]


def claimed(data: bytes, bad: Bad) -> int:
    """The newest position that a damaged block at a segment's end may hold.

    Exact where its head is whole, else as many as there are lines.
    """
    head = data[bad.offset : bad.offset + _BLOCK.size]
    if len(head) == _BLOCK.size and head.startswith(_BLOCK_MAGIC):
        stated = _CHECKSUM.unpack_from(data, bad.offset + _BLOCK.size)[0]
        first, count = _BLOCK.unpack(head)[4:6]
        if stated == zlib.crc32(head):
            return max(bad.expected, int(first + count)) - 1
    return bad.expected + data.count(b"\n", bad.offset + len(head), bad.end)


@dataclass(frozen=True, slots=True)
class Scan:
    """All of a segment: its blocks in order, and the stretches that are none."""

    header: SegmentHeader | None
    blocks: list[Block]
    bad: list[Bad]


def scan(data: bytes, first: int) -> Scan:
    """Read a segment whose first position is `first`; damage is skipped, not believed."""
    header = decode_segment_header(data)
    blocks: list[Block] = []
    bad: list[Bad] = []
    expected = first
    offset = min(SEGMENT_HEADER_BYTES, len(data))
    if header is None or header.first != first:
        header = None
        bad.append(Bad(0, offset, expected))
    while offset < len(data):
        block = decode_block(data, offset)
        if block is None or block.first < expected:
            found = _resynchronise(data, offset + 1, expected)
            end = len(data) if found is None else found.offset
            bad.append(Bad(offset, end, expected))
            if found is None:
                break
            block = found
        blocks.append(block)
        offset = block.end
        expected = block.last + 1
    return Scan(header, blocks, bad)


def _resynchronise(data: bytes, start: int, expected: int) -> Block | None:
    while (start := data.find(_BLOCK_MAGIC, start)) >= 0:
        block = decode_block(data, start)
        if block is not None and block.first >= expected:
            return block
        start += 1
    return None
