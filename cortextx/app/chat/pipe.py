"""A conversation in a pipe: words from stdin, an answer or JSON lines to stdout.

As text, all of stdin is one input, and stdout gets the answer alone. As JSON, each
line of stdin is an input or an object that says what to do, each event is a line.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from twisted.internet.defer import Deferred

from cortextx.app.chat.acts import Act, Answer, AskStatus, CancelRun, Leave, Say, Show
from cortextx.app.chat.room import Room
from cortextx.app.chat.talk import Talk
from cortextx.app.chat.view import row, safe
from cortextx.app.cli.faults import FAILED, INTERRUPTED, OK, USAGE, Fault
from cortextx.app.cli.terminal import print_json
from cortextx.core import exchange
from cortextx.core.exchange import Rejected, RequestInput
from cortextx.interaction import data
from cortextx.interaction.master.events import Attached, CommandLost, Event

NOBODY = "nobody is there to be asked"
MAX_LINE = 1 << 20
"""Characters of a line of stdin, or of all of it as one input."""
MAX_WAITING = 32
"""Inputs of ours that wait for their end before more is read."""
TOO_LONG = "a line is too long"

T = TypeVar("T")


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object on stdin; exactly one of input, answer, cancel and status is given.

    `answer` is a command's id, and `value` what was asked for, or `reject` why not.
    """

    input: str | None = None
    answer: str | None = None
    value: Raw | UnsetType = UNSET
    reject: str | None = None
    cancel: bool = False
    status: bool = False

    def __post_init__(self) -> None:
        given = (self.input is not None, self.answer is not None, self.cancel, self.status)
        if sum(given) != 1:
            raise ValueError("expected exactly one of input, answer, cancel, status")


_order = msgspec.json.Decoder(Order)


class PipeView:
    """What both ways to show have: somebody may be told of every change."""

    when_changed: Callable[[], None] | None = None

    def changed(self) -> None:
        """See View."""
        if self.when_changed is not None:
            self.when_changed()


class TextView(PipeView):
    """The answer to stdout, all else to stderr; on a terminal made safe (S4)."""

    def __init__(self) -> None:
        self._is_safe = sys.stdout.isatty()

    def show(self, show: Show) -> None:
        """See View."""
        if show.style == "answer":
            sys.stdout.write(safe(show.text) if self._is_safe else show.text)
            sys.stdout.flush()
        elif show.style != "user":
            sys.stderr.write(safe(show.text))

    def told(self, event: Event) -> None:
        """See View."""


class JsonView(PipeView):
    """Every event on a line; what only this end has to say is a row `note` or `refused`."""

    def show(self, show: Show) -> None:
        """See View."""
        if show.style in ("note", "error") and show.text.strip():
            name = "refused" if show.style == "error" else "note"
            print_json({"event": name, "message": show.text.strip()})
            sys.stdout.flush()

    def told(self, event: Event) -> None:
        """See View."""
        print_json(row(event))
        sys.stdout.flush()


class PipeTalk(Talk):
    """A talk with nobody who could be asked, once stdin has ended."""

    def __init__(self, *, may_act: bool, as_json: bool) -> None:
        super().__init__(may_act=may_act)
        self.has_ended = False
        self.has_failed = False
        self._as_json = as_json
        self._head = 0
        self._seen = 0
        self._open: dict[str, Event] = {}

    def happened(self, event: Event) -> list[Act]:
        """See Talk."""
        acts = super().happened(event)
        content = event.content
        if isinstance(content, Attached):
            self._head = content.head if content.replay_from <= content.head else 0
        self._seen = max(self._seen, event.seq or 0)
        if isinstance(content, data.Command) and event.command_id is not None:
            self._open[event.command_id] = event
        if isinstance(content, data.CommandResolved | CommandLost):
            self._open.pop(content.command_id, None)
        if isinstance(content, data.Done):
            gone = [each for each, asked in self._open.items() if asked.run_id == event.run_id]
            for each in gone:
                del self._open[each]
            if event.is_own and content.status != "completed":
                self.has_failed = True
        if self._as_json:
            acts = [act for act in acts if not isinstance(act, Show)]
        return [*acts, *self._left_alone()]

    def refused(self, message: str) -> list[Act]:
        """See Talk."""
        self.has_failed = True
        return [*super().refused(message), *self._left_alone()]

    def interrupted(self) -> list[Act]:
        """See Talk; with nothing to cancel it leaves at once."""
        return super().interrupted() if self.is_busy else [Leave()]

    def said(self, line: str) -> list[Act]:
        """A line of stdin, of JSON."""
        if not line.strip():
            return []
        if not line.startswith("{"):
            return self.words(line)
        try:
            order = _order.decode(line.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError) as fault:
            return self.misled(f"not understood: {fault}")
        if order.input is not None:
            return self.words(order.input)
        if order.status:
            return [AskStatus()]
        if order.cancel:
            return [CancelRun(self.runs[0])] if self.runs else self.misled("nothing runs")
        return self._given(order)

    def stdin_ended(self) -> list[Act]:
        """Nothing more can be said; with nothing to wait for or to replay it is over."""
        self.has_ended = True
        return self._left_alone()

    def words(self, text: str) -> list[Act]:
        """Words to say."""
        # Words in a pipe are words: no /commands, no answers to questions.
        if not self.may_act:
            return self.misled("this end only observes")
        self.own_waiting += 1
        return [Say(text)]

    def misled(self, why: str) -> list[Act]:
        """What stdin says cannot be done."""
        self.has_failed = True
        return [Show(f"{why}\n", "error")]

    def _given(self, order: Order) -> list[Act]:
        asked = self._open.pop(order.answer or "", None)
        if asked is None:
            return self.misled(f"no command {order.answer} is open")
        self.questions = type(self.questions)(
            each for each in self.questions if each.command_id != asked.command_id
        )
        result: exchange.Result = exchange.Accepted()
        if order.reject is not None:
            result = Rejected(order.reject)
        elif order.value is not UNSET:
            assert isinstance(order.value, Raw)
            result = exchange.Value(order.value.copy())
        return [Answer(asked, result)]

    def _left_alone(self) -> list[Act]:
        """After the end of stdin: questions are refused, and the last run's end is the end."""
        if not self.has_ended:
            return []
        acts: list[Act] = []
        for question in self.questions:
            self._open.pop(question.command_id, None)
            what = "words" if isinstance(question.command, RequestInput) else question.command.tool
            note: list[Act] = [Show(f"refused: asked for {what}, and {NOBODY}\n", "error")]
            acts += [*([] if self._as_json else note), Answer(question.asked, Rejected(NOBODY))]
        self.questions.clear()
        if not self.is_busy and self.may_act and self._seen >= self._head:
            acts.append(Leave())
        return acts

    @property
    def is_ready(self) -> bool:
        """Whether more may be said now; an answer that a run waits for always may."""
        return self.own_waiting < MAX_WAITING or bool(self._open)

    @property
    def code(self) -> int:
        """The exit code: whether all that was said was completed."""
        return FAILED if self.has_failed else OK


