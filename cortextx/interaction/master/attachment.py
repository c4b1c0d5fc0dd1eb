"""One attachment as a master sees it, over as many connections as it takes (PURE).

It keeps the cursor, tells repeats and holes, and knows what was asked for and not
answered, so that all of it can be taken up again on another connection. The cursor
that a connection is resumed with is what is in the inbox; what is acknowledged is
what the application has dealt with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

from cortextx.core.exchange import Notify, Rejected, Result
from cortextx.errors import LocalProtocolError, SessionRefused
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import (
    Accepted,
    Command,
    CommandResolved,
    Done,
    Error,
    Gap,
    Limits,
    SessionState,
)
from cortextx.interaction.faults import Code
from cortextx.interaction.master.actions import (
    ATTACH,
    Action,
    Outcome,
    Ready,
    RunAccepted,
    Settled,
    Write,
)
from cortextx.interaction.master.effects import EffectRecord, digest_of
from cortextx.interaction.master.events import (
    Attached,
    CommandLost,
    Content,
    Detached,
    Disconnected,
    Effect,
    Event,
    Place,
    Warned,
)
from cortextx.interaction.master.inbox import Inbox
from cortextx.interaction.master.requests import OpenCommand, Request

MAX_WAITING = 256
"""Requests of an attachment that are asked for and not ended, sent or not."""
MAX_KNOWN = 4096
"""Own requests, and seqs of a reader that does not see all, that are remembered."""
ACK_SECONDS = 0.2

State = Literal["waiting", "attaching", "attached", "over"]
OPENING: frozenset[str] = frozenset({Code.SESSION_LOCKED, Code.BUSY, Code.LIMIT_EXCEEDED})
"""Refusals that are tried again a little later, where it was attached before."""
STAYING: frozenset[str] = frozenset({Code.INVALID_ACK, Code.BAD_FRAME, Code.BUSY})
"""Errors on a whole attachment that leave it attached."""


class Attachment:
    """See the module. Its frames and what it tells go to `actions`."""

    def __init__(
        self,
        key: int,
        place: Place,
        actions: list[Action],
        effects: EffectRecord,
        inbox: Inbox,
    ) -> None:
        self.key = key
        self.place = place
        self.inbox = inbox
        self.state: State = "waiting"
        self.wire_id = ""
        self.cursor = place.after
        self.processed = place.after
        self.head = 0
        self.retry_at: float | None = None
        self.retries = 0
        self.must_drain = False
        self.ack_at: float | None = None
        self.requests: dict[str, Request] = {}
        self.commands: dict[str, OpenCommand] = {}
        self._actions = actions
        self._effects = effects
        self._connection_id = ""
        self._limits = data.DEFAULT_LIMITS
        self._times = 0
        self._acked = 0
        self._unacked = 0
        self._hole: int | None = None
        self._own: dict[str, None] = {}
        self._seen: deque[int] = deque(maxlen=MAX_KNOWN)
        self.was_attached = False

    # To the slave

    def attach(self, connection_id: str, limits: Limits) -> bytes:
        """The frame that attaches it, from the cursor on, under an id of its own."""
        self._connection_id = connection_id
        self._limits = limits
        self._times += 1
        self.wire_id = f"a{self.key}" if self._times == 1 else f"a{self.key}.{self._times}"
        self.state = "attaching"
        self.retry_at = None
        place = self.place
        content = data.Attach(place.agent, place.scope, place.space, self.cursor, place.owner)
        frame = data.build(
            content,
            Correlation(connection_id, self.wire_id),
            capabilities=place.asks_for,
            mode=place.mode,
            session=place.session,
        )
        return v2.encode(frame)

    def detach(self) -> bytes:
        """The frame that detaches it."""
        return v2.encode(data.build(data.Detach(), Correlation(self._connection_id, self.wire_id)))

    def ask(self, request: Request) -> None:
        """Take a request and send it when it may be; raises SessionRefused or LocalProtocolError.

        It is sent once more on every new connection until it is answered (I10).
        """
        if self.state == "over":
            raise SessionRefused("closed", "the attachment is over")
        if request.id in self.requests:
            raise SessionRefused("busy", "this request_id waits for its answer already")
        if len(self.requests) >= MAX_WAITING:
            raise SessionRefused("busy", "too many requests wait to be answered", True)
        request.line("c" * 128, "a" * 128)  # whether it can be said at all
        self.requests[request.id] = request
        if request.kind == "input":
            self._own[request.id] = None
            if len(self._own) > MAX_KNOWN:
                del self._own[next(iter(self._own))]
        self.send_requests()

    def forget(self, request_id: str) -> None:
        """Nobody waits for this request any more."""
        self.requests.pop(request_id, None)

    def send_requests(self) -> None:
        """Send what was not yet sent on this connection and may be (max_pending_requests)."""
        if self.state != "attached":
            return
        pending = sum(r.is_sent and r.kind != "cancel" for r in self.requests.values())
        for request in self.requests.values():
            if request.is_sent:
                continue
            if request.kind != "cancel":
                if pending >= self._limits.max_pending_requests_per_attachment:
                    continue
                pending += 1
            request.is_sent = True
            request.times += 1
            self._write(request.line(self._connection_id, self.wire_id))

    def answer(self, command_id: str, result: Result, *, wait: bool) -> None:
        """Answer a command; with `wait` its outcome is settled under its id.

        Raises SessionRefused if it is not open, and LocalProtocolError for what cannot
        be said.
        """
        command = self.commands.get(command_id)
        if command is None:
            message = "the command is not open (any more)"
            raise SessionRefused(Code.UNKNOWN_COMMAND, message)
        if command.result is not None:
            raise SessionRefused(Code.COMMAND_CONFLICT, "the command was answered already")
        self._give(command, result)
        command.is_waited_for = wait

    def answer_effect(self, effect_id: str, result: Result, besides: str) -> None:
        """An effect has ended: answer all open commands for it but `besides`."""
        for command in self.commands.values():
            is_other = command.id != besides and command.result is None
            if is_other and command.effect_id == effect_id:
                self._give(command, result)

    def _give(self, command: OpenCommand, result: Result) -> None:
        command.result = result
        try:
            self._write(command.line(self._connection_id, self.wire_id))
        except LocalProtocolError:
            command.result = None
            raise

    def processed_to(self, seq: int, now: float) -> None:
        """The application has dealt with all up to here; acknowledge it soon."""
        if self.state == "over":
            return
        self.processed = max(self.processed or 0, seq)
        if self.state != "attached":
            return  # a new attachment begins beyond it
        self._unacked += 1
        if self._unacked >= max(1, self._limits.max_unacked_events_per_attachment // 4):
            self.acknowledge()
        elif self.ack_at is None:
            self.ack_at = now + ACK_SECONDS

    def acknowledge(self) -> None:
        """Send the cumulative acknowledgement, if there is anything to tell (I32)."""
        self.ack_at = None
        self._unacked = 0
        seq = self.processed or 0
        if self.state == "attached" and seq > self._acked:
            self._acked = seq
            ids = Correlation(self._connection_id, self.wire_id)
            self._write(v2.encode(data.build(data.Ack(), ids, session_seq=seq)))

    # From the slave

    def attached(self, content: data.Attached) -> None:
        """It is attached."""
        if self.cursor is None:
            self.cursor = self.processed = content.replay_from - 1
        self._acked = self.cursor
        self.head = content.head
        self.state = "attached"
        self.retries = 0
        told = Attached(content.replay_from, content.head, self.was_attached)
        if not self.was_attached:
            self.was_attached = True
            self._actions.append(Settled(self.key, ATTACH, told))
        self._put(Event(told))
        self.send_requests()

    def fact(self, frame: v2.Frame, content: Content, size: int) -> bool:
        """A durable frame; False if facts before it are missing.

        What answers a request that was sent again comes before its turn (I10): it
        settles the request, and is a fact of the transcript when its turn has come.
        """
        seq = frame.session_seq
        ids = frame.correlation
        assert seq is not None and self.cursor is not None
        if isinstance(content, Accepted | Done):
            self._settle_run(ids, content)
        elif isinstance(content, CommandResolved):
            self._settle_command(content)
        if not self.place.sees_all:
            if seq not in self._seen:
                self._seen.append(seq)
                self._put_fact(frame, content, size)
            if not self._is_ahead(ids.request_id):
                self.cursor = max(self.cursor, seq)
            return True
        if seq <= self.cursor:
            return True
        if seq > self.cursor + 1:
            if ids.request_id in self._own and isinstance(content, Accepted | Done):
                return True
            if self._hole != self.cursor:
                self._hole = self.cursor
                return False
            self._put(Event(Gap(self.cursor + 1, seq - 1, "missing"), seq - 1))
        self._hole = None
        self.cursor = seq
        self._put_fact(frame, content, size)
        return True

    def gap(self, content: Gap) -> None:
        """Facts that are not there any more (I9)."""
        if self.cursor is not None and content.to_seq > self.cursor:
            self.cursor = content.to_seq
            self._put(Event(content, content.to_seq))

    def live(self, frame: v2.Frame, content: Content, size: int) -> None:
        """A frame that is no fact."""
        ids = frame.correlation
        match content:
            case Command():
                self._commanded(frame, content, size)
            case SessionState() if self._settle(ids.request_id, "status", content):
                pass
            case Error():
                self._refused(ids, content)
            case _:
                self._put(self._event(frame, content), size)

    def _is_ahead(self, request_id: str | None) -> bool:
        request = None if request_id is None else self.requests.get(request_id)
        return request is not None and request.times > 1

    def _put_fact(self, frame: v2.Frame, content: Content, size: int) -> None:
        self._put(self._event(frame, content), size)

    def _event(self, frame: v2.Frame, content: Content, effect: Effect = "none") -> Event:
        ids, seq = frame.correlation, frame.session_seq
        return Event(
            content,
            seq,
            ids.request_id,
            ids.run_id,
            ids.command_id,
            is_replay=seq is not None and seq <= self.head,
            is_own=ids.request_id in self._own,
            effect=effect,
        )

    # Commands

    def _commanded(self, frame: v2.Frame, content: Command, size: int) -> None:
        ids = frame.correlation
        command_id, request_id, run_id = ids.command_id, ids.request_id, ids.run_id
        assert command_id is not None and request_id is not None and run_id is not None
        if isinstance(content.command, Notify):
            self._put(self._event(frame, content), size)
            return
        known = self.commands.get(command_id)
        if known is not None:
            if known.result is not None:  # it is asked again: the answer may be lost
                self._write(known.line(self._connection_id, self.wire_id))
            return
        opened = OpenCommand(command_id, request_id, run_id, content.command, content.effect_id)
        self.commands[command_id] = opened
        if len(self.commands) > self._limits.max_pending_commands_per_attachment:
            self.answer(command_id, Rejected("too many commands are open"), wait=False)
            return
        effect = self._effect_of(opened)
        if effect is not None:
            self._put(self._event(frame, content, effect), size)

    def _effect_of(self, command: OpenCommand) -> Effect | None:
        """How a command's effect stands, or None if the application is not to hear of it."""
        if command.effect_id is None:
            return "none"
        known = self._effects.find(command.effect_id)
        if known is None:
            return "new"
        if known.digest != digest_of(command.command):
            self.answer(command.id, Rejected("effect_conflict"), wait=False)
            return None
        if known.result is not None:
            self.answer(command.id, known.result, wait=False)
            return None
        # If it is by us, just now, its result answers this one too.
        return None if known.state == "attempting" else "unknown"

    def take(self) -> Event | None:
        """The oldest event that waits.

        While a command waited it may have been lost (then nobody is to act on it), or
        its effect carried out for another one.
        """
        while (event := self.inbox.take()) is not None:
            if not isinstance(event.content, Command) or isinstance(event.content.command, Notify):
                return event
            command = self.commands.get(event.command_id or "")
            if command is None or command.result is not None:
                continue
            effect = self._effect_of(command)
            if effect is not None:
                return replace(event, effect=effect)
        return None

    def _settle_command(self, content: CommandResolved) -> None:
        command = self.commands.pop(content.command_id, None)
        if command is not None and command.is_waited_for:
            self._actions.append(Settled(self.key, command.id, content))

    def _lose_commands(self, why: Error, run_id: str | None = None) -> None:
        """Those of a run that is over, or all (B10)."""
        for command in list(self.commands.values()):
            if run_id is not None and command.run_id != run_id:
                continue
            del self.commands[command.id]
            if command.is_waited_for:
                self._actions.append(Settled(self.key, command.id, why))
            lost = CommandLost(command.id)
            self._put(Event(lost, None, command.request_id, command.run_id, command.id))

    # Requests

    def _settle(
        self, request_id: str | None, kind: str, outcome: Outcome, *, is_last: bool = True
    ) -> bool:
        request = None if request_id is None else self.requests.get(request_id)
        if request is None or (kind and request.kind != kind):
            return False
        self._actions.append(Settled(self.key, request.id, outcome))
        if is_last:
            del self.requests[request.id]
            self.send_requests()
        return True

    def _settle_run(self, ids: Correlation, content: Accepted | Done) -> None:
        run_id = ids.run_id
        assert run_id is not None
        request = None if ids.request_id is None else self.requests.get(ids.request_id)
        if request is not None and request.kind == "input" and not request.is_accepted:
            request.is_accepted = True
            request.run_id = run_id
            self._settle(request.id, "input", RunAccepted(run_id), is_last=False)
        if isinstance(content, Done):
            self._settle(ids.request_id, "input", content)
            self._lose_commands(Error(Code.UNKNOWN_COMMAND, "the run is over", False), run_id)
            for each in list(self.requests.values()):
                if each.kind == "cancel" and each.run_id == run_id:
                    self._settle(each.id, "cancel", content)

    def _refused(self, ids: Correlation, error: Error) -> None:
        if ids.command_id is not None:
            command = self.commands.pop(ids.command_id, None)
            if command is not None and command.is_waited_for:
                self._actions.append(Settled(self.key, command.id, error))
                return
        elif self._settle(ids.request_id, "", error):
            return
        warned = Warned(error.code, error.message)
        self._put(Event(warned, None, ids.request_id, ids.run_id, ids.command_id))

    # The end of a connection, and of all

    def parted(self, reason: str, *, tell: bool) -> None:
        """The attachment is gone at the slave, and is to be made anew."""
        if self.state == "over":
            return
        was = self.state
        self.state = "waiting"
        self.ack_at = None
        for request in self.requests.values():
            request.is_sent = False
        self._lose_commands(Error("origin_lost", reason, False))
        if tell and was == "attached":
            self._put(Event(Disconnected(reason)))

    def ended(self, error: Error) -> None:
        """Nothing more comes, for this reason."""
        if self.state == "over":
            return
        self.state = "over"
        self.ack_at = self.retry_at = None
        if not self.was_attached:
            self._actions.append(Settled(self.key, ATTACH, error))
        for request in self.requests.values():
            self._actions.append(Settled(self.key, request.id, error))
        self.requests.clear()
        self._lose_commands(error)
        self._put(Event(Detached(error.code, error.message)))

    def _write(self, line: bytes) -> None:
        self._actions.append(Write(line))

    def _put(self, event: Event, size: int = 0) -> None:
        self.inbox.put(event, size)
        self._actions.append(Ready(self.key))
