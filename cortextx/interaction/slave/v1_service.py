"""A v1 connection: one request, framed or flat, and its stream of events (PURE).

It takes part in a session as an attachment does, and has the same inputs as
`connection.Connection`. Identifiers that v2 does not take stand in files under a
name of their own, and go back to the client as it wrote them (I25).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from cortextx.core.exchange import Scope
from cortextx.interaction import data, flat, v1
from cortextx.interaction.data import Error
from cortextx.interaction.faults import Code, FrameFault, IllegalFrame, too_long
from cortextx.interaction.names import v2_identifier
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    CancelAsked,
    Claimed,
    Close,
    ConnectionAction,
    Deliver,
    Facts,
    Fetch,
    InputAsked,
    Known,
    LeaveSession,
    Mute,
    OpenSession,
    ReadPage,
    Refuse,
    Send,
    StatusAsked,
    Told,
)
from cortextx.interaction.slave.attachments import Walk
from cortextx.interaction.slave.connection import SLOW_SECONDS
from cortextx.interaction.slave.lines import Ids, read_line
from cortextx.interaction.slave.outbound import PAGE_BYTES
from cortextx.interaction.slave.v1_lines import V1Lines, errno_of
from cortextx.interaction.slave.v1_requests import (
    LOOKS,
    RUNS,
    attach_claim,
    cancel_asked,
    input_asked,
)
from cortextx.interfaces.sessions import AttachClaim, Denied, Granted, IPeerPolicy, Peer, SessionKey

MAX_BYTES = 524_288
MAX_LINES = 256
MAX_COMPLAINTS = 32
"""Faults of further lines that a client is told of; then nothing more is taken from it."""
FindRun = Callable[[str, str, Peer], SessionKey | None]
"""The session that has a run, as far as sessions that are open know: (agent, run, peer)."""


class V1Connection:
    """See the module."""

    def __init__(
        self,
        peer: Peer,
        policy: IPeerPolicy,
        next_asker: Callable[[], int],
        *,
        default_agent: str,
        find_run: FindRun,
        fresh_id: str,
        form: v1.Form = "both",
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self.is_paused = False
        self.is_closing = False
        self._is_closed = False
        self._peer = peer
        self._policy = policy
        self._default_agent = default_agent
        self._find_run = find_run
        self._fresh_id = fresh_id
        self._form: v1.Form = form
        self._slow = slow_seconds
        self._asker = next_asker()
        self._joined = False
        self._muted = False
        self._request: v1.Request | None = None
        self._lines: V1Lines | None = None
        self._key: SessionKey | None = None
        self._claim: AttachClaim | None = None
        self._generation = policy.generation
        self._ids = Ids()  # of the request whose facts the stream has, in v2's terms
        self._walk: Walk | None = None
        self._first = 1
        self._head = 0
        self._end_at: int | None = None
        self._over: Sequence[int] = ()  # where the answer to a request stands that is over
        self._complaints = 0
        self._ready: list[bytes] = []
        self._paused_since: float | None = None
        self._actions: list[ConnectionAction] = []

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due."""
        return None if self._paused_since is None else self._paused_since + self._slow

    # From the client

    def opened(self, request: v1.Request | flat.FlatRequest) -> list[ConnectionAction]:
        """The one request of this connection."""
        if isinstance(request, flat.Ping):
            self._ready.append(flat.PONG)
            self.is_closing = True
            return self._answer()
        if isinstance(request, flat.Send | flat.Resume | flat.Status | flat.Cancel):
            try:
                request = flat.as_request(request, self._fresh_id)
            except IllegalFrame:
                self._ready.append(v1.answer_fault(FrameFault("$", "shorter names"), "flat"))
                self.is_closing = True
                return self._answer()
        self._request = request
        self._lines = V1Lines(request, self._form)
        match request:
            case v1.Input():
                self._join(self._agent(request), request.scope, request.session, RUNS)
            case v1.Resume() | v1.Status():
                self._join(self._agent(request), "private", request.session, LOOKS)
            case v1.Cancel():
                self._join_run(self._agent(request), request.run)
            case v1.CommandResult():
                message = "a result is taken on the connection whose run asked"
                self._refuse(Error.of(Code.FORBIDDEN, message))
        return self._answer()

    def line_received(self, text: bytes, now: float) -> list[ConnectionAction]:
        """A further line: the answer to a command of this stream's run, or a fault."""
        if self.is_closing or self._muted or self._request is None:
            return []
        try:
            given = v1.parse(text)
        except FrameFault as fault:
            self._complain(str(fault))
            return self._answer()
        request = self._request
        if not isinstance(given, v1.CommandResult) or not isinstance(request, v1.Input):
            self._complain("a connection carries one request, and results of its commands")
        elif given.request_id != request.request_id or given.session != request.session:
            self._complain("expected the request_id and session of this stream")
        elif not self._may("command_result"):
            self._complain("no rule lets you answer commands", "EACCES")
        elif self._still_allowed():
            command_id = v2_identifier(given.command_id)
            ids = Ids(self._ids.request_id, self._ids.run_id, command_id)
            self._deliver(AnswerGiven(self._asker, ids, given.result))
        return self._answer()

    def line_too_long(self) -> list[ConnectionAction]:
        """A further line is beyond the bound: nothing more is taken, the stream goes on."""
        self._complain(str(too_long()), "EMSGSIZE")
        return self.input_ended()

    def input_ended(self) -> list[ConnectionAction]:
        """The client writes no more: its commands fail closed (I35)."""
        if not self._muted and self._joined:
            self._actions.append(Mute(self._asker))
        self._muted = True
        return self._answer()

    def peer_lost(self, reason: str = "") -> list[ConnectionAction]:
        """The connection is gone; the run goes on."""
        self._leave()
        self.is_closing = self._is_closed = True
        self._actions.append(Close(reason, abort=True))
        return self._answer()

    # From the session

    def session_opened(
        self, asker: int, first: int, head: int, now: float
    ) -> list[ConnectionAction]:
        """The session is there, with these facts."""
        self._first, self._head = first, head
        request, key, wanted = self._request, self._key, self._claim
        assert key is not None and wanted is not None
        match request:
            case v1.Input():
                self._ids = Ids(v2_identifier(request.request_id))
                item = input_asked(request, asker, key, self._peer, wanted.capabilities)
                self._deliver(item)
                if self._muted:
                    self._actions.append(Mute(self._asker))
            case v1.Cancel():
                self._deliver(cancel_asked(request, asker, key, self._peer))
            case v1.Status():
                self._deliver(StatusAsked(asker, v2_identifier(request.request_id)))
            case v1.Resume():
                self._resume(request)
        return self._answer()

    def session_failed(self, asker: int, error: Error) -> list[ConnectionAction]:
        """The session cannot be had, or goes away."""
        self._joined = False
        self._refuse(error)
        return self._answer()

    def head_moved(self, asker: int, head: int, now: float) -> list[ConnectionAction]:
        """More facts are durable."""
        self._head = head
        if self._walk is not None:
            self._walk.head = head
        self._read_on()
        return self._answer()

    def page_read(self, asker: int, facts: Facts, now: float) -> list[ConnectionAction]:
        """What was asked for by ReadPage."""
        walk = self._walk
        if walk is None or self.is_closing or not self._still_allowed():
            return self._answer()
        gap = None
        if self._over and facts.first > self._over[-1]:
            # It was retained when it was asked for; what it came to was carried on (I38).
            self._walk = None
            self._actions.append(Fetch(self._asker, self._over))
            return self._answer()
        if facts.lines and facts.first > walk.read + 1:
            gap = self._said().gap(walk.read + 1, facts.first - 1)
        frames: list[bytes] = []
        seqs: list[int] = []
        for seq, line in enumerate(facts.lines, facts.first):
            frame = self._frame(line, seq)
            if frame is not None:
                frames.append(frame)
                seqs.append(seq)
            if self._is_last(line):
                self.is_closing = True  # after what is to be sent
                break
        walk.page_read(facts, frames, seqs, gap)
        if self._end_at is not None and walk.read >= self._end_at:
            self.is_closing = True
        self._read_on()
        return self._answer()

    def fetched(self, asker: int, facts: Facts) -> list[ConnectionAction]:
        """What was asked for by Fetch: the answer to a request that is over."""
        if self.is_closing or not self._still_allowed():
            return self._answer()
        for line in facts.lines:
            self._put(self._frame(line, read_line(line).session_seq))
        self.is_closing = True
        return self._answer()

    def told(self, told: Told, now: float) -> list[ConnectionAction]:
        """The session says something to this stream."""
        if self.is_closing or not self._still_allowed():
            return self._answer()
        match told:
            case Claimed():
                self._ids = Ids(told.request_id, told.run_id)
                self._walk_from(self._head)
            case Known():
                self._known(told)
            case Refuse():
                self._refused(told)
            case Send():
                self._send(told)
        return self._answer()

    # To the transport

    def data_to_send(self) -> bytes:
        """What is to be written next."""
        if self._ready:
            sent = b"".join(self._ready)
            self._ready.clear()
            return sent
        return b"" if self._walk is None else self._walk.take(PAGE_BYTES)

    def output_sent(self, now: float) -> list[ConnectionAction]:
        """All was written that could be."""
        self._read_on()
        waits = self._ready or (self._walk is not None and self._walk.has_output)
        if self.is_closing and not waits and not self._is_closed:
            self._is_closed = True
            self._leave()
            self._actions.append(Close("the stream is complete"))
        return self._answer()

    def paused(self, now: float) -> None:
        """The transport takes no more for now."""
        self.is_paused = True
        self._paused_since = now

    def resumed(self) -> None:
        """The transport has sent all it had."""
        self.is_paused = False
        self._paused_since = None

    def time_passed(self, now: float) -> list[ConnectionAction]:
        """A client that does not read is let go (I34)."""
        if self.deadline is not None and now >= self.deadline:
            return self.peer_lost("nothing was read")
        return []

    # Joining

    def _agent(self, request: v1.Input | v1.Resume | v1.Status | v1.Cancel) -> str:
        return self._default_agent if request.agent is UNSET else str(request.agent)

    def _join(
        self, agent: str, scope: Scope, session: str, choices: Sequence[frozenset[str]]
    ) -> None:
        denied: Denied | None = None
        for capabilities in choices:
            wanted = attach_claim(agent, scope, session, capabilities)
            verdict = self._policy.judge(self._peer, wanted)
            if isinstance(verdict, Granted):
                self._open(wanted, verdict.key)
                return
            denied = denied or verdict
        assert denied is not None
        self._refuse(Error(denied.code, denied.message, False))

    def _join_run(self, agent: str, run: str) -> None:
        key = self._find_run(agent, run, self._peer)
        if key is not None:
            wanted = AttachClaim(
                agent=agent,
                scope=key.scope,
                session=key.session,
                mode="interact",
                capabilities=frozenset({"input", "cancel"}),
                space=key.space,
            )
            verdict = self._policy.judge(self._peer, wanted)
            if isinstance(verdict, Granted) and verdict.key == key:
                self._open(wanted, key)
                return
        self._refuse(Error.of(Code.UNKNOWN_RUN, "no session that is open has such a run"))

    def _open(self, wanted: AttachClaim, key: SessionKey) -> None:
        self._claim = wanted
        self._key = key
        self._joined = True
        self._actions.append(OpenSession(self._asker, key))

    def _resume(self, request: v1.Resume) -> None:
        after = request.after or "0"
        if not (after.isascii() and after.isdigit() and len(after) <= 20):
            self._refuse(Error.of(Code.BAD_FRAME, "expected after to be a session_seq"))
            return
        if int(after) > self._head:
            message = f"the session's newest event is {self._head}"
            self._refuse(Error.of(Code.CURSOR_AHEAD, message))
            return
        self._walk_from(int(after))
        self._ask_state()

    def _ask_state(self) -> None:
        assert self._request is not None
        self._deliver(StatusAsked(self._asker, v2_identifier(self._request.request_id)))

    # The stream

    def _walk_from(self, cursor: int) -> None:
        self._walk = Walk(
            cursor=cursor,
            head=self._head,
            window=None,
            max_bytes=MAX_BYTES,
            max_lines=MAX_LINES,
        )
        self._read_on()

    def _known(self, known: Known) -> None:
        self._ids = Ids(
            known.request_id if isinstance(self._request, v1.Input) else None, known.run_id
        )
        retained = known.accepted >= self._first
        seqs = [seq for seq in (known.accepted, known.done) if seq]
        self._over = seqs if known.done else ()
        if isinstance(self._request, v1.Input) and (retained or not known.accepted):
            self._walk_from(known.accepted - 1 if known.accepted else self._head)
        elif known.done:
            self._actions.append(Fetch(self._asker, seqs))
        else:
            self._walk_from(self._head)

    def _is_mine(self, ids: Ids) -> bool:
        if isinstance(self._request, v1.Resume):
            return True
        if ids.run_id is not None:
            return ids.run_id == self._ids.run_id
        return ids.request_id == self._ids.request_id

    def _is_last(self, text: bytes) -> bool:
        """Whether the stream ends with this fact; a resume asks for the state anew."""
        line = read_line(text)
        if line.kind != "done" or not self._is_mine(line.correlation):
            return False
        if isinstance(self._request, v1.Resume):
            if self._end_at is None:
                self._ask_state()
            return False
        return True

    def _frame(self, text: bytes, seq: int) -> bytes | None:
        """The event line of a fact, or None if this stream does not have it."""
        ids = read_line(text).correlation
        return self._said().fact(text, seq, ids) if self._is_mine(ids) else None

    def _said(self) -> V1Lines:
        assert self._lines
        return self._lines

    def _send(self, told: Send) -> None:
        content = told.content
        if isinstance(content, data.SessionState):
            if isinstance(self._request, v1.Resume):
                if content.status == "idle":
                    self._end_at = content.head
                    if self._walk is not None and self._walk.read >= content.head:
                        self.is_closing = True
                return
            self._put(self._said().live(content, told.ids))
            self.is_closing = True
            return
        line = self._said().live(content, told.ids)
        if line is not None and self._walk is not None:
            self._walk.put_live(line, told.behind, told.droppable)

    def _refused(self, told: Refuse) -> None:
        if told.ids.command_id is not None:
            self._complain(told.error.message, errno_of(told.error.code))
        else:
            self._refuse(told.error, told.errno)

    def _refuse(self, error: Error, errno: str | None = None) -> None:
        """The request ends with an error."""
        self._put(self._said().failure(errno or errno_of(error.code), error.message, ends=True))
        self.is_closing = True

    def _complain(self, message: str, code: str = "EINVAL") -> None:
        """Something that came later is wrong; it does not end the stream."""
        if self._request is None or self._complaints > MAX_COMPLAINTS:
            return
        self._complaints += 1
        if self._complaints > MAX_COMPLAINTS:
            message = f"{message}; too many lines were wrong, and nothing more is taken"
        self._put(self._said().failure(code, message, ends=False))
        if self._complaints > MAX_COMPLAINTS and not self._muted:
            self._muted = True
            if self._joined:
                self._actions.append(Mute(self._asker))

    # Inside

    def _may(self, capability: str) -> bool:
        return self._claim is not None and capability in self._claim.capabilities

    def _still_allowed(self) -> bool:
        """Ask the rules again if they changed (I15); if it is over, the stream ends."""
        if self._generation == self._policy.generation or self._claim is None:
            return True
        verdict = self._policy.judge(self._peer, self._claim)
        if not isinstance(verdict, Denied) and verdict.key == self._key:
            self._generation = self._policy.generation
            return True
        if self._walk is not None:
            self._walk.drop()
        self._ready.clear()
        self._refuse(Error.of(Code.FORBIDDEN, "the rules have changed"))
        return False

    def _put(self, line: bytes | None) -> None:
        if line is not None:
            self._ready.append(line)

    def _read_on(self) -> None:
        if self._walk is None or self.is_closing:
            return
        wanted = self._walk.wants()
        if wanted is not None:
            after, lines, room = wanted
            self._actions.append(ReadPage(self._asker, after, lines, min(room, PAGE_BYTES)))

    def _deliver(self, item: InputAsked | CancelAsked | AnswerGiven | StatusAsked) -> None:
        self._actions.append(Deliver(self._asker, item))

    def _leave(self) -> None:
        if self._joined:
            self._joined = False
            self._actions.append(LeaveSession(self._asker))

    def _answer(self) -> list[ConnectionAction]:
        actions, self._actions = self._actions, []
        return actions
