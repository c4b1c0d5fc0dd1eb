"""The OpenAI-compatible chat completions API, as far as a run needs it (PURE).

`Talk` is a run's side of the conversation, `AnswerReader` takes a streamed answer
apart. An answer without a finish reason is broken, however cleanly its stream ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw, Struct

from cortextx.core.exchange import is_identifier
from cortextx.core.framing import LineFramer
from cortextx.core.jsontext import Decoder, encode
from cortextx.core.mending import mend_value
from cortextx.errors import FrameTooLong, JsonError, RemoteProtocolError
from cortextx.interfaces.sessions import RunRequest

INTERRUPTED = (
    "The run before this one was interrupted, and how far it came is not known. Tools that "
    "it called may have had effects that this conversation does not show. Find out what is "
    "the case before you rely on it, and do not just repeat a call."
)
"""What a model is told after a run that ended unproved (B26)."""

MAX_EVENT_BYTES = 1024 * 1024
"""The longest line of a stream."""
MAX_CALLS = 32
"""Tool calls in one answer."""
_DONE = b"[DONE]"
_SPOKEN = frozenset({"user", "assistant", "system"})


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model wants to run. `arguments` is JSON, mended where need be."""

    id: str
    name: str
    arguments: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `finish` is the model's reason to end it."""

    text: str
    calls: Sequence[Call]
    finish: str

    @property
    def is_cut(self) -> bool:
        """Whether a limit or a filter ended it, and not the model."""
        return self.finish in ("length", "content_filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool that the model may call: what it is for, and its parameters' JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Talk:
    """What the model is told: the system's words, the history, this run."""

    def __init__(self, request: RunRequest, system: str | None, offers: Sequence[Offer]) -> None:
        words = [system] if system else []
        if request.interrupted:
            words.append(INTERRUPTED)
        self._messages: list[dict[str, Any]] = []
        if words:
            self._messages.append({"role": "system", "content": "\n\n".join(words)})
        self._messages += [
            {"role": message.role, "content": message.text}
            for message in request.history
            if message.role in _SPOKEN
        ]
        self._messages.append({"role": "user", "content": request.text})
        self._tools = [
            {
                "type": "function",
                "function": {
                    "name": offer.name,
                    "description": offer.description,
                    "parameters": offer.parameters,
                },
            }
            for offer in offers
        ]

    def body(self, model: str, extra: Mapping[str, Any]) -> bytes:
        """The request for the next answer."""
        tools = {"tools": self._tools} if self._tools else {}
        members = {"model": model, "messages": self._messages, "stream": True}
        return encode({**extra, **members, **tools})

    def answered(self, answer: Answer) -> None:
        """Add the model's answer."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": bytes(call.arguments).decode(),
                    },
                }
                for call in answer.calls
            ]
        self._messages.append(message)

    def returned(self, call: Call, text: str) -> None:
        """Add what a tool answered."""
        self._messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _CallPart(Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Part(Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Choice(Struct, frozen=True):
    delta: _Part | None = None
    finish_reason: str | None = None


class _Fault(Struct, frozen=True):
    message: str | None = None


class _Chunk(Struct, frozen=True):
    choices: list[_Choice] = []
    error: _Fault | None = None


class _Failure(Struct, frozen=True):
    error: _Fault | str | None = None
    message: str | None = None


@dataclass(slots=True)
class _Draft:
    """A tool call as far as it came."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


_chunk: Decoder[_Chunk] = Decoder(_Chunk)
_failure: Decoder[_Failure] = Decoder(_Failure)
_object: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


class AnswerReader:
    """Reads one streamed answer of at most `max_bytes` of text and arguments."""

    def __init__(self, max_bytes: int) -> None:
        self._framer = LineFramer(MAX_EVENT_BYTES)
        self._room = max_bytes
        self._data: list[bytes] = []
        self._texts: list[str] = []
        self._drafts: dict[int, _Draft] = {}
        self._finish: str | None = None
        self.ended = False

    @property
    def has_begun(self) -> bool:
        """Whether anything of the answer itself has come: then it is not asked for again."""
        return bool(self._texts or self._drafts)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def feed(self, data: bytes) -> list[str]:
        """Take bytes of the stream, and answer the pieces of text in them.

        Raises RemoteProtocolError for what is no such stream, or too much.
        """
        texts: list[str] = []
        try:
            lines: Sequence[bytes] = self._framer.feed(data)
        except FrameTooLong as fault:
            raise RemoteProtocolError(f"a line is longer than {fault.limit} bytes") from None
        for line in lines:
            self._line_came(line.removesuffix(b"\r"), texts)
        return texts

    def finish(self) -> Answer:
        """The answer; raises RemoteProtocolError where the stream ended too early."""
        if self._finish is None:
            raise RemoteProtocolError("the answer ends before its finish reason")
        calls = [_finished(place, draft) for place, draft in sorted(self._drafts.items())]
        return Answer(self.text, _distinct(calls), self._finish)

    def _line_came(self, line: bytes, texts: list[str]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            if data == _DONE:
                self.ended = True
            elif not self.ended:
                self._take(data, texts)

    def _take(self, data: bytes, texts: list[str]) -> None:
        try:
            chunk = _chunk.decode(mend_value(data)[0])
        except JsonError as fault:
            raise RemoteProtocolError(f"a chunk is not one: {fault}") from None
        if chunk.error is not None:
            raise RemoteProtocolError(chunk.error.message or "the stream tells of an error")
        for choice in chunk.choices[:1]:
            part = choice.delta or _Part()
            for text in (part.content, part.refusal):
                if text:
                    self._spend(text)
                    self._texts.append(text)
                    texts.append(text)
            for call in part.tool_calls or ():
                self._call_came(call)
            self._finish = choice.finish_reason or self._finish

    def _call_came(self, part: _CallPart) -> None:
        draft = self._drafts.setdefault(part.index, _Draft())
        if len(self._drafts) > MAX_CALLS:
            raise RemoteProtocolError(f"more than {MAX_CALLS} tool calls at once")
        draft.id = draft.id or part.id or ""
        function = part.function or _Function()
        # Some servers repeat the name in every part; none sends it in pieces.
        draft.name = draft.name or function.name or ""
        for words in (part.id, function.name, function.arguments):
            self._spend(words or "")
        draft.arguments.append(function.arguments or "")

    def _spend(self, text: str) -> None:
        self._room -= len(text.encode())
        if self._room < 0:
            raise RemoteProtocolError("the answer is longer than max_answer_bytes")


def failure_words(body: bytes) -> str:
    """What a refusal's body says, in a line for people."""
    try:
        failure = _failure.decode(mend_value(body)[0])
    except JsonError:
        return ""
    fault = failure.error
    words = fault if isinstance(fault, str) else (fault and fault.message) or failure.message
    return " ".join((words or "").split())[:500]


def is_object(arguments: Raw) -> bool:
    """Whether a call's arguments are what every tool takes: an object."""
    try:
        _object.decode(arguments)
    except JsonError:
        return False
    return True


def _finished(place: int, draft: _Draft) -> Call:
    arguments = mend_value("".join(draft.arguments).encode() or b"{}")[0]
    id = draft.id if is_identifier(draft.id) else f"call-{place}"
    name = draft.name if is_identifier(draft.name) else "nameless"
    return Call(id, name, arguments)


def _distinct(calls: Sequence[Call]) -> list[Call]:
    """The calls with an id of its own each."""
    seen: set[str] = set()
    distinct = []
    for place, call in enumerate(calls):
        id = call.id if call.id not in seen else f"call-{place}-again"
        seen.add(id)
        distinct.append(Call(id, call.name, call.arguments))
    return distinct
