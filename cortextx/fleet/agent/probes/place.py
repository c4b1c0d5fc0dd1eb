"""Where a probe runs, as its child process sees it: bounds, folders, commands."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from shutil import which

from msgspec import Struct

from cortextx.fleet.agent.probes.verdicts import ProbeFault

COMMAND_BYTES = 4_194_304
"""Bytes of a command's output that are read."""


class Order(Struct, frozen=True, kw_only=True):
    """What the agent tells its child on stdin. `seconds` is the time there is, `output_bytes`
    the size of the answer, `memory_bytes` that of the address space."""

    probe: str
    args: dict[str, str | int | None]
    seconds: float
    output_bytes: int
    memory_bytes: int
    roots: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    docker_sockets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """What a probe may use. `deadline` is of `time.monotonic`; files lie below `roots`
    and not below `excluded` (S2); the first of `docker_sockets` that is there is asked."""

    deadline: float
    roots: tuple[str, ...]
    excluded: tuple[str, ...]
    output_bytes: int
    docker_sockets: tuple[str, ...] = ()

    @property
    def seconds_left(self) -> float:
        """The time that there is, less what the answer takes."""
        return max(0.05, (self.deadline - time.monotonic()) * 0.9 - 0.05)

    def command(self, *words: str) -> tuple[int, bytes, str]:
        """Run a program of the system: its exit code, output, and words on stderr.

        Nobody's input reaches it as an option: that is the caller's `--` and the
        catalogue's patterns. Raises ProbeFault if it is not there, or too slow.
        """
        program = which(words[0])
        if program is None:
            raise ProbeFault(f"{words[0]} is not on this host")
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        environ |= {"SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_LESS": ""}
        running = subprocess.Popen(  # noqa: S603 - no shell, and words of our own
            [program, *words[1:]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
        )  # fmt: skip
        try:
            out, words_of = running.communicate(timeout=self.seconds_left)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            raise ProbeFault(f"{words[0]} did not answer in time") from None
        return running.returncode, out[:COMMAND_BYTES], words_of.decode(errors="replace")[:2000]
