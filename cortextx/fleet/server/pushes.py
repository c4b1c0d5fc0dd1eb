"""What is checked of a logs.push or metrics.push, in the order of F9 (PURE; §4.4, §4.5).

A good push costs one typed decode and three passes of C speed over its entries:
this is where most of a server's JSON time goes. Only a push that fails is looked
at again, to tell its code and the seq that it starts with (F33).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from cortextx.core.jsontext import MAX_DEPTH, Decoder, check_depth
from cortextx.errors import JsonError, JsonShapeError, RemoteProtocolError
from cortextx.fleet.contract import (
    MAX_ENTRIES,
    MAX_SAMPLES,
    Code,
    LogEntry,
    LogSource,
    MetricsParams,
    Natural,
    PushParams,
)
from cortextx.fleet.jsonrpc import decode_params

KNOWN_SOURCES = 4096
"""How many source names are remembered as well-formed."""
KNOWN_SOURCE_CHARS = 256
"""Longer names are checked each time."""
NUL_ESCAPE = b"\\u0000"
_ESCAPE = re.compile(rb"\\(?:u0000|.)", re.DOTALL)


class PushFault(RemoteProtocolError):
    """A push that is refused whole: the answer's code and data, and the seq it
    starts with where that can be read (F9, F33)."""

    def __init__(self, code: Code, data: dict[str, Any], first: int | None = None) -> None:
        super().__init__(code.title)
        self.code = code
        self.data = data
        self.first = first


_push = Decoder(PushParams)
_members = Decoder(dict[str, Raw])
_array = Decoder(list[Raw])
_metadata = Decoder(list[dict[str, Any] | None])
_METADATA = f"null, or an object of at most {MAX_DEPTH} levels with numbers in range"
_natural: Decoder[int] = Decoder(Natural)


class SourceNames:
    """Says whether source names are well-formed (F32), and remembers those that are.

    One for each session: few names come again and again.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def check(self, sources: set[str]) -> None:
        """Raise JsonShapeError if one of the sources is none."""
        if sources <= self._known:
            return
        if len(self._known) > KNOWN_SOURCES:
            self._known.clear()
        for source in sources - self._known:
            try:
                msgspec.convert(source, LogSource)
            except msgspec.ValidationError:
                raise JsonShapeError(
                    "$.entries[...].source",
                    "journald, file:…, docker:… or custom:… without control characters",
                ) from None
            if len(source) < KNOWN_SOURCE_CHARS:
                self._known.add(source)


def decode_push(params: Raw, payload: bytes, sources: SourceNames) -> PushParams:
    """Read the params of a logs.push, a part of `payload`; raises PushFault.

    NUL in text comes out as U+FFFD (F16): here, so that every store gets the same.
    """
    try:
        push = _push.decode(params, utf8_checked=True)
        _check_seqs(push)
        sources.check({entry.source for entry in push.entries})
        _check_metadata(push.entries)
    except JsonError as error:
        raise _fault(params, "entries", MAX_ENTRIES, error) from None
    # Most payloads have no backslash at all, and one byte is found much faster.
    if b"\\" in payload and NUL_ESCAPE in payload:
        entries = [_entry_without_nul(entry) for entry in push.entries]
        return PushParams(seq_start=push.seq_start, entries=entries)
    return push


def decode_metrics(params: Raw) -> MetricsParams:
    """Read the params of a metrics.push; raises PushFault. NUL comes out as U+FFFD (F16)."""
    try:
        return decode_params(without_nul(params), MetricsParams)
    except JsonError as error:
        raise _fault(params, "samples", MAX_SAMPLES, error) from None


def without_nul(raw: Raw) -> Raw:
    """JSON text with each escaped NUL made U+FFFD (F16)."""
    data = bytes(raw)
    if NUL_ESCAPE not in data:
        return raw
    return Raw(_ESCAPE.sub(_replaced, data))


def _replaced(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[0] == NUL_ESCAPE else escape[0]


def _check_seqs(push: PushParams) -> None:
    first, count = push.seq_start, len(push.entries)
    if [entry.seq for entry in push.entries] == list(range(first, first + count)):
        return
    at = next(i for i, entry in enumerate(push.entries) if entry.seq != first + i)
    raise JsonShapeError(f"$.entries[{at}].seq", "seq_start plus the entry's index")


def _check_metadata(entries: Iterable[LogEntry]) -> None:
    """Check that metadata are objects or null, which decode again when they are read."""
    texts = [meta for entry in entries if len(meta := entry.metadata)]
    if not texts:
        return
    try:
        # One decode for all costs a third of one each.
        joined = b"[" + b",".join(texts) + b"]"
        _metadata.decode(joined, utf8_checked=True)
        # A text that nests too deep has that many brackets beside everyone's first.
        objects = len(texts) - joined.count(b"null")
        if joined.count(b"{") + joined.count(b"[") >= objects + MAX_DEPTH:
            for text in texts:
                check_depth(bytes(text))
    except JsonError:
        raise JsonShapeError("$.entries[...].metadata", _METADATA) from None


def _entry_without_nul(entry: LogEntry) -> LogEntry:
    changed: dict[str, Any] = {}
    for name in ("message", "facility", "app_name", "process_id"):
        text = getattr(entry, name)
        if text is not None and "\x00" in text:
            changed[name] = text.replace("\x00", "\ufffd")
    if len(entry.metadata):
        changed["metadata"] = without_nul(entry.metadata)
    return replace(entry, **changed) if changed else entry


def _fault(params: Raw, list_name: str, cap: int, error: JsonError) -> PushFault:
    """Tell the code of a faulty push: too many items come before any other fault (F9)."""
    data = {"field": error.field, "expected": error.expected}
    members = _read(_members, params) or {}
    items = _read(_array, members.get(list_name)) or []
    firsts = [_read(_natural, members.get("seq_start"))]
    if items:
        entry = _read(_members, items[0]) or {}
        firsts.append(_read(_natural, entry.get("seq")))
    first = min((seq for seq in firsts if seq is not None), default=None)
    if len(items) > cap:
        data = {"field": f"$.{list_name}", "expected": f"at most {cap} items"}
        return PushFault(Code.PAYLOAD_TOO_LARGE, data, first)
    return PushFault(Code.INVALID_PARAMS, data, first)


def _read(decoder: Decoder[Any], raw: Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return decoder.decode(raw, utf8_checked=True)
    except JsonError:
        return None
