"""Probes: what may be asked, what is shown, and how a registry runs them (S3, F18, F27, F44)."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import tempfile
import time
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError, JsonShapeError
from cortextx.fleet.agent.probes import containers, files, units
from cortextx.fleet.agent.probes.addresses import refusal
from cortextx.fleet.agent.probes.catalogue import (
    DEFAULT_ALLOW,
    PROBES,
    Args,
    TailArgs,
    UnitArgs,
    allowed,
    is_pattern,
    read_args,
)
from cortextx.fleet.agent.probes.disabled import Death, Disabled
from cortextx.fleet.agent.probes.needs import missing
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.redact import SHOWN, redacted
from cortextx.fleet.agent.probes.registry import MAX_QUEUED, ProbeRegistry
from cortextx.fleet.agent.probes.verdicts import ProbeFault, ProbeRefused
from cortextx.fleet.contract import Code

WALL = 1_790_000_000.0


class CatalogueTests(SynchronousTestCase):
    """Names and arguments."""

    def test_s3_what_looks_into_the_network_and_files_is_off_by_default(self) -> None:
        default = set(allowed(DEFAULT_ALLOW))
        self.assertEqual(
            set(PROBES) - default,
            {
                "net.listen", "net.neigh", "net.dns_check", "net.tcp_check", "docker.health",
                "file.tail", "journal.grep",
            },
        )  # fmt: skip

    def test_allowed_probes_are_named_or_matched(self) -> None:
        self.assertEqual(allowed(["net.*", "file.tail"])[-1], "file.tail")
        self.assertEqual(allowed([]), [])
        self.assertFalse(is_pattern("nett.*"))

    def test_f44_an_unknown_argument_is_named(self) -> None:
        fault = self.assertRaises(JsonShapeError, read_args, PROBES["host.info"], {"x": 1})
        self.assertIn("x", str(fault))
        fault = self.assertRaises(JsonShapeError, read_args, PROBES["disk.largest"], {"deep": 1})
        self.assertEqual(fault.field, "$.args.deep")
        self.assertEqual(fault.expected, "an argument of disk.largest, which takes path, limit")

    def test_f44_no_pattern_is_shown(self) -> None:
        """What a text should be is said in words."""
        fault = self.assertRaises(JsonShapeError, read_args, PROBES["file.tail"], {"path": "x"})
        self.assertEqual(fault.expected, "an absolute path")

    def test_f44_arguments_are_an_object(self) -> None:
        self.assertRaises(JsonShapeError, read_args, PROBES["host.info"], [1])
        self.assertEqual(read_args(PROBES["host.info"], None), Args())

    def test_s3_arguments_cannot_be_options_or_lines(self) -> None:
        for name, args in (
            ("systemd.status", {"unit": "--all"}),
            ("systemd.status", {"unit": "a b"}),
            ("systemd.status", {"unit": "ssh\n"}),
            ("file.tail", {"path": "var/log/x"}),
            ("file.tail", {"path": "/var/log/x\x00y"}),
            ("net.tcp_check", {"host": "-x", "port": 1}),
            ("net.tcp_check", {"host": "a", "port": 0}),
            ("net.dns_check", {"name": "a/b"}),
            ("journal.grep", {"pattern": "a\nb"}),
            ("journal.grep", {"pattern": "x", "lines": 10**9}),
            ("disk.largest", {"path": "/", "limit": True}),
        ):
            fault = self.assertRaises(JsonShapeError, read_args, PROBES[name], args)
            self.assertTrue(fault.field.startswith("$.args."), (name, args, fault.field))

    def test_ipv6_addresses_are_hosts(self) -> None:
        for host in ("::1", "fe80::1", "2001:db8::1", "::ffff:192.0.2.1"):
            args = read_args(PROBES["net.tcp_check"], {"host": host, "port": 1})
            self.assertEqual(args.host, host)

    def test_every_probe_has_code(self) -> None:
        for probe in PROBES.values():
            module, _, function = probe.function.partition(":")
            found = __import__(f"cortextx.fleet.agent.probes.{module}", fromlist=[function])
            self.assertTrue(callable(getattr(found, function)), probe.name)


class RedactTests(SynchronousTestCase):
    """Command lines show no secret that can be told by its form (S3)."""

    def test_secrets_are_not_shown(self) -> None:
        secret = "hunter2secret"
        for words in (
            ["app", f"--password={secret}"],
            ["app", "--password", secret],
            ["app", f"DB_PASSWORD={secret}"],
            ["app", f"--db-url=postgres://me:{secret}@db/x"],
            ["curl", "-H", f"Authorization: Bearer {secret}"],
            ["/usr/bin/mysql", f"-p{secret}"],
            ["curl", "-u", f"me:{secret}", "https://h/"],
            ["sshpass", "-p", secret, "ssh", "h"],
            ["app", "--api-key", secret],
            ["app", f"--token: '{secret}'"],
        ):
            line = redacted(words)
            self.assertNotIn(secret, line)
            self.assertIn(SHOWN, line)

    def test_long_random_words_are_not_shown(self) -> None:
        self.assertEqual(redacted(["x", "A1b2" * 10]), f"x {SHOWN}")

    def test_plain_commands_stay(self) -> None:
        words = ["/usr/sbin/nginx", "-g", "daemon off;", "-c", "/etc/nginx/nginx.conf"]
        self.assertEqual(redacted(words), " ".join(words))

    def test_control_characters_are_not_shown(self) -> None:
        self.assertEqual(redacted(["a\x1b[31m", "b"]), "a?[31m b")


class AddressTests(SynchronousTestCase):
    """S3: link-local and metadata addresses are refused, in every way they can be written."""

    def test_s3_refused(self) -> None:
        for address in (
            "169.254.169.254", "169.254.1.1", "fe80::1%eth0", "fd00:ec2::254", "100.100.100.200",
            "::169.254.169.254",
            "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "0.0.0.0", "::",
            "224.0.0.1", "255.255.255.255", "fd20:ce::254", "64:ff9b:1::a9fe:a9fe",
        ):  # fmt: skip
            self.assertIsNotNone(refusal(address), address)

    def test_others_may_be_tried(self) -> None:
        for address in ("127.0.0.1", "::1", "192.0.2.1", "10.0.0.1", "2001:db8::1"):
            self.assertIsNone(refusal(address), address)


class DisabledTests(SynchronousTestCase):
    """A61: a probe whose process died stays off until it is reset by hand."""

    def setUp(self) -> None:
        self.path = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "probes.json")

    def test_a61_it_is_kept_and_reset(self) -> None:
        Disabled(self.path).died("disk.usage", Death(at="2026-01-01T00:00:00Z", why="SIGSEGV"))
        again = Disabled(self.path)
        self.assertEqual(again.deaths["disk.usage"].why, "SIGSEGV")
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        again.reset("disk.usage")
        self.assertEqual(Disabled(self.path).deaths, {})

    def test_reset_names_what_is_disabled(self) -> None:
        fault = self.assertRaises(ConfigError, Disabled(self.path).reset, "disk.usage")
        self.assertIn("none", str(fault))

    def test_a_ruined_file_is_said_and_counts_as_empty(self) -> None:
        with open(self.path, "wb") as file:
            file.write(b"\xff{")
        found = Disabled(self.path)
        self.assertEqual(found.deaths, {})
        self.assertIn(self.path, found.note or "")


class Child:
    """A child process that a test plays."""

    pid = 2**22 + 12345

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.given = b""

    def write(self, data: bytes) -> None:
        self.given += data

    def closeStdin(self) -> None:
        pass

    def says(self, data: bytes) -> None:
        self.protocol.childDataReceived(1, data)

    def ends(self, code: int | None = 0, signal: int | None = None) -> None:
        status = ProcessDone(0) if code == 0 else ProcessTerminated(code, signal)
        self.protocol.processExited(Failure(status))
        self.protocol.processEnded(Failure(status))


class Spawning(Clock):
    """A Clock that pretends to start processes."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[Child] = []
        self.commands: list[tuple[list[str], dict[str, str]]] = []

    def spawnProcess(self, protocol: Any, executable: str, args: list[str], env: Any, **kw: Any):
        child = Child(protocol)
        self.children.append(child)
        self.commands.append((args, env))
        protocol.makeConnection(child)
        return child


