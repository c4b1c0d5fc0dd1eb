"""A real `twistd cortex-slave` on a state directory of its own, and raw sockets that talk to it.

Nothing of ours is on the client's side: frames are made of plain JSON here, as
somebody would who has read the contract only. Times are seconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

from tests.integration.harness import Installation, environment

SLAVE = "cortex-slave"
ABI2 = "cortexfs.interaction/v2"
ABI1 = "cortexfs.interaction/v1"
ALL = ["input", "observe", "status", "cancel", "command_result", "invoke", "replay"]
SECONDS = 10.0


class SlaveHouse(Installation):
    """A state directory with a slave on it; all of it goes with the test."""

    def __init__(self, test: TestCase) -> None:
        super().__init__(test)
        self.root.chmod(0o755)

    def start(self, *options: str) -> str:
        """Start the slave and wait until it accepts; answers its socket's path."""
        return self._start(SLAVE, *options)

    def kill(self) -> None:
        """kill -9 the slave."""
        self.stop(SLAVE, signal.SIGKILL)

    def write_config(self, text: str) -> None:
        """Write DIR/cortex-slave.toml."""
        (self.state / f"{SLAVE}.toml").write_text(text)

    @property
    def socket(self) -> str:
        """Where the slave listens without a word."""
        return str(self.state / "run" / "slave.sock")

    def log(self, session: str = "default", agent: str = "echo", owner: int | None = None) -> Path:
        """The events.jsonl of a private session."""
        uid = os.geteuid() if owner is None else owner
        home = self.state / "sessions" / "home" / str(uid)
        return home / "agent" / agent / "session" / session / "events.jsonl"

    def facts(self, session: str = "default", agent: str = "echo") -> list[dict[str, Any]]:
        """The lines of a session's log."""
        return [json.loads(line) for line in self.log(session, agent).read_bytes().splitlines()]


class Line:
    """A Unix socket, line by line; every wait is bounded."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(path)
        self._held = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, *values: dict[str, Any] | bytes) -> None:
        """Write lines."""
        for value in values:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
            self.socket.sendall(raw)

    def half_close(self) -> None:
        """Write no more."""
        self.socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes | None:
        """The next line, or None at the end; raises TimeoutError."""
        while b"\n" not in self._held:
            got = self.socket.recv(65536)
            if not got:
                assert not self._held, self._held
                return None
            self._held += got
        line, self._held = self._held.split(b"\n", 1)
        return line

    def value(self) -> dict[str, Any]:
        """The next line's value."""
        line = self.line()
        assert line is not None, "the slave closed the connection"
        found: dict[str, Any] = json.loads(line)
        return found

    def rest(self) -> list[dict[str, Any]]:
        """All lines to the end of the stream."""
        return [json.loads(line) for line in iter(self.line, None)]

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Lines up to the first that is `wanted`."""
        found = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found.append(self.value())
            if wanted(found[-1]):
                return found
        raise AssertionError(f"it did not come: {found[-3:]}")


def ask(path: str, request: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """One v1 request and its whole stream."""
    with Line(path) as line:
        line.send(request)
        return line.rest()


def framed(kind: str, **members: Any) -> dict[str, Any]:
    """A v1 request in its frame."""
    return {"abi": ABI1, "payload": {"direction": "request", "value": {"type": kind, **members}}}


def an_input(request_id: str, text: str, session: str = "default", **more: Any) -> dict[str, Any]:
    """A v1 input."""
    return framed(
        "input", request_id=request_id, session=session, scope="private", input=text,
        origin={"transport": "test"}, **more,
    )  # fmt: skip


def value(line: dict[str, Any]) -> dict[str, Any]:
    """The event of a v1 frame."""
    found: dict[str, Any] = line["payload"]["value"]
    return found


class Stream(Line):
    """A v2 stream that has said hello."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.send(frame("hello", ["c"], {"versions": [ABI2]}, capabilities=["input", "observe"]))
        self.welcome = self.value()

    def attach(
        self, name: str = "a", session: str = "default", agent: str = "echo", *,
        after: int | None = None, mode: str = "interact",
        capabilities: list[str] | None = None, **where: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Attach; answers the first frame that comes of it."""
        data = {"agent": agent, "scope": "private", **where}
        if after is not None:
            data["after_session_seq"] = after
        can = capabilities or (ALL if mode == "interact" else ["observe", "replay", "status"])
        self.send(frame("attach", ["c", name], data, mode=mode, session=session, capabilities=can))
        return self.value()

    def input(self, request_id: str, text: str, name: str = "a") -> None:
        """Send an input."""
        origin = {"transport": "test"}
        self.send(frame("input", ["c", name, request_id], {"text": text}, origin=origin))

    def frames(self) -> Iterator[dict[str, Any]]:
        """Frames as they come."""
        while True:
            yield self.value()

    def done(self, request_id: str) -> list[dict[str, Any]]:
        """Frames up to this request's done."""
        return self.until(
            lambda f: kind(f) == "done" and f["correlation"]["request_id"] == request_id
        )


def frame(
    what: str, ids: list[str], data: dict[str, Any], seq: int | None = None, **event: Any
) -> dict[str, Any]:
    """A v2 frame of a master."""
    names = ["connection_id", "attachment_id", "request_id", "run_id", "command_id"]
    return {
        "abi": ABI2,
        "correlation": dict(zip(names, ids, strict=False)),
        "session_seq": seq,
        "event": {"side": "master", "kind": what, "data": data, "durable": False, **event},
    }


def kind(frame: dict[str, Any]) -> str:
    """The kind of a v2 frame."""
    return str(frame["event"]["kind"])


class SlaveCase(TestCase):
    """A test with a house of its own."""

    def setUp(self) -> None:
        self.house = SlaveHouse(self)

    def twistd(self, *options: str) -> subprocess.CompletedProcess[str]:
        """A slave that is expected to end by itself."""
        return subprocess.run(
            [
                sys.executable, "-c", "from twisted.scripts.twistd import run; run()",
                "--pidfile=", "-n", SLAVE, *options,
            ],
            capture_output=True, text=True, timeout=30, env=environment(), check=False,
            cwd=self.house.root,
        )  # fmt: skip
