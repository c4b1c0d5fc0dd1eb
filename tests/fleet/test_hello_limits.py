"""Room for hellos as connections take it and give it back, byte by byte (A52, F3)."""

from __future__ import annotations

from cortextx.fleet.server.protocol import AgentSocketFactory
from cortextx.web.site import make_site
from tests import wire
from tests.fleet.test_server_protocol import FleetCase, Peer

HELLO_SECONDS = 5.0


class Room(FleetCase):
    table = {"hellos_in_flight": 3, "hellos_in_flight_per_source": 2, "limit_exempt": ()}

    def setUp(self) -> None:
        super().setUp()
        agents = AgentSocketFactory(self.clock, self.fleet, admission=self.fleet.admission)
        self.site = make_site(self.clock, agents, self.fleet, 100)

    def refused(self) -> bool:
        """Whether one more upgrade is answered with 503."""
        peer = Peer(self.site)
        peer.send(wire.upgrade())
        return peer.transport.value().startswith(b"HTTP/1.1 503 ")

    def test_the_timer_gives_it_back(self) -> None:
        """Who says no hello holds its place for the 5 s of F3, not until it answers our close."""
        for _ in range(2):
            self.peer()
        self.assertTrue(self.refused())
        self.clock.advance(HELLO_SECONDS - 0.125)
        self.assertTrue(self.refused())
        self.clock.advance(0.125)
        self.assertEqual(self.fleet.admission.hellos_in_flight, 0)
        self.assertFalse(self.refused())

    def test_a_refused_hello_gives_it_back(self) -> None:
        """Nor does one whose hello was nonsense hold it while its close is unanswered."""
        peer = self.peer()
        peer.send(wire.frame(wire.BINARY, b"x"))
        self.assertEqual(self.fleet.admission.hellos_in_flight, 0)


class BehindAProxy(FleetCase):
    table = {"trust_forwarded_for": 1, "connections_per_minute": 2}

    def setUp(self) -> None:
        super().setUp()
        agents = AgentSocketFactory(
            self.clock, self.fleet, trust_forwarded_for=1, admission=self.fleet.admission
        )
        self.site = make_site(self.clock, agents, self.fleet, 100)

    def statuses(self, said: str, count: int = 4) -> list[int]:
        found = []
        for _ in range(count):
            peer = Peer(self.site)
            peer.send(wire.upgrade(X_Forwarded_For=said))
            found.append(int(peer.transport.value().split()[1]))
        return found

    def test_who_is_counted(self) -> None:
        """An address is counted by itself; a header that names none, or loopback, or leaves
        its last place empty is no way past the bound."""
        for said in ("192.0.2.7", "5.5.5.5,", "127.0.0.1", "192.0.2.9, ::1"):
            self.fleet.admission._rates.clear()
            self.assertEqual(self.statuses(said), [101, 101, 429, 429], said)

    def test_an_empty_header(self) -> None:
        """A header that is there and empty does not make a peer one on a Unix socket."""
        self.assertEqual(self.statuses(""), [101, 101, 429, 429])
