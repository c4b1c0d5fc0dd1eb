"""How an agent starts on a backlog of some size: its buffer filled beforehand (A41)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from unittest import TestCase

from cortextx.fleet.agent.buffer import MIB, Buffer, BufferLimits
from cortextx.fleet.agent.disk import RealDisk
from cortextx.fleet.agent.entries import encode_body
from tests.integration.agent_faults import accepted, agent_pid, memory, status
from tests.integration.harness import AGENT, Installation

PUT_ENTRIES = 2000
FROM = 1_772_000_000_000_000


@dataclass(frozen=True)
class Start:
    """What a start on a backlog took: seconds until it answered `status`, and until the
    server had the first of it; entries a second from then on; the resident memory (MB)
    before the server was there, the most while it sent, and at rest after that."""

    backlog_mb: float
    ready_s: float
    first_s: float
    per_s: float
    before_mb: float
    peak_mb: float
    after_mb: float


def fill(directory: str, size: int) -> int:
    """Put entries of so many bytes into a new buffer; answers how many."""
    limits = BufferLimits(soft=2 * size + 64 * MIB, hard=3 * size + 128 * MIB)
    buffer = Buffer.open(RealDisk(directory), limits)
    bodies = [
        encode_body(
            ts=FROM + n,
            severity="info",
            message=f"n={n} accepted connection from 10.1.{n % 256}.{n % 199} port {n % 65521}"
            f" for user{n % 5000} request {n * 2654435761 % 2**48:012x} took 0.{n:06} s",
            source="file:/var/log/app.log",
            app_name="sshd",
            process_id=str(n % 32768),
        )
        for n in range(PUT_ENTRIES)
    ]
    number = 0
    while buffer.size < size:
        for _ in range(8):
            buffer.append(bodies, {})
            number += PUT_ENTRIES
        buffer.sync()
    buffer.close()
    return number


def start_on(test: TestCase, size: int, seconds: float, settle: float = 0.0) -> Start:
    """Start an agent on a backlog of `size` bytes and let it send for so long at most.

    `settle` is how long after that its memory is measured again.
    """
    site = Installation(test)
    site.write_server_config("[server]\nquota_entries_per_sec = 0\n")
    mib = 2 * size // MIB + 64
    site.write_agent_config(
        agent=f"allow_sources = []\nbuffer_soft_mib = {mib}\nbuffer_hard_mib = {2 * mib}\n"
    )
    site.start_server()
    site.enroll("backlog")
    count = fill(str(site.state / "agent" / "buffer"), size)
    site.kill_server()
    began = time.monotonic()
    site.start_agent()
    site.wait_until(lambda: status(site)["backlog_entries"] == count, "the agent's status")
    ready = time.monotonic() - began
    pid = agent_pid(site)
    before = memory(pid)
    site.start_server()
    began = time.monotonic()
    site.cortextx("agent", "retry")
    site.wait_until(lambda: accepted(site) > 0, "the first entries")
    first, sent = time.monotonic(), accepted(site)
    end = first + seconds
    site.wait_until(lambda: accepted(site) >= count or time.monotonic() > end, "", seconds + 5)
    took, done = time.monotonic() - first, accepted(site)
    peak = memory(pid, "VmHWM")
    site.kill_server()
    time.sleep(settle)
    after = memory(pid)
    site.stop(AGENT)
    return Start(
        size / 1e6, ready, first - began, (done - sent) / max(took, 1e-3), before, peak, after
    )