class Stdin:
    """Standard input, read in a thread of its own; what is no UTF-8 is replaced.

    The thread is not of the reactor's pool: it may wait for ever, and must keep nobody
    from ending.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._go_on = threading.Event()

    def lines(self, take: Callable[[str | None], None]) -> Deferred[None]:
        """Give each line, or None for one that is too long, and fire at the end.

        After each it waits for `go_on`.
        """
        return self._read(lambda stream: self._lines(stream, take))

    def whole(self) -> Deferred[str]:
        """All of it, up to a little more than MAX_LINE characters."""
        return self._read(lambda stream: stream.read(MAX_LINE + 1))

    def go_on(self) -> None:
        """The next line may come."""
        self._go_on.set()

    def _lines(self, stream: TextIO, take: Callable[[str | None], None]) -> None:
        is_rest = False
        while text := stream.readline(MAX_LINE):
            is_whole = text.endswith("\n") or len(text) < MAX_LINE
            if not is_rest:
                self._go_on.clear()
                line = text.rstrip("\n") if is_whole else None
                self._reactor.callFromThread(take, line)
                self._go_on.wait()
            is_rest = not is_whole

    def _read(self, work: Callable[[TextIO], T]) -> Deferred[T]:
        ended: Deferred[T] = Deferred()
        stream = sys.stdin
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")

        def read() -> None:
            try:
                found = work(stream)
            except Exception:
                self._reactor.callFromThread(ended.errback)
            else:
                self._reactor.callFromThread(ended.callback, found)

        threading.Thread(target=read, name="stdin", daemon=True).start()
        return ended


async def converse(
    reactor: Any, room: Room, talk: PipeTalk, view: PipeView, *, as_json: bool
) -> int:
    """Take what stdin says until it is all done; answers the exit code.

    ^C cancels a run of ours, and a second one leaves.
    """

    def interrupted(number: int, frame: object) -> None:
        reactor.callFromThread(lambda: room.perform(talk.interrupted()))

    if not talk.may_act:
        await room.ended
        return OK
    before = signal.signal(signal.SIGINT, interrupted)
    work = Deferred.fromCoroutine(_fed(Stdin(reactor), room, talk, view, as_json=as_json))
    work.addErrback(lambda failure: room.leave(failure.value))
    try:
        await room.ended
    finally:
        signal.signal(signal.SIGINT, before)
    return INTERRUPTED if talk.own_waiting else talk.code


async def _fed(stdin: Stdin, room: Room, talk: PipeTalk, view: PipeView, *, as_json: bool) -> None:
    if as_json:

        def go_on() -> None:
            if talk.is_ready:
                stdin.go_on()

        def take(line: str | None) -> None:
            room.perform(talk.said(line) if line is not None else talk.misled(TOO_LONG))
            go_on()

        view.when_changed = go_on
        await stdin.lines(take)
    else:
        text = await stdin.whole()
        if len(text) > MAX_LINE:
            raise Fault("that is too much to say at once", "an input has at most 256 KiB", USAGE)
        if not text.strip():
            raise Fault("nothing was said", "put words on stdin: `echo hi | cortextx chat`", USAGE)
        room.perform(talk.words(text.removesuffix("\n")))
    room.perform(talk.stdin_ended())
