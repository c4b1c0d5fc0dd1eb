"""Rows of frames with a verdict, and whether our decoders agree (PURE).

A row is one JSON object: `id`, the raw line as `frame_b64` or `gen` (UTF-8 of
`prefix`, `repeat` times `count`, `suffix`; with `len` and `sha256` of the result),
and `verdict`: `ok`, `reject`, or `any` where the contract leaves it open.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta, Struct

from cortextx.core.jsontext import Decoder
from cortextx.errors import ConfigError, JsonError
from cortextx.interaction import v1, v2
from cortextx.interaction.faults import FrameFault

Abi = Literal["interaction-v1", "interaction-v2"]
Verdict = Literal["ok", "reject", "any"]

MAX_GENERATED_BYTES = 16 << 20
"""A row may not ask for more."""


class _Generated(Struct):
    prefix: str
    repeat: str
    count: Annotated[int, Meta(ge=0)]
    suffix: str
    len: int | None = None
    sha256: str | None = None


class _Row(Struct):
    id: str
    frame_b64: str | None = None
    gen: _Generated | None = None
    verdict: Verdict = "any"


@dataclass(frozen=True, slots=True)
class Row:
    """A line to be judged, and what is expected."""

    id: str
    line: bytes = field(repr=False)
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """What our decoder says; `reason` is empty where it accepts."""

    accepted: bool
    reason: str

    def agrees(self, verdict: Verdict) -> bool:
        """Whether that is what was expected."""
        return verdict == "any" or self.accepted == (verdict == "ok")


_rows = Decoder(_Row)
_DECODE: Mapping[Abi, Callable[[bytes], object]] = {
    "interaction-v1": v1.decode,
    "interaction-v2": v2.decode,
}


def read_row(text: bytes, where: str = "row") -> Row:
    """Read one row; raises ConfigError, which names `where`, if it is none."""
    try:
        row = _rows.decode(text)
    except JsonError as fault:
        raise ConfigError(where, fault.field, fault.expected) from None
    return Row(row.id, _line(row, where), row.verdict)


def judge(abi: Abi, line: bytes) -> Judgement:
    """Give a line to the decoder of an ABI."""
    try:
        _DECODE[abi](line)
    except FrameFault as fault:
        return Judgement(False, str(fault))
    return Judgement(True, "")


def _line(row: _Row, where: str) -> bytes:
    if row.gen is not None:
        return _generated(row.gen, where)
    if row.frame_b64 is None:
        raise ConfigError(where, "$", "frame_b64 or gen")
    try:
        return b64decode(row.frame_b64, validate=True)
    except ValueError:
        raise ConfigError(where, "$.frame_b64", "base64") from None


def _generated(gen: _Generated, where: str) -> bytes:
    if len(gen.repeat.encode()) * gen.count > MAX_GENERATED_BYTES:
        raise ConfigError(where, "$.gen", f"at most {MAX_GENERATED_BYTES} bytes")
    line = (gen.prefix + gen.repeat * gen.count + gen.suffix).encode()
    if gen.len is not None and gen.len != len(line):
        raise ConfigError(where, "$.gen.len", "the length of what the row generates")
    if gen.sha256 is not None and gen.sha256 != sha256(line).hexdigest():
        raise ConfigError(where, "$.gen.sha256", "the digest of what the row generates")
    return line
