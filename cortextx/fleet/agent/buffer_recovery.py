"""Opening the agent's buffer: what the disk proves, what is cut, what is lost (PURE).

Only the newest segment is read, and the heads of the others, so neither time
nor memory grows with the backlog (A41). A torn end was never promised to
anybody and is cut; damage is copied aside and its range reported, and the rest
stays readable (A37).

An end is torn if it looks as an unfinished write does and nothing proves that it
was on stable storage once. What proves: a later block's `synced`, the state file's
`durable`, and the name of a later segment, as a segment is begun only once the one
before it is synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cortextx.fleet.agent.buffer_blocks import (
    SEGMENT_HEADER_BYTES,
    SNAPSHOT,
    Bad,
    Block,
    SegmentHeader,
    claimed,
    decode_segment_header,
    looks_torn,
)
from cortextx.fleet.agent.buffer_segments import (
    QUARANTINE,
    Growing,
    Index,
    Segment,
    quarantine,
    scan_file,
    segment_first,
    segment_name,
)
from cortextx.fleet.agent.buffer_state import LOSSES_KEY, Ledger
from cortextx.fleet.agent.disk import Disk, DiskFile


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a buffer found, for the log.

    `cut` is the bytes of a torn end; `lost` the number of entries that are newly
    known to be lost (their ranges are in `Buffer.losses`); `notes` are sentences
    for the operator.
    """

    new: bool
    cut: int
    lost: int
    notes: tuple[str, ...]


@dataclass(slots=True)
class Recovered:
    """The buffer as found: all segments in order, the newest of them open."""

    ledger: Ledger
    segments: list[Segment] = field(default_factory=list)
    growing: Growing | None = None
    last: int = 0
    jumped: bool = False
    """Whether `last` lies beyond the newest segment's own end: begin another."""
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    report: Recovery = Recovery(False, 0, 0, ())


def account(
    ledger: Ledger,
    disk: Disk,
    segment: Segment,
    data: bytes,
    blocks: list[Block],
    bad: list[Bad],
    until: int,
) -> int:
    """Copy damaged stretches aside and note what is missing before position `until`.

    Returns the number of entries newly known to be lost. Not yet persisted.
    """
    lost = 0
    damaged = bool(bad)
    for stretch in bad:
        name = quarantine(disk, segment.first, stretch, data)
        if name is not None:
            size = stretch.end - stretch.offset
            ledger.notes.append(f"{size} damaged bytes of {segment.name} are kept as {name}")
    expected = segment.first
    ranges: list[tuple[int, int]] = []
    for block in blocks:
        if block.first > expected:
            ranges.append((expected, block.first - 1))
        expected = block.last + 1
    if expected < until:
        ranges.append((expected, until - 1))
    for first, last in ranges:
        lost += ledger.lose(first, last, "damaged" if damaged else "missing", segment.name)
    return lost


def recover(disk: Disk) -> Recovered:
    """Open what is there; a directory without a buffer becomes a brand-new one.

    Raises SchemaTooNew if a newer version wrote it, OSError if the disk fails.
    """
    found = Recovered(Ledger(disk))
    ledger = found.ledger
    known = ledger.load()
    for name in disk.names():
        if name.endswith(".tmp"):
            disk.unlink(name)
    firsts = sorted(f for f in map(segment_first, disk.names()) if f is not None)
    found.segments = [Segment(first, disk.size(segment_name(first))) for first in firsts]
    new = not known and ledger.trusted and not found.segments
    if not new and not (known and ledger.trusted):
        _derive(found, disk, known)
    cut, lost = _open_newest(found, disk)
    lost += _missing_segments(found, disk)
    if found.growing is not None:
        found.growing.sync()
    disk.sync_directory()
    reported = found.checkpoints.get(LOSSES_KEY, b"0")
    ledger.reported(int(reported) if reported.isdigit() else 0)
    if new or lost or ledger.notes:
        ledger.persist(found.last)
    ledger.refill_reserve()
    found.report = Recovery(new, cut, lost, tuple(ledger.notes))
    return found


def quarantined(disk: Disk) -> list[str]:
    """The files that hold damaged bytes."""
    return sorted(name for name in disk.names() if name.startswith(QUARANTINE))


