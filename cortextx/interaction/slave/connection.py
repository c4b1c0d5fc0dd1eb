"""A v2 connection: handshake, attachments, and whose turn it is to be sent (PURE).

The adapter feeds lines and what sessions say, carries out the actions, and takes
`data_to_send` while the transport takes it. Attachments are served in turn, some
bytes each (I17), and everything that waits is bounded (I16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cortextx.errors import LocalProtocolError
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import ATTACHMENT, CONNECTION, REQUEST, Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Data, Error, Limits
from cortextx.interaction.faults import Code, FrameFault, FramingFault, ShapeFault, too_long
from cortextx.interaction.slave import requests
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    Claimed,
    Close,
    ConnectionAction,
    Deliver,
    Facts,
    Fetch,
    Known,
    LeaveSession,
    OpenSession,
    ReadPage,
    Refuse,
    Send,
    StatusAsked,
    Told,
)
from cortextx.interaction.slave.attachments import Attachment, Walk
from cortextx.interaction.slave.lines import Ids
from cortextx.interaction.slave.outbound import Outbound
from cortextx.interaction.slave.projection import attached, note_own, page_for, repeated_for
from cortextx.interaction.slave.requests import ids_of
from cortextx.interaction.v2 import CAPABILITIES, Capability, Frame
from cortextx.interfaces.sessions import (
    Denied,
    Granted,
    IPeerPolicy,
    Peer,
)

SLOW_SECONDS = 10.0
ALL: tuple[Capability, ...] = tuple(sorted(CAPABILITIES))


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
        self.is_closing = False
        self._peer = peer
        self._policy = policy
        self._next_asker = next_asker
        self._limits = limits
        self._slow = slow_seconds
        self._outbound = Outbound(limits, slow_seconds)
        self._by_id: dict[str, Attachment] = {}
        self._by_asker: dict[int, Attachment] = {}
        self._closed: Close | None = None
        self._actions: list[ConnectionAction] = []

    @property
    def attachments(self) -> Mapping[str, Attachment]:
        """What is attached, or about to be."""
        return self._by_id

    @property
    def is_paused(self) -> bool:
        """Whether the transport takes no more for now."""
        return self._outbound.is_paused

    @property
    def queued(self) -> int:
        """Bytes that wait here, and those that the transport may still hold (I16)."""
        return self._outbound.queued

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due."""
        return self._outbound.deadline

    # From the master

    def opened(self, hello: Frame) -> list[ConnectionAction]:
        """A hello that offers our version came first."""
        self.id = hello.correlation.connection_id
        self._put_frame(data.build(self._limits, Correlation(self.id), capabilities=ALL))
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
        self._close(reason, abort=True)
        return self._answer()

    # From sessions

    def session_opened(
        self, asker: int, first: int, head: int, now: float
    ) -> list[ConnectionAction]:
        """The session is there, with these facts."""
        attachment = self._by_asker.get(asker)
        if attachment is None or attachment.walk is not None:
            return []
        if not self._still_allowed(attachment):
            return self._answer()
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
        self._put_frame(attached(attachment, self.id, cursor, head), attachment)
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
            self._outbound.watch(attachment, now)
        return self._answer()

    def page_read(self, asker: int, facts: Facts, now: float) -> list[ConnectionAction]:
        """What was asked for by ReadPage."""
        attachment = self._by_asker.get(asker)
        if attachment is None or attachment.walk is None:
            return []
        self._outbound.was_read(attachment)
        if not self._still_allowed(attachment):
            return self._answer()
        walk = attachment.walk
        page = page_for(attachment, self.id, facts, walk.read)
        walk.page_read(facts, page.frames, page.seqs, page.gap)
        self._outbound.changed(attachment)
        self._outbound.watch(attachment, now)
        self._check_bytes()
        return self._answer()

    def fetched(self, asker: int, facts: Facts) -> list[ConnectionAction]:
        """What was asked for by Fetch: it is sent again, with the seqs that it had (I10)."""
        attachment = self._by_asker.get(asker)
        walk = None if attachment is None else attachment.walk
        if attachment is None or walk is None:
            return []
        attachment.fetching -= 1
        if not self._still_allowed(attachment):
            return self._answer()
        for frame in repeated_for(attachment, self.id, facts):
            walk.put(frame)
        self._outbound.changed(attachment)
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
                note_own(attachment, told.request_id)
                self._fetch(attachment, told)
            case Claimed():
                note_own(attachment, told.request_id)
        return self._answer()

    # To the transport

    def data_to_send(self) -> bytes:
        """What is to be written next: one part of one attachment's frames, or nothing."""
        return self._outbound.take(self._still_allowed)

    def output_sent(self, now: float) -> list[ConnectionAction]:
        """All was written that could be: read on where there is room now."""
        for attachment in self._outbound.sent():
            if attachment.asker in self._by_asker:
                self._read_on(attachment)
                self._outbound.watch(attachment, now)
        if self.is_closing and not self._outbound.has_control:
            self._close("closed by a fault")
        return self._answer()

    def paused(self, now: float) -> None:
        """The transport takes no more for now."""
        self._outbound.paused(now)

    def resumed(self) -> None:
        """The transport has sent all it had."""
        self._outbound.resumed()

    def time_passed(self, now: float) -> list[ConnectionAction]:
        """Detach those that were slow for too long (I34)."""
        for attachment in self._outbound.slow(now):
            assert attachment.walk is not None
            message = f"nothing was taken for {self._slow:g} s; {_resume(attachment)}"
            self._fail(attachment, Error.of(Code.SLOW_CONSUMER, message))
        if self._outbound.is_stuck(now):
            self._close("nothing was read", abort=True)
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
            self._deny(ids, Code.UNKNOWN_ATTACHMENT, "there is no such attachment")
        elif attachment.walk is not None or frame.kind == "detach":
            self._attached_frame(attachment, frame, now)
        elif len(attachment.waiting) < self._limits.max_pending_requests_per_attachment:
            attachment.waiting.append(frame)
        else:
            self._refuse(attachment, ids_of(ids), Error.of(Code.BUSY, "it is being attached"))

    def _attach(self, frame: Frame) -> None:
        ids = frame.correlation
        try:
            place = data.read(frame)
        except ShapeFault as fault:
            if not fault.field.startswith("$.event.session"):
                raise
            self._deny(ids, Code.BAD_FRAME, str(fault))  # I41
            return
        assert isinstance(place, data.Attach) and ids.attachment_id is not None
        if ids.attachment_id in self._by_id:
            self._deny(ids, Code.DUPLICATE_ATTACHMENT, "this attachment_id is in use")
            return
        if len(self._by_id) >= self._limits.max_attachments:
            most = self._limits.max_attachments
            self._deny(ids, Code.LIMIT_EXCEEDED, f"at most {most} attachments")
            return
        wanted = requests.wanted(frame, place)
        verdict = self._policy.judge(self._peer, wanted)
        if isinstance(verdict, Denied):
            self._deny(ids, Code(verdict.code), verdict.message)
            return
        attachment = Attachment(
            ids.attachment_id,
            self._next_asker(),
            verdict.key,
            wanted,
            place,
            wanted.mode,
            frame.event.capabilities,
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
                    asked = requests.input_asked(attachment, self._peer, frame, content)
                    self._deliver(attachment, asked)
            case data.Cancel():
                if self._may(attachment, "cancel", ids):
                    self._deliver(attachment, requests.cancel_asked(attachment, self._peer, frame))
            case data.CommandResult(result=result, effect_id=effect_id):
                if self._may(attachment, "command_result", ids):
                    given = AnswerGiven(attachment.asker, ids_of(ids), result, effect_id)
                    self._deliver(attachment, given)

    def _may(self, attachment: Attachment, capability: Capability, ids: Correlation) -> bool:
        if not self._still_allowed(attachment):
            return False
        if attachment.mode == "interact" and capability in attachment.capabilities:
            return True
        message = f"the attachment lacks the capability {capability}"
        self._refuse(attachment, ids_of(ids), Error.of(Code.FORBIDDEN, message))
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
        self._outbound.watch(attachment, now)

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
        self._outbound.changed(attachment)
        self._check_attachment(attachment)

    def _fetch(self, attachment: Attachment, known: Known) -> None:
        seqs = [seq for seq in (known.accepted, known.done) if seq]
        if attachment.fetching >= self._limits.max_pending_requests_per_attachment:
            message = "too many requests are repeated at once"
            self._refuse(attachment, Ids(known.request_id), Error.of(Code.BUSY, message))
        elif seqs:
            attachment.fetching += 1
            self._actions.append(Fetch(attachment.asker, seqs))

    def _read_on(self, attachment: Attachment) -> None:
        wanted = self._outbound.wanted(attachment)
        if wanted is not None:
            self._actions.append(ReadPage(attachment.asker, *wanted))

    def _remove(self, attachment: Attachment) -> None:
        self._by_id.pop(attachment.id, None)
        self._by_asker.pop(attachment.asker, None)
        self._outbound.removed(attachment)
        self._actions.append(LeaveSession(attachment.asker))

    def _fail(self, attachment: Attachment, error: Error) -> None:
        """Detach it and say why."""
        self._remove(attachment)
        self._put(error, Correlation(self.id, attachment.id))

    def _refuse(self, attachment: Attachment, ids: Ids, error: Error) -> None:
        parts = (ids.request_id, ids.run_id, ids.command_id)
        self._put(error, Correlation(self.id, attachment.id, *parts), attachment)

    def _deny(self, ids: Correlation, code: Code, message: str) -> None:
        """An error on an attachment that is not there."""
        self._put(Error.of(code, message), ids.prefix(min(ids.depth, REQUEST)))

    def _put(self, content: Data, ids: Correlation, attachment: Attachment | None = None) -> None:
        self._put_frame(data.build(content, ids), attachment)

    def _put_frame(self, frame: Frame, attachment: Attachment | None = None) -> None:
        line = v2.encode(frame)
        if attachment is not None and attachment.walk is not None:
            attachment.walk.put(line)
            self._outbound.changed(attachment)
            self._check_attachment(attachment)
        else:
            self._outbound.put(line)
            self._check_bytes()

    def _check_attachment(self, attachment: Attachment) -> None:
        """Answers and commands are not read either: no more of them are held than may be."""
        walk = attachment.walk
        if walk is not None and walk.is_over and walk.is_blocked(self.is_paused):
            message = f"too much waits to be read; {_resume(attachment)}"
            self._fail(attachment, Error.of(Code.SLOW_CONSUMER, message))
        self._check_bytes()

    def _check_bytes(self) -> None:
        """Beyond the connection's bound it is closed, rather than that more is held."""
        if self._outbound.is_over:
            self._close("too much waits to be sent", abort=True)

    def _close(self, reason: str, abort: bool = False) -> None:
        """Say it once, and once more where it shall not wait any longer."""
        self.is_closing = True
        if self._closed is None or (abort and not self._closed.abort):
            self._closed = Close(reason, abort)
            self._actions.append(self._closed)

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


def _resume(attachment: Attachment) -> str:
    assert attachment.walk is not None
    return f"resume after {attachment.walk.acked}"
