"""From the bytes of a record to the texts of entries: encoding, long lines, marks (PURE).

The marks stand in `metadata.cortextx` (F43). `nuls` is one more of ours: the count of
NUL bytes that stood before a record (what a crash or a copytruncate leaves in a file).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.parse import LineParser, Parsed
from cortextx.fleet.contract import MAX_MESSAGE_CHARS

SURE_BYTES = 4 * MAX_MESSAGE_CHARS + 4
"""Bytes that hold `MAX_MESSAGE_CHARS` whole characters, whatever they are."""
BOM = b"\xef\xbb\xbf"
REPLACEMENT = "�"


class Piece(NamedTuple):
    """One entry's text, and its marks if it has any."""

    text: str
    marks: dict[str, Any] | None


def part_bytes(data: bytes, chars: int = MAX_MESSAGE_CHARS) -> int:
    """How many of the first bytes of `data` make one part of `chars` characters (F17).

    An invalid byte counts as a character, so the text never gets longer than that.
    """
    head = data[: 4 * chars + 4].decode("utf-8", "surrogateescape")[:chars]
    return len(head.encode("utf-8", "surrogateescape"))


def pieces(
    record: bytes, *, part: int = 0, more: bool = False, partial: bool = False, nuls: int = 0
) -> list[Piece]:
    """The pieces of one record without its newline.

    `part` is the number of the first piece where the record continues a long line
    (0: it does not); `more` says that the line goes on behind this record; `partial`
    that its file ended without a newline; `nuls` that so many NULs before it were left
    out already. A run of NULs never makes a piece of its own, except for a whole record.
    """
    if not more and record.endswith(b"\r"):
        record = record[:-1]
    plain = not (part or more or partial or nuls)
    if plain and len(record) <= MAX_MESSAGE_CHARS and 0 not in record:
        try:
            return [Piece(record.decode(), None)]
        except UnicodeDecodeError:
            pass
    found = []
    number = part
    while True:
        text = record.lstrip(b"\0")
        nuls += len(record) - len(text)
        size = part_bytes(text)
        raw, record = text[:size], text[size:]
        marks: dict[str, Any] = {}
        if not record.strip(b"\0"):
            nuls, record = nuls + len(record), b""
        if record or more or number:
            number = number or 1
            marks["part"] = number
        if not record and not more:
            if number:
                marks["parts"] = number
            if partial:
                marks["partial"] = True
        if nuls:
            marks["nuls"] = nuls
            nuls = 0
        found.append(_piece(raw, marks))
        number += 1
        if not record:
            return found


def _piece(raw: bytes, marks: dict[str, Any]) -> Piece:
    """Decode one part (F16): what is not text becomes U+FFFD, and the bytes are kept."""
    text = raw.decode("utf-8", "replace")
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if REPLACEMENT in text and text.encode() != raw:
        marks["raw"] = b64encode(raw).decode()
    return Piece(text, marks or None)


class RecordEncoder:
    """Turns the records of one file into entry bodies. Not thread-safe: one call at a time."""

    def __init__(self, source: str, zone: tzinfo | None = None) -> None:
        self._source = source
        self._parser = LineParser(zone)
        self._last: Parsed | None = None

    def encode(
        self,
        records: Sequence[bytes],
        arrival: int,
        reference: int,
        *,
        part: int = 0,
        more: bool = False,
        partial: bool = False,
        at_start: bool = False,
        nuls: int = 0,
    ) -> list[bytes]:
        """The bodies of consecutive records, of which only the first may continue a
        line (`part`) and only the last be unfinished (`more`, `partial`).

        Times are µs, see `LineParser.parse`. `at_start`: the first record is the file's.
        `nuls` is how many NULs before the first were left out.
        """
        bodies = []
        last = len(records) - 1
        for index, record in enumerate(records):
            if at_start and index == 0 and record.startswith(BOM):
                record = record[len(BOM) :]
            number = part if index == 0 else 0
            ends = index == last
            for piece in pieces(
                record, part=number, more=more and ends, partial=partial and ends, nuls=nuls
            ):
                bodies.append(self._body(piece, arrival, reference))
            nuls = 0
        return bodies

    def _body(self, piece: Piece, arrival: int, reference: int) -> bytes:
        text, marks = piece
        if marks is not None and marks.get("part", 1) > 1 and self._last is not None:
            parsed = self._last
        else:
            parsed = self._last = self._parser.parse(text, arrival, reference)
        return encode_body(
            ts=parsed.ts,
            severity=parsed.severity,
            message=text,
            source=self._source,
            facility=parsed.facility,
            app_name=parsed.app_name,
            process_id=parsed.process_id,
            metadata=None if marks is None else {"cortextx": marks},
        )
