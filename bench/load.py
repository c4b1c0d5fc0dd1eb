"""The load process of the ingest benchmark: agents that speak the real protocol.

Started by bench/ingest.py as `python -m bench.load` with a JSON object on stdin
(`address`, `tokens`, `entries`, `window`, `idle`); prints `ready` when all frames
are made and all agents are connected, waits for a line, pushes everything, prints
one JSON object with what it saw. Its cost on the machine is small: the frames are
made and masked beforehand, and an ack is found by a slice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from typing import Any

from bench.workload import Frame, frames, masked

_HELLO = {
    "protocol_version": 1,
    "agent_version": "1.0.0",
    "platform": {"os": "linux", "arch": "x86_64", "kernel": "6.1"},
    "capabilities": {
        "supported_probes": [],
        "sources": ["file"],
        "max_batch_entries": 1000,
        "compression": [],
    },
}


class Agent(asyncio.Protocol):
    """One agent: hello, then its frames with a window, go-back-N after a refusal."""

    def __init__(self, number: int, token: str, todo: list[Frame], window: int) -> None:
        self.number = number
        self.host_id = f"00000000-0000-4000-8000-{number:012d}"
        self.todo = todo
        self.window = window
        self.waits: list[float] = []
        self.refusals = 0
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._token = token
        self._buffer = bytearray()
        self._upgraded = False
        self._next = 0
        self._sent: dict[int, tuple[int, float]] = {}
        self._back: int | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=16 * 1024 * 1024)
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            (
                "GET /ws/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: cortex.v1\r\n\r\n"
            ).encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self.welcome, self.done):
            if not waiting.done():
                waiting.set_exception(ConnectionError(f"agent {self.number} was dropped: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if b" 101 " not in self._buffer[:end].split(b"\r\n", 1)[0]:
                raise ConnectionError(bytes(self._buffer[:200]).decode("latin-1"))
            del self._buffer[: end + 4]
            self._upgraded = True
            params = {
                **_HELLO,
                "host_id": self.host_id,
                "hostname": f"bench-{self.number}",
                "token": self._token,
            }
            hello = {"jsonrpc": "2.0", "id": "hello", "method": "agent.hello", "params": params}
            self.transport.write(masked(json.dumps(hello).encode()))
        while self._frame():
            pass

    def _frame(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        size, start = buffer[1] & 127, 2
        if size == 126:
            size, start = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < start + size:
            return False
        opcode, payload = buffer[0] & 15, bytes(buffer[start : start + size])
        del buffer[: start + size]
        if opcode == 9:
            self.transport.write(masked(payload, 10))
        elif opcode == 8:
            raise ConnectionError(f"closed by the server: {payload!r}")
        elif opcode == 1:
            self._message(json.loads(payload))
        return True

    def _message(self, message: dict[str, Any]) -> None:
        if message.get("id") == "hello":
            if "error" in message:
                raise ConnectionError(str(message))
            self.welcome.set_result(None)
            return
        if "id" not in message or "method" in message:
            return
        position, at = self._sent.pop(message["id"])
        if "error" in message:
            self.refusals += 1
            self._back = position if self._back is None else min(self._back, position)
            wait = (message["error"].get("data") or {}).get("retry_after_ms", 100) / 1000
            asyncio.get_running_loop().call_later(wait, self.push)
            return
        self.waits.append(time.perf_counter() - at)
        self.push()

    def push(self) -> None:
        """Fill the window."""
        if self._back is not None:
            if self._sent:
                return
            self._next, self._back = self._back, None
        while self._next < len(self.todo) and len(self._sent) < self.window:
            frame = self.todo[self._next]
            self._sent[frame.key] = (self._next, time.perf_counter())
            self._next += 1
            self.transport.write(frame.data)
        if self._next == len(self.todo) and not self._sent and not self.done.done():
            self.done.set_result(None)


async def main(order: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    host, _, port = order["address"].rpartition(":")
    agents: list[Agent] = []
    each = order["entries"] // len(order["tokens"])
    for number, token in enumerate(order["tokens"]):
        agent = Agent(number, token, frames(number, each), order["window"])
        await loop.create_connection(lambda agent=agent: agent, host, int(port))
        await agent.welcome
        agents.append(agent)
    idle: list[Agent] = []
    for number, token in enumerate(order["idle"], 10_000):
        agent = Agent(number, token, [], 1)
        await loop.create_connection(lambda agent=agent: agent, host, int(port))
        await agent.welcome
        idle.append(agent)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    for agent in agents:
        agent.push()
    await asyncio.gather(*(agent.done for agent in agents))
    took = time.perf_counter() - began
    waits = sorted(wait for agent in agents for wait in agent.waits)
    return {
        "seconds": took,
        "entries": each * len(agents),
        "bytes": sum(len(frame.data) for agent in agents for frame in agent.todo),
        "p50_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1000,
        "max_ms": waits[-1] * 1000,
        "refusals": sum(agent.refusals for agent in agents),
        "cpu_seconds": time.process_time(),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.stdin.readline())))), flush=True)
