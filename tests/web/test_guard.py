"""Host, Origin and Bearer: who is let in at all."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.web.guard import Guard, Principal, bearer, check_role, guard_of
from cortextx.web.problems import Problem


class Hosts(SynchronousTestCase):
    guard = guard_of("wss://logs.example:443/ws/agent", ("other.example",), ())

    def test_known_names_and_addresses(self) -> None:
        """Our own names are served whatever their case and port, and so is any address."""
        for host in (
            "localhost",
            "LOGS.example:8443",
            "logs.example.",
            "other.example",
            "127.0.0.1:8600",
            "192.0.2.7",
            "[::1]:8600",
        ):
            self.guard.check_host(host)

    def test_rebound_names(self) -> None:
        """A name that somebody else made resolve to us is not served."""
        for host in ("evil.example", "logs.example.evil.example", "127.0.0.1.evil.example"):
            problem = self.assertRaises(Problem, self.guard.check_host, host)
            self.assertEqual(problem.status, 421, host)

    def test_a_url_that_is_none(self) -> None:
        """A public URL that cannot be taken apart names nothing, and breaks nothing."""
        for url in ("wss://[::1", "", "nonsense", "wss://[]/"):
            guard = guard_of(url, ("other.example",), ())
            guard.check_host("other.example")
            self.assertRaises(Problem, guard.check_host, "logs.example")

    def test_no_host(self) -> None:
        """A Host that is missing, empty or no host at all is a bad request."""
        for host in (None, "", "a b", "user@logs.example", "logs.example:http", "[::1", "a/b"):
            problem = self.assertRaises(Problem, self.guard.check_host, host)
            self.assertEqual(problem.status, 400, host)


class Origins(SynchronousTestCase):
    guard = guard_of("wss://logs.example/ws/agent", (), ("https://console.example/",))

    def test_ours(self) -> None:
        """No Origin, that of our own pages, of the public URL and allowed ones are good (S5)."""
        for origin in (
            None,
            "http://127.0.0.1:8600",
            "https://127.0.0.1:8600",
            "https://logs.example",
            "https://CONSOLE.example",
        ):
            self.guard.check_origin(origin, "127.0.0.1:8600")

    def test_foreign(self) -> None:
        """Any other page is refused, even one on another port of this machine."""
        for origin in (
            "https://evil.example",
            "ftp://127.0.0.1:8600",
            "null",
            "",
            "http://127.0.0.1:80",
            "127.0.0.1:8600",
        ):
            problem = self.assertRaises(Problem, self.guard.check_origin, origin, "127.0.0.1:8600")
            self.assertEqual(problem.status, 403, origin)


class Tokens(SynchronousTestCase):
    def test_bearer(self) -> None:
        """The scheme's name has no case; spaces around the token are none of it."""
        self.assertEqual(bearer("Bearer ctx_a-b_c"), "ctx_a-b_c")
        self.assertEqual(bearer("bearer  x= "), "x=")

    def test_no_bearer(self) -> None:
        """Anything else is told to bring one."""
        for header in (None, "", "Bearer", "Bearer ", "Basic eDp5", "Bearer a b", "Bearer é"):
            problem = self.assertRaises(Problem, bearer, header)
            self.assertEqual(problem.status, 401, header)
            self.assertTrue(problem.headers["WWW-Authenticate"].startswith("Bearer"))
        self.assertRaises(Problem, bearer, "Bearer " + "x" * 513)

    def test_roles_include_one_another(self) -> None:
        """An admin may do what an operator may, and that one what a viewer may (S8)."""
        allowed = {
            (have, want): Principal("x", have).may(want)
            for have in ("viewer", "operator", "admin")
            for want in ("viewer", "operator", "admin")
        }
        self.assertEqual(
            sorted(pair for pair, may in allowed.items() if not may),
            [("operator", "admin"), ("viewer", "admin"), ("viewer", "operator")],
        )
        self.assertRaises(Problem, check_role, Principal("x", "viewer"), "admin")

    def test_an_empty_guard(self) -> None:
        """Without a public URL only localhost and addresses are served."""
        Guard().check_host("localhost:1")
        self.assertRaises(Problem, Guard().check_host, "logs.example")
