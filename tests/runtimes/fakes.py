"""A run's sink that records, requests to run, and a child that no system knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed

from cortextx.core.exchange import Accepted, Command, Delta, Message, Rejected, Result, ToolCall
from cortextx.interfaces.sessions import RunRequest, SessionKey
from cortextx.runtimes.processes import Ended, Launch, Receiver

KEY = SessionKey(agent="helper", scope="private", session="default", owner=os.geteuid())


def run_request(text: str = "hi", **more: Any) -> RunRequest:
    """A request of this user's own, in /tmp."""
    values: dict[str, Any] = {
        "key": KEY,
        "run": "run-1",
        "request_id": "q-1",
        "text": text,
        "owner": os.geteuid(),
        "cwd": "/tmp",
        "workspace": "/",
    }
    return RunRequest(**(values | more))


class RecordingSink:
    """Keeps what a run says, in order; `heard` is called after each.

    `answer` gives the answer to a command, None to leave it open in `open`.
    """

    def __init__(self, answer: Callable[[Command], Result | None] | None = None) -> None:
        self.said: list[Any] = []
        self.open: list[Deferred[Result]] = []
        self.heard: Callable[[Any], None] = lambda said: None
        self._answer = answer or (lambda command: Accepted())

    def started(self, model: str | None) -> None:
        self._keep(("started", model))

    def emitted(self, event: Delta | Message | ToolCall) -> None:
        self._keep(event)

    def command(self, command: Command, effect_id: str | None) -> Deferred[Result]:
        answer = self._answer(command)
        if answer is None:
            answered: Deferred[Result] = Deferred()
            self.open.append(answered)
        else:
            answered = succeed(answer)
        self._keep((command, effect_id))
        return answered

    def reject_open(self, reason: str = "origin_lost") -> None:
        """Do as a slave does when the origin goes, or the run is cancelled."""
        waiting, self.open = self.open, []
        for answered in waiting:
            answered.callback(Rejected(reason))

    @property
    def deltas(self) -> str:
        """The text of all deltas."""
        return "".join(said.text for said in self.said if isinstance(said, Delta))

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Role and text of all messages."""
        return [(said.role, said.text) for said in self.said if isinstance(said, Message)]

    @property
    def tools(self) -> list[tuple[str, str, str]]:
        """Call, name and state of all that was said of tools."""
        return [(s.call_id, s.name, s.state) for s in self.said if isinstance(s, ToolCall)]

    def _keep(self, said: Any) -> None:
        self.said.append(said)
        self.heard(said)


class FakeChild:
    """A child in a test's hands: the test says what it writes and when it ends."""

    def __init__(
        self,
        reactor: Any,
        launch: Launch,
        receiver: Receiver,
        end_remains: Callable[[Sequence[str]], Deferred[None]],
    ) -> None:
        self.ended: Deferred[Ended] = Deferred()
        self.launch = launch
        self.receiver = receiver
        self.written = b""
        self.input_is_full = False
        self.asked: list[Any] = []

    def start(self) -> None:
        self.asked.append("start")

    def write(self, data: bytes) -> None:
        self.written += data

    def close_input(self) -> None:
        self.asked.append("close_input")

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def end(self, grace: float) -> None:
        self.asked.append(("end", grace))
