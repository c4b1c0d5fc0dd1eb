"""The command line on a real server: backup and restore, and the same over the network."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from unittest import TestCase

from tests import wire
from tests.integration.harness import SERVER, Installation, environment
from tests.integration.processes import Connection

WAIT_SECONDS = 20.0


def host_of(place: Installation, address: str) -> tuple[Connection, str]:
    """A host's first session by hand; answers it and its long-lived token."""
    host, _, port = address.rpartition(":")
    connection = Connection((host, int(port)))
    connection.upgrade()
    with place.client() as admin:
        token = admin.one("agent.issue", name="testhost", host_id=wire.HOST_ID)["token"]
    answer = connection.call(wire.hello(token))
    return connection, answer["result"]["rotated_token"]


class Store(TestCase):
    def test_backup_verify_restore(self) -> None:
        """A backup of a running server is sound, and restored it is the state of its moment;
        what was there is kept (F26)."""
        place = Installation(self)
        connection, token = host_of(place, place.start_server())
        connection.call(wire.push(2, 1, 5))
        file = str(place.root / "b.db")
        made = json.loads(place.cortextx("server", "backup", file, "--json").stdout)
        self.assertEqual((made["entries"], made["hosts"]), (5, 1))
        self.assertEqual(os.stat(file).st_mode & 0o777, 0o600)
        self.assertIn("is there already", place.cortextx("server", "backup", file, code=1).stderr)
        connection.call(wire.push(3, 6, 5))
        self.assertTrue(json.loads(place.cortextx("server", "verify", "--json").stdout)["sound"])
        place.cortextx("server", "verify", file)

        refused = place.cortextx("server", "restore", file, "--yes", code=1)
        self.assertIn("runs", refused.stderr)
        connection.socket.close()
        place.stop(SERVER, signal.SIGKILL)
        asked = place.cortextx("server", "restore", file, code=2)
        self.assertIn("what is there now is kept as", asked.stderr)
        self.assertNotIn("cannot be undone", asked.stderr)
        done = json.loads(place.cortextx("server", "restore", file, "--yes", "--json").stdout)
        kept = json.loads(place.cortextx("server", "verify", done["kept"], "--json").stdout)
        self.assertEqual((done["entries"], kept["entries"]), (5, 10))
        host, _, port = place.start_server().rpartition(":")
        acts = json.loads(place.cortextx("server", "acts", "--json").stdout)["acts"]
        (act,) = [one for one in acts if one["act"] == "server.restore"]
        self.assertEqual((act["actor"], act["details"]), (
            "local", {"backup": file, "kept": done["kept"]},
        ))  # fmt: skip
        self.assertEqual(len(place.tail_all()), 5)
        again = Connection((host, int(port)))
        self.addCleanup(again.socket.close)
        again.upgrade()
        self.assertEqual(again.call(wire.hello(token))["result"]["accepted_seq"], 5)

    def test_a_damaged_file(self) -> None:
        """What is damaged is found (exit 5) and never put in place (exit 1)."""
        place = Installation(self)
        place.start_server()
        file = place.root / "b.db"
        killed = place.root / "older.db.partial"
        killed.write_bytes(b"x")
        (place.root / "b.db.partial").write_bytes(b"what a killed backup left")
        said = place.cortextx("server", "backup", str(file)).stderr
        self.assertIn(f"{killed} is left of a backup that was killed", said)
        self.assertNotIn("b.db.partial", said)
        self.assertFalse((place.root / "b.db.partial").exists())
        place.stop(SERVER)
        before = place.cortextx("server", "verify", "--json").stdout
        file.write_bytes(file.read_bytes()[:20_000])
        place.cortextx("server", "verify", str(file), code=5)
        place.cortextx("server", "restore", str(file), "--yes", code=1)
        file.write_bytes(b"no database")
        place.cortextx("server", "verify", str(file), "--json", code=5)
        self.assertEqual(place.cortextx("server", "verify", "--json").stdout, before)


