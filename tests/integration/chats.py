"""A real slave in a state directory, and `cortextx` called on it, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import TestCase

from tests.integration.terminals import Terminal

START_SECONDS = 30.0
CORTEXTX = (sys.executable, "-m", "cortextx.app.cli")
TWISTD = (sys.executable, "-c", "from twisted.scripts.twistd import run; run()")
CONFIG = """
[slave]
idle_seconds = 0.2

[agents.echo]
runtime = "echo"

[agents.slow]
runtime = "echo"
delay = 0.25

[agents.asks]
runtime = "echo"
approve = true
"""


class Slave:
    """`twistd cortex-slave` on a state directory of its own; both go with the test."""

    def __init__(self, test: TestCase, config: str = CONFIG) -> None:
        self._test = test
        self.root = Path(tempfile.mkdtemp(prefix="cx", dir="/tmp"))
        self.state = self.root / "s"
        self.state.mkdir(mode=0o700)
        (self.state / "cortex-slave.toml").write_text(config)
        self.env = {
            "XDG_STATE_HOME": str(self.root / "own"),
            "PYTHONPATH": os.getcwd() if os.path.isdir("cortextx") else "",
        }
        self.process: subprocess.Popen[bytes] | None = None
        test.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        test.addCleanup(self.end)

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self.root / "log").read_text(errors="replace")

    def start(self) -> Slave:
        """Start it, and wait until it accepts connections."""
        address = self.state / "run" / "cortex-slave.address"
        address.unlink(missing_ok=True)
        with open(self.root / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*TWISTD, "-n", "--pidfile=", "cortex-slave", "--state-dir", str(self.state)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
            )
        end = time.monotonic() + START_SECONDS
        while not address.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the slave did not start:\n{self.log}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()

    # The command line

    def args(self, *args: str) -> list[str]:
        """A command line on this state directory."""
        return [*CORTEXTX, "--state-dir", str(self.state), *args]

    def call(
        self, *args: str, stdin: bytes = b"", seconds: float = 30.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        return subprocess.run(
            self.args(*args),
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **self.env},
        )

    def terminal(self, *args: str) -> Terminal:
        """Run a command at a terminal."""
        return Terminal(self._test, self.args(*args), self.env)

    def chat(self, *args: str) -> JsonChat:
        """A `cortextx chat --json` to converse with line by line."""
        return JsonChat(self._test, self.args("chat", "--json", *args), self.env)


class JsonChat:
    """A conversation in JSON lines."""

    def __init__(self, test: TestCase, args: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
        )
        self.rows: list[dict[str, Any]] = []
        test.addCleanup(self.end)

    def say(self, order: object) -> None:
        """Write a line: an object, or words as they are."""
        text = order if isinstance(order, str) else json.dumps(order)
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def until(self, event: str, **values: Any) -> dict[str, Any]:
        """Read rows up to one of this event with these members; answers it."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            row = json.loads(line)
            self.rows.append(row)
            if row["event"] == event and all(row.get(k) == v for k, v in values.items()):
                return row
        raise AssertionError(f"no {event} {values}, but {self.rows}")

    def close(self, seconds: float = 20.0) -> int:
        """End its stdin, and wait for its end; answers the exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.rows += [json.loads(line) for line in self.process.stdout]
        return self.process.wait(seconds)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()


def texts(rows: list[dict[str, Any]], role: str = "assistant") -> list[str]:
    """The messages of a role among a chat's rows."""
    return [
        row["data"]["text"]
        for row in rows
        if row["event"] == "message" and row["data"]["role"] == role
    ]


def seqs(rows: list[dict[str, Any]]) -> list[int]:
    """The seqs of the facts among a chat's rows."""
    return [row["seq"] for row in rows if "seq" in row]
