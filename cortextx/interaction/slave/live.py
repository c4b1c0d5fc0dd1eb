"""A session that is open: its machine, its journal, its runs, and who reads it.

The adapter of `session.SessionMachine`. All of it is on the reactor's thread; what
waits for a disk is a Deferred (I19).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from cortextx.core import exchange
from cortextx.core.exchange import Command, Rejected, Result
from cortextx.interaction.data import Error
from cortextx.interaction.faults import Code
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    Append,
    CancelAsked,
    CancelRun,
    ClearRuns,
    Facts,
    Fail,
    InputAsked,
    Item,
    PauseRun,
    Publish,
    Refuse,
    Resolve,
    ResumeRun,
    SessionAction,
    StartRun,
    StatusAsked,
    Told,
    conflict,
    error_of,
)
from cortextx.interaction.slave.appending import Appending
from cortextx.interaction.slave.heads import Heads
from cortextx.interaction.slave.lines import Ids, tail_of
from cortextx.interaction.slave.recent import PAGE_BYTES, PAGE_LINES, Recent, fetch
from cortextx.interaction.slave.session import SessionMachine, SessionSettings
from cortextx.interaction.slave.workspace import PlaceRefused, checked_places
from cortextx.interfaces.sessions import (
    IAgentRuntime,
    IRun,
    ISessionJournal,
    RunOutcome,
    SessionKey,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall


@dataclass(frozen=True, slots=True)
class Agent:
    """What serves an agent's sessions; `root` is where its runs may work (S1)."""

    runtime: IAgentRuntime
    root: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Times in seconds."""

    idle_seconds: float = 60.0
    approval_seconds: float = 600.0
    cancel_grace: float = 0.5


class Reader(Protocol):
    """Who takes part in a session under an asker's number; nothing here raises."""

    def session_opened(self, asker: int, first: int, head: int) -> None:
        """The session is there."""

    def session_failed(self, asker: int, error: Error) -> None:
        """The session cannot be had, or goes away; the asker is out of it."""

    def head_moved(self, asker: int, head: int) -> None:
        """More facts are durable."""

    def told(self, told: Told) -> None:
        """The session says something to one asker."""


