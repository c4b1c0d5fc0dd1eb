"""Lines of events.jsonl: a durable frame, when it happened, and what stays here (PURE; I36).

A line is the slave's v2 frame without connection and attachment, plus `ts` and, where
there is something that masters must not see, `x`. It is written in one form, so that
most lines become frames again by cutting (`tail_of`); any other form is read too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from cortextx.core.exchange import Origin
from cortextx.core.jsontext import Decoder, encode
from cortextx.core.mending import mend_value
from cortextx.errors import JsonError, LocalProtocolError
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation, Kind
from cortextx.interaction.data import Data, Opaque
from cortextx.interaction.faults import MAX_FRAME_BYTES

_ANYONE = "."
_HEAD = b'{"abi":"%s","correlation":{' % v2.ABI.encode()
_OURS = _HEAD + b'"request_id":'
_TS = b',"ts":"'
_TS_BYTES = len(_TS) + len("2026-01-01T00:00:00.000000Z") + len('"}')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_FACT_BYTES = MAX_FRAME_BYTES - 640
"""Bytes of a fact in its line, so that it is a frame for any attachment, whatever its ids."""


class Beside(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The member `x`: what belongs to a fact and is never sent.

    `claim` is the hex form of the request's claim; `request_id` and `run` are a
    cancel's own. `carried` holds whole lines that retention took from their places
    and that still claim something (I38).
    """

    claim: str | None = None
    uid: int | None = None
    origin: Origin | None = None
    cwd: str | None = None
    workspace: str | None = None
    request_id: str | None = None
    run: str | None = None
    mended: bool = False
    carried: list[Raw] = []


class Ids(Struct, frozen=True):
    """The part of a correlation that belongs to the session."""

    request_id: str | None = None
    run_id: str | None = None
    command_id: str | None = None


class _Event(Struct, frozen=True):
    kind: str
    data: Raw


class Line(Struct, frozen=True):
    """A line as far as the slave reads it; `data_of` tells the rest."""

    correlation: Ids
    session_seq: int
    event: _Event
    ts: str = ""
    x: Beside | None = None

    @property
    def kind(self) -> str:
        """The frame's kind."""
        return self.event.kind


class _Parts(Struct):
    correlation: Ids
    session_seq: int
    event: Raw


_lines = Decoder(Line)
_parts = Decoder(_Parts)


def encode_line(
    content: Data,
    ids: Ids,
    *,
    seq: int,
    wall: int,
    beside: Beside | None = None,
) -> bytes:
    """The line of a fact, without a newline; `wall` is µs since 1970.

    Raises LocalProtocolError for a fact that no frame can say.
    """
    kind = data.KINDS[type(content)][1]
    text = encode(content)
    if b"\n" in text:  # between the tokens of a kept text
        text = msgspec.json.format(text, indent=-1)
    before, after = _around(kind, ids)
    fact = b"%s%d%s%s}" % (before, seq, after, text)
    if len(fact) > MAX_FACT_BYTES:
        raise LocalProtocolError(f"a fact of {len(fact)} bytes is too long")
    if beside is None:
        return b'%s%s%s"}' % (fact, _TS, timestamp(wall))
    return b'%s%s%s","x":%s}' % (fact, _TS, timestamp(wall), encode(beside))


@lru_cache(maxsize=512)
def _around(kind: Kind, ids: Ids) -> tuple[bytes, bytes]:
    """What stands before and behind the seq of such facts; checked as of any frame."""
    correlation = Correlation(_ANYONE, _ANYONE, ids.request_id, ids.run_id, ids.command_id)
    body = v2.Body(side="slave", kind=kind, durable=True, data=Raw(b"{}"))
    frame = v2.Frame(abi=v2.ABI, correlation=correlation, session_seq=1, event=body)
    before, after = v2.tail(frame).split(b'"session_seq":1,', 1)
    assert after.endswith(b"{}}}\n")
    return _HEAD + before[1:] + b'"session_seq":', b"," + after[: -len(b"{}}}\n")]


def read_line(line: bytes) -> Line:
    """Read a line; raises JsonError if it is none of ours.

    Lone surrogates, which old writers left, are read as U+FFFD (B35).
    """
    try:
        return _lines.decode(line)
    except JsonError:
        return _lines.decode(mend_value(line)[0])


def tail_of(line: bytes) -> bytes:
    """What `v2.addressed` makes a frame of for any attachment: the fact without `ts` and `x`."""
    cut = len(line) - _TS_BYTES
    if line.startswith(_OURS) and line.startswith(_TS, cut) and not _is_odd(line):
        return b",%s}\n" % line[len(_HEAD) : cut]
    parts = _parts.decode(mend_value(line)[0])
    ids = encode(parts.correlation)
    event = bytes(parts.event)
    if b"\n" in event:
        event = msgspec.json.format(event, indent=-1)
    return b',%s,"session_seq":%d,"event":%s}\n' % (ids[1:], parts.session_seq, event)


def _is_odd(line: bytes) -> bool:
    """Whether there may be an `x`, or an escaped surrogate, which we never write."""
    # From behind, for that search is the faster one, and a byte alone is faster still.
    if line.rfind(b',"x":') >= 0:
        return True
    return b"\\" in line and (b"\\ud" in line or b"\\uD" in line)


def data_of(line: bytes) -> Data | Opaque:
    """The typed content of a line; raises FrameFault for an odd one."""
    return data.read(v2.parse(v2.addressed(tail_of(line), _ANYONE, _ANYONE)[:-1]))


def timestamp(wall: int) -> bytes:
    """A time in µs since 1970 as RFC 3339, always as long."""
    second, micros = divmod(wall, 1_000_000)
    return b"%s.%06dZ" % (_second(second), micros)


@lru_cache(maxsize=8)
def _second(second: int) -> bytes:
    when = _EPOCH + timedelta(seconds=second)
    return when.strftime("%Y-%m-%dT%H:%M:%S").encode()
