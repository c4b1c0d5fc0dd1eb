"""The forms of allowed_hosts and allowed_origins."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.server.pages import is_host, is_origin
from cortextx.fleet.server.settings import ServerSettings, ServerTable, check


class Forms(SynchronousTestCase):
    def test_hosts(self) -> None:
        """A name or an address, and nothing around it."""
        for good in ("logs", "logs.example.org", "a.b.", "xn--bcher-kva.example", "my_host",
                     "10.0.0.1", "::1", "[2001:db8::1]", "a" * 63):  # fmt: skip
            self.assertTrue(is_host(good), good)
        for bad in ("", " ", "a b", "http//x", "http://x", "x:8600", "x/y", "*.example.org", "-a",
                    "a-", "a..b", ".a", "b\u00fccher", "1.2.3", "999.1.1.1", "[::1", "[10.0.0.1]",
                    "a\n", "u@h", "a" * 64):  # fmt: skip
            self.assertFalse(is_host(bad), bad)

    def test_origins(self) -> None:
        """Scheme, host and port as browsers send them."""
        for good in ("https://x", "http://x.example:3000", "https://[::1]:8443", "HTTPS://X.org/"):
            self.assertTrue(is_origin(good), good)
        for bad in ("", "null", "*", "x", "x.example", "http//x", "https://", "ftp://x", "wss://x",
                    "https://x/app", "https://x?y", "https://u@x", "https://x:0", "https://x:65536",
                    "https://x y", " https://x", "https://x\n", "https://a..b",
                    "https://::1"):  # fmt: skip
            self.assertFalse(is_origin(bad), bad)

    def test_a_fault_is_told_with_its_field(self) -> None:
        """By the configuration's check: the field, the form, and what stands there."""
        for field, value, form in (
            ("allowed_hosts", "http//x", "without scheme"),
            ("allowed_origins", "https://x/app", "without a path"),
        ):
            settings = ServerSettings(server=ServerTable(**{field: (value,)}))  # type: ignore[arg-type]
            error = self.assertRaises(ConfigError, check, settings)
            self.assertEqual(error.field, f"server.{field}")
            self.assertIn(form, error.expected)
            self.assertIn(repr(value), error.expected)
