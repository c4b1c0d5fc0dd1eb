"""What breaks a slave, made on purpose: kills at chosen steps, peers of other users, floods.

Times are seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.integration.slave_harness import Line, SlaveHouse, Stream, an_input, frame, kind

NOBODY = 65534
STEP = """
import os, signal, sys
from cortextx.stores import session_directory
from cortextx.stores.session_directory import RealFile, SessionDirectory

left, said = int(sys.argv[1]), sys.argv[2]
sys.argv = ["twistd", *sys.argv[6:]]

def failing(owner, name):
    call = getattr(owner, name)
    def step(*args):
        global left
        left -= 1
        if left == 0:
            if name == "write_at":
                data = b"".join(args[2])
                os.pwrite(args[0]._descriptor, data[: len(data) // 2], args[1])
            with open(said, "w") as file:
                file.write(name)
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args)
    setattr(owner, name, step)

for owner, name in (
    (RealFile, "write_at"), (RealFile, "sync"), (RealFile, "truncate"),
    (SessionDirectory, "create"), (SessionDirectory, "rename"),
    (SessionDirectory, "sync_directory"),
):
    failing(owner, name)

from twisted.scripts.twistd import run
run()
"""


class FaultyHouse(SlaveHouse):
    """A slave that can be made to die at a step of its disk."""

    def start_until(self, step: int) -> str:
        """Start a slave that is killed at its `step`-th call that changes a session's files.

        A write is cut in the middle. Answers the socket's path.
        """
        self.died.unlink(missing_ok=True)
        # What follows the prefix is the command of a plain slave; it becomes ours instead.
        return self._start(
            "cortex-slave", prefix=(sys.executable, "-c", STEP, str(step), str(self.died))
        )

    @property
    def died(self) -> Any:
        """The file that says at which call the slave died."""
        return self.root / "died"

    def reap(self) -> str | None:
        """Whether the slave has been killed at its step: the call's name, or None."""
        self.running.pop("cortex-slave").wait(10)
        return self.died.read_text() if self.died.exists() else None

    @property
    def pid(self) -> int:
        """The slave's process."""
        return self.running["cortex-slave"].pid


def is_contiguous(seqs: Iterable[int]) -> bool:
    """Whether these follow one another."""
    found = list(seqs)
    return found == list(range(found[0], found[0] + len(found))) if found else True


def facts_of(frames: Iterable[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """The facts among v2 frames, to be compared: seq, kind and data."""
    return [
        (f["session_seq"], kind(f), json.dumps(f["event"]["data"], sort_keys=True))
        for f in frames
        if f["event"].get("durable")
    ]


def one_end_each(facts: Iterable[dict[str, Any]]) -> dict[str, str]:
    """How each accepted request ended; fails unless each began once at most and ended once."""
    ends: dict[str, str] = {}
    accepted: set[str] = set()
    started: set[str] = set()
    for fact in facts:
        request = fact["correlation"].get("request_id")
        match kind(fact):
            case "accepted":
                assert request not in accepted, f"{request} was accepted twice"
                accepted.add(request)
            case "started":
                assert request not in started, f"{request} began twice"
                started.add(request)
            case "done":
                assert request not in ends, f"{request} ended twice"
                ends[request] = fact["event"]["data"]["status"]
    assert ends.keys() == accepted, (ends, accepted)
    return ends


def whole_session(path: str, session: str = "default", after: int = 0) -> list[dict[str, Any]]:
    """All facts of a session as a new observer gets them, acknowledged on the way."""
    with Stream(path) as stream:
        attached = stream.attach(session=session, after=after, mode="observe")
        assert kind(attached) == "attached", attached
        head = attached["event"]["data"]["head"]
        found: list[dict[str, Any]] = []
        while (found[-1]["session_seq"] if found else after) < head:
            found.append(stream.value())
            if len(found) % 100 == 0:
                stream.send(frame("ack", ["c", "a"], {}, found[-1]["session_seq"]))
        return found


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(found)


class Talker(threading.Thread):
    """A client that has one short conversation after another; `slowest` is the longest yet."""

    def __init__(self, path: str, session: str = "talk") -> None:
        super().__init__(daemon=True)
        self._path = path
        self._session = session
        self._end = threading.Event()
        self.count = 0
        self.slowest = 0.0
        self.fault: str | None = None

    def __enter__(self) -> Talker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join(20)

    def run(self) -> None:
        try:
            while not self._end.is_set():
                begun = time.monotonic()
                with Line(self._path) as line:
                    line.send(an_input(f"t{self.count}", "hi", self._session))
                    last = line.rest()[-1]["payload"]["value"]
                assert last.get("status") == "completed", last
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.count += 1
                self._end.wait(0.01)
        except Exception as error:
            self.fault = repr(error)


def as_nobody(call: Callable[[], object]) -> Any:
    """What `call` answers as a user without rights, in a child; an exception's name if it fails."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                said: object = call()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps(said).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return json.loads(told)
