"""What the file source does in its threads: many small steps of several files in one job.

A hop to a thread and a sync of the disk cost more than reading a short file, so jobs and
puts carry what is due of many files, as long as it is little.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from twisted.python.failure import Failure

from cortextx.fleet.agent.sources.actions import Emit, Open, Read
from cortextx.fleet.agent.sources.globs import Grounds, facts
from cortextx.fleet.agent.sources.identity import FileStat
from cortextx.fleet.agent.sources.lines import RecordEncoder

PUT_RECORDS = 2000
"""Records beyond which a put takes no other file's."""


class Opened(NamedTuple):
    """A descriptor, and what it was open on: its facts and first bytes."""

    descriptor: int
    stat: FileStat
    head: bytes


class Bytes(NamedTuple):
    """What was read, and the file's facts just before."""

    stat: FileStat
    data: bytes


Step = tuple[Open | Read, int]
"""What to do, and a read's descriptor."""


def do_all(grounds: Grounds, steps: Sequence[Step]) -> list[Opened | Bytes | Failure]:
    """Open and read; what fails fails alone."""
    results: list[Opened | Bytes | Failure] = []
    for action, descriptor in steps:
        try:
            if isinstance(action, Open):
                results.append(open_file(grounds, action))
            else:
                results.append(read_file(descriptor, action))
        except Exception:
            results.append(Failure())
    return results


def open_file(grounds: Grounds, action: Open) -> Opened:
    descriptor = grounds.open(action.path)
    try:
        stat = facts(os.fstat(descriptor))
        return Opened(descriptor, stat, os.pread(descriptor, action.size, 0))
    except BaseException:
        os.close(descriptor)
        raise


def read_file(descriptor: int, action: Read) -> Bytes:
    return Bytes(facts(os.fstat(descriptor)), os.pread(descriptor, action.size, action.offset))


def puts_of(emits: Sequence[Emit]) -> list[list[Emit]]:
    """Which of these go into one put."""
    puts: list[list[Emit]] = []
    records = PUT_RECORDS
    for emit in emits:
        if records + len(emit.records) > PUT_RECORDS:
            puts.append([])
            records = 0
        puts[-1].append(emit)
        records += len(emit.records)
    return puts


def encode_all(
    jobs: Sequence[tuple[RecordEncoder, Emit]], arrival: int
) -> list[list[bytes] | Failure]:
    """Turn records into entries; what fails fails alone."""
    results: list[list[bytes] | Failure] = []
    for encoder, emit in jobs:
        try:
            results.append(_encode(encoder, emit, arrival))
        except Exception:
            results.append(Failure())
    return results


def _encode(encoder: RecordEncoder, emit: Emit, arrival: int) -> list[bytes]:
    return encoder.encode(
        emit.records,
        arrival,
        min(arrival, emit.mtime_ns // 1000),
        part=emit.part,
        more=emit.more,
        partial=emit.partial,
        at_start=emit.start == 0,
        nuls=emit.nuls,
        coding=emit.coding,
        capped=emit.capped,
    )
