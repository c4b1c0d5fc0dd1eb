"""Repair and verification of a log, by command only (I13) (PURE).

What is repaired is never thrown away: all bytes from the first that cannot be proved
are copied to a file beside the log, and made durable there, before the log is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortextx.errors import SessionDamaged, StoreError
from cortextx.stores.journal_disk import LOG, JournalDirectory, JournalFile
from cortextx.stores.journal_proof import Proved, prove

COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a log is: seqs `first` to `head` are proved, `end` bytes of `size`.

    `why` is None where all of it is; else it tells what is wrong at byte `end`.
    """

    first: int
    head: int
    end: int
    size: int
    why: str | None


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did: `moved` bytes from offset `end` on now stand in `aside`.

    `whole_lines` of them end in a newline. Nothing moved: `aside` is None.
    """

    verdict: Verdict
    aside: str | None
    moved: int
    whole_lines: int


def verify(file: JournalFile) -> Verdict:
    """Prove a log; OSErrors pass through."""
    size = file.size()
    proved: Proved = prove(file, size)
    why = None if proved.doubt is None else proved.doubt.why
    return Verdict(proved.first, proved.head, proved.end, size, why)


def repair(directory: JournalDirectory, stamp: str, path: str) -> Repaired:
    """Move what cannot be proved into `events.jsonl.damaged-STAMP`, and cut the log.

    `path` is for messages. Raises StoreError; FileNotFoundError without a log,
    SessionDamaged where the log cannot be read at all.
    """
    file = directory.open(LOG)
    try:
        verdict = verify(file)
        if verdict.why is None:
            return Repaired(verdict, None, 0, 0)
        aside = f"{LOG}.damaged-{stamp}"
        whole_lines = _copy(directory, file, verdict, aside)
        file.truncate(verdict.end)
        file.sync()
    except OSError as fault:
        if isinstance(fault, FileExistsError):
            raise StoreError(f"{path}: {fault.filename or LOG}: is there already") from fault
        raise SessionDamaged(path, 0, f"not repaired: {fault.strerror}") from fault
    finally:
        file.close()
    return Repaired(verdict, aside, verdict.size - verdict.end, whole_lines)


def _copy(directory: JournalDirectory, file: JournalFile, verdict: Verdict, aside: str) -> int:
    whole_lines = 0
    copy = directory.create(aside)
    try:
        at = verdict.end
        while at < verdict.size:
            piece = file.read_at(at, min(COPY_BYTES, verdict.size - at))
            if not piece:
                break
            copy.write_at(at - verdict.end, [piece])
            whole_lines += piece.count(b"\n")
            at += len(piece)
        copy.sync()
    finally:
        copy.close()
    directory.sync_directory()
    return whole_lines
