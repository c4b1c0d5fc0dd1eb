"""Bodies are held only for who may send one."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from cortextx.web.bodies import Body, Unjudged
from tests.web.case import Client, WebCase


class Held(WebCase):
    """What the site holds of a body while it comes."""

    def half(self, path: str = "/api/v1/hosts", **headers: str | None) -> Client:
        """A POST whose body of 1000 bytes has come but for its last."""
        client = Client(self.site)
        given = {"Host": "localhost", "Content-Length": "1000", **headers}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()
        client.protocol.dataReceived(head + b"{" + b" " * 998)
        return client

    def held(self, client: Client) -> int:
        content: Any = client.protocol.requests[-1].content
        return len(content.getvalue())

    def test_who_is_known(self) -> None:
        """All of it is kept."""
        token = f"Bearer {self.token('admin')}"
        self.assertEqual(self.held(self.half(Authorization=token)), 999)
        self.assertEqual(self.site.unjudged.held, 0)

    def test_strangers(self) -> None:
        """Without a token that is good, under another name, or from another's page: a byte."""
        token = f"Bearer {self.token('admin')}"
        for headers in (
            {},
            {"Authorization": "Bearer ctx_" + "x" * 43},
            {"Authorization": "Basic eDp5"},
            {"Authorization": token, "Host": "evil.example"},
            {"Authorization": token, "Origin": "https://evil.example"},
        ):
            client = self.half(**headers)
            self.assertEqual(self.held(client), 1, headers)
            client.protocol.dataReceived(b"}")
            self.assertIn(client.answer().status, (401, 403, 421), headers)

    def test_where_nobody_takes_a_body(self) -> None:
        """Elsewhere than below /api nothing is kept, whoever sends it."""
        token = f"Bearer {self.token('admin')}"
        for path in ("/healthz", "/metrics", "/ws/agent", "/nowhere", "/"):
            self.assertEqual(self.held(self.half(path, Authorization=token)), 1, path)

    def test_an_upgrade_with_a_body_is_refused(self) -> None:
        """Though the body itself is dropped."""
        client = self.half("/ws/agent")
        client.protocol.dataReceived(b"}")
        self.assertEqual(client.answer().status, 400)

    def test_a_look_up_that_outlasts_the_body(self) -> None:
        """The body is read as a whole, though it was complete before its sender was known."""
        token, find = f"Bearer {self.token('admin')}", self.store.find_token
        waiting: list[tuple[bytes, Deferred[Any]]] = []

        def find_token(token_hash: bytes) -> Deferred[Any]:
            waiting.append((token_hash, Deferred()))
            return waiting[-1][1]

        self.store.find_token = find_token  # type: ignore[method-assign]
        client = Client(self.site)
        self.addCleanup(client.lost)
        headers: dict[str, str | None] = {
            "Host": "localhost",
            "Authorization": token,
            "Content-Type": "application/json",
        }
        client.ask("POST", "/api/v1/hosts", headers, b'{"name":"web7"}')
        self.assertEqual(len(waiting), 2)
        for token_hash, answer in waiting:
            find(token_hash).chainDeferred(answer)
        self.assertEqual(client.answer().status, 201, client.answer().body)
        self.assertEqual(self.site.unjudged.held, 0)

    def test_a_bound_for_all(self) -> None:
        """While tokens are looked up, bodies have a bound together; who exceeds it is told to
        come again, and what goes away or is judged makes room."""
        waiting: list[Deferred[Any]] = []

        def find_token(token_hash: bytes) -> Deferred[Any]:
            waiting.append(Deferred())
            return waiting[-1]

        self.store.find_token = find_token  # type: ignore[method-assign]
        self.site.unjudged.limit = 2500
        token = "Bearer ctx_" + "x" * 43
        first, second = self.half(Authorization=token), self.half(Authorization=token)
        self.assertEqual(self.site.unjudged.held, 2 * 999)
        third = self.half(Authorization=token)
        third.protocol.dataReceived(b"}")
        self.assertEqual(third.answer().status, 503)
        self.assertEqual(third.answer().json["code"], "unavailable")
        self.assertTrue(third.transport.disconnecting)
        self.assertEqual(self.site.unjudged.held, 2 * 999)
        first.lost()
        waiting[1].callback(None)
        self.assertEqual(self.site.unjudged.held, 0)
        self.assertEqual(self.held(second), 1)


class Dropping(SynchronousTestCase):
    def test_what_came_before_is_dropped_too(self) -> None:
        """Once it is known who sends it; only that there was a body stays known."""
        body, all, judged = Body(), Unjudged(), Deferred[bool]()
        body.judge_by(judged, all, lambda: None)
        body.write(b"abc")
        self.assertEqual(all.held, 3)
        judged.callback(False)
        body.write(b"def")
        self.assertEqual((body.getvalue(), all.held), (b"a", 0))
