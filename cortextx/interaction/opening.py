"""The first line on a session socket decides what is spoken there (PURE; I5, I22, I28).

A v2 hello opens a stream; a v1 frame or a flat request is the one request of its
connection. Anything else is refused: with one line where that can be read by
whoever sent it, and then the connection is closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, Raw, Struct, UnsetType

from cortextx.core.jsontext import Decoder
from cortextx.errors import JsonError
from cortextx.interaction import data, flat, v1, v2
from cortextx.interaction.faults import Code, FrameFault, ShapeFault, content, too_long
from cortextx.interaction.v2 import Frame


@dataclass(frozen=True, slots=True)
class OpensStream:
    """A v2 stream begins with this hello, which offers our version."""

    frame: Frame
    hello: data.Hello


@dataclass(frozen=True, slots=True)
class OpensRequest:
    """The connection is for this one request, in frames or flat."""

    request: v1.Request | flat.FlatRequest


@dataclass(frozen=True, slots=True)
class Refused:
    """Send `answer` (empty: nothing), then close."""

    answer: bytes
    reason: str


Opening = OpensStream | OpensRequest | Refused


class _Outline(Struct):
    abi: Raw | UnsetType = UNSET
    op: Raw | UnsetType = UNSET


_outline = Decoder(_Outline)
_text = Decoder(str)


def decide(line: bytes, form: v1.Form = "both") -> Opening:
    """Judge the first line, newline included; `form` is that of v1 answers (I6)."""
    try:
        text = content(line)
        outline = _outline.decode(text)
        abi = None if outline.abi is UNSET else _text.decode(outline.abi)
    except (JsonError, FrameFault) as fault:
        return _refused_flat(line, fault)
    try:
        if abi == v2.ABI:
            return _stream(v2.parse(text, "master"))
        if abi == v1.ABI:
            return OpensRequest(v1.decode_request(line))
        if abi is None and outline.op is not UNSET:
            return OpensRequest(flat.parse(text))
    except ShapeFault as fault:
        return _refused_stream(fault)
    except FrameFault as fault:
        return Refused(v1.answer_fault(fault, form), str(fault))
    return _refused_flat(line, FrameFault("$", "a hello, a v1 request or a flat request"))


def refuse_too_long(begin: bytes) -> Refused:
    """Refuse a first line beyond the bound, of which `begin` came first."""
    return _refused_flat(begin, too_long())


def _stream(frame: Frame) -> Opening:
    if frame.kind != "hello":
        return _refused_stream(ShapeFault("$.event.kind", "hello", frame.correlation))
    hello = data.read(frame)
    assert isinstance(hello, data.Hello)
    if data.selected_version(hello) is None:
        error = data.Error.of(Code.UNSUPPORTED_VERSION, f"this slave speaks {v2.ABI}")
        return Refused(v2.encode(data.build(error, frame.correlation)), "no common version")
    return OpensStream(frame, hello)


def _refused_stream(fault: ShapeFault) -> Refused:
    """Nothing is attached yet: only the connection can be answered."""
    ids = fault.correlation
    error = data.fault_frame(ShapeFault(fault.field, fault.expected, ids and ids.prefix(1)))
    return Refused(b"" if error is None else v2.encode(error), str(fault))


def _refused_flat(line: bytes, fault: JsonError | FrameFault) -> Refused:
    """I28: whoever begins with a brace may read a flat line, others read nothing."""
    if not line.lstrip(b" \t\r").startswith(b"{"):
        return Refused(b"", str(fault))
    if isinstance(fault, JsonError):
        fault = FrameFault(fault.field, fault.expected)
    return Refused(v1.answer_fault(fault), str(fault))
