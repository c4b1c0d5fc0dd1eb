"""RFC 6455 by hand, for tests that speak to a server byte by byte."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
HOST_ID = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
TOKEN = "t" * 43


def upgrade(
    path: str = "/ws/agent", protocol: str | None = "cortex.v1", **headers: str | None
) -> bytes:
    """An upgrade request; a header given as None is left out."""
    fields: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": protocol,
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(
    opcode: int, payload: bytes = b"", fin: bool = True, mask: bytes | None = b"mask", rsv: int = 0
) -> bytes:
    """A frame as a client sends it; unmasked where `mask` is None."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    flag = 0x80 if mask is not None else 0
    if len(payload) < 126:
        head += bytes([flag | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([flag | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", len(payload))
    if mask is None:
        return head + payload
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return head + mask + masked.to_bytes(len(payload), "big")


def text(value: Any) -> bytes:
    """A text message holding JSON."""
    return frame(TEXT, json.dumps(value).encode())


@dataclass(frozen=True)
class Frame:
    """A frame as a server sent it."""

    opcode: int
    payload: bytes
    fin: bool = True

    @property
    def json(self) -> Any:
        """The payload as JSON."""
        return json.loads(self.payload)

    @property
    def code(self) -> int:
        """The code of a close frame."""
        return int(struct.unpack("!H", self.payload[:2])[0])


def frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames at the start of what a server sent, and the rest."""
    found = []
    while len(data) >= 2:
        length, at = data[1] & 0x7F, 2
        assert not data[1] & 0x80, "a server's frame is never masked"
        if length == 126:
            length, at = int.from_bytes(data[2:4], "big"), 4
        elif length == 127:
            length, at = int.from_bytes(data[2:10], "big"), 10
        if len(data) < at + length:
            break
        found.append(Frame(data[0] & 15, data[at : at + length], bool(data[0] & 0x80)))
        data = data[at + length :]
    return found, data


def request(id: Any, method: str, params: Any) -> dict[str, Any]:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def hello(
    token: str = TOKEN, host_id: str = HOST_ID, id: Any = 1, padding: int = 0, **changes: Any
) -> dict[str, Any]:
    """An agent.hello; `padding` bytes are added to a probe's name."""
    params = {
        "protocol_version": 1,
        "agent_version": "0.1.0",
        "hostname": "testhost",
        "host_id": host_id,
        "platform": {"os": "linux", "arch": "x86_64", "kernel": "6.1"},
        "capabilities": {
            "supported_probes": ["p" * padding] if padding else [],
            "sources": ["file"],
            "max_batch_entries": 1000,
            "compression": [],
        },
        "token": token,
        "resume_from_seq": 0,
    }
    return request(id, "agent.hello", params | changes)


def push(id: Any, first: int, count: int = 1, message: str = "line") -> dict[str, Any]:
    """A logs.push of `count` entries from seq `first`."""
    entries = [
        {
            "seq": first + n,
            "ts": "2026-05-16T19:42:50.123Z",
            "severity": "info",
            "message": f"{message} {first + n}",
            "source": "file:/var/log/test.log",
        }
        for n in range(count)
    ]
    return request(id, "logs.push", {"seq_start": first, "entries": entries})
