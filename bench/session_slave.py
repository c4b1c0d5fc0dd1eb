"""A real `twistd cortex-slave` that notes when each group of facts was on disk.

    python -m bench.session_slave NOTES [options of cortex-slave]

NOTES has a line a group: its newest seq, and when its fdatasync had returned (monotonic
seconds), as told on the thread that called it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from twisted.scripts.twistd import run

from cortextx.stores.journal_log import Log


def main() -> None:
    notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    append = Log.append

    def noted(self: Log, first: int, lines: Sequence[bytes]) -> None:
        append(self, first, lines)
        os.write(notes, b"%d %.6f\n" % (first + len(lines) - 1, time.monotonic()))

    Log.append = noted  # type: ignore[method-assign]
    sys.argv = ["twistd", "--pidfile=", "-n", "cortex-slave", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