class RegistryTests(SynchronousTestCase):
    """Running them."""

    def setUp(self) -> None:
        self.clock = Spawning()
        self.path = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "probes.json")
        self.registry = self.make()

    def make(self, *patterns: str) -> ProbeRegistry:
        return ProbeRegistry(
            self.clock, patterns or DEFAULT_ALLOW, self.path, lambda: WALL, concurrency=2
        )

    def refused(self, work: Deferred[Any]) -> ProbeRefused:
        return self.failureResultOf(work, ProbeRefused).value

    def test_an_answer_comes_back_as_it_is(self) -> None:
        work = self.registry.run("host.info", {}, 5.0)
        child = self.clock.children[0]
        order = msgspec.json.decode(child.given)
        self.assertEqual((order["probe"], order["args"], order["seconds"]), ("host.info", {}, 5.0))
        self.clock.advance(0.25)
        child.says(b'{"output":{"a":[1]}}\n')
        child.ends()
        result = self.successResultOf(work)
        self.assertEqual((result.output, result.duration_ms), (b'{"a":[1]}', 250))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_f18_what_is_not_allowed_is_unavailable_and_not_advertised(self) -> None:
        fault = self.refused(self.registry.run("net.listen", {}, 5.0))
        self.assertEqual(fault.code, Code.PROBE_UNAVAILABLE)
        self.assertNotIn("net.listen", self.registry.supported())
        self.assertEqual(self.clock.children, [])
        self.assertIn("net.listen", self.make("net.*").supported())

    def test_what_the_host_lacks_is_not_advertised(self) -> None:
        self.patch(os, "environ", {**os.environ, "PATH": "/nowhere"})
        registry = self.make("*")
        self.assertNotIn("journal.grep", registry.supported())
        why = {state.name: state.why for state in registry.states()}
        self.assertIn("journalctl", why["journal.grep"] or "")

    def test_f44_a_bad_argument_is_invalid_params_with_its_name(self) -> None:
        fault = self.refused(self.registry.run("mem.top", {"limit": 0}, 5.0))
        self.assertEqual((fault.code, fault.data["field"]), (Code.INVALID_PARAMS, "$.args.limit"))

    def test_f44_beyond_the_concurrency_they_wait_within_their_time(self) -> None:
        works = [self.registry.run("host.info", {}, 1.0 + at) for at in range(3)]
        self.assertEqual(len(self.clock.children), 2)
        self.clock.advance(0.5)
        self.clock.children[0].says(b'{"output":1}')
        self.clock.children[0].ends()
        self.successResultOf(works[0])
        third = msgspec.json.decode(self.clock.children[2].given)
        self.assertEqual(third["seconds"], 2.5)
        self.registry.run("host.info", {}, 9.0).addErrback(lambda _: None)
        waiting = self.registry.run("host.info", {}, 0.1)
        self.clock.advance(0.2)
        fault = self.refused(waiting)
        self.assertEqual(fault.code, Code.PROBE_TIMEOUT)
        self.assertEqual(len(self.clock.children), 3)
        works[1].addErrback(lambda _: None)

    def test_more_than_may_wait_are_refused(self) -> None:
        works = [self.registry.run("host.info", {}, 5.0) for _ in range(MAX_QUEUED + 3)]
        self.assertEqual(self.refused(works[-1]).code, Code.PROBE_EXECUTION_FAILED)
        for work in works[:-1]:
            work.addErrback(lambda _: None)
        self.registry.stop()

    def test_f27_one_that_is_too_slow_is_killed_and_not_disabled(self) -> None:
        killed = self.killed()
        work = self.registry.run("disk.usage", {}, 2.0)
        self.clock.advance(2.0)
        fault = self.refused(work)
        self.assertEqual(fault.code, Code.PROBE_TIMEOUT)
        self.assertEqual(fault.data, {"probe": "disk.usage", "timeout_ms": 2000})
        self.assertEqual(killed, [Child.pid])
        self.assertEqual(self.registry.running, 1)
        self.clock.children[0].ends(None, 9)
        self.assertEqual(self.registry.running, 0)
        self.assertIn("disk.usage", self.registry.supported())

    def test_a61_one_that_died_is_disabled_over_a_restart_until_it_is_reset(self) -> None:
        work = self.registry.run("disk.usage", {}, 2.0)
        self.clock.children[0].ends(None, 11)
        fault = self.refused(work)
        self.assertEqual(fault.code, Code.PROBE_EXECUTION_FAILED)
        self.assertIn("SIGSEGV", fault.data["stderr"])
        registry = self.make()
        self.assertNotIn("disk.usage", registry.supported())
        refused = self.refused(registry.run("disk.usage", {}, 2.0))
        self.assertEqual(refused.code, Code.PROBE_UNAVAILABLE)
        self.assertIn("SIGSEGV", str(refused))
        registry.reset("disk.usage")
        self.assertIn("disk.usage", registry.supported())

    def test_a_fault_of_the_probe_is_told_and_disables_nothing(self) -> None:
        work = self.registry.run("disk.usage", {"mount": "/x"}, 2.0)
        self.clock.children[0].says(b'{"fault":"nothing is mounted at /x"}')
        self.clock.children[0].ends()
        fault = self.refused(work)
        self.assertEqual(fault.code, Code.PROBE_EXECUTION_FAILED)
        self.assertEqual(fault.data["stderr"], "nothing is mounted at /x")
        self.assertEqual(fault.data["exit_code"], 0)
        self.assertIn("disk.usage", self.registry.supported())

    def test_an_answer_that_is_too_large_ends_the_process(self) -> None:
        killed = self.killed()
        work = self.registry.run("disk.usage", {}, 2.0)
        self.clock.children[0].says(b"x" * 1_000_000)
        self.assertEqual(killed, [Child.pid])
        self.clock.children[0].ends(None, 9)
        self.assertEqual(self.refused(work).code, Code.PROBE_EXECUTION_FAILED)
        self.assertIn("disk.usage", self.registry.supported())

    def test_cancelling_ends_the_process_and_frees_its_slot_when_it_is_gone(self) -> None:
        killed = self.killed()
        work = self.registry.run("disk.usage", {}, 2.0)
        work.cancel()
        self.failureResultOf(work, CancelledError)
        self.assertEqual((killed, self.registry.running), ([Child.pid], 1))
        self.clock.children[0].ends(None, 9)
        self.assertEqual(self.registry.running, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stopping_waits_for_what_runs(self) -> None:
        self.killed()
        work = self.registry.run("disk.usage", {}, 2.0)
        done = self.registry.stop()
        self.refused(work)
        self.assertNoResult(done)
        self.clock.children[0].ends(None, 9)
        self.successResultOf(done)

    def test_the_child_sees_nothing_of_the_agents_settings(self) -> None:
        self.patch(os, "environ", {**os.environ, "CORTEXTX_AGENT_X": "secret"})
        self.registry.run("host.info", {}, 2.0).addErrback(lambda _: None)
        arguments, environ = self.clock.commands[0]
        self.assertNotIn("secret", str(environ) + str(arguments))

    def killed(self) -> list[int]:
        """Record kills instead of doing them."""
        pids: list[int] = []
        self.patch(os, "kill", lambda pid, number: pids.append(pid))
        self.patch(os, "killpg", lambda pid, number: None)
        return pids


def place(*roots: str) -> Place:
    return Place(2**40, roots, (), 700_000)


class FilesTests(SynchronousTestCase):
    """file.tail reads only what a source could (S2)."""

    def setUp(self) -> None:
        self.root = os.path.realpath(tempfile.mkdtemp(dir=os.getcwd()))
        self.log = os.path.join(self.root, "a.log")

    def write(self, data: bytes) -> None:
        with open(self.log, "wb") as file:
            file.write(data)

    def tail(self, lines: int) -> list[str]:
        return files.tail(TailArgs(path=self.log, lines=lines), place(self.root))["lines"]

    def test_the_last_lines_in_their_order(self) -> None:
        self.write(b"".join(b"line %d\n" % at for at in range(50_000)))
        self.assertEqual(self.tail(2), ["line 49998", "line 49999"])
        self.assertEqual(len(self.tail(2000)), 2000)

    def test_short_files_and_unfinished_lines(self) -> None:
        for data, lines in ((b"", []), (b"a", ["a"]), (b"a\nb", ["a", "b"]), (b"\n", [""])):
            self.write(data)
            self.assertEqual(self.tail(10), lines)

    def test_a_long_line_is_cut(self) -> None:
        self.write(b"x" * 100_000 + b"\nend\n")
        self.assertEqual([len(line) for line in self.tail(5)], [8193, 3])

    def test_s2_nothing_outside_and_no_link_out(self) -> None:
        os.symlink("/etc/passwd", self.log)
        fault = self.assertRaises(ProbeFault, self.tail, 1)
        self.assertIn("outside", str(fault))


class UnitsTests(SynchronousTestCase):
    """What systemctl says, read."""

    def answer(self, code: int, out: bytes) -> Place:
        self.patch(Place, "command", lambda *words: (code, out, "no bus"))
        return place()

    def test_failed_units(self) -> None:
        out = b'[{"unit":"a.service","load":"loaded","active":"failed","sub":"failed"}]'
        found = units.failed(Args(), self.answer(0, out))
        self.assertEqual(found["failed"][0]["unit"], "a.service")
        self.assertEqual(units.failed(Args(), self.answer(0, b""))["failed"], [])

    def test_a_unit(self) -> None:
        out = b"Id=a.service\nLoadState=loaded\nMainPID=12\nMemoryCurrent=[not set]\nX=1\n"
        found = units.status(UnitArgs(unit="a.service"), self.answer(0, out))
        self.assertEqual(
            found,
            {"id": "a.service", "load_state": "loaded", "main_pid": 12, "memory_current": None},
        )

    def test_an_unknown_unit_and_a_failing_systemctl_are_faults(self) -> None:
        gone = self.answer(0, b"Id=a\nLoadState=not-found\n")
        self.assertRaises(ProbeFault, units.status, UnitArgs(unit="a"), gone)
        self.assertRaises(ProbeFault, units.failed, Args(), self.answer(1, b""))


class ContainerTests(SynchronousTestCase):
    """What the Engine says, read."""

    def test_s7_any_configured_socket_will_do(self) -> None:
        """The probe is offered where one of the sockets is there, and asks that one."""
        at = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, at)
        path = os.path.join(at, "podman.sock")
        probe = PROBES["docker.health"]
        usual = dataclasses.replace(probe, needs=("socket:/no/such",))
        self.assertIn(f"{path} or /no/such", missing(usual, [path]) or "")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            self.assertIsNone(missing(usual, ["/no/other", path]))
            place = Place(time.monotonic() + 5, (), (), 1000, ("/no/other", path))
            error = self.assertRaises(OSError, containers.health, Args(), place)
            self.assertIsInstance(error, ConnectionRefusedError)

    def test_health_is_in_the_status(self) -> None:
        for status, health in (
            ("Up 2 hours (healthy)", "healthy"),
            ("Up 2 hours (unhealthy)", "unhealthy"),
            ("Up 3 seconds (health: starting)", "starting"),
            ("Exited (0) 2 days ago", None),
        ):
            row = {"Id": "f" * 64, "Names": ["/web"], "Status": status, "State": "x"}
            found = containers._container(row)
            self.assertEqual((found["health"], found["name"]), (health, "web"))
