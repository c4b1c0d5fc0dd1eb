"""Looking at a buffer's directory without changing it, and acknowledging what is set apart
in it (PURE, A37, F25).

All of it works on a `Disk` alone, on the thread of the agent that has the buffer open or
in a program that holds the directory's lock.
"""

from __future__ import annotations

from typing import Any

from cortextx.errors import SchemaTooNew
from cortextx.fleet.agent.buffer_segments import (
    QUARANTINE,
    SEEN,
    Segment,
    scan_file,
    segment_first,
    segment_name,
)
from cortextx.fleet.agent.buffer_set_aside import SIDE_FILE, SideFile
from cortextx.fleet.agent.buffer_state import PREVIOUS, STATE, State, decode_state
from cortextx.fleet.agent.disk import Disk, read_whole

MAX_SEGMENTS = 200
"""Segments that an inspection names."""


def apart(disk: Disk) -> list[str]:
    """The files with damaged bytes and with entries that were set aside, unacknowledged."""
    damaged = (f"{STATE}.damaged", f"{PREVIOUS}.damaged")
    return sorted(
        name
        for name in disk.names()
        if name.startswith(QUARANTINE) or name in damaged or name == SIDE_FILE
    )


def acknowledge(disk: Disk) -> list[str]:
    """Say that all of these were looked at; their new names. They are kept."""
    renamed = []
    taken = set(disk.names())
    for name in apart(disk):
        new, number = f"{SEEN}{name}", 1
        while new in taken:
            number += 1
            new = f"{SEEN}{number}-{name}"
        disk.rename(name, new)
        taken.add(new)
        renamed.append(new)
    if renamed:
        disk.sync_directory()
    return renamed


def set_apart(disk: Disk, limit: int) -> list[dict[str, Any]]:
    """What was set apart and not acknowledged: damaged parts, then entries, newest last."""
    rows: list[dict[str, Any]] = []
    for name in apart(disk):
        if name != SIDE_FILE:
            rows.append({"what": "damaged", "file": name, "bytes": disk.size(name)})
    for entry in SideFile(disk).newest(limit):
        body = entry.body.decode("utf-8", "replace")
        row = {"what": "set_aside", "file": SIDE_FILE, "bytes": len(entry.body)}
        rows.append({**row, "seq": entry.seq, "reason": entry.reason, "entry": "{" + body})
    return rows


def segments(disk: Disk) -> list[Segment]:
    """The segment files, oldest first."""
    firsts = sorted(first for first in map(segment_first, disk.names()) if first is not None)
    return [Segment(first, disk.size(segment_name(first))) for first in firsts]


def inspect(disk: Disk) -> dict[str, Any]:
    """What the directory holds, as its files say."""
    state = _state(disk)
    found = segments(disk)
    shift = None if state is None else state.shift
    rows = [
        {"file": one.name, "first_seq": one.first + (shift or 0), "bytes": one.size}
        for one in found[:MAX_SEGMENTS]
    ]
    names = disk.names()
    return {
        "state": "readable" if state is not None else "unreadable" if STATE in names else "none",
        "numbered": shift is not None,
        "acked_seq": None if state is None else state.acked + (shift or 0),
        "durable_seq": None if state is None else state.durable + (shift or 0),
        "segments": len(found),
        "bytes": sum(one.size for one in found),
        "evicted_entries": None if state is None else state.evicted,
        "damaged_entries": None if state is None else state.damaged,
        "set_aside_entries": None if state is None else state.set_aside,
        "unreported_losses": None if state is None else len(state.losses),
        "unacknowledged": apart(disk),
        "acknowledged": sum(name.startswith(SEEN) for name in names),
        "files": rows,
    }


def verify(disk: Disk, segment: Segment) -> dict[str, Any]:
    """Read one segment whole and check every block of it; OSError if it cannot be read."""
    file = disk.open(segment.name)
    try:
        data, found = scan_file(file, segment.first, file.size())
    finally:
        file.close()
    bad = [{"offset": one.offset, "bytes": one.end - one.offset} for one in found.bad]
    expected, missing = segment.first, 0
    for block in found.blocks:
        missing += max(0, block.first - expected)
        expected = block.last + 1
    return {
        "file": segment.name,
        "bytes": len(data),
        "blocks": len(found.blocks),
        "entries": sum(block.count for block in found.blocks),
        "missing_entries": missing,
        "damage": bad,
        "good": not bad and not missing and found.header is not None,
    }


def verify_if_there(disk: Disk, segment: Segment) -> dict[str, Any] | None:
    """As `verify`; None for a segment that was dropped."""
    return verify(disk, segment) if segment.name in disk.names() else None


def _state(disk: Disk) -> State | None:
    if STATE not in disk.names():
        return None
    file = disk.open(STATE)
    try:
        return decode_state(read_whole(file, file.size()))
    except SchemaTooNew:
        return None
    finally:
        file.close()
