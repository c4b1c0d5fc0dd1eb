"""An agent whose way to the server is thin, dead or silent (F36, A43).

The times are a CI's; CORTEXTX_SLOW_SECONDS asks for a longer look at a thin wire.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.agent_faults import (
    ThinWire,
    accepted,
    agent_pid,
    black_hole,
    cpu_seconds,
    file_source,
    memory,
    messages,
    never_answers,
    numbers,
    status,
    write_lines,
)
from tests.integration.harness import Installation

SLOW_SECONDS = float(os.environ.get("CORTEXTX_SLOW_SECONDS", "20"))
SLOW_BYTES = 5_000
MOST_MB = 75.0
"""Memory that an agent may have while it works; at rest it is less."""


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.site = Installation(self)
        self.logs = self.site.root / "logs"
        self.logs.mkdir()
        self.log = self.logs / "app.log"
        self.log.touch()
        self.site.write_agent_config(
            file_source(self.log), agent="allow_sources = []\nallow_insecure = true\n"
        )


class ThinWireTests(Case):
    def test_a_wire_of_five_kilobytes_a_second(self) -> None:
        """F36: lines keep arriving, the server is never taken for dead or the agent for gone,
        and a push shrinks to what the wire carries in a few seconds."""
        wire = ThinWire(self, SLOW_BYTES)
        self.site.write_server_config("[server]\nallow_insecure = true\n")
        self.site.start_server(interface=wire.address)
        self.site.enroll("thin")
        write_lines(self.log, 0, 20_000, 100)
        self.site.start_agent(prefix=wire.prefix)
        self.site.wait_until(lambda: self.site.hosts()[0]["connected"], "the agent")
        since = self.site.hosts()[0]["connected_since"]
        began = time.monotonic()
        seen = [0]
        longest, moved = 0.0, began
        while time.monotonic() < began + SLOW_SECONDS:
            now = accepted(self.site)
            if now != seen[-1]:
                seen.append(now)
                longest, moved = max(longest, time.monotonic() - moved), time.monotonic()
            time.sleep(0.1)
        (host,) = self.site.hosts()
        self.assertEqual((host["connected"], host["connected_since"]), (True, since))
        self.assertGreaterEqual(len(seen), 1 + SLOW_SECONDS // 6, seen)
        self.assertLess(max(longest, time.monotonic() - moved), 10.0, seen)
        stored = numbers(messages(self.site, "app.log"))
        self.assertEqual(stored, list(range(len(stored))))
        # A line of 100 characters is some 200 bytes on the wire: most of it was used.
        self.assertGreater(len(stored) * 200, SLOW_BYTES * SLOW_SECONDS / 3)
        self.assertLess(memory(agent_pid(self.site)), MOST_MB)


class DeadServerTests(Case):
    """A server that was there and is not: the port is closed, swallows, or never answers."""

    def look(self, fault: Callable[[int], Any]) -> None:
        address = self.site.start_server()
        port = int(address.rpartition(":")[2])
        self.site.enroll("lonely")
        self.site.start_agent()
        self.site.wait_until(lambda: self.site.hosts()[0]["connected"], "the agent")
        self.site.kill_server()
        with fault(port):
            write_lines(self.log, 0, 4_000, 5000)
            self.site.wait_until(lambda: status(self.site)["last_seq"] >= 4_000, "the buffer")
            self.assertFalse(status(self.site)["connected"])
            pid = agent_pid(self.site)
            time.sleep(1.0)
            before = cpu_seconds(pid)
            time.sleep(3.0)
            # An agent that waits does next to nothing, whatever it waits for.
            self.assertLess(cpu_seconds(pid) - before, 0.45)
            self.assertLess(memory(pid), MOST_MB)
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.site.wait_until(lambda: accepted(self.site) >= 4_000, "all lines", 60)
        self.assertEqual(numbers(messages(self.site, "app.log")), list(range(4_000)))
        (host,) = self.site.hosts()
        self.assertEqual((host["gap_count"], host["lost_entries"]), (0, 0))

    def test_a_closed_port(self) -> None:
        """Refused connections cost nothing, and all arrives once the server is back."""
        self.look(lambda port: contextlib.nullcontext())

    def test_a_black_hole(self) -> None:
        """No answer to a connection's first packet: the same."""
        self.look(black_hole)

    def test_a_server_that_accepts_and_never_answers(self) -> None:
        """A connection that leads nowhere is given up: the same."""
        self.look(never_answers)


class StoppedServerTests(Case):
    def test_a43_input_goes_on_without_a_server(self) -> None:
        """More comes than the buffer takes: the source rests, its backlog stays in its file,
        memory stays flat; later all arrives, once, without a gap."""
        self.site.write_agent_config(
            file_source(self.log),
            agent="allow_sources = []\nbuffer_soft_mib = 32\nbuffer_hard_mib = 64\n",
        )
        self.site.start_server()
        self.site.enroll("stopped")
        self.site.start_agent()
        self.site.wait_until(lambda: self.site.hosts()[0]["connected"], "the agent")
        self.site.kill_server()
        most = 0.0
        for part in range(12):
            write_lines(self.log, part * 500, 500, 10_000)
            time.sleep(0.1)
            most = max(most, memory(agent_pid(self.site)))
        self.site.wait_until(
            lambda: status(self.site)["sources_paused_by"] == ["buffer"], "the source to rest"
        )
        found = status(self.site)
        self.assertLess(found["buffer_bytes"], 40 * 2**20)
        self.assertEqual(found["evicted_entries"], 0)
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.site.wait_until(lambda: accepted(self.site) >= 6_000, "all lines", 60)
        most = max(most, memory(agent_pid(self.site), "VmHWM"))
        self.assertEqual(numbers(messages(self.site, "app.log")), list(range(6_000)))
        self.assertEqual(self.site.hosts()[0]["gap_count"], 0)
        self.assertLess(most, MOST_MB + 10)

    def test_a43_a_noisy_source_does_not_starve_a_quiet_one(self) -> None:
        """A line of a quiet file is stored long before what a noisy one has to say."""
        noisy, quiet = self.logs / "noisy.log", self.logs / "quiet.log"
        quiet.touch()
        count = 10_000
        write_lines(noisy, 0, count, 4000)
        self.site.write_agent_config(
            file_source(noisy, "noisy") + file_source(quiet, "quiet"),
            agent="allow_sources = []\n",
        )
        self.site.start_server()
        self.site.enroll("noisy")
        self.site.start_agent()
        self.site.wait_until(lambda: status(self.site)["last_seq"] > 500, "the noise")
        write_lines(quiet, 0, 1, 50)
        self.site.wait_until(lambda: accepted(self.site) > count, "all lines", 60)
        order = [row["source"].rpartition("/")[2] for row in self.site.tail_all()]
        self.assertEqual((order.count("noisy.log"), order.count("quiet.log")), (count, 1))
        self.assertLess(order.index("quiet.log"), count * 0.7)
