"""What only the agent knows, as entries of the source custom:cortextx (PURE, F18, F37)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from cortextx.fleet.agent.buffer_state import LOSSES_KEY, Loss
from cortextx.fleet.agent.entries import encode_body

if TYPE_CHECKING:
    from cortextx.fleet.agent.changing import Standing
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


GapReason = Literal[
    "truncated", "quarantined", "rate_limited", "kernel_dropped", "overflowed", "vacuumed",
    "unreadable", "oversize", "vanished",
]  # fmt: skip
"""Why a source lost what never had a seq: a file was truncated, its damaged part was left
out, a limit of rate or room was met, the kernel's queue was full, the journal removed it,
it cannot be read, it was too long, or it is gone."""


def gap_reported(
    source: str,
    reason: GapReason,
    now: int,
    *,
    unread_bytes: int | None = None,
    count: int | None = None,
    detail: str | None = None,
) -> bytes:
    """The entry that says what a source lost before it was numbered (F37, A08).

    `source` is the entries' own (`file:/var/log/x`), `now` µs UTC, `count` entries.
    It belongs in the put of the checkpoint that passes the loss.
    """
    facts: dict[str, str | int] = {"source": source, "reason": reason}
    known = []
    if unread_bytes is not None:
        facts["unread_bytes"] = str(unread_bytes)
        known.append(f"{unread_bytes} bytes")
    if count is not None:
        facts["count"] = count
        known.append(f"{count} entries")
    if detail:
        facts["detail"] = detail[:200]
        known.append(detail[:200])
    much = f": {', '.join(known)}" if known else ""
    return encode_body(
        ts=now,
        severity="warning",
        message=f"{source} lost data ({reason.replace('_', ' ')}){much}",
        source=OWN_SOURCE,
        app_name="cortex-agent",
        metadata={"cortextx": {"gap": facts}},
    )


def limited_reported(rule: str, count: int, now: int) -> bytes:
    """The entry that says how many entries a rule's rate limit left out (F37)."""
    return gap_reported(f"rule:{rule}", "rate_limited", now, count=count)


def config_reported(standing: Standing, now: int) -> bytes:
    """The entry that says how the server's configuration stands here (A58)."""
    facts = {
        "state": standing.state,
        "desired": standing.desired,
        "effective": standing.effective,
        "failed": standing.failed,
        "reason": standing.reason and standing.reason[:1024],
    }
    good = standing.state == "applied"
    but = f", {standing.reason}" if standing.reason else ""
    words = {
        "applied": f"configuration {standing.effective} is in effect{but}",
        "rolled_back": f"configuration {standing.failed} failed, {standing.effective} is in"
        f" effect again: {standing.reason}",
    }
    text = words.get(standing.state, f"a configuration is not usable: {standing.reason}")
    return encode_body(
        ts=now,
        severity="notice" if good else "warning",
        message=text[:4096],
        source=OWN_SOURCE,
        app_name="cortex-agent",
        metadata={"cortextx": {"config": facts}},
    )


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
