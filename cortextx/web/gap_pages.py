"""Pages of gaps: their cursors, and an audit with one page of what it found (F13)."""

from __future__ import annotations

import re

from cortextx.fleet.server.audit import Audit, AuditRange, every_gap
from cortextx.interfaces.fleet import Gap, GapPlace, HostRecord, ILogStore
from cortextx.web.problems import wrong

_CURSOR = re.compile(r"(\d{1,19})\.(\d{1,19})\.(\d{1,19})\Z")


def cursor_of(gap: Gap) -> str:
    """What a page that ends with this gap gives to go on behind it."""
    return ".".join(map(str, gap.place))


def place_of(cursor: str | None) -> GapPlace | None:
    """Where a cursor stands; raises Problem 400 for what is none."""
    if cursor is None:
        return None
    found = _CURSOR.match(cursor)
    if found is None or any(int(number) >= 2**63 for number in found.groups()):
        raise wrong("cursor", "the cursor of a page of gaps")
    return int(found[1]), int(found[2]), int(found[3])


async def audited(
    store: ILogStore,
    record: HostRecord,
    asked: AuditRange,
    limit: int,
    after: GapPlace | None,
) -> tuple[Audit, list[Gap], bool]:
    """The audit of a host, `limit` of its gaps behind a place, and whether there are more."""
    audit = Audit(record.accepted_seq, asked)
    page: list[Gap] = []
    more = False
    async for gaps in every_gap(store, record.host_id, asked):
        behind = [gap for gap in audit.take(gaps) if after is None or gap.place > after]
        page += behind[: limit - len(page) + 1]
        more = more or len(page) > limit
        del page[limit:]
    return audit, page, more
