"""Sessions' files made by hand, for tests of what reads them."""

from __future__ import annotations

import json
import os
from typing import Any

ANSWER = "It is\n\x1b[31mred\x1b[0m."


def fact(seq: int, kind: str, data: dict[str, Any], x: dict[str, Any] | None = None) -> bytes:
    """A line of a log (I36)."""
    value: dict[str, Any] = {
        "abi": "cortexfs.interaction/v2",
        "correlation": {"request_id": "q", "run_id": "r"},
        "session_seq": seq,
        "event": {"side": "slave", "kind": kind, "durable": True, "data": data},
        "ts": f"2026-05-16T09:00:{seq:02d}Z",
    }
    if x is not None:
        value["x"] = x
    return json.dumps(value).encode() + b"\n"


RUN = (
    fact(1, "accepted", {}, {"uid": 1000, "cwd": "/work", "origin": {"transport": "terminal"}}),
    fact(2, "event", {"type": "message", "role": "user", "text": "colour?"}),
    fact(3, "started", {"model": "m"}),
    fact(4, "event", {"type": "message", "role": "assistant", "text": ANSWER}),
    fact(5, "done", {"status": "completed"}),
)


def path_of(root: str, place: str, agent: str, session: str) -> str:
    """A session's directory; `place` is home/UID or shared/SPACE."""
    return os.path.join(root, place, "agent", agent, "session", session)


def make_session(
    root: str,
    session: str,
    *,
    place: str = "home/1000",
    agent: str = "echo",
    lines: tuple[bytes, ...] = RUN,
) -> str:
    """Write a session's log; answers its path."""
    directory = path_of(root, place, agent, session)
    os.makedirs(directory)
    path = os.path.join(directory, "events.jsonl")
    with open(path, "wb") as file:
        file.writelines(lines)
    return path
