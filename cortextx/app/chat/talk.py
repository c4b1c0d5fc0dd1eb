"""A conversation at a terminal: what is typed, what the session tells, what is asked (PURE).

Every input answers with acts, in order. What streams is shown piece by piece, and the
message that it grows into is not shown once more. Only the origin of a run is asked;
a question takes the next line that is typed, other than a /command.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from cortextx.app.chat.acts import Act, Answer, CancelRun, Leave, Say, Show, Style
from cortextx.app.chat.words import HELP, Unknown, parse
from cortextx.core import exchange
from cortextx.core.exchange import (
    Invoke,
    Notify,
    Rejected,
    RequestApproval,
    RequestInput,
    Value,
)
from cortextx.interaction import data
from cortextx.interaction.master.events import (
    Attached,
    CommandLost,
    Detached,
    Disconnected,
    Event,
    Warned,
)

YES = frozenset({"y", "yes"})
NO = frozenset({"n", "no"})
ALL = frozenset({"a", "all"})
APPROVAL = "[y]es, [n]o, [a]ll calls of this tool in this run"
DENIED = "the user said no"


@dataclass(slots=True)
class Question:
    """A command that waits for the person."""

    asked: Event
    command: RequestApproval | RequestInput

    @property
    def command_id(self) -> str:
        """The command's id."""
        return self.asked.command_id or ""

    @property
    def run_id(self) -> str:
        """The run that asks."""
        return self.asked.run_id or ""


