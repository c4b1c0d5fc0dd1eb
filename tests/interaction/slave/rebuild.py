"""From events.jsonl alone: claims, transcript and messages, by the standard library.

It shares no code with the slave on purpose: what it finds in a log is what anybody
finds who reads the contract and I36. Usage: `python rebuild.py events.jsonl`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rebuilt:
    """What a log says. `claims`: request id → (kind, claim, run, seq, seq of done)."""

    claims: dict[str, tuple[str, str, str, int, int]] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)
    transcript: list[tuple[int, str, str]] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)
    open_calls: dict[str, list[str]] = field(default_factory=dict)
    head: int = 0


OPEN = {"requested", "pending", "approved", "started", "running"}


def rebuild(log: bytes) -> Rebuilt:
    """Read a whole log; raises ValueError for a torn or broken one."""
    if log and not log.endswith(b"\n"):
        raise ValueError("the last line does not end")
    found = Rebuilt()
    parts: list[str] = []
    for text in log.decode().splitlines():
        line = json.loads(text)
        seq = line["session_seq"]
        if found.head and seq != found.head + 1:
            raise ValueError(f"{seq} follows {found.head}")
        found.head = seq
        for carried in line.get("x", {}).get("carried", []):
            note(found, carried, [])
        note(found, line, parts)
        found.transcript.append((seq, line["event"]["kind"], json.dumps(line["event"]["data"])))
    return found


def note(found: Rebuilt, line: dict[str, Any], parts: list[str]) -> None:
    """Take note of one line."""
    ids, event = line["correlation"], line["event"]
    seq, kind, data, beside = line["session_seq"], event["kind"], event["data"], line.get("x", {})
    request, run = ids.get("request_id"), ids.get("run_id")
    if kind == "accepted":
        found.claims[request] = ("input", beside["claim"], run, seq, 0)
        found.unfinished[run] = request
    elif kind == "status" and "claim" in beside:
        claim = ("cancel", beside["claim"], beside["run"], seq, 0)
        found.claims[beside["request_id"]] = claim
    elif kind == "done":
        found.unfinished.pop(run, None)
        if request in found.claims:
            found.claims[request] = (*found.claims[request][:4], seq)
    elif kind == "event" and data["type"] == "tool":
        calls = found.open_calls.setdefault(run, [])
        if data["state"] in OPEN:
            calls.append(data["call_id"])
        elif data["call_id"] in calls:
            calls.remove(data["call_id"])
    elif kind == "event" and data["type"] == "message":
        parts.append(data["text"])
        if data.get("part", 1) == data.get("parts", 1):
            found.messages.append((data["role"], "".join(parts)))
            parts.clear()


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        print(rebuild(file.read()))
