"""Commands and pipes as sources: real processes, their groups, their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as real_reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from cortextx.fleet.agent.sources.custom_settings import ExecSettings, StdinSettings
from cortextx.fleet.agent.sources.exec import ExecSource
from cortextx.fleet.agent.sources.stdin import StdinSource

reactor: Any = real_reactor
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
print("child" if child == 0 else "parent", os.getpid(), flush=True)
time.sleep(60)
"""


AGENT = """
import sys
from twisted.internet import reactor
from twisted.internet.defer import succeed
from cortextx.fleet.agent.sources.custom_settings import ExecSettings
from cortextx.fleet.agent.sources.exec import ExecSource

def put(bodies, checkpoints, can_wait=True):
    for body in bodies:
        print(body.decode(), flush=True)
    return succeed(0)

ExecSource(reactor, "cmd", ExecSettings((sys.executable, "-c", sys.argv[1])), put).start()
reactor.run()
"""
FAMILY = """
import os, time
for escapes in (False, True):
    if os.fork() == 0:
        if escapes:
            os.setsid()
        break
print("pid", os.getpid(), flush=True)
time.sleep(60)
"""


class SourceCase(TestCase):
    timeout = 60

    def setUp(self) -> None:
        self.bodies: list[bytes] = []
        self.held: list[Deferred[int]] | None = None

    def put(self, bodies: list[bytes], checkpoints: Any, can_wait: bool = True) -> Deferred[int]:
        """Keep them, and answer at once, or not before `held` is released."""
        self.assertTrue(can_wait)
        self.bodies += bodies
        if self.held is None:
            return succeed(0)
        self.held.append(Deferred())
        return self.held[-1]

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(b"{" + body) for body in self.bodies]

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not holds():
            self.assertTrue(time.monotonic() < end, f"not within {seconds} s: {what}")
            await deferLater(reactor, 0.02)

    def run_command(self, *command: str, **more: Any) -> ExecSource:
        source = ExecSource(reactor, "cmd", ExecSettings(command, **more), self.put)
        source.start()
        self.addCleanup(source.stop)
        return source


