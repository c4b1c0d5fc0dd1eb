"""The flat event lines of deployed peers, as the events of `core.exchange` (PURE).

A flat line is one JSON object as `{"type":"delta","run":…,"text":…}`
(interaction-abi-v1, "flat lines"; I6). Types that are not listed there are
skipped by a reader, and members that a type does not have are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from cortextx.core.exchange import (
    CommandIssued,
    Delta,
    Event,
    Failure,
    Message,
    RequestApproval,
    RunDone,
    RunStarted,
    SessionStatus,
    ToolCall,
)
from cortextx.core.jsontext import Decoder, Text, check_value, encode
from cortextx.errors import JsonShapeError


class _Line(Struct, frozen=True, tag_field="type", kw_only=True):
    """What every flat line may have: the id of the request, checked where present."""

    request_id: str | None = None


class _Start(_Line, frozen=True, tag="start", kw_only=True):
    run: str
    model: str | None = None

    def event(self, request_id: str) -> Event:
        return RunStarted(request_id, self.run, self.model)


class _Delta(_Line, frozen=True, tag="delta", kw_only=True):
    run: str
    text: str

    def event(self, request_id: str) -> Event:
        return Delta(request_id, self.run, self.text)


class _Part(Struct, frozen=True):
    """A part of a message; what is no text counts as empty."""

    text: str = ""


class _Message(_Line, frozen=True, tag="message", kw_only=True):
    run: str
    role: str
    content: str | list[_Part]

    def event(self, request_id: str) -> Event:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message(request_id, self.run, self.role, text)


class _ToolCall(_Line, frozen=True, tag="tool_call", kw_only=True):
    run: str
    name: str
    id: str | None = None
    tool_call_id: str | None = None

    def event(self, request_id: str) -> Event:
        call_id = self.tool_call_id if self.id is None else self.id
        if call_id is None:
            raise JsonShapeError("$.id", "a value (the member is required)")
        return ToolCall(request_id, self.run, call_id, self.name, "requested")


class _Status(_Line, frozen=True, tag="status", kw_only=True):
    session: str
    status: str
    phase: str | None = None
    step: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None

    def event(self, request_id: str) -> Event:
        return SessionStatus(request_id, self.session, self.status, self.phase, self.step or 0)


class _Approval(_Line, frozen=True, tag="approval_request", kw_only=True):
    run: str
    id: str
    name: str
    args: Raw = Raw(b"null")

    def event(self, request_id: str) -> Event:
        command = RequestApproval(self.name, self.args)
        return CommandIssued(request_id, self.run, self.id, command)


class _Error(_Line, frozen=True, tag="error", kw_only=True):
    run: str | None = None
    code: str | None = None
    message: str | None = None
    recoverable: bool | None = None

    def event(self, request_id: str) -> Event:
        return Failure(
            request_id,
            run=self.run,
            code=self.code or "EIO",
            message=self.message or "",
            retryable=bool(self.recoverable),
        )


class _Done(_Line, frozen=True, tag="done", kw_only=True):
    run: str
    status: str

    def event(self, request_id: str) -> Event:
        return RunDone(request_id, self.run, self.status)


class _Typed(Struct, frozen=True):
    """Just enough of a line to tell whether it is to be read at all."""

    type: str


FLAT_TYPES = frozenset(
    {"start", "delta", "message", "tool_call", "status", "approval_request", "error", "done"}
)
"""The types that stand for an event; a reader skips any other."""

_typed: Decoder[_Typed] = Decoder(_Typed)
_flat: Decoder[_Start | _Delta | _Message | _ToolCall | _Status | _Approval | _Error | _Done] = (
    Decoder(_Start | _Delta | _Message | _ToolCall | _Status | _Approval | _Error | _Done)
)


def decode_flat(line: Text, request_id: str) -> Event | None:
    """Read a flat line as the event it stands for, in answer to `request_id`.

    None for a type that is skipped. Raises JsonSyntaxError, and JsonShapeError for
    a member that is missing or mistyped, or for another request's id.
    """
    check_value(line)
    if _typed.decode(line, utf8_checked=True).type not in FLAT_TYPES:
        return None
    flat = _flat.decode(line, utf8_checked=True)
    if flat.request_id is not None and flat.request_id != request_id:
        raise JsonShapeError("$.request_id", "the id of the request that is answered")
    try:
        return flat.event(request_id)
    except ValueError as fault:  # from an event's own check; its words are ours
        raise JsonShapeError("$", str(fault).removeprefix("expected ")) from None


def flat_members(event: Event) -> dict[str, Any]:
    """The members of the flat line for an event, `type` first (I6).

    What flat readers know no line for (accepted, tool states beyond "requested",
    commands beyond approvals) keeps its v1 type, which they skip.
    """
    match event:
        case RunStarted(run=run, model=model):
            return {"type": "start", "run": run, "model": model}
        case Message(run=run, role=role, text=text):
            return {"type": "message", "run": run, "role": role, "content": text}
        case ToolCall(run=run, call_id=call_id, name=name, state="requested"):
            return {"type": "tool_call", "run": run, "tool_call_id": call_id, "name": name}
        case CommandIssued(run=run, command_id=id, command=RequestApproval(tool, arguments)):
            approval = {"type": "approval_request", "run": run, "id": id}
            return {**approval, "name": tool, "args": arguments}
        case Failure(run=run, code=code, message=message, retryable=retryable):
            failure = {"type": "error", "run": run, "code": code, "message": message}
            return {**failure, "recoverable": retryable}
        case _:
            members: dict[str, Any] = {"type": event.__struct_config__.tag}
            names = (name for name in event.__struct_fields__ if name != "request_id")
            return members | {name: getattr(event, name) for name in names}


def encode_flat(event: Event) -> bytes:
    """The flat line for an event, without its newline."""
    return encode(flat_members(event))
