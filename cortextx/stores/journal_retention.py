"""What of a log may go, and what has to move to the lines that stay (I38) (PURE).

Only the oldest lines go, and only those before the oldest unfinished run. What has
to outlive them are the claims: the lines that carry one (`accepted`, `done`, and a
cancel's `status`) move, as they are, into `x.carried` of lines that stay: a list of
whole lines, some in each, so that none grows without bound. Whoever rebuilds claims
from a log reads every line's `x.carried` like lines; where they stand means nothing,
their `session_seq` says their order. `x` is never sent (I36).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec import Raw

from cortextx.interfaces.sessions import JournalState
from cortextx.stores.journal_log import Log

CARRIED_BYTES = 65_536
"""Bytes of carried lines that one line takes, unless too few stay."""
PAGE_LINES = 4096
PAGE_BYTES = 2**20


class _Correlation(msgspec.Struct, gc=False, frozen=True):
    run_id: str | None = None


class _Event(msgspec.Struct, gc=False, frozen=True):
    kind: str = ""


class _Beside(msgspec.Struct, gc=False):
    carried: list[Raw] = []


class _Line(msgspec.Struct, gc=False):
    correlation: _Correlation = _Correlation()
    event: _Event = _Event()
    x: _Beside | None = None


_line = msgspec.json.Decoder(_Line)
_members = msgspec.json.Decoder(dict[str, Raw])


def retain(log: Log, keep_bytes: int) -> JournalState:
    """Rewrite the log so that about its last `keep_bytes` stay, and what must."""
    first = first_to_keep(log, keep_bytes)
    if first > log.state.first:
        begin(log, first)
    return log.state


def first_to_keep(log: Log, keep_bytes: int) -> int:
    """The oldest line that has to stay."""
    state = log.state
    wanted = log.offsets.first_from(log.size - keep_bytes) if keep_bytes < log.size else state.first
    if wanted is None:
        wanted = state.head
    return max(state.first, min(wanted, _oldest_unfinished(log), state.head))


def _oldest_unfinished(log: Log) -> int:
    unfinished: dict[str | None, int] = {}
    for seq, line in lines_of(log):
        known = _parsed(line)
        if known.event.kind == "accepted":
            unfinished[known.correlation.run_id] = seq
        elif known.event.kind == "done":
            unfinished.pop(known.correlation.run_id, None)
    return min(unfinished.values(), default=log.state.head)


def begin(log: Log, first: int) -> None:
    """Rewrite the log to begin with line `first`, with the claims of what goes carried on."""
    carried: list[bytes] = []
    for seq, line in lines_of(log):
        if seq >= first:
            break
        carried.extend(carried_by(line))
    kept = log.state.head - first + 1
    waiting = iter(carried)
    total = sum(map(len, carried))
    share = max(CARRIED_BYTES, -(-total // kept))

    def mend(seq: int, line: bytes) -> bytes:
        batch = list(_up_to(waiting, share if seq < log.state.head else total))
        return with_carried(line, batch) if batch else line

    log.rewrite(first, mend)


def _up_to(lines: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Lines until they have `size` bytes together."""
    taken = 0
    while taken < size:
        for line in islice(lines, 1):
            taken += len(line)
            yield line
            break
        else:
            return


def carried_by(line: bytes) -> list[bytes]:
    """The lines with claims that go if this line goes: what it carries, and itself."""
    known = _parsed(line)
    carried = [bytes(raw) for raw in known.x.carried] if known.x is not None else []
    kind = known.event.kind
    if kind in ("accepted", "done") or (kind == "status" and known.x is not None):
        carried.append(_bare(line) if carried else line)
    return carried


def with_carried(line: bytes, carried: list[bytes]) -> bytes:
    """The line with `carried` put before what it carries already."""
    members = _members.decode(line)
    beside = _members.decode(members["x"]) if "x" in members else {}
    old = msgspec.json.decode(beside["carried"], type=list[Raw]) if "carried" in beside else []
    beside["carried"] = Raw(msgspec.json.encode([*map(Raw, carried), *old]))
    members["x"] = Raw(msgspec.json.encode(beside))
    return msgspec.json.encode(members)


def _bare(line: bytes) -> bytes:
    """The line without what it carries."""
    members = _members.decode(line)
    beside = _members.decode(members["x"])
    del beside["carried"]
    members["x"] = Raw(msgspec.json.encode(beside))
    return msgspec.json.encode(members)


def lines_of(log: Log, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """All retained lines above seq `after`, with their seqs."""
    while True:
        page = log.read(after, PAGE_LINES, PAGE_BYTES)
        if not page.lines:
            return
        yield from enumerate(page.lines, page.first)
        after = page.first + len(page.lines) - 1


def _parsed(line: bytes) -> _Line:
    try:
        return _line.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return _Line()  # an odd line of an old writer: nothing is carried of it
