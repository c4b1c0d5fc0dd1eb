"""A server with TLS of its own and agents that pin its CA, in real processes (F20, F40)."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
from typing import Any
from urllib.parse import parse_qs, urlsplit

from twisted.trial.unittest import SynchronousTestCase
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests import wire
from tests.integration.harness import AGENT, SERVER, Installation, environment
from tests.integration.peers import need
from tests.integration.proxies import free_port


class OwnTls(SynchronousTestCase):
    def setUp(self) -> None:
        self.place = Installation(self)
        self.place.cortextx("server", "tls", "init", "--name", "localhost", "--name", "127.0.0.1")
        self.port = free_port()
        self.place._listen = f"tls:{self.port}:interface=127.0.0.1"

    def start(self, place: Installation | None = None) -> None:
        """Start a server by TLS; `start_server` would go on in the clear."""
        place = place or self.place
        place._start(SERVER, "--listen", f"tls:{self.port}:interface=127.0.0.1")

    def shown(self) -> dict[str, Any]:
        """The certificate as the command line tells."""
        found: dict[str, Any] = json.loads(
            self.place.cortextx("server", "tls", "show", "--json").stdout
        )
        return found

    def served(self) -> bytes:
        """The certificate that a new connection is shown, verified against the CA."""
        ca = str(self.place.state / "server" / "tls" / "ca.pem")
        context = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection(("127.0.0.1", self.port), 10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as secured,
        ):
            found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found

    def agent_status(self) -> dict[str, Any]:
        """The agent's own word."""
        found: dict[str, Any] = json.loads(self.place.cortextx("agent", "status", "--json").stdout)
        return found

    def is_active(self) -> bool:
        return str(self.agent_status()["state"]).lower() == "active"

    def test_an_agent_by_invitation(self) -> None:
        """The invitation says wss and has the CA's pin; the agent enrols with it and connects,
        and after a renewal and the server's restart it connects again, with nothing done to it."""
        self.start()
        made = self.place.enroll("web1")
        parts = urlsplit(made["invitation"])
        self.assertEqual((parts.scheme, parts.port), ("wss", self.port))
        self.assertEqual(parse_qs(parts.fragment)["ca_pin"], [self.shown()["ca_pin"]])
        self.place.write_agent_config(agent="allow_sources = []")
        self.place.start_agent()
        self.place.wait_until(self.is_active, "the agent to connect")
        self.place.cortextx("server", "tls", "renew")
        self.assertTrue(self.is_active())
        self.place.stop(SERVER)
        self.start()
        self.place.wait_until(
            lambda: any(row["connected"] for row in self.place.hosts()), "the agent to come back"
        )

    def test_a_renewal_needs_no_restart(self) -> None:
        """After `tls renew` the next connection is shown the new certificate; a live one goes
        on. SIGHUP does the same for one that was put there otherwise."""
        self.start()
        before = self.served()
        self.assertEqual(self.served(), before)
        self.place.cortextx("server", "tls", "renew")
        renewed = self.served()
        self.assertNotEqual(renewed, before)
        # As by a program that knows nothing of the admin socket.
        os.rename(self.place.state / "run" / "admin.sock", self.place.state / "run" / "x.sock")
        self.place.cortextx("server", "tls", "renew")
        self.assertEqual(self.served(), renewed)
        self.place.running[SERVER].send_signal(signal.SIGHUP)
        self.place.wait_until(lambda: self.served() != renewed, "SIGHUP to be heard")
        self.assertNotIn("Traceback", self.place.output(SERVER))

    def test_curl(self) -> None:
        """curl, which offers h2 and http/1.1 by ALPN, is answered, whatever it is told to offer."""
        curl = need("curl")
        self.start()
        ca = str(self.place.state / "server" / "tls" / "ca.pem")
        for options in ((), ("--http1.1",), ("--no-alpn",)):
            done = subprocess.run(
                [
                    curl, "-sS", "--max-time", "10", "--cacert", ca, "-w", "%{http_version}",
                    *options, f"https://localhost:{self.port}/healthz",
                ],
                capture_output=True, text=True, timeout=20, check=False, env=environment(),
            )  # fmt: skip
            self.assertEqual((done.stdout, done.stderr), ("ok\n1.1", ""), options)

    def test_websockets_by_tls(self) -> None:
        """The `websockets` library upgrades by TLS, with ALPN of any kind and without."""
        self.start()
        ca = str(self.place.state / "server" / "tls" / "ca.pem")
        url = f"wss://localhost:{self.port}/ws/agent"
        for offered in (None, ["http/1.1"], ["h2", "http/1.1"], ["h2"]):
            context = ssl.create_default_context(cafile=ca)
            if offered is not None:
                context.set_alpn_protocols(offered)
            with connect(url, ssl=context, subprotocols=[Subprotocol("cortex.v1")]) as peer:
                self.assertEqual(peer.subprotocol, "cortex.v1", offered)

    def test_bad_files_at_a_reload(self) -> None:
        """With files that are no pair, are cut off or are gone a reload is refused, and neither
        what new connections are shown nor a connected agent is concerned (A59)."""
        self.start()
        self.place.enroll("web1")
        self.place.write_agent_config(agent="allow_sources = []")
        self.place.start_agent()
        self.place.wait_until(self.is_active, "the agent to connect")
        first = self.served()
        at = self.place.state / "server" / "tls"
        for name in ("server.key", "server.pem"):
            good = (at / name).read_bytes()
            for bad in ((at / "ca.key").read_bytes(), good[:80], b"", None):
                (at / name).unlink() if bad is None else (at / name).write_bytes(bad)
                self.assertIn(name, self.place.cortextx("reload", code=2).stderr)
                self.assertEqual(self.served(), first)
            (at / name).write_bytes(good)
        self.place.cortextx("reload")
        self.assertTrue(self.is_active())
        self.assertNotIn("Traceback", self.place.output(SERVER))

    def test_a_version_raised_and_lowered(self) -> None:
        """A min_agent_version that locks the connected agent out wants a yes; then the agent
        stays until it comes again, is refused, and is back once the version is lowered."""
        self.start()
        self.place.enroll("web1")
        self.place.write_agent_config(agent="allow_sources = []")
        self.place.start_agent()
        self.place.wait_until(self.is_active, "the agent to connect")
        self.place.write_server_config('[server]\nmin_agent_version = "9.0.0"\n')
        self.assertIn("web1", self.place.cortextx("reload", code=1).stderr)
        self.place.cortextx("reload", "--yes")
        self.assertTrue(self.is_active())
        self.place.stop(AGENT)
        self.place.start_agent()
        self.place.wait_until(
            lambda: "too old" in str(self.agent_status()["last_error"]), "a refusal"
        )
        self.place.write_server_config('[server]\nmin_agent_version = "0.0.1"\n')
        self.place.cortextx("reload")
        self.place.cortextx("agent", "retry")
        self.place.wait_until(self.is_active, "the agent to be back")

    def test_another_server_at_the_same_place(self) -> None:
        """Who took the server's place with a CA of his own gets nothing: the agent says why,
        goes on trying, and neither its token nor its entries leave it (F40)."""
        self.start()
        self.place.enroll("web1")
        self.place.stop(SERVER)
        impostor = Installation(self)
        impostor.cortextx("server", "tls", "init", "--name", "localhost", "--name", "127.0.0.1")
        self.start(impostor)
        self.place.write_agent_config(agent="allow_sources = []")
        self.place.start_agent()
        self.place.wait_until(
            lambda: "CA is not the one" in str(self.agent_status()["last_error"]), "a refusal"
        )
        self.assertEqual(impostor.hosts(), [])
        impostor.end()
        self.start()
        self.place.wait_until(self.is_active, "the agent to find its server", 60)
        self.assertNotIn("Traceback", self.place.output(AGENT))

    def test_a_pin_is_not_for_the_clear(self) -> None:
        """An agent whose server has a pinned CA does not connect in the clear, whatever its
        configuration says: it ends with a message (F20, F40)."""
        self.start()
        self.place.enroll("web1")
        self.place.write_agent_config(server=f'url = "ws://127.0.0.1:{self.port}/ws/agent"')
        error = self.assertRaises(AssertionError, self.place.start_agent)
        self.assertIn("pinned CA", str(error))

    def test_an_open_bind_with_tls(self) -> None:
        """F20: with TLS of its own a server may listen on every address without more words."""
        self.place._start(SERVER, "--listen", f"tls:{self.port}")
        self.assertTrue(self.served())

    def test_without_a_certificate(self) -> None:
        """A tls: endpoint without one ends the process, and says how to make it."""
        other = Installation(self)
        error = self.assertRaises(AssertionError, self.start, other)
        self.assertIn("cortextx server tls init", str(error))
        self.assertNotIn("Traceback", str(error))


