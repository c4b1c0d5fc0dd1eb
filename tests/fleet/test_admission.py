"""What an unknown peer may cost: connections a minute, hellos in flight (A52)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.server import admission
from cortextx.fleet.server.admission import Admission, AdmissionLimits, networks, read_address
from cortextx.fleet.server.settings import ServerSettings, ServerTable, check, limits

AWAY = "192.0.2.7"
DEFAULT = limits(ServerTable())


def gate(per_minute: int = 6, hellos: int = 2, exempt: tuple[str, ...] = ()) -> Admission:
    return Admission(AdmissionLimits(per_minute, hellos, networks(exempt)))


class Rates(SynchronousTestCase):
    def test_a_minutes_share(self) -> None:
        """One address has its share at once and then a connection every 10 s (of 6 a
        minute); others are not concerned."""
        judge = gate()
        self.assertEqual([judge.admits(AWAY, 0.0) for _ in range(8)], [True] * 6 + [False] * 2)
        self.assertTrue(judge.admits("192.0.2.8", 0.0))
        self.assertFalse(judge.admits(AWAY, 9.0))
        self.assertTrue(judge.admits(AWAY, 10.0))
        self.assertEqual(judge.refused_connections, 3)

    def test_no_limit(self) -> None:
        """0 lets any number in."""
        judge = gate(per_minute=0)
        self.assertTrue(all(judge.admits(AWAY, 0.0) for _ in range(1000)))

    def test_who_is_exempt(self) -> None:
        """Loopback and peers without an address are bound by nothing, unless told otherwise."""
        judge = Admission(AdmissionLimits(1, 1, DEFAULT.exempt))
        for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", None, ""):
            self.assertTrue(all(judge.admits(address, 0.0) for _ in range(5)), address)
            self.assertTrue(judge.admits_hello(address))
            judge.hello_began(address, address)
        self.assertEqual(judge.hellos_in_flight, 0)
        strict = gate(per_minute=1)
        self.assertEqual([strict.admits("127.0.0.1", 0.0) for _ in range(2)], [True, False])

    def test_ipv6_counts_by_its_network(self) -> None:
        """The addresses of one /64 share, as one machine can have all of them; so do an
        IPv4 address and its IPv6 form."""
        judge = gate(per_minute=2)
        seen = [judge.admits(f"2001:db8::{n:x}", 0.0) for n in range(4)]
        self.assertEqual(seen, [True, True, False, False])
        self.assertTrue(judge.admits("2001:db8:0:1::1", 0.0))
        judge = gate(per_minute=1)
        self.assertTrue(judge.admits("192.0.2.1", 0.0))
        self.assertFalse(judge.admits("::ffff:192.0.2.1", 0.0))

    def test_what_a_proxy_made_up(self) -> None:
        """Words that are no address are counted together, not let through."""
        judge = gate(per_minute=1)
        self.assertEqual([judge.admits(text, 0.0) for text in ("unknown", "x")], [True, False])

    def test_memory_is_bounded(self) -> None:
        """Of ever so many addresses only MAX_ADDRESSES are remembered, those last seen."""
        judge = gate(per_minute=1)
        judge.admits("198.51.100.1", 0.0)
        for n in range(admission.MAX_ADDRESSES + 50):
            judge.admits(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 0.0)
            if n % 1000 == 0:
                self.assertFalse(judge.admits("198.51.100.1", 0.0))
        self.assertEqual(len(judge._rates), admission.MAX_ADDRESSES)

    def test_limits_can_change(self) -> None:
        """New limits hold from the next connection on, for sources known already too."""
        judge = gate(per_minute=1)
        self.assertEqual([judge.admits(AWAY, 0.0) for _ in range(2)], [True, False])
        judge.limits = AdmissionLimits(3, 1)
        self.assertEqual([judge.admits(AWAY, 0.0) for _ in range(4)], [True] * 3 + [False])

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(0, 20), min_size=1, max_size=80), st.integers(1, 20))
    def test_never_more_than_twice_the_share(self, pauses: list[float], share: int) -> None:
        """Whenever one comes, in no minute are there more than two shares."""
        judge = gate(per_minute=share)
        now, let_in = 0.0, []
        for pause in pauses:
            now += pause
            if judge.admits(AWAY, now):
                let_in.append(now)
        for start in let_in:
            self.assertLessEqual(sum(start <= at < start + 60 for at in let_in), 2 * share + 1)


class Hellos(SynchronousTestCase):
    def test_room(self) -> None:
        """So many connections may be without a good hello; one that had it, or is gone,
        makes room, once."""
        judge = gate(hellos=2)
        for name in ("a", "b"):
            self.assertTrue(judge.admits_hello(AWAY))
            judge.hello_began(name, AWAY)
        self.assertFalse(judge.admits_hello("192.0.2.99"))
        judge.hello_over("a")
        judge.hello_over("a")
        self.assertTrue(judge.admits_hello(AWAY))
        judge.hello_began("c", AWAY)
        self.assertFalse(judge.admits_hello(AWAY))
        self.assertEqual((judge.hellos_in_flight, judge.refused_hellos), (2, 2))

    def test_one_sources_share(self) -> None:
        """One source takes its own share of the room at most; IPv6 counts by its /64. One
        that said hello, or is gone, makes room for the next."""
        judge = Admission(AdmissionLimits(0, 100, (), hellos_per_source=2))
        for name in ("a", "b"):
            judge.hello_began(name, "2001:db8::1")
        self.assertFalse(judge.admits_hello("2001:db8::99"))
        self.assertTrue(judge.admits_hello(AWAY))
        judge.hello_over("a")
        self.assertTrue(judge.admits_hello("2001:db8::99"))
        judge.hello_over("b")
        self.assertEqual(judge._of_source, {})


class Forwarded(SynchronousTestCase):
    """What a proxy says of a source is a word, no fact."""

    def test_no_address_is_no_unix_socket(self) -> None:
        """An X-Forwarded-For that names nothing is counted, with all that name nothing."""
        judge = Admission(AdmissionLimits(1, 1, DEFAULT.exempt))
        words = ("", "unknown", "unix:")
        seen = [judge.admits(word, 0.0, forwarded=True) for word in words]
        self.assertEqual(seen, [True, False, False])
        judge.hello_began("x", "", forwarded=True)
        self.assertFalse(judge.admits_hello("", forwarded=True))

    def test_loopback_in_it_is_not_exempt(self) -> None:
        """Anybody can write 127.0.0.1 there; networks that were exempted on purpose stay so."""
        judge = Admission(AdmissionLimits(1, 1, networks(("127.0.0.0/8", "::1", "10.0.0.0/8"))))
        for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.2"):
            self.assertTrue(judge.admits(address, 0.0, forwarded=True))
            self.assertFalse(judge.admits(address, 0.0, forwarded=True), address)
        self.assertTrue(all(judge.admits("10.1.2.3", 0.0, forwarded=True) for _ in range(5)))
        self.assertTrue(all(judge.admits("127.0.0.1", 0.0) for _ in range(5)))


class Settings(SynchronousTestCase):
    def test_exempt_networks_are_checked(self) -> None:
        """What is no network is told by the setting's name."""
        table = ServerTable(limit_exempt=("10.0.0.0/8", "here"))
        error = self.assertRaises(ConfigError, check, ServerSettings(server=table))
        self.assertIn("limit_exempt", str(error))

    def test_a_certificate_needs_a_key(self) -> None:
        """tls_certificate and tls_key belong together."""
        table = ServerTable(tls_certificate="/c.pem")
        self.assertRaises(ConfigError, check, ServerSettings(server=table))

    def test_addresses(self) -> None:
        """An address is read with a port or without, in brackets, with a zone."""
        for text, read in (
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
        ):
            self.assertEqual(str(read_address(text)), read)
        for text in ("", "x", "1.2.3", "_hidden:5"):
            self.assertIsNone(read_address(text))
