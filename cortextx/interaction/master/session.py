"""One attachment as an application has it: ask, answer, and read what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from cortextx.core.exchange import Accepted, Command, Origin, Rejected, Result, Value
from cortextx.core.jsontext import encode
from cortextx.interaction import data
from cortextx.interaction.data import CommandResolved, Done, SessionState
from cortextx.interaction.master.actions import Action, Outcome, RunAccepted
from cortextx.interaction.master.adapter import Adapter
from cortextx.interaction.master.effects import attempted, ended
from cortextx.interaction.master.events import Detached, Event, Place


class Run:
    """An input that was accepted."""

    def __init__(self, session: Session, request_id: str, run_id: str) -> None:
        self.session = session
        self.request_id = request_id
        self.run_id = run_id
        self._done: Done | Failure | None = None
        self._waiting: list[Deferred[Done]] = []

    def ended(self) -> Deferred[Done]:
        """How it ends; fails with SessionRefused if that is never told."""
        waiting: Deferred[Done] = Deferred()
        if self._done is None:
            self._waiting.append(waiting)
        else:
            waiting.callback(self._done)
        return waiting

    def cancel(self) -> Deferred[Done]:
        """End it; the run's end is the answer (I30)."""
        return self.session.cancel(self.run_id)

    def over(self, done: Any) -> None:
        """It has ended."""
        self._done = done
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:
                each.callback(done)


class Session:
    """An attachment to a session. Iterate over it for its events; the last is Detached."""

    def __init__(self, adapter: Adapter, key: int, place: Place, origin: Origin) -> None:
        self.place = place
        self.is_over = False
        self._adapter = adapter
        self._key = key
        self._origin = origin
        self._cursor: int | None = None
        self._last: Event | None = None
        self._waiter: Deferred[Event | None] | None = None

    @property
    def cursor(self) -> int | None:
        """The newest seq that was dealt with: what to attach with `after` next time."""
        attachment = self._adapter.machine.attachments.get(self._key)
        return self._cursor if attachment is None else attachment.processed

    # What happens

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    def next_event(self) -> Deferred[Event | None]:
        """The next event, or None after the last; the one before is dealt with now."""
        if self._waiter is not None:
            raise RuntimeError("the next event is being waited for already")
        self._processed()
        event = self._take()
        if event is not None or self.is_over:
            return succeed(event)
        self._waiter = Deferred(self._given_up)
        return self._waiter

    def wake(self) -> None:
        """There is something in the inbox."""
        if self._waiter is None:
            return
        event = self._take()
        if event is not None:
            waiter, self._waiter = self._waiter, None
            waiter.callback(event)

    def _given_up(self, _: Deferred[Event | None]) -> None:
        self._waiter = None

    def _take(self) -> Event | None:
        if self.is_over:
            return None
        event, actions = self._adapter.machine.take(self._key)
        self._last = event
        self._adapter.do(actions)
        return event

    def _processed(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        adapter = self._adapter
        adapter.do(adapter.machine.processed(self._key, last, adapter.now))
        if isinstance(last.content, Detached):
            self._end()

    # What is asked for

    async def input(
        self,
        text: str,
        *,
        request_id: str | None = None,
        origin: Origin | None = None,
        event: Mapping[str, object] | None = None,
        cwd: str | None = None,
        workspace: str | None = None,
    ) -> Run:
        """Say something; the run is there once it is durably accepted.

        With the `request_id` of an earlier input the same words are not run again: the
        same run comes back (I10). Raises SessionRefused (`busy` may be tried again),
        and LocalProtocolError for what is too long for a frame.
        """
        machine = self._adapter.machine
        request_id, actions = machine.input(
            self._key,
            text,
            origin or self._origin,
            request_id=request_id,
            event=event,
            cwd=cwd,
            workspace=workspace,
        )
        accepted = self._adapter.wait(self._key, request_id)
        ended = self._adapter.wait(self._key, request_id)
        runs: list[Run] = []
        ends: list[Any] = []

        def over(done: Any) -> None:
            ends.append(done)
            for run in runs:
                run.over(done)

        ended.addBoth(over)
        self._adapter.do(actions)
        outcome = await accepted
        assert isinstance(outcome, RunAccepted)
        run = Run(self, request_id, outcome.run_id)
        runs.append(run)
        for done in ends:
            run.over(done)
        return run

    async def status(self) -> SessionState:
        """How the session is doing."""
        request_id, actions = self._adapter.machine.status(self._key)
        outcome = await self._ask(request_id, actions)
        assert isinstance(outcome, SessionState)
        return outcome

    def cancel(self, run_id: str, *, request_id: str | None = None) -> Deferred[Done]:
        """End a run; its Done is the answer. Fails with SessionRefused (`unknown_run`)."""
        request_id, actions = self._adapter.machine.cancel(self._key, run_id, request_id)
        return self._ask(request_id, actions)  # type: ignore[return-value]  # of a cancel

    async def begin(self, asked: Event) -> None:
        """Record that the side effect of a command is about to be attempted (B43)."""
        command, effect_id = _command_of(asked)
        if effect_id is not None:
            await self._adapter.note(attempted(effect_id, command))

    async def answer(self, asked: Event, result: Result) -> CommandResolved:
        """Answer a command, once its result is recorded; says how it was resolved.

        Raises SessionRefused: the command was resolved otherwise, or is not ours.
        """
        command, effect_id = _command_of(asked)
        command_id = asked.command_id or ""
        if effect_id is not None:
            await self._adapter.note(ended(effect_id, command, result))
            others = self._adapter.machine.effect_ended(effect_id, result, command_id)
            self._adapter.do(others)
        actions = self._adapter.machine.answer(self._key, command_id, result)
        outcome = await self._ask(command_id, actions)
        assert isinstance(outcome, CommandResolved)
        return outcome

    async def approve(self, asked: Event) -> CommandResolved:
        """Say yes."""
        return await self.answer(asked, Accepted())

    async def reject(self, asked: Event, reason: str = "rejected by the user") -> CommandResolved:
        """Say no."""
        return await self.answer(asked, Rejected(reason))

    async def give(self, asked: Event, value: object) -> CommandResolved:
        """Answer with a value: the words that were asked for, or what came of an invoke."""
        return await self.answer(asked, Value(Raw(encode(value))))

    def detach(self) -> None:
        """Leave: nothing more comes of it, what waits to be read included. Runs go on."""
        if self.is_over:
            return
        self._end()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(None)

    def _end(self) -> None:
        self._cursor = self.cursor
        self.is_over = True
        self._adapter.wakers.pop(self._key, None)
        self._adapter.do(self._adapter.machine.detach(self._key))

    def _ask(self, id: str, actions: Sequence[Action]) -> Deferred[Outcome]:
        waiting = self._adapter.wait(self._key, id)
        self._adapter.do(actions)
        return waiting


def _command_of(asked: Event) -> tuple[Command, str | None]:
    content = asked.content
    if not isinstance(content, data.Command):
        raise TypeError("only a command can be answered")
    return content.command, content.effect_id
