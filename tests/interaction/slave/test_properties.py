"""Whatever happens in whatever order, every master ends with the same transcript.

Attach, detach, ack, reconnect, cancel, retry, answers, slow readers, a slow disk and
crashes, mixed by hypothesis. At any time a master has a contiguous beginning of the
log, what waits for it is bounded, no run begins twice and no answer counts twice.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Message, RequestApproval
from cortextx.interaction import data, v2
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.slave.actions import Resolve, StartRun
from cortextx.interaction.slave.lines import tail_of
from tests.interaction.slave.hub import Hub, Master
from tests.interaction.slave.rebuild import rebuild

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    max_unacked_events_per_attachment=6,
    max_replay_events_per_batch=3,
    max_outbound_bytes_per_attachment=20_000,
    max_outbound_bytes_per_connection=60_000,
)
MASTERS = 3

who = st.integers(0, MASTERS - 1)
steps = st.one_of(
    st.tuples(st.sampled_from(("attach", "detach", "ack", "cut", "stick", "unstick")), who),
    st.tuples(st.sampled_from(("answer", "cancel", "status")), who),
    st.tuples(st.just("input"), who, st.integers(0, 5)),
    st.tuples(st.just("say"), st.integers(0, 9000)),
    st.tuples(st.sampled_from(("delta", "ask", "end", "hold", "release", "wait", "crash"))),
)


class Client:
    """A master with a memory: its transcript and cursor outlive its connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.link: Master | None = None
        self.transcript: dict[int, bytes] = {}
        self.cursor = 0
        self.asked: v2.Frame | None = None

    def connect(self) -> Master:
        """The connection, made and attached where it is not."""
        if self.link is None or self.link.closed is not None:
            self.link = Master(self.world.hub, LIMITS)
        if not self.link.machine.attachments:
            self.link.attach(after=self.cursor)
        self.look()
        return self.link

    def cut(self) -> None:
        """Lose the connection."""
        if self.link is not None:
            self.link.act(self.link.machine.peer_lost())
        self.link = None

    def look(self) -> None:
        """Take what came; it must follow what came before, or repeat it."""
        if self.link is None:
            return
        assert self.link.machine.queued <= LIMITS.max_outbound_bytes_per_connection
        self.link.read()
        new, self.link.frames = self.link.frames, []
        for frame in new:
            if frame.kind == "command":
                self.asked = frame
            seq = frame.session_seq
            if seq is None:
                continue
            fact = bytes(frame.event.data)
            if seq in self.transcript:
                assert self.transcript[seq] == fact, seq
            else:
                assert seq == self.cursor + 1, (seq, self.cursor)
                self.transcript[seq] = fact
                self.cursor = seq

    def ack(self) -> None:
        """Acknowledge all there is."""
        if self.link is not None and self.link.machine.attachments and self.cursor:
            self.link.ack(self.cursor)
            self.look()


