"""One v1 request and its stream of events, as the client sees them (PURE; v1, I5, I6).

The answer may come framed, flat, or as both in one; the request goes out framed, or
flat for a peer that knows nothing else. A stream is bounded in bytes and in silence,
and one that ends before its request is answered is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from cortextx.core.exchange import CommandIssued, Failure, Notify, Result, RunDone, SessionStatus
from cortextx.core.framing import LineFramer
from cortextx.core.jsontext import Decoder, encode
from cortextx.errors import FrameTooLong, JsonError, SessionRefused
from cortextx.interaction import flat, v1
from cortextx.interaction.faults import MAX_FRAME_BYTES, FrameFault
from cortextx.interaction.v1 import Reply, ends_stream

MAX_RESPONSE_BYTES = 4 << 20
QUIET_SECONDS = 30.0

RequestForm = Literal["framed", "flat"]
Asked = v1.Input | v1.Resume | v1.Status | v1.Cancel


class Exchange:
    """See the module. `quiet` is in seconds; `why_broken` says what is wrong with the stream."""

    def __init__(
        self,
        request: Asked,
        *,
        form: RequestForm = "framed",
        max_bytes: int = MAX_RESPONSE_BYTES,
        quiet: float = QUIET_SECONDS,
    ) -> None:
        self.request = request
        self.is_over = False
        self.why_broken: str | None = None
        self._form = form
        self._id = request.request_id if form == "framed" or _flat_id(request) else None
        self._framer = LineFramer(MAX_FRAME_BYTES)
        self._left = max_bytes
        self._quiet = quiet
        self._heard: float | None = None
        self._open: dict[str, CommandIssued] = {}
        self._is_answered = isinstance(request, v1.Resume)

    @property
    def deadline(self) -> float | None:
        """When the silence has lasted too long; none while a command waits for our answer."""
        if self.is_over or self._heard is None or self._open:
            return None
        return self._heard + self._quiet

    def started(self, now: float) -> bytes:
        """The request's line. Raises LocalProtocolError if it cannot be said."""
        self._heard = now
        if self._form == "framed":
            return v1.encode_request(self.request)
        return encode(_flat_request(self.request)) + b"\n"

    def data_received(self, chunk: bytes, now: float) -> Sequence[Reply]:
        """What the slave says, in events; look at `is_over` then."""
        self._heard = now
        if self.is_over:
            return []
        self._left -= len(chunk)
        replies: list[Reply] = []
        lines: list[bytes]
        too_long = False
        try:
            lines = self._framer.feed(chunk)
        except FrameTooLong as fault:
            lines, too_long = list(fault.lines), True
        for line in lines:
            if self.is_over:
                return replies
            try:
                reply = self._read(line + b"\n")
            except FrameFault as fault:
                self._break(f"the slave sent no line of this ABI: {fault}")
                return replies
            if reply is not None:
                replies.append(reply)
                self._note(reply)
        if too_long:
            self._break("the slave sent a line that is too long")
        elif self._left < 0 and not self.is_over:
            self._break("the slave sent more than a response may be long")
        return replies

    def answer(self, command_id: str, result: Result) -> bytes:
        """The line that answers a command; raises SessionRefused if none is open."""
        if command_id not in self._open:
            raise SessionRefused("unknown_command", "the command is not open (any more)")
        if not isinstance(self.request, v1.Input):
            raise SessionRefused("forbidden", "only the connection whose run asked may answer")
        del self._open[command_id]
        ids = (self._id or self.request.request_id, self.request.session, command_id)
        return v1.encode_request(v1.CommandResult(*ids, result))

    def peer_lost(self) -> None:
        """The slave sends no more."""
        if self.is_over:
            return
        if self._framer.pending:
            self._break("the stream ends inside a line")
        elif not self._is_answered:
            self._break("the stream ends without an answer")
        self.is_over = True

    def time_passed(self, now: float) -> None:
        """Give up if it is time to."""
        deadline = self.deadline
        if deadline is not None and now >= deadline:
            self._break(f"the slave was silent for {self._quiet:g} s")

    def _read(self, line: bytes) -> Reply | None:
        if self._id is None:
            if not _is_framed(line):
                return v1.decode_reply(line, _ANY)
            self._id = v1.decode(line).request_id
        return v1.decode_reply(line, self._id)

    def _note(self, reply: Reply) -> None:
        event = reply.event
        if isinstance(event, CommandIssued) and not isinstance(event.command, Notify):
            self._open[event.command_id] = event
        match self.request:
            case v1.Input():
                over = ends_stream(event)
            case v1.Status():
                over = isinstance(event, SessionStatus | Failure)
            case v1.Cancel():
                over = isinstance(event, RunDone | Failure)
            case _:
                over = False
        if over:
            self._is_answered = self.is_over = True

    def _break(self, why: str) -> None:
        self.is_over = True
        self.why_broken = why


_ANY = "-"
"""Stands for the id of a request that has none: flat lines seldom carry one."""


class _Outline(Struct):
    abi: Raw | UnsetType = UNSET


_outline = Decoder(_Outline)


def _is_framed(line: bytes) -> bool:
    try:
        return _outline.decode(line).abi is not UNSET
    except JsonError:
        return False


def _flat_id(request: Asked) -> bool:
    """Whether the flat form of this request says its id."""
    return isinstance(request, v1.Input)


def _flat_request(request: Asked) -> flat.FlatRequest:
    """As deployed peers read it; an origin and an event are not said there."""
    match request:
        case v1.Input():
            return flat.Send(
                id=request.request_id,
                session=request.session,
                scope=request.scope,
                cwd=request.cwd,
                workspace=request.workspace,
                input=request.input,
                agent=request.agent,
            )
        case v1.Resume():
            return flat.Resume(session=request.session, after=request.after, agent=request.agent)
        case v1.Status():
            return flat.Status(session=request.session, agent=request.agent)
        case v1.Cancel():
            return flat.Cancel(id=request.run, agent=request.agent)
