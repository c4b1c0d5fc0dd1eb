"""What a server's restart does to a fleet: how fast it comes back, and how evenly (A52)."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.integration.processes import ServerProcess

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Return:
    """When each host was back, in seconds after the server accepted connections again."""

    times: tuple[float, ...]

    def until(self, part: float) -> float:
        """Seconds after which this part of the fleet was back."""
        return self.times[max(0, round(part * len(self.times)) - 1)]

    @property
    def unevenness(self) -> float:
        """The peak rate over the mean one.

        The mean is until nine of ten were back (the last few of an exponential backoff
        would make any mean as low as one likes), the peak over any quarter of that time.
        """
        span = self.until(0.9)
        peak = _most_within(self.times, span / 4)
        return 4 * peak / (0.9 * len(self.times))

    @property
    def most_in_a_second(self) -> int:
        """The most hosts that came back within any one second."""
        return _most_within(self.times, 1.0)


def _most_within(times: tuple[float, ...], seconds: float) -> int:
    """The most of these (sorted) times that lie within any stretch of so many seconds."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


class LinkFleet:
    """The process of `link_fleet`, and what it says."""

    def __init__(self, address: tuple[str, int], tokens: list[str]) -> None:
        self.count = len(tokens)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.link_fleet"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        host, port = address
        order = {"url": f"ws://{host}:{port}/ws/agent", "tokens": tokens}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        self._said: queue.Queue[tuple[int, float]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            number, at = line.split()
            self._said.put((int(number), float(at)))

    def all_active(self, seconds: float) -> list[float]:
        """Wait until each link has become active; when that was, the earliest first."""
        end = time.monotonic() + seconds
        seen: dict[int, float] = {}
        while len(seen) < self.count:
            try:
                number, at = self._said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                missing = self.count - len(seen)
                raise AssertionError(f"{missing} of {self.count} are not back") from None
            seen.setdefault(number, at)
        return sorted(seen.values())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self.process.stdout.close()


def restarted(
    server: ServerProcess, fleet: LinkFleet, seconds: float, *, kill: bool
) -> tuple[ServerProcess, Return]:
    """Restart a server, by kill -9 or in order; answers the new one and what came of it."""
    host, port = server.address
    if kill:
        server.kill()
    else:
        server.terminate()
    fresh = ServerProcess(server.state, listen=f"tcp:{port}:interface={host}").started()
    began = time.monotonic()
    try:
        back = fleet.all_active(seconds)
    except AssertionError:
        fresh.end()
        raise
    return fresh, Return(tuple(max(0.0, at - began) for at in back))


def issue_all(server: ServerProcess, count: int) -> list[str]:
    """One-time tokens of so many hosts."""
    with server.admin() as admin:
        return [
            str(
                admin.one(
                    "agent.issue",
                    name=f"linked-{n}",
                    host_id=f"00000000-0000-4000-8000-{n:012d}",
                )["token"]
            )
            for n in range(count)
        ]
