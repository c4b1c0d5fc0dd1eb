"""Ends what a command leaves behind, also when the agent itself was killed and could not.

A tiny shell waits at the end of a pipe that only the agent holds. When a run is over, or the
agent is gone, however it went, the shell kills the run's process group, and what has left
the group but still carries the mark that the run was given in its environment. A process
that cleans its environment and leaves its group too is not found.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

MARK = "CORTEXTX_RUN"
"""The variable with which the processes of a run are found again."""
CLOSING_SECONDS = 5.0
SHELL = "/bin/sh"
_SCRIPT = """
sweep() {
  for round in 1 2 3 4 5 6 7 8; do
    found=$(grep -lzxsF -- "$1" /proc/[0-9]*/environ)
    [ -n "$found" ] || break
    for place in $found; do
      place=${place#/proc/}
      kill -KILL "${place%/environ}" 2>/dev/null
    done
  done
}
group= mark=
while read -r word value; do
  case $word in
    run) group=${value%% *} mark=${value#* } ;;
    over) group= ;;
    sweep) sweep "$mark"; mark= ;;
  esac
done
[ -n "$group" ] && kill -KILL -- "-$group" 2>/dev/null
[ -n "$mark" ] && sweep "$mark"
"""


class Guard:
    """One source's guard; it starts with the first run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int, mark: str) -> None:
        """This process group, and all with this value of MARK, shall not outlive the agent;
        without a shell nothing is done."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            with suppress(OSError):
                self._process = subprocess.Popen(  # noqa: S603
                    [SHELL, "-c", _SCRIPT, "cortextx-guard"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                    start_new_session=True,
                    close_fds=True,
                )
        self._tell(f"run {group} {MARK}={mark}\n")

    def release(self) -> None:
        """The group ends, and its number may become another's."""
        self._tell("over\n")

    def sweep(self) -> None:
        """The run is over: what it left behind ends. Does not wait for that."""
        self._tell("sweep\n")

    def close(self) -> None:
        """Guard nothing any more, once what was asked for is done, which blocks for at most
        CLOSING_SECONDS; a second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
