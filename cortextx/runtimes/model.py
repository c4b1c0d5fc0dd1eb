"""The `model` runtime: an OpenAI-compatible chat endpoint, and tools that people approve.

A run is a conversation: ask, show the answer as it comes, run the tools that the
answer calls, each once and only after its approval, and ask again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.core.exchange import (
    Accepted,
    Delta,
    Message,
    Rejected,
    RequestApproval,
    Result,
    ToolCall,
)
from cortextx.core.jsontext import encode
from cortextx.interfaces.sessions import (
    IAgentRuntime,
    IRun,
    RunOutcome,
    RunRequest,
    RunSink,
    SessionKey,
)
from cortextx.runtimes.chat import Answer, Call, Talk, is_object
from cortextx.runtimes.childlines import MAX_COMMAND_BYTES
from cortextx.runtimes.endpoint import Asking, Endpoint, EndpointFault
from cortextx.runtimes.processes import ChildProcess
from cortextx.runtimes.remains import Remains, receipt_of
from cortextx.runtimes.settings import ModelSettings
from cortextx.runtimes.slots import Slots
from cortextx.runtimes.tools import ToolRun

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

T = TypeVar("T")

STOP_GRACE = 1.0
CANCELLED = RunOutcome("cancelled", "it was cancelled")


@implementer(IAgentRuntime)
class ModelRuntime:
    """Talks to one model. `spawn` makes a tool's child that is not started yet."""

    name = "model"

    def __init__(
        self,
        reactor: Any,
        settings: ModelSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        remains: Remains | None = None,
        endpoint: Endpoint | None = None,
        spawn: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self.reactor = reactor
        self.settings = settings
        self.history_bytes = settings.history_bytes
        self.slots = Slots(settings.max_runs)
        self.endpoint = endpoint or Endpoint(
            reactor,
            settings.url,
            connect=settings.connect_timeout,
            first=settings.first_timeout,
            idle=settings.idle_timeout,
            retries=settings.retries,
            max_answer_bytes=settings.max_answer_bytes,
        )
        self._environ = environ
        self._remains = remains or Remains(reactor)
        self._spawn = spawn
        self._runs: set[ModelRun] = set()

    def run(self, request: RunRequest, sink: RunSink) -> ModelRun:
        """Begin a run, or queue it behind `max_runs` others."""
        run = ModelRun(self, request, sink)
        self._runs.add(run)
        self.slots.ask(run.begin)
        return run

    def clear(self, key: SessionKey, runs: Sequence[str]) -> Deferred[None]:
        """End the tools that an earlier slave left of these runs."""
        return self._remains.end([receipt_of(key, run) for run in runs])

    def stop(self) -> Deferred[None]:
        """Cancel all runs; fires when none is left."""
        ended: list[Deferred[Any]] = []
        for run in list(self._runs):
            gone: Deferred[None] = Deferred()
            run.gone.append(gone)
            ended.append(gone)
            run.cancel(STOP_GRACE)
        return DeferredList(ended).addCallback(lambda _: self.endpoint.close())

    async def key(self) -> str | None:
        """The API's key, read anew for each run; raises OSError, or KeyError if unset."""
        if self.settings.api_key_file is not None:
            pool = self.reactor.getThreadPool()
            path = self.settings.api_key_file
            return await deferToThreadPool(self.reactor, pool, _read_key, path)
        name = self.settings.api_key_env
        return None if name is None else self._environ[name]

    def tool(self, name: str, request: RunRequest, call: Call) -> ToolRun:
        """Start a tool."""
        return ToolRun(
            self.reactor,
            self.settings.tools[name],
            request,
            call.arguments,
            environ=self._environ,
            end_remains=self._remains.end,
            spawn=self._spawn,
        )

    def over(self, run: ModelRun) -> None:
        """Note that a run has ended; called once a run."""
        self._runs.discard(run)
        for gone in run.gone:
            gone.callback(None)


class _Over(Exception):
    """The run was told to end, as `outcome`."""


@implementer(IRun)
class ModelRun:
    """One conversation, in one coroutine; `_current` ends what it waits for."""

    log = Logger()

    def __init__(self, runtime: ModelRuntime, request: RunRequest, sink: RunSink) -> None:
        self.done: Deferred[RunOutcome] = Deferred()
        self.gone: list[Deferred[None]] = []
        self._runtime = runtime
        self._request = request
        self._sink = sink
        self._outcome: RunOutcome | None = None
        self._current: Callable[[float], None] = lambda grace: None
        self._asking: Asking | None = None
        self._begun = False
        self._paused = False
        self._timer: IDelayedCall | None = None
        offers = [tool.offer(name) for name, tool in runtime.settings.tools.items()]
        self._talk = Talk(request, runtime.settings.system, offers)

    # IRun

    def cancel(self, grace: float) -> None:
        """End it: a request at once, a tool as `exec` ends its child."""
        if not self._begun and self._runtime.slots.withdraw(self.begin):
            self._outcome = CANCELLED
            self._runtime.reactor.callLater(0.0, self._finish, CANCELLED)
            return
        self._end_as(CANCELLED, grace)

    def pause(self) -> None:
        """Read the answer no further."""
        self._paused = True
        if self._asking is not None:
            self._asking.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._asking is not None:
            self._asking.resume()

    def begin(self) -> None:
        """Begin: it has a slot now."""
        self._begun = True
        self._timer = self._runtime.reactor.callLater(
            self._runtime.settings.timeout,
            self._end_as,
            RunOutcome("error", "the time is up"),
            STOP_GRACE,
        )
        # Not within `run`: a sink hears nothing before its run is known.
        self._runtime.reactor.callLater(0.0, self._go)

    # The conversation

    def _go(self) -> None:
        conversed = Deferred.fromCoroutine(self._converse())
        conversed.addErrback(self._ended_early)
        conversed.addCallback(self._ended)

    async def _converse(self) -> RunOutcome:
        self._stop_if_over()
        self._sink.started(self._runtime.settings.model)
        try:
            key = await self._unless_over(Deferred.fromCoroutine(self._runtime.key()))
        except (OSError, KeyError, ValueError) as error:
            url, why = self._runtime.endpoint.url, type(error).__name__
            self.log.error("the key of {url} cannot be read: {why}", url=url, why=why)
            return RunOutcome("error", "the model's key cannot be read")
        for _round in range(self._runtime.settings.max_rounds):
            answer = await self._ask(key)
            self._talk.answered(answer)
            if answer.is_cut:
                return RunOutcome("error", f"the answer was cut ({answer.finish})")
            if not answer.calls:
                return RunOutcome("completed")
            for call in answer.calls:
                self._say_tool(call, "requested")
            for call in answer.calls:
                self._talk.returned(call, await self._call(call))
        return RunOutcome("error", "the model calls tools without an end (max_rounds)")

    async def _ask(self, key: str | None) -> Answer:
        settings = self._runtime.settings
        body = self._talk.body(settings.model, settings.extra)
        asking = self._runtime.endpoint.ask(body, key, self._text_came)
        self._asking = asking
        if self._paused:
            asking.pause()
        self._current = lambda grace: asking.end()
        try:
            return await asking.answer
        finally:
            self._asking = None
            # What was shown stays in the session, whole or not.
            if asking.text:
                self._sink.emitted(self._message(asking.text))
            self._stop_if_over()

    def _text_came(self, text: str) -> None:
        self._sink.emitted(Delta(self._request.request_id, self._request.run, text))

    async def _call(self, call: Call) -> str:
        """Have a call approved, and run it; answers what the model is told."""
        refusal = self._refusal(call)
        if refusal is None:
            refusal = await self._approval(call)
        if refusal is not None:
            self._say_tool(call, "rejected")
            return f"[the call was refused: {refusal}]"
        self._say_tool(call, "running")
        tool = self._runtime.tool(call.name, self._request, call)
        self._current = tool.end
        went_well, text = await tool.done
        self._say_tool(call, "completed" if went_well else "failed")
        self._stop_if_over()
        return text

    def _refusal(self, call: Call) -> str | None:
        if call.name not in self._runtime.settings.tools:
            return "there is no such tool"
        if not is_object(call.arguments):
            return "the arguments are not a JSON object"
        command = RequestApproval(call.name, call.arguments)
        if len(encode(command)) > MAX_COMMAND_BYTES:
            return "the arguments are too long to be approved"
        return None

    async def _approval(self, call: Call) -> str | None:
        """Why the call may not be made, or None where it was approved."""
        command = RequestApproval(call.name, call.arguments)
        result: Result = await self._unless_over(self._sink.command(command, None))
        match result:
            case Accepted():
                return None
            case Rejected(reason=reason):
                return reason or "no"
        return "that is no approval"

    # The end

    def _end_as(self, outcome: RunOutcome, grace: float) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._current(grace)

    def _stop_if_over(self) -> None:
        if self._outcome is not None:
            raise _Over

    async def _unless_over(self, waited: Deferred[T]) -> T:
        """Wait for something that does not end by itself when the run is to end."""
        self._stop_if_over()
        gate: Deferred[T] = Deferred()

        def pass_on(result: Any) -> None:
            if not gate.called:
                gate.callback(result)

        waited.addBoth(pass_on)
        self._current = lambda grace: pass_on(Failure(_Over()))
        return await gate

    def _ended_early(self, failure: Failure) -> RunOutcome:
        if self._outcome is not None:
            return self._outcome
        if failure.check(EndpointFault):
            return RunOutcome("error", f"the model: {failure.value}")
        self.log.failure("run {run}", failure, run=self._request.run)
        return RunOutcome("error", "internal")

    def _ended(self, outcome: RunOutcome) -> None:
        self._runtime.slots.give_back()
        self._finish(outcome)

    def _finish(self, outcome: RunOutcome) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.done.callback(outcome)
        self._runtime.over(self)

    def _message(self, text: str) -> Message:
        return Message(self._request.request_id, self._request.run, "assistant", text)

    def _say_tool(self, call: Call, state: str) -> None:
        request = self._request
        self._sink.emitted(ToolCall(request.request_id, request.run, call.id, call.name, state))


def _read_key(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
