"""A master of the v2 ABI: one connection at a time, attachments that outlive it (PURE).

Every input answers with actions. Whatever breaks the connection, it is made anew
after a delay (full jitter), and every attachment is taken up from its cursor with
the requests that are not answered. `now` is in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import UNSET, Raw

from cortextx.core.backoff import FullJitter
from cortextx.core.exchange import Origin, Result
from cortextx.core.framing import LineFramer
from cortextx.core.jsontext import encode
from cortextx.errors import FrameTooLong, SessionRefused
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import ATTACHMENT, Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Error
from cortextx.interaction.faults import MAX_FRAME_BYTES, Code, FrameFault
from cortextx.interaction.master.actions import Action, Close, Connect, Lost, Opened, Over, Write
from cortextx.interaction.master.attachment import OPENING, STAYING, Attachment
from cortextx.interaction.master.effects import EffectRecord, MemoryEffects
from cortextx.interaction.master.events import Event, Place
from cortextx.interaction.master.inbox import MAX_BYTES, Inbox
from cortextx.interaction.master.requests import Request
from cortextx.interaction.v1 import ABI as V1
from cortextx.interaction.v2 import CAPABILITIES, Frame

GREETING_SECONDS = 10.0
"""How long a slave may take to answer a hello."""
RETRY_SECONDS = 0.5
"""The shortest ceiling of the delays before an attach is tried again."""
MAX_RETRY_SECONDS = 15.0
NO_ROOM_SECONDS = 4.0
"""How long to wait about, where a session was lost because its log had no room."""


class MasterMachine:
    """See the module. `mint` gives fresh identifiers, `random` floats from 0 to below 1."""

    def __init__(
        self,
        *,
        mint: Callable[[], str],
        random: Callable[[], float],
        master_id: str = "cortextx",
        effects: EffectRecord | None = None,
        backoff: FullJitter | None = None,
        inbox_bytes: int = MAX_BYTES,
    ) -> None:
        self.state: Literal["idle", "connecting", "greeting", "open", "waiting", "over"] = "idle"
        self.limits = DEFAULT_LIMITS
        self.attachments: dict[int, Attachment] = {}
        self.effects: EffectRecord = MemoryEffects() if effects is None else effects
        self._mint = mint
        self._random = random
        self._master_id = master_id
        self._backoff = backoff or FullJitter(random=random, base=0.5, cap=MAX_RETRY_SECONDS)
        self._inbox_bytes = inbox_bytes
        self._by_wire: dict[str, Attachment] = {}
        self._connection_id = ""
        self._framer = LineFramer(MAX_FRAME_BYTES)
        self._deadline: float | None = None
        self._since = 0.0
        self._next_key = 0
        self._actions: list[Action] = []

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due."""
        times = [] if self._deadline is None else [self._deadline]
        for each in self.attachments.values():
            times += [at for at in (each.ack_at, each.retry_at) if at is not None]
        return min(times, default=None)

    # From the application

    def attach(self, place: Place, now: float) -> tuple[int, list[Action]]:
        """A new attachment's key; it is attached as soon as there is a connection."""
        if self.state == "over":
            raise SessionRefused("closed", "the master is closed")
        self._next_key += 1
        inbox = Inbox(self._inbox_bytes)
        made = Attachment(self._next_key, place, self._actions, self.effects, inbox)
        self.attachments[made.key] = made
        if self.state == "idle":
            self._connect()
        self._attach(made, now)
        return made.key, self._answer()

    def connect(self) -> list[Action]:
        """Connect before anything is attached, to see whether a slave is there."""
        if self.state == "idle":
            self._connect()
        return self._answer()

    def detach(self, key: int) -> list[Action]:
        """The application wants no more of this attachment, nor of what waits."""
        attachment = self.attachments.pop(key, None)
        if attachment is not None:
            self._leave(attachment)
            attachment.ended(Error("closed", "detached", False))
        return self._answer()

    def input(
        self,
        key: int,
        text: str,
        origin: Origin,
        *,
        request_id: str | None = None,
        event: Mapping[str, object] | None = None,
        cwd: str | None = None,
        workspace: str | None = None,
    ) -> tuple[str, list[Action]]:
        """The user's words; answers the request's id. Raises as `Attachment.ask`."""
        raw = UNSET if event is None else Raw(encode(event))
        content = data.Input(text, raw, cwd, workspace)
        return self._ask(key, Request("input", request_id or self._mint(), content, origin))

    def status(self, key: int, request_id: str | None = None) -> tuple[str, list[Action]]:
        """How is the session doing?"""
        return self._ask(key, Request("status", request_id or self._mint(), data.StatusRequest()))

    def cancel(
        self, key: int, run_id: str, request_id: str | None = None
    ) -> tuple[str, list[Action]]:
        """End a run; its Done, or an Error, is the outcome (I30)."""
        made = Request("cancel", request_id or self._mint(), data.Cancel(), run_id=run_id)
        return self._ask(key, made)

    def answer(
        self, key: int, command_id: str, result: Result, *, wait: bool = True
    ) -> list[Action]:
        """Answer a command; see `Attachment.answer`."""
        self._find(key).answer(command_id, result, wait=wait)
        return self._answer()

    def forget(self, key: int, request_id: str) -> list[Action]:
        """Nobody waits for this request any more."""
        if key in self.attachments:
            self.attachments[key].forget(request_id)
        return self._answer()

    def effect_ended(self, effect_id: str, result: Result, besides: str) -> list[Action]:
        """The record has this effect's result now: it answers all other commands for it."""
        for attachment in self.attachments.values():
            attachment.answer_effect(effect_id, result, besides)
        return self._answer()

    def take(self, key: int) -> tuple[Event | None, list[Action]]:
        """The oldest event that waits."""
        attachment = self.attachments.get(key)
        event = None if attachment is None else attachment.take()
        return event, self._answer()

    def processed(self, key: int, event: Event, now: float) -> list[Action]:
        """The application has dealt with this event and all before it."""
        attachment = self.attachments.get(key)
        if attachment is not None:
            if event.seq is not None:
                attachment.processed_to(event.seq, now)
            self._attach(attachment, now)
        return self._answer()

    def close(self) -> list[Action]:
        """The application is done."""
        if self.state != "over":
            self._end("closed", "the master is closed")
        return self._answer()

    # From the connection

    def connected(self, now: float) -> list[Action]:
        """There is a connection to a slave that may be trusted: say hello."""
        if self.state != "connecting":
            return []
        self.state = "greeting"
        self._since = now
        self._deadline = now + GREETING_SECONDS
        self._connection_id = f"conn-{self._mint()}"
        self._framer = LineFramer(MAX_FRAME_BYTES)
        hello = data.Hello((v2.ABI,), (V1,), self._master_id)
        frame = data.build(
            hello, Correlation(self._connection_id), capabilities=tuple(sorted(CAPABILITIES))
        )
        self._actions.append(Write(v2.encode(frame)))
        return self._answer()

    def data_received(self, chunk: bytes, now: float) -> list[Action]:
        """Bytes of the slave's."""
        lines: list[bytes]
        too_long = False
        try:
            lines = self._framer.feed(chunk)
        except FrameTooLong as fault:
            lines, too_long = list(fault.lines), True
        for line in lines:
            if self.state not in ("greeting", "open"):
                break
            try:
                self._frame(v2.parse(line, "slave"), len(line), now)
            except FrameFault as fault:
                self._broken(f"the slave sent no frame of this ABI: {fault}", now)
        if too_long and self.state in ("greeting", "open"):
            self._broken("the slave sent a frame that is too long", now)
        return self._answer()

    def peer_lost(self, reason: str, now: float) -> list[Action]:
        """There is no connection (any more)."""
        if self.state in ("connecting", "greeting", "open"):
            self._lost(reason, now)
        return self._answer()

    def refused(self, code: str, message: str) -> list[Action]:
        """The slave may not be trusted, or cannot be talked to: all is over."""
        if self.state != "over":
            self._end(code, message)
        return self._answer()

    def time_passed(self, now: float) -> list[Action]:
        """Do what is due."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            if self.state == "greeting":
                self._broken("the slave does not answer", now)
            elif self.state == "waiting":
                self._connect()
        for each in list(self.attachments.values()):
            if each.ack_at is not None and now >= each.ack_at:
                each.acknowledge()
            if each.retry_at is not None and now >= each.retry_at:
                each.retry_at = None
                self._attach(each, now)
        return self._answer()

    # Frames

    def _frame(self, frame: Frame, size: int, now: float) -> None:
        ids = frame.correlation
        content = data.read(frame)
        if ids.connection_id != self._connection_id:
            raise FrameFault("$.correlation.connection_id", "that of the hello")
        if ids.attachment_id is None:
            self._connection_frame(content, now)
            return
        attachment = self._by_wire.get(ids.attachment_id)
        if attachment is None or self.state != "open":
            return  # of an attachment that we have left
        if attachment.state == "attaching":
            if isinstance(content, data.Attached):
                attachment.attached(content)
            elif isinstance(content, Error) and ids.depth == ATTACHMENT:
                self._attach_refused(attachment, content, now)
            return
        if isinstance(content, data.Attached):
            raise FrameFault("$.event.kind", "attached only once")
        if isinstance(content, data.Gap):
            attachment.gap(content)
        elif isinstance(content, Error) and ids.depth == ATTACHMENT:
            self._attachment_error(attachment, frame, content, size, now)
        elif isinstance(content, Error) and content.code == Code.UNKNOWN_ATTACHMENT:
            self._again(attachment, content.message, now)
        elif frame.session_seq is not None and frame.kind != "ack":
            if not attachment.fact(frame, content, size):  # type: ignore[arg-type]  # the slave's
                self._leave(attachment)
                self._again(attachment, "facts were missing", now)
        else:
            attachment.live(frame, content, size)  # type: ignore[arg-type]  # the slave's
        if attachment.inbox.is_full and attachment.state == "attached":
            self._leave(attachment)
            attachment.must_drain = True
            self._again(attachment, "too much waits for the application", now)

    def _connection_frame(self, content: object, now: float) -> None:
        match content:
            case data.Limits() if self.state == "greeting":
                self.state = "open"
                self._deadline = None
                self.limits = content
                self._actions.append(Opened())
                for attachment in list(self.attachments.values()):
                    self._attach(attachment, now)
            case Error(code=Code.UNSUPPORTED_VERSION):
                self._end(content.code, content.message)
            case Error() as error:
                self._broken(f"{error.code}: {error.message}", now)
            case _:
                raise FrameFault("$.event.kind", "a welcome, once")

    def _attach(self, attachment: Attachment, now: float) -> None:
        """Attach it if it is to be and may be."""
        if self.state != "open" or attachment.state != "waiting" or attachment.retry_at is not None:
            return
        if attachment.must_drain and len(attachment.inbox):
            return
        attachment.must_drain = False
        if len(self._by_wire) >= self.limits.max_attachments:
            limit = self.limits.max_attachments
            self._drop(attachment, Error.of(Code.LIMIT_EXCEEDED, f"at most {limit} attachments"))
            return
        line = attachment.attach(self._connection_id, self.limits)
        self._by_wire[attachment.wire_id] = attachment
        self._actions.append(Write(line))

    def _attach_refused(self, attachment: Attachment, error: Error, now: float) -> None:
        self._by_wire.pop(attachment.wire_id, None)
        may_come = error.code in OPENING or is_passing(error)
        if not may_come or not attachment.was_attached:
            self._drop(attachment, error)
            return
        attachment.state = "waiting"
        ceiling = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(attachment.retries, 10))
        attachment.retries += 1
        attachment.retry_at = now + self._random() * ceiling

    def _attachment_error(
        self, attachment: Attachment, frame: Frame, error: Error, size: int, now: float
    ) -> None:
        if error.code in STAYING:
            attachment.live(frame, error, size)
            return
        self._by_wire.pop(attachment.wire_id, None)
        if error.code == Code.SLOW_CONSUMER:
            attachment.must_drain = True
            self._again(attachment, error.message, now)
        elif is_passing(error):
            attachment.parted(error.message, tell=True)
            attachment.retry_at = now + NO_ROOM_SECONDS * (1.0 + self._random()) / 2.0
        elif error.code in (Code.UNKNOWN_ATTACHMENT, Code.SESSION_LOCKED):
            self._again(attachment, error.message, now)
        else:
            self._drop(attachment, error)

    def _again(self, attachment: Attachment, reason: str, now: float) -> None:
        """Take it up anew on this connection."""
        self._by_wire.pop(attachment.wire_id, None)
        attachment.parted(reason, tell=False)
        self._attach(attachment, now)

    def _leave(self, attachment: Attachment) -> None:
        if self._by_wire.pop(attachment.wire_id, None) is not None and self.state == "open":
            self._actions.append(Write(attachment.detach()))

    def _drop(self, attachment: Attachment, error: Error) -> None:
        """The attachment is over; its last events are still to be taken."""
        self._by_wire.pop(attachment.wire_id, None)
        attachment.ended(error)

    # The connection

    def _connect(self) -> None:
        self.state = "connecting"
        self._deadline = None
        self._actions.append(Connect())

    def _broken(self, reason: str, now: float) -> None:
        self._actions.append(Close(abort=True))
        self._lost(reason, now)

    def _lost(self, reason: str, now: float) -> None:
        if self.state == "open":
            self._backoff.stayed_up(now - self._since)
        self.state = "waiting"
        self._by_wire.clear()
        delay = self._backoff.next_delay()
        self._deadline = now + delay
        self._actions.append(Lost(reason, delay))
        for attachment in self.attachments.values():
            attachment.parted(reason, tell=True)

    def _end(self, code: str, message: str) -> None:
        if self.state in ("greeting", "open", "connecting"):
            self._actions.append(Close())
        self.state = "over"
        self._deadline = None
        self._by_wire.clear()
        for attachment in self.attachments.values():
            attachment.ended(Error(code, message, False))
        self._actions.append(Over(message))

    # Inside

    def _ask(self, key: int, request: Request) -> tuple[str, list[Action]]:
        self._find(key).ask(request)
        return request.id, self._answer()

    def _find(self, key: int) -> Attachment:
        if key not in self.attachments:
            raise SessionRefused("closed", "the attachment is over")
        return self.attachments[key]

    def _answer(self) -> list[Action]:
        # The list is shared with the attachments: it is emptied, not replaced.
        actions = list(self._actions)
        self._actions.clear()
        return actions


def is_passing(error: Error) -> bool:
    """Whether a log could not be written for want of room: that may be over by itself."""
    return error.code == Code.SESSION_IO and error.retryable
