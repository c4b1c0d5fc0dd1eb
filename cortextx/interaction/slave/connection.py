"""A v2 connection: handshake, attachments, and whose turn it is to be sent (PURE).

The adapter feeds lines and what sessions say, carries out the actions, and takes
`data_to_send` while the transport takes it. Attachments are served in turn, some
bytes each (I17), and everything that waits is bounded (I16).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Raw

from cortextx.core.exchange import Origin
from cortextx.errors import JsonError, LocalProtocolError
from cortextx.interaction import data, v2
from cortextx.interaction.claims import claim
from cortextx.interaction.correlation import ATTACHMENT, CONNECTION, REQUEST, Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Data, Error, Limits
from cortextx.interaction.faults import Code, FrameFault, FramingFault, ShapeFault, too_long
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
    OpenSession,
    ReadPage,
    Refuse,
    Send,
    StatusAsked,
    Told,
)
from cortextx.interaction.slave.attachments import Walk
from cortextx.interaction.slave.lines import Ids, read_line
from cortextx.interaction.v2 import CAPABILITIES, Capability, Frame
from cortextx.interfaces.sessions import (
    AttachClaim,
    Denied,
    Granted,
    IPeerPolicy,
    Mode,
    Peer,
    SessionKey,
)

QUANTUM = 32_768
"""Bytes that an attachment is sent before it is the next one's turn."""
SLOW_SECONDS = 10.0
PAGE_BYTES = 262_144
OWN_REQUESTS = 1024
"""Requests that an attachment without `observe` is told of, the newest."""
ALL: tuple[Capability, ...] = tuple(sorted(CAPABILITIES))
DEFAULT_SPACE = "default"


@dataclass(slots=True, eq=False)
class Attachment:
    """A logical session attachment; `walk` is there once it is attached."""

    id: str
    asker: int
    key: SessionKey
    claim: AttachClaim
    place: data.Attach
    mode: Mode
    capabilities: tuple[Capability, ...]
    generation: int
    walk: Walk | None = None
    waiting: list[Frame] = field(default_factory=list)
    own: dict[str, None] = field(default_factory=dict)
    counted: int = 0
    is_ready: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether it may have facts of others' requests."""
        return "observe" in self.capabilities or "replay" in self.capabilities


