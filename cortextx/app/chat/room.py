"""A conversation with its session: carries out what a `Talk` asks for.

What shows the conversation, a terminal or a pipe, is a `View`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from cortextx.app.chat.acts import (
    Act,
    Answer,
    AskStatus,
    AttachTo,
    CancelRun,
    Export,
    Leave,
    ListSessions,
    Say,
    Show,
)
from cortextx.app.chat.talk import Talk, state_text
from cortextx.app.cli.faults import NOT_FOUND, NOT_REACHABLE, USAGE, Fault
from cortextx.errors import CortexError, SessionRefused
from cortextx.interaction.master.client import Master, Session
from cortextx.interaction.master.events import Attached, Detached, Event
from cortextx.interfaces.sessions import Mode

HISTORY = 200
"""How many of the newest events are shown to whoever comes to a session."""
GONE = "the session was left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which session. `after`: the seq to begin behind; None shows the newest of it."""

    agent: str
    session: str
    mode: Mode = "interact"
    space: str | None = None
    temp: bool = False
    after: int | None = None


class View(Protocol):
    """Whoever shows it."""

    def show(self, show: Show) -> None:
        """Show text."""

    def told(self, event: Event) -> None:
        """Show an event, before the talk is told of it."""

    def changed(self) -> None:
        """The place, the run or the question may be another one now."""


class Files(Protocol):
    """What is done with the sessions' files; all of it blocks."""

    def listed(self, where: Where) -> str:
        """The sessions, as a text."""

    def export(self, where: Where, export: Export) -> str:
        """Write one to a file; says so. Raises Fault."""


class Room:
    """See the module. `ended` fires when the conversation is over, or fails with why."""

    def __init__(
        self, master: Master, talk: Talk, view: View, files: Files, *, cwd: str | None = None
    ) -> None:
        self.where = Where(agent="", session="")
        self.talk = talk
        self.ended: Deferred[None] = Deferred()
        self._master = master
        self._view = view
        self._files = files
        self._cwd = cwd
        self._session: Session | None = None

    async def enter(self, where: Where, *, history: int = 0) -> None:
        """Attach, and show what happens there from now on; raises Fault.

        Without a place to begin at, the `history` newest events are shown first.
        """
        session = await self._attach(where)
        first = await session.next_event()
        if where.after is None and history and first is not None:
            head = first.content.head if isinstance(first.content, Attached) else 0
            if head:
                session.detach()
                session = await self._attach(replace(where, after=max(0, head - history)))
                first = None
        before, self._session, self.where = self._session, session, where
        if before is not None:
            before.detach()
        if first is not None:
            self._happened(first)
        self._view.changed()
        self._spawn(self._follow(session))

    def perform(self, acts: Sequence[Act]) -> None:
        """Carry out what the talk asks for."""
        for act in acts:
            match act:
                case Show():
                    self._view.show(act)
                case Leave():
                    self.leave()
                case _:
                    self._spawn(self._carried_out(act))
        self._view.changed()

    def leave(self, why: BaseException | None = None) -> None:
        """The conversation is over; what runs goes on."""
        if not self.ended.called:
            if why is None:
                self.ended.callback(None)
            else:
                self.ended.errback(why)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        done: Deferred[Any] = Deferred.fromCoroutine(work)
        done.addErrback(lambda failure: self.leave(failure.value))

    async def _attach(self, where: Where) -> Session:
        try:
            return await self._master.attach(
                where.agent,
                where.session,
                after=where.after,
                mode=where.mode,
                scope="temp" if where.temp else "private" if where.space is None else "shared",
                space=where.space,
            )
        except SessionRefused as refusal:
            raise refused(where, refusal) from None

    async def _follow(self, session: Session) -> None:
        async for event in session:
            if session is not self._session:
                continue  # left for another
            if isinstance(event.content, Detached):
                content = event.content
                raise refused(self.where, SessionRefused(content.code, content.message))
            self._happened(event)

    def _happened(self, event: Event) -> None:
        self._view.told(event)
        self.perform(self.talk.happened(event))

    async def _carried_out(self, act: Act) -> None:
        try:
            match act:
                case Say(text=text):
                    await self._say(text)
                case Answer(asked=asked, result=result):
                    await self._here.answer(asked, result)
                case CancelRun(run_id=run_id):
                    await self._here.cancel(run_id)
                case AskStatus():
                    self._note(state_text(await self._here.status()))
                case AttachTo():
                    await self._go(act)
                case ListSessions():
                    self._note(await deferToThread(self._files.listed, self.where))
                case Export():
                    self._note(await deferToThread(self._files.export, self.where, act))
        except Fault as fault:
            hint = f"\n  next: {fault.hint}" if fault.hint else ""
            self._note(f"{fault.message}{hint}", is_bad=True)
        except CortexError as fault:
            self._note(str(fault), is_bad=True)

    async def _say(self, text: str) -> None:
        try:
            await self._here.input(text, cwd=self._cwd)
        except CortexError as fault:
            self.perform(self.talk.refused(str(fault)))

    async def _go(self, to: AttachTo) -> None:
        if self.talk.is_busy:
            raise Fault("a run of yours goes on here", "wait for its end, or /cancel it")
        where = replace(
            self.where,
            agent=to.agent or self.where.agent,
            session=to.session or self.where.session,
            after=to.after,
        )
        self.talk.moved()
        await self.enter(where, history=HISTORY)

    def _note(self, text: str, *, is_bad: bool = False) -> None:
        self.perform([*self.talk.line_ended(), Show(f"{text}\n", "error" if is_bad else "note")])

    @property
    def _here(self) -> Session:
        if self._session is None:
            raise SessionRefused("closed", GONE)
        return self._session


def refused(where: Where, refusal: SessionRefused) -> Fault:
    """What a slave's no means, and what to do about it."""
    hints = {
        "unknown_agent": "name one that the slave has: `cortextx chat AGENT`; its [agents.NAME]"
        " tables say which",
        "forbidden": "the slave's policy file says who may do what; --observe asks for less",
        "session_io": f"`cortextx session verify {where.session}` tells where the log is damaged,"
        " and `cortextx session repair` mends it",
        "session_locked": "another slave has it open: stop that one",
        "cursor_ahead": "the log is shorter than that: begin with --after 0",
    }
    if refusal.code == "session_io" and refusal.retryable:
        hints["session_io"] = "make room on the disk where the slave keeps its sessions"
    codes = {"unknown_agent": NOT_FOUND, "bad_frame": USAGE, "session_locked": NOT_REACHABLE}
    message = f"{where.agent}/{where.session}: {refusal} ({refusal.code})"
    return Fault(message, hints.get(refusal.code), codes.get(refusal.code, 1))
