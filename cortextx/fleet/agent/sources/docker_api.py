"""The part of the Docker Engine API that is used: lists, logs, events, over a Unix socket.

Only GETs. Answers that are read whole are bounded; streams go to a protocol that can
hold them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
import treq.client
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from cortextx.fleet.agent.sources.docker_frames import DockerFault
from cortextx.fleet.agent.sources.docker_roster import Container

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 20.0
MAX_ANSWER = 16 * 2**20


class Refused(Exception):
    """The daemon answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


class _Row(msgspec.Struct):
    id: str = msgspec.field(name="Id")
    names: list[str] | None = msgspec.field(name="Names", default=None)
    image: str = msgspec.field(name="Image", default="")
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)
    state: str = msgspec.field(name="State", default="running")


class _Config(msgspec.Struct):
    tty: bool = msgspec.field(name="Tty", default=False)


class _Inspected(msgspec.Struct):
    config: _Config = msgspec.field(name="Config")


class Event(msgspec.Struct):
    """What of an event matters: `id` of a container."""

    class Actor(msgspec.Struct):
        """What it happened to."""

        id: str = msgspec.field(name="ID", default="")

    action: str = msgspec.field(name="Action", default="")
    actor: Actor = msgspec.field(name="Actor", default_factory=Actor)


class Body(Protocol):
    """A response's body as it comes; `ended` is called once, with None at its proper end."""

    def __init__(
        self, arrived: Callable[[bytes], None], ended: Callable[[Failure | None], None]
    ) -> None:
        self._arrived = arrived
        self._ended: Callable[[Failure | None], None] | None = ended
        self._closed = False

    def connectionMade(self) -> None:
        """Twisted's name."""
        if self._closed:
            self.close()

    def dataReceived(self, data: bytes) -> None:
        """Twisted's name."""
        if self._ended is not None:
            self._arrived(data)

    def connectionLost(self, reason: Failure = Failure(ResponseDone())) -> None:  # noqa: B008
        """Twisted's name."""
        ended, self._ended = self._ended, None
        if ended is not None:
            whole = reason.check(ResponseDone, PotentialDataLoss)
            ended(None if whole else reason)

    def hold(self) -> None:
        """Let the daemon wait."""
        if self.transport is not None:
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def go_on(self) -> None:
        """Take more."""
        if self.transport is not None and self._ended is not None:
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Hang up; nothing is called any more."""
        self._ended, self._closed = None, True
        if self.transport is not None:
            self.transport.loseConnection()


class _Quiet(UNIXClientEndpoint):
    """Logs no line for each connection that begins and ends."""

    def connect(self, protocolFactory: Any) -> Any:
        protocolFactory.noisy = False
        return super().connect(protocolFactory)


@implementer(IAgentEndpointFactory)
class _OverUnix:
    def __init__(self, reactor: Any, path: str) -> None:
        self._reactor = reactor
        self._path = path

    def endpointForURI(self, uri: object) -> IStreamClientEndpoint:
        """Twisted's name: the same socket, whatever the URI."""
        return _Quiet(self._reactor, self._path, timeout=CONNECT_SECONDS)


class EngineApi:
    """One daemon. Failures: Refused, DockerFault, and Twisted's for connections."""

    def __init__(self, reactor: Any, socket: str) -> None:
        self._reactor = reactor
        pool = HTTPConnectionPool(reactor, persistent=False)
        agent = Agent.usingEndpointFactory(reactor, _OverUnix(reactor, socket), pool=pool)
        self._client = treq.client.HTTPClient(agent)

    async def containers(self) -> list[Container]:
        """All containers, running or not."""
        data = await self._whole("/containers/json", all="1")
        try:
            rows = msgspec.json.decode(data, type=list[_Row])
        except msgspec.MsgspecError as error:
            raise DockerFault(f"no list of containers: {error}") from None
        return [
            Container(
                row.id,
                (row.names[0].lstrip("/") if row.names else row.id[:12])[:255] or row.id[:12],
                row.image,
                row.labels or {},
                row.state in ("running", "paused", "restarting", "removing"),
            )
            for row in rows
        ]

    async def has_terminal(self, id: str) -> bool:
        """Whether a container's log is a TTY's."""
        data = await self._whole(f"/containers/{id}/json")
        try:
            return msgspec.json.decode(data, type=_Inspected).config.tty
        except msgspec.MsgspecError as error:
            raise DockerFault(f"no container: {error}") from None

    async def logs(self, id: str, since: str, body: Body) -> None:
        """Begin to read a container's log; `since` as `docker_trail.since_text`."""
        await self._stream(
            f"/containers/{id}/logs", body,
            follow="1", stdout="1", stderr="1", timestamps="1", tail="all", since=since,
        )  # fmt: skip

    async def events(self, body: Body) -> None:
        """Begin to read what happens to containers, one JSON object a line."""
        await self._stream("/events", body, filters=json.dumps({"type": ["container"]}))

    async def _whole(self, path: str, **query: str) -> bytes:
        response = await self._get(path, query)
        return await self._collect(response)

    async def _stream(self, path: str, body: Body, **query: str) -> None:
        response = await self._get(path, query)
        response.original.deliverBody(body)

    async def _get(self, path: str, query: dict[str, str]) -> Any:
        url = f"http://docker{path}" + (f"?{urlencode(query)}" if query else "")
        response = await self._client.get(url, timeout=ANSWER_SECONDS, unbuffered=True)
        if response.code != 200:
            text = (await self._collect(response))[:300].decode("utf-8", "replace")
            raise Refused(response.code, text.strip())
        return response

    def _collect(self, response: Any) -> Deferred[bytes]:
        done: Deferred[bytes] = Deferred()
        parts: list[bytes] = []
        size = 0

        def arrived(data: bytes) -> None:
            nonlocal size
            size += len(data)
            parts.append(data)
            if size > MAX_ANSWER:
                body.close()
                done.errback(DockerFault("an answer without end"))

        def ended(failure: Failure | None) -> None:
            if failure is None:
                done.callback(b"".join(parts))
            else:
                done.errback(failure)

        body = Body(arrived, ended)
        response.original.deliverBody(body)
        done.addTimeout(ANSWER_SECONDS, self._reactor)
        return done
