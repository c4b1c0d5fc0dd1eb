"""The slave as a process: starting, ending, who comes in, and what it keeps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import time
from typing import Any
from unittest import SkipTest

from tests.integration.slave_harness import (
    SLAVE,
    Line,
    SlaveCase,
    Stream,
    an_input,
    ask,
    frame,
    kind,
    value,
)

NOBODY = 65534
ENDED = (0, -signal.SIGTERM)
"""How twistd ends when it is told to: some releases raise the signal again, once all is done."""


class Starting(SlaveCase):
    def test_without_configuration_there_is_echo(self) -> None:
        """A private socket below the state directory, its address file, and an answer."""
        path = self.house.start()
        self.assertEqual(path, self.house.socket)
        modes = [stat.S_IMODE(os.stat(at).st_mode) for at in (path, os.path.dirname(path))]
        self.assertEqual(modes, [0o600, 0o700])
        lines = ask(path, {"op": "send", "input": "hello there"})
        self.assertEqual(lines[-2]["content"], "hello there")
        self.assertIn(self.house.stop(SLAVE), ENDED)
        self.assertFalse(os.path.exists(path))
        self.assertFalse((self.house.state / "run" / f"{SLAVE}.address").exists())

    def test_a_second_slave_is_told_who_has_the_state(self) -> None:
        """Two on one state root: the second ends at once and names the first (B28)."""
        path = self.house.start()
        begun = time.monotonic()
        second = self.twistd("--state-dir", str(self.house.state))
        self.assertLess(time.monotonic() - begun, 10)
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"process {self.house.running[SLAVE].pid} runs cortex-slave", second.stdout)
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])

    def test_a_socket_that_another_has(self) -> None:
        """Another state, but the same socket: refused, and the first goes on."""
        path = self.house.start()
        other = self.twistd("--state-dir", str(self.house.root / "t"), "--socket", path)
        self.assertEqual(other.returncode, 1)
        self.assertIn("another process answers there", other.stdout)
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])

    def test_a_dead_slaves_socket_is_no_obstacle(self) -> None:
        """After kill -9 the next one starts on the same path."""
        self.house.start()
        self.house.kill()
        path = self.house.start()
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])

    def test_a_path_too_long(self) -> None:
        """It is told before anything is made."""
        long = str(self.house.root / ("x" * 120))
        ended = self.twistd("--state-dir", str(self.house.state), "--socket", long)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("at most 107 bytes", ended.stdout)

    def test_check_and_help(self) -> None:
        """--check tells of the first fault with exit code 2; --help lists the options."""
        self.house.write_config('[agents.a]\nruntime = "none"\n')
        wrong = self.twistd("--state-dir", str(self.house.state), "--check")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn("agents", wrong.stderr)
        self.house.write_config('[agents.a]\nruntime = "echo"\n')
        right = self.twistd("--state-dir", str(self.house.state), "--check")
        self.assertEqual((right.returncode, right.stderr), (0, ""))
        self.assertIn("--socket=", self.twistd("--help").stdout)


class Ending(SlaveCase):
    def test_sigterm_ends_runs_as_interrupted_and_tells_their_clients(self) -> None:
        """The run and the one behind it; the process ends, and nothing is left."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 30\n')
        path = self.house.start()
        first, second, stream = Line(path), Line(path), Stream(path)
        first.send(an_input("r1", "one"))
        first.until(lambda each: value(each)["type"] == "started")
        second.send(an_input("r2", "two"))
        second.until(lambda each: value(each)["type"] == "accepted")
        stream.attach(after=0, mode="observe")
        begun = time.monotonic()
        self.assertIn(self.house.stop(SLAVE), ENDED)
        self.assertLess(time.monotonic() - begun, 5)
        for line in (first, second):
            last = value(line.rest()[-1])
            self.assertEqual((last["type"], last["message"]), ("error", "the slave stops"))
        ends = [f for f in stream.rest() if kind(f) == "done"]
        self.assertEqual([f["event"]["data"]["status"] for f in ends], ["interrupted"] * 2)
        self.assertFalse(os.path.exists(path))

    def test_a_peer_that_reads_nothing_does_not_hold_it_up(self) -> None:
        """Ending takes a bounded time whatever clients do."""
        path = self.house.start()
        ask(path, {"op": "send", "input": "x" * 100_000})
        for _ in range(30):
            ask(path, {"op": "send", "input": "x" * 100_000})
        with Line(path) as line:
            line.send({"op": "resume"})
            time.sleep(0.2)
            begun = time.monotonic()
            self.assertIn(self.house.stop(SLAVE), ENDED)
            self.assertLess(time.monotonic() - begun, 15)

    def test_idle_sessions_release_their_lock_I14(self) -> None:
        """Once nobody is there another process may have the session's log."""
        self.house.write_config("[slave]\nidle_seconds = 0.2\n")
        path = self.house.start()
        pid = self.house.running[SLAVE].pid

        def held() -> list[str]:
            links = []
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            return [link for link in links if "/session/default" in link]

        with Stream(path) as stream:
            stream.attach()
            stream.input("r1", "hi")
            stream.done("r1")
            self.assertTrue(held())
        self.house.wait_until(lambda: not held(), "the session to be unloaded")
        self.assertEqual(ask(path, {"op": "resume"})[-1]["status"], "completed")


