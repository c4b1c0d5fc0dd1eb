"""A server in memory, and a client that speaks HTTP to its site by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Raw
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.contract import LogEntry
from cortextx.fleet.server import tokens
from cortextx.fleet.server.protocol import AgentSocketFactory
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet import LogBatch
from cortextx.interfaces.fleet_records import Role
from cortextx.stores.memory import MemoryStore
from cortextx.web.mount import mounts
from cortextx.web.site import make_site
from cortextx.web.sources import Sources
from cortextx.web.tokens import add_token
from tests import wire
from tests.web.described import Description

WALL = 1_800_000_000_000_000
HOST_A = "aaaaaaaa-7e3c-4d2a-9c0e-9bbf5d3a1f01"
HOST_B = "bbbbbbbb-7e3c-4d2a-9c0e-9bbf5d3a1f02"
FIRST = datetime(2026, 5, 16, 19, 42, tzinfo=UTC)


class Transport(StringTransport):
    """A transport that is told when it does not take more."""

    protocol: Any = None
    aborted = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; `body` is what came so far."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection to the site."""

    def __init__(self, site: Any) -> None:
        self.transport = Transport()
        self.protocol = site.buildProtocol(None)
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str | None],
        body: bytes = b"",
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.protocol.dataReceived("\r\n".join([*lines, "", ""]).encode() + body)

    def answer(self) -> Answer:
        """What was answered; fails if nothing was."""
        head, there, body = self.transport.value().partition(b"\r\n\r\n")
        assert there, head
        first, *lines = head.decode().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        if headers.get("transfer-encoding") == "chunked":
            body = unchunked(body)
        return Answer(int(first.split()[1]), headers, body)

    def lost(self) -> None:
        """The client goes."""
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connectionLost(Failure(ConnectionDone()))


class Stuffed(Client):
    """A client that reads only when it is told to: its connection is full after 64 KiB."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self._left, self._paused = 65_536, False
        write = self.transport.write

        def counted(data: bytes) -> None:
            write(data)
            self._left -= len(data)
            if self._left < 0 and not self._paused:
                self._paused = True
                self.transport.producer.pauseProducing()

        self.transport.write = counted  # type: ignore[method-assign]
        self.transport.writeSequence = lambda parts: counted(b"".join(parts))  # type: ignore[method-assign]

    def read(self) -> bool:
        """Take what was sent; whether anything waited for that."""
        paused, self._paused, self._left = self._paused, False, 65_536
        if paused:
            self.transport.producer.resumeProducing()
        return paused


class Agent:
    """A host's session over the same site, which can run the probe `host.uptime`."""

    def __init__(self, site: Any, token: str, host_id: str) -> None:
        self.transport = Transport()
        self.transport.protocol = site.buildProtocol(None)
        self.transport.protocol.makeConnection(self.transport)
        self.send_bytes(wire.upgrade())
        self.transport.clear()
        hello = wire.hello(token, host_id)
        hello["params"]["capabilities"]["supported_probes"] = ["host.uptime"]
        self.send(hello)
        [self.welcome] = self.heard()

    def send_bytes(self, data: bytes) -> None:
        self.transport.protocol.dataReceived(data)

    def send(self, message: Any) -> None:
        self.send_bytes(wire.text(message))

    def heard(self) -> list[Any]:
        """The messages that came since the last look."""
        found, rest = wire.frames(self.transport.value())
        assert rest == b""
        self.transport.clear()
        return [frame.json for frame in found if frame.opcode == wire.TEXT]

    def lost(self) -> None:
        self.transport.protocol.connectionLost(Failure(ConnectionDone()))


def unchunked(body: bytes) -> bytes:
    """The whole chunks of a body."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return whole


@cache
def described() -> Description:
    """The API's own description, as it is served."""
    case = WebCase()
    case.setUp()
    return Description(json.loads(case.begin("/api/v1/openapi.json", role=None).answer().body))


class Nobody:
    """A pusher that does not listen."""

    def stored(self, key: int, appended: Any) -> None:
        pass

    def not_stored(self, key: int, error: Exception) -> None:
        raise AssertionError(error)


