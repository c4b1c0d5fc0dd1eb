"""A session machine with a log in memory, a script for its runs, and all that it said."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from msgspec import Raw

from cortextx.core.exchange import Accepted, Command, Delta, Message, Origin, Result, ToolCall
from cortextx.interaction.claims import claim
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    Append,
    CancelAsked,
    ClearRuns,
    InputAsked,
    SessionAction,
    StartRun,
)
from cortextx.interaction.slave.lines import Ids
from cortextx.interaction.slave.session import SessionMachine, SessionSettings
from cortextx.interfaces.sessions import RunOutcome, SessionKey

KEY = SessionKey(agent="echo", scope="private", session="default", owner=1000)
WALL = 1_700_000_000_000_000


class Mailbox:
    """Drives a machine. What it appends is durable at once, unless `holds`; runs start at once."""

    def __init__(self, log: Iterable[bytes] = (), holds: bool = False, **settings: float) -> None:
        self.log = list(log)
        self.holds = holds
        self.held: deque[Append] = deque()
        self.actions: list[SessionAction] = []
        self.tokens = itertools.count(1)
        ids = itertools.count(len(self.log) + 1)
        known = SessionSettings(history_bytes=10_000, **settings)  # type: ignore[arg-type]
        self.machine = SessionMachine(KEY, known, lambda: f"{next(ids):04x}", lambda: WALL)
        for line in self.log:
            self.machine.line_read(line)
        self.do(self.machine.recovered())

    def do(self, actions: Iterable[SessionAction]) -> list[SessionAction]:
        """Carry out actions; answers all that came of it."""
        before = len(self.actions)
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            self.actions.append(action)
            if isinstance(action, ClearRuns):
                todo.extend(self.machine.cleared())
            elif isinstance(action, StartRun):
                todo.extend(self.machine.run_started(action.request.run, None))
            elif isinstance(action, Append):
                self.held.append(action)
                if not self.holds:
                    todo.extend(self._append())
        return self.actions[before:]

    def release(self) -> list[SessionAction]:
        """Make what is held durable."""
        got: list[SessionAction] = []
        while self.held:
            got += self.do(self._append())
        return got

    def _append(self) -> list[SessionAction]:
        action = self.held.popleft()
        assert action.first == len(self.log) + 1, (action.first, len(self.log))
        self.log.extend(action.lines)
        return self.machine.appended(len(self.log))

    @property
    def file(self) -> bytes:
        """events.jsonl."""
        return b"".join(line + b"\n" for line in self.log)

    # Short forms

    def input(
        self, request_id: str = "r1", text: str = "hi", asker: int = 1
    ) -> list[SessionAction]:
        """An input."""
        return self.do(self.machine.input_asked(an_input(request_id, text, asker)))

    def cancel(
        self, run: str, request_id: str = "c1", asker: int = 1, now: float = 0.0
    ) -> list[SessionAction]:
        """A cancel."""
        digest = claim(
            "cancel", session="default", scope="private", cwd=None, data=Raw(b"{}"), run=run
        )
        return self.do(
            self.machine.cancel_asked(CancelAsked(asker, request_id, run, digest, 1000), now)
        )

    def emit(self, run: str, *events: Delta | Message | ToolCall) -> list[SessionAction]:
        """Output of a run."""
        return [action for event in events for action in self.do(self.machine.emitted(run, event))]

    def ask(
        self, run: str, command: Command, effect: str | None = None, now: float = 0.0
    ) -> list[SessionAction]:
        """A command of a run; tokens count from 1."""
        token = next(self.tokens)
        return self.do(self.machine.command_asked(run, command, effect, token, now))

    def answer(
        self,
        run: str,
        command: str,
        result: Result | None = None,
        asker: int = 1,
        request_id: str = "r1",
        effect: str | None = None,
    ) -> list[SessionAction]:
        """An answer to a command."""
        ids = Ids(request_id, run, command)
        given = AnswerGiven(asker, ids, Accepted() if result is None else result, effect)
        return self.do(self.machine.answer_given(given))

    def end(
        self, run: str, status: str = "completed", why: str | None = None
    ) -> list[SessionAction]:
        """The end of a run."""
        return self.do(self.machine.run_ended(run, RunOutcome(status, why)))  # type: ignore[arg-type]

    def started(self) -> list[str]:
        """The runs that were begun."""
        return [a.request.run for a in self.actions if isinstance(a, StartRun)]


def an_input(request_id: str = "r1", text: str = "hi", asker: int = 1, **more: str) -> InputAsked:
    """An input as a connection makes it."""
    data = Raw(b'{"text":"%s"}' % text.encode())
    return InputAsked(
        asker=asker,
        request_id=request_id,
        claim=claim("input", session="default", scope="private", cwd=None, data=data),
        text=text,
        owner=1000,
        uid=1000,
        origin=Origin("terminal"),
        **more,  # type: ignore[arg-type]
    )