def _derive(found: Recovered, disk: Disk, known: bool) -> None:
    """Without the newest state, the segments tell the numbering and what was dropped.

    The shift only ever grows, so the greatest that was seen is the newest; what
    stands before the oldest segment is taken to be acked. What only the lost state knew
    cannot be had again: totals, losses not yet reported, how far the disk had proved to be
    (so a damaged end may pass for a torn one). The note says so.
    """
    state = found.ledger.state
    for segment in reversed(found.segments):
        header = _header(disk, segment)
        if header is not None:
            if header.shift is not None:
                state.shift = max(header.shift, state.shift or 0)
            break
    if found.segments:
        found.ledger.advance(found.segments[0].first - 1)
    source = "the state before it and the segments" if known else "the segments"
    found.ledger.notes.append(
        f"the state was made anew from {source}: damaged_entries and the other totals may leave"
        " out losses of before, and so may the server's list of gaps"
    )


def _open_newest(found: Recovered, disk: Disk) -> tuple[int, int]:
    """Find the newest segment of which anything stands; returns (bytes cut, entries lost)."""
    ledger = found.ledger
    proved = max(ledger.state.durable, ledger.state.acked)
    cut = lost = 0
    while found.segments:
        segment = found.segments[-1]
        file = disk.open(segment.name)
        data, scanned = scan_file(file, segment.first, segment.size)
        top = max((block.synced for block in scanned.blocks), default=0)
        unproved = [b for b in scanned.bad if b.offset >= top and b.expected > proved]
        torn = next((b for b in unproved if looks_torn(data, b)), None)
        end = len(data) if torn is None else torn.offset
        for stretch in unproved:
            if stretch.offset < end and stretch.end == len(data):
                # It was whole once: the server may know its numbers.
                proved = max(proved, claimed(data, stretch))
        blocks = [block for block in scanned.blocks if block.offset < end]
        bad = [stretch for stretch in scanned.bad if stretch.offset < end]
        last = blocks[-1].last if blocks else segment.first - 1
        lost += account(ledger, disk, segment, data, blocks, bad, max(last, proved) + 1)
        end = blocks[-1].end if blocks else 0
        cut += len(data) - end
        if blocks:
            _grow(found, file, segment, blocks, end)
            found.checkpoints = _checkpoints(found, disk, len(found.segments) - 1, blocks)
            found.jumped = proved > last or scanned.header is None
            found.last = max(last, proved)
            return cut, lost
        file.close()
        disk.unlink(segment.name)
        found.segments.pop()
        proved = max(proved, segment.first - 1)
    found.last = proved
    return cut, lost + ledger.lose(1, proved, "missing", "no segment is left")


def _grow(
    found: Recovered, file: DiskFile, segment: Segment, blocks: list[Block], end: int
) -> None:
    index = Index.of(file, blocks, end)
    if end < segment.size:
        file.truncate(end)
        segment.size = end
    found.growing = Growing(segment, index, 0)
    found.growing.data_start = blocks[0].end


def _checkpoints(found: Recovered, disk: Disk, at: int, blocks: list[Block]) -> dict[str, bytes]:
    """The checkpoints after `blocks`; without their snapshot, from the segment before."""
    known: dict[str, bytes] = {}
    if not blocks or blocks[0].kind != SNAPSHOT:
        if at == 0:
            found.ledger.notes.append("checkpoints are lost: some sources may start over")
        else:
            before = found.segments[at - 1]
            file = disk.open(before.name)
            try:
                _, scanned = scan_file(file, before.first, before.size)
            finally:
                file.close()
            known = _checkpoints(found, disk, at - 1, scanned.blocks)
    for block in blocks:
        for key, value in block.checkpoints().items():
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
    return known


def _missing_segments(found: Recovered, disk: Disk) -> int:
    """Note segments that are not there; below `acked` that is as it should be (A38)."""
    ledger = found.ledger
    acked = ledger.state.acked
    lost = 0
    if found.segments:
        lost += ledger.lose(1, found.segments[0].first - 1, "missing", "before the oldest segment")
    for before, segment in zip(found.segments, found.segments[1:], strict=False):
        header = None if segment.first <= acked + 1 else _header(disk, segment)
        if header is None or header.previous == before.first:
            continue
        file = disk.open(before.name)
        try:
            data, scanned = scan_file(file, before.first, before.size)
        finally:
            file.close()
        lost += account(ledger, disk, before, data, scanned.blocks, scanned.bad, segment.first)
    return lost


def _header(disk: Disk, segment: Segment) -> SegmentHeader | None:
    file = disk.open(segment.name)
    try:
        return decode_segment_header(file.read_at(0, SEGMENT_HEADER_BYTES))
    finally:
        file.close()
