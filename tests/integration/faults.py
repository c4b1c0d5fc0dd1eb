"""What breaks a fleet, made on purpose: clocks that jump or race, and peers under load."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import wire
from tests.integration.peers import need
from tests.integration.processes import Connection

LIBRARIES = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def faketime() -> dict[str, str]:
    """The environment under which a process believes faketime; skips or fails without it."""
    need("faketime")
    (library, *_) = glob.glob(LIBRARIES)
    return {"LD_PRELOAD": library, "FAKETIME_NO_CACHE": "1"}


def racing_clock(times: int) -> dict[str, str]:
    """The environment of a process all of whose clocks run so many times too fast."""
    return {**faketime(), "FAKETIME": f"+0 x{times}"}


class SetClock:
    """A time of day that is set while a process runs; its steady clock is left alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0)
        self.environment = {
            **faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """Be so many seconds ahead of the true time from now on."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{seconds:+.0f}\n")
        fresh.rename(self._path)


@contextlib.contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Processes that are started inside have these variables too."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class PushingHost(threading.Thread):
    """An agent by hand: pushes on and on with a window of unanswered pushes, go-back-N.

    It comes back after each break, goes on from accepted_seq, and ends when `finish`
    was called and all that it made is acked. `acked` is the newest seq whose result
    came, `accepted` what each hello said; `fault` is what ought not to have happened.
    """

    def __init__(
        self,
        address: tuple[str, int],
        host_id: str,
        token: str,
        size: int = 20,
        message: str = "line",
    ) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._host_id = host_id
        self._token = token
        self._size = size
        self._message = message
        self._done = threading.Event()
        self.acked = 0
        self.made = 0
        self.accepted: list[int] = []
        self.slowest = 0.0
        self.fault: str | None = None

    def finish(self) -> None:
        """Make nothing new, and end when all is acked."""
        self._done.set()

    def give_up(self) -> None:
        """End soon, whatever is acked."""
        self.fault = self.fault or "given up"
        self._done.set()

    def run(self) -> None:
        while not self._over():
            try:
                self._session()
            except (OSError, EOFError, AssertionError):
                # The server is gone, or not there yet, or speaks no HTTP while it dies.
                time.sleep(0.02)

    def _over(self) -> bool:
        return self.fault is not None or (self._done.is_set() and self.acked == self.made)

    def _session(self) -> None:
        with Connection(self._address) as connection:
            connection.socket.settimeout(10)
            connection.upgrade()
            hello = wire.hello(self._token, self._host_id, resume_from_seq=self.acked)
            answer = connection.call(hello)
            if "result" not in answer:
                self.fault = str(answer)
                return
            accepted = answer["result"]["accepted_seq"]
            self.accepted.append(accepted)
            if accepted < self.acked:
                self.fault = f"acked {self.acked}, but only {accepted} are stored"
                return
            self.acked = accepted
            self._push(connection, accepted + 1)

    def _push(self, connection: Connection, first: int) -> None:
        waiting: dict[int, tuple[int, float]] = {}
        back: int | None = None
        while not self._over():
            if back is not None and not waiting:
                first, back = back, None
            while back is None and len(waiting) < 4:
                count = self._size if not self._done.is_set() else min(
                    self._size, self.made - first + 1
                )  # fmt: skip
                if count <= 0:
                    break
                waiting[first] = (first + count - 1, time.monotonic())
                connection.send(wire.text(wire.push(first, first, count, self._message)))
                first += count
                self.made = max(self.made, first - 1)
            frame = connection.frame()
            if frame.opcode == wire.PING:
                connection.send(wire.frame(wire.PONG, frame.payload))
            elif frame.opcode == wire.CLOSE:
                return
            else:
                answer: Any = frame.json
                if "id" not in answer:
                    continue
                _, sent = waiting.pop(answer["id"])
                if "result" in answer:
                    self.slowest = max(self.slowest, time.monotonic() - sent)
                    self.acked = max(self.acked, answer["result"]["up_to_seq"])
                else:
                    back = min(answer["id"], answer["id"] if back is None else back)


def vanish(connection: Connection) -> None:
    """Be gone as a machine without power is: nothing more is said, not even goodbye.

    Raises PermissionError without CAP_NET_ADMIN.
    """
    tcp_repair = 19
    connection.socket.setsockopt(socket.IPPROTO_TCP, tcp_repair, 1)
    connection.socket.close()
