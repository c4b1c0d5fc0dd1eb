"""What an idle agent costs the server: resident memory, and CPU for heartbeats and pings.

    python -m bench.idle [--agents N] [--seconds N]

A real `twistd cortex-server`, and N connections that have said hello, answer pings and
send a heartbeat every 30 s as an idle agent does. Resident memory is read before the
first, after the last, and after a while of idling, in which every agent has been pinged
and has sent heartbeats. Prints one JSON object; the bar is 40 KiB an agent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from typing import Any

from bench.load import Agent
from bench.workload import masked
from tests.integration.processes import ServerProcess

BAR_KIB = 40.0
HEARTBEAT_SECONDS = 30.0


async def idle(server: ServerProcess, tokens: list[str], seconds: float) -> dict[str, Any]:
    """Connect all, idle, and measure."""
    loop = asyncio.get_running_loop()
    host, port = server.address
    pid = server.process.pid
    before = resident(pid)
    agents: list[Agent] = []
    for number, token in enumerate(tokens):
        agent = Agent(number, token, [], 1)
        await loop.create_connection(lambda agent=agent: agent, host, port)
        await agent.welcome
        agents.append(agent)
    await asyncio.sleep(1)
    connected, cpu = resident(pid), used(pid)
    beats = [asyncio.create_task(beat(agent)) for agent in agents]
    await asyncio.sleep(seconds)
    after, spent = resident(pid), used(pid) - cpu
    lost = sum(agent.done.done() for agent in agents)
    for task in beats:
        task.cancel()
    for agent in agents:
        agent.done.cancel()
        agent.transport.abort()
    return {
        "agents": len(agents),
        "lost": lost,
        "rss_before_kib": before,
        "rss_connected_kib": connected,
        "rss_idled_kib": after,
        "connected_kib_per_agent": round((connected - before) / len(agents), 1),
        "idled_kib_per_agent": round((after - before) / len(agents), 1),
        "cpu_ms_per_agent_minute": round(spent * 1000 / len(agents) / (seconds / 60), 3),
    }


async def beat(agent: Agent) -> None:
    """Heartbeats, from some moment of the first interval on."""
    await asyncio.sleep(random.random() * HEARTBEAT_SECONDS)
    while True:
        params = {
            "ts": datetime.now(UTC).isoformat(),
            "queue_depth": 0,
            "buffer_bytes": 0,
            "push_lag_seq": 0,
        }
        message = {"jsonrpc": "2.0", "method": "agent.heartbeat", "params": params}
        agent.transport.write(masked(json.dumps(message).encode()))
        await asyncio.sleep(HEARTBEAT_SECONDS)


def resident(pid: int) -> int:
    """VmRSS in KiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def used(pid: int) -> float:
    """Seconds of CPU."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description="Measure what idle agents cost.")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=65.0)
    options = parser.parse_args()
    state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
    server = ServerProcess(state)
    try:
        server.started()
        with server.admin() as admin:
            tokens = [
                str(admin.one("agent.issue", name=f"idle-{n}")["token"])
                for n in range(options.agents)
            ]
        time.sleep(1)
        found = asyncio.run(idle(server, tokens, options.seconds))
    finally:
        server.end()
        shutil.rmtree(state)
    print(json.dumps(found))
    return 0 if found["idled_kib_per_agent"] <= BAR_KIB and not found["lost"] else 1


if __name__ == "__main__":
    sys.exit(main())