class LiveSession:
    """See the module.

    `elsewhere` tells whether a request id is claimed in another open session (I21);
    `durable` is given the lines of facts once they are on disk; `closed` fires when
    the journal is closed and its lock released.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        key: SessionKey,
        open_journal: Callable[[SessionKey], ISessionJournal],
        agent: Agent,
        settings: LiveSettings,
        *,
        machine: SessionMachine,
        elsewhere: Callable[[LiveSession, str], bool],
        durable: Callable[[SessionKey, int, Sequence[bytes]], None] | None = None,
    ) -> None:
        self.key = key
        self.machine = machine
        self.closed: Deferred[None] = Deferred()
        self.is_closing = False
        self._reactor = reactor
        self._open_journal = open_journal
        self._journal: ISessionJournal | None = None
        self._agent = agent
        self._settings = settings
        self._elsewhere = elsewhere
        self._durable = durable
        self._readers: dict[int, Reader] = {}
        self._error: Error | None = None
        self._heads = Heads(reactor, self._tell_head)
        self._muted: set[int] = set()
        self._is_ready = False
        self._settled: Deferred[None] | None = None
        self._first = 1
        self._runs: dict[str, IRun] = {}
        self._todo: deque[SessionAction] = deque()
        self._doing = False
        self._appending: Appending | None = None
        self._recent = Recent()
        self._mail: deque[InputAsked] = deque()
        self._checking = False
        self._timer: IDelayedCall | None = None
        self._idle: IDelayedCall | None = None

    # Opening and closing

    def start(self, after: Deferred[None] | None = None) -> None:
        """Open the journal and recover, once `after` (a predecessor's end) has fired."""
        Deferred.fromCoroutine(self._open(after)).addErrback(self._open_failed)

    async def _open(self, after: Deferred[None] | None) -> None:
        if after is not None:
            await after
        self._journal = self._open_journal(self.key)
        state = await self._journal.open()
        self._appending = Appending(self._journal.append, self._appended, self._append_failed)
        self._first = state.first
        self.machine.log_found(state.head)
        at = state.first - 1
        while at < state.head:
            page = await self._journal.read(at, PAGE_LINES, PAGE_BYTES)
            for line in page.lines:
                self.machine.line_read(line)
            at = page.first + len(page.lines) - 1
        self._do(self.machine.recovered())
        if self.machine.state == "recovering" or self.machine.durable < self.machine.head:
            self._settled = Deferred()
            await self._settled
        if self.is_closing:
            return
        self._is_ready = True
        for asker, reader in list(self._readers.items()):
            reader.session_opened(asker, self._first, self.machine.durable)
        self._rest()

    def _open_failed(self, failure: Failure) -> None:
        error = error_of(failure.value)
        if error.code == Code.INTERNAL:
            self.log.failure("{key} cannot be opened", failure, key=self.key)
        self._fail(error)

    def stopping(self) -> None:
        """Start no more runs, and end what waits for its turn."""
        if self._is_ready and not self.is_closing:
            self._do(self.machine.stopping())

    def close(self) -> None:
        """Release the session; runs are ended by their runtime's own stop."""
        if self.is_closing:
            return
        self.is_closing = True
        if self._appending is not None:
            self._appending.flush()
        self._heads.flush()
        for call in (self._timer, self._idle):
            if call is not None and call.active():
                call.cancel()
        self._timer = self._idle = None
        if self._settled is not None and not self._settled.called:
            self._settled.callback(None)
        journal = self._journal
        done = maybeDeferred(journal.close) if journal is not None else maybeDeferred(lambda: None)
        done.addErrback(lambda failure: self.log.failure("closing a log failed", failure))
        done.addBoth(lambda _: self.closed.callback(None))

    def _fail(self, error: Error) -> None:
        self._error = error
        self._heads.flush()
        readers, self._readers = self._readers, {}
        for run in list(self._runs.values()):
            run.cancel(self._settings.cancel_grace)
        self.close()
        for asker, reader in readers.items():
            reader.session_failed(asker, error)

    # Readers

    def join(self, asker: int, reader: Reader) -> None:
        """Take part; `reader` hears of it once the session is there."""
        if self._error is not None:
            reader.session_failed(asker, self._error)
            return
        self._readers[asker] = reader
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._is_ready:
            reader.session_opened(asker, self._first, self.machine.durable)

    def leave(self, asker: int) -> None:
        """Take part no more."""
        if self._readers.pop(asker, None) is not None:
            self._muted.discard(asker)
            self._do(self.machine.asker_left(asker))
            self._rest()

    def mute(self, asker: int) -> None:
        """Answer no more (I35)."""
        self._muted.add(asker)
        self._do(self.machine.asker_muted(asker))

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[Facts] | Facts:
        """Facts behind `after`, at once where they are recent."""
        recent = self._recent.page(after, max_lines, max_bytes)
        if recent is not None:
            return recent
        assert self._journal is not None
        page: Deferred[Any] = self._journal.read(after, max_lines, max_bytes)
        return page.addCallback(
            lambda page: Facts(page.first, page.lines, [tail_of(line) for line in page.lines])
        )

    async def fetch(self, seqs: Sequence[int]) -> Facts:
        """The facts with these seqs, even if retention carried them on (I38)."""
        assert self._journal is not None
        return await fetch(self._journal, seqs)

    # The mailbox

    def deliver(self, item: Item) -> None:
        """Put an item into the mailbox; inputs keep their order while a disk is asked."""
        match item:
            case InputAsked():
                if self._has_room(item):
                    self._mail.append(item)
                    self._next_mail()
                else:
                    message = "too many requests are pending"
                    self._tell(Refuse.of(item.asker, Code.BUSY, message, Ids(item.request_id)))
            case CancelAsked():
                if self._elsewhere(self, item.request_id):
                    self._tell(conflict(item.asker, Ids(item.request_id, item.run_id)))
                else:
                    self._do(self.machine.cancel_asked(item, self._reactor.seconds()))
            case AnswerGiven():
                self._do(self.machine.answer_given(item))
            case StatusAsked():
                self._do(self.machine.status_asked(item))

    def _has_room(self, item: InputAsked) -> bool:
        """Whether one more may wait for a disk; the machine bounds what it accepted itself."""
        waiting = sum(other.asker == item.asker for other in self._mail)
        bounds = self.machine.settings
        return waiting < bounds.max_pending_requests and len(self._mail) < bounds.max_queue

    def _next_mail(self) -> None:
        while self._mail and not self._checking and not self.is_closing:
            item = self._mail[0]
            if self._elsewhere(self, item.request_id):
                self._mail.popleft()
                self._tell(conflict(item.asker, Ids(item.request_id)))
                continue
            unplaced = item.cwd is None and item.workspace is None
            if unplaced or self.machine.knows(item.request_id):
                self._mail.popleft()
                self._accept(item)
                continue
            self._checking = True
            checked = deferToThreadPool(
                self._reactor,
                self._reactor.getThreadPool(),
                checked_places,
                self._agent.root,
                item.workspace,
                item.cwd,
            )
            checked.addCallbacks(partial(self._placed, item), partial(self._unplaced, item))
            checked.addErrback(lambda failure: self.log.failure("a mailbox failed", failure))

    def _placed(self, item: InputAsked, places: tuple[str | None, str]) -> None:
        cwd, workspace = places
        self._checked()
        space = None if item.workspace is None else workspace
        self._accept(replace(item, cwd=cwd, workspace=space))
        self._next_mail()

    def _accept(self, item: InputAsked) -> None:
        """Who went away while a disk was asked put nothing in (nothing was claimed yet)."""
        if item.asker not in self._readers:
            return
        self._do(self.machine.input_asked(item))
        if item.asker in self._muted:
            self._do(self.machine.asker_muted(item.asker))

    def _unplaced(self, item: InputAsked, failure: Failure) -> None:
        self._checked()
        error = failure.value
        ids = Ids(item.request_id)
        if isinstance(error, PlaceRefused):
            self._tell(Refuse.of(item.asker, error.code, str(error), ids, error.errno))
        else:
            self.log.failure("a place could not be checked", failure)
            self._tell(Refuse.of(item.asker, Code.INTERNAL, "the place was not checked", ids))
        self._next_mail()

    def _checked(self) -> None:
        self._checking = False
        self._mail.popleft()

    # Actions

    def _do(self, actions: Sequence[SessionAction]) -> None:
        self._todo.extend(actions)
        if self._doing:
            return
        self._doing = True
        try:
            while self._todo:
                self._act(self._todo.popleft())
        finally:
            self._doing = False
        self._set_timer()

    def _act(self, action: SessionAction) -> None:
        match action:
            case Append(first=first, lines=lines):
                if self._appending is not None and not self.is_closing:
                    self._appending.add(first, lines)
            case Publish(head=head):
                self._publish(head)
            case StartRun(request=request):
                sink = _Sink(self, request.run)
                run: IRun = self._agent.runtime.run(request, sink)
                self._runs[request.run] = run
                run.done.addBoth(partial(self._ended, request.run))
            case CancelRun(run_id=run_id):
                if run_id in self._runs:
                    self._runs[run_id].cancel(self._settings.cancel_grace)
            case PauseRun(run_id=run_id):
                if run_id in self._runs:
                    self._runs[run_id].pause()
            case ResumeRun(run_id=run_id):
                if run_id in self._runs:
                    self._runs[run_id].resume()
            case Resolve(token=token, result=result):
                assert isinstance(token, Deferred)
                token.callback(result)
            case ClearRuns(runs=runs):
                cleared = maybeDeferred(self._agent.runtime.clear, self.key, runs)
                cleared.addErrback(lambda f: self.log.failure("clearing runs failed", f))
                cleared.addCallback(lambda _: self._do(self.machine.cleared()))
            case Fail(error=error):
                self._fail(error)
            case _:
                self._tell(action)

    def _tell(self, told: Told) -> None:
        reader = self._readers.get(told.asker)
        if reader is not None:
            reader.told(told)

    def _appended(self, first: int, lines: Sequence[bytes]) -> None:
        self._recent.keep(first, lines)
        if self._durable is not None:
            self._durable(self.key, first, lines)
        self._do(self.machine.appended(first + len(lines) - 1))

    def _append_failed(self, failure: Failure) -> None:
        error = error_of(failure.value)
        if not self.is_closing:
            self.log.failure("the log of {key} took no more", failure, key=self.key)
        self._do(self.machine.append_failed(Code(error.code), error.message, error.retryable))

    def _publish(self, head: int) -> None:
        if not self._is_ready:
            if self._settled is not None and not self._settled.called and head >= self.machine.head:
                self._settled.callback(None)
            return
        self._heads.moved(head)
        self._rest()

    def _tell_head(self, head: int) -> None:
        for asker, reader in list(self._readers.items()):
            reader.head_moved(asker, head)

    def _ended(self, run_id: str, outcome: RunOutcome | Failure) -> None:
        self._runs.pop(run_id, None)
        if isinstance(outcome, Failure):
            self.log.failure("a run failed", outcome)
            outcome = RunOutcome("error", "the run failed inside the slave")
        self._do(self.machine.run_ended(run_id, outcome))
        self._rest()

    # Time

    def _set_timer(self) -> None:
        deadline = self.machine.deadline
        if deadline is None and self._timer is None:
            return
        if self._timer is not None:
            if deadline is not None and self._timer.getTime() == deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self.is_closing:
            late = max(0.0, deadline - self._reactor.seconds())
            self._timer = self._reactor.callLater(late, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._do(self.machine.time_passed(self._reactor.seconds()))

    @property
    def is_at_rest(self) -> bool:
        """Whether nobody reads it and nothing runs in it, so that it may be unloaded (I14)."""
        if self.key.scope == "temp" and self.machine.head:
            return False  # its facts are in memory only (I18)
        idle = not self._readers and self.machine.is_idle and self._is_ready and not self._mail
        return idle and not self.is_closing

    def _rest(self) -> None:
        """Unload the session after a while, if it is at rest then."""
        if self.is_at_rest and self._idle is None:
            self._idle = self._reactor.callLater(self._settings.idle_seconds, self._unload)

    def _unload(self) -> None:
        self._idle = None
        if self.is_at_rest:
            self.close()


class _Sink:
    """A RunSink into a session."""

    def __init__(self, session: LiveSession, run_id: str) -> None:
        self._session = session
        self._run_id = run_id

    def started(self, model: str | None) -> None:
        session = self._session
        session._do(session.machine.run_started(self._run_id, model))

    def emitted(self, event: exchange.Delta | exchange.Message | exchange.ToolCall) -> None:
        session = self._session
        session._do(session.machine.emitted(self._run_id, event))

    def command(self, command: Command, effect_id: str | None) -> Deferred[Result]:
        session = self._session
        answer: Deferred[Result] = Deferred()
        if session.is_closing:
            answer.callback(Rejected("session_io"))
            return answer
        now = session._reactor.seconds()
        session._do(session.machine.command_asked(self._run_id, command, effect_id, answer, now))
        return answer


def settings_of(agent: Agent, settings: LiveSettings, **limits: int) -> SessionSettings:
    """A session's bounds."""
    return SessionSettings(
        workspace=agent.root,
        history_bytes=agent.runtime.history_bytes,
        approval_seconds=settings.approval_seconds,
        **limits,
    )