class Remote(TestCase):
    """`--server URL` over TLS, from a machine that has nothing but a token and the CA (F39)."""

    def setUp(self) -> None:
        self.place = Installation(self)
        self.place.cortextx("server", "tls", "init", "--name", "localhost")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        # In the clear for the host by hand, by TLS for the command line.
        plain = "tcp:0:interface=127.0.0.1"
        self.listen = ("--listen", plain, "--listen", f"tls:{port}:interface=127.0.0.1")
        address = self.place._start(SERVER, *self.listen)
        self.connection, _ = host_of(self.place, address)
        self.addCleanup(self.connection.socket.close)
        self.token = self.place.root / "token"
        made = self.place.cortextx("server", "token", "add", "me", "--role", "operator")
        self.token.write_text(made.stdout)
        self.url = f"https://localhost:{port}"
        self.ca = str(self.place.state / "server" / "tls" / "ca.pem")

    def options(self) -> list[str]:
        return ["--server", self.url, "--token-file", str(self.token), "--ca-file", self.ca]

    def ask(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command that knows no state directory of a server."""
        done = subprocess.run(
            [sys.executable, "-m", "cortextx.app.cli", "--state-dir", "/nonexistent", *args,
             *self.options()],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(),
            timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_the_same_as_on_the_machine(self) -> None:
        """search, tail, agent list|show|gaps, audit, probe and status answer as the socket does."""
        self.connection.call(wire.push(2, 1, 900))
        self.connection.call(wire.push(3, 903, 600))
        for args in (
            ("search", "--json", "-n", "0"), ("search", "line", "--host", "testhost", "-n", "3"),
            ("tail", "-n", "5", "--json"), ("tail", "--after", "10", "--json"),
            ("tail", "--after", "1490", "--severity", "emerg"), ("tail", "--after", "1500"),
            ("agent", "gaps", "--json"), ("agent", "list"),
        ):  # fmt: skip
            self.assertEqual(self.ask(*args).stdout, self.place.cortextx(*args).stdout, args)
        audit = ("audit", "testhost", "--json")
        self.assertEqual(
            json.loads(self.ask(*audit, code=5).stdout),
            json.loads(self.place.cortextx(*audit, code=5).stdout),
        )
        self.assertIn("complete", self.ask("audit", "testhost", "--to", "900").stdout)
        shown = json.loads(self.ask("agent", "show", "testhost", "--json").stdout)
        here = json.loads(self.place.cortextx("agent", "show", "testhost", "--json").stdout)
        self.assertEqual(shown.keys(), here.keys())
        self.assertEqual(self.ask("agent", "show", "nobody", code=4).stdout, "")
        self.assertIn("version", self.ask("server", "status").stdout)
        probe = json.loads(self.ask("probe", "testhost", "none.such", "--json", code=1).stdout)
        self.assertEqual((probe["outcome"], probe["actor"]), ("unavailable", "token:me"))
        history = json.loads(self.ask("probe", "testhost", "--history", "--json").stdout)
        self.assertEqual(history, {"probes": [probe]})

    def test_who_is_refused(self) -> None:
        """Without the CA or a good token nothing is told, and what to do is said."""
        self.ca, ours = os.devnull, self.ca
        self.ask("agent", "list", code=2)
        self.ca = str(self.place.root / "other" / "server" / "tls" / "ca.pem")
        other = str(self.place.root / "other")
        subprocess.run(
            [sys.executable, "-m", "cortextx.app.cli", "--state-dir", other,
             "server", "tls", "init"],
            check=True, capture_output=True, env=environment(), timeout=60,
        )  # fmt: skip
        self.assertIn("--ca-file", self.ask("agent", "list", code=1).stderr)
        self.ca = ours
        self.place.cortextx("server", "token", "revoke", "me", "--yes")
        self.assertIn("revoked", self.ask("search", code=1).stderr)

    def test_a_tail_goes_on_over_a_restart(self) -> None:
        """tail -f over the network misses and doubles nothing when the server is killed (A64)."""
        out = self.place.root / "tail.out"
        self.connection.call(wire.push(2, 1, 50))
        with out.open("wb") as file:
            tail = subprocess.Popen(
                [sys.executable, "-m", "cortextx.app.cli", "tail", "-f", "--json", "--after", "0",
                 *self.options()],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL,
                env=environment(),
            )  # fmt: skip
        self.addCleanup(tail.wait)
        self.addCleanup(tail.kill)
        self.seen(out, 50)
        self.place.kill_server()
        address = self.place._start(SERVER, *self.listen)
        host, _, port = address.rpartition(":")
        with self.place.client() as admin:
            token = admin.one("agent.issue", name="testhost", host_id=wire.HOST_ID)["token"]
        connection = Connection((host, int(port)))
        self.addCleanup(connection.socket.close)
        connection.upgrade()
        connection.call(wire.hello(token))
        connection.call(wire.push(2, 51, 10))
        self.assertEqual(self.seen(out, 60), list(range(1, 61)))

    def seen(self, out: os.PathLike[str], count: int) -> list[int]:
        """The seqs that a tail has printed, once there are `count` of them."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            with open(out) as file:
                lines = [line for line in file.read().split("\n")[:-1] if line]
            if len(lines) >= count or time.monotonic() > end:
                return [json.loads(line)["seq"] for line in lines]
            time.sleep(0.05)


class Doctor(TestCase):
    def test_a_good_installation(self) -> None:
        """A server and an agent that run well have nothing wrong; without them it is found."""
        place = Installation(self)
        place.start_server()
        place.enroll("here")
        place.start_agent()
        place.wait_until(
            lambda: any(row["connected"] for row in place.hosts()), "the agent to connect"
        )
        found = json.loads(place.cortextx("doctor", "--json").stdout)["findings"]
        self.assertEqual([f for f in found if f["level"] == "wrong"], [])
        place.kill_agent()
        place.kill_server()
        found = json.loads(place.cortextx("doctor", "--json", "-q", code=5).stdout)["findings"]
        wrong = [f["about"] for f in found if f["level"] == "wrong"]
        self.assertEqual(wrong, ["server", "agent"])
