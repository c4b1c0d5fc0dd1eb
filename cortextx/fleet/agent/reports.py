"""What only the agent knows, as entries of the source custom:cortextx (PURE, F18, F37)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortextx.fleet.agent.buffer_state import LOSSES_KEY, Loss
from cortextx.fleet.agent.entries import encode_body

if TYPE_CHECKING:
    from cortextx.fleet.agent.policy import LeftOut

OWN_SOURCE = "custom:cortextx"
RESTORED = "restored"
_WORDS = {
    "evicted": "were evicted from the agent's full buffer",
    "damaged": "could not be read back from the agent's buffer",
    "missing": "are missing from the agent's buffer",
    "set_aside": "was refused by the server for good and set aside",
}


def losses_reported(losses: Sequence[Loss], now: int) -> tuple[list[bytes], dict[str, bytes]]:
    """One entry for each loss, and the checkpoint that marks them as reported; `now` in µs."""
    bodies = []
    for loss in losses:
        seqs = f"{loss.first}" if loss.first == loss.last else f"{loss.first} to {loss.last}"
        facts = {
            "first": loss.first,
            "last": loss.last,
            "count": loss.count,
            "reason": loss.reason,
            "detail": loss.detail[:200],
        }
        bodies.append(
            encode_body(
                ts=now,
                severity="warning",
                message=f"{loss.count} entries ({seqs}) {_WORDS[loss.reason]}",
                source=OWN_SOURCE,
                metadata={"cortextx": {"lost": facts}},
            )
        )
    return bodies, {LOSSES_KEY: b"%d" % losses[-1].number}


def refusal_reported(left: LeftOut, now: int) -> bytes:
    """The entry that says that a source which the server asked for does not run (F18)."""
    return encode_body(
        ts=now,
        severity="notice",
        message=f"source {left.kind} {left.name} does not run: {left.why}"[:4096],
        source=OWN_SOURCE,
        metadata={"cortextx": {"refused_source": {"kind": left.kind, "name": left.name[:1024]}}},
    )


def restored_reported(first: int, last: int, now: int) -> bytes:
    """The entry that says that the server lost what it had acked: it was restored (F26)."""
    facts = {"first": first, "last": last, "count": last - first + 1, "reason": RESTORED}
    return encode_body(
        ts=now,
        severity="warning",
        message=(
            f"{last - first + 1} entries ({first} to {last}) were acknowledged by the server"
            " and are not in its database any more: it was restored"
        ),
        source=OWN_SOURCE,
        metadata={"cortextx": {"lost": {**facts, "detail": "acknowledged before"}}},
    )
