"""How an agent writes one log entry before it has a number (PURE).

A body is the JSON of a LogBatchEntry (§4.4) without `seq` and without the opening
brace; on the wire it stands behind `{"seq":N,`, so renumbering (F2) rewrites nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from cortextx.fleet.contract import MAX_ENTRY_BYTES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BODY_LIMIT = MAX_ENTRY_BYTES - 64
"""Bytes of a body, which leaves room for the number (F17)."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class _Plain(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An entry without metadata, in the order of a body's members; most are like that."""

    ts: str
    severity: str
    message: str
    source: str
    facility: str | None = None
    app_name: str | None = None
    process_id: str | None = None


def moment_text(micros: int) -> str:
    """RFC 3339 in UTC for µs since the epoch; out of range is clamped to a legal year."""
    try:
        at = EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        at = EPOCH if micros < 0 else datetime(9999, 12, 31, tzinfo=UTC)
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def encode_text(text: str) -> bytes:
    """A JSON string in raw UTF-8 (F42); a lone surrogate becomes U+FFFD (F16)."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def encode_body(
    *,
    ts: datetime | int | str,
    severity: str,
    message: str,
    source: str,
    facility: str | None = None,
    app_name: str | None = None,
    process_id: str | None = None,
    metadata: bytes | dict[str, Any] | None = None,
) -> bytes:
    """The body of one entry, at most `BODY_LIMIT` bytes as long as `message` keeps its own cap.

    `ts` is an aware datetime, µs since the epoch, or RFC 3339 text with an offset
    (F15), which is passed on as it is. `metadata` is an object, or the JSON text of
    one. Metadata that would make the entry too big is cut to our own marks, and
    flagged with `metadata.cortextx.cut` (F17).
    Raises ValueError for a datetime without an offset.
    """
    if isinstance(ts, str):
        when = ts
    elif isinstance(ts, int):
        when = moment_text(ts)
    else:
        offset = ts.utcoffset()
        if offset is None:
            raise ValueError("ts has no offset from UTC")
        whole = offset.seconds % 60 == 0 and offset.microseconds == 0
        when = (ts if whole else ts.astimezone(UTC)).isoformat()
    if metadata is None:
        plain = _Plain(when, severity, message, source, facility, app_name, process_id)
        try:
            return _encode(plain)[1:]
        except UnicodeEncodeError:
            pass
    parts = [
        b'"ts":"%b","severity":"%b","message":' % (when.encode(), severity.encode()),
        encode_text(message),
        b',"source":',
        encode_text(source),
    ]
    if facility is not None:
        parts += (b',"facility":', encode_text(facility))
    if app_name is not None:
        parts += (b',"app_name":', encode_text(app_name))
    if process_id is not None:
        parts += (b',"process_id":', encode_text(process_id))
    if metadata is None:
        parts.append(b"}")
        return b"".join(parts)
    extra = metadata if isinstance(metadata, bytes) else _encode(metadata)
    size = sum(map(len, parts)) + len(extra)
    if size > BODY_LIMIT:
        extra = _cut(extra, BODY_LIMIT - size + len(extra))
    parts += (b',"metadata":', extra, b"}")
    return b"".join(parts)


def _cut(extra: bytes, room: int) -> bytes:
    """Only our own small marks of a metadata object, with `cut` among them."""
    marks = _decode(extra).get("cortextx")
    kept = {"cut": True}
    if isinstance(marks, dict):
        kept = {k: v for k, v in marks.items() if not isinstance(v, str | list | dict)} | kept
    cut = _encode({"cortextx": kept})
    return cut if len(cut) < room - 32 else b'{"cortextx":{"cut":true}}'
