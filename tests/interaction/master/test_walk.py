"""Whatever happens between a master and a slave, the transcript is whole (PURE both).

The two machines are joined by queues of bytes that are carried in chunks, cut at any
byte, and lost; the slave dies and comes back with its log.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Invoke, Message, Rejected
from cortextx.errors import SessionRefused
from cortextx.interaction.data import Command, Done
from cortextx.interaction.master.actions import Close, Connect, RunAccepted, Settled, Write
from cortextx.interaction.master.effects import (
    MemoryEffects,
    attempted,
    ended,
    line_of,
    read_effect,
)
from cortextx.interaction.master.events import INTERACT, Event, Place
from cortextx.interaction.master.machine import MasterMachine
from cortextx.interaction.opening import OpensStream, decide
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.lines import read_line
from cortextx.interfaces.sessions import RunOutcome
from tests.interaction.master.script import ME
from tests.interaction.slave.hub import ME as PEER
from tests.interaction.slave.hub import Hub, Link


class Record(MemoryEffects):
    """A record that is as if it were read from a file."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        for line in lines:
            effect = read_effect(line)
            assert effect is not None
            self.note(effect)


class Walk:
    """A master, a slave, and what is on its way between them."""

    def __init__(self) -> None:
        self.numbers = iter(range(1, 100_000))
        self.hub = Hub()
        self.record = Record([])
        self.done: dict[str, int] = {}
        self.cursor: int | None = 0
        self.link: Link | None = None
        self.up = b""
        self.facts: list[tuple[int, str]] = []
        self.runs: dict[str, set[str]] = {}
        self.inputs: list[str] = []
        self.ended: set[str] = set()
        self.wants_connection = False
        self.begin()
        self.come_and_go()

    def begin(self) -> None:
        """A master's life begins, with what is kept from the one before."""
        self.machine = MasterMachine(
            mint=lambda: f"m{next(self.numbers)}", random=lambda: 0.5, effects=self.record
        )
        place = Place(agent="echo", after=self.cursor, capabilities=("invoke", *INTERACT))
        self.key, actions = self.machine.attach(place, self.hub.now)
        self.do(actions)
        for number, request_id in enumerate(self.inputs):
            if request_id not in self.ended:
                self.say(number, request_id)

    def do(self, actions: list[Any]) -> None:
        """The adapter of the master."""
        for action in actions:
            match action:
                case Write(lines=lines) if self.link is not None:
                    self.up += lines
                case Connect():
                    self.wants_connection = True
                case Close():
                    self.cut(tell=False)
                case Settled(id=id, outcome=RunAccepted(run_id=run_id)):
                    self.runs.setdefault(id, set()).add(run_id)
                case Settled(id=id, outcome=Done()):
                    self.ended.add(id)

    # Steps

    def connect(self) -> None:
        """Take a connection, if one is wanted."""
        if self.wants_connection:
            self.wants_connection = False
            self.up = b""
            hub = self.hub
            self.link = Link(hub, Connection(PEER, hub.policy, hub.next_asker))
            self.do(self.machine.connected(self.hub.now))

    def carry_up(self) -> None:
        """The slave gets what the master wrote."""
        *lines, self.up = self.up.split(b"\n")
        for line in lines:
            link = self.link
            if link is None:
                return
            if link.machine.id:
                link.act(link.machine.line_received(line, self.hub.now))
            else:
                opening = decide(line + b"\n")
                assert isinstance(opening, OpensStream), opening
                link.act(link.machine.opened(opening.frame))

    def carry_down(self, size: int) -> None:
        """The master gets some bytes of what the slave wrote."""
        if self.link is not None:
            text = b"".join(self.link.out)
            self.link.out = [text[size:]]
            self.do(self.machine.data_received(text[:size], self.hub.now))

    def come_and_go(self) -> None:
        """Everything is carried, both ways."""
        for _ in range(4):
            self.connect()
            self.carry_up()
            self.carry_down(1 << 20)

    def cut(self, *, tell: bool = True) -> None:
        """The connection breaks, with all that is on its way."""
        link, self.link = self.link, None
        self.up = b""
        if link is not None:
            link.act(link.machine.peer_lost("cut"))
        if tell:
            self.do(self.machine.peer_lost("cut", self.hub.now))

    def crash(self) -> None:
        """The slave dies, and is there again with its log."""
        now, log = self.hub.now, self.hub.box.log
        self.link, self.up = None, b""
        self.hub = Hub(log)
        self.hub.now = now
        self.do(self.machine.peer_lost("crash", now))

    def restart(self) -> None:
        """The master dies, and its next life begins with cursor, requests and effects."""
        if self.link is not None:
            self.cut(tell=False)
        self.wants_connection = False
        self.record = Record([line_of(effect) for effect in self.record.effects])
        self.begin()

    def input(self) -> None:
        """The user says something."""
        self.inputs.append(f"r{len(self.inputs)}")
        self.say(len(self.inputs) - 1, self.inputs[-1])

    def say(self, number: int, request_id: str) -> None:
        """Say it, or say it again."""
        _, actions = self.machine.input(self.key, f"words {number}", ME, request_id=request_id)
        self.do(actions)

    def ask(self, number: int) -> None:
        """The active run wants something done outside, perhaps once more."""
        box = self.hub.box
        active = box.machine._active
        if active is not None:
            command = Invoke("send", Raw(b"%d" % number))
            self.hub.spread(box.ask(active.run_id, command, f"e{number}", self.hub.now))

    def cancel(self) -> None:
        """The user has enough of the newest run."""
        runs = [run for found in self.runs.values() for run in found]
        if runs:
            self.do(self.machine.cancel(self.key, runs[-1])[1])

    def work(self, end: bool) -> None:
        """The active run says something, or ends."""
        box = self.hub.box
        active = box.machine._active
        if active is None:
            return
        if end:
            found = box.machine.run_ended(active.run_id, RunOutcome("completed"))
        else:
            message = Message("r", active.run_id, "assistant", "answer")
            found = box.machine.emitted(active.run_id, message)
        self.hub.spread(box.do(found))

    def want(self, numbers: list[int]) -> None:
        """A run that the master is the origin of wants these, all on their way at once."""
        self.come_and_go()
        self.take(1000)
        active = self.hub.box.machine._active
        if active is None or active.origin is None:
            for _ in range(len(self.inputs) + 1):
                self.work(end=True)
            self.input()
            self.come_and_go()
        for number in numbers:
            self.ask(number)

    def take(self, count: int, dies: bool = False) -> None:
        """The application reads, and does what it is asked to; perhaps it dies of it."""
        for _ in range(count):
            event, actions = self.machine.take(self.key)
            self.do(actions)
            if event is None:
                return
            if event.seq is not None:
                self.facts.append((event.seq, type(event.content).__name__))
            self.do(self.machine.processed(self.key, event, self.hub.now))
            self.cursor = self.machine.attachments[self.key].processed
            if isinstance(event.content, Command):
                self._carry_out(event, event.content, dies)
                if dies:
                    self.restart()
                    return

    def pass_time(self, seconds: float) -> None:
        """Timers fire."""
        self.hub.now += seconds
        if self.link is not None:
            self.link.act(self.link.machine.time_passed(self.hub.now))
        self.do(self.machine.time_passed(self.hub.now))

    def _carry_out(self, event: Event, content: Command, dies: bool) -> None:
        effect_id = content.effect_id or ""
        if event.effect == "new":
            self.record.note(attempted(effect_id, content.command))
            self.done[effect_id] = self.done.get(effect_id, 0) + 1
            if dies:
                return
            self.record.note(ended(effect_id, content.command, Accepted()))
        result = Accepted() if event.effect == "new" else Rejected("it may have happened")
        command_id = event.command_id or ""
        if event.effect == "new":
            self.do(self.machine.effect_ended(effect_id, result, command_id))
        with contextlib.suppress(SessionRefused):
            self.do(self.machine.answer(self.key, command_id, result))

    def settle(self) -> None:
        """Let everything come to rest."""
        for _ in range(400):
            self.connect()
            self.carry_up()
            self.work(end=True)
            self.carry_down(1 << 20)
            self.take(1000)
            self.pass_time(0.5)


