"""What a hello tells of a store that was restored from a backup (F26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from cortextx.errors import StoreError, in_words

if TYPE_CHECKING:
    from cortextx.fleet.server.tokens import Accepted
    from cortextx.interfaces.fleet import ILogStore

log = Logger()

MOST_ACKED = 10**15
"""What no host has had acked: it takes a million entries a second for thirty years."""


async def note_acked(store: ILogStore, verdict: Accepted, acked: int, now: int) -> None:
    """What a host had acked (its `resume_from_seq`, F36) above our accepted_seq is lost here:
    a gap, and known before the host pushes anything. `now` is µs UTC. More than `MOST_ACKED`
    is legal on the wire (F31) but not believed: no loss of that size is shown.

    Never fails: if it cannot be noted, the next hello tells it again, or the next push.
    """
    if acked <= verdict.accepted_seq:
        return
    if acked > MOST_ACKED:
        log.error(
            "{host_id} says that its entries up to {acked} were acked, which cannot be: its"
            " resume_from_seq is not believed, and no gap is noted",
            host_id=verdict.host_id,
            acked=acked,
        )
        return
    try:
        gap = await store.restored(verdict.host_id, acked, now)
    except StoreError as error:
        log.error(
            "{host_id}: a gap up to entry {acked} could not be noted: {why}",
            host_id=verdict.host_id,
            acked=acked,
            why=in_words(error),
        )
        return
    if gap is not None:
        log.warn(
            "{host_id} had its entries up to {acked} acked, of which this store has those up to"
            " {accepted}: it was restored, and {count} entries are missing (F26)",
            host_id=verdict.host_id,
            acked=acked,
            accepted=verdict.accepted_seq,
            count=gap.entries,
        )
