"""The `exec` runtime: a child process a run, that speaks JSON lines (docs/runtimes.md).

The child is told what to do on its standard input and says what it does on its
standard output, as `runtimes.childlines` reads it; its standard error goes to the
log. However it ends, its whole process group and all that it started go with it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger
from zope.interface import implementer

from cortextx.core.exchange import Delta, Message, Rejected, Result, ToolCall
from cortextx.core.framing import LineFramer
from cortextx.errors import FrameTooLong, JsonError
from cortextx.interfaces.sessions import (
    IAgentRuntime,
    IRun,
    RunOutcome,
    RunRequest,
    RunSink,
    SessionKey,
)
from cortextx.runtimes.childlines import (
    Asked,
    Began,
    Erred,
    Finished,
    Said,
    answer,
    envelope,
    read_line,
)
from cortextx.runtimes.complaints import Complaints
from cortextx.runtimes.processes import ChildProcess, Ended, Launch
from cortextx.runtimes.remains import Remains, receipt_of
from cortextx.runtimes.settings import ExecSettings
from cortextx.runtimes.slots import Slots

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

STARTED_SECONDS = 1.0
"""After this the run counts as started, though the child said nothing yet."""
LINGER_SECONDS = 5.0
"""How long a child may stay after it said that it is done."""
STOP_GRACE = 1.0
MAX_PENDING = 16
"""Commands of a run that wait for an answer at once (I16)."""
MAX_UNREAD_BYTES = 1024 * 1024
"""Bytes of answers that a child may leave unread."""
CANCELLED = RunOutcome("cancelled", "it was cancelled")


@implementer(IAgentRuntime)
class ExecRuntime:
    """Runs its command once a run. `spawn` makes a child that is not started yet."""

    name = "exec"

    def __init__(
        self,
        reactor: Any,
        settings: ExecSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        remains: Remains | None = None,
        spawn: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self.reactor = reactor
        self.settings = settings
        self.history_bytes = settings.history_bytes
        self.slots = Slots(settings.max_runs)
        self._remains = remains or Remains(reactor)
        self._spawn = spawn
        passed = {name: environ[name] for name in settings.pass_env if name in environ}
        self._environment = passed | settings.env
        self._runs: set[ExecRun] = set()

    def run(self, request: RunRequest, sink: RunSink) -> ExecRun:
        """Begin a run, or queue it behind `max_runs` others."""
        run = ExecRun(self, request, sink)
        self._runs.add(run)
        self.slots.ask(run.begin)
        return run

    def clear(self, key: SessionKey, runs: Sequence[str]) -> Deferred[None]:
        """End what an earlier slave left of these runs."""
        return self._remains.end([receipt_of(key, run) for run in runs])

    def stop(self) -> Deferred[None]:
        """Cancel all runs; fires when none is left."""
        ended: list[Deferred[Any]] = []
        for run in list(self._runs):
            gone: Deferred[None] = Deferred()
            run.gone.append(gone)
            ended.append(gone)
            run.cancel(STOP_GRACE)
        return DeferredList(ended).addCallback(lambda _: None)

    def child(self, run: ExecRun) -> ChildProcess:
        """A child for a run, not started yet."""
        request = run.request
        launch = Launch(
            command=self.settings.command,
            owner=request.owner,
            cwd=request.cwd,
            root=request.workspace,
            receipt=receipt_of(request.key, request.run),
            environment=self._environment
            | {
                "CORTEXTX_AGENT": request.key.agent,
                "CORTEXTX_SESSION": request.key.session,
                "CORTEXTX_RUN": request.run,
            },
        )
        return self._spawn(self.reactor, launch, run, self._remains.end)

    def over(self, run: ExecRun) -> None:
        """Note that a run has ended; called once a run."""
        self._runs.discard(run)
        for gone in run.gone:
            gone.callback(None)


@implementer(IRun)
class ExecRun:
    """One child and what it says."""

    log = Logger()

    def __init__(self, runtime: ExecRuntime, request: RunRequest, sink: RunSink) -> None:
        self.done: Deferred[RunOutcome] = Deferred()
        self.gone: list[Deferred[None]] = []
        self.request = request
        self._runtime = runtime
        self._sink = sink
        self._framer = LineFramer(runtime.settings.max_line_bytes)
        self._lines: deque[bytes] = deque()
        self._complaints = Complaints(request.run)
        self._child: ChildProcess | None = None
        self._ended: Ended | None = None
        self._outcome: RunOutcome | None = None
        self._error: str | None = None
        self._pending: set[str] = set()
        self._output_bytes = 0
        self._unread = 0
        self._line_number = 0
        self._paused = False
        self._deaf = False
        self._taking = False
        self._said_started = False
        self._said_mended = False
        self._timers: list[IDelayedCall] = []

    # IRun

    def cancel(self, grace: float) -> None:
        """End the child's whole group: SIGTERM, and SIGKILL `grace` seconds later."""
        if self._child is None:
            if self._runtime.slots.withdraw(self.begin):
                self._outcome = CANCELLED
                self._later(0.0, self._finish)
            return
        self._end_with(CANCELLED, grace)

    def pause(self) -> None:
        """Read the child's output no more; it waits once its pipe is full.

        Where the run is to end already, its output is dropped instead, for whoever is
        slow must not hold up its end.
        """
        if self._outcome is not None:
            self._drop_output()
            return
        self._paused = True
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Read on, what was held first."""
        self._paused = False
        if self._child is not None:
            self._child.resume()
        self._take_lines()

    # From the runtime and the child

    def begin(self) -> None:
        """Start the child: it has a slot now."""
        # Not within `run`: a sink hears nothing before its run is known.
        self._later(0.0, self._start)
        self._child = self._runtime.child(self)
        if self._paused:
            self._child.pause()
        self._child.ended.addCallback(self._child_ended)

    def output_came(self, data: bytes) -> None:
        """Take the child's output."""
        if self._deaf:
            return
        self._output_bytes += len(data)
        try:
            lines = self._framer.feed(data)
        except FrameTooLong as fault:
            self._lines.extend(fault.lines)
            self._take_lines()
            self._fail(f"a line of the child is longer than {fault.limit} bytes")
            return
        self._lines.extend(lines)
        self._take_lines()
        if self._output_bytes > self._runtime.settings.max_output_bytes:
            self._fail("the child's output is longer than max_output_bytes")

    def complaint_came(self, data: bytes) -> None:
        """Log what the child writes to its standard error."""
        self._complaints.came(data)

    # Lines

    def _start(self) -> None:
        assert self._child is not None
        if self._outcome is None:
            self._later(STARTED_SECONDS, self._say_started)
            self._later(self._runtime.settings.timeout, self._time_is_up)
            self._child.start()
            self._child.write(envelope(self.request))
        else:
            self._child_ended(Ended(refusal="it was cancelled"))

    def _take_lines(self) -> None:
        if self._taking:
            return
        self._taking = True
        try:
            while self._lines and not self._paused:
                self._line_number += 1
                self._take(self._lines.popleft())
        except Exception:
            # Whatever is wrong on our side, the child does not stay behind.
            self.log.failure("run {run}: taking a line", run=self.request.run)
            self._lines.clear()
            self._fail("internal")
        finally:
            self._taking = False
        self._settle()

    def _take(self, line: bytes) -> None:
        if self._outcome is not None and self._outcome is not CANCELLED:
            return
        try:
            said, mended = read_line(line, self.request)
        except JsonError as fault:
            self._fail(f"line {self._line_number} of the child: {fault}")
            return
        if mended and not self._said_mended:
            self._said_mended = True
            self.log.warn("run {run}: output was mended (I40)", run=self.request.run)
        if said is not None:
            self._heed(said)
        elif not line.lstrip().startswith(b"{"):
            self._complaints.came(line + b"\n")

    def _heed(self, said: Said) -> None:
        self._say_started(said.model if isinstance(said, Began) else None)
        match said:
            case Delta() | Message() | ToolCall():
                self._sink.emitted(said)
            case Asked():
                self._ask(said)
            case Erred(message=message, recoverable=recoverable):
                self._complaints.came(f"{message}\n".encode())
                if not recoverable:
                    self._error = message
            case Finished(outcome=outcome) if self._outcome is None:
                if outcome.status == "error" and self._error is not None:
                    outcome = RunOutcome("error", self._error)
                self._outcome = outcome
                assert self._child is not None
                self._child.close_input()
                self._later(LINGER_SECONDS, self._linger_over)

    def _ask(self, asked: Asked) -> None:
        if asked.id in self._pending or len(self._pending) >= MAX_PENDING:
            self._answer(asked.id, Rejected("too much is asked already, or this is"))
            return
        self._pending.add(asked.id)
        answered = self._sink.command(asked.command, asked.effect_id)
        answered.addCallback(self._answered, asked.id)
        answered.addErrback(lambda failure: self.log.failure("answering a child", failure))

    def _answered(self, result: Result, id: str) -> None:
        self._pending.discard(id)
        self._answer(id, result)

    def _answer(self, id: str, result: Result) -> None:
        if self._child is None or self._ended is not None:
            return
        line = answer(id, result)
        self._unread = self._unread + len(line) if self._child.input_is_full else 0
        if self._unread > MAX_UNREAD_BYTES:
            self._fail("the child does not read its answers")
        else:
            self._child.write(line)

    def _say_started(self, model: str | None = None) -> None:
        if not self._said_started:
            self._said_started = True
            self._sink.started(model)

    # The end

    def _fail(self, why: str) -> None:
        self._end_with(RunOutcome("error", why), 0.0)

    def _time_is_up(self) -> None:
        self._end_with(RunOutcome("error", "the time is up"), STOP_GRACE)

    def _linger_over(self) -> None:
        if self._child is not None:
            self._child.end(STOP_GRACE)

    def _end_with(self, outcome: RunOutcome, grace: float) -> None:
        if self._outcome is None:
            self._outcome = outcome
        if self._paused:
            self._drop_output()
        assert self._child is not None
        self._child.end(grace)

    def _drop_output(self) -> None:
        self._paused = False
        self._deaf = True
        self._lines.clear()

    def _child_ended(self, ended: Ended) -> None:
        self._ended = ended
        self._take_lines()

    def _settle(self) -> None:
        if self._ended is None or (self._lines and self._paused) or self.done.called:
            return
        if self._framer.pending:
            self._complaints.came(b"(the last line has no end)\n")
        if self._outcome is None:
            words = self._error or f"the child did not say that it is done; {self._ended.words}"
            self._outcome = RunOutcome("error", words)
        self._runtime.slots.give_back()
        self._finish()

    def _finish(self) -> None:
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        self._complaints.ended()
        assert self._outcome is not None
        self.done.callback(self._outcome)
        self._runtime.over(self)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._runtime.reactor.callLater(seconds, call))
