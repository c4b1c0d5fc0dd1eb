"""Whether all that a host numbered is here, and if not what is missing and why (PURE; F13, F37)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cortextx.interfaces.fleet import Gap


@dataclass(frozen=True, slots=True)
class AuditRange:
    """What is asked about: seqs, both inclusive, and the time at which a gap was noticed
    (µs UTC, `until` exclusive). None means any."""

    from_seq: int | None = None
    to_seq: int | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer: the gaps in the range, and how many of its seqs they hold.

    `awaited` are seqs of the range that the host has not sent yet, or that nobody
    numbered: no loss, but not here either.
    """

    gaps: tuple[Gap, ...]
    missing: int
    awaited: int

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, as far as anybody knows."""
        return not self.gaps and not self.awaited


def audit(accepted_seq: int, gaps: Iterable[Gap], asked: AuditRange) -> Audit:
    """Look at a host's gaps. One without seqs lies in every range of seqs."""
    found = tuple(gap for gap in gaps if _in_time(gap, asked) and _in_seqs(gap, asked))
    missing = sum(_within(gap, asked) for gap in found)
    awaited = 0 if asked.to_seq is None else asked.to_seq - max(accepted_seq, _start(asked) - 1)
    return Audit(found, missing, max(0, awaited))


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
