"""What a host says of itself in entries of the reserved source custom:cortextx (PURE, F37).

Such an entry's `metadata.cortextx` has either `lost`, a range of seqs that will
never come, or `gap`, what a source lost before it was numbered. Whatever else
stands there, or stands there in another shape, says nothing about gaps.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

OWN_SOURCE = "custom:cortextx"
"""The reserved name of what an agent reports about itself."""
TRUNCATED = "truncated"
"""The cause of gaps without seqs where the host names no other."""
MAX_DETAIL = 500
"""Characters that are kept of a host's own words."""

_Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Lost(Struct, frozen=True):
    """Seqs from `first` to `last` will not come, for `reason`."""

    first: _Seq
    last: _Seq
    reason: Annotated[str, Meta(min_length=1, max_length=64)]
    detail: str = ""


class SourceGap(Struct, frozen=True):
    """A source lost something that never had a seq, for `reason`; `unread_bytes` of it, or
    `count` entries, as far as that is known."""

    source: Annotated[str, Meta(max_length=65_536)] = ""
    unread_bytes: str | int | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=64)] = TRUNCATED
    count: int | None = None
    words: str = field(default="", name="detail")

    @property
    def detail(self) -> str | None:
        """What is known of how much it was."""
        known = []
        if self.unread_bytes is not None:
            known.append(f"{self.unread_bytes} bytes unread")
        if self.count is not None:
            known.append(f"{self.count} entries")
        return ", ".join([*known, *filter(None, [self.words])]) or None


class _Marks(Struct, frozen=True):
    lost: Lost | None = None
    gap: SourceGap | None = None


class _Metadata(Struct, frozen=True):
    cortextx: _Marks


_decoder = msgspec.json.Decoder(_Metadata)


def read_mark(metadata: Any) -> Lost | SourceGap | None:
    """What an entry of OWN_SOURCE says about gaps; `metadata` is JSON text or bytes."""
    if not metadata:
        return None
    try:
        marks = _decoder.decode(metadata).cortextx
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    if marks.lost is not None and marks.lost.first <= marks.lost.last:
        return marks.lost
    return marks.gap


def split(gap: tuple[int, int], lost: tuple[int, int]) -> list[tuple[int, int, bool]]:
    """Cut a gap at the ends of what is known to be lost: (first, last, whether it is that)."""
    first, last = max(gap[0], lost[0]), min(gap[1], lost[1])
    if first > last:
        return [(*gap, False)]
    parts = [(first, last, True)]
    if gap[0] < first:
        parts.append((gap[0], first - 1, False))
    if last < gap[1]:
        parts.append((last + 1, gap[1], False))
    return parts
