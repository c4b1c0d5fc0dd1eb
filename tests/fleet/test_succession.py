"""One live session a host, and what a newer one is told (F2, F14)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import fail

from cortextx.errors import StoreError
from cortextx.fleet.server.ingest import IngestWriter
from cortextx.testing.stores import ScriptedStore
from tests import wire
from tests.fleet.scripted_agent import ScriptedAgent
from tests.fleet.test_fleet_logic import OTHER, LogicCase
from tests.fleet.test_server_protocol import Peer


class Succession(LogicCase):
    """A host's newer session is told what its older one had pushed (F2, F14)."""

    def setUp(self) -> None:
        super().setUp()
        self.scripted = ScriptedStore(self.store)
        self.fleet.store = self.scripted
        self.fleet.writer = IngestWriter(self.scripted, self.fleet.gauge)
        self.fleet._succession._writer = self.fleet.writer

    def hello(self, agent: ScriptedAgent) -> Peer:
        """Another connection of the same host says hello."""
        peer = self.peer()
        peer.send(wire.text(wire.hello(agent.token or "", agent.host_id)))
        return peer

    def accepted(self, peer: Peer) -> int:
        [answer] = [one.json for one in peer.frames() if one.opcode == wire.TEXT]
        return int(answer["result"]["accepted_seq"])

    def test_what_is_queued_counts(self) -> None:
        """While a batch of the older session is in flight and others wait, the newer one
        waits; then it is told the last seq of all of them."""
        agent = self.agent()
        self.scripted.hold()
        for first in (1, 6, 11):
            agent.send(wire.push(first, first, 5))
        newer = self.hello(agent)
        self.assertEqual(newer.frames(), [])
        agent.pump()
        self.assertEqual(agent.closed, 1000)
        self.scripted.release()
        self.assertEqual(self.accepted(newer), 15)
        self.assertEqual(self.row().accepted_seq, 15)

    def test_what_was_refused_does_not_count(self) -> None:
        """If the store takes nothing of it, the newer session is told so."""
        agent = self.agent()
        agent.push(1, 5)
        self.scripted.hold()
        self.scripted.fail_next(StoreError("x"))
        for first in (6, 11):
            agent.send(wire.push(first, first, 5))
        newer = self.hello(agent)
        self.scripted.release()
        self.assertEqual(self.accepted(newer), 5)

    def test_frames_of_the_older_session_are_ignored(self) -> None:
        """From the verdict on the older session pushes in vain."""
        agent = self.agent()
        self.scripted.hold()
        agent.send(wire.push(1, 1, 5))
        newer = self.hello(agent)
        agent.send(wire.push(2, 6, 5))
        self.scripted.release()
        self.assertEqual(self.accepted(newer), 5)
        self.assertEqual(len(self.scripted.appended), 1)

    def test_a_connection_that_is_lost_counts_too(self) -> None:
        """The batches may outlive the connection that brought them."""
        agent = self.agent()
        self.scripted.hold()
        agent.send(wire.push(1, 1, 5))
        agent.leave()
        newer = self.hello(agent)
        self.assertEqual(newer.frames(), [])
        self.scripted.release()
        self.assertEqual(self.accepted(newer), 5)

    def test_another_host_is_not_waited_for(self) -> None:
        """What waits of other hosts delays no hello."""
        one, other = self.agent(), self.agent(OTHER)
        self.scripted.hold()
        other.send(wire.push(1, 1, 5))
        self.assertEqual(self.accepted(self.hello(one)), 0)

    def test_three_at_once(self) -> None:
        """Of hellos that wait together the last one stays, and each is counted once."""
        agent = self.agent()
        self.scripted.hold()
        agent.send(wire.push(1, 1, 5))
        second, third = self.hello(agent), self.hello(agent)
        self.scripted.release()
        self.assertEqual(self.accepted(third), 5)
        closes = [one.code for one in second.frames() if one.opcode == wire.CLOSE]
        self.assertEqual(closes, [1000])
        self.assertEqual(self.fleet.live_count, 1)

    def test_a_registry_that_fails(self) -> None:
        """The hello ends with 1011, and the host tries again."""
        agent = self.agent()
        judge, asked = self.store.judge, []

        def second_fails(*args: Any) -> Any:
            asked.append(args)
            return judge(*args) if len(asked) == 1 else fail(StoreError("x"))

        self.patch(self.store, "judge", second_fails)
        newer = self.hello(agent)
        [close] = newer.frames()
        self.assertEqual((close.opcode, close.code), (wire.CLOSE, 1011))
        self.flushLoggedErrors(StoreError)
