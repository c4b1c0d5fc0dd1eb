"""Real `twistd` processes in a state directory of their own, ended with the test.

Everything waits for what it wants to see, within a bound, and an error carries
what the processes wrote. Times are seconds.
"""

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import TestCase

from cortextx.app.cli.client import Client, server_client

T = TypeVar("T")

SERVER = "cortex-server"
AGENT = "cortex-agent"
START_SECONDS = 30.0
POLL = 0.02


class Installation:
    """A state directory below a short path, with at most one server and one agent on it.

    `root` is a scratch directory for the test's own files too; `state` is the
    state directory. Both go with the test, as does every process.
    """

    def __init__(self, test: TestCase) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="cx", dir="/tmp"))
        self.state = self.root / "s"
        self.state.mkdir(mode=0o700)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._listen = "tcp:0:interface=127.0.0.1"
        # In reverse order: first the processes end, then their files go.
        test.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        test.addCleanup(self.end)

    # Processes

    def start_server(self, *options: str, interface: str | None = None) -> str:
        """Start the server and wait until it accepts; answers `host:port`.

        A server that is started again listens where the one before it did, the first
        on loopback unless another address is named.
        """
        if interface is not None:
            self._listen = f"tcp:0:interface={interface}"
        address = self._start(SERVER, "--listen", self._listen, *options)
        host, _, port = address.rpartition(":")
        self._listen = f"tcp:{port}:interface={host}"
        return address

    def start_agent(self, *options: str, prefix: Sequence[str] = ()) -> str:
        """Start the agent and wait until its control socket answers.

        `prefix` is what it is started by, as `ip netns exec`; that must become it.
        """
        return self._start(AGENT, *options, prefix=prefix)

    def kill_server(self) -> None:
        """kill -9 the server."""
        self.stop(SERVER, signal.SIGKILL)

    def kill_agent(self) -> None:
        """kill -9 the agent."""
        self.stop(AGENT, signal.SIGKILL)

    def stop(self, plugin: str, how: signal.Signals = signal.SIGTERM) -> int:
        """End a process and wait for its end; answers its exit code (negative: the signal)."""
        child = self.running.pop(plugin)
        child.send_signal(how)
        try:
            return child.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise AssertionError(f"{plugin} did not end:\n{self.output(plugin)}") from None

    def end(self) -> None:
        """End whatever still runs."""
        for child in self.running.values():
            child.kill()
            child.wait()
        self.running.clear()

    def output(self, plugin: str) -> str:
        """The end of what the processes of this plugin wrote."""
        with contextlib.suppress(OSError):
            return (self.root / f"{plugin}.out").read_text(errors="replace")[-4000:]
        return ""

    def _start(self, plugin: str, *options: str, prefix: Sequence[str] = ()) -> str:
        address = self.state / "run" / f"{plugin}.address"
        # One that was killed could not remove it.
        address.unlink(missing_ok=True)
        with (self.root / f"{plugin}.out").open("ab") as out:
            self.running[plugin] = subprocess.Popen(
                [
                    *prefix, sys.executable, "-c", "from twisted.scripts.twistd import run; run()",
                    "--pidfile=", "-n", plugin, "--state-dir", str(self.state), *options,
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.root, env=environment(), start_new_session=True,
            )  # fmt: skip

        def accepts() -> str | None:
            if self.running[plugin].poll() is not None:
                raise AssertionError(f"{plugin} ended:\n{self.output(plugin)}")
            with contextlib.suppress(FileNotFoundError):
                return address.read_text().strip()
            return None

        return self.wait_until(accepts, f"{plugin} to accept connections")

    def wait_until(
        self, ready: Callable[[], T | None], what: str, seconds: float = START_SECONDS
    ) -> T:
        """Ask `ready` until it answers something true; fails when time is up."""
        end = time.monotonic() + seconds
        while True:
            answer = ready()
            if answer:
                return answer
            if time.monotonic() > end:
                said = "\n".join(self.output(plugin) for plugin in (SERVER, AGENT))
                raise AssertionError(f"waited {seconds:.0f} s for {what}\n{said}")
            time.sleep(POLL)

    # Configuration

    def write_agent_config(self, more: str = "", *, agent: str = "", server: str = "") -> None:
        """Write DIR/cortex-agent.toml: the tables [agent] and [server], and what follows."""
        text = f"[server]\n{server}\n[agent]\n{agent}\n{more}"
        (self.state / f"{AGENT}.toml").write_text(text)

    def write_server_config(self, text: str) -> None:
        """Write DIR/cortex-server.toml."""
        (self.state / f"{SERVER}.toml").write_text(text)

    # The command line

    def cortextx(
        self, *arguments: str, stdin: str = "", code: int = 0, seconds: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `cortextx ARGUMENTS` on this state directory; fails unless it ends with `code`."""
        done = subprocess.run(
            [sys.executable, "-m", "cortextx.app.cli", "--state-dir", str(self.state), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=seconds,
            check=False,
        )
        if done.returncode != code:
            said = f"exit {done.returncode}\n{done.stdout}{done.stderr}"
            raise AssertionError(f"cortextx {' '.join(arguments)}: {said}")
        return done

    def enroll(self, host: str, host_id: str | None = None) -> dict[str, Any]:
        """Enrol this state directory's agent under a name; answers what `agent issue` printed."""
        chosen = () if host_id is None else ("--host-id", host_id)
        made: dict[str, Any] = json.loads(
            self.cortextx("agent", "issue", "--host", host, *chosen, "--json").stdout
        )
        self.cortextx("agent", "enroll", "--invitation-file", "-", stdin=made["invitation"])
        return made

    # What the server knows

    def client(self) -> Client:
        """A connection to the server's admin socket."""
        return server_client(str(self.state))

    def hosts(self) -> list[dict[str, Any]]:
        """The rows of `agent list`."""
        with self.client() as server:
            return server.call("agent.list")[0]

    def tail_all(self) -> list[dict[str, Any]]:
        """Every stored entry, in the order in which they were stored."""
        found: list[dict[str, Any]] = []
        cursor = 0
        with self.client() as server:
            while True:
                rows, end = server.call("search.tail", after=cursor, limit=1000)
                found += rows
                before, cursor = cursor, int(end.get("cursor") or 0)
                if cursor <= before:
                    return found


def environment() -> dict[str, str]:
    """This process's environment without settings of ours, and with this checkout's modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CORTEXTX_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}
