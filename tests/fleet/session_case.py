"""A server session under test: messages to send it, and what its actions say."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import Gauge
from cortextx.fleet.contract import CloseCode, Code
from cortextx.fleet.server.actions import (
    Action,
    Close,
    Ingest,
    Ping,
    Send,
)
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.fleet.server.tokens import Accepted

HOST = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
SESSION = "f3b6c4f7-7a3e-4f7f-9d4d-2f6f0d6fa9a1"
WALL = 1_778_932_800_000_000
"""2026-05-16T12:00:00Z."""
HELLO: dict[str, Any] = {
    "protocol_version": 1,
    "agent_version": "0.1.0",
    "hostname": "devhost.lan",
    "host_id": HOST,
    "platform": {"os": "linux", "arch": "x86_64", "kernel": "6.6.21"},
    "capabilities": {
        "supported_probes": [],
        "sources": ["file"],
        "max_batch_entries": 1000,
        "compression": ["zstd"],
    },
    "token": "c2VjcmV0LXRva2VuLW9wYXF1ZS1iYXNlNjR1cmwtMzJieXRlcw",
    "resume_from_seq": 41,
}


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def call(id: Any, method: str, params: Any) -> bytes:
    return text({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def note(method: str, params: Any) -> bytes:
    return text({"jsonrpc": "2.0", "method": method, "params": params})


def hello(**members: Any) -> bytes:
    return call(1, "agent.hello", HELLO | members)


def entry(seq: int, **members: Any) -> dict[str, Any]:
    return {
        "seq": seq,
        "ts": "2026-05-16T14:00:00+02:00",
        "severity": "info",
        "message": f"m{seq}",
        "source": "file:/var/log/x.log",
    } | members


def push(id: Any, first: int, last: int, **members: Any) -> bytes:
    entries = [entry(seq, **members) for seq in range(first, last + 1)]
    return call(id, "logs.push", {"seq_start": first, "entries": entries})


def sent(action: Action) -> dict[str, Any]:
    assert isinstance(action, Send), action
    message = json.loads(action.payload)
    assert message.pop("jsonrpc") == "2.0"
    return message


def plain(actions: list[Action]) -> list[Any]:
    """Actions with what is sent as objects: (id, result), (id, code) or (id, code, data)."""
    shown: list[Any] = []
    for action in actions:
        if not isinstance(action, Send):
            shown.append(action)
            continue
        message = sent(action)
        if "error" in message:
            error = message["error"]
            assert error["message"] == Code(error["code"]).title
            shown.append((message["id"], error["code"], error.get("data")))
        elif "result" in message:
            shown.append((message["id"], message["result"]))
        else:
            shown.append((message["method"], message["params"]))
    return shown


class SessionCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.gauge = Gauge(10_000_000, 20_000_000)
        self.session = self.make()

    def make(self, **members: Any) -> ServerSession:
        given = {"server_version": "0.1.0", "min_agent_version": "0.1.0"} | members
        return ServerSession(SessionSettings(**given), self.gauge)

    def receive(self, payload: bytes, now: float = 100.0, wall: int = WALL) -> list[Action]:
        return self.session.text_received(payload, now, wall)

    def active(self, accepted_seq: int = 0, **members: Any) -> ServerSession:
        """A session that is active from 100 s on."""
        self.session = self.make(**members)
        self.session.opened(99.0)
        self.receive(hello())
        self.session.hello_judged(Accepted(HOST, accepted_seq, SESSION), 100.0, WALL)
        self.assertEqual(self.session.state, "active")
        return self.session

    def ingested(self, actions: list[Action]) -> Ingest:
        (action,) = actions
        assert isinstance(action, Ingest), action
        return action

    def refused(self, actions: list[Action], id: Any, code: Code, **data: Any) -> bytes:
        """Check for one refusal with its fence right behind it; answers the fence (F33)."""
        refusal, fence = actions
        self.assertEqual(plain([refusal])[0][:2], (id, code))
        shown = plain([refusal])[0][2] or {}
        self.assertEqual({name: shown.get(name) for name in data}, data)
        assert isinstance(fence, Ping)
        return fence.payload

    def closed(self, actions: list[Action], code: CloseCode, record: str | None = None) -> None:
        self.assertIsInstance(actions[-1], Close)
        close = actions[-1]
        assert isinstance(close, Close)
        self.assertEqual(close.code, code)
        if record is not None:
            self.assertEqual(close.record, record)
        self.assertEqual(self.session.state, "closed")
        self.assertEqual(self.receive(push(9, 1, 2)), [])
