"""Real server processes and raw connections to them, for tests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from cortextx.app.cli.client import Client, server_client
from tests import wire
from tests.wire import Frame

START_SECONDS = 20.0
ANSWER_SECONDS = 10.0


class ServerProcess:
    """`twistd cortex-server` on a state directory; ends with the test that made it."""

    def __init__(
        self,
        state: str,
        *options: str,
        listen: str | None = None,
        logs: str | None = None,
        **env: str,
    ) -> None:
        self.state = os.path.abspath(state)
        self.address_file = os.path.join(self.state, "run", "cortex-server.address")
        os.makedirs(self.state, exist_ok=True)
        endpoint = "tcp:0:interface=127.0.0.1" if listen is None else listen
        self.log_path = os.path.join(logs or self.state, "server.log")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from twisted.scripts.twistd import run; run()",
                    "-n",
                    "--pidfile=",
                    "cortex-server",
                    "--state-dir",
                    self.state,
                    *(("--listen", endpoint) if endpoint else ()),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
            )

    @property
    def log(self) -> str:
        """What it wrote so far, stdout and stderr."""
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def started(self) -> ServerProcess:
        """Wait until it accepts connections."""
        end = time.monotonic() + START_SECONDS
        while not os.path.exists(self.address_file):
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise AssertionError(f"the server did not start:\n{self.log}")
            time.sleep(0.02)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        with open(self.address_file) as file:
            host, _, port = file.read().strip().rpartition(":")
        return host, int(port)

    def admin(self) -> Client:
        """A client of its admin socket."""
        return server_client(self.state)

    def issue(self, name: str = "testhost", host_id: str | None = wire.HOST_ID) -> str:
        """A one-time token."""
        with self.admin() as admin:
            return str(admin.one("agent.issue", name=name, host_id=host_id)["token"])

    def connect(self) -> Connection:
        """An upgraded connection."""
        connection = Connection(self.address)
        connection.upgrade()
        return connection

    def enrolled(self, host_id: str = wire.HOST_ID) -> tuple[Connection, str]:
        """A host's first session, and its long-lived token."""
        connection = self.connect()
        token = self.issue(host_id=host_id)
        connection.send(wire.text(wire.hello(token, host_id)))
        return connection, connection.frame().json["result"]["rotated_token"]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            # What a dead process leaves behind would be taken for the next one's.
            os.unlink(self.address_file)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code once it has ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECONDS)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@functools.cache
def shared_server() -> tuple[ServerProcess, str]:
    """One server for all tests that only speak to it, and the token of its one host.

    Trial has no fixtures of a class or module; this one ends with the process.
    """
    state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
    atexit.register(shutil.rmtree, state, ignore_errors=True)
    server = ServerProcess(state)
    atexit.register(server.end)
    connection, token = server.started().enrolled()
    with connection:
        connection.send(wire.frame(wire.CLOSE, b"\x03\xe8"))
        connection.until_closed()
    return server, token


class Connection:
    """A TCP connection to a server, by hand."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *args: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def head(self) -> bytes:
        """The head of an HTTP answer."""
        while b"\r\n\r\n" not in self.received:
            data = self.socket.recv(65_536)
            if not data:
                break
            self.received += data
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        return head

    def upgrade(self) -> None:
        """Become a WebSocket."""
        self.send(wire.upgrade())
        head = self.head()
        assert head.startswith(b"HTTP/1.1 101 "), head

    def frame(self) -> Frame:
        """The next frame; raises EOFError at the end of the connection."""
        while True:
            found, _ = wire.frames(self.received)
            if found:
                first = found[0]
                size = len(first.payload)
                used = size + (2 if size < 126 else 4 if size < 65_536 else 10)
                self.received = self.received[used:]
                return first
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError
            self.received += data

    def until_closed(self) -> list[Frame]:
        """All frames until the connection ends, our close answered as a client does."""
        found: list[Frame] = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                found.append(self.frame())
                if found[-1].opcode == wire.CLOSE:
                    with contextlib.suppress(OSError):
                        self.send(wire.frame(wire.CLOSE, found[-1].payload[:2]))
        return found

    def close_code(self) -> int | None:
        """The code of the next close frame; None if the connection ends without one."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while (found := self.frame()).opcode != wire.CLOSE:
                pass
            return found.code
        return None

    def call(self, message: Any) -> Any:
        """Send a request and return the next message, answering pings on the way."""
        self.send(wire.text(message))
        while True:
            frame = self.frame()
            if frame.opcode == wire.PING:
                self.send(wire.frame(wire.PONG, frame.payload))
            else:
                return frame.json
