"""Ends a command's processes when the agent itself was killed and could not.

A tiny shell waits at the end of a pipe that only the agent holds. When the agent is gone,
however it went, the shell kills the command's process group, and what has left the group but
still carries the mark that the command was given in its environment. A process that
cleans its environment and leaves its group too is not found.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

MARK = "CORTEXTX_RUN"
"""The variable with which a command's processes are found again."""
SHELL = "/bin/sh"
_SCRIPT = """
groups=
while read -r line; do groups=$line; done
for group in $groups; do kill -KILL -- "-$group" 2>/dev/null; done
for round in 1 2 3; do
  for place in /proc/[0-9]*; do
    if grep -qzxsF -- "$1" "$place/environ" 2>/dev/null; then
      kill -KILL "${place#/proc/}" 2>/dev/null
    fi
  done
done
"""


class Guard:
    """One source's guard; it starts with the first group."""

    def __init__(self, mark: str) -> None:
        """`mark` is the value of MARK in the environment of what is guarded."""
        self._mark = mark
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """This process group shall not outlive the agent; without a shell nothing is done."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            with suppress(OSError):
                self._process = subprocess.Popen(  # noqa: S603
                    [SHELL, "-c", _SCRIPT, "cortextx-guard", f"{MARK}={self._mark}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                    start_new_session=True,
                    close_fds=True,
                )
        self._tell(f"{group}\n")

    def release(self) -> None:
        """The group ends, and its number may become another's."""
        self._tell("\n")

    def close(self) -> None:
        """Guard nothing any more; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
