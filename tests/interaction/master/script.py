"""A master's machine, and a slave that says what a test tells it to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from cortextx.core.backoff import FullJitter
from cortextx.core.exchange import Origin
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Error, Limits
from cortextx.interaction.faults import Code
from cortextx.interaction.master.actions import Action, Close, Connect, Over, Settled, Write
from cortextx.interaction.master.effects import EffectRecord
from cortextx.interaction.master.events import Event, Place
from cortextx.interaction.master.machine import MasterMachine

ME = Origin("test")
ALL = ("input", "observe", "status", "cancel", "command_result", "replay")


class Script:
    """`frames` is what the master wrote on the present connection."""

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        effects: EffectRecord | None = None,
        inbox_bytes: int = 8 << 20,
        opens: bool = True,
    ) -> None:
        numbers = itertools.count(1)
        self.machine = MasterMachine(
            mint=lambda: f"m{next(numbers)}",
            random=lambda: 0.5,
            effects=effects,
            backoff=FullJitter(random=lambda: 0.5),
            inbox_bytes=inbox_bytes,
        )
        self.limits = limits
        self.now = 0.0
        self.actions: list[Action] = []
        self.frames: list[v2.Frame] = []
        self.connects = 0
        if opens:
            self.do(self.machine.connect())
            self.open()

    def do(self, actions: Iterable[Action]) -> list[Action]:
        """Note what the master wants."""
        found = list(actions)
        self.actions += found
        for action in found:
            if isinstance(action, Write):
                self.frames += [
                    v2.decode(line + b"\n", "master") for line in action.lines.splitlines()
                ]
            elif isinstance(action, Connect):
                self.connects += 1
        return found

    # The slave

    @property
    def connection_id(self) -> str:
        """That of the hello."""
        return self.frames[0].correlation.connection_id

    def open(self) -> None:
        """Take the connection and welcome."""
        self.frames.clear()
        self.do(self.machine.connected(self.now))
        self.say(self.limits, capabilities=ALL)

    def say(self, content: data.Data, *ids: str, seq: int | None = None, **more: Any) -> None:
        """Send a frame of the slave's."""
        frame = data.build(content, Correlation(self.connection_id, *ids), session_seq=seq, **more)
        self.feed(v2.encode(frame))

    def feed(self, chunk: bytes) -> None:
        """Send bytes."""
        self.do(self.machine.data_received(chunk, self.now))

    def attached(self, head: int = 0, after: int | None = None) -> str:
        """Answer the newest attach; its attachment_id."""
        asked = next(f for f in reversed(self.frames) if f.kind == "attach")
        wanted = data.read(asked)
        assert isinstance(wanted, data.Attach)
        cursor = wanted.after_session_seq if after is None else after
        wire = asked.correlation.attachment_id or ""
        self.say(
            data.Attached("echo", "private", (head if cursor is None else cursor) + 1, head),
            wire,
            mode=asked.event.mode,
            session=asked.event.session,
            capabilities=asked.event.capabilities,
        )
        return wire

    def refuse(self, code: Code, *ids: str) -> None:
        """Say no."""
        self.say(Error.of(code, "no"), *ids)

    def lose(self) -> None:
        """Cut the connection."""
        self.do(self.machine.peer_lost("cut", self.now))

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass."""
        self.now += seconds
        return self.do(self.machine.time_passed(self.now))

    def reopen(self) -> None:
        """Wait for the next attempt, and take it."""
        before = self.connects
        for _ in range(10):  # other timers may be due before
            if self.connects == before:
                assert self.machine.deadline is not None
                self.wait(self.machine.deadline - self.now)
        assert self.connects == before + 1
        self.open()

    # The application

    def attach(self, after: int | None = 0, **more: Any) -> int:
        """Attach to echo's default session, and have it answered not yet."""
        key, actions = self.machine.attach(Place(agent="echo", after=after, **more), self.now)
        self.do(actions)
        return key

    def begin(self, after: int | None = 0, head: int = 0, **more: Any) -> tuple[int, str]:
        """Attach and be attached: the key, and the id on the wire."""
        key = self.attach(after, **more)
        return key, self.attached(head)

    def input(self, key: int, text: str = "hi", **more: Any) -> str:
        """Say something."""
        request_id, actions = self.machine.input(key, text, ME, **more)
        self.do(actions)
        return request_id

    def take(self, key: int) -> Event | None:
        """An event, and deal with it."""
        event, actions = self.machine.take(key)
        self.do(actions)
        if event is not None:
            self.do(self.machine.processed(key, event, self.now))
        return event

    def events(self, key: int) -> list[Event]:
        """All that wait, dealt with."""
        return list(iter(lambda: self.take(key), None))

    def contents(self, key: int) -> list[object]:
        """Their contents."""
        return [event.content for event in self.events(key)]

    # What was seen

    def sent(self, kind: str) -> list[v2.Frame]:
        """The frames of a kind on this connection."""
        return [frame for frame in self.frames if frame.kind == kind]

    def outcomes(self, id: str) -> list[object]:
        """What was settled under this id."""
        return [a.outcome for a in self.actions if isinstance(a, Settled) and a.id == id]

    @property
    def closes(self) -> int:
        """How often the connection was given up."""
        return sum(isinstance(action, Close) for action in self.actions)

    @property
    def is_over(self) -> bool:
        """Whether the master gave up."""
        return any(isinstance(action, Over) for action in self.actions)


def after_of(frame: v2.Frame) -> int | None:
    """The cursor of an attach."""
    content = data.read(frame)
    assert isinstance(content, data.Attach)
    return content.after_session_seq
