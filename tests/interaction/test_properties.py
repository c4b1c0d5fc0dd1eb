"""Several masters of ours and one slave, and everything that can happen between them (PURE).

The machines of both sides are joined by bytes that are carried in pieces and lost.
Masters attach, say things, cancel, answer, stop reading, lose their connection, and
die and come back with what they had written down; the slave's disk is slow, and it
dies and comes back with its log. Whatever the order: one transcript for all, without
a hole; each request run once; each side effect carried out once; bounded memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Invoke, Message, Rejected, Result
from cortextx.errors import SessionRefused
from cortextx.interaction.data import DEFAULT_LIMITS, Command, Limits
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.master.actions import Close, Connect, Settled, Write
from cortextx.interaction.master.effects import (
    MemoryEffects,
    attempted,
    ended,
    line_of,
    read_effect,
)
from cortextx.interaction.master.events import INTERACT, Done, Event, Place
from cortextx.interaction.master.machine import MasterMachine
from cortextx.interaction.opening import OpensStream, decide
from cortextx.interaction.slave.actions import Resolve, StartRun
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.lines import read_line
from tests.interaction.master.script import ME
from tests.interaction.slave.hub import ME as PEER
from tests.interaction.slave.hub import Hub, Link

NARROW = msgspec.structs.replace(
    DEFAULT_LIMITS,
    max_unacked_events_per_attachment=8,
    max_pending_requests_per_attachment=3,
    max_replay_events_per_batch=3,
    max_outbound_bytes_per_attachment=20_000,
    max_outbound_bytes_per_connection=60_000,
)
INBOX_BYTES = 60_000
MASTERS = 3
ASKS = (*INTERACT, "invoke")


class Desk:
    """A master and its user. What it has written down outlives `restart`."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        # Written down:
        self.transcript: list[tuple[int, str]] = []
        self.wanted: dict[str, str] = {}
        self.effects = MemoryEffects()
        # Of this life:
        self.begin()

    @property
    def cursor(self) -> int:
        """The newest fact that was dealt with."""
        return self.transcript[-1][0] if self.transcript else 0

    def begin(self) -> None:
        """A life: attach behind the cursor, and ask again for what has no end yet."""
        self.link: Link | None = None
        self.up = b""
        self.wants_connection = False
        self.begun: list[Event] = []
        self.runs: dict[str, str] = {}
        self.machine = MasterMachine(
            mint=self.world.fresh_id,
            random=lambda: 0.5,
            effects=self.effects,
            inbox_bytes=INBOX_BYTES,
        )
        place = Place(agent="echo", after=self.cursor, capabilities=ASKS)  # type: ignore[arg-type]
        self.key, actions = self.machine.attach(place, self.world.hub.now)
        self.do(actions)
        for request_id, text in self.wanted.items():
            self.ask(request_id, text)

    def do(self, actions: list[Any]) -> None:
        """The adapter."""
        for action in actions:
            match action:
                case Write(lines=lines) if self.link is not None:
                    self.up += lines
                case Connect():
                    self.wants_connection = True
                case Close():
                    self.drop()
                case Settled(id=id, outcome=Done()):
                    self.wanted.pop(id, None)

    def ask(self, request_id: str, text: str) -> None:
        """Say something."""
        self.do(self.machine.input(self.key, text, ME, request_id=request_id)[1])

    # The connection

    def connect(self) -> None:
        """Take a connection, if one is wanted."""
        if self.wants_connection:
            self.wants_connection = False
            hub = self.world.hub
            self.link = Link(hub, Connection(PEER, hub.policy, hub.next_asker, self.world.limits))
            self.do(self.machine.connected(hub.now))

    def carry_up(self) -> None:
        """The slave gets what was written."""
        *lines, self.up = self.up.split(b"\n")
        for line in lines:
            link = self.link
            if link is None or link.closed is not None:
                return
            if link.machine.id:
                link.act(link.machine.line_received(line, self.world.hub.now))
            else:
                opening = decide(line + b"\n")
                assert isinstance(opening, OpensStream), opening
                link.act(link.machine.opened(opening.frame))

    def carry_down(self, size: int) -> None:
        """Some bytes come from the slave, then perhaps the end of the connection."""
        link = self.link
        if link is None or link.stuck:
            return
        text = b"".join(link.out)
        link.out = [text[size:]]
        self.do(self.machine.data_received(text[:size], self.world.hub.now))
        if link.closed is not None and not link.out[0] and self.link is link:
            self.cut()

    def stick(self) -> None:
        """Read nothing any more; the slave notices with its next write."""
        if self.link is not None:
            self.link.stuck = True

    def unstick(self) -> None:
        """Read on."""
        link = self.link
        if link is not None and link.stuck:
            link.stuck = False
            link.machine.resumed()
            link.act([])

    def drop(self) -> None:
        """Hang up; the slave is told."""
        link, self.link = self.link, None
        self.up = b""
        if link is not None:
            link.act(link.machine.peer_lost("cut"))

    def cut(self) -> None:
        """The connection breaks."""
        if self.link is not None:
            self.drop()
            self.do(self.machine.peer_lost("cut", self.world.hub.now))

    def slave_died(self) -> None:
        """It was cut by the other side's end."""
        was, self.link, self.up = self.link, None, b""
        if was is not None:
            self.do(self.machine.peer_lost("crash", self.world.hub.now))

    def restart(self) -> None:
        """The master's process dies and is started again."""
        self.drop()
        old, self.effects = self.effects, MemoryEffects()
        for effect in old.effects:
            read = read_effect(line_of(effect))
            assert read is not None
            self.effects.note(read)
        self.begin()

    # The user

    def take(self, count: int) -> None:
        """Deal with what waits: note facts, begin side effects."""
        for _ in range(count):
            event, actions = self.machine.take(self.key)
            self.do(actions)
            if event is None:
                return
            if event.seq is not None:
                self.transcript.append((event.seq, repr(event.content)))
                if event.run_id and event.is_own:
                    self.runs[event.run_id] = event.request_id or ""
            if isinstance(event.content, Command):
                self.carry_out(event, event.content)
            self.do(self.machine.processed(self.key, event, self.world.hub.now))

    def carry_out(self, event: Event, content: Command) -> None:
        """Begin a side effect, unless it may have happened in another life."""
        assert content.effect_id is not None
        if event.effect == "unknown":
            self.give(event, Rejected("it may have happened"))
            return
        self.effects.note(attempted(content.effect_id, content.command))
        self.world.happened[content.effect_id] += 1
        self.begun.append(event)

    def finish(self) -> None:
        """A side effect has its result."""
        if self.begun:
            self.give(self.begun.pop(0), Accepted())

    def give(self, event: Event, result: Result) -> None:
        """Record the result, then answer, if somebody still asks."""
        content = event.content
        assert isinstance(content, Command) and content.effect_id is not None
        self.effects.note(ended(content.effect_id, content.command, result))
        command_id = event.command_id or ""
        self.do(self.machine.effect_ended(content.effect_id, result, command_id))
        with contextlib.suppress(SessionRefused):
            self.do(self.machine.answer(self.key, command_id, result))

    def cancel(self) -> None:
        """Enough of the newest run."""
        if self.runs:
            self.do(self.machine.cancel(self.key, list(self.runs)[-1])[1])

    def look(self) -> None:
        """Whatever waits is bounded, or the connection is closed for it."""
        if self.link is not None and self.link.closed is None:
            assert self.link.machine.queued <= self.world.limits.max_outbound_bytes_per_connection
        waits = self.machine.attachments[self.key].inbox.held
        assert waits <= INBOX_BYTES + MAX_FRAME_BYTES, waits