@dataclass(slots=True)
class Talk:
    """See the module. `may_act` says that this is no mere observer."""

    may_act: bool = True
    runs: list[str] = field(default_factory=list)
    """The session's runs that are not over, the one that executes first (I29)."""
    status: str | None = None
    """How the last run of ours ended."""
    questions: deque[Question] = field(default_factory=deque)
    _streamed: str = ""
    _mid_line: bool = False
    _allowed: set[tuple[str, str]] = field(default_factory=set)
    _interrupts: int = 0
    _cancels_next: bool = False
    own_waiting: int = 0
    """What was said here and is not done with."""
    _own_runs: set[str] = field(default_factory=set)

    @property
    def question(self) -> Question | None:
        """What the next line answers."""
        return self.questions[0] if self.questions else None

    @property
    def is_busy(self) -> bool:
        """Whether something of ours was said and is not done with."""
        return self.own_waiting > 0

    # The person

    def typed(self, text: str) -> list[Act]:
        """A line, or several at once, was entered."""
        self._interrupts = 0
        if not text.strip():
            return []
        if text.startswith("/") and not text.startswith("//"):
            return self._commanded(text)
        if self.questions:
            return self._answered(text.strip())
        if not self.may_act:
            return [Show("this terminal only observes; /help shows what it can do\n", "error")]
        self.own_waiting += 1
        return [Say(text[1:] if text.startswith("//") else text)]

    def interrupted(self) -> list[Act]:
        """^C: it cancels a run of ours that goes on, and a second one leaves."""
        self._interrupts += 1
        if self._interrupts > 1:
            return [Leave()]
        own = [run for run in self.runs if run in self._own_runs]
        if own:
            return [Show("cancelling; ^C once more leaves\n"), CancelRun(own[0])]
        if self.own_waiting:
            self._cancels_next = True
            return [Show("cancelling; ^C once more leaves\n")]
        return [Show("^C once more leaves\n")]

    def moved(self) -> None:
        """It goes on in another session, or from another place of this one."""
        self.runs.clear()
        self.questions.clear()
        self._own_runs.clear()
        self._allowed.clear()
        self._streamed = ""
        self._cancels_next = False
        self.own_waiting = 0

    def refused(self, message: str) -> list[Act]:
        """What was said did not become a run."""
        self.own_waiting = max(0, self.own_waiting - 1)
        self._cancels_next = False
        self.status = self.status or "error"
        return [*self.line_ended(), Show(f"not accepted: {message}\n", "error")]

    def _commanded(self, text: str) -> list[Act]:
        act = parse(text)
        match act:
            case Unknown():
                return [Show(f"{act.why}\n", "error")]
            case "help":
                return [Show(HELP)]
            case "cancel" if not self.may_act:
                return [Show("an observer cannot cancel\n", "error")]
            case "cancel" if not self.runs:
                return [Show("nothing runs\n")]
            case "cancel":
                return [CancelRun(self.runs[0])]
            case _:
                return [act]

    def _answered(self, text: str) -> list[Act]:
        question = self.questions[0]
        command = question.command
        if isinstance(command, RequestInput):
            self.questions.popleft()
            result = Value(Raw(msgspec.json.encode(text)))
            return [Answer(question.asked, result), *self._asked_next()]
        word = text.lower()
        if word not in YES | NO | ALL:
            return [Show(f"please answer: {APPROVAL}\n", "ask")]
        self.questions.popleft()
        if word in ALL:
            self._allowed.add((question.run_id, command.tool))
        result_: exchange.Result = Rejected(DENIED) if word in NO else exchange.Accepted()
        return [Answer(question.asked, result_), *self._asked_next()]

    def _asked_next(self) -> list[Act]:
        """Ask what waited, unless it was allowed meanwhile."""
        acts: list[Act] = []
        while self.questions:
            question = self.questions[0]
            allowed = self._answered_before(question)
            if allowed is None:
                return [*acts, asking(question.command)]
            self.questions.popleft()
            acts += allowed
        return acts

    def _answered_before(self, question: Question) -> list[Act] | None:
        command = question.command
        if isinstance(command, RequestInput):
            return None
        if (question.run_id, command.tool) not in self._allowed:
            return None
        return [
            Show(f"{command.tool}: allowed for this run\n", "tool"),
            Answer(question.asked, exchange.Accepted()),
        ]

    # The session

    def happened(self, event: Event) -> list[Act]:
        """The session tells something."""
        return [*self._run_noted(event), *self._content_told(event)]

    def _content_told(self, event: Event) -> list[Act]:
        content = event.content
        match content:
            case data.Delta():
                self._streamed += content.text
                return self._piece(content.text)
            case data.Message():
                return self._message(event, content)
            case data.Tool():
                return self._note(f"{content.name}: {content.state}", "tool")
            case data.Command():
                return self._command(event, content.command)
            case data.CommandResolved():
                return self._resolved(content)
            case CommandLost():
                return self._dropped(content.command_id, "the connection went; nobody answers it")
            case data.Done():
                return self._done(event, content)
            case _:
                return self._told(event)
        return []

    def _told(self, event: Event) -> list[Act]:
        content = event.content
        match content:
            case data.SessionState():
                return self._note(state_text(content))
            case data.Error() | Warned():
                return self._note(f"{content.message} ({content.code})", "error")
            case data.Gap():
                return self._note(
                    f"events {content.from_seq} to {content.to_seq} are no more there:"
                    f" {content.reason}"
                )
            case Disconnected():
                self._streamed = ""
                return self._note(f"the slave went away ({content.reason}); waiting for it")
            case Attached(resumed=True):
                return self._note("the slave is back")
            case Detached():
                return [*self._note(f"detached: {content.message} ({content.code})", "error")]
            case _:
                return []

    def _run_noted(self, event: Event) -> list[Act]:
        run = event.run_id
        if run is None or isinstance(event.content, data.Done | data.Error):
            return []
        if run not in self.runs:
            self.runs.append(run)
        if not event.is_own or run in self._own_runs:
            return []
        self._own_runs.add(run)
        cancels, self._cancels_next = self._cancels_next, False
        return [CancelRun(run)] if cancels else []

    def _message(self, event: Event, message: data.Message) -> list[Act]:
        is_last = message.part is None or message.part == message.parts
        if message.role != "assistant":
            if event.is_own:
                return []
            style: Style = "user" if message.role == "user" else "note"
            end = "\n" if is_last else ""
            mark = f"{message.role}: " if message.part in (None, 1) else ""
            return [*self.line_ended(), Show(f"{mark}{message.text}{end}", style)]
        acts: list[Act] = []
        if self._streamed.startswith(message.text):
            self._streamed = self._streamed[len(message.text) :]
        elif message.text.startswith(self._streamed):
            acts = self._piece(message.text[len(self._streamed) :])
            self._streamed = ""
        else:
            acts = [*self.line_ended(), *self._piece(message.text)]
            self._streamed = ""
        return [*acts, *(self.line_ended() if is_last else [])]

    def _command(self, event: Event, command: exchange.Command) -> list[Act]:
        match command:
            case Notify():
                return self._note(f"{command.level}: {command.text}")
            case Invoke():
                result = Rejected(f"a terminal has no {command.name}")
                note = self._note(f"asked for {command.name}, which a terminal does not have")
                return [*note, Answer(event, result)]
        if any(each.command_id == event.command_id for each in self.questions):
            return []
        question = Question(event, command)
        allowed = self._answered_before(question)
        if allowed is not None:
            return [*self.line_ended(), *allowed]
        self.questions.append(question)
        if len(self.questions) > 1:
            return []
        return [*self.line_ended(), asking(command)]

    def _resolved(self, resolved: data.CommandResolved) -> list[Act]:
        reason = resolved.reason if isinstance(resolved.reason, str) else ""
        text = f"{resolved.state}: {reason}" if reason else resolved.state
        asked = any(each.command_id == resolved.command_id for each in self.questions)
        if asked:
            return self._dropped(resolved.command_id, text)
        return self._note(f"request {text}", "tool")

    def _dropped(self, command_id: str, why: str) -> list[Act]:
        was_first = bool(self.questions) and self.questions[0].command_id == command_id
        known = [each for each in self.questions if each.command_id == command_id]
        if not known:
            return []
        self.questions.remove(known[0])
        acts = self._note(f"the question is closed: {why}")
        return [*acts, *(self._asked_next() if was_first else [])]

    def _done(self, event: Event, done: data.Done) -> list[Act]:
        if event.run_id in self.runs:
            self.runs.remove(event.run_id)
        self._interrupts = 0
        self._streamed = ""
        self._own_runs.discard(event.run_id or "")
        if event.is_own:
            self.own_waiting = max(0, self.own_waiting - 1)
            self.status = done.status
        self._allowed = {each for each in self._allowed if each[0] != event.run_id}
        closed: list[Act] = []
        for each in [each for each in self.questions if each.run_id == event.run_id]:
            closed += self._dropped(each.command_id, "its run is over")
        if done.status == "completed":
            return [*self.line_ended(), *closed]
        why = f": {done.error.message}" if done.error is not None else ""
        style: Style = "error" if done.status == "error" else "note"
        return [*closed, *self._note(f"the run ended as {done.status}{why}", style)]

    # Lines

    def _piece(self, text: str) -> list[Act]:
        if not text:
            return []
        self._mid_line = not text.endswith("\n")
        return [Show(text, "answer")]

    def line_ended(self) -> list[Act]:
        """What ends the line that is being shown, if one is."""
        if not self._mid_line:
            return []
        self._mid_line = False
        return [Show("\n", "answer")]

    def _note(self, text: str, style: Style = "note") -> list[Act]:
        return [*self.line_ended(), Show(f"{text}\n", style)]


def asking(command: RequestApproval | RequestInput) -> Show:
    """A question as text."""
    if isinstance(command, RequestInput):
        return Show(f"{command.prompt}\n", "ask")
    arguments = bytes(command.arguments).decode("utf-8", "replace")
    return Show(f"may {command.tool} run? {arguments}\n  {APPROVAL}\n", "ask")


def state_text(state: data.SessionState) -> str:
    """A session's state in words."""
    phase = f", {state.phase}" if state.phase else ""
    step = f", step {state.step}" if state.step else ""
    return f"{state.status}{phase}{step}; {state.head} events"