class ExecTests(SourceCase):
    async def test_lines_of_both_streams(self) -> None:
        """Output and errors are entries with the command's name and pid; no shell reads the
        arguments; the environment is small, and nothing is inherited."""
        os.environ["CORTEX_TEST_SECRET"] = "s3cret"
        self.addCleanup(os.environ.pop, "CORTEX_TEST_SECRET")
        script = (
            "import os,sys\n"
            "print('ERROR: out', sys.argv[1])\n"
            "print('complaint', file=sys.stderr)\n"
            "print(sorted(os.environ), os.getsid(0) == os.getpid(), os.getcwd())\n"
            "print(len(os.listdir('/proc/self/fd')), sys.stdin.read() == '')\n"
        )
        source = self.run_command(
            sys.executable, "-c", script, "$HOME `x`; *", environment=(("EXTRA", "1"),),
            restart_secs=60.0,
        )  # fmt: skip
        await self.until(lambda: source.report().state == "waiting", "its end")
        found = {entry["message"]: entry for entry in self.entries}
        self.assertEqual(found["ERROR: out $HOME `x`; *"]["severity"], "err")
        self.assertEqual(found["complaint"]["severity"], "err")
        names = str(sorted(["CORTEXTX_RUN", "EXTRA", "HOME", "LANG", "PATH"]))
        facts = next(m for m in found if m.startswith("["))
        self.assertEqual(facts.replace("'LC_CTYPE', ", ""), f"{names} True /")
        self.assertIn("4 True", found)  # the three, and the listed directory's own
        entry = found["complaint"]
        self.assertEqual(entry["app_name"], os.path.basename(sys.executable))
        self.assertTrue(entry["process_id"].isdecimal())
        self.assertEqual(entry["source"], "custom:cmd")
        report = source.report()
        self.assertEqual((report.why, report.counters["failures"]),
                         ("the command exited with status 0", 0))  # fmt: skip

    async def test_a_failure_is_reported_and_it_runs_again(self) -> None:
        """The exit status is an entry of its own, and the command is started again."""
        source = self.run_command("/bin/sh", "-c", "echo once; exit 3", restart_secs=0.1)
        await self.until(lambda: source.report().counters["starts"] >= 3, "three runs")
        failures = [e for e in self.entries if "exec" in e.get("metadata", {}).get("cortextx", {})]
        self.assertEqual(failures[0]["metadata"]["cortextx"]["exec"]["status"], 3)
        self.assertIn("exited with status 3", failures[0]["message"])
        self.assertEqual(failures[0]["severity"], "warning")

    async def test_the_whole_group_is_killed(self) -> None:
        """A command that ignores SIGTERM and forks is gone, with its children, when time is
        up; the source's stop waits for that."""
        source = self.run_command(sys.executable, "-c", STUBBORN, stop_secs=0.5)
        await self.until(lambda: len(self.bodies) == 2, "both")
        pids = [int(entry["message"].split()[1]) for entry in self.entries]
        began = time.monotonic()
        await source.stop()
        self.assertTrue(0.4 < time.monotonic() - began < 5)
        await self.until(lambda: not any(map(alive, pids)), "their end")

    def test_nothing_of_a_command_outlives_a_killed_agent(self) -> None:
        """kill -9 of the agent ends the command, its group, and who has left that."""
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, FAMILY], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(agent.stdout.close)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        pids = []
        while len(pids) < 3:
            pids.append(int(json.loads("{" + agent.stdout.readline())["message"].split()[1]))
        for pid in pids:
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        agent.kill()
        agent.wait()
        end = time.monotonic() + 10
        while any(map(alive, pids)):
            self.assertLess(time.monotonic(), end, "they live on")
            time.sleep(0.02)

    async def test_nothing_of_a_command_outlives_a_stop(self) -> None:
        """Nor who left its group."""
        source = self.run_command(sys.executable, "-c", FAMILY, stop_secs=5.0)
        await self.until(lambda: len(self.bodies) == 3, "all three")
        pids = [int(entry["message"].split()[1]) for entry in self.entries]
        for pid in pids:
            self.addCleanup(lambda pid=pid: alive(pid) and os.kill(pid, signal.SIGKILL))
        await source.stop()
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    async def test_who_left_the_group_ends_with_the_run(self) -> None:
        """The next run of the same command is left alone."""
        source = self.run_command(
            "/bin/sh", "-c", "setsid sleep 61 >/dev/null 2>&1 & echo $!; sleep 0.3; exit 0",
            restart_secs=0.05,
        )  # fmt: skip
        await self.until(lambda: len(self.bodies) >= 3, "three runs")
        first = [int(entry["message"]) for entry in self.entries][:2]
        await self.until(lambda: not any(map(alive, first)), "their end")
        await source.stop()
        last = [int(entry["message"]) for entry in self.entries]
        await self.until(lambda: not any(map(alive, last)), "the last one's end")
        self.assertEqual(source.report().counters["failures"], 0)

    async def test_a_stopped_source_leaves_no_guard(self) -> None:
        """Nor does one whose command was started several times have several."""
        source = self.run_command("/bin/sh", "-c", "exit 0", restart_secs=0.05)
        await self.until(lambda: source.report().counters["starts"] >= 3, "three runs")
        guard = source._guard._process
        self.assertTrue(alive(guard.pid))
        await source.stop()
        self.assertFalse(alive(guard.pid))

    async def test_what_a_command_leaves_behind_ends_with_it(self) -> None:
        """When the command itself ends, its background children do, too, and a descriptor
        that they held holds up nothing."""
        source = self.run_command("/bin/sh", "-c", "sleep 60 & echo $!; exit 0", restart_secs=60.0)
        await self.until(lambda: source.report().state == "waiting", "its end", 5)
        child = int(self.entries[0]["message"])
        await self.until(lambda: not alive(child), "the child's end")

    async def test_it_waits_for_the_buffer(self) -> None:
        """While the buffer takes nothing the command blocks, memory stays bounded, and
        nothing is lost."""
        self.held = []
        script = "for n in range(60000): print(n, 'x' * 200)"
        source = self.run_command(sys.executable, "-c", script, restart_secs=60.0)
        await self.until(lambda: source._feed.full, "a full feed")
        await deferLater(reactor, 0.5)
        self.assertTrue(source._feed._size < 4 * 2**20)
        self.assertEqual(source.report().state, "running")
        held, self.held = self.held, None
        for put in held:
            put.callback(0)
        await self.until(lambda: source.report().state == "waiting", "its end")
        numbers = [int(entry["message"].split()[0]) for entry in self.entries]
        self.assertEqual(numbers, list(range(60_000)))

    async def test_a_crash(self) -> None:
        """A signal is told by its name."""
        source = self.run_command("/bin/sh", "-c", "kill -SEGV $$", restart_secs=60.0)
        await self.until(lambda: source.report().counters["failures"] == 1, "its end")
        self.assertIn("SIGSEGV", source.report().why or "")
        self.assertEqual(self.entries[-1]["metadata"]["cortextx"]["exec"]["status"],
                         -signal.SIGSEGV)  # fmt: skip


class StdinTests(SourceCase):
    async def test_a_pipe(self) -> None:
        """Lines come through; the writer waits while the source is paused; the end is told,
        and the unfinished last line kept."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        source = StdinSource(reactor, "in", StdinSettings(), self.put, descriptor=reading)
        source.start()
        os.write(writing, b"WARNING: one\ntwo")
        await self.until(lambda: len(self.bodies) == 1, "a line")
        source.pause()
        self.assertEqual(source.report().state, "paused")
        os.write(writing, b" and more")
        await deferLater(reactor, 0.1)
        source.resume()
        os.close(writing)
        await self.until(lambda: len(self.bodies) == 2, "the rest")
        self.assertEqual([e["message"] for e in self.entries], ["WARNING: one", "two and more"])
        self.assertEqual(self.entries[1]["metadata"]["cortextx"], {"partial": True})
        self.assertEqual(source.report().why, "the input has ended")
        await source.stop()
        os.close(reading)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
