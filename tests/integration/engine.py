"""A Docker Engine API over a Unix socket, as far as a log agent uses it.

It behaves as dockerd with the json-file driver does: a container's output is cut as the
daemon's copier cuts it (16 KiB buffer, all pieces of a line with the time of its first),
`since` includes its own nanosecond, `follow` ends when the container stops, a frame of
stdcopy's form is one piece, and a TTY's stream has no frames.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from shutil import rmtree
from typing import Any
from unittest import TestCase
from urllib.parse import unquote

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXServerEndpoint
from twisted.internet.interfaces import IReactorUNIX
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

BUFFER = 16_384


def stamp(nanos: int) -> bytes:
    """A time as Docker writes it, always with nine digits."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanos // 10**9))
    return b"%b.%09dZ" % (whole.encode(), nanos % 10**9)


@dataclass(eq=False)
class Box:
    """A container: its log as (time, stream, piece), who follows it, and what is held."""

    id: str
    name: str
    tty: bool = False
    running: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    image: str = "busybox"
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    followers: list[Any] = field(default_factory=list)
    held: dict[int, tuple[bytes, int | None]] = field(default_factory=dict)
    status: int = 200


class Engine:
    """The daemon. `clock` is its time in ns; every write takes the time that it shows."""

    def __init__(self, reactor: IReactorUNIX, test: TestCase) -> None:
        self.reactor = reactor
        self.place = tempfile.mkdtemp(prefix="cxd", dir="/tmp")
        test.addCleanup(rmtree, self.place, ignore_errors=True)
        self.socket = os.path.join(self.place, "docker.sock")
        self.boxes: dict[str, Box] = {}
        self.watchers: list[Request] = []
        self.clock = time.time_ns()
        self.asked: list[str] = []
        self.port: Any = None
        self._made = 0

    def start(self) -> Deferred:
        """Listen."""
        site = Site(_Root(self))
        done = UNIXServerEndpoint(self.reactor, self.socket).listen(site)
        return done.addCallback(lambda port: setattr(self, "port", port))

    def stop(self) -> Deferred:
        """Stop, hanging up on all without a proper end."""
        port, self.port = self.port, None
        for request in [
            *self.watchers,
            *(f for box in self.boxes.values() for f, _ in box.followers),
        ]:
            if request.transport is not None:
                request.transport.abortConnection()
        return port.stopListening()

    # What happens to containers

    def run(self, name: str, **facts: Any) -> Box:
        """A container starts for the first time."""
        self._made += 1
        box = Box(f"{self._made:04x}" * 16, name, **facts)
        self.boxes[box.id] = box
        self.tell("start", box)
        return box

    def end(self, box: Box) -> None:
        """It stops: a line without an end is written, and followers' streams end."""
        for stream, (data, at) in list(box.held.items()):
            if data:
                self._record(box, self.clock if at is None else at, stream, data)
        box.held.clear()
        box.running = False
        followers, box.followers = box.followers, []
        for request, _ in followers:
            request.finish()
        self.tell("die", box)

    def again(self, box: Box) -> None:
        """It starts again."""
        box.running = True
        self.tell("start", box)

    def rename(self, box: Box, name: str) -> None:
        """It gets another name."""
        box.name = name
        self.tell("rename", box)

    def remove(self, box: Box) -> None:
        """It is removed, with its log."""
        if box.running:
            self.end(box)
        del self.boxes[box.id]
        self.tell("destroy", box)

    def tell(self, action: str, box: Box) -> None:
        """An event."""
        actor = {"ID": box.id, "Attributes": {"name": box.name}}
        line = json.dumps({"Type": "container", "Action": action, "Actor": actor}) + "\n"
        for request in self.watchers:
            request.write(line.encode())

    def write(self, box: Box, data: bytes, stream: int = 1, at: int | None = None) -> None:
        """A container writes; `at` is the time in ns."""
        if at is None:
            self.clock += 1000
            at = self.clock
        held, first = box.held.get(stream, (b"", None))
        data = held + data
        while True:
            newline = data.find(b"\n", 0, BUFFER)
            if newline >= 0:
                self._record(box, first or at, stream, data[: newline + 1])
                data, first = data[newline + 1 :], None
            elif len(data) >= BUFFER:
                first = first or at
                self._record(box, first, stream, data[:BUFFER])
                data = data[BUFFER:]
            else:
                break
        box.held[stream] = (data, first)

    def _record(self, box: Box, at: int, stream: int, piece: bytes) -> None:
        record = (at, stream, piece)
        box.records.append(record)
        for request, since in box.followers:
            if at >= since:
                request.write(_wire(box, record))


def _wire(box: Box, record: tuple[int, int, bytes]) -> bytes:
    at, stream, piece = record
    payload = stamp(at) + b" " + piece
    if box.tty:
        return payload[:-1] + b"\r\n" if payload.endswith(b"\n") else payload
    return bytes((stream, 0, 0, 0)) + len(payload).to_bytes(4, "big") + payload


class _Root(Resource):
    isLeaf = True

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def render_GET(self, request: Request) -> Any:
        engine = self._engine
        path = unquote(request.path.decode())
        query = {key.decode(): values[0].decode() for key, values in request.args.items()}
        engine.asked.append(request.uri.decode())
        parts = path.strip("/").split("/")
        if path == "/containers/json":
            return self._json(request, [self._row(box) for box in engine.boxes.values()])
        if path == "/events":
            engine.watchers.append(request)
            request.notifyFinish().addBoth(lambda _: engine.watchers.remove(request))
            request.write(b"")
            return NOT_DONE_YET
        box = engine.boxes.get(parts[1]) if len(parts) == 3 else None
        if box is None:
            request.setResponseCode(404)
            return b'{"message":"No such container"}'
        if parts[2] == "json":
            return self._json(request, {"Id": box.id, "Config": {"Tty": box.tty}})
        if box.status != 200:
            request.setResponseCode(box.status)
            return b'{"message":"configured logging driver does not support reading"}'
        whole, _, fraction = query["since"].partition(".")
        since = int(whole) * 10**9 + int((fraction or "0").ljust(9, "0"))
        request.write(b"")
        for record in box.records:
            if record[0] >= since:
                request.write(_wire(box, record))
        if not box.running or query.get("follow") != "1":
            request.finish()
            return NOT_DONE_YET
        follower = (request, since)
        box.followers.append(follower)
        request.notifyFinish().addErrback(
            lambda _: follower in box.followers and box.followers.remove(follower)
        )
        return NOT_DONE_YET

    def _row(self, box: Box) -> dict[str, Any]:
        return {
            "Id": box.id,
            "Names": [f"/{box.name}"],
            "Image": box.image,
            "Labels": box.labels,
            "State": "running" if box.running else "exited",
        }

    def _json(self, request: Request, value: Any) -> bytes:
        request.setHeader("Content-Type", "application/json")
        return json.dumps(value).encode()