class WebCase(SynchronousTestCase):
    table: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.count = iter(range(1, 10_000))
        self.fleet = FleetServer(
            self.clock,
            self.store,
            self.store,
            ServerSettings(server=ServerTable(**self.table)),
            mint=tokens.Mint(self.random),
            wall=self.wall,
            version="0.1.0",
        )
        self.fleet.own_url = "ws://127.0.0.1:8600/ws/agent"
        store: Any = self.store
        self.sources = Sources(
            reactor=self.clock,
            fleet=self.fleet,
            store=store,
            wall=self.wall,
            random=self.random,
            started_at=WALL,
        )
        agents = AgentSocketFactory(self.clock, self.fleet)
        self.site = make_site(self.clock, agents, self.fleet, 100, mounts(self.sources))
        self.tokens: dict[str, str] = {}

    def wall(self) -> int:
        return WALL + round(self.clock.seconds() * 1e6)

    def random(self, size: int) -> bytes:
        return next(self.count).to_bytes(size, "big")

    def result(self, coroutine: Any) -> Any:
        """What a coroutine that need not wait returns."""
        return self.successResultOf(Deferred.fromCoroutine(coroutine))

    def token(self, role: Role = "viewer", expires_in: float | None = None) -> str:
        """A token of that role, made when it is first wanted."""
        if role not in self.tokens or expires_in is not None:
            made = add_token(
                self.sources.store, self.random, f"my-{role}", role, expires_in, self.wall()
            )
            _, self.tokens[role] = self.result(made)
        return self.tokens[role]

    def begin(
        self,
        path: str,
        params: Any = (),
        *,
        method: str = "GET",
        role: Role | None = "viewer",
        body: Any = None,
        headers: dict[str, str | None] | None = None,
    ) -> Client:
        """Send a request; `body` is sent as JSON."""
        client = Client(self.site)
        self.addCleanup(client.lost)
        query = urlencode(params, quote_via=quote)
        sent: dict[str, str | None] = {"Host": "127.0.0.1:8600"}
        if role is not None:
            sent["Authorization"] = f"Bearer {self.token(role)}"
        content = b""
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        client.ask(method, f"{path}?{query}" if query else path, sent, content)
        return client

    def ask(self, path: str, params: Any = (), **more: Any) -> Answer:
        """Send a request below /api/v1 and return its answer, which is as described."""
        answer = self.begin(f"/api/v1{path}", params, **more).answer()
        method = more.get("method", "GET")
        if method != "HEAD":
            described().check(
                method, path.partition("?")[0], answer.status, answer.headers, answer.body
            )
        return answer

    def good(self, path: str, params: Any = (), **more: Any) -> Any:
        """The JSON of an answer that must be a good one."""
        answer = self.ask(path, params, **more)
        self.assertLess(answer.status, 300, answer.body)
        return answer.json if answer.body else None

    def refused(self, status: int, path: str, params: Any = (), **more: Any) -> Any:
        """The problem of an answer that must have that status."""
        answer = self.ask(path, params, **more)
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        self.assertEqual(answer.json["status"], status)
        return answer.json

    def issue(self, name: str = "web1", host_id: str | None = HOST_A) -> Any:
        return self.result(self.fleet.issue(name, host_id, None))

    def agent(self, name: str = "web1", host_id: str = HOST_A) -> Agent:
        """A host that enrols and stays connected."""
        agent = Agent(self.site, self.issue(name, host_id).token, host_id)
        self.addCleanup(agent.lost)
        return agent

    def push(self, *messages: str, host_id: str = HOST_A, skip: int = 0, **fields: Any) -> None:
        """Store entries as a session does; `skip` seqs are left out before them."""
        [record] = self.successResultOf(self.store.find(host_id))
        first = record.accepted_seq + 1 + skip
        entries = [
            LogEntry(
                seq=first + number,
                **{
                    "ts": FIRST + timedelta(seconds=first + number),
                    "severity": "warning",
                    "source": "file:/var/log/x",
                    "app_name": "app",
                    "metadata": Raw(b""),
                    **fields,
                },
                message=message,
            )
            for number, message in enumerate(messages)
        ]
        self.fleet.writer.submit(Nobody(), 1, LogBatch(host_id, first, entries, WALL))
