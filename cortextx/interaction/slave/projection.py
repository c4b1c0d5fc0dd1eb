"""What of a session's facts an attachment is sent (PURE).

With `observe` or `replay` it has all of them; one that may only put in has the facts
of its own requests, and passes over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cortextx.errors import JsonError
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.slave.actions import Facts
from cortextx.interaction.slave.attachments import Attachment
from cortextx.interaction.slave.lines import read_line

OWN_REQUESTS = 1024
"""Requests that an attachment without `observe` is told of, the newest."""


@dataclass(frozen=True, slots=True)
class Page:
    """Frames for one attachment with their seqs; `gap` is the frame before them, if any."""

    frames: Sequence[bytes]
    seqs: Sequence[int]
    gap: bytes | None


def attached(attachment: Attachment, connection_id: str, cursor: int, head: int) -> v2.Frame:
    """The frame that tells where an attachment begins (I20)."""
    place = attachment.place
    return data.build(
        data.Attached(place.agent, place.scope, cursor + 1, head, attachment.key.space),
        Correlation(connection_id, attachment.id),
        capabilities=attachment.capabilities,
        mode=attachment.mode,
        session=attachment.key.session,
    )


def page_for(attachment: Attachment, connection_id: str, facts: Facts, after: int) -> Page:
    """The frames of facts that were read behind `after`."""
    first, count = facts.first, len(facts.lines)
    seqs: Sequence[int] = range(first, first + count)
    tails = facts.tails
    if not attachment.sees_all:
        mine = [n for n, line in enumerate(facts.lines) if _is_own(attachment, line)]
        seqs = [first + n for n in mine]
        tails = [tails[n] for n in mine]
    gap = None
    if count and first > after + 1:  # retention took what was there (I9)
        content = data.Gap(after + 1, first - 1, "retention")
        gap = v2.encode(data.build(content, Correlation(connection_id, attachment.id)))
    head = v2.addressed(b"", connection_id, attachment.id)
    return Page([head + tail for tail in tails], seqs, gap)


def repeated_for(attachment: Attachment, connection_id: str, facts: Facts) -> list[bytes]:
    """The frames of old facts that are asked for anew (I10).

    Where the attachment has not come to a fact yet, it will have it in its place.
    """
    walk = attachment.walk
    if walk is None:
        return []
    passed = walk.position if attachment.sees_all else walk.read
    return [
        v2.addressed(tail, connection_id, attachment.id)
        for line, tail in zip(facts.lines, facts.tails, strict=True)
        if read_line(line).session_seq <= passed
    ]


def note_own(attachment: Attachment, request_id: str) -> None:
    """Remember that a request is this attachment's; the oldest is forgotten."""
    attachment.own[request_id] = None
    if len(attachment.own) > OWN_REQUESTS:
        del attachment.own[next(iter(attachment.own))]


def _is_own(attachment: Attachment, line: bytes) -> bool:
    try:
        return read_line(line).correlation.request_id in attachment.own
    except JsonError:
        return False
