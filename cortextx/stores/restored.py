"""Gaps that a hello shows before anything is pushed, and what pushes make of them (PURE; F26).

A host that had more acked than a restored store knows has seqs that never come, at
least as it said. They are noted above accepted_seq, which stays: should the host send
some of them all the same, they are stored, and are no gap any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CAUSE = "restored"
"""What the server itself says of such a gap."""
Run = tuple[int, int]
"""Seqs from the first to the last, both inclusive."""


def without(run: Run, taken: Iterable[Run]) -> list[Run]:
    """What is left of a run without others, which do not overlap, in ascending order."""
    first, last = run
    left: list[Run] = []
    for begin, end in sorted(taken):
        if end < first or begin > last:
            continue
        if begin > first:
            left.append((first, begin - 1))
        first = end + 1
    return left + ([(first, last)] if first <= last else [])


def unsent(run: Run, gap: Run | None, high_water: int) -> list[Run]:
    """What is still missing of a noted run, once a batch ends at `high_water` and has shown
    `gap` in front of it: what lies in that gap, and what lies above the batch."""
    first, last = run
    parts = [(max(first, high_water + 1), last)]
    if gap is not None:
        parts.insert(0, (max(first, gap[0]), min(last, gap[1])))
    return joined([part for part in parts if part[0] <= part[1]])


def joined(runs: Sequence[Run]) -> list[Run]:
    """Runs in ascending order, where those that touch are one."""
    found: list[Run] = []
    for first, last in runs:
        if found and found[-1][1] + 1 >= first:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