class Keeping(SlaveCase):
    def test_a_log_keeps_to_its_bound_and_its_claims_I38(self) -> None:
        """Beyond session_mib the oldest go, a replay from 0 is told so, and a claim lives on."""
        self.house.write_config("[slave]\nsession_mib = 1\n")
        path = self.house.start()
        first = ask(path, an_input("r-first", "x" * 50_000))
        with Stream(path) as stream:
            stream.attach()
            for n in range(20):
                stream.input(f"r{n}", "x" * 50_000)
                got = stream.done(f"r{n}")
                seq = got[-1]["session_seq"]
                stream.send(frame("ack", ["c", "a"], {}, seq))
        self.house.wait_until(
            lambda: self.house.log().stat().st_size < 1_200_000, "the log to be trimmed"
        )
        gap = ask(path, {"op": "resume", "after": "0"})[0]
        self.assertEqual(gap["code"], "ERANGE")
        with Stream(path) as stream:
            stream.attach(after=0)
            told = stream.value()
            self.assertEqual(kind(told), "gap")
            self.assertEqual(told["event"]["data"]["from_seq"], 1)
            self.assertEqual(stream.value()["session_seq"], told["event"]["data"]["to_seq"] + 1)
        again = ask(path, an_input("r-first", "x" * 50_000))
        self.assertEqual(value(again[-1]), value(first[-1]))
        self.house.stop(SLAVE)
        path = self.house.start()
        self.assertEqual(ask(path, an_input("r-first", "x" * 50_000)), again)


class Others(SlaveCase):
    """Peers of another UID: children with dropped privileges."""

    def setUp(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root can become somebody else")
        super().setUp()

    def as_nobody(self, path: str, request: dict[str, Any]) -> str:
        """What nobody reads, or the error's name."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = b"?"
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                try:
                    said = json.dumps(ask(path, request)).encode()
                except OSError as error:
                    said = type(error).__name__.encode()
                os.write(write, said[:60_000])
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            said = file.read()
        os.waitpid(child, 0)
        return said.decode()

    def test_the_socket_is_private_without_rules(self) -> None:
        """The kernel lets nobody in."""
        path = self.house.start()
        self.assertEqual(self.as_nobody(path, {"op": "ping"}), "PermissionError")

    def test_an_open_socket_answers_nothing_without_a_rule_I15(self) -> None:
        """SO_PEERCRED decides before any reply."""
        self.house.write_config('[slave]\nsocket_mode = "0666"\n')
        path = self.house.start("--socket", str(self.house.root / "open.sock"))
        said = self.as_nobody(path, {"op": "ping"})
        self.assertIn(said, ("[]", "ConnectionResetError", "BrokenPipeError"))
        self.assertIn(f"uid {NOBODY} may not connect", self.house.output(SLAVE))

    def test_a_rule_lets_them_in_and_SIGHUP_takes_it_away(self) -> None:
        """Each has sessions of their own; the rules are read again without a restart."""
        policy = self.house.state / "policy.toml"
        policy.write_text(f"[[allow]]\nuids = [{NOBODY}]\n")
        self.house.write_config(f'[slave]\npolicy = "{policy}"\n')
        path = self.house.start()
        modes = [stat.S_IMODE(os.stat(at).st_mode) for at in (path, os.path.dirname(path))]
        self.assertEqual(modes, [0o666, 0o711])
        said = self.as_nobody(path, {"op": "send", "input": "hi"})
        self.assertIn('"completed"', said)
        self.assertTrue(self.house.log(owner=NOBODY).exists())
        self.assertEqual(ask(path, {"op": "resume"}), [])
        policy.write_text("")
        self.house.running[SLAVE].send_signal(signal.SIGHUP)
        self.house.wait_until(lambda: "SIGHUP: 0 rules" in self.house.output(SLAVE), "the reload")
        self.assertEqual(self.as_nobody(path, {"op": "ping"}), "PermissionError")
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])

    def test_wrong_rules_change_nothing(self) -> None:
        """SIGHUP on a file with a fault is told in the log, and the old rules stay."""
        policy = self.house.state / "policy.toml"
        policy.write_text(f"[[allow]]\nuids = [{NOBODY}]\n")
        self.house.write_config(f'[slave]\npolicy = "{policy}"\n')
        path = self.house.start()
        policy.write_text("[[allow]]\nuid = 1\n")
        self.house.running[SLAVE].send_signal(signal.SIGHUP)
        self.house.wait_until(
            lambda: "the rules stay as they are" in self.house.output(SLAVE), "the warning"
        )
        self.assertIn("pong", self.as_nobody(path, {"op": "ping"}))

    def test_an_exec_agent_runs_as_the_peer_S1(self) -> None:
        """Its child has the peer's UID, not the slave's."""
        script = self.house.root / "who.sh"
        script.write_text(
            "read -r request\n"
            'printf \'{"type":"message","content":"%s"}\\n{"type":"done"}\\n\' "$(id -u)"\n'
        )
        policy = self.house.state / "policy.toml"
        policy.write_text(f"[[allow]]\nuids = [{NOBODY}]\n")
        self.house.write_config(
            f'[slave]\npolicy = "{policy}"\n[agents.who]\nruntime = "exec"\n'
            f'command = ["/bin/sh", "{script}"]\n'
        )
        path = self.house.start()
        said = self.as_nobody(path, {"op": "send", "input": "hi"})
        self.assertIn(f'"content": "{NOBODY}"', said)
        self.assertEqual(ask(path, {"op": "send", "input": "hi"})[-2]["content"], "0")


class Sockets(SlaveCase):
    def test_many_connections_come_and_go(self) -> None:
        """Nothing of them is left: descriptors are as they were."""
        path = self.house.start()
        pid = self.house.running[SLAVE].pid
        ask(path, {"op": "ping"})
        before = len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(path)
                one.sendall(b'{"op":"ping"}\n')
        ask(path, {"op": "ping"})
        self.house.wait_until(
            lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before, "the descriptors to be closed"
        )
