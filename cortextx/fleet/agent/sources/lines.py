"""From the bytes of a record to the texts of entries: encoding, long lines, marks (PURE).

The marks stand in `metadata.cortextx` (F43). Three more are ours: `nuls`, the count of
NULs that stood before a record (what a crash or a copytruncate leaves in a file);
`encoding`, what `raw` is in, where that is not UTF-8; and `capped`, for a record of several
lines that did not end where it was ended.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Container, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.codings import CODINGS, PLAIN, UTF_8, Coding
from cortextx.fleet.agent.sources.parse import LineParser, Parsed
from cortextx.fleet.contract import MAX_MESSAGE_CHARS

if TYPE_CHECKING:
    from cortextx.fleet.agent.composing import Compose

SURE_BYTES = 4 * MAX_MESSAGE_CHARS + 4
"""Bytes that hold `MAX_MESSAGE_CHARS` whole characters, whatever they are."""
BOM = b"\xef\xbb\xbf"
REPLACEMENT = "�"


class Piece(NamedTuple):
    """One entry's text, and its marks if it has any."""

    text: str
    marks: dict[str, Any] | None


def part_bytes(data: bytes, chars: int = MAX_MESSAGE_CHARS) -> int:
    """How many of the first bytes of UTF-8 `data` make one part (F17); see `Coding`."""
    return PLAIN.part_size(data, chars)


def pieces(
    record: bytes,
    *,
    part: int = 0,
    more: bool = False,
    partial: bool = False,
    nuls: int = 0,
    capped: bool = False,
    at_start: bool = False,
    coding: Coding = PLAIN,
) -> list[Piece]:
    """The pieces of one record without its newline.

    `part` is the number of the first piece where the record continues a long line
    (0: it does not); `more` says that the line goes on behind this record; `partial`
    that its file ended without a newline; `nuls` that so many NULs before it were left
    out already. A run of NULs never makes a piece of its own, except for a whole record.
    """
    text = coding.text(record)
    half = record[len(record) - len(record) % coding.unit :]
    if at_start:
        text = text.removeprefix("\ufeff")
    if not more:
        text = text.removesuffix("\r")
    found = []
    number = part
    while True:
        rest = text.lstrip("\0")
        nuls += len(text) - len(rest)
        chunk, text = rest[:MAX_MESSAGE_CHARS], rest[MAX_MESSAGE_CHARS:]
        marks: dict[str, Any] = {}
        if not text.strip("\0"):
            nuls, text = nuls + len(text), ""
        if text or more or number:
            number = number or 1
            marks["part"] = number
        if not text:
            if number and not more:
                marks["parts"] = number
            if partial:
                marks["partial"] = True
            if capped:
                marks["capped"] = True
        if nuls:
            marks["nuls"] = nuls
            nuls = 0
        found.append(_piece(coding, coding.data(chunk) + (b"" if text else half), marks))
        number += 1
        if not text:
            return found


def _piece(coding: Coding, raw: bytes, marks: dict[str, Any]) -> Piece:
    """Decode one part (F16): what is not text becomes U+FFFD, and the bytes are kept."""
    text = raw.decode(coding.codec, "replace")
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if REPLACEMENT in text and text.encode(coding.codec, "replace") != raw:
        marks["raw"] = b64encode(raw).decode()
        if coding is not PLAIN:
            marks["encoding"] = coding.name
    return Piece(text, marks or None)


class RecordEncoder:
    """Turns the records of one file into entry bodies. Not thread-safe: one call at a time.

    `zone` and `form` are for `LineParser`; `compose` makes the entries, or drops them.
    """

    def __init__(
        self,
        source: str,
        zone: tzinfo | None = None,
        form: str = "auto",
        compose: Compose = encode_body,
    ) -> None:
        self._source = source
        self._parser = LineParser(zone, form)
        self._compose = compose
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
        coding: str = UTF_8,
        capped: Container[int] = (),
    ) -> list[bytes]:
        """The bodies of consecutive records, of which only the first may continue a
        line (`part`) and only the last be unfinished (`more`, `partial`).

        Times are µs, see `LineParser.parse`. `at_start`: the first record is the file's.
        `nuls` is how many NULs before the first were left out.
        """
        bodies: list[bytes | None] = []
        first = bool(part or nuls or at_start)
        last = len(records) - 1 if more or partial else -1
        simple = coding == UTF_8
        parse, compose, source = self._parser.parse, self._compose, self._source
        for index, record in enumerate(records):
            if (
                simple
                and len(record) <= MAX_MESSAGE_CHARS
                and 0 not in record
                and not (first and index == 0)
                and index != last
                and index not in capped
            ):
                try:
                    text = record.decode()
                except UnicodeDecodeError:
                    pass
                else:
                    text = text.removesuffix("\r")
                    parsed = self._last = parse(text, arrival, reference)
                    ts, severity, facility, app_name, process_id, _ = parsed
                    bodies.append(
                        compose(
                            ts=ts,
                            severity=severity,
                            message=text,
                            source=source,
                            facility=facility,
                            app_name=app_name,
                            process_id=process_id,
                        )
                    )
                    continue
            begins, ends = index == 0, index == last
            for piece in pieces(
                record,
                part=part if begins else 0,
                more=more and ends,
                partial=partial and ends,
                nuls=nuls if begins else 0,
                capped=index in capped,
                at_start=at_start and begins,
                coding=CODINGS[coding],
            ):
                bodies.append(self._body(*piece, arrival, reference))
        return [body for body in bodies if body is not None]

    def _body(
        self, text: str, marks: dict[str, Any] | None, arrival: int, reference: int
    ) -> bytes | None:
        if marks is not None and marks.get("part", 1) > 1 and self._last is not None:
            parsed = self._last
        else:
            parsed = self._last = self._parser.parse(text, arrival, reference)
        return self._compose(
            ts=parsed.ts,
            severity=parsed.severity,
            message=text,
            source=self._source,
            facility=parsed.facility,
            app_name=parsed.app_name,
            process_id=parsed.process_id,
            metadata=None if marks is None else {"cortextx": marks},
        )
