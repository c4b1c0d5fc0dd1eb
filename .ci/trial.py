"""Run trial with the arguments given, and close with `N passed, N failed` on its own line.

A test that hangs ends the run: after QUIET_SECONDS without any output trial is
killed, and the test whose name it printed last is the one.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys

COUNT = re.compile(r"(\w+)=(\d+)")
FAILED = ("failures", "errors", "unexpectedSuccesses")
PASSED = ("successes", "expectedFailures")
QUIET_SECONDS = float(os.environ.get("TRIAL_QUIET_SECONDS", "300"))


def run(command: list[str]) -> tuple[int, str, bool]:
    """Pass the output through; answers the exit code, its last 4 KiB, and whether it hung."""
    child = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert child.stdout is not None
    end, hung = b"", False
    while True:
        ready, _, _ = select.select([child.stdout], [], [], QUIET_SECONDS)
        if not ready:
            hung = True
            child.kill()
            break
        data = os.read(child.stdout.fileno(), 65536)
        if not data:
            break
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        end = (end + data)[-4096:]
    return child.wait(), end.decode("utf-8", "replace"), hung


def main(arguments: list[str]) -> int:
    """Answers trial's exit code, or 1 if a test hung or none was run."""
    code, end, hung = run([sys.executable, "-m", "twisted.trial", *arguments])
    lines = end.splitlines() or [""]
    summary = next((li for li in lines[::-1] if li.startswith(("PASSED", "FAILED"))), "")
    counts = {name: int(count) for name, count in COUNT.findall(summary)}
    passed = sum(counts.get(name, 0) for name in PASSED)
    failed = sum(counts.get(name, 0) for name in FAILED)
    if hung:
        print(f"\nno output for {QUIET_SECONDS:.0f} s, so it was ended in: {lines[-1].strip()}")
    if hung or not summary:
        failed += 1
    print(f"\n{passed} passed, {failed} failed, {counts.get('skips', 0)} skipped", flush=True)
    return code or (1 if failed or not passed else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
