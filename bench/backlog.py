"""Does an agent's start or memory grow with its backlog (A41)?

    python -m bench.backlog [--sizes 500,5000] [--seconds N] [--rounds N]

For each size (MB) an agent's buffer is filled beforehand, with entries of some 300
bytes; then the agent starts, without a server and then with one, and sends for some
seconds. Prints one JSON object a start, and the ratios of the largest to the smallest:
of the seconds until the agent answers, of its memory then, and of its peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict
from unittest import TestCase

from tests.integration.backlogs import Start, start_on

SETTLE_SECONDS = 7.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Start an agent on backlogs of some sizes.")
    parser.add_argument("--sizes", default="500,5000", help="MB, with commas between")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each may send")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    sizes = sorted(int(size) for size in options.sizes.split(","))
    found: dict[int, list[Start]] = {size: [] for size in sizes}
    for _ in range(options.rounds):
        for size in sizes:
            start = once(size * 1_000_000, options.seconds)
            found[size].append(start)
            row = {name: round(value, 2) for name, value in asdict(start).items()}
            print(json.dumps(row), flush=True)
    least, most = found[sizes[0]], found[sizes[-1]]
    names = ("ready_s", "before_mb", "peak_mb", "per_s")
    ratios = {
        name: round(
            statistics.median(getattr(one, name) for one in most)
            / statistics.median(getattr(one, name) for one in least),
            2,
        )
        for name in names
    }
    print(json.dumps({"sizes_mb": [sizes[0], sizes[-1]], "ratio": ratios}))


def once(size: int, seconds: float) -> Start:
    """One start; everything that it made is gone afterwards."""
    case = TestCase("run")
    try:
        return start_on(case, size, seconds, SETTLE_SECONDS)
    finally:
        case.doCleanups()


if __name__ == "__main__":
    main()
