"""What the ingest benchmark sends: made-up, repeatable log entries and their frames."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 5, 16, tzinfo=UTC)
FRAME_ENTRIES = 1000
_APPS = ("sshd", "nginx", "postgres", "kernel", "cron", "systemd", "dockerd", "api")
_SEVERITIES = ("info",) * 80 + ("notice",) * 8 + ("warning",) * 7 + ("err",) * 4 + ("debug",)
_VERBS = ("accepted", "rejected", "opened", "closed", "started", "finished", "retried")


def entries(agent: int, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Entries of one agent, about 320 bytes each as JSON, seqs from `first`.

    About 20 tokens a message: some in every message, some in one of thousands.
    """
    draw = random.Random(agent * 1_000_003 + first)
    for seq in range(first, first + count):
        moment = START + timedelta(microseconds=(seq * 8 + agent) * 125)
        user, port, took = draw.randrange(5000), draw.randrange(1024, 65_536), draw.random()
        yield {
            "seq": seq,
            "ts": moment.isoformat().replace("+00:00", "Z"),
            "severity": draw.choice(_SEVERITIES),
            "message": (
                f"{draw.choice(_VERBS)} connection from 10.{draw.randrange(16)}."
                f"{draw.randrange(256)}.{draw.randrange(256)} port {port} for user{user}"
                f" request {draw.getrandbits(48):012x} took {took:.6f} s"
            ),
            "source": f"file:/var/log/{_APPS[user % 8]}.log",
            "facility": "daemon",
            "app_name": _APPS[user % 8],
            "process_id": str(user),
            "metadata": {"cluster": "eu-1", "pod": f"web-{user % 40}"},
        }


@dataclass(frozen=True)
class Frame:
    """One logs.push: its JSON-RPC id, seqs, and masked WebSocket bytes."""

    key: int
    first: int
    last: int
    data: bytes


def payload(key: int, agent: int, first: int, count: int) -> bytes:
    """A logs.push as JSON."""
    batch = list(entries(agent, first, count))
    request = {
        "jsonrpc": "2.0",
        "id": key,
        "method": "logs.push",
        "params": {"seq_start": first, "entries": batch},
    }
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()


def frames(agent: int, total: int, size: int = FRAME_ENTRIES) -> list[Frame]:
    """All pushes of one agent, ready for the socket."""
    made = []
    for key, first in enumerate(range(1, total + 1, size), 1):
        count = min(size, total - first + 1)
        made.append(Frame(key, first, first + count - 1, masked(payload(key, agent, first, count))))
    return made


def masked(data: bytes, opcode: int = 1) -> bytes:
    """One client frame of RFC 6455, with a random mask."""
    mask = os.urandom(4)
    size = len(data)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + size.to_bytes(8, "big")
    key = (mask * (size // 4 + 1))[:size]
    body = int.from_bytes(data, "big") ^ int.from_bytes(key, "big")
    return head + mask + body.to_bytes(size, "big")
