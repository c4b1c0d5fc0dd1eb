"""What breaks an agent, made on purpose: dead servers, thin wires, and how it bears them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

from twisted.trial.unittest import SkipTest

from cortextx.app.cli.client import agent_client
from tests.integration.harness import AGENT, Installation
from tests.integration.peers import need

FIRST_OF_TEST_NET = 213


def status(site: Installation) -> dict[str, Any]:
    """What the agent says of itself."""
    with agent_client(str(site.state)) as client:
        found: dict[str, Any] = client.one("status")
    return found


def memory(pid: int, what: str = "VmRSS") -> float:
    """A process's memory in MB (of a million bytes); `VmHWM` is its peak."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        facts = dict(line.split(":", 1) for line in file)
    return int(facts[what].split()[0]) * 1024 / 1e6


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        parts = file.read().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def agent_pid(site: Installation) -> int:
    """The agent's process."""
    return site.running[AGENT].pid


def file_source(path: object, name: str = "app") -> str:
    """The table of a file source."""
    return f'[[sources]]\nkind = "file"\npath = "{path}"\nname = "{name}"\n'


def messages(site: Installation, source: str) -> list[str]:
    """What is stored of a source (its end), in the order in which it was stored."""
    return [row["message"] for row in site.tail_all() if row["source"].endswith(source)]


def accepted(site: Installation) -> int:
    """The newest seq that the server has of its one host."""
    (host,) = site.hosts()
    return int(host["accepted_seq"])


def audit(site: Installation, host: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The gaps of a host, and what `cortextx audit` says beside them."""
    with site.client() as server:
        return server.call("agent.audit", host=host)


def caught_up(site: Installation) -> bool:
    """Whether the agent holds nothing that the server does not have, and is not held back."""
    found = status(site)
    settled = not found["backlog_entries"] and not found["unreported_losses"]
    return settled and found["connected"] and not found["sources_paused_by"]


@contextlib.contextmanager
def never_answers(port: int) -> Iterator[None]:
    """A server that accepts connections, takes what comes, and says nothing."""
    with socket.create_server(("127.0.0.1", port), backlog=64):
        # The kernel accepts for a program that never does.
        yield


@contextlib.contextmanager
def black_hole(port: int) -> Iterator[None]:
    """An address that does not even refuse: connections to it get no answer at all."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
        for _ in range(4):
            # Whoever comes behind a full backlog is not heard.
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield


class ThinWire:
    """A network namespace whose only way out, to `address`, carries so many bytes a second.

    Skips the test where none can be made. `prefix` is what starts a program inside.
    """

    def __init__(self, test: TestCase, bytes_a_second: int) -> None:
        ip, tc = need("ip"), need("tc")
        number = os.getpid() % 64
        name = f"cx{os.getpid()}"
        net = f"10.{FIRST_OF_TEST_NET}.77.{number * 4}"
        self.address, inner = _added(net, 1), _added(net, 2)
        self.prefix = (ip, "netns", "exec", name)
        if os.geteuid() != 0:
            raise SkipTest("only root can make a network namespace")
        self._run(ip, "netns", "add", name)
        test.addCleanup(subprocess.run, [ip, "netns", "del", name], timeout=20, check=False)
        self._run(ip, "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b")
        test.addCleanup(
            subprocess.run, [ip, "link", "del", f"{name}a"], timeout=20, check=False,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._run(ip, "link", "set", f"{name}b", "netns", name)
        self._run(ip, "addr", "add", f"{self.address}/30", "dev", f"{name}a")
        self._run(ip, "link", "set", f"{name}a", "up")
        self._run(*self.prefix, ip, "addr", "add", f"{inner}/30", "dev", f"{name}b")
        self._run(*self.prefix, ip, "link", "set", f"{name}b", "up")
        self._run(*self.prefix, ip, "link", "set", "lo", "up")
        rate = f"{bytes_a_second * 8}bit"
        self._run(
            *self.prefix, tc, "qdisc", "add", "dev", f"{name}b", "root",
            "tbf", "rate", rate, "burst", "3kb", "limit", "64kb",
        )  # fmt: skip

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            raise SkipTest(f"no shaped network here: {' '.join(command)}: {done.stderr.strip()}")


def _added(net: str, number: int) -> str:
    head, _, last = net.rpartition(".")
    return f"{head}.{int(last) + number}"


def write_lines(path: Path, first: int, count: int, size: int) -> int:
    """Append numbered lines of about `size` bytes; answers the bytes written."""
    pad = "x" * max(0, size - 20)
    data = "".join(f"n={number} {pad}\n" for number in range(first, first + count))
    with path.open("a") as file:
        file.write(data)
    return len(data)


def numbers(lines: list[str]) -> list[int]:
    """The numbers of such lines."""
    return [int(line.split()[0][2:]) for line in lines]
