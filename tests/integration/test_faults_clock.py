"""Clocks that are set while server and agent run break neither timers, seqs nor cursors (A46)."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests import wire
from tests.integration.faults import SetClock, environment
from tests.integration.harness import Installation
from tests.integration.processes import Connection, ServerProcess

HOUR = 3600
OFTEN = """[agent_config]
max_batch_entries = 1000
flush_interval_ms = 200
heartbeat_interval_secs = 5
log_sources = []
probe_concurrency = 1
"""
STEPS = (HOUR, -HOUR, -40 * 365 * 24 * HOUR, 0)
"""Each from the true time: ahead, back by two hours, to the 1980s, and right again."""


class ServersClock(SynchronousTestCase):
    def setUp(self) -> None:
        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.clock = SetClock(Path(self.state) / "clock")
        self.server = ServerProcess(
            self.state,
            CORTEXTX_SERVER_PRESENCE_FLUSH_SECS="0.1",
            **self.clock.environment,
        )
        self.addCleanup(self.server.end)
        self.server.started()
        connection, self.token = self.server.enrolled()
        self.connection = connection
        self.addCleanup(connection.socket.close)

    def ask(self, op: str, **args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        with self.server.admin() as admin:
            return admin.call(op, **args)

    def test_steps_break_no_session_and_no_order(self) -> None:
        """A session lives through every step; what is pushed is acked, stored once in its order,
        and a cursor from before the step goes on behind it; presence is still written."""
        seq = cursor = 0
        messages: list[str] = []
        for step in STEPS:
            self.clock.set(step)
            began = time.monotonic()
            for _ in range(3):
                answer = self.connection.call(wire.push(seq + 1, seq + 1, 2))
                seq += 2
                self.assertEqual(answer["result"]["up_to_seq"], seq)
            rows, end = self.ask("search.tail", after=cursor, limit=1000)
            cursor = end["cursor"]
            messages += [row["message"] for row in rows]
            self.assertEqual(messages, [f"line {n}" for n in range(1, seq + 1)])
            self.seen_at(time.time() + step)
            self.assertLess(time.monotonic() - began, 5)
        found, _ = self.ask("search", text="line", limit=1000, order="oldest_first")
        self.assertEqual(len(found), seq)
        (host,), _ = self.ask("agent.list")
        self.assertEqual((host["connected"], host["gap_count"]), (True, 0))

    def seen_at(self, about: float) -> None:
        """Wait until the registry has last_seen about this time."""
        expected = time.strftime("%Y-%m-%dT%H", time.gmtime(about))
        end = time.monotonic() + 5
        while True:
            (host,), _ = self.ask("agent.list")
            if (host["last_seen"] or "").startswith(expected):
                return
            self.assertLess(time.monotonic(), end, (host["last_seen"], expected))
            time.sleep(0.05)

    def test_timers_do_not_follow_the_time_of_day(self) -> None:
        """Whichever way the clock is set, a peer has its five seconds for a hello: neither are
        they over at once, nor do they last as long as the step (§3, F3)."""
        silent: list[tuple[Connection, float]] = []
        for step in (HOUR, -HOUR):
            silent.append((self.server.connect(), time.monotonic()))
            self.clock.set(step)
            time.sleep(0.1)
        for connection, since in silent:
            with connection:
                connection.socket.settimeout(8)
                self.assertEqual(connection.close_code(), 4000)
                self.assertTrue(4.0 < time.monotonic() - since < 7.5)

    def test_a_long_lived_token_has_no_end(self) -> None:
        """After a step to the 1980s and to ten years ahead the host's token is as good as
        before, and accepted_seq is what it was."""
        self.connection.call(wire.push(1, 1, 5))
        for step in (-40 * 365 * 24 * HOUR, 10 * 365 * 24 * HOUR, 0):
            self.clock.set(step)
            with self.server.connect() as again:
                self.assertEqual(again.call(wire.hello(self.token))["result"]["accepted_seq"], 5)


class AgentsClock(SynchronousTestCase):
    def test_steps_stop_no_lines(self) -> None:
        """A host whose clock is set forth and back ships its lines without a pause, in their
        order, each once; the server shows how far its clock is off, once it has told."""
        site = Installation(self)
        log = site.root / "logs" / "app.log"
        log.parent.mkdir()
        log.write_text("0\n")
        site.write_server_config(OFTEN)
        site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{log.parent}/*.log"\n',
            agent="allow_sources = []\n",
        )
        site.start_server()
        site.enroll("jumping")
        clock = SetClock(site.root / "clock")
        with environment(clock.environment):
            site.start_agent()
        written = 1

        def stored() -> list[str]:
            return [e["message"] for e in site.tail_all() if e["source"].endswith("app.log")]

        def all_stored() -> bool:
            return len(stored()) == written

        site.wait_until(all_stored, "the first line")
        for step in (*STEPS[:3], -HOUR):
            clock.set(step)
            for _ in range(2):
                with log.open("a") as file:
                    file.write(f"{written}\n")
                written += 1
                site.wait_until(all_stored, f"line {written} after {step}", 5)
        self.assertEqual(stored(), [str(n) for n in range(written)])
        host = site.wait_until(
            lambda: next((row for row in site.hosts() if told_an_hour(row)), None),
            "a heartbeat with the time that was set last",
            20,
        )
        self.assertTrue(host["clock_off"])
        self.assertEqual((host["connected"], host["gap_count"]), (True, 0))

    def test_a46_a_host_that_starts_in_1970(self) -> None:
        """Without a clock of its own a host starts at 1970 and is set right later, here in
        mid-traffic, and once more by an hour back: enrolment, lines and order are as ever,
        the agent's restart in between finds its place, and no gap is seen."""
        site = Installation(self)
        log = site.root / "logs" / "app.log"
        log.parent.mkdir()
        site.write_server_config(OFTEN)
        site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{log}"\n', agent="allow_sources = []\n"
        )
        site.start_server()
        clock = SetClock(site.root / "clock")
        clock.set(60 - time.time())
        written = 0
        with environment(clock.environment):
            site.enroll("no-battery")
            site.start_agent()
            for step in (60 - time.time(), 0, -HOUR, HOUR):
                clock.set(step)
                with log.open("a") as file:
                    file.writelines(f"{written + n}\n" for n in range(50))
                written += 50
                site.wait_until(
                    lambda count=written: len(lines_of(site)) == count, f"lines after {step}", 10
                )
                if step == 0:
                    site.kill_agent()
                    site.start_agent()
        self.assertEqual(lines_of(site), [str(n) for n in range(written)])
        (host,) = site.hosts()
        self.assertEqual((host["connected"], host["gap_count"]), (True, 0))


def lines_of(site: Installation) -> list[str]:
    """What is stored of the log."""
    return [row["message"] for row in site.tail_all() if row["source"].endswith("app.log")]


def told_an_hour(row: dict[str, Any]) -> bool:
    """Whether the server shows the host's clock an hour behind."""
    return abs((row["clock_skew_seconds"] or 0) + HOUR) < 30
