"""Real probes in real child processes: every one that this machine can run (A61, F27, S3)."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import textwrap
import time
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from cortextx.fleet.agent.probes import registry
from cortextx.fleet.agent.probes.registry import ProbeRegistry
from cortextx.fleet.agent.probes.verdicts import ProbeRefused
from cortextx.fleet.contract import Code


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def listed(folder: str) -> list[str]:
    return os.listdir(folder)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class ProbeTests(TestCase):
    """One registry each."""

    timeout = 60

    def setUp(self) -> None:
        self.folder = os.path.realpath(tempfile.mkdtemp(dir=os.getcwd()))
        self.registry = ProbeRegistry(
            reactor, ["*"], os.path.join(self.folder, "probes.json"), time.time,
            roots=[self.folder],
        )  # fmt: skip
        self.addCleanup(self.registry.stop)

    async def ask(self, probe: str, /, seconds: float = 20.0, **args: Any) -> Any:
        return json.loads((await self.registry.run(probe, args, seconds)).output)

    async def refused(self, probe: str, /, seconds: float = 20.0, **args: Any) -> ProbeRefused:
        try:
            await self.registry.run(probe, args, seconds)
        except ProbeRefused as fault:
            return fault
        raise AssertionError("it answered")

    def test_what_every_linux_can_answer(self) -> Deferred[None]:
        async def check() -> None:
            info = await self.ask("host.info")
            self.assertEqual(info["hostname"], socket.gethostname())
            mounts = await self.ask("disk.usage")
            self.assertIn("/", [row["mount"] for row in mounts["file_systems"]])
            pressure = await self.ask("mem.pressure")
            self.assertGreater(pressure["memory"]["total_bytes"], 0)
            top = await self.ask("mem.top", limit=3)
            self.assertEqual(len(top["processes"]), 3)
            busy = await self.ask("cpu.top", interval_ms=200)
            self.assertGreaterEqual(busy["interval_ms"], 200)
            self.assertIn("synchronized", await self.ask("time.sync"))
            self.assertIn("neighbours", await self.ask("net.neigh"))

        return Deferred.fromCoroutine(check())

    def test_disk_largest_counts_what_is_below_and_follows_no_link(self) -> Deferred[None]:
        async def check() -> None:
            inner = os.path.join(self.folder, "inner")
            os.mkdir(inner)
            write(os.path.join(inner, "big"), b"x" * 1_000_000)
            os.link(os.path.join(inner, "big"), os.path.join(self.folder, "again"))
            os.symlink("/usr", os.path.join(self.folder, "usr"))
            found = await self.ask("disk.largest", path=self.folder, limit=5)
            self.assertTrue(found["complete"])
            self.assertTrue(1_000_000 <= found["total_bytes"] < 1_100_000)
            sizes = [row["bytes"] // 100_000 for row in found["largest_files"]]
            self.assertEqual(sizes.count(10), 1, "one file under two names counts once")

        return Deferred.fromCoroutine(check())

    def test_net_probes_on_loopback_and_refused_addresses(self) -> Deferred[None]:
        async def check() -> None:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
                listening = await self.ask("net.listen")
                self.assertIn(port, [row["port"] for row in listening["sockets"]])
                found = await self.ask("net.tcp_check", host="localhost", port=port)
                self.assertEqual((found["connected"], found["fault"]), (True, None))
            closed = await self.ask("net.tcp_check", host="127.0.0.1", port=port)
            self.assertFalse(closed["connected"])
            self.assertIn("ECONNREFUSED", closed["fault"])
            fault = await self.refused("net.tcp_check", host="169.254.169.254", port=80)
            self.assertIn("metadata", fault.data["stderr"])
            names = await self.ask("net.dns_check", name="localhost")
            self.assertIn("127.0.0.1", names["addresses"])
            unknown = await self.ask("net.dns_check", name="no.such.invalid")
            self.assertFalse(unknown["resolved"])

        return Deferred.fromCoroutine(check())

    def test_file_tail_within_its_roots(self) -> Deferred[None]:
        async def check() -> None:
            path = os.path.join(self.folder, "a.log")
            write(path, b"one\ntwo\n\xff\xfe\n")
            found = await self.ask("file.tail", path=path, lines=2)
            self.assertEqual(found["lines"], ["two", "��"])
            fault = await self.refused("file.tail", path="/etc/passwd")
            self.assertIn("outside", fault.data["stderr"])

        return Deferred.fromCoroutine(check())

    def test_systemd_and_journal_through_programs_on_path(self) -> Deferred[None]:
        """Recorded answers: the machine that runs the tests need not be run by systemd."""
        tools = self.tools(
            systemctl="""
            case "$1" in
            list-units) echo '[{"unit":"x.service","active":"failed"}]';;
            show) [ "$5" = "--" ] || exit 3; echo "Id=$6"; echo LoadState=loaded; echo NRestarts=2;;
            esac
            """,
            journalctl="""
            echo '{"__REALTIME_TIMESTAMP":"2","MESSAGE":[104,105],"PRIORITY":"3"}'
            echo '{"__REALTIME_TIMESTAMP":"1","MESSAGE":"first","_PID":"7"}'
            """,
        )

        booted = os.path.isdir("/run/systemd/system")

        async def check() -> None:
            self.patch(os, "environ", {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
            found = await self.ask("journal.grep", pattern="--all", unit="x.service")
            self.assertEqual([row["message"] for row in found["matches"]], ["first", "hi"])
            if not booted:
                fault = await self.refused("systemd.failed")
                self.assertEqual(fault.code, Code.PROBE_UNAVAILABLE)
                return
            failed = await self.ask("systemd.failed")
            self.assertEqual(failed["failed"][0]["unit"], "x.service")
            status = await self.ask("systemd.status", unit="x.service")
            self.assertEqual((status["id"], status["n_restarts"]), ("x.service", 2))

        return Deferred.fromCoroutine(check())

    def test_f27_a_probe_that_hangs_is_ended_with_all_that_it_started(self) -> Deferred[None]:
        tools = self.tools(journalctl=f"mkdir {self.folder}/pid-$$; exec sleep 60")

        async def check() -> None:
            self.patch(os, "environ", {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
            fault = await self.refused("journal.grep", 2.0, pattern="x")
            self.assertIn(fault.code, (Code.PROBE_TIMEOUT, Code.PROBE_EXECUTION_FAILED))
            await self.registry.stop()
            (pid,) = (int(name[4:]) for name in listed(self.folder) if name.startswith("pid-"))
            self.assertFalse(alive(pid))
            self.assertIn("journal.grep", self.registry.supported())

        return Deferred.fromCoroutine(check())

    def test_a61_one_that_takes_too_much_memory_is_bounded(self) -> Deferred[None]:
        """Its own limit stops it; the agent goes on, and says what was the matter."""
        self.patch(registry, "MEMORY_BYTES", 20_000_000)

        async def check() -> None:
            fault = await self.refused("mem.top")
            self.assertEqual(fault.code, Code.PROBE_EXECUTION_FAILED)
            self.assertEqual(self.registry.running, 0)

        return Deferred.fromCoroutine(check())

    def tools(self, **scripts: str) -> str:
        """A folder of shell scripts that stand for programs."""
        folder = os.path.join(self.folder, "bin")
        os.mkdir(folder)
        for name, text in scripts.items():
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write("#!/bin/sh\n" + textwrap.dedent(text))
            os.chmod(path, stat.S_IRWXU)
        return folder
