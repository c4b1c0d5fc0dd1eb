"""The agent's end of a WebSocket: what it says of one that never opened."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.protocol import AgentConnectionFactory


class Transport(StringTransport):
    """As a real one, it lets a producer be unregistered that is not registered."""

    def unregisterProducer(self) -> None:
        self.producer = None


class Ear:
    """Hears one connection."""

    def __init__(self) -> None:
        self.why: str | None = None

    def full(self) -> None:
        """Nothing is sent here."""

    def ready(self) -> None:
        """Nothing is sent here."""

    def lost(self, why: str) -> None:
        """The end of it."""
        self.why = why


class NeverOpened(SynchronousTestCase):
    """A URL that leads to something else than a cortex-server."""

    def told(self, url: str, *answer: bytes) -> str:
        """What is heard after the other side has sent `answer` and gone."""
        ear = Ear()
        connection = AgentConnectionFactory(Clock(), url, "x", ear).buildProtocol(None)
        connection.makeConnection(Transport())
        for data in answer:
            connection.dataReceived(data)
        connection.connectionLost(Failure(ConnectionDone()))
        assert ear.why is not None
        return ear.why

    def test_tls_is_thought_of(self) -> None:
        """An end before the WebSocket is open points to the scheme, for it may be the wrong
        one: wss:// at a plain port, or ws:// at one with TLS."""
        why = self.told("wss://logs.example:8600/ws/agent")
        self.assertIn("logs.example:8600", why)
        self.assertIn("no wss:// (TLS) port", why)
        why = self.told("ws://127.0.0.1:8600/ws/agent", b"\x15\x03\x01\x00\x02\x02\x46")
        self.assertIn("may want wss:// (TLS)", why)

    def test_a_wrong_path(self) -> None:
        """404 names the path and what it usually is; another status is told as it is."""
        why = self.told("ws://127.0.0.1:1/agent", b"HTTP/1.1 404 Not Found\r\n\r\n")
        self.assertIn("nothing at /agent (HTTP 404)", why)
        self.assertIn("/ws/agent", why)
        why = self.told("ws://127.0.0.1:1/agent", b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        self.assertIn("HTTP 502", why)
