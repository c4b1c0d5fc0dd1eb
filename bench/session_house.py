"""What the session benchmarks run on: a slave, a Redis server, readers, ready-made logs.

All of it is in one scratch directory, and ends with it. Times are seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from bench.session_readers import FIRST_ID, command
from cortextx.core.exchange import Origin
from cortextx.interaction import data
from cortextx.interaction.slave.lines import Beside, Ids, encode_line

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WAIT = 60.0
"""How long a process may take to be there, or to end."""
TWISTD = "from twisted.scripts.twistd import run; run()"
TEXT = ("a line of an answer, as models write them " * 3)[:84]
CONFIG = """
[slave]
session_mib = 0
idle_seconds = {idle}

[limits]
max_unacked_events = 1024

[agents.bench]
runtime = "exec"
command = [{python}, {child}]
max_output_bytes = 4000000000
"""


class House:
    """A scratch directory with a state directory, and all that was started there."""

    def __init__(self, where: str | None, idle: float = 60.0) -> None:
        self.place = tempfile.mkdtemp(prefix="cx", dir=where)
        self.state = os.path.join(self.place, "s")
        self.socket = os.path.join(self.state, "run", "slave.sock")
        self.notes = os.path.join(self.place, "notes")
        self._children: list[subprocess.Popen[Any]] = []
        os.mkdir(self.state, 0o700)
        child = os.path.join(ROOT, "bench", "session_child.py")
        config = CONFIG.format(
            idle=idle, python=json.dumps(sys.executable), child=json.dumps(child)
        )
        with open(os.path.join(self.state, "cortex-slave.toml"), "w") as file:
            file.write(config)

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    # Processes

    def start_slave(self, notes: bool = False) -> psutil.Process:
        """A slave that accepts connections; `notes` of when its facts were synced."""
        words = ["-c", TWISTD, "--pidfile=", "-n", "cortex-slave"]
        if notes:
            words = ["-m", "bench.session_slave", self.notes]
        out = open(os.path.join(self.place, "slave.out"), "ab")  # noqa: SIM115 - its child's
        child = self._start(
            [sys.executable, *words, "--state-dir", self.state],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        out.close()
        address = os.path.join(self.state, "run", "cortex-slave.address")
        self._until(child, lambda: os.path.exists(address), "the slave")
        return psutil.Process(child.pid)

    def start_redis(self) -> str:
        """A Redis server that syncs every write; answers its socket's path."""
        path = os.path.join(self.place, "redis.sock")
        child = self._start(
            [
                "redis-server", "--port", "0", "--unixsocket", path, "--dir", self.place,
                "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            ],
            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip

        def answers() -> bool:
            with contextlib.suppress(OSError), connected(path) as sock:
                sock.sendall(command(b"PING"))
                return sock.recv(64).startswith(b"+PONG")
            return False

        self._until(child, answers, "the Redis server")
        return path

    def readers(self, **asked: Any) -> Readers:
        """Readers that are attached."""
        child = self._start(
            [sys.executable, "-m", "bench.session_readers"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return Readers(child, asked)

    def synced(self) -> list[tuple[int, float]]:
        """The notes: newest seqs, and when they were synced."""
        with open(self.notes) as file:
            words = [line.split() for line in file]
        return [(int(seq), float(at)) for seq, at in words]

    def output(self) -> str:
        """The end of what the slave wrote."""
        with open(os.path.join(self.place, "slave.out"), errors="replace") as file:
            return file.read()[-2000:]

    def _start(self, words: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        child = subprocess.Popen(words, cwd=ROOT, **more)
        self._children.append(child)
        return child

    def _until(self, child: subprocess.Popen[Any], is_there: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT
        while not is_there():
            if child.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{what} did not start")
            time.sleep(0.02)

    # Logs

    def log(self, session: str) -> str:
        """The path of a session's log; its directory is made."""
        home = os.path.join(self.state, "sessions", "home", str(os.geteuid()))
        path = os.path.join(home, "agent", "bench", "session", session)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return os.path.join(path, "events.jsonl")


class Readers:
    """A process of readers."""

    def __init__(self, child: subprocess.Popen[str], asked: dict[str, Any]) -> None:
        self._child = child
        self._line(json.dumps(asked))
        if self._read() != "ready\n":
            raise SystemExit("the readers were not attached")

    def begin(self) -> None:
        """Let the origin say its input, and everybody read."""
        self._line("")

    def found(self) -> dict[str, Any]:
        """What they saw, once they have all; raises SystemExit if they do not."""
        line = self._read()
        found: dict[str, Any] = json.loads(line) if line else {"late": -1}
        if found["late"]:
            raise SystemExit(f"readers did not get all there was: {found['late']} of them")
        return found

    def stop(self) -> None:
        """End them."""
        self._child.kill()
        self._child.wait()

    def _line(self, text: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(text + "\n")
        self._child.stdin.flush()

    def _read(self) -> str:
        assert self._child.stdout is not None
        return str(self._child.stdout.readline())


@contextlib.contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    """A connection whose waits are bounded."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT)
        sock.connect(path)
        yield sock


def write_log(path: str, count: int, run_events: int = 10) -> int:
    """A log of `count` facts, a multiple of `run_events` of each run; answers its bytes.

    Every run is a claim, the user's words, a start, messages and an end.
    """
    run_ids = Ids("request-0000000", "run-00000000000000000000000000000000")
    beside = Beside(claim="00" * 32, uid=0, origin=Origin("bench"))
    user, says = data.Message("user", "What is new?"), data.Message("assistant", TEXT)
    facts: list[tuple[data.Data, Beside | None]] = [
        (data.Accepted(), beside), (user, None), (data.Started(None), None),
        *[(says, None)] * (run_events - 4), (data.Done("completed"), None),
    ]  # fmt: skip
    run = b""
    for content, aside in facts:
        line = encode_line(content, run_ids, seq=1, wall=1_790_000_000_000_000, beside=aside)
        run += line.replace(b"%", b"%%").replace(b'"session_seq":1,', b'"session_seq":%d,') + b"\n"
    run = run.replace(b"request-0000000", b"request-%07d").replace(
        b"run-00000000000000000000000000000000", b"run-%032d"
    )
    size = 0
    with open(path, "wb") as file:
        for number in range(count // run_events):
            words: list[int] = []
            for at in range(run_events):
                words += (number, number, number * run_events + at + 1)
            size += file.write(run % tuple(words))
    return size


def message_bytes() -> int:
    """The length of a line of a message in a log."""
    ids = Ids("req-12345.678901234", "run-00000000000000000000000000000000")
    return len(encode_line(data.Message("assistant", TEXT), ids, seq=10_000, wall=0))


def filled_pipelines(count: int, size: int, pipeline: int) -> list[bytes]:
    """XADD commands with values of `size` bytes, `pipeline` of them at a time."""
    value = b"x" * size
    adds = [
        command(b"XADD", b"s", b"%d-0" % (FIRST_ID + number), b"d", value)
        for number in range(1, count + 1)
    ]
    return [b"".join(adds[at : at + pipeline]) for at in range(0, count, pipeline)]


def add_all(path: str, pipelines: Sequence[bytes]) -> None:
    """Send the pipelines, each once the one before it was answered in full."""
    with connected(path) as sock:
        for adds in pipelines:
            sock.sendall(adds)
            left = adds.count(b"XADD")
            while left:
                # An answer is `$12`, then the id.
                got = sock.recv(65536)
                if b"-ERR" in got:
                    raise SystemExit(got.decode())
                left -= got.count(b"$")
