"""A model's tools: commands that get their arguments on standard input.

A tool call is one process, once. Its standard output is what the model is told, and
its standard error goes to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from twisted.internet.defer import Deferred

from cortextx.interfaces.sessions import RunRequest
from cortextx.runtimes.complaints import Complaints
from cortextx.runtimes.processes import ChildProcess, Ended, Launch
from cortextx.runtimes.remains import receipt_of
from cortextx.runtimes.settings import ToolSettings

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

GRACE = 1.0


class ToolRun:
    """One call of a tool. `done` fires with whether it went well, and what to tell the model."""

    def __init__(
        self,
        reactor: Any,
        settings: ToolSettings,
        request: RunRequest,
        arguments: Raw,
        *,
        environ: Mapping[str, str],
        end_remains: Callable[[Sequence[str]], Deferred[None]],
        spawn: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self.done: Deferred[tuple[bool, str]] = Deferred()
        self._settings = settings
        self._output = bytearray()
        self._why: str | None = None
        self._complaints = Complaints(request.run)
        passed = {name: environ[name] for name in settings.pass_env if name in environ}
        launch = Launch(
            command=settings.command,
            owner=request.owner,
            cwd=request.cwd,
            root=request.workspace,
            receipt=receipt_of(request.key, request.run),
            environment=passed | settings.env,
        )
        self._child = spawn(reactor, launch, self, end_remains)
        self._timer: IDelayedCall = reactor.callLater(
            settings.timeout, self._end_for, "the time is up", GRACE
        )
        self._child.ended.addCallback(self._ended)
        self._child.start()
        self._child.write(bytes(arguments) + b"\n")
        self._child.close_input()

    def end(self, grace: float) -> None:
        """End it; `done` still waits until it is gone."""
        self._end_for("it was cancelled", grace)

    def output_came(self, data: bytes) -> None:
        """Take its output."""
        room = self._settings.max_output_bytes - len(self._output)
        self._output += data[:room]
        if len(data) > room:
            self._end_for("its output is too long", 0.0)

    def complaint_came(self, data: bytes) -> None:
        """Log what it writes to its standard error."""
        self._complaints.came(data)

    def _end_for(self, why: str, grace: float) -> None:
        self._why = self._why or why
        self._child.end(grace)

    def _ended(self, ended: Ended) -> None:
        if self._timer.active():
            self._timer.cancel()
        self._complaints.ended()
        text = self._output.decode("utf-8", "replace")
        went_well = self._why is None and ended == Ended(code=0)
        if not went_well:
            text += f"\n[the tool failed: {self._why or ended.words}]"
        self.done.callback((went_well, text))
