"""A server process from outside: start, refuse to start, serve, die and come back, stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
import time
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import Refused
from tests import wire
from tests.integration.peers import need
from tests.integration.processes import Connection, ServerProcess
from tests.wire import CLOSE, HOST_ID, PONG, TEXT, frame


class ServerCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.state = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)

    def server(self, *options: str, listen: str | None = None, **env: str) -> ServerProcess:
        made = ServerProcess(self.state, *options, listen=listen, **env)
        self.addCleanup(made.end)
        return made

    def session(self, server: ServerProcess, token: str) -> tuple[Connection, Any]:
        connection = server.connect()
        self.addCleanup(connection.socket.close)
        return connection, connection.call(wire.hello(token))["result"]

    def enrolled(self, server: ServerProcess) -> tuple[Connection, str]:
        connection, token = server.enrolled()
        self.addCleanup(connection.socket.close)
        return connection, token

    def search(self, server: ServerProcess, **args: Any) -> list[Any]:
        with server.admin() as admin:
            return admin.call("search", limit=10_000, order="oldest_first", **args)[0]


class Starting(ServerCase):
    def test_the_address_is_the_actual_one(self) -> None:
        """The address file has the port that was given by the system, while it answers."""
        server = self.server().started()
        self.assertNotEqual(server.address[1], 0)
        with Connection(server.address) as connection:
            connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b"200 OK", connection.head())
        self.assertTrue(os.path.exists(server.address_file))
        server.terminate()
        self.assertFalse(os.path.exists(server.address_file))

    def test_files_are_private(self) -> None:
        """With the loosest umask everything below the state directory is the owner's alone."""
        before = os.umask(0)
        try:
            server = self.server().started()
        finally:
            os.umask(before)
        for above, _, files in os.walk(self.state):
            for path in [above, *(os.path.join(above, name) for name in files)]:
                if path not in (self.state, server.log_path):
                    self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o077, 0, path)

    def test_a_taken_port_ends_it(self) -> None:
        """A port that is taken: exit code 1, one clear message, nothing left behind."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            server = self.server(listen=f"tcp:{port}:interface=127.0.0.1")
            self.assertEqual(server.process.wait(20), 1)
        self.assertIn(f"cortex-server: server.listen: tcp:{port}", server.log)
        self.assertIn("Address already in use", server.log)
        self.assertNotIn("Traceback", server.log)
        self.assertEqual(os.listdir(os.path.join(self.state, "run")), ["cortex-server.lock"])

    def test_a_taken_state_directory_ends_it(self) -> None:
        """A second server on one state directory ends with code 1 and names the first, which
        goes on."""
        first = self.server().started()
        second = self.server()
        self.assertEqual(second.process.wait(20), 1)
        self.assertIn(f"process {first.process.pid} runs cortex-server", second.log)
        with first.admin() as admin:
            admin.call("ping")
        self.assertTrue(os.path.exists(first.address_file))

    def test_an_open_bind_ends_it(self) -> None:
        """F20: a bind to all addresses in the clear is refused before anything is made."""
        server = self.server(listen="tcp:0")
        self.assertNotEqual(server.process.wait(20), 0)
        self.assertIn("tls_terminated_externally", server.log)
        self.assertFalse(os.path.exists(os.path.join(self.state, "run")))

    def test_a_broken_store_ends_it(self) -> None:
        """A store file that is none ends it with code 1 and a message, not a hang."""
        os.makedirs(os.path.join(self.state, "server"))
        with open(os.path.join(self.state, "server", "store.db"), "wb") as file:
            file.write(b"not a database " * 1000)
        server = self.server()
        self.assertEqual(server.process.wait(20), 1)
        self.assertIn("cortex-server: ", server.log)

    def test_check(self) -> None:
        """--check says that all is well and makes nothing."""
        server = self.server("--check")
        self.assertEqual(server.process.wait(20), 0)
        self.assertEqual(os.listdir(self.state), ["server.log"])

    def test_a_unix_endpoint(self) -> None:
        """The server can listen on a Unix socket; its path is the address."""
        path = os.path.join(self.state, "ws.sock")
        server = self.server(
            listen=f"unix:{path}:mode=600", CORTEXTX_SERVER_PUBLIC_URL="ws://x/ws/agent"
        ).started()
        with open(server.address_file) as file:
            self.assertEqual(file.read().strip(), path)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(10)
            raw.connect(path)
            raw.sendall(wire.upgrade())
            self.assertTrue(raw.recv(1000).startswith(b"HTTP/1.1 101 "))


class Dying(ServerCase):
    def test_an_ack_survives_kill_9(self) -> None:
        """What was acked before a kill -9 is found after it, and accepted_seq with it (F10)."""
        server = self.server().started()
        connection, token = self.enrolled(server)
        for n in range(5):
            ack = connection.call(wire.push(n + 2, n * 100 + 1, 100))
            self.assertEqual(ack["result"]["up_to_seq"], n * 100 + 100)
        server.kill()
        server = self.server().started()
        found = self.search(server, text="line")
        self.assertEqual([row["seq"] for row in found], list(range(1, 501)))
        with server.admin() as admin:
            row = admin.one("agent.show", host=HOST_ID)
        self.assertEqual((row["state"], row["accepted_seq"]), ("disconnected", 500))
        _, result = self.session(server, token)
        self.assertEqual(result["accepted_seq"], 500)

    def test_a_kill_amid_pushes_doubles_nothing(self) -> None:
        """Pushes in flight at a kill -9 are stored whole or not at all, and a resend from
        accepted_seq leaves each entry once (F11)."""
        server = self.server().started()
        connection, token = self.enrolled(server)
        stream = b"".join(wire.text(wire.push(n + 2, n * 50 + 1, 50)) for n in range(40))
        connection.send(stream)
        connection.frame()
        server.kill()
        server = self.server().started()
        connection, result = self.session(server, token)
        accepted = result["accepted_seq"]
        self.assertGreaterEqual(accepted, 50)
        self.assertEqual(accepted % 50, 0)
        self.assertEqual(len(self.search(server)), accepted)
        for n in range(40):
            connection.call(wire.push(n + 2, n * 50 + 1, 50))
        found = self.search(server)
        self.assertEqual([row["seq"] for row in found], list(range(1, 2001)))

    def test_a_dead_socket_is_replaced(self) -> None:
        """The admin socket of a killed server is no obstacle to the next one."""
        server = self.server().started()
        server.kill()
        self.assertTrue(os.path.exists(os.path.join(self.state, "run", "admin.sock")))
        with self.server().started().admin() as admin:
            admin.call("ping")


class Stopping(ServerCase):
    def test_agents_are_told(self) -> None:
        """SIGTERM: agent.shutdown ServerReload, what is pushed then is still acked, close
        1000, the address is gone, and the row says why (§4.3)."""
        server = self.server().started()
        connection, _ = self.enrolled(server)
        silent = server.connect()
        self.addCleanup(silent.socket.close)
        server.process.terminate()
        shutdown = connection.frame().json
        self.assertEqual(shutdown["method"], "agent.shutdown")
        self.assertEqual(shutdown["params"]["reason"], "ServerReload")
        self.assertEqual(silent.close_code(), 1000)
        ack = connection.call(wire.push(2, 1))
        self.assertEqual(ack["result"]["up_to_seq"], 1)
        found = connection.until_closed()
        self.assertEqual((found[-1].opcode, found[-1].code), (CLOSE, 1000))
        server.process.wait(20)
        self.assertFalse(os.path.exists(server.address_file))
        self.assertNotIn("Traceback", server.log)
        with self.server().started().admin() as admin:
            row = admin.one("agent.show", host=HOST_ID)
        self.assertEqual((row["state"], row["accepted_seq"]), ("disconnected", 1))
        self.assertIn("1000", row["last_disconnect_reason"])

    def test_it_stops_under_load(self) -> None:
        """SIGTERM while pushes stream in: whatever was acked is there afterwards."""
        server = self.server().started()
        connection, _ = self.enrolled(server)
        acked = 0
        stop = threading.Timer(0.3, server.process.terminate)
        stop.start()
        with contextlib.suppress(OSError, EOFError):
            for n in range(100_000):
                connection.send(wire.text(wire.push(n + 2, n * 20 + 1, 20)))
                reply = connection.frame()
                while reply.opcode == TEXT and "method" in reply.json:
                    reply = connection.frame()
                if reply.opcode == CLOSE:
                    connection.send(frame(CLOSE, reply.payload[:2]))
                    break
                acked = reply.json["result"]["up_to_seq"]
        stop.join()
        server.process.wait(20)
        self.assertGreater(acked, 0)
        self.assertNotIn("Traceback", server.log)
        found = self.search(self.server().started())
        self.assertEqual(
            [row["seq"] for row in found][:acked], list(range(1, min(acked, 10_000) + 1))
        )


class Serving(ServerCase):
    def test_a_line_is_found_at_once(self) -> None:
        """An acked line is found by search, by a following tail, and the host is listed."""
        server = self.server().started()
        connection, _ = self.enrolled(server)
        seen: list[Any] = []
        with server.admin() as admin:
            tail = admin.stream("search.tail", follow=True, last=0)
            # The tail must stand before the push: one round of another op shows it does.
            reader = threading.Thread(target=lambda: seen.append(next(tail)))
            reader.start()
            time.sleep(0.3)
            began = time.monotonic()
            connection.call(wire.push(2, 1, message="needle-42"))
            reader.join(5)
            self.assertLess(time.monotonic() - began, 1.0)
            self.assertEqual(seen[0]["message"], "needle-42 1")
        self.assertEqual(len(self.search(server, text="needle-42")), 1)
        with server.admin() as admin:
            [host], _ = admin.call("agent.list")
        self.assertEqual((host["name"], host["connected"]), ("testhost", True))

    def test_a_rotation_and_a_revocation(self) -> None:
        """rotate --now brings a fresh token at the next hello; revoke cuts with 4002 and
        refuses what comes (F7, F8)."""
        server = self.server().started()
        connection, token = self.enrolled(server)
        with server.admin() as admin:
            admin.call("agent.rotate", host="testhost", now=True)
        self.assertEqual(connection.close_code(), 1000)
        connection, result = self.session(server, token)
        fresh = result["rotated_token"]
        self.assertNotEqual(fresh, token)
        with server.admin() as admin:
            admin.call("agent.revoke", host="testhost")
        found = connection.until_closed()
        self.assertEqual(found[0].json["params"]["reason"], "Revoked")
        self.assertEqual(found[1].code, 4002)
        again = server.connect()
        self.addCleanup(again.socket.close)
        self.assertEqual(again.call(wire.hello(fresh))["error"]["code"], -32002)
        self.assertEqual(again.close_code(), 4002)

    def test_tokens_are_never_logged(self) -> None:
        """No token that was sent or made stands in the log or the store's files (F23)."""
        server = self.server().started()
        one_time = server.issue()
        connection = server.connect()
        self.addCleanup(connection.socket.close)
        token = connection.call(wire.hello(one_time))["result"]["rotated_token"]
        bad = server.connect()
        self.addCleanup(bad.socket.close)
        bad.call(wire.hello("w" * 43))
        broken = wire.hello(token)
        broken["params"]["unknown"] = token
        worse = server.connect()
        self.addCleanup(worse.socket.close)
        self.assertNotIn(token, str(worse.call(broken)))
        server.terminate()
        for above, _, files in os.walk(self.state):
            for name in files:
                with open(os.path.join(above, name), "rb") as file:
                    content = file.read()
                for secret in (one_time, token, "w" * 43):
                    self.assertNotIn(secret.encode(), content, name)

    def test_an_agent_that_does_not_read_is_dropped(self) -> None:
        """A peer that sends on and on and reads no answer is dropped after
        slow_peer_secs, and the server's memory stays as it was."""
        with open(os.path.join(self.state, "cortex-server.toml"), "w") as file:
            file.write("[server]\nslow_peer_secs = 1.0\n")
        server = self.server().started()
        connection, _ = self.enrolled(server)
        connection.socket.settimeout(20)
        requests = wire.text(wire.request(2, "nonesuch", {})) * 1000
        with self.assertRaises(OSError):
            for _ in range(2000):
                connection.send(requests)
        self.assertLess(resident(server), 400)
        with server.admin() as admin:
            end = time.monotonic() + 10
            while admin.one("agent.show", host=HOST_ID)["state"] == "active":
                self.assertLess(time.monotonic(), end)
                time.sleep(0.1)

    def test_a_tail_that_is_not_read_costs_nothing(self) -> None:
        """A client that asks for much and does not read makes the server hold a page, no more."""
        server = self.server().started()
        connection, _ = self.enrolled(server)
        for n in range(100):
            connection.call(wire.push(n + 2, n * 200 + 1, 200, message="x" * 1000))
        before = resident(server)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(os.path.join(self.state, "run", "admin.sock"))
            raw.sendall(b'{"op":"search.tail","args":{"after":0,"limit":100000}}\n')
            time.sleep(0.5)
            self.assertLess(resident(server) - before, 16)
            with server.admin() as admin:
                admin.call("ping")

    def test_hundreds_of_connections(self) -> None:
        """300 connections at once are served, though the soft limit of files is low."""
        server = self.server().started()
        connections = []
        for _ in range(300):
            connection = Connection(server.address)
            self.addCleanup(connection.socket.close)
            connection.upgrade()
            connections.append(connection)
        for connection in connections:
            connection.send(frame(wire.PING, b"x"))
        for connection in connections:
            self.assertEqual(connection.frame().opcode, PONG)
        with server.admin() as admin:
            self.assertEqual(admin.one("server.status")["connections"], 300)

    def test_tls_of_its_own(self) -> None:
        """An upgrade over TLS is handed over as one in the clear, bytes behind it too, and
        the invitation says wss."""
        key, certificate = (os.path.join(self.state, name) for name in ("k.pem", "c.pem"))
        subprocess.run(
            [
                *(need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
                *("-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate),
            ],
            check=True,
            capture_output=True,
        )
        listen = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
        server = self.server(listen=listen).started()
        with server.admin() as admin:
            made = admin.one("agent.issue", name="testhost", host_id=HOST_ID)
        self.assertTrue(made["invitation"].startswith("wss://127.0.0.1:"))
        connection = Connection(server.address)
        self.addCleanup(connection.socket.close)
        context = ssl.create_default_context(cafile=certificate)
        connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")
        connection.send(wire.upgrade() + wire.text(wire.hello(made["token"])))
        self.assertTrue(connection.head().startswith(b"HTTP/1.1 101 "))
        self.assertIn("result", connection.frame().json)
        ack = connection.call(wire.push(2, 1, 1000))
        self.assertEqual(ack["result"]["up_to_seq"], 1000)

    def test_an_unknown_host_is_told(self) -> None:
        """A host that is none is not_found through the real socket."""
        server = self.server().started()
        with server.admin() as admin:
            error = self.assertRaises(Refused, admin.call, "agent.show", host="nobody")
        self.assertEqual(error.code, "not_found")


def resident(server: ServerProcess) -> float:
    """The server's resident memory in MiB."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))
