"""What a session's log tells, line by line: conversation, state, times (session-files) (PURE).

This is what the derived files are made of. It reads the frames as I20 and I36 shape
them, and passes over what it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Raw

State = Literal["active", "idle", "done", "error"]
_ENDED: dict[str, State] = {"completed": "done", "cancelled": "idle"}


class _Correlation(msgspec.Struct, gc=False, frozen=True):
    run_id: str | None = None


class _Data(msgspec.Struct, gc=False, frozen=True):
    type: str | None = None
    role: str | None = None
    text: str | None = None
    part: int | None = None
    parts: int | None = None
    model: str | None = None
    status: str | None = None


class _Event(msgspec.Struct, gc=False, frozen=True):
    kind: str = ""
    data: _Data = _Data()


class _Origin(msgspec.Struct, gc=False, frozen=True):
    transport: str | None = None


class _Beside(msgspec.Struct, gc=False, frozen=True):
    cwd: str | None = None
    origin: _Origin | None = None
    carried: list[Raw] = []


class _Line(msgspec.Struct, gc=False, frozen=True):
    session_seq: int
    correlation: _Correlation = _Correlation()
    event: _Event = _Event()
    ts: str = ""
    x: _Beside | None = None


_line = msgspec.json.Decoder(_Line)


class Saved(msgspec.Struct, kw_only=True):
    """A story so far, as meta.json keeps it.

    `through_seq` is the last line that is told, `messages_bytes` the size of
    messages.jsonl by then. Times are RFC 3339, as the lines have them.
    """

    agent: str = ""
    scope: str = ""
    session: str = ""
    through_seq: int = 0
    messages: int = 0
    messages_bytes: int = 0
    created_at: str = ""
    updated_at: str = ""
    state: State = "idle"
    cwd: str | None = None
    model: str | None = None
    client: str | None = None


@dataclass(slots=True)
class Story:
    """Tells lines in order; `messages` are new ones, to be taken away."""

    saved: Saved = field(default_factory=Saved)
    messages: list[bytes] = field(default_factory=list)
    latest: str | None = None
    _parts: list[str] = field(default_factory=list)
    _before_parts: int = 0

    def tell(self, line: bytes) -> None:
        """Take the next line."""
        try:
            told = _line.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return  # proved by its journal, but of a shape that is not ours
        saved = self.saved
        if told.x is not None:
            for carried in told.x.carried:
                self._carried(carried)
            saved.cwd = told.x.cwd or saved.cwd
            if told.x.origin is not None:
                saved.client = told.x.origin.transport or saved.client
        saved.created_at = saved.created_at or told.ts
        saved.updated_at = told.ts or saved.updated_at
        data = told.event.data
        match told.event.kind:
            case "accepted":
                saved.state = "active"
            case "started":
                saved.model = data.model or saved.model
            case "done":
                saved.state = _ENDED.get(data.status or "", "error")
            case "event" if data.type == "message" and data.text is not None:
                self._message(told.session_seq, data.role or "assistant", data.text, data)
        saved.through_seq = told.session_seq

    def through(self) -> int:
        """The last line after which no message is in the middle of its parts."""
        return self._before_parts if self._parts else self.saved.through_seq

    def _carried(self, raw: Raw) -> None:
        try:
            told = _line.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return
        saved = self.saved
        if told.ts and (not saved.created_at or told.ts < saved.created_at):
            saved.created_at = told.ts
        if told.x is not None and saved.cwd is None:
            saved.cwd = told.x.cwd

    def _message(self, seq: int, role: str, text: str, data: _Data) -> None:
        if data.parts is not None and data.part is not None:
            if data.part == 1:
                self._parts = []
                self._before_parts = seq - 1
            self._parts.append(text)
            if data.part < data.parts:
                return
            text = "".join(self._parts)
            self._parts = []
        self.messages.append(msgspec.json.encode({"role": role, "content": text}))
        self.saved.messages += 1
        if role == "assistant":
            self.latest = text