USUAL = [
    st.just(("come_and_go",)),
    st.just(("input",)),
    st.tuples(st.just("want"), st.lists(st.integers(0, 1), min_size=1, max_size=3)),
    st.tuples(st.just("take"), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("work"), st.booleans()),
    st.just(("carry_up",)),
    st.tuples(st.just("carry_down"), st.integers(1, 3000)),
]
RARE = [
    st.just(("connect",)),
    st.just(("cut",)),
    st.just(("crash",)),
    st.just(("restart",)),
    st.just(("cancel",)),
    st.tuples(st.just("pass_time"), st.sampled_from([0.1, 1.0, 20.0])),
]
STEPS = st.one_of(*USUAL, *USUAL, st.one_of(*RARE))


class WalkTests(SynchronousTestCase):
    @settings(max_examples=100, deadline=None)
    @given(st.lists(STEPS, min_size=5, max_size=60))
    def test_any_walk_ends_in_a_whole_transcript_and_one_run_an_input(self, steps: Any) -> None:
        """v2, Idempotency and delivery; B01, B05, B17, B43: nothing missing, run or done twice."""
        walk = Walk()
        for name, *given_with in steps:
            getattr(walk, name)(*given_with)
        walk.settle()
        log = [read_line(line) for line in walk.hub.box.log]
        self.assertEqual([seq for seq, _ in walk.facts], list(range(1, len(log) + 1)))
        accepted = [line.correlation.request_id for line in log if line.event.kind == "accepted"]
        self.assertEqual(sorted(accepted), sorted(walk.inputs))
        self.assertLessEqual(set(walk.done.values()), {1})
        self.assertEqual(
            {id: len(runs) for id, runs in walk.runs.items()}, dict.fromkeys(walk.inputs, 1)
        )
        self.assertEqual(walk.machine.attachments[walk.key].requests, {})