class World:
    """The slave, its crashes, its run, and the masters."""

    def __init__(self, limits: Limits = NARROW) -> None:
        self.limits = limits
        self.hub = Hub()
        self.boxes = [self.hub.box]
        self.numbers = 0
        self.said = 0
        self.happened: Counter[str] = Counter()
        self.ended: set[str] = set()
        self.desks = [Desk(self, number) for number in range(MASTERS)]
        self.carry()

    def fresh_id(self) -> str:
        """An identifier that nobody had before."""
        self.numbers += 1
        return f"m{self.numbers}"

    @property
    def running(self) -> str | None:
        """The run that the runtime works on."""
        started = self.hub.box.started()
        return started[-1] if started and started[-1] not in self.ended else None

    def do(self, name: str, *more: Any) -> None:
        """One step, and a look at everybody."""
        getattr(self, f"do_{name}")(*more)
        for desk in self.desks:
            desk.look()

    def do_desk(self, number: int, name: str, *more: Any) -> None:
        getattr(self.desks[number], name)(*more)

    def do_input(self, number: int) -> None:
        self.said += 1
        desk = self.desks[number]
        request_id = f"r{self.said}"
        desk.wanted[request_id] = f"words {self.said}"
        desk.ask(request_id, desk.wanted[request_id])

    def do_say(self, size: int) -> None:
        if (run := self.running) is not None:
            self.hub.spread(self.hub.box.emit(run, Message("r", run, "assistant", "x" * size)))

    def do_delta(self) -> None:
        if (run := self.running) is not None:
            self.hub.spread(self.hub.box.emit(run, Delta("r", run, "d" * 50)))

    def do_effect(self, number: int) -> None:
        """The run wants a side effect, or the same one once more."""
        if (run := self.running) is not None:
            command = Invoke("post", Raw(b'{"n":%d,"text":"%s"}' % (number, b"x" * number * 9000)))
            self.hub.spread(self.hub.box.ask(run, command, f"{run}.e{number}", self.hub.now))

    def do_end(self) -> None:
        if (run := self.running) is not None:
            self.ended.add(run)
            self.hub.spread(self.hub.box.end(run))

    def do_hold(self) -> None:
        self.hub.box.holds = True

    def do_release(self) -> None:
        self.hub.box.holds = False
        self.hub.spread(self.hub.box.release())

    def do_wait(self, seconds: float) -> None:
        self.hub.pass_time(seconds)
        for desk in self.desks:
            desk.do(desk.machine.time_passed(self.hub.now))

    def do_crash(self) -> None:
        """kill -9 of the slave: what is not durable is gone."""
        now = self.hub.now
        self.hub = Hub(self.hub.box.log)
        self.hub.now = now
        self.boxes.append(self.hub.box)
        for desk in self.desks:
            desk.slave_died()

    def do_carry(self) -> None:
        self.carry()

    def carry(self) -> None:
        """Everything is carried, both ways."""
        for _ in range(3):
            for desk in self.desks:
                desk.connect()
                desk.carry_up()
                desk.carry_down(1 << 20)

    def settle(self) -> None:
        """All goes well from now on, until nothing happens any more."""
        self.do_release()
        for desk in self.desks:
            desk.unstick()
        for _ in range(400):
            self.carry()
            self.do_end()
            for desk in self.desks:
                desk.take(1000)
                desk.finish()
                desk.look()
            self.do_wait(0.5)
            if self.is_settled():
                return

    def is_settled(self) -> bool:
        """Whether everybody has everything."""
        head = len(self.hub.box.log)
        return self.running is None and all(
            not desk.wanted and desk.cursor == head for desk in self.desks
        )


