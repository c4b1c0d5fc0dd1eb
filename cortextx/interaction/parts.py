"""Output beyond a frame, split into several events (PURE; I33, I40).

The parts end between characters, and each encoded frame fits. Linear in the text.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cortextx.core.jsontext import decode, encode
from cortextx.errors import LocalProtocolError
from cortextx.interaction.data import Delta, Message
from cortextx.interaction.faults import MAX_FRAME_BYTES

Textual = TypeVar("Textual", Delta, Message)

ENVELOPE_BYTES = 4096
"""More than all that a frame holds beside its data, whatever its ids are."""

DATA_BYTES = MAX_FRAME_BYTES - ENVELOPE_BYTES
"""Bytes of encoded data that fit in any v2 frame."""

DATA_BYTES_BOTH = 100 * 1024
"""The same where v1 lines hold everything twice (I6 `both`)."""

_MOST_PARTS = 2**31
_LONGEST_ESCAPE = 6


def split(data: Textual, data_bytes: int = DATA_BYTES) -> list[Textual]:
    """Split `data` so that each part encodes to at most `data_bytes` bytes.

    Data that fits is the only part, unmarked; else `part` counts from 1 to `parts`.
    Raises LocalProtocolError if what stands beside the text leaves no room for it.
    """
    if len(encode(data)) <= data_bytes:
        return [data]
    marked = msgspec.structs.replace(data, text="", part=_MOST_PARTS, parts=_MOST_PARTS)
    texts = split_text(data.text, data_bytes - len(encode(marked)))
    return [
        msgspec.structs.replace(data, text=text, part=part, parts=len(texts))
        for part, text in enumerate(texts, 1)
    ]


def split_text(text: str, room: int) -> list[str]:
    """Cut `text` so that each piece encodes to at most `room` bytes of a JSON string."""
    if room < _LONGEST_ESCAPE:
        raise LocalProtocolError("no room for the text in a frame")
    encoded = encode(text)[1:-1]
    pieces: list[str] = []
    start = 0
    while start < len(encoded):
        end = _boundary(encoded, start, start + room)
        pieces.append(decode(b'"%s"' % encoded[start:end], str))
        start = end
    return pieces or [""]


def _boundary(encoded: bytes, start: int, end: int) -> int:
    """The last end of a character or escape up to `end`; `start` is one too."""
    if end >= len(encoded):
        return len(encoded)
    while encoded[end] & 0xC0 == 0x80:
        end -= 1
    slash = encoded.rfind(b"\\", max(start, end - _LONGEST_ESCAPE + 1), end)
    if slash < 0:
        return end
    before = encoded[start : slash + 1]
    if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
        return end  # it is the second of an escaped backslash
    length = _LONGEST_ESCAPE if encoded[slash + 1 : slash + 2] == b"u" else 2
    return slash if slash + length > end else end
