"""The readers of the session benchmarks: masters of a slave, or XREAD of a Redis stream.

Started as `python -m bench.session_readers` with a JSON object on stdin; prints `ready`
when all are attached, waits for a line, and prints a JSON object when every reader has
`until` facts, or when the time is up. Both kinds cost next to nothing: frames and
entries are counted by slices, never parsed one by one.

`kind` "slave": `socket`, `readers` (a connection each), `agent`, `session`, `after`,
`until`, `seconds`; the first is the origin of `input`, if there is one. `stamps` asks for
the time at which the last reader had each seq, `deltas` for the delays of deltas.
`kind` "redis": `socket`, `readers`, `until`, `size` (bytes of a value), `seconds`.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

ABI = "cortexfs.interaction/v2"
ACK_EVERY = 256
CHUNK = 262_144
_DURABLE = b'"durable":true'
_STAMP = re.compile(rb'"text":"([0-9]+\.[0-9]+) ')
FIRST_ID = 1_000_000_000
"""Ids of Redis' entries count from here, so that all are equally long."""


class Reader(Protocol):
    """Somebody who reads; `has` counts facts, `size` the bytes that came."""

    sock: socket.socket
    has: int
    size: int
    is_ready: bool

    def came(self, data: bytes, now: float) -> None:
        """Take data."""

    def begin(self) -> None:
        """Everybody is ready."""


class Master:
    """A v2 master with one attachment."""

    def __init__(self, asked: dict[str, Any], number: int, notes: Notes) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(asked["socket"])
        self.has = 0
        self.size = 0
        self.is_ready = False
        self._asked = asked
        self._is_origin = number == 0 and "input" in asked
        self._notes = notes
        self._held = b""
        self._acked = 0
        self._after = asked.get("after", 0)
        data: dict[str, Any] = {"agent": asked["agent"], "scope": "private"}
        if self._after is not None:
            data["after_session_seq"] = self._after
        can = ["observe", "replay"] + (["input"] if self._is_origin else [])
        self._say("hello", None, {"versions": [ABI]}, capabilities=can)
        mode = "interact" if self._is_origin else "observe"
        self._say("attach", None, data, capabilities=can, mode=mode, session=asked["session"])

    def begin(self) -> None:
        if self._is_origin:
            self._say(
                "input", None, {"text": self._asked["input"]},
                request_id=f"req-{time.monotonic()}", origin={"transport": "bench"},
            )  # fmt: skip

    def came(self, data: bytes, now: float) -> None:
        self.size += len(data)
        data = self._held + data
        end = data.rfind(b"\n") + 1
        self._held = data[end:]
        if not self.is_ready:
            self._opening(data[:end])
        count = data.count(_DURABLE, 0, end)
        if count:
            self.has += count
            self._notes.stamp((self._after or 0) + self.has, now)
            if self.has - self._acked >= ACK_EVERY:
                self._acked = self.has
                self._say("ack", (self._after or 0) + self.has, {})
        if self._notes.wants_deltas:
            self._notes.delays += [
                (now, now - float(said)) for said in _STAMP.findall(data, 0, end)
            ]

    def _opening(self, data: bytes) -> None:
        for line in data.splitlines():
            found = json.loads(line)["event"]
            if found["kind"] == "attached":
                self.is_ready = True
                if self._after is None:
                    self._after = found["data"]["head"]
                return
            if found["kind"] != "welcome":
                raise SystemExit(f"not attached: {line.decode()}")

    def _say(
        self, kind: str, seq: int | None, data: dict[str, Any],
        request_id: str | None = None, **event: Any,
    ) -> None:  # fmt: skip
        ids = {
            "connection_id": "c", "attachment_id": None if kind == "hello" else "a",
            "request_id": request_id, "run_id": None, "command_id": None,
        }  # fmt: skip
        body = {"side": "master", "kind": kind, "durable": False, "data": data, **event}
        frame = {"abi": ABI, "correlation": ids, "session_seq": seq, "event": body}
        self.sock.send(json.dumps(frame).encode() + b"\n")


