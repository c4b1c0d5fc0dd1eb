"""The processes that `cortextx up` starts: begun in their own session, known by their lock.

A process is running when its lock below DIR/run is held; the lock's file holds
its pid. What we started is noted in DIR/run/<plugin>.started, so that `down`
ends nothing that somebody else (systemd, say) looks after.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from cortextx.app.cli.faults import Fault

SERVER = "cortex-server"
AGENT = "cortex-agent"
LOG_FACTORY = "cortextx.app.logs.rotating"

_log_began: dict[str, int] = {}
"""Bytes that a log had when we started its process: what stands there is of an earlier one."""


@dataclass(frozen=True)
class Place:
    """One plugin's files below a state directory."""

    directory: str
    plugin: str

    @property
    def log(self) -> str:
        """Where the process logs to, if we start it."""
        return os.path.join(self.directory, "log", f"{self.plugin}.log")

    @property
    def output(self) -> str:
        """What it writes before and beside its log; begun anew at each start."""
        return os.path.join(self.directory, "log", f"{self.plugin}.out")

    def in_run(self, ending: str) -> str:
        """A file of this plugin in DIR/run."""
        return os.path.join(self.directory, "run", f"{self.plugin}.{ending}")

    def address(self) -> str | None:
        """Where it accepts connections, once it does."""
        return _read(self.in_run("address"))


def running_pid(place: Place) -> int | None:
    """The pid of the process that holds the plugin's lock; None if nobody does."""
    try:
        lock = os.open(place.in_run("lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Fault(f"{place.directory} belongs to another user") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0
    finally:
        os.close(lock)
    return None


def start(place: Place, *options: str) -> subprocess.Popen[bytes]:
    """Start the plugin in a session of its own; it outlives us."""
    for folder in ("", "log", "run"):
        os.makedirs(os.path.join(place.directory, folder), mode=0o700, exist_ok=True)
    for stale in (place.in_run("address"), place.in_run("started")):
        if os.path.exists(stale):
            os.unlink(stale)
    environ = {**os.environ, "CORTEXTX_LOG_FILE": place.log}
    _log_began[place.log] = os.path.getsize(place.log) if os.path.exists(place.log) else 0
    made = os.open(place.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(  # noqa: S603
            [
                *twistd(), "--pidfile=", f"--logger={LOG_FACTORY}", "-n",
                place.plugin, "--state-dir", place.directory, *options,
            ],
            stdin=subprocess.DEVNULL, stdout=made, stderr=subprocess.STDOUT,
            cwd=place.directory, env=environ, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(made)
    _write(place.in_run("started"), f"{child.pid} {start_time(child.pid)}\n")
    return child


def twistd() -> list[str]:
    """How to call the twistd of this very installation."""
    beside = os.path.join(os.path.dirname(sys.executable), "twistd")
    if os.access(beside, os.X_OK):
        return [beside]
    return [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]


def started_here(place: Place, pid: int) -> bool:
    """Whether it was `cortextx up` that started this process, and it is still the same one."""
    return _read(place.in_run("started")) == f"{pid} {start_time(pid)}"


def forget(place: Place) -> None:
    """Drop the note of what we started."""
    if os.path.exists(place.in_run("started")):
        os.unlink(place.in_run("started"))


def terminate(pid: int) -> None:
    """Ask a process to end; it may have done so already."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise Fault(f"process {pid} belongs to another user") from None


def start_time(pid: int) -> str:
    """When a process began, in ticks since boot; empty if there is none. A pid comes again."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def last_words(place: Place, lines: int = 8) -> str:
    """The end of what a process wrote, for the message that it died."""
    found: list[str] = []
    for path in (place.log, place.output):
        text = _read(path, tail=8192, since=_log_began.get(path, 0))
        found += (text or "").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in found)


def _read(path: str, tail: int | None = None, since: int = 0) -> str | None:
    try:
        with open(path, "rb") as file:
            if tail is not None:
                size = file.seek(0, os.SEEK_END)
                # A log that is shorter than it was has been rotated since.
                file.seek(max(0, size - tail, since if since <= size else 0))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return None


def _write(path: str, text: str) -> None:
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(made, "w", encoding="utf-8") as file:
        file.write(text)
