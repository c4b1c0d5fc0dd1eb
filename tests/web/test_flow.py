"""What clients that do not read may cost: bounded bytes, searches, and time."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from cortextx.web.flow import PIECE_BYTES
from cortextx.web.site import UNREAD_SECONDS
from tests.web.case import Stuffed, WebCase

MIB = 1_048_576
BIG = ["x" * 60_000] * 20


class FlowCase(WebCase):
    table = {
        "api_answer_bytes": 2 * MIB,
        "api_answer_bytes_per_token": MIB,
        "api_searches_per_token": 2,
        "slow_peer_secs": 10,
    }

    def setUp(self) -> None:
        super().setUp()
        self.issue()
        self.push(*BIG)

    def stuffed(self, path: str = "/search", times: int = 1, role: Any = "viewer") -> Stuffed:
        """Ask, and read nothing of the answers."""
        client = Stuffed(self.site)
        self.addCleanup(client.lost)
        sent = {"Host": "127.0.0.1", "Authorization": f"Bearer {self.token(role)}"}
        for _ in range(times):
            client.ask("GET", f"/api/v1{path}", sent)
        return client

    def sent(self, client: Stuffed) -> int:
        return len(client.transport.value())


class Unread(FlowCase):
    def test_a_large_answer_is_sent_as_it_is_read(self) -> None:
        """A client that does not read gets one piece, and the whole answer when it does."""
        client = self.stuffed()
        self.assertLess(self.sent(client), 2 * PIECE_BYTES)
        while client.read():
            pass
        self.assertEqual(len(client.answer().json["entries"]), len(BIG))

    def test_pipelined_requests_wait(self) -> None:
        """The answer to a request is taken before the next request is looked at, large or
        small: what one connection costs does not grow with what it asks."""
        searches: list[int] = []
        search = self.store.search

        def counted(*args: Any) -> Any:
            searches.append(1)
            return search(*args)

        self.patch(self.store, "search", counted)
        client = self.stuffed(times=10)
        self.assertEqual(len(searches), 1)
        self.assertLess(self.sent(client), 2 * PIECE_BYTES)
        small = self.stuffed("/search?limit=1", 50, role="admin")
        self.assertEqual(len(searches), 3)
        self.assertLess(self.sent(small), 3 * PIECE_BYTES)
        for each in (client, small):
            while each.read():
                pass
        self.assertEqual(len(searches), 60)
        self.assertEqual(client.transport.value().count(b"HTTP/1.1 200 OK"), 10)

    def test_of_one_token(self) -> None:
        """Who leaves answers unread is refused more; others are not, nor is he afterwards."""
        client = self.stuffed()
        refused = self.ask("/search")
        self.assertEqual((refused.status, refused.headers["retry-after"]), (429, "2"))
        self.assertEqual(self.ask("/search", {"limit": 1}, role="admin").status, 200)
        client.lost()
        self.good("/search")

    def test_in_all(self) -> None:
        """All answers together are bounded too."""
        self.stuffed()
        self.stuffed(role="operator")
        refused = self.ask("/search", role="admin")
        self.assertEqual((refused.status, refused.headers["retry-after"]), (503, "2"))

    def test_who_takes_nothing_is_dropped(self) -> None:
        """After `slow_peer_secs` without a byte taken the connection is cut, and the place free."""
        client = self.stuffed()
        self.clock.advance(9)
        client.read()
        self.clock.advance(9)
        self.assertFalse(client.transport.aborted)
        self.clock.advance(1)
        self.assertTrue(client.transport.aborted)
        client.lost()
        self.good("/search")

    def test_small_answers_too(self) -> None:
        """So is a connection that is full of small answers."""
        small = self.stuffed("/search?limit=1", 50)
        self.clock.advance(UNREAD_SECONDS)
        self.assertTrue(small.transport.aborted)


class Searches(FlowCase):
    def test_of_one_token_at_a_time(self) -> None:
        """A token has a bounded number of searches under way; one that is given up counts no
        more, and is cancelled in the store when its client goes."""
        cancelled: list[int] = []
        search = self.store.search
        self.patch(self.store, "search", lambda *args: Deferred(lambda _: cancelled.append(1)))
        clients = [self.stuffed(), self.stuffed()]
        self.refused(429, "/search")
        clients[0].lost()
        self.assertEqual(len(cancelled), 1)
        clients[1].lost()
        self.assertEqual(len(cancelled), 2)
        self.patch(self.store, "search", search)
        self.good("/search", {"limit": 1})
        self.patch(self.store, "histogram", lambda *args: Deferred())
        self.stuffed("/histogram")
        self.stuffed("/histogram")
        self.refused(429, "/histogram")

    def test_take_turns(self) -> None:
        """A token's searches reach the store one after the other, another token's do not wait,
        and one whose client goes gives its turn away."""
        waiting: list[Deferred[Any]] = []

        def slow(*args: Any) -> Deferred[Any]:
            waiting.append(Deferred())
            return waiting[-1]

        search = self.store.search
        self.patch(self.store, "search", slow)
        first, second = self.stuffed(), self.stuffed()
        self.assertEqual(len(waiting), 1)
        self.patch(self.store, "search", search)
        self.assertEqual(self.ask("/search", {"limit": 1}, role="admin").status, 200)
        self.patch(self.store, "search", slow)
        first.lost()
        self.assertEqual(len(waiting), 2)
        second.lost()
        self.patch(self.store, "search", search)
        self.good("/search", {"limit": 1})
