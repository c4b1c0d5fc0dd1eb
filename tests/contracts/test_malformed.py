"""Ten thousand malformed messages against the session machine, and what they may not do.

Whatever comes: no exception, only answers of the contract, closes of the contract,
nothing stored in part, no budget lost; and the session that lives is a good one.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import Gauge
from cortextx.errors import StoreFull
from cortextx.fleet.contract import MAX_ENTRIES
from cortextx.fleet.server import actions
from cortextx.fleet.server.probes import ProbeCall
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.fleet.server.tokens import Accepted
from cortextx.interfaces.fleet import Appended
from tests import wire
from tests.contracts import examples, schemas
from tests.contracts.mutate import Mutator

WALL = 1_786_257_000_000_000
SESSION_ID = "0d9f7c52-1a2b-4c3d-9e8f-112233445566"
FATAL = {1007, 1009, 4001}
"""The closes that a text message may bring about."""
MESSAGES = 9_000
"""Mutated messages; hypothesis makes the other 1,000."""

PROBES = 9
"""Probes that each session has been asked, so that responses mean something."""

_text = st.text(max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)
_members = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"])
_envelopes = st.builds(
    lambda odd, method, params: (
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} | odd
    ),
    st.dictionaries(_members, _values, max_size=2),
    st.sampled_from(sorted(schemas.PARAMS)),
    _values | st.dictionaries(st.sampled_from(["seq_start", "entries", "ts", "samples"]), _values),
)


class Server:
    """A session, and a store that takes what is good and is full now and then."""

    def __init__(self, test: SynchronousTestCase) -> None:
        self.test = test
        self.gauge = Gauge(4_000_000, 8_000_000)
        self.accepted = 0
        self.stored = 0
        self.closes: list[int] = []
        self.codes: set[int] = set()
        self.count = 0
        self.now = 100.0
        self.fresh()

    def fresh(self) -> None:
        """A new connection, its hello not yet said."""
        settings = SessionSettings(server_version="0.1.0", min_agent_version="0.1.0")
        self.session = ServerSession(settings, self.gauge)
        self.session.opened(self.now)
        self.waiting: list[actions.Action] = []

    def active(self) -> None:
        """The session is a host's."""
        self.give(json.dumps(wire.hello()).encode())
        self.test.assertEqual(self.session.state, "active")
        self.probes = dict.fromkeys(range(PROBES), 0)
        for key in self.probes:
            call = ProbeCall("proc.top", b"{}", 600_000)
            for action in self.session.probe_asked(key, call, self.now):
                self.act(action, b"", [])

    def give(self, payload: bytes) -> list[Any]:
        """One message, and all that follows from it; answers what was sent."""
        self.count += 1
        sent: list[Any] = []
        todo = self.session.text_received(payload, self.now, WALL)
        while todo:
            action, *todo = todo
            todo += self.act(action, payload, sent)
        return sent

    def act(self, action: actions.Action, payload: bytes, sent: list[Any]) -> list[actions.Action]:
        match action:
            case actions.Send(message):
                told = json.loads(message)
                sent.append(told)
                self.test.assertEqual(schemas.server_faults(told, asked(payload)), [], payload)
                if "error" in told:
                    self.codes.add(told["error"]["code"])
            case actions.Close(code, _, _):
                self.closes.append(code)
                self.test.assertIn(code, FATAL, payload)
            case actions.Judge(hello):
                self.test.assertEqual(schemas.faults(schemas.UUID, hello.host_id), [])
                return self.session.hello_judged(
                    Accepted(hello.host_id, self.accepted, SESSION_ID), self.now, WALL
                )
            case actions.Ingest(key, batch):
                return self.store(key, batch)
            case actions.Ping(fence):
                return self.session.pong_received(fence, self.now)
            case actions.Measure(key, _, metrics, size):
                self.gauge.release(size)
                self.test.assertLessEqual(len(metrics.samples), 512)
                return self.session.measured(key, (len(metrics.samples), 0))
            case actions.ProbeDone(key, _):
                self.probes[key] += 1
                self.test.assertEqual(self.probes[key], 1, "a probe is over once")
        return []

    def store(self, key: int, batch: Any) -> list[actions.Action]:
        self.gauge.release(batch.size)
        seqs = [entry.seq for entry in batch.entries]
        self.test.assertEqual(seqs, list(range(batch.seq_start, batch.last + 1)))
        self.test.assertTrue(0 < len(seqs) <= MAX_ENTRIES)
        if self.count % 7 == 0:
            return self.session.not_stored(key, StoreFull("full"), self.now)
        self.stored += 1
        self.accepted = max(self.accepted, min(batch.last, 10_000))
        return self.session.stored(key, Appended(self.accepted, 1), self.now, WALL)


def asked(payload: bytes) -> dict[Any, str]:
    """Method by id of a request, as far as there is one to be read."""
    try:
        message = json.loads(payload)
        return {message["id"]: message.get("method")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


class Machine(SynchronousTestCase):
    def test_mutated_messages_after_the_hello(self) -> None:
        """Broken messages are answered or end the session as §5 says, and it goes on."""
        server, broken = Server(self), Mutator(1)
        server.active()
        for _ in range(MESSAGES * 3 // 4):
            if server.session.state != "active":
                self.assertEqual(server.closes[-1], 1007, "text alone ends no session")
                server.fresh()
                server.active()
            server.give(broken.payload())
        self.assertLessEqual({-32700, -32600, -32601, -32602, -32008}, server.codes)
        self.assertGreater(server.stored, 50, "some were good after all")
        self.assertEqual(server.gauge.used, 0)
        if server.session.state != "active":
            server.fresh()
            server.active()
        server.count = 1
        push = wire.request("last", "logs.push", examples.push(server.accepted + 1))
        [answer] = server.give(json.dumps(push).encode())
        self.assertEqual(answer["result"]["up_to_seq"], server.accepted)

    def test_mutated_messages_instead_of_a_hello(self) -> None:
        """A broken first message is one error and 4001, or 1007 or 1009 without one."""
        server, broken = Server(self), Mutator(2)
        for _ in range(MESSAGES // 4):
            server.fresh()
            before = len(server.closes)
            sent = server.give(broken.payload())
            if server.session.state == "active":
                continue
            self.assertEqual((server.session.state, len(server.closes)), ("closed", before + 1))
            self.assertEqual(len(sent), 1 if server.closes[-1] == 4001 else 0)
            self.assertEqual(server.session.text_received(b"{}", server.now, WALL), [])
        self.assertLessEqual({-32700, -32600, -32000, -32602}, server.codes)
        self.assertEqual(server.gauge.used, 0)

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_envelopes)
    def test_odd_envelopes(self, message: Any) -> None:
        """Any JSON in an envelope's place is answered by the contract's words."""
        server = Server(self)
        server.active()
        server.give(json.dumps(message).encode())
        self.assertEqual((server.session.state, server.gauge.used), ("active", 0))

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=60) | _values.map(lambda value: json.dumps(value).encode()))
    def test_odd_texts(self, payload: bytes) -> None:
        """Any bytes and any JSON: an answer, or 1007 where it is no UTF-8."""
        server = Server(self)
        server.active()
        server.give(payload)
        try:
            payload.decode()
        except UnicodeDecodeError:
            self.assertEqual(server.closes, [1007])
        else:
            self.assertEqual(server.session.state, "active")
        self.assertEqual(server.gauge.used, 0)
