"""--server: which URLs and tokens are taken, and how a stream of events is read (F39)."""

from __future__ import annotations

import http.client
import io
import os
import tempfile
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import NotReachable, Refused
from cortextx.app.cli.http_api import refusal_of, server_sent
from tests.app.scripted import Scripted

NOWHERE = "http://127.0.0.1:1"


class Options(SynchronousTestCase):
    def token_file(self, text: str) -> str:
        made, path = tempfile.mkstemp()
        self.addCleanup(os.unlink, path)
        os.write(made, text.encode())
        os.close(made)
        return path

    def ask(self, url: str, token: str = "ctx_x", *more: str) -> Any:
        return Scripted()(
            "agent", "list", "--server", url, "--token-file", self.token_file(token), *more
        )

    def test_urls(self) -> None:
        """Only http(s) URLs without secrets in them are taken, http only to this machine."""
        for url in (
            "logs.example", "ws://127.0.0.1:8600", "https://", "https://u:p@x", "https://x:y",
            "https://x?a", "https://x#a", "http://logs.example", "http://192.0.2.1:8600",
        ):  # fmt: skip
            done = self.ask(url)
            self.assertEqual((done.code, done.out), (2, ""), url)

    def test_tokens(self) -> None:
        """A token is needed, is one word, and is never repeated (F23)."""
        for token in ("", "  \n", "secret1 secret2", "secret\nsecret", "secrét", "s" * 600):
            done = self.ask(NOWHERE, token)
            self.assertEqual(done.code, 2, token)
            self.assertNotIn("secr", done.err)
        self.assertEqual(Scripted()("agent", "list", "--server", NOWHERE).code, 2)
        done = Scripted()("agent", "list", "--server", NOWHERE, "--token-file", "/nonexistent")
        self.assertEqual(done.code, 2)

    def test_ca_file(self) -> None:
        """A CA's file that is none is wrong usage."""
        for path in ("/nonexistent", self.token_file("no pem")):
            done = self.ask("https://127.0.0.1:1", "ctx_x", "--ca-file", path)
            self.assertEqual(done.code, 2)
            self.assertIn(path, done.err)

    def test_nobody_there(self) -> None:
        """Where nobody listens the exit code is 3, as on the server's machine."""
        done = self.ask(NOWHERE)
        self.assertEqual((done.code, done.out), (3, ""))
        self.assertIn("no server listens at 127.0.0.1:1", done.err)


class Lines(io.BytesIO):
    """Stands in for a response, of which only bytes are read."""

    status = 400


def response(content: bytes, status: int = 400) -> http.client.HTTPResponse:
    made = Lines(content)
    made.status = status
    return cast(http.client.HTTPResponse, made)


class Events(SynchronousTestCase):
    def events(self, content: bytes) -> list[Any]:
        return list(server_sent(response(content), lambda: NotReachable("gone")))

    def test_kinds(self) -> None:
        """Entries, positions without data, and comments that say nothing."""
        content = (
            b": tail\n\nid: 1\nevent: entry\ndata: {}\n\n: alive\n\nid: 9\n\n"
            b'id: 12\nevent: gap\ndata: {"a": 1}\n\n'
        )
        self.assertEqual(
            self.events(content),
            [("entry", 1, b"{}"), (None, 9, b""), ("gap", 12, b'{"a": 1}')],
        )

    def test_a_stream_that_breaks_off(self) -> None:
        """An event that is not whole is none, at whatever byte it breaks off."""
        whole = b"id: 1\nevent: entry\ndata: {}\n\n"
        for end in range(len(whole)):
            self.assertEqual(self.events(whole[:end]), [], end)


class Problems(SynchronousTestCase):
    def refusal(self, content: bytes, status: int) -> Refused:
        found = refusal_of(response(content, status))
        assert isinstance(found, Refused)
        return found

    def test_codes(self) -> None:
        """A problem's code decides the exit code as an op's error does."""
        for code, status, exit_code in (
            ("not_found", 404, 4), ("bad_request", 400, 2), ("unavailable", 503, 3),
            ("forbidden", 403, 1), ("not_connected", 409, 3),
        ):  # fmt: skip
            found = self.refusal(b'{"code": "%s", "detail": "so"}' % code.encode(), status)
            self.assertEqual((found.exit_code, found.message), (exit_code, "so"))

    def test_what_is_no_problem_document(self) -> None:
        """A proxy's page is told as its status; one that says 502 to 504 may pass by."""
        self.assertEqual(self.refusal(b"<html>", 404).code, "http_404")
        self.assertEqual(self.refusal(b"<html>", 502).exit_code, 3)
        self.assertIn("token", str(self.refusal(b"", 401).hint))