class UnixEndpoint(SynchronousTestCase):
    """A server on a Unix socket, as behind a proxy of the same machine."""

    def test_a_socket_that_a_dead_server_left(self) -> None:
        """The socket has the mode that was asked for, is bound by no limit for unknown peers,
        and the one that a killed server left is no obstacle (F20, A52)."""
        place = Installation(self)
        place.write_server_config(
            '[server]\npublic_url = "wss://x/ws/agent"\nconnections_per_minute = 1\n'
            "hellos_in_flight = 1\nlimit_exempt = []\n"
        )
        path = place.root / "ws.sock"
        for _ in range(2):
            place._start(SERVER, "--listen", f"unix:{path}:mode=660")
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o660)
            for _ in range(3):
                raw = socket.socket(socket.AF_UNIX)
                self.addCleanup(raw.close)
                raw.settimeout(10)
                raw.connect(str(path))
                raw.sendall(wire.upgrade())
                self.assertEqual(raw.recv(100)[:12], b"HTTP/1.1 101")
            place.kill_server()
        self.assertTrue(path.exists())


class Limits(SynchronousTestCase):
    """Limits before authentication, in a real server (A52)."""

    def start(self, table: str) -> Installation:
        place = Installation(self)
        place.write_server_config(f"[server]\n{table}")
        host, _, port = place.start_server().rpartition(":")
        self.address = (host, int(port))
        return place

    def answer(self, data: bytes) -> bytes:
        """What comes back first for some bytes; nothing if the connection ends."""
        raw = socket.create_connection(self.address, 10)
        self.addCleanup(raw.close)
        try:
            raw.sendall(data)
            return raw.recv(100)
        except ConnectionResetError:
            return b""

    def test_a_source_that_comes_too_often_is_cut_off(self) -> None:
        """Beyond its share connections are reset before a byte is answered; a reload gives a
        larger share at once, without a restart."""
        place = self.start("connections_per_minute = 3\nlimit_exempt = []\n")
        found = [self.answer(wire.upgrade())[:12] for _ in range(5)]
        self.assertEqual(found, [b"HTTP/1.1 101"] * 3 + [b""] * 2)
        place.write_server_config("[server]\nconnections_per_minute = 500\nlimit_exempt = []\n")
        said = json.loads(place.cortextx("server", "reload", "--json").stdout)
        self.assertEqual(said["changed"], ["server.connections_per_minute"])
        self.assertEqual(self.answer(wire.upgrade())[:12], b"HTTP/1.1 101")

    def test_silent_connections_do_not_pile_up(self) -> None:
        """With hellos_in_flight connections that say nothing the next upgrade gets 503, and
        when their time is up (§3: 5 s, and 5 s for the close) there is room again."""
        place = self.start("hellos_in_flight = 2\nlimit_exempt = []\n")
        found = [self.answer(wire.upgrade())[9:12] for _ in range(3)]
        self.assertEqual(found, [b"101", b"101", b"503"])
        place.wait_until(
            lambda: self.answer(wire.upgrade())[9:12] == b"101", "room for a hello", 20
        )

    def test_loopback_is_exempt(self) -> None:
        """Unless told otherwise, loopback is bound by neither limit."""
        self.start("connections_per_minute = 1\nhellos_in_flight = 1\n")
        found = [self.answer(wire.upgrade())[9:12] for _ in range(5)]
        self.assertEqual(found, [b"101"] * 5)

    def test_a_fault_in_the_file_changes_nothing(self) -> None:
        """A reload of a configuration with a fault is refused with the field's name (A59)."""
        place = self.start("slow_peer_secs = 7.0\n")
        place.write_server_config("[server]\nslow_peer_secs = 8.0\nhello_max_bytes = 1\n")
        said = place.cortextx("server", "reload", code=2).stderr
        self.assertIn("hello_max_bytes", said)
        place.write_server_config("[server]\nslow_peer_secs = 7.0\n")
        said = place.cortextx("server", "reload", "--json").stdout
        self.assertEqual(json.loads(said)["changed"], [])
