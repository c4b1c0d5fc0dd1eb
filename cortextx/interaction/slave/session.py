"""The mailbox of one session: one order, one writer, one run at a time (PURE).

Every input is a method in the past tense that answers with actions. A fact gets its
seq when it is decided on, and its effects (its publication, the start or end of a run,
the answer to a command) come once it is durable (I12). `now` is in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cortextx.core import exchange
from cortextx.core.exchange import Accepted as Approved
from cortextx.core.exchange import Command, Notify, Rejected, Result, RunStatus
from cortextx.core.mending import mend_text
from cortextx.errors import LocalProtocolError
from cortextx.interaction import data
from cortextx.interaction.faults import Code
from cortextx.interaction.parts import DATA_BYTES_BOTH, split
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    CancelAsked,
    CancelRun,
    Claimed,
    ClearRuns,
    Fail,
    InputAsked,
    Known,
    PauseRun,
    Publish,
    Refuse,
    Resolve,
    ResumeRun,
    Send,
    SessionAction,
    StartRun,
    StatusAsked,
    conflict,
    log_failed,
)
from cortextx.interaction.slave.commands import (
    Pending,
    Resolutions,
    content_of,
    fact_of,
    late_answer,
    refused_answer,
    unknown,
)
from cortextx.interaction.slave.ledger import Claim, Ledger
from cortextx.interaction.slave.lines import Beside, Ids
from cortextx.interaction.slave.runs import (
    Run,
    messages_of,
    repeated,
    request_of,
    tool_of,
    waiting_of,
    why_not,
)
from cortextx.interaction.slave.writing import Writing
from cortextx.interfaces.sessions import RunOutcome, SessionKey

MAX_REASON = 2000
"""Characters of a runtime's reason for its end that masters are told."""
STOPPING = "the slave stops"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Bounds of a session; `workspace` is where a run works that nobody told otherwise."""

    workspace: str = "/"
    history_bytes: int = 0
    max_pending_requests: int = 32
    max_pending_commands: int = 16
    max_queue: int = 256
    approval_seconds: float = 600.0
    pause_bytes: int = 4 << 20


class SessionMachine:
    """See the module. `mint` gives fresh identifiers, `wall` the time in µs."""

    def __init__(
        self,
        key: SessionKey,
        settings: SessionSettings,
        mint: Callable[[], str],
        wall: Callable[[], int],
    ) -> None:
        self.key = key
        self.state: Literal["recovering", "ready", "failed"] = "recovering"
        self.ledger = Ledger(settings.history_bytes)
        self.settings = settings
        self._resume_bytes = settings.pause_bytes // 4
        self._mint = mint
        self._writing = Writing(wall)
        self._active: Run | None = None
        self._queue: deque[Run] = deque()
        self._resolutions = Resolutions()
        self._actions: list[SessionAction] = []
        self._is_stopping = False

    @property
    def head(self) -> int:
        """The seq of the newest fact, 0 without any."""
        return self._writing.head

    @property
    def durable(self) -> int:
        """The seq of the newest fact on disk."""
        return self._writing.durable

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits, or is on its way to the disk."""
        return self._active is None and not self._queue and self.durable == self.head

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due."""
        if self._active is None or not self._active.pending:
            return None
        return min(pending.deadline for pending in self._active.pending.values())

    # Recovery (I13)

    def log_found(self, head: int) -> None:
        """The log is there, with facts up to `head`; its lines follow."""
        self._writing.head = self._writing.durable = head

    def line_read(self, line: bytes) -> None:
        """Take note of a line of the log, in order, before `recovered`."""
        self.log_found(self.ledger.line_read(line))

    def recovered(self) -> list[SessionAction]:
        """All lines were read."""
        if self.ledger.unfinished:
            return [ClearRuns(tuple(self.ledger.unfinished))]
        self.state = "ready"
        return []

    def cleared(self) -> list[SessionAction]:
        """Nothing of the runs of a dead slave is left: end them in the log (B25)."""
        self.state = "ready"
        for run_id, open_run in list(self.ledger.unfinished.items()):
            ids = Ids(open_run.request_id, run_id)
            self._close_calls(run_id, ids)
            self._finish(run_id, ids, "interrupted", None)
        return self._answer()

    # The mailbox

    def knows(self, request_id: str) -> bool:
        """Whether this id is claimed here."""
        return self.ledger.claim(request_id) is not None

    def input_asked(self, item: InputAsked) -> list[SessionAction]:
        """An input: a claim, a fact, and a run in its turn (I10, I29)."""
        ids = Ids(item.request_id)
        if self.state == "failed":
            return [log_failed(item.asker, ids)]
        known = self.ledger.claim(item.request_id)
        if known is not None:
            return [repeated(item, known, self.durable)]
        if self._is_stopping:
            return [Refuse.of(item.asker, Code.BUSY, STOPPING, ids)]
        runs = self._runs()
        if (
            waiting_of(runs, item.asker) >= self.settings.max_pending_requests
            or len(runs) >= self.settings.max_queue
        ):
            return [Refuse.of(item.asker, Code.BUSY, "too many requests are pending", ids)]
        run_id = f"run-{self._mint()}"
        beside = Beside(
            claim=item.claim.hex(),
            uid=item.uid,
            origin=item.origin,
            cwd=item.cwd,
            workspace=item.workspace,
        )
        run_ids = Ids(item.request_id, run_id)
        accepted = self._writing.append(data.Accepted(), run_ids, beside)
        self.ledger.accepted(accepted, item.request_id, run_id, beside)
        self._say(run_ids, "user", item.text)
        run = Run(run_id, item, accepted, item.asker, item.asker)
        self._queue.append(run)
        self._actions.append(Claimed(item.asker, item.request_id, run_id))
        self._start_next()
        return self._answer()

    def cancel_asked(self, item: CancelAsked, now: float) -> list[SessionAction]:
        """A cancel: its claim is durable before anything is ended (I8, I30, I36)."""
        ids = Ids(item.request_id, item.run_id)
        if self.state == "failed":
            return [log_failed(item.asker, ids)]
        claim = self.ledger.run(item.run_id)
        known = self.ledger.claim(item.request_id)
        if known is not None and not known.is_same("cancel", item.claim):
            return [conflict(item.asker, ids)]
        if claim is None:
            return [Refuse.of(item.asker, Code.UNKNOWN_RUN, "this session has no such run", ids)]
        if claim.done:
            self._tell_end(item, claim)
            return self._answer()
        if known is not None:
            input_id = self.ledger.unfinished[item.run_id].request_id
            return [Known(item.asker, input_id, item.run_id, 0, 0)]
        run = next(run for run in self._runs() if run.run_id == item.run_id)
        beside = Beside(
            claim=item.claim.hex(), uid=item.uid, request_id=item.request_id, run=item.run_id
        )
        state = data.SessionState("active", "cancelling", run.steps, self.head + 1)
        seq = self._writing.append(state, Ids(run.item.request_id), beside)
        self.ledger.cancel_claimed(seq, beside)
        self._actions.append(Claimed(item.asker, run.item.request_id, item.run_id))
        if run.state == "queued":
            self._queue.remove(run)
            run.state = "over"
            self._finish(run.run_id, Ids(run.item.request_id, run.run_id), "cancelled", None)
            self._start_next()
        elif run.state == "running":
            run.state = "cancelling"
            self._resolve_all(run, "cancelled")
            self._writing.then(CancelRun(run.run_id))
        return self._answer()

    def answer_given(self, item: AnswerGiven) -> list[SessionAction]:
        """The answer to a command: the first in append order counts (B13, I31)."""
        if self.state == "failed":
            return [log_failed(item.asker, item.ids)]
        resolved = self._resolutions.find(item.ids.command_id)
        if resolved is not None:
            late = late_answer(item, resolved)
            return [] if late is None else [late]
        run = self._active
        pending = None if run is None else run.pending.get(item.ids.command_id or "")
        if run is None or pending is None:
            return [unknown(item)]
        refused = refused_answer(item, run.origin, pending)
        if refused is not None:
            return [refused]
        self._resolve(run, pending, item.result, None)
        return self._answer()

    def status_asked(self, item: StatusAsked) -> list[SessionAction]:
        """How the session is doing."""
        run = self._active or (self._queue[0] if self._queue else None)
        phase = None
        if run is not None:
            phase = "waiting" if run.pending else run.state
        state = data.SessionState(
            "idle" if self.is_idle else "active", phase, run.steps if run else 0, self.durable
        )
        return [Send(item.asker, state, Ids(item.request_id))]

    def asker_left(self, asker: int) -> list[SessionAction]:
        """An attachment is gone: its commands fail closed, its runs go on (I11)."""
        for run in self._runs():
            if run.listener == asker:
                run.listener = None
        return self.asker_muted(asker)

    def asker_muted(self, asker: int) -> list[SessionAction]:
        """An asker can answer no more, but still listens (I35)."""
        for run in self._runs():
            if run.origin == asker:
                run.origin = None
                self._resolve_all(run, "origin_lost")
        return self._answer()

    # From the run

    def run_started(self, run_id: str, model: str | None) -> list[SessionAction]:
        """The runtime executes the run."""
        run = self._running(run_id)
        if run is None or run.started:
            return []
        self._started(run, model)
        return self._answer()

    def emitted(
        self, run_id: str, event: exchange.Delta | exchange.Message | exchange.ToolCall
    ) -> list[SessionAction]:
        """The run put something out (I12, I33, I40)."""
        run = self._running(run_id)
        if run is None:
            return []
        if not run.started:
            self._started(run, None)
        ids = Ids(run.item.request_id, run_id)
        match event:
            case exchange.Delta(text=text):
                self._delta(run, ids, text)
            case exchange.Message(role=role, text=text):
                run.steps += 1
                self._say(ids, role, text)
            case exchange.ToolCall():
                run.steps += 1
                tool, mended = tool_of(event)
                self._writing.append(tool, ids, Beside(mended=True) if mended else None)
                self.ledger.tool(run_id, tool)
        return self._answer()

    def command_asked(
        self, run_id: str, command: Command, effect_id: str | None, token: object, now: float
    ) -> list[SessionAction]:
        """The run wants something of its origin; `token` comes back with the answer."""
        run = self._running(run_id)
        if run is None or run.state != "running":
            return [Resolve(token, Rejected("cancelled"))]
        if not run.started:
            self._started(run, None)
        run.commands += 1
        ids = Ids(run.item.request_id, run_id, f"{run_id}.{run.commands}")
        refusal = why_not(run, command, self.settings.max_pending_commands)
        try:
            content = content_of(command, effect_id)
        except LocalProtocolError:
            refusal, effect_id = "the command cannot be sent", None
        pending = Pending(ids, effect_id, token, now + self.settings.approval_seconds)
        if refusal is None and run.origin is not None:
            self._actions.append(Send(run.origin, content, ids, self.head))
        run.pending[pending.command_id] = pending
        if refusal is not None:
            self._resolve(run, pending, Rejected(refusal), refusal)
        elif isinstance(command, Notify):
            self._resolve(run, pending, Approved(), None)
        return self._answer()

    def run_ended(self, run_id: str, outcome: RunOutcome) -> list[SessionAction]:
        """Nothing of the run is left; its one terminal fact follows (B23)."""
        run = self._running(run_id)
        if run is None:
            return []
        cancelled = run.state == "cancelling" and run.kill_due
        if self._is_stopping and not cancelled and outcome.status == "cancelled":
            outcome = RunOutcome("interrupted", STOPPING)
        status: RunStatus = "cancelled" if cancelled else outcome.status
        self._resolve_all(run, "cancelled" if cancelled else "run_over")
        ids = Ids(run.item.request_id, run_id)
        if status != "completed":
            self._close_calls(run_id, ids)
        message = None if status in ("completed", "cancelled") else outcome.message
        self._active = None
        run.state = "over"
        self._finish(run_id, ids, status, message)
        self._start_next()
        return self._answer()

    def stopping(self) -> list[SessionAction]:
        """The slave stops: what waits is over, no run starts, and none is ended as cancelled."""
        self._is_stopping = True
        while self._queue:
            run = self._queue.popleft()
            run.state = "over"
            ids = Ids(run.item.request_id, run.run_id)
            self._finish(run.run_id, ids, "interrupted", STOPPING)
        return self._answer()

    # From the disk and the clock

    def appended(self, head: int) -> list[SessionAction]:
        """All facts up to `head` are durable."""
        due = self._writing.written(head)
        self._actions.append(Publish(head))
        for action in due:
            if isinstance(action, CancelRun):
                run = self._running(action.run_id)
                if run is None:
                    continue
                run.kill_due = True
            self._actions.append(action)
        self._start_next()
        run = self._active
        if run is not None and run.paused and self._writing.flying < self._resume_bytes:
            run.paused = False
            self._actions.append(ResumeRun(run.run_id))
        return self._answer()

    def append_failed(self, code: Code, message: str, passing: bool = False) -> list[SessionAction]:
        """Facts did not become durable: all ends (I13); `passing` if it may go well opened anew."""
        if self.state == "failed":
            return []
        self.state = "failed"
        actions: list[SessionAction] = []
        if self._active is not None:
            for pending in self._active.pending.values():
                actions.append(Resolve(pending.token, Rejected("session_io")))
            actions.append(CancelRun(self._active.run_id))
        actions += [
            Resolve(waited.token, Rejected("session_io")) for waited in self._writing.abandon()
        ]
        self._queue.clear()
        self._actions.clear()
        self._active = None
        return [*actions, Fail(data.Error(code.value, message, passing or code.retryable))]

    def time_passed(self, now: float) -> list[SessionAction]:
        """Commands that nobody answered expire (I39)."""
        run = self._active
        if run is not None:
            for pending in list(run.pending.values()):
                if pending.deadline <= now:
                    self._resolve(run, pending, Rejected("expired"), "expired")
        return self._answer()

    # Inside

    def _runs(self) -> list[Run]:
        return [*([] if self._active is None else [self._active]), *self._queue]

    def _running(self, run_id: str) -> Run | None:
        run = self._active
        return run if run is not None and run.run_id == run_id else None

    def _tell_end(self, item: CancelAsked, claim: Claim) -> None:
        """A cancel of a run that is over is answered by its end, once that is durable (I8)."""
        known = Known(item.asker, item.request_id, item.run_id, 0, claim.done)
        if claim.done <= self.durable:
            self._actions.append(known)
        else:
            self._writing.then(known)

    def _start_next(self) -> None:
        if self._active is not None or not self._queue or self.state != "ready":
            return
        if self._queue[0].accepted > self.durable:
            return
        run = self._active = self._queue.popleft()
        run.state = "running"
        later = {waiting.item.request_id for waiting in self._queue}
        request = request_of(self.key, run, self.ledger, self.settings.workspace, later)
        self._actions.append(StartRun(request))

    def _started(self, run: Run, model: str | None) -> None:
        run.started = True
        name = None if model is None else mend_text(model[:256])[0]
        self._writing.append(data.Started(name), Ids(run.item.request_id, run.run_id))

    def _delta(self, run: Run, ids: Ids, text: str) -> None:
        if run.listener is None or run.state != "running":
            return
        for part in split(data.Delta(mend_text(text)[0]), DATA_BYTES_BOTH):
            self._actions.append(Send(run.listener, part, ids, self.head, droppable=True))

    def _say(self, ids: Ids, role: str, text: str) -> None:
        messages, mended = messages_of(role, text)
        for message in messages:
            self._writing.append(message, ids, Beside(mended=True) if mended else None)
            self.ledger.message(ids.request_id or "", ids.run_id or "", message)

    def _finish(self, run_id: str, ids: Ids, status: RunStatus, why: str | None) -> None:
        error = None
        if why is not None:
            error = data.Error.of(Code.INTERNAL, mend_text(why[:MAX_REASON])[0])
        seq = self._writing.append(data.Done(status, error), ids)
        self.ledger.done(seq, run_id, status)

    def _close_calls(self, run_id: str, ids: Ids) -> None:
        open_run = self.ledger.unfinished.get(run_id)
        for call_id, name in list(open_run.calls.items()) if open_run is not None else ():
            tool = data.Tool(call_id, name, "interrupted")
            self._writing.append(tool, ids)
            self.ledger.tool(run_id, tool)

    # Commands

    def _resolve_all(self, run: Run, reason: str) -> None:
        for pending in list(run.pending.values()):
            self._resolve(run, pending, Rejected(reason), reason)

    def _resolve(self, run: Run, pending: Pending, result: Result, reason: str | None) -> None:
        """End a command: a fact first, then the answer to the run."""
        del run.pending[pending.command_id]
        self._resolutions.note(run.item.asker, pending, result, reason)
        ids = Ids(run.item.request_id, run.run_id)
        self._writing.append(fact_of(pending, result, reason), ids)
        self._writing.then(Resolve(pending.token, result))

    def _answer(self) -> list[SessionAction]:
        """The actions that came together, lines to be appended first."""
        actions, self._actions = self._actions, []
        group = self._writing.group()
        if group is not None:
            actions.append(group)
            run = self._active
            if (
                run is not None
                and not run.paused
                and run.state == "running"
                and self._writing.flying > self.settings.pause_bytes
            ):
                run.paused = True
                actions.append(PauseRun(run.run_id))
        return actions
