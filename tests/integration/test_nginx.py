"""A server behind real proxies with TLS, set up as deploy/proxies says: nginx, HAProxy, Caddy."""

from __future__ import annotations

import json
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from tests import wire
from tests.integration.harness import AGENT, Installation
from tests.integration.processes import Connection
from tests.integration.proxies import Proxy, caddy, haproxy, nginx

HOST_ID = wire.HOST_ID
UPGRADE = wire.upgrade(Host="localhost")


class BehindNginx(SynchronousTestCase):
    """nginx; the other proxies run the same tests."""

    run_proxy: Callable[[Proxy], None] = staticmethod(nginx)

    def setUp(self) -> None:
        self.place = Installation(self)
        self.place.cortextx("server", "tls", "init", "--name", "localhost", "--name", "127.0.0.1")
        self.proxy = Proxy(
            self, self.place.root, self.place.state / "server" / "tls", "127.0.0.1:0"
        )
        self.url = f"wss://localhost:{self.proxy.port}/ws/agent"
        self.place.write_server_config(
            f'[server]\ntrust_forwarded_for = 1\npublic_url = "{self.url}"\n'
        )
        self.proxy.upstream = self.place.start_server()
        self.run_proxy(self.proxy)

    def connect(self) -> Connection:
        """A raw connection through the proxy."""
        connection = Connection(self.proxy.address)
        connection.socket.close()
        connection.socket = self.proxy.connect()
        self.addCleanup(connection.socket.close)
        return connection

    def issue(self) -> str:
        """A one-time token."""
        issued = self.place.cortextx("agent", "issue", "--host", "web1", "--json").stdout
        return str(json.loads(issued)["token"])

    def test_an_agent_through_it(self) -> None:
        """A real agent connects through the proxy's TLS, whose CA it pins, its lines come
        through, and it comes back by itself when the server was restarted (F40)."""
        log = self.place.root / "app.log"
        log.write_text("before\n")
        self.place.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{log}"\n', agent="allow_sources = []"
        )
        pin = json.loads(self.place.cortextx("server", "tls", "show", "--json").stdout)["ca_pin"]
        self.place.cortextx(
            "agent", "enroll", "--url", self.url, "--token-file", "-", "--ca-pin", pin,
            stdin=self.issue(),
        )  # fmt: skip
        self.place.start_agent()
        self.place.wait_until(lambda: self.stored() == ["before"], "the first line")
        self.place.stop("cortex-server")
        with log.open("a") as file:
            file.write("meanwhile\n")
        self.place.start_server()
        self.place.wait_until(lambda: self.stored() == ["before", "meanwhile"], "the second line")
        self.assertIn("active", self.place.cortextx("agent", "status").stdout.lower())
        self.assertNotIn("Traceback", self.place.output(AGENT))

    def stored(self) -> list[str]:
        """The messages that are stored, without the agent's own."""
        found = self.place.tail_all()
        return [row["message"] for row in found if row["source"].startswith("file:")]

    def test_frames_of_every_size(self) -> None:
        """A batch of nearly 1 MiB goes through as one frame and is acked, and pings and
        closes pass in both directions (§2)."""
        connection = self.connect()
        connection.send(UPGRADE)
        self.assertTrue(connection.head().startswith(b"HTTP/1.1 101 "))
        connection.send(wire.text(wire.hello(self.issue(), HOST_ID)))
        self.assertIn("result", connection.frame().json)
        ack = connection.call(wire.push(2, 1, 1000, message="x" * 800))
        self.assertEqual(ack["result"]["up_to_seq"], 1000)
        connection.send(wire.frame(wire.PING, b"are you there"))
        pong = connection.frame()
        self.assertEqual((pong.opcode, pong.payload), (wire.PONG, b"are you there"))
        connection.send(wire.frame(wire.CLOSE, b"\x03\xe8"))
        self.assertEqual(connection.close_code(), 1000)

    def test_where_a_peer_is(self) -> None:
        """The server knows the client's address from the proxy, and what the client says of
        itself is not believed."""
        connection = self.connect()
        forged = b"X-Forwarded-For: 203.0.113.9\r\n\r\n"
        connection.send(UPGRADE.removesuffix(b"\r\n") + forged)
        self.assertTrue(connection.head().startswith(b"HTTP/1.1 101 "))
        connection.send(wire.text(wire.hello(self.issue(), HOST_ID)))
        self.assertIn("result", connection.frame().json)
        [host] = self.place.hosts()
        self.assertEqual(host["remote_address"], "127.0.0.1")

    def test_refusals_pass_through(self) -> None:
        """/healthz answers through the proxy, and an upgrade that the server refuses (no
        subprotocol, §2) is refused with its status."""
        connection = self.connect()
        connection.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertTrue(connection.head().startswith(b"HTTP/1.1 200"))
        connection = self.connect()
        connection.send(UPGRADE.replace(b"cortex.v1", b"cortex.v9"))
        self.assertTrue(connection.head().startswith(b"HTTP/1.1 400"))

    def test_a_source_that_comes_too_often(self) -> None:
        """Behind a proxy it is the client's address that is counted; beyond its share a
        minute it gets 429 before anything is read of it (A52)."""
        self.place.write_server_config(
            f'[server]\ntrust_forwarded_for = 1\npublic_url = "{self.url}"\n'
            "connections_per_minute = 3\nlimit_exempt = []\n"
        )
        self.place.cortextx("server", "reload")
        answers = []
        for _ in range(5):
            connection = self.connect()
            connection.send(UPGRADE)
            answers.append(connection.head().split(b" ")[1])
        self.assertEqual(answers, [b"101"] * 3 + [b"429"] * 2)


class BehindHaproxy(BehindNginx):
    """HAProxy."""

    run_proxy = staticmethod(haproxy)


class BehindCaddy(BehindNginx):
    """Caddy."""

    run_proxy = staticmethod(caddy)
