"""What a session knows from its log: claims, runs, open calls, recent words (PURE).

The same notes are taken from a log that is read (`line_read`) and from facts as they
are made, so that a slave that recovered knows what the one before it did (I10, I13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from blake3 import blake3
from msgspec import Raw

from cortextx.core import exchange
from cortextx.core.jsontext import Decoder
from cortextx.errors import JsonError
from cortextx.interaction.data import Done, Message, Tool
from cortextx.interaction.slave.lines import Beside, Line, read_line

OPEN_STATES = frozenset({"requested", "pending", "approved", "started", "running"})
"""States of a tool call that is not over; any other one ends it."""


@dataclass(slots=True)
class Claim:
    """What a request id stands for; `done` is 0 while its run goes on.

    `digest` is the first half of the claim. A cancel's claim has the seq of its
    status line as `accepted`.
    """

    kind: Literal["input", "cancel"]
    digest: bytes
    run: str
    accepted: int
    done: int = 0

    def is_same(self, kind: str, digest: bytes) -> bool:
        """Whether a request with this claim is the same one."""
        return self.kind == kind and self.digest == digest[:16]


@dataclass(slots=True)
class OpenRun:
    """A run without a terminal fact: its request, and the tool calls that are open."""

    request_id: str
    calls: dict[str, str] = field(default_factory=dict)


class Ledger:
    """See the module. `history_bytes` bounds the words that are kept.

    `interrupted` is set from an interrupted run until one is completed: whoever runs in
    between is told that calls may have had effects (B26).
    """

    def __init__(self, history_bytes: int = 0) -> None:
        self.unfinished: dict[str, OpenRun] = {}
        self.interrupted = False
        self.cwd: str | None = None
        self._cwd_seq = self._end_seq = 0  # carried lines stand in any order
        self._history_bytes = history_bytes
        self._history: deque[exchange.Message] = deque()
        self._held = 0
        self._parts: list[str] = []
        self._claims: dict[bytes, Claim] = {}
        self._runs: dict[bytes, Claim] = {}
        self._ends: dict[bytes, int] = {}  # of runs whose claim stands further on

    def claim(self, request_id: str) -> Claim | None:
        """What was claimed with this id."""
        return self._claims.get(_key(request_id))

    def run(self, run_id: str) -> Claim | None:
        """The claim that this run came from."""
        return self._runs.get(_key(run_id))

    def history(self) -> Sequence[exchange.Message]:
        """The newest whole messages within bounds, oldest first."""
        return tuple(self._history)

    # Notes

    def accepted(self, seq: int, request_id: str, run_id: str, beside: Beside) -> None:
        """A request was accepted."""
        claim = Claim("input", bytes.fromhex(beside.claim or "")[:16], run_id, seq)
        self._claims[_key(request_id)] = claim
        self._runs[_key(run_id)] = claim
        claim.done = self._ends.pop(_key(run_id), 0)
        if not claim.done:
            self.unfinished[run_id] = OpenRun(request_id)
        if beside.cwd is not None and seq > self._cwd_seq:
            self.cwd, self._cwd_seq = beside.cwd, seq

    def cancel_claimed(self, seq: int, beside: Beside) -> None:
        """A cancel was claimed: `beside` has its own id and the run that it names."""
        if beside.request_id is None or beside.claim is None:
            return
        digest = bytes.fromhex(beside.claim)[:16]
        claim = Claim("cancel", digest, beside.run or "", seq)
        self._claims[_key(beside.request_id)] = claim

    def tool(self, run_id: str, tool: Tool) -> None:
        """A tool call came into a state."""
        run = self.unfinished.get(run_id)
        if run is None:
            return
        if tool.state in OPEN_STATES:
            run.calls[tool.call_id] = tool.name
        else:
            run.calls.pop(tool.call_id, None)

    def message(self, request_id: str, run_id: str, message: Message) -> None:
        """Somebody said something, in one part or several (I33)."""
        if self._history_bytes == 0:
            return
        if (message.part or 1) == 1:
            self._parts.clear()
        self._parts.append(message.text)
        if (message.part or 1) < (message.parts or 1):
            return
        text = "".join(self._parts)
        self._parts.clear()
        self._history.append(exchange.Message(request_id, run_id, message.role, text))
        self._held += len(text.encode())
        while self._held > self._history_bytes:
            self._held -= len(self._history.popleft().text.encode())

    def done(self, seq: int, run_id: str, status: str) -> None:
        """A run has ended."""
        self.unfinished.pop(run_id, None)
        if seq > self._end_seq and status in ("interrupted", "completed"):
            self.interrupted, self._end_seq = status == "interrupted", seq
        claim = self._runs.get(_key(run_id))
        if claim is not None:
            claim.done = seq
        else:
            self._ends[_key(run_id)] = seq

    # From the log

    def line_read(self, text: bytes) -> int:
        """Take note of a line of the log; answers its seq. Odd lines say nothing."""
        line = read_line(text)
        for carried in line.x.carried if line.x is not None else ():
            self._note_carried(bytes(carried))
        self._note(line)
        return line.session_seq

    def _note_carried(self, text: bytes) -> None:
        try:
            self._note(read_line(text))
        except JsonError:
            return

    def _note(self, line: Line) -> None:
        request_id, run_id = line.correlation.request_id, line.correlation.run_id
        if line.kind == "status" and line.x is not None:
            self.cancel_claimed(line.session_seq, line.x)
        if request_id is None or run_id is None:
            return
        if line.kind == "accepted":
            self.accepted(line.session_seq, request_id, run_id, line.x or Beside())
        elif line.kind == "done":
            self.done(line.session_seq, run_id, _status(line))
        elif line.kind == "event":
            self._note_event(request_id, run_id, line.event.data)

    def _note_event(self, request_id: str, run_id: str, event: Raw) -> None:
        if not self._history_bytes and b'"tool"' not in bytes(event):
            return  # most of a long log: nothing to know but its number
        try:
            content = _events.decode(event)
        except JsonError:
            return  # an event of another type
        if isinstance(content, Message):
            self.message(request_id, run_id, content)
        elif isinstance(content, Tool):
            self.tool(run_id, content)


_done = Decoder(Done)
_events: Decoder[Message | Tool] = Decoder(Message | Tool)


def _status(line: Line) -> str:
    try:
        return _done.decode(line.event.data).status
    except JsonError:
        return "error"


def _key(text: str) -> bytes:
    return blake3(text.encode()).digest(length=16)
