"""An agent by hand, for tests of the server: it says hello, pushes, answers probes.

It keeps what the server sent by kind, and answers pings at once unless told not to.
Its window is one push; after a refusal it goes back, as F33 wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests import wire
from tests.fleet.test_server_protocol import FleetCase, Peer
from tests.wire import PING, PONG, TEXT, frame

Answer = dict[str, Any]


class ScriptedAgent:
    """One connection of a host; `pump` takes in what the server sent since."""

    def __init__(self, case: FleetCase, host_id: str = wire.HOST_ID) -> None:
        self._case = case
        self.host_id = host_id
        self.peer: Peer | None = None
        self.answers: dict[Any, Answer] = {}
        self.probes: list[Answer] = []
        self.updates: list[Answer] = []
        self.shutdowns: list[Answer] = []
        self.closed: int | None = None
        self.config: Answer = {}
        self.token: str | None = None
        self.answers_pings = True
        self._ids = 1

    def connect(self, probes: Iterable[str] = (), max_batch: int = 1000) -> ScriptedAgent:
        """Open a connection and say hello with the token that is good now."""
        if self.token is None:
            issued = self._case.result(self._case.fleet.issue("testhost", self.host_id, None))
            self.token = issued.token
        self.peer = self._case.peer()
        self.closed = None
        capabilities = {
            "supported_probes": list(probes),
            "sources": ["file"],
            "max_batch_entries": max_batch,
            "compression": [],
        }
        hello = wire.hello(self.token or "", self.host_id, capabilities=capabilities)
        result = self.ask(hello)["result"]
        self.config = result["config"]
        self.token = result.get("rotated_token") or self.token
        return self

    def send(self, *messages: Answer) -> None:
        """Send messages, and take in what comes back at once."""
        assert self.peer is not None
        for message in messages:
            self.peer.send(wire.text(message))
        self.pump()

    def ask(self, request: Answer) -> Answer:
        """Send a request and return its answer, which must come at once."""
        self.send(request)
        return self.answers.pop(request["id"])

    def push(self, first: int, count: int = 1, **members: Any) -> Answer:
        """Push entries from `first`, with `members` in each of them."""
        request = wire.push(self._id(), first, count)
        for entry in request["params"]["entries"]:
            entry.update(members)
        return self.ask(request)

    def measure(self, *samples: Answer, ts: str = "2026-05-16T19:43:00Z") -> Answer:
        """Push samples."""
        params = {"ts": ts, "samples": list(samples)}
        return self.ask(wire.request(self._id(), "metrics.push", params))

    def beat(self, ts: str, **members: Any) -> None:
        """Send a heartbeat."""
        params = {"ts": ts, "queue_depth": 0, "buffer_bytes": 0} | members
        self.send({"jsonrpc": "2.0", "method": "agent.heartbeat", "params": params})

    def answer(self, probe: Answer, output: Any = None, **error: Any) -> None:
        """Answer a probe.request."""
        body = {"error": error} if error else {"result": {"output": output, "duration_ms": 5}}
        self.send({"jsonrpc": "2.0", "id": probe["id"]} | body)

    def deliver(self, seqs: Iterable[int], refused: Callable[[int], bool]) -> list[int]:
        """Send entries one push at a time; those that `refused` names are poison, which
        the server never takes: they are set aside and skipped (F25, F35)."""
        aside = []
        for seq in seqs:
            severity = "loud" if refused(seq) else "info"
            for _ in range(3):
                if "result" in self.push(seq, severity=severity):
                    break
            else:
                aside.append(seq)
        return aside

    def leave(self) -> None:
        """The connection is gone without a word."""
        assert self.peer is not None
        self.peer.lost()
        self.peer = None

    def pump(self) -> None:
        """Take in what the server sent."""
        assert self.peer is not None
        while frames := self.peer.frames():
            for one in frames:
                if one.opcode == TEXT:
                    self._take(one.json)
                elif one.opcode == PING and self.answers_pings:
                    self.peer.send(frame(PONG, one.payload))
                elif one.opcode == wire.CLOSE:
                    self.closed = one.code

    def _take(self, message: Answer) -> None:
        kinds = {
            "probe.request": self.probes,
            "config.update": self.updates,
            "agent.shutdown": self.shutdowns,
        }
        if "method" in message:
            kinds[message["method"]].append(message)
        else:
            self.answers[message["id"]] = message

    def _id(self) -> int:
        self._ids += 1
        return self._ids
