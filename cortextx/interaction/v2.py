"""Frames of `cortexfs.interaction/v2`: one JSON value a line, both ways (PURE).

`decode` and `encode` stand for the whole envelope: ids, sides, durability, modes
and capabilities (I1–I4). The member `data` stays the sender's text here, checked
as JSON only; `interaction.data` reads and writes it for each kind (I20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec
from msgspec import Raw, Struct

from cortextx.core.exchange import Origin, is_identifier
from cortextx.core.jsontext import Decoder, check_depth, check_object, check_utf8
from cortextx.core.jsontext import encode as encode_json
from cortextx.core.mending import mend_value
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonError, JsonSyntaxError, LocalProtocolError
from cortextx.interaction.correlation import (
    CHAIN,
    COMMAND,
    DEPTHS,
    Correlation,
    Kind,
    longest_prefix,
)
from cortextx.interaction.faults import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    FramingFault,
    IllegalFrame,
    ShapeFault,
    content,
)
from cortextx.interfaces.sessions import Mode

Abi = Literal["cortexfs.interaction/v2"]
ABI: Abi = "cortexfs.interaction/v2"

Side = Literal["master", "slave"]
Capability = Literal["input", "observe", "status", "cancel", "command_result", "invoke", "replay"]

_MASTER = ("hello", "attach", "detach", "ack", "input", "status", "cancel", "command_result")
_SLAVE = ("welcome", "attached", "gap", "status", "accepted", "started", "event", "command", "done")
SENDS: Mapping[Side, frozenset[str]] = {
    "master": frozenset(_MASTER),
    "slave": frozenset((*_SLAVE, "error")),
}
"""Who may send what; only status comes from either side (I3)."""

ALWAYS_DURABLE: frozenset[Kind] = frozenset({"accepted", "started", "done"})
MAY_BE_DURABLE: frozenset[Kind] = frozenset({"event", "status", "error"})
"""Durable or not, and only from the slave; kinds in neither set never are."""

WITH_CAPABILITIES: frozenset[Kind] = frozenset({"hello", "welcome", "attach", "attached"})
WITH_SESSION: frozenset[Kind] = frozenset({"attach", "attached"})
"""The kinds that carry `session` and `mode`, and no others do."""

CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))
ACTING: frozenset[Capability] = frozenset({"input", "cancel", "command_result", "invoke"})
"""What an observer may not have (I4)."""

MAX_SEQ = 2**64 - 1


class Body(Struct, frozen=True, kw_only=True):
    """The member `event` of a frame."""

    side: Side
    kind: Kind
    capabilities: tuple[Capability, ...] = ()
    mode: Mode | None = None
    session: str | None = None
    origin: Origin | None = None
    durable: bool
    data: Raw


class Frame(Struct, frozen=True, kw_only=True):
    """One frame; whatever its ABI forbids raises IllegalFrame when it is built.

    Members that are not declared are ignored, absent and null are the same (I1).
    """

    abi: Abi
    correlation: Correlation
    session_seq: int | None = None
    event: Body

    @property
    def side(self) -> Side:
        """Who sends it."""
        return self.event.side

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self.event.kind

    def __post_init__(self) -> None:
        body = self.event
        if body.kind not in SENDS[body.side]:
            raise IllegalFrame(f"expected no {body.kind} from the {body.side}")
        depth = self.correlation.depth
        if depth not in DEPTHS[body.kind]:
            ids = " or ".join(CHAIN[at - 1] for at in sorted(DEPTHS[body.kind]))
            raise IllegalFrame(f"expected the ids of {body.kind} up to {ids}")
        _check_durability(body, self.session_seq)
        _check_members(body)
        if body.capabilities:
            _check_capabilities(body)


def _check_durability(body: Body, seq: int | None) -> None:
    kind = body.kind
    if seq is not None and not 0 < seq <= MAX_SEQ:
        raise IllegalFrame(f"expected session_seq from 1 to {MAX_SEQ}")
    if kind == "ack":
        if seq is None or body.durable:
            raise IllegalFrame("expected an ack with session_seq that is not durable")
    elif body.durable != (seq is not None):
        raise IllegalFrame("expected session_seq exactly where the frame is durable")
    elif kind in ALWAYS_DURABLE:
        if not body.durable:
            raise IllegalFrame(f"expected {kind} to be durable")
    elif body.durable and (kind not in MAY_BE_DURABLE or body.side != "slave"):
        raise IllegalFrame(f"expected {kind} of the {body.side} not to be durable")


def _check_members(body: Body) -> None:
    kind = body.kind
    if (body.session is not None) != (kind in WITH_SESSION):
        raise IllegalFrame("expected session exactly on attach and attached")
    if (body.mode is not None) != (kind in WITH_SESSION):
        raise IllegalFrame("expected mode exactly on attach and attached")
    if (body.origin is not None) != (kind == "input"):
        raise IllegalFrame("expected origin exactly on input")
    if bool(body.capabilities) != (kind in WITH_CAPABILITIES):
        raise IllegalFrame("expected capabilities exactly on hello, welcome, attach and attached")
    if body.session is not None and not is_identifier(body.session):
        raise IllegalFrame("expected a session of 1 to 128 bytes without control characters")
    if body.origin is not None and not body.origin.strict:
        raise IllegalFrame("expected origin's parts of 1 to 128 bytes without control characters")


def _check_capabilities(body: Body) -> None:
    given = frozenset(body.capabilities)
    if len(given) != len(body.capabilities):
        raise IllegalFrame("expected each capability once")
    if body.mode == "observe" and ("observe" not in given or given & ACTING):
        raise IllegalFrame("expected observe, and nothing that acts, in mode observe")
    if body.mode == "interact" and "input" not in given:
        raise IllegalFrame("expected input in mode interact")


class _Outline(Struct):
    abi: Raw = Raw()
    correlation: Raw = Raw()
    event: Raw = Raw()


class _Ids(Struct):
    connection_id: Raw = Raw()
    attachment_id: Raw = Raw()
    request_id: Raw = Raw()
    run_id: Raw = Raw()
    command_id: Raw = Raw()


class _Sort(Struct):
    kind: Raw = Raw()


_frame: TolerantDecoder[Frame] = TolerantDecoder(Frame)
_outline = Decoder(_Outline)
_ids = Decoder(_Ids)
_sort = Decoder(_Sort)
_text = Decoder(str)


def decode(line: bytes, sender: Side | None = None) -> Frame:
    """Read one line, newline included; raises FramingFault or ShapeFault.

    With `sender`, a frame of the other side is a ShapeFault.
    """
    return parse(content(line), sender)


def parse(text: bytes, sender: Side | None = None) -> Frame:
    """Read what a `LineFramer` cut out: a line without its newline, not too long."""
    try:
        frame = _frame.decode(text)
    except JsonError as fault:
        raise _refusal(text, fault) from None
    try:
        check_depth(text, MAX_DEPTH)
        check_object(frame.event.data, MAX_DEPTH)
    except JsonError as fault:
        field = fault.field.replace("$", "$.event.data", 1)
        raise ShapeFault(field, fault.expected, frame.correlation) from None
    if sender is not None and frame.event.side != sender:
        raise ShapeFault("$.event.side", sender, frame.correlation)
    return frame


def encode(frame: Frame) -> bytes:
    """The line of a frame, nulls written out; raises LocalProtocolError if it is too long."""
    text = encode_json(frame)
    if b"\n" in text:  # between the tokens of a kept text
        text = msgspec.json.format(text, indent=-1)
    if len(text) >= MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {len(text) + 1} bytes is too long")
    return text + b"\n"


def tail(frame: Frame) -> bytes:
    """The line of a frame without the part that says to which attachment.

    It is the same for all attachments that a fact is delivered to.
    """
    line = encode(frame)
    return line[len(_head(frame.correlation.connection_id, frame.correlation.attachment_id)) :]


def addressed(tail: bytes, connection_id: str, attachment_id: str | None) -> bytes:
    """The line for one attachment: `encode` of the same frame with these two ids."""
    return _head(connection_id, attachment_id) + tail


def _head(connection_id: str, attachment_id: str | None) -> bytes:
    ids = encode_json({"connection_id": connection_id, "attachment_id": attachment_id})
    return b'{"abi":"%s","correlation":%s' % (ABI.encode(), ids[:-1])


def _refusal(text: bytes, fault: JsonError) -> FramingFault | ShapeFault:
    """Say how bad it is, and whom it concerns (I23).

    Text that is JSON by its grammar, but holds a lone surrogate or a number out of
    range, is readable: one user's words are no reason to end a whole connection.
    """
    try:
        outline = _read_outline(text)
    except JsonError as worse:
        return FramingFault(worse.field, worse.expected)
    return ShapeFault(fault.field, fault.expected, _attributable(outline))


def _read_outline(text: bytes) -> _Outline:
    try:
        return _outline.decode(text)
    except JsonSyntaxError:
        check_utf8(text)
        return _outline.decode(mend_value(text)[0])


def _attributable(outline: _Outline) -> Correlation | None:
    """The longest safe prefix: valid ids, no more than the kind has, of our ABI."""
    if _as_text(outline.abi) != ABI:
        return None
    try:
        ids = _ids.decode(outline.correlation)
    except JsonError:
        return None
    members = {name: _as_text(getattr(ids, name)) for name in CHAIN}
    return longest_prefix(members, _depth(outline.event))


def _depth(event: Raw) -> int:
    try:
        sort = _sort.decode(event)
    except JsonError:
        return COMMAND
    kind = _as_text(sort.kind)
    return max((d for known, depths in DEPTHS.items() if known == kind for d in depths), default=5)


def _as_text(raw: Raw) -> str | None:
    try:
        return _text.decode(raw)
    except JsonError:
        return None
