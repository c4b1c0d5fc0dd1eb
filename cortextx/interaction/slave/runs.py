"""One accepted run as the session machine keeps it, and what makes its output fit (PURE)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cortextx.core import exchange
from cortextx.core.mending import mend_text
from cortextx.interaction.data import Message, Tool
from cortextx.interaction.parts import DATA_BYTES_BOTH, split
from cortextx.interaction.slave.actions import InputAsked, Known, Refuse, conflict
from cortextx.interaction.slave.commands import Pending
from cortextx.interaction.slave.ledger import Claim, Ledger
from cortextx.interaction.slave.lines import Ids
from cortextx.interfaces.sessions import RunRequest, SessionKey

MAX_WORD = 256
"""Characters of a role, a tool's name or state, and what else is no text."""
RunState = Literal["queued", "running", "cancelling", "over"]


@dataclass(slots=True, eq=False)
class Run:
    """A run from acceptance until done. `origin` is None once it cannot be asked."""

    run_id: str
    item: InputAsked
    accepted: int
    origin: int | None
    listener: int | None
    state: RunState = "queued"
    started: bool = False
    paused: bool = False
    kill_due: bool = False
    commands: int = 0
    steps: int = 0
    pending: dict[str, Pending] = field(default_factory=dict)


def messages_of(role: str, text: str) -> tuple[list[Message], bool]:
    """The messages that say this, each fit for a frame; and whether it was mended (I33, I40)."""
    clean, mended = mend_text(text)
    said, odd = mend_text(role[:MAX_WORD])
    return split(Message(said, clean), DATA_BYTES_BOTH), mended or odd


def tool_of(call: exchange.ToolCall) -> tuple[Tool, bool]:
    """The fact of a tool call."""
    words = [mend_text(text[:MAX_WORD]) for text in (call.call_id, call.name, call.state)]
    return Tool(*(text for text, _ in words)), any(mended for _, mended in words)


def waiting_of(runs: Sequence[Run], asker: int) -> int:
    """How many of these runs an asker began (v2: pending requests)."""
    return sum(run.item.asker == asker for run in runs)


def why_not(run: Run, command: exchange.Command, max_pending: int) -> str | None:
    """Why this command cannot be put to the run's origin, or None."""
    if run.origin is None:
        return "origin_lost"
    if isinstance(command, exchange.Invoke) and not run.item.invokes:
        return "the origin lacks the capability invoke"
    if not isinstance(command, exchange.Notify) and not run.item.answers:
        return "the origin lacks the capability command_result"
    if len(run.pending) >= max_pending:
        return "limit_exceeded"
    return None


def request_of(
    key: SessionKey, run: Run, ledger: Ledger, workspace: str, waiting: Collection[str]
) -> RunRequest:
    """What the run's runtime is given; the words of the `waiting` requests are not history."""
    item = run.item
    later = {item.request_id, *waiting}
    place = item.workspace or workspace
    return RunRequest(
        key=key,
        run=run.run_id,
        request_id=item.request_id,
        text=item.text,
        owner=item.owner,
        cwd=item.cwd or ledger.cwd or place,
        workspace=place,
        event=item.event,
        interrupted=ledger.interrupted,
        history=[said for said in ledger.history() if said.request_id not in later],
    )


def repeated(item: InputAsked, known: Claim, durable: int) -> Known | Refuse:
    """The same request again: what it led to so far, or a conflict (I10)."""
    if not known.is_same("input", item.claim):
        return conflict(item.asker, Ids(item.request_id))
    accepted = known.accepted if known.accepted <= durable else 0
    done = known.done if known.done <= durable else 0
    return Known(item.asker, item.request_id, known.run, accepted, done)
