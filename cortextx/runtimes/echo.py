"""The `echo` runtime: says what it hears, word by word; for tests and first steps.

`delay` is a pause before each word, in seconds. With `approve` it asks its origin for
an approval before it answers, and says so instead of the words if there is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct
from twisted.internet.defer import Deferred, DeferredList, succeed
from zope.interface import implementer

from cortextx.core.exchange import Delta, Message, Rejected, RequestApproval, Result, ToolCall
from cortextx.core.jsontext import encode
from cortextx.interfaces.sessions import (
    IAgentRuntime,
    IRun,
    RunOutcome,
    RunRequest,
    RunSink,
    SessionKey,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

TOOL = "echo"
_WORDS = re.compile(r"\s*\S+\s*")


class EchoSettings(Struct, frozen=True, kw_only=True, tag_field="runtime", tag="echo"):
    """An agent that says what it hears."""

    delay: float = 0.0
    approve: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= 3600:
            raise ValueError("expected delay from 0 to 3600 seconds")


@implementer(IAgentRuntime)
class EchoRuntime:
    """See the module."""

    name = "echo"
    history_bytes = 0

    def __init__(self, reactor: Any, settings: EchoSettings) -> None:
        self.reactor = reactor
        self.settings = settings
        self._runs: set[EchoRun] = set()

    def run(self, request: RunRequest, sink: RunSink) -> EchoRun:
        """See IAgentRuntime."""
        run = EchoRun(self, request, sink)
        self._runs.add(run)
        run.done.addBoth(self._ended, run)
        run.begin()
        return run

    def _ended(self, outcome: Any, run: EchoRun) -> Any:
        self._runs.discard(run)
        return outcome

    def clear(self, key: SessionKey, runs: Sequence[str]) -> Deferred[None]:
        """See IAgentRuntime: a run leaves nothing behind."""
        return succeed(None)

    def stop(self) -> Deferred[None]:
        """See IAgentRuntime."""
        ending: list[Deferred[None]] = []
        for run in list(self._runs):
            ended: Deferred[None] = Deferred()
            ending.append(ended)
            run.done.addBoth(_tell, ended)
            run.cancel(0.0)
        done: Deferred[None] = DeferredList(ending).addCallback(lambda _: None)
        return done


@implementer(IRun)
class EchoRun:
    """One run: words with pauses between, then the whole message."""

    def __init__(self, runtime: EchoRuntime, request: RunRequest, sink: RunSink) -> None:
        self.done: Deferred[RunOutcome] = Deferred()
        self._reactor = runtime.reactor
        self._settings = runtime.settings
        self._request = request
        self._sink = sink
        self._words = _WORDS.findall(request.text) or [request.text]
        self._next = 0
        self._call: IDelayedCall | None = None
        self._is_paused = False
        self._is_over = False

    def begin(self) -> None:
        """Ask first, if it is to be asked, else say the first word."""
        self._sink.started(None)
        if not self._settings.approve:
            self._wait()
            return
        self._tool("requested")
        arguments = Raw(encode({"text": self._request.text}))
        asked = self._sink.command(RequestApproval(TOOL, arguments), f"{self._request.run}.echo")
        asked.addCallback(self._judged)

    def cancel(self, grace: float) -> None:
        """See IRun: there is nothing to wait for."""
        self._end(RunOutcome("cancelled", "it was cancelled"))

    def pause(self) -> None:
        """See IRun."""
        self._is_paused = True
        self._stop_waiting()

    def resume(self) -> None:
        """See IRun."""
        if self._is_paused:
            self._is_paused = False
            self._wait()

    def _judged(self, result: Result) -> None:
        if self._is_over:
            return
        if isinstance(result, Rejected):
            self._tool("rejected")
            self._say(f"I may not say that: {result.reason}")
            self._end(RunOutcome("completed"))
            return
        self._tool("completed")
        self._wait()

    def _wait(self) -> None:
        if not self._is_over and not self._is_paused and self._call is None:
            self._call = self._reactor.callLater(self._settings.delay, self._speak)

    def _speak(self) -> None:
        self._call = None
        if self._next < len(self._words):
            word = self._words[self._next]
            self._next += 1
            self._sink.emitted(Delta(self._request.request_id, self._request.run, word))
            self._wait()
            return
        self._say(self._request.text)
        self._end(RunOutcome("completed"))

    def _say(self, text: str) -> None:
        request = self._request
        self._sink.emitted(Message(request.request_id, request.run, "assistant", text))

    def _tool(self, state: str) -> None:
        request = self._request
        self._sink.emitted(
            ToolCall(request.request_id, request.run, f"{request.run}.1", TOOL, state)
        )

    def _end(self, outcome: RunOutcome) -> None:
        if not self._is_over:
            self._is_over = True
            self._stop_waiting()
            self.done.callback(outcome)

    def _stop_waiting(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


def _tell(outcome: Any, ended: Deferred[None]) -> Any:
    ended.callback(None)
    return outcome