class World:
    """The slave, its crashes, and its masters."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.boxes = [self.hub.box]
        self.clients = [Client(self) for _ in range(MASTERS)]
        self.ended: set[str] = set()

    @property
    def running(self) -> str | None:
        """The run that a runtime works on."""
        started = self.hub.box.started()
        return started[-1] if started and started[-1] not in self.ended else None

    def do(self, step: tuple[Any, ...]) -> None:
        """One step, and everybody looks."""
        getattr(self, f"do_{step[0]}")(*step[1:])
        for client in self.clients:
            client.look()

    def do_attach(self, n: int) -> None:
        self.clients[n].connect()

    def do_detach(self, n: int) -> None:
        self.clients[n].connect().send(data.Detach(), "a")

    def do_ack(self, n: int) -> None:
        self.clients[n].ack()

    def do_cut(self, n: int) -> None:
        self.clients[n].cut()

    def do_stick(self, n: int) -> None:
        self.clients[n].connect().stuck = True

    def do_unstick(self, n: int) -> None:
        link = self.clients[n].link
        if link is not None:
            link.stuck = False
            link.machine.resumed()
            link.act([])

    def do_status(self, n: int) -> None:
        self.clients[n].connect().send(data.StatusRequest(), "a", "s")

    def do_input(self, n: int, request: int) -> None:
        self.clients[n].connect().input(f"r{request}", f"text {request}")

    def do_answer(self, n: int) -> None:
        asked = self.clients[n].asked
        if asked is not None:
            ids = asked.correlation
            self.clients[n].connect().send(
                data.CommandResult(Accepted(), "effect"),
                *("a", ids.request_id or "", ids.run_id or "", ids.command_id or ""),
            )

    def do_cancel(self, n: int) -> None:
        if self.running is not None:
            self.clients[n].connect().send(data.Cancel(), "a", f"c-{self.running}", self.running)

    def do_say(self, size: int) -> None:
        run = self.running
        if run is not None:
            self.hub.spread(self.hub.box.emit(run, Message("r", run, "assistant", "x" * size)))

    def do_delta(self) -> None:
        run = self.running
        if run is not None:
            self.hub.spread(self.hub.box.emit(run, Delta("r", run, "d")))

    def do_ask(self) -> None:
        run = self.running
        if run is not None:
            command = RequestApproval("tool", Raw(b"{}"))
            self.hub.spread(self.hub.box.ask(run, command, "effect", self.hub.now))

    def do_end(self) -> None:
        run = self.running
        if run is not None:
            self.ended.add(run)
            self.hub.spread(self.hub.box.end(run))

    def do_hold(self) -> None:
        self.hub.box.holds = True

    def do_release(self) -> None:
        self.hub.box.holds = False
        self.hub.spread(self.hub.box.release())

    def do_wait(self) -> None:
        self.hub.pass_time(6.0)

    def do_crash(self) -> None:
        """kill -9: what is not durable is gone, and so are the connections."""
        now = self.hub.now
        self.hub = Hub(self.hub.box.log)
        self.hub.now = now
        self.boxes.append(self.hub.box)
        for client in self.clients:
            client.look()
            client.link = None

    def settle(self) -> None:
        """All goes well from now on."""
        self.do_release()
        while self.running is not None:
            self.do_end()
        for client in self.clients:
            client.cut()
            client.connect()
            before = -1
            while before < client.cursor:
                before = client.cursor
                client.ack()


class TranscriptTests(SynchronousTestCase):
    """See the module (v2: Idempotency and delivery; Backpressure, failure, and reconnect)."""

    @settings(max_examples=150, deadline=None)
    @given(st.lists(steps, max_size=60))
    def test_every_master_ends_with_the_same_contiguous_transcript(
        self, script: list[tuple[Any, ...]]
    ) -> None:
        """And nothing happened twice."""
        world = World()
        for step in script:
            world.do(step)
        world.settle()
        log = world.hub.box.log
        whole = {
            seq: bytes(v2.decode(v2.addressed(tail_of(line), "c", "a")).event.data)
            for seq, line in enumerate(log, 1)
        }
        for client in world.clients:
            self.assertEqual(client.transcript, whole)
        self.check_once(world)
        found = rebuild(world.hub.box.file)
        self.assertEqual(found.unfinished, {})
        ends = [text for _, kind, text in found.transcript if kind == "done"]
        runs = [run for kind, _, run, *_ in found.claims.values() if kind == "input"]
        self.assertEqual(len(ends), len(runs))

    def check_once(self, world: World) -> None:
        """No request ran twice, whatever crashed; no command was answered twice."""
        begun = [
            action.request.request_id
            for box in world.boxes
            for action in box.actions
            if isinstance(action, StartRun)
        ]
        self.assertEqual(len(begun), len(set(begun)))
        for box in world.boxes:
            tokens = [action.token for action in box.actions if isinstance(action, Resolve)]
            self.assertEqual(len(tokens), len(set(tokens)))
