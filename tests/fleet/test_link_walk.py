"""Random walks of the link against a model of a server and of a buffer (F2, F13, F25, F33, F35).

Whatever is refused, lost on the way, or answered late: every entry is stored
once, in order, and only what no server would take is left out.
"""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter
from cortextx.core.delivery import Inbox, place
from cortextx.fleet.agent.actions import (
    Action,
    Adopt,
    Close,
    Connect,
    ReadBatch,
    Send,
    SetAside,
    SetDeadline,
    StoreToken,
    Truncate,
)
from cortextx.fleet.agent.link import Link
from tests.fleet.test_link import FRESH, hello, message, refusal, welcome


def body(name: int) -> bytes:
    return (
        b'"ts":"2026-05-16T19:42:50Z","severity":"info","message":"%d","source":"file:/l"}' % name
    )


class Buffer:
    """Entries by seq, with what the real buffer does on Adopt (F2) and SetAside (F25)."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.acked = 0
        self.last = 0
        self.ever_acked = 0

    def append(self, name: int) -> None:
        self.last += 1
        self.entries[self.last] = body(name)

    def read(self, first: int, most: int) -> tuple[int, list[bytes]]:
        seqs = sorted(seq for seq in self.entries if seq >= first)
        if not seqs:
            return first, []
        run = [seq for at, seq in enumerate(seqs[:most]) if seq == seqs[0] + at]
        return run[0], [self.entries[seq] for seq in run]

    def truncate(self, acked: int) -> None:
        self.acked = max(self.acked, acked)
        self.entries = {seq: text for seq, text in self.entries.items() if seq > self.acked}

    def adopt(self, accepted: int) -> tuple[int, int, bool]:
        renumbered = accepted > self.last
        if renumbered:
            kept = [self.entries[seq] for seq in sorted(self.entries)]
            self.entries = dict(enumerate(kept, accepted + 1))
            self.acked, self.last = accepted, accepted + len(kept)
        else:
            self.truncate(accepted)
        return self.acked, self.last, renumbered


class Server:
    """Store and session: it refuses, keeps the order of F33, and never takes `poison`."""

    def __init__(self, chance: random.Random, refusals: float, poison: set[int]) -> None:
        self.chance = chance
        self.refusals = refusals
        self.poison = poison
        self.accepted = 0
        self.stored: list[int] = []
        self.inbox = Inbox()

    def connected(self) -> None:
        self.inbox = Inbox()

    def takes(self, frame: dict[str, Any]) -> list[Any]:
        if frame["method"] == "agent.hello":
            token = FRESH if self.chance.random() < 0.1 else None
            return [welcome(frame["id"], self.accepted, token)]
        first = frame["params"]["seq_start"]
        entries = frame["params"]["entries"]
        assert [entry["seq"] for entry in entries] == list(range(first, first + len(entries)))
        names = [int(entry["message"]) for entry in entries]
        if not self.inbox.admits(first):
            return self._refuse(frame, first, -32020)
        if self.poison.intersection(names):
            return self._refuse(frame, first, -32602)
        if self.chance.random() < self.refusals:
            return self._refuse(frame, first, self.chance.choice((-32020, -32030, -32007, -32603)))
        placed = place(self.accepted, first, len(names))
        self.stored += names[placed.skip :]
        self.accepted = placed.high_water
        return [message(id=frame["id"], result={"up_to_seq": self.accepted})]

    def _refuse(self, frame: dict[str, Any], first: int, code: int) -> list[Any]:
        fence = self.inbox.refused(first)
        data: dict[str, Any] = {"retry_after_ms": 50}
        if code == -32020:
            data["resend_from"] = self.inbox.resend_from
        return [refusal(frame["id"], code, **data), fence]


class World:
    """A link, a buffer and a server with two lossy, slow directions between them."""

    def __init__(self, seed: int, refusals: float, losses: float, poison: set[int]) -> None:
        self.chance = random.Random(seed)
        self.losses = losses
        self.server = Server(self.chance, refusals, poison)
        self.buffer = Buffer()
        self.link = Link(hello(), 0, FullJitter(random=self.chance.random), self.chance.random)
        self.now = 0.0
        self.deadline: float | None = None
        self.open = False
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.disk: deque[Any] = deque()
        self.aside: list[int] = []
        self.written = 0
        self.closing = False
        self.do(self.link.started(0.0))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Connect():
                    assert not self.open
                    self.up.append("connect")
                case Send(payload):
                    self.up.append(json.loads(payload))
                case Close():
                    # The news of the end comes later, never within the actions.
                    self.closing = True
                case SetDeadline(at):
                    self.deadline = at
                case ReadBatch() | Adopt() | StoreToken() | Truncate() | SetAside():
                    self.disk.append(action)

    def lose(self) -> None:
        """The connection breaks: some of what was sent still arrives, no answer does."""
        self.open = self.closing = False
        for frame in list(self.up)[: self.chance.randint(0, len(self.up))]:
            if isinstance(frame, dict):
                self.server.takes(frame)
        self.up.clear()
        self.down.clear()
        self.do(self.link.peer_lost("lost", self.now))

    def step(self) -> None:
        if self.closing:
            self.lose()
            return
        work = [self.tick]
        if self.up:
            work += [self.deliver_up] * 3
        if self.down:
            work += [self.deliver_down] * 3
        if self.disk:
            work += [self.serve_disk] * 3
        if self.open and self.chance.random() < self.losses:
            self.lose()
            return
        self.chance.choice(work)()

    def tick(self) -> None:
        self.now += self.chance.random() * 2
        if self.open:
            self.do(self.link.ping_received(self.now))
        if self.deadline is not None and self.now >= self.deadline:
            self.do(self.link.time_passed(self.now))

    def deliver_up(self) -> None:
        frame = self.up.popleft()
        if frame == "connect":
            self.open = True
            self.server.connected()
            self.do(self.link.connected(self.now))
        elif isinstance(frame, int):
            self.server.inbox.fence_answered(frame)
        else:
            self.down += self.server.takes(frame)

    def deliver_down(self) -> None:
        frame = self.down.popleft()
        if isinstance(frame, int):
            self.up.append(frame)
        else:
            self.do(self.link.frame_received(frame, self.now))

    def serve_disk(self) -> None:
        match self.disk.popleft():
            case "news":
                self.do(self.link.entries_available(self.buffer.last, self.now))
            case ReadBatch(first, most, _):
                found, bodies = self.buffer.read(first, min(most, self.chance.randint(1, 40)))
                self.do(self.link.batch_read(found, bodies, self.now))
            case Adopt(accepted):
                self.do(self.link.adopted(*self.buffer.adopt(accepted)[:2], self.now))
            case StoreToken():
                self.do(self.link.token_stored(self.now))
            case Truncate(acked):
                self.buffer.truncate(acked)
            case SetAside(seq, _):
                self.aside.append(int(json.loads(b"{" + self.buffer.entries.pop(seq))["message"]))

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            self.buffer.append(self.written)
        # The news of them may come later than a read that finds them.
        self.disk.append("news")

    def finished(self) -> bool:
        return not self.buffer.entries and not self.disk


class Walks(SynchronousTestCase):
    @given(
        st.integers(0, 2**32),
        st.sampled_from((0.0, 0.05, 0.3)),
        st.sampled_from((0.0, 0.01, 0.05)),
        st.sets(st.integers(1, 200), max_size=3),
    )
    @settings(max_examples=60, deadline=None)
    def test_all_is_stored_once_and_in_order(
        self, seed: int, refusals: float, losses: float, poison: set[int]
    ) -> None:
        """Stored == written without the poison, whatever is refused or lost (F33, F25, §7)."""
        world = World(seed, refusals, losses, poison)
        for _ in range(6000):
            if world.written < 200 and world.chance.random() < 0.1:
                world.write(min(world.chance.randint(1, 60), 200 - world.written))
            world.step()
        world.server.refusals = world.losses = 0.0
        for _ in range(20_000):
            if world.written == 200 and world.finished():
                break
            world.step()
        self.assertEqual(world.server.stored, [n for n in range(1, 201) if n not in poison])
        self.assertEqual(sorted(world.aside), sorted(poison))
        self.assertTrue(world.finished())

    @given(st.integers(0, 2**32))
    @settings(max_examples=20, deadline=None)
    def test_a_fresh_buffer_goes_on_behind_what_the_server_has(self, seed: int) -> None:
        """After a lost buffer new entries are numbered from accepted_seq + 1: none is lost (F2)."""
        world = World(seed, 0.05, 0.02, set())
        world.server.accepted = 5000
        world.write(30)
        for _ in range(20_000):
            if world.finished():
                break
            world.step()
        self.assertEqual(world.server.stored, list(range(1, 31)))
        self.assertEqual(world.server.accepted, 5030)