class Connection:
    """See the module. `next_asker` gives numbers that were never used."""

    def __init__(
        self,
        peer: Peer,
        policy: IPeerPolicy,
        next_asker: Callable[[], int],
        limits: Limits = DEFAULT_LIMITS,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self.id = ""
        self.is_paused = False
        self.is_closing = False
        self._peer = peer
        self._policy = policy
        self._next_asker = next_asker
        self._limits = limits
        self._slow = slow_seconds
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._by_id: dict[str, Attachment] = {}
        self._by_asker: dict[int, Attachment] = {}
        self._turns: deque[Attachment] = deque()  # those that have output
        self._served: list[Attachment] = []
        self._blocked: set[Attachment] = set()
        self._waiting = 0  # bytes that wait in attachments
        self._handed = 0
        self._paused_since: float | None = None
        self._actions: list[ConnectionAction] = []

    @property
    def attachments(self) -> Mapping[str, Attachment]:
        """What is attached, or about to be."""
        return self._by_id

    @property
    def queued(self) -> int:
        """Bytes that wait here, and those that the transport may still hold (I16)."""
        return self._control_bytes + self._handed + self._waiting

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due."""
        since = [
            each.walk.blocked_since
            for each in self._blocked
            if each.walk is not None and each.walk.blocked_since is not None
        ]
        first = min(since, default=None)
        times = [] if first is None else [first + self._slow]
        if self._paused_since is not None:
            times.append(self._paused_since + 2 * self._slow)
        return min(times, default=None)

    # From the master

    def opened(self, hello: Frame) -> list[ConnectionAction]:
        """A hello that offers our version came first."""
        self.id = hello.correlation.connection_id
        self._put(self._limits, Correlation(self.id), capabilities=ALL)
        return self._answer()

    def line_received(self, text: bytes, now: float) -> list[ConnectionAction]:
        """A line, without its newline."""
        if self.is_closing:
            return []
        try:
            frame = v2.parse(text, "master")
            self._frame_received(frame, now)
        except ShapeFault as fault:
            self._shape_fault(fault)
        except FramingFault as fault:
            self._end(fault)
        return self._answer()

    def line_too_long(self) -> list[ConnectionAction]:
        """A line beyond the bound: nothing behind it can be trusted (I22)."""
        if not self.is_closing:
            self._end(too_long())
        return self._answer()

    def input_ended(self) -> list[ConnectionAction]:
        """The master closed its half: a stream without it is over."""
        return self.peer_lost("the master closed its half")

    def peer_lost(self, reason: str = "") -> list[ConnectionAction]:
        """The connection is gone."""
        for attachment in list(self._by_id.values()):
            self._remove(attachment)
        self.is_closing = True
        self._actions.append(Close(reason, abort=True))
        return self._answer()

    # From sessions

    def session_opened(
        self, asker: int, first: int, head: int, now: float
    ) -> list[ConnectionAction]:
        """The session is there, with these facts."""
        attachment = self._by_asker.get(asker)
        if attachment is None or attachment.walk is not None:
            return []
        cursor = attachment.place.after_session_seq
        if cursor is not None and cursor > head:
            message = f"the session's newest fact is {head}"
            self._fail(attachment, Error.of(Code.CURSOR_AHEAD, message))
            return self._answer()
        cursor = head if cursor is None else cursor
        attachment.walk = Walk(
            cursor=cursor,
            head=head,
            window=self._limits.max_unacked_events_per_attachment,
            max_bytes=self._limits.max_outbound_bytes_per_attachment,
            max_lines=self._limits.max_replay_events_per_batch,
        )
        place = attachment.place
        content = data.Attached(place.agent, place.scope, cursor + 1, head, attachment.key.space)
        self._put(
            content,
            Correlation(self.id, attachment.id),
            attachment,
            capabilities=attachment.capabilities,
            mode=attachment.mode,
            session=attachment.key.session,
        )
        self._read_on(attachment)
        waiting, attachment.waiting = attachment.waiting, []
        for frame in waiting:
            if self._by_id.get(attachment.id) is attachment:
                try:
                    self._attached_frame(attachment, frame, now)
                except ShapeFault as fault:
                    self._shape_fault(fault)
        return self._answer()

    def session_failed(self, asker: int, error: Error) -> list[ConnectionAction]:
        """The session cannot be had, or goes away."""
        attachment = self._by_asker.get(asker)
        if attachment is not None:
            self._fail(attachment, error)
        return self._answer()

    def head_moved(self, asker: int, head: int, now: float) -> list[ConnectionAction]:
        """More facts are durable."""
        attachment = self._by_asker.get(asker)
        if attachment is not None and attachment.walk is not None:
            attachment.walk.head = head
            self._read_on(attachment)
            self._watch(attachment, now)
        return self._answer()

    def page_read(self, asker: int, facts: Facts, now: float) -> list[ConnectionAction]:
        """What was asked for by ReadPage."""
        attachment = self._by_asker.get(asker)
        if attachment is None or attachment.walk is None:
            return []
        if not self._still_allowed(attachment):
            return self._answer()
        walk = attachment.walk
        first, count = facts.first, len(facts.lines)
        after = walk.read
        seqs: Sequence[int] = range(first, first + count)
        tails = facts.tails
        if not attachment.sees_all:
            mine = [n for n, line in enumerate(facts.lines) if self._is_own(attachment, line)]
            seqs = [first + n for n in mine]
            tails = [tails[n] for n in mine]
        frames = [v2.addressed(tail, self.id, attachment.id) for tail in tails]
        gap = None
        if count and first > after + 1:
            content = data.Gap(after + 1, first - 1, "retention")
            gap = v2.encode(data.build(content, Correlation(self.id, attachment.id)))
        walk.page_read(facts, frames, seqs, gap)
        self._changed(attachment)
        self._watch(attachment, now)
        self._check_bytes()
        return self._answer()

    def fetched(self, asker: int, facts: Facts) -> list[ConnectionAction]:
        """What was asked for by Fetch: it is sent again, with the seqs that it had (I10)."""
        attachment = self._by_asker.get(asker)
        walk = None if attachment is None else attachment.walk
        if attachment is not None and walk is not None and self._still_allowed(attachment):
            for tail in facts.tails:
                walk.put(v2.addressed(tail, self.id, attachment.id))
            self._changed(attachment)
            self._check_attachment(attachment)
        return self._answer()

    def told(self, told: Told, now: float) -> list[ConnectionAction]:
        """A session says something to one of ours."""
        attachment = self._by_asker.get(told.asker)
        if attachment is None or attachment.walk is None:
            return []
        match told:
            case Send():
                self._send_live(attachment, told)
            case Refuse():
                self._refuse(attachment, told.ids, told.error)
            case Known():
                self._own(attachment, told.request_id)
                seqs = [seq for seq in (told.accepted, told.done) if seq]
                if seqs:
                    self._actions.append(Fetch(told.asker, seqs))
            case Claimed():
                self._own(attachment, told.request_id)
        return self._answer()

    # To the transport

    def data_to_send(self) -> bytes:
        """What is to be written next: one part of one attachment's frames, or nothing."""
        if self._control:
            sent = b"".join(self._control)
            self._control.clear()
            self._control_bytes = 0
            self._handed += len(sent)
            return sent
        while self._turns:
            attachment = self._turns.popleft()
            attachment.is_ready = False
            walk = attachment.walk
            assert walk is not None
            sent = walk.take(QUANTUM)
            walk.blocked_since = None
            self._changed(attachment)
            self._served.append(attachment)
            if sent:
                self._handed += len(sent)
                return sent
        return b""

    def output_sent(self, now: float) -> list[ConnectionAction]:
        """All was written that could be: read on where there is room now."""
        served, self._served = self._served, []
        for attachment in served:
            if attachment.asker in self._by_asker:
                self._read_on(attachment)
                self._watch(attachment, now)
        if not self.is_paused:
            self._handed = 0
        if self.is_closing and not self._control:
            self._actions.append(Close("closed by a fault"))
        return self._answer()

    def paused(self, now: float) -> None:
        """The transport takes no more for now."""
        self.is_paused = True
        self._paused_since = now
        for attachment in self._turns:
            self._watch(attachment, now)

    def resumed(self) -> None:
        """The transport has sent all it had."""
        self.is_paused = False
        self._paused_since = None
        self._handed = 0

    def time_passed(self, now: float) -> list[ConnectionAction]:
        """Detach those that were slow for too long (I34)."""
        for attachment in list(self._blocked):
            self._watch(attachment, now)
            walk = attachment.walk
            if walk is None or walk.blocked_since is None:
                continue
            if now - walk.blocked_since >= self._slow:
                message = f"nothing was taken for {self._slow:g} s; resume after {walk.acked}"
                self._fail(attachment, Error.of(Code.SLOW_CONSUMER, message))
        since = self._paused_since
        if since is not None and now - since >= 2 * self._slow:
            self.is_closing = True
            self._actions.append(Close("nothing was read", abort=True))
        return self._answer()

    # Frames

    def _frame_received(self, frame: Frame, now: float) -> None:
        ids = frame.correlation
        if ids.connection_id != self.id:
            raise ShapeFault("$.correlation.connection_id", "that of the hello", None)
        if frame.kind == "hello":
            raise ShapeFault("$.event.kind", "one hello only", ids)
        assert ids.attachment_id is not None
        attachment = self._by_id.get(ids.attachment_id)
        if frame.kind == "attach":
            self._attach(frame)
        elif attachment is None:
            message = "there is no such attachment"
            self._put_error(Error.of(Code.UNKNOWN_ATTACHMENT, message), ids)
        elif attachment.walk is not None or frame.kind == "detach":
            self._attached_frame(attachment, frame, now)
        elif len(attachment.waiting) < self._limits.max_pending_requests_per_attachment:
            attachment.waiting.append(frame)
        else:
            self._refuse(attachment, _ids(ids), Error.of(Code.BUSY, "it is being attached"))

    def _attach(self, frame: Frame) -> None:
        ids = frame.correlation
        body = frame.event
        try:
            place = data.read(frame)
        except ShapeFault as fault:
            if not fault.field.startswith("$.event.session"):
                raise
            self._put_error(Error.of(Code.BAD_FRAME, str(fault)), ids)  # I41
            return
        assert isinstance(place, data.Attach) and ids.attachment_id is not None
        assert body.mode is not None and body.session is not None
        if ids.attachment_id in self._by_id:
            message = "this attachment_id is in use"
            self._put_error(Error.of(Code.DUPLICATE_ATTACHMENT, message), ids)
            return
        if len(self._by_id) >= self._limits.max_attachments:
            message = f"at most {self._limits.max_attachments} attachments"
            self._put_error(Error.of(Code.LIMIT_EXCEEDED, message), ids)
            return
        space = place.space or DEFAULT_SPACE if place.scope == "shared" else None
        wanted = AttachClaim(
            agent=place.agent,
            scope=place.scope,
            session=body.session,
            mode=body.mode,
            capabilities=frozenset(body.capabilities),
            space=space,
            owner=place.owner,
        )
        verdict = self._policy.judge(self._peer, wanted)
        if isinstance(verdict, Denied):
            error = Error(verdict.code, verdict.message, False)
            self._put_error(error, ids)
            return
        attachment = Attachment(
            ids.attachment_id,
            self._next_asker(),
            verdict.key,
            wanted,
            place,
            body.mode,
            body.capabilities,
            self._policy.generation,
        )
        self._by_id[attachment.id] = attachment
        self._by_asker[attachment.asker] = attachment
        self._actions.append(OpenSession(attachment.asker, attachment.key))

    def _attached_frame(self, attachment: Attachment, frame: Frame, now: float) -> None:
        content = data.read(frame)
        ids = frame.correlation
        match content:
            case data.Detach():
                self._remove(attachment)
            case data.Ack():
                self._acked(attachment, frame.session_seq or 0, now)
            case data.StatusRequest():
                self._deliver(attachment, StatusAsked(attachment.asker, ids.request_id or ""))
            case data.Input():
                if self._may(attachment, "input", ids):
                    origin = frame.event.origin or Origin("unknown")
                    self._deliver(attachment, self._input(attachment, frame, content, origin))
            case data.Cancel():
                if self._may(attachment, "cancel", ids):
                    self._deliver(attachment, self._cancel(attachment, frame))
            case data.CommandResult(result=result, effect_id=effect_id):
                if self._may(attachment, "command_result", ids):
                    given = AnswerGiven(attachment.asker, _ids(ids), result, effect_id)
                    self._deliver(attachment, given)

    def _input(
        self, attachment: Attachment, frame: Frame, content: data.Input, origin: Origin
    ) -> InputAsked:
        event = content.event
        absent = not isinstance(event, Raw) or bytes(event).strip() == b"null"
        return InputAsked(
            asker=attachment.asker,
            request_id=frame.correlation.request_id or "",
            claim=claim(
                "input",
                session=attachment.key.session,
                scope=attachment.key.scope,
                cwd=content.cwd,
                data=frame.event.data,
            ),
            text=content.text,
            owner=attachment.key.owner if attachment.key.owner is not None else self._peer.uid,
            uid=self._peer.uid,
            origin=origin,
            event=None if absent else event.copy(),  # type: ignore[union-attr]
            cwd=content.cwd,
            workspace=content.workspace,
            answers="command_result" in attachment.capabilities,
            invokes="invoke" in attachment.capabilities,
        )

    def _cancel(self, attachment: Attachment, frame: Frame) -> CancelAsked:
        ids = frame.correlation
        run_id = ids.run_id or ""
        digest = claim(
            "cancel",
            session=attachment.key.session,
            scope=attachment.key.scope,
            cwd=None,
            data=frame.event.data,
            run=run_id,
        )
        return CancelAsked(attachment.asker, ids.request_id or "", run_id, digest, self._peer.uid)

    def _may(self, attachment: Attachment, capability: Capability, ids: Correlation) -> bool:
        if not self._still_allowed(attachment):
            return False
        if attachment.mode == "interact" and capability in attachment.capabilities:
            return True
        message = f"the attachment lacks the capability {capability}"
        self._refuse(attachment, _ids(ids), Error.of(Code.FORBIDDEN, message))
        return False

    def _still_allowed(self, attachment: Attachment) -> bool:
        """Ask the rules again if they changed (I15)."""
        if attachment.generation == self._policy.generation:
            return True
        verdict = self._policy.judge(self._peer, attachment.claim)
        if isinstance(verdict, Granted) and verdict.key == attachment.key:
            attachment.generation = self._policy.generation
            return True
        self._fail(attachment, Error.of(Code.FORBIDDEN, "the rules have changed"))
        return False

    def _acked(self, attachment: Attachment, seq: int, now: float) -> None:
        walk = attachment.walk
        assert walk is not None
        if not walk.ack(seq):
            message = f"expected an ack from {walk.acked} to {walk.position}"
            self._refuse(attachment, Ids(), Error.of(Code.INVALID_ACK, message))
            return
        walk.blocked_since = None
        self._read_on(attachment)
        self._watch(attachment, now)

    # Inside

    def _deliver(self, attachment: Attachment, item: object) -> None:
        self._actions.append(Deliver(attachment.asker, item))  # type: ignore[arg-type]

    def _send_live(self, attachment: Attachment, told: Send) -> None:
        if not self._still_allowed(attachment):
            return
        walk = attachment.walk
        assert walk is not None
        ids = told.ids
        correlation = Correlation(
            self.id, attachment.id, ids.request_id, ids.run_id, ids.command_id
        )
        try:
            frame = v2.encode(data.build(told.content, correlation))
        except LocalProtocolError:
            return
        walk.put_live(frame, told.behind, told.droppable)
        self._changed(attachment)
        self._check_attachment(attachment)

    def _is_own(self, attachment: Attachment, line: bytes) -> bool:
        try:
            return read_line(line).correlation.request_id in attachment.own
        except JsonError:
            return False

    def _own(self, attachment: Attachment, request_id: str) -> None:
        attachment.own[request_id] = None
        if len(attachment.own) > OWN_REQUESTS:
            del attachment.own[next(iter(attachment.own))]

    def _read_on(self, attachment: Attachment) -> None:
        walk = attachment.walk
        wanted = None if walk is None else walk.wants()
        if wanted is not None:
            after, lines, room = wanted
            self._actions.append(ReadPage(attachment.asker, after, lines, min(room, PAGE_BYTES)))

    def _watch(self, attachment: Attachment, now: float) -> None:
        """Note since when an attachment waits for its master."""
        walk = attachment.walk
        if walk is None:
            return
        if not walk.is_blocked(self.is_paused):
            walk.blocked_since = None
            self._blocked.discard(attachment)
            return
        self._blocked.add(attachment)
        if walk.blocked_since is None:
            walk.blocked_since = now

    def _changed(self, attachment: Attachment) -> None:
        """Keep count of what waits, and of who has output."""
        walk = attachment.walk
        assert walk is not None
        self._waiting += walk.queued - attachment.counted
        attachment.counted = walk.queued
        if walk.has_output and not attachment.is_ready:
            attachment.is_ready = True
            self._turns.append(attachment)

    def _remove(self, attachment: Attachment) -> None:
        self._by_id.pop(attachment.id, None)
        self._by_asker.pop(attachment.asker, None)
        if attachment.walk is not None:
            attachment.walk.drop()
            self._changed(attachment)
        if attachment.is_ready:
            self._turns.remove(attachment)
            attachment.is_ready = False
        self._blocked.discard(attachment)
        self._actions.append(LeaveSession(attachment.asker))

    def _fail(self, attachment: Attachment, error: Error) -> None:
        """Detach it and say why."""
        self._remove(attachment)
        self._put(error, Correlation(self.id, attachment.id))

    def _refuse(self, attachment: Attachment, ids: Ids, error: Error) -> None:
        parts = (ids.request_id, ids.run_id, ids.command_id)
        self._put(error, Correlation(self.id, attachment.id, *parts), attachment)

    def _put_error(self, error: Error, ids: Correlation) -> None:
        """An error on an attachment that is not there."""
        self._put(error, ids.prefix(min(ids.depth, REQUEST)))

    def _put(
        self,
        content: Data,
        ids: Correlation,
        attachment: Attachment | None = None,
        *,
        capabilities: tuple[Capability, ...] = (),
        mode: Mode | None = None,
        session: str | None = None,
    ) -> None:
        frame = v2.encode(
            data.build(content, ids, capabilities=capabilities, mode=mode, session=session)
        )
        if attachment is not None and attachment.walk is not None:
            attachment.walk.put(frame)
            self._changed(attachment)
            self._check_attachment(attachment)
        else:
            self._control.append(frame)
            self._control_bytes += len(frame)
            self._check_bytes()

    def _check_attachment(self, attachment: Attachment) -> None:
        """Answers and commands are not read either: no more of them are held than may be."""
        walk = attachment.walk
        if walk is not None and walk.is_over and walk.is_blocked(self.is_paused):
            message = f"too much waits to be read; resume after {walk.acked}"
            self._fail(attachment, Error.of(Code.SLOW_CONSUMER, message))
        self._check_bytes()

    def _check_bytes(self) -> None:
        """Beyond the connection's bound it is closed, rather than that more is held."""
        if self.queued > self._limits.max_outbound_bytes_per_connection and not self.is_closing:
            self.is_closing = True
            self._actions.append(Close("too much waits to be sent", abort=True))

    def _shape_fault(self, fault: ShapeFault) -> None:
        """I23: on a known attachment the stream lives; anything else ends it."""
        ids = fault.correlation
        if (
            ids is not None
            and ids.connection_id == self.id
            and ids.depth >= ATTACHMENT
            and ids.attachment_id in self._by_id
        ):
            attachment = self._by_id[ids.attachment_id]
            self._put(Error.of(Code.BAD_FRAME, str(fault)), ids, attachment)
        else:
            self._end(fault)

    def _end(self, fault: FrameFault) -> None:
        """Say what is wrong, and close."""
        for attachment in list(self._by_id.values()):
            self._remove(attachment)
        error = Error.of(Code.BAD_FRAME, str(fault))
        self._put(error, Correlation(self.id).prefix(CONNECTION))
        self.is_closing = True

    def _answer(self) -> list[ConnectionAction]:
        actions, self._actions = self._actions, []
        return actions


def _ids(correlation: Correlation) -> Ids:
    return Ids(correlation.request_id, correlation.run_id, correlation.command_id)
