"""What a conversation asks of the terminal or pipe that carries it (PURE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cortextx.core.exchange import Result
from cortextx.interaction.master.events import Event

Form = Literal["events", "messages", "markdown"]
Style = Literal["answer", "user", "note", "tool", "ask", "error"]


@dataclass(frozen=True, slots=True)
class Show:
    """Show text; without a newline at its end it is a piece of a line. Not escaped yet."""

    text: str
    style: Style = "note"


@dataclass(frozen=True, slots=True)
class Say:
    """Give these words to the session."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the command of this event its result."""

    asked: Event
    result: Result


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Cancel a run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Ask how the session is doing."""


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Show which sessions there are."""


@dataclass(frozen=True, slots=True)
class AttachTo:
    """Leave this session for another one; None is the same agent or session."""

    agent: str | None
    session: str | None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """Write the session to a file."""

    form: Form
    path: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End the conversation; runs go on."""


Act = Show | Say | Answer | CancelRun | AskStatus | ListSessions | AttachTo | Export | Leave