who = st.integers(0, MASTERS - 1)
by_desk = st.one_of(
    st.tuples(st.just("desk"), who, st.sampled_from(
        ("connect", "carry_up", "stick", "unstick", "cut", "restart", "finish", "cancel")
    )),
    st.tuples(st.just("desk"), who, st.just("take"), st.integers(1, 8)),
    st.tuples(st.just("desk"), who, st.just("carry_down"), st.integers(1, 4000)),
)  # fmt: skip
by_world = st.one_of(
    st.tuples(st.just("input"), who),
    st.tuples(st.just("say"), st.integers(0, 9000)),
    st.tuples(st.just("effect"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from((0.3, 2.0, 11.0))),
    st.tuples(st.sampled_from(("delta", "end", "hold", "release", "crash"))),
)
steps = st.one_of(st.just(("carry",)), by_desk, by_world)


A_COMMAND_BEHIND_MORE_THAN_A_WINDOW = [
    ("input", 0), ("input", 1), ("input", 1), ("input", 0), ("carry",), ("effect", 1),
]  # fmt: skip
BIG_COMMANDS_BEFORE_THEIR_FACT = [
    ("input", 0), ("carry",), ("hold",), ("say", 10), *[("effect", 1)] * 3, ("release",),
]  # fmt: skip
"""What is live waits behind facts that are not read yet, and must not keep them from being read."""


class EverybodyTests(SynchronousTestCase):
    """v2: Ordering and audience; Idempotency and delivery; Backpressure, failure, and reconnect."""

    @settings(max_examples=250, deadline=None)
    @given(st.lists(steps, min_size=20, max_size=120), st.sampled_from((NARROW, DEFAULT_LIMITS)))
    @example(A_COMMAND_BEHIND_MORE_THAN_A_WINDOW, NARROW)
    @example(BIG_COMMANDS_BEFORE_THEIR_FACT, NARROW)
    def test_any_interleaving_leaves_one_transcript_and_nothing_twice(
        self, script: list[tuple[Any, ...]], limits: Limits
    ) -> None:
        """B01, B05, B17, B25, B31, B40, B43."""
        world = World(limits)
        for step in script:
            world.do(*step)
        world.settle()
        log = [read_line(line) for line in world.hub.box.log]
        whole = list(range(1, len(log) + 1))
        for desk in world.desks:
            self.assertEqual([seq for seq, _ in desk.transcript], whole)
            self.assertEqual(desk.transcript, world.desks[0].transcript)
            self.assertEqual(desk.wanted, {})
        self.check_runs(world, log)
        self.assertLessEqual(max(world.happened.values(), default=0), 1, world.happened)
        for box in world.boxes:
            answered = [each.token for each in box.actions if isinstance(each, Resolve)]
            self.assertEqual(len(answered), len(set(answered)))

    def check_runs(self, world: World, log: list[Any]) -> None:
        """Each request was accepted once, run once at most, and ended once."""
        by_kind: dict[str, list[str]] = {}
        for line in log:
            by_kind.setdefault(line.event.kind, []).append(line.correlation.request_id)
        expected = sorted(f"r{n}" for n in range(1, world.said + 1))
        self.assertEqual(sorted(by_kind.get("accepted", [])), expected)
        self.assertEqual(sorted(by_kind.get("done", [])), expected)
        begun = [
            each.request.request_id
            for box in world.boxes
            for each in box.actions
            if isinstance(each, StartRun)
        ]
        self.assertEqual(len(begun), len(set(begun)))
