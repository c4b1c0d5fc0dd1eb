"""What a one-shot command costs to start: CPU seconds, against Python's own start.

The bar is 0.25 s of CPU for `cortextx agent list` where no server runs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

ROUNDS = 15
BAR = 0.25


def cpu_of(*command: str) -> float:
    """User and system seconds of one child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Alternate the two, and print medians and their ratio."""
    ours: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(os.path.dirname(sys.executable), "cortextx")
        for _ in range(ROUNDS):
            bare.append(cpu_of(sys.executable, "-c", "pass"))
            ours.append(cpu_of(program, "--state-dir", folder, "agent", "list"))
    mine, theirs = sorted(ours)[ROUNDS // 2], sorted(bare)[ROUNDS // 2]
    print(f"cortextx agent list   {mine:.3f} s CPU (bar {BAR})")
    print(f"python -c pass        {theirs:.3f} s CPU")
    print(f"ratio                 {mine / theirs:.1f}")
    return 0 if mine < BAR else 1


if __name__ == "__main__":
    sys.exit(main())
