"""What an `exec` child and its runtime say to each other, a line each (PURE).

The child reads one envelope, then the answers to what it asks; it writes flat event
lines (interaction-abi-v1, "flat lines") and the v1 forms of what these cannot say
(`tool`, `command`). A child's line needs neither `run` nor `request_id`; where one
stands there, it must be the run's own. What a line holds is mended to what can be
sent (I40); a line that does not begin with `{` is no line of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Raw, Struct

from cortextx.core import exchange
from cortextx.core.exchange import Command, Delta, Message, Result, ToolCall
from cortextx.core.jsontext import MAX_DEPTH, Decoder, encode
from cortextx.core.mending import mend_value
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError
from cortextx.interfaces.sessions import RunOutcome, RunRequest

MAX_COMMAND_BYTES = 96 * 1024
"""The longest command, as JSON, that fits a frame in every form (I33, I40)."""
MAX_ROLE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Began:
    """The child works, with this model where it says one."""

    model: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The child asks its origin, and waits for an answer to `id`."""

    id: str
    command: Command
    effect_id: str | None = None


@dataclass(frozen=True, slots=True)
class Erred:
    """The child tells of an error; the last one that is not recoverable counts."""

    message: str
    recoverable: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The child is done, with this outcome."""

    outcome: RunOutcome


Said = Began | Delta | Message | ToolCall | Asked | Erred | Finished


class _Line(Struct, frozen=True, tag_field="type", kw_only=True):
    run: str | None = None
    request_id: str | None = None

    def said(self, request: RunRequest) -> Said:
        raise NotImplementedError


class _Start(_Line, frozen=True, tag="start", kw_only=True):
    model: str | None = None

    def said(self, request: RunRequest) -> Said:
        return Began(self.model)


class _Delta(_Line, frozen=True, tag="delta", kw_only=True):
    text: str

    def said(self, request: RunRequest) -> Said:
        return Delta(request.request_id, request.run, self.text)


class _Part(Struct, frozen=True):
    text: str = ""


class _Message(_Line, frozen=True, tag="message", kw_only=True):
    role: str = "assistant"
    content: str | list[_Part] | None = None
    text: str | None = None

    def said(self, request: RunRequest) -> Said:
        content = self.text if self.content is None else self.content
        if content is None:
            raise JsonShapeError("$.content", "a value (the member is required)")
        if not 0 < len(self.role.encode()) <= MAX_ROLE_BYTES:
            raise JsonShapeError("$.role", f"1 to {MAX_ROLE_BYTES} bytes")
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message(request.request_id, request.run, self.role, text)


class _ToolCall(_Line, frozen=True, tag="tool_call", kw_only=True):
    name: str
    id: str | None = None
    tool_call_id: str | None = None

    def said(self, request: RunRequest) -> Said:
        call_id = self.tool_call_id if self.id is None else self.id
        return _tool(request, call_id, self.name, "requested")


class _Tool(_Line, frozen=True, tag="tool", kw_only=True):
    call_id: str
    name: str
    state: str

    def said(self, request: RunRequest) -> Said:
        return _tool(request, self.call_id, self.name, self.state)


class _Approval(_Line, frozen=True, tag="approval_request", kw_only=True):
    id: str
    name: str
    args: Raw = Raw(b"null")

    def said(self, request: RunRequest) -> Said:
        return _asked(self.id, exchange.RequestApproval(self.name, self.args), None)


class _Command(_Line, frozen=True, tag="command", kw_only=True):
    command_id: str
    command: Command
    effect_id: str | None = None

    def said(self, request: RunRequest) -> Said:
        effect_id = self.effect_id
        if effect_id is None and isinstance(self.command, exchange.Invoke):
            effect_id = f"{request.run[:60]}-{self.command_id[:60]}"
        return _asked(self.command_id, self.command, effect_id)


class _Error(_Line, frozen=True, tag="error", kw_only=True):
    code: str | None = None
    message: str | None = None
    recoverable: bool = False

    def said(self, request: RunRequest) -> Said:
        words = [word for word in (self.code, self.message) if word]
        return Erred(": ".join(words) or "it told of an error", self.recoverable)


class _Done(_Line, frozen=True, tag="done", kw_only=True):
    status: str = "completed"
    message: str | None = None

    def said(self, request: RunRequest) -> Said:
        match self.status:
            case "completed" | "done" | "ok" | "success":
                return Finished(RunOutcome("completed"))
            case "cancelled" | "interrupted":
                return Finished(RunOutcome(self.status, self.message or "the child gave up"))
            case other:
                return Finished(
                    RunOutcome("error", self.message or f"the child says {other!r:.80}")
                )


class _Typed(Struct, frozen=True):
    type: str


_lines: Sequence[type[_Line]] = (
    _Start, _Delta, _Message, _ToolCall, _Tool, _Approval, _Command, _Error, _Done,
)  # fmt: skip
_TYPES = frozenset(str(line.__struct_config__.tag) for line in _lines)
_OFTEN = (b'{"type":"delta"', b'{"type":"message"')
_often: Decoder[_Line] = Decoder(_Delta | _Message)
_typed: Decoder[_Typed] = Decoder(_Typed)
_line: Decoder[_Line] = Decoder(
    _Start | _Delta | _Message | _ToolCall | _Tool | _Approval | _Command | _Error | _Done
)


def read_line(line: bytes, request: RunRequest) -> tuple[Said | None, bool]:
    """What the child says, and whether it had to be mended (I40); None where skipped.

    Skipped are types that are not known, and other text than objects. Raises JsonError
    for what begins as an object and is none, or not one of this run.
    """
    if not line.lstrip().startswith(b"{"):
        return None, False
    if line.startswith(_OFTEN) and _is_plain(line):
        # Most lines: flat, without what may need mending, and parsed once then.
        try:
            often = _often.decode(line)
        except JsonError:
            pass  # told in full below
        else:
            return _of_run(often, request).said(request), False
    raw, mended = mend_value(line)
    if bytes(raw)[:1] == b'"':
        raise JsonSyntaxError("$", "one JSON object that nests no deeper than 100 levels")
    if _typed.decode(raw, utf8_checked=True).type not in _TYPES:
        return None, mended
    read = _of_run(_line.decode(raw, utf8_checked=True), request)
    return read.said(request), mended


def _is_plain(line: bytes) -> bool:
    """Whether it has nothing that could need mending, but for its UTF-8."""
    return line.count(b"{") == 1 and line.count(b"[") < MAX_DEPTH and b"\\u" not in line


def _of_run(line: _Line, request: RunRequest) -> _Line:
    for name, own in (("run", request.run), ("request_id", request.request_id)):
        if getattr(line, name) not in (None, own):
            raise JsonShapeError(f"$.{name}", "the run's own")
    return line


def envelope(request: RunRequest) -> bytes:
    """The first line that a child reads, with its newline."""
    members: dict[str, Any] = {
        "type": "input",
        "run": request.run,
        "request_id": request.request_id,
        "agent": request.key.agent,
        "scope": request.key.scope,
        "session": request.key.session,
        "owner": request.owner,
        "cwd": request.cwd,
        "workspace": request.workspace,
        "interrupted": request.interrupted,
        "input": request.text,
    }
    if request.event is not None:
        members["event"] = request.event
    members["history"] = [
        {"role": message.role, "content": message.text} for message in request.history
    ]
    return encode(members) + b"\n"


def answer(id: str, result: Result) -> bytes:
    """The line that answers what the child asked, with its newline."""
    return encode({"type": "command_result", "command_id": id, "result": result}) + b"\n"


def _tool(request: RunRequest, call_id: str | None, name: str, state: str) -> ToolCall:
    values = {"id": call_id or "", "name": name, "state": state}
    for field, value in values.items():
        if not exchange.is_identifier(value):
            raise JsonShapeError(f"$.{field}", "1 to 128 bytes without control characters")
    return ToolCall(request.request_id, request.run, values["id"], name, state)


def _asked(id: str, command: Command, effect_id: str | None) -> Asked:
    for field, value in (("id", id), ("effect_id", effect_id)):
        if value is not None and not exchange.is_identifier(value):
            raise JsonShapeError(f"$.{field}", "1 to 128 bytes without control characters")
    if len(encode(command)) > MAX_COMMAND_BYTES:
        raise JsonShapeError("$.command", f"a command of at most {MAX_COMMAND_BYTES} bytes")
    return Asked(id, command, effect_id)
