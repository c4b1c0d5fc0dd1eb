"""The vectors in tests/vectors, row by row, and frames to make up (for tests)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec import Raw

from cortextx.channel import abilities, effects, frames, values
from cortextx.core import exchange, jsontext

VECTORS = Path(__file__).parent.parent / "vectors"


class FrameRow(NamedTuple):
    """A raw line and what must become of it: ok, reject, any."""

    id: str
    line: bytes
    verdict: str


def read_rows(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of vectors."""
    with (VECTORS / name).open() as lines:
        yield from map(json.loads, lines)


def frame_rows() -> list[FrameRow]:
    """Every frame vector; a generated line is checked against its length and digest."""
    return [FrameRow(row["id"], _line(row), row["verdict"]) for row in read_rows("channel.jsonl")]


def _line(row: dict[str, Any]) -> bytes:
    if "gen" not in row:
        return base64.b64decode(row["frame_b64"], validate=True)
    gen = row["gen"]
    line: bytes = (gen["prefix"] + gen["repeat"] * gen["count"] + gen["suffix"]).encode()
    found = (len(line), hashlib.sha256(line).hexdigest())
    if found != (gen["len"], gen["sha256"]):
        raise AssertionError(f"{row['id']}: the generated line is not the one meant")
    return line


def _fits(text: str) -> bool:
    return values.is_bounded(text)


free = st.text(max_size=12)
plain = free.map(lambda text: text.replace("\0", "0"))
filled = plain.filter(bool)
bounded = filled.filter(_fits) | st.sampled_from(["é" * 128, "a" * 256, "\n", "\x85"])
maybe_time = st.none() | st.integers(0, values.MAX_TIMESTAMP_MS)
metadata = st.dictionaries(free, free, max_size=2)
maybe = st.none() | free
target = st.builds(values.MessageTarget, filled, bounded, st.none() | plain, st.none() | plain)
event_target = st.builds(
    values.MessageTarget, bounded, bounded, st.none() | bounded, st.none() | bounded
)
participant = st.builds(values.Participant, bounded, maybe, maybe)
attachment = st.builds(values.Attachment, filled, st.none() | plain, st.none() | plain)
body = st.builds(values.Body, filled, st.lists(attachment, max_size=2)) | st.builds(
    values.Body, st.just(""), st.lists(attachment, min_size=1, max_size=1)
)
kept = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | free,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(free, inner, max_size=2),
    max_leaves=4,
).map(lambda value: Raw(jsontext.encode(value)))
inbound_message = st.builds(
    values.InboundMessage, bounded, target, participant, body, maybe_time, metadata
)
outbound_message = st.builds(values.OutboundMessage, target, body, metadata)
context = st.builds(
    values.EventContext,
    event_target,
    st.none() | participant,
    maybe_time,
    st.dictionaries(bounded, free, max_size=2),
)
incoming_event = (
    st.builds(values.Reacted, context, bounded, bounded, st.booleans())
    | st.builds(values.SeenTyping, context, st.booleans())
    | st.builds(values.MessageEdited, context, bounded, body)
    | st.builds(values.MessageDeleted, context, bounded)
    | st.builds(values.MessageRead, context, bounded)
)
effect = (
    st.builds(effects.Typing, st.booleans())
    | st.builds(effects.Preview, free)
    | st.builds(effects.React, filled, filled, st.booleans())
    | st.builds(effects.Edit, filled, body)
    | st.one_of(
        *(
            st.builds(kind, filled)
            for kind in (effects.Delete, effects.MarkRead, effects.Pin, effects.Unpin)
        )
    )
    | st.builds(effects.Redact, filled, maybe)
)
choice = st.builds(exchange.Choice, free, free)
command = (
    st.builds(exchange.RequestInput, free)
    | st.builds(exchange.RequestApproval, free, kept)
    | st.builds(exchange.Notify, free, free)
    | st.builds(exchange.Invoke, free, kept)
    | st.builds(exchange.RequestChoice, free, st.lists(choice, max_size=2), st.booleans())
)
result = (
    st.just(exchange.Accepted())
    | st.builds(exchange.Rejected, free)
    | st.builds(exchange.Value, kept)
)
action = (
    st.builds(effects.Send, outbound_message)
    | st.builds(effects.ControlEffect, target, effect)
    | st.builds(effects.ControlCommand, bounded, bounded, command, st.none() | target)
)
health = st.builds(values.Health, st.sampled_from(["Ready", "Degraded", "Unavailable"]), maybe)
receipt = st.builds(values.Receipt, filled, filled, target, maybe_time)
lifecycle = st.sampled_from(
    [values.Connected(), values.Disconnected(), values.Heartbeat(), values.RetryScheduled(7)]
)
hello = st.builds(
    frames.Hello,
    bounded,
    bounded,
    st.sets(st.sampled_from(abilities.CAPABILITIES)).map(abilities.capability_flags),
    st.sets(st.sampled_from(abilities.ACTIONS)).map(abilities.action_flags),
)
error = st.builds(
    frames.ErrorFrame,
    request_id=st.none() | bounded,
    code=bounded,
    message=free,
    retryable=st.booleans(),
)
FRAMES: dict[type[Any], st.SearchStrategy[Any]] = {
    frames.Hello: hello,
    frames.ControlHello: st.builds(frames.ControlHello, bounded, bounded),
    frames.Start: st.builds(frames.Start, bounded),
    frames.Stop: st.builds(frames.Stop, bounded),
    frames.Inbound: st.builds(frames.Inbound, bounded, inbound_message),
    frames.InboundEvent: st.builds(frames.InboundEvent, bounded, incoming_event),
    frames.Deliver: st.builds(frames.Deliver, bounded, outbound_message),
    frames.Outbound: st.builds(frames.Outbound, bounded, outbound_message),
    frames.EffectFrame: st.builds(frames.EffectFrame, bounded, target, effect),
    frames.CommandFrame: st.builds(
        frames.CommandFrame, bounded, bounded, bounded, command, st.none() | target
    ),
    frames.CommandResult: st.builds(frames.CommandResult, bounded, bounded, bounded, result),
    frames.ControlRequest: st.builds(frames.ControlRequest, bounded, action),
    frames.ControlResponse: st.builds(
        frames.ControlResponse, bounded, st.booleans(), st.none() | bounded
    ),
    frames.ReceiptFrame: st.builds(frames.ReceiptFrame, bounded, receipt),
    frames.HealthRequest: st.builds(frames.HealthRequest, bounded),
    frames.HealthResponse: st.builds(frames.HealthResponse, bounded, health),
    frames.HealthFrame: st.builds(frames.HealthFrame, health),
    frames.LifecycleFrame: st.builds(frames.LifecycleFrame, lifecycle),
    frames.ErrorFrame: error,
}
"""A strategy for each type of frame."""
any_frame = st.one_of(*FRAMES.values())
