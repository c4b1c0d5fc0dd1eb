"""Whether all that a host numbered is here, and if not what is missing and why (PURE; F13, F37)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from cortextx.interfaces.fleet import Gap, GapPlace, ILogStore

PAGE = 1000
"""Gaps that are held at a time."""


@dataclass(frozen=True, slots=True)
class AuditRange:
    """What is asked about: seqs, both inclusive, and the time at which a gap was noticed
    (µs UTC, `until` exclusive). None means any."""

    from_seq: int | None = None
    to_seq: int | None = None
    since: int | None = None
    until: int | None = None


class Audit:
    """What is found as one page of a host's gaps after the other is looked at.

    `count` are the gaps in the range, `missing` how many of its seqs they hold.
    `awaited` are seqs of the range that the host has not sent yet, or that nobody
    numbered: no loss, but not here either.
    """

    def __init__(self, accepted_seq: int, asked: AuditRange) -> None:
        self._asked = asked
        self.count = 0
        self.missing = 0
        awaited = 0 if asked.to_seq is None else asked.to_seq - max(accepted_seq, _start(asked) - 1)
        self.awaited = max(0, awaited)

    def take(self, gaps: Iterable[Gap]) -> list[Gap]:
        """Those of these gaps that lie in the range. One without seqs lies in every range."""
        asked = self._asked
        found = [gap for gap in gaps if _in_time(gap, asked) and _in_seqs(gap, asked)]
        self.count += len(found)
        self.missing += sum(_within(gap, asked) for gap in found)
        return found

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, as far as anybody knows."""
        return not self.count and not self.awaited


async def every_gap(
    store: ILogStore, host_id: str | None, asked: AuditRange = AuditRange()
) -> AsyncIterator[list[Gap]]:
    """All gaps of a host, or of all hosts, page by page; those of other times may be left out."""
    after: GapPlace | None = None if asked.since is None else (asked.since, -1, 0)
    while True:
        page: list[Gap] = await store.gaps(host_id, after, PAGE)
        yield page
        if len(page) < PAGE or (asked.until is not None and page[-1].detected_at >= asked.until):
            return
        after = page[-1].place


def _start(asked: AuditRange) -> int:
    return 1 if asked.from_seq is None else asked.from_seq


def _in_time(gap: Gap, asked: AuditRange) -> bool:
    if asked.since is not None and gap.detected_at < asked.since:
        return False
    return asked.until is None or gap.detected_at < asked.until


def _in_seqs(gap: Gap, asked: AuditRange) -> bool:
    return gap.first is None or gap.last is None or _within(gap, asked) > 0


def _within(gap: Gap, asked: AuditRange) -> int:
    """How many of the range's seqs a gap holds."""
    if gap.first is None or gap.last is None:
        return 0
    last = gap.last if asked.to_seq is None else min(gap.last, asked.to_seq)
    return max(0, last - max(gap.first, _start(asked)) + 1)
