"""How a fleet comes back after its server restarts: peak over mean rate (A52).

    python -m bench.restart [--agents N] [--rounds N]

Real links (the agent's own reconnecting) of one process, each round a new server and new
links, restarted once by kill -9 or, in every second round, by SIGTERM. Prints one JSON
object a round: seconds from the new server's first accept until half, nine of ten and
all were back, the most in one second, and the peak over the mean rate (the mean until
nine of ten were back, the peak over any quarter of that time).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile

from tests.integration.processes import ServerProcess
from tests.integration.reconnects import LinkFleet, Return, issue_all, restarted


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Restart a server under a fleet.")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    for number in range(options.rounds):
        kill = number % 2 == 0
        back = once(options.agents, kill)
        found = {
            "by": "kill -9" if kill else "SIGTERM",
            "agents": options.agents,
            "half_s": round(back.until(0.5), 1),
            "nine_of_ten_s": round(back.until(0.9), 1),
            "all_s": round(back.times[-1], 1),
            "most_in_a_second": back.most_in_a_second,
            "peak_over_mean": round(back.unevenness, 2),
        }
        print(json.dumps(found), flush=True)


def once(agents: int, kill: bool) -> Return:
    """One server, one fleet, one restart."""
    state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
    server = ServerProcess(state)
    fleet = None
    try:
        fleet = LinkFleet(server.started().address, issue_all(server, agents))
        fleet.all_active(120)
        server, back = restarted(server, fleet, 120, kill=kill)
        return back
    finally:
        if fleet is not None:
            fleet.close()
        server.end()
        shutil.rmtree(state)


if __name__ == "__main__":
    main()