class Follower:
    """An XREAD client that blocks for what comes next."""

    is_ready = True

    def __init__(self, asked: dict[str, Any]) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(asked["socket"])
        self.has = 0
        self.size = 0
        self._entry = entry_bytes(asked["size"])
        self._head = len(b"*1\r\n*2\r\n$1\r\ns\r\n")
        self._held = bytearray()
        self._need = 0
        self._count = 0

    def begin(self) -> None:
        self._ask()

    def came(self, data: bytes, now: float) -> None:
        self.size += len(data)
        self._held += data
        while self._held:
            if not self._need:
                if self._held.startswith(b"*-1\r\n"):  # nothing came in time
                    del self._held[:5]
                    self._ask()
                    continue
                end = self._held.find(b"\r\n", self._head)
                if end < 0:
                    return
                self._count = int(self._held[self._head + 1 : end])
                self._need = end + 2 + self._count * self._entry
            if len(self._held) < self._need:
                return
            if len(self._held) > self._need:
                raise SystemExit("entries are not as long as they should be")
            self._held.clear()
            self._need = 0
            self.has += self._count
            self._ask()

    def _ask(self) -> None:
        last = b"%d-0" % (FIRST_ID + self.has)
        self.sock.send(
            command(b"XREAD", b"COUNT", b"1000", b"BLOCK", b"5000", b"STREAMS", b"s", last)
        )


def command(*words: bytes) -> bytes:
    """A command of Redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def entry_bytes(size: int) -> int:
    """The bytes of one entry in an answer to XREAD."""
    return len(b"*2\r\n$12\r\n1000000000-0\r\n*2\r\n$1\r\nd\r\n$%d\r\n\r\n" % size) + size


class Notes:
    """What is noted of single facts and deltas."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.wants_deltas = bool(asked.get("deltas"))
        self.delays: list[tuple[float, float]] = []
        self.last: dict[int, float] = {}
        self._wants_stamps = bool(asked.get("stamps"))

    def stamp(self, seq: int, now: float) -> None:
        """Somebody has all up to `seq`; the last one to say so counts."""
        if self._wants_stamps:
            self.last[seq] = now


def run(selector: selectors.BaseSelector, readers: Sequence[Reader], until: int, end: float) -> int:
    """Read until each has `until` (0: until all are ready) or the time is up; who has it not?"""
    left = {reader for reader in readers if not _is_done(reader, until)}
    while left and time.monotonic() < end:
        for key, _ in selector.select(timeout=0.5):
            reader: Reader = key.data
            data = reader.sock.recv(CHUNK)
            if not data:
                selector.unregister(reader.sock)
                print(f"a reader was dropped at {reader.has}", file=sys.stderr)
                return len(left)
            reader.came(data, time.monotonic())
            if _is_done(reader, until):
                left.discard(reader)
    return len(left)


def _is_done(reader: Reader, until: int) -> bool:
    return reader.has >= until if until else reader.is_ready


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    notes = Notes(asked)
    readers: list[Reader] = [
        Follower(asked) if asked["kind"] == "redis" else Master(asked, number, notes)
        for number in range(asked["readers"])
    ]
    end = time.monotonic() + asked["seconds"]
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.sock, selectors.EVENT_READ, reader)
        if run(selector, readers, 0, end):
            raise SystemExit("not everybody was attached in time")
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        cpu = time.process_time()
        for reader in readers:
            reader.begin()
        late = run(selector, readers, asked["until"], end)
        ended = time.monotonic()
    found = {
        "begun": begun,
        "ended": ended,
        "late": late,
        "facts": sum(reader.has for reader in readers),
        "bytes": sum(reader.size for reader in readers),
        "cpu": time.process_time() - cpu,
        "last": sorted(notes.last.items()),
        "delays": notes.delays,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
