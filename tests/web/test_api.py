"""What every request meets: the guard, roles, errors, and a client that goes away."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, fail

from cortextx.errors import StoreError, StoreFull
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet_records import Role
from cortextx.web.mount import routes_of
from tests.web.case import HOST_A, WebCase


class Access(WebCase):
    def test_without_a_token_nothing_is_told(self) -> None:
        """Every route needs a token, on loopback too (S5, S8)."""
        for route in routes_of(self.sources).routes:
            path = route.path.replace("{", "").replace("}", "")
            problem = self.refused(401, path, method=route.method, role=None)
            self.assertEqual(problem["code"], "unauthorized", route.name)

    def test_an_unknown_token_is_as_good_as_none(self) -> None:
        """A token that was never made is refused."""
        headers: dict[str, str | None] = {"Authorization": "Bearer ctx_nonesuch"}
        answer = self.ask("/whoami", headers=headers)
        self.assertEqual(answer.status, 401)
        self.assertIn("Bearer", answer.headers["www-authenticate"])

    def test_a_token_ends(self) -> None:
        """A token is good until it expires, and not at that moment any more."""
        self.token("viewer", expires_in=60)
        self.assertEqual(self.good("/whoami"), {"name": "my-viewer", "role": "viewer"})
        self.clock.advance(60)
        self.refused(401, "/whoami")

    def test_a_revoked_token_is_refused_at_once(self) -> None:
        """Revoking needs no restart and no wait."""
        self.good("/whoami")
        self.good("/tokens/my-viewer", method="DELETE", role="admin")
        self.refused(401, "/whoami")

    def test_roles(self) -> None:
        """Each route is refused to every role below its own, and to no other (S8)."""
        roles: tuple[Role, ...] = ("viewer", "operator", "admin")
        for route in routes_of(self.sources).routes:
            if route.stream:
                continue
            path = route.path.replace("{", "").replace("}", "")
            for role in roles:
                answer = self.ask(path, method=route.method, role=role)
                allowed = roles.index(role) >= roles.index(route.role)
                self.assertEqual(answer.status != 403, allowed, (route.name, role))

    def test_a_rebound_name(self) -> None:
        """A Host that is not ours is refused before the token is looked at."""
        self.refused(421, "/whoami", headers={"Host": "evil.example"})
        self.refused(400, "/whoami", headers={"Host": None})

    def test_a_foreign_page(self) -> None:
        """A good token does not help a page of another origin (S5)."""
        self.refused(403, "/whoami", headers={"Origin": "https://evil.example"})
        self.good("/whoami", headers={"Origin": "http://127.0.0.1:8600"})

    def test_a_reload_may_add_names(self) -> None:
        """allowed_hosts and allowed_origins hold from the next request on (A59)."""
        headers: dict[str, str | None] = {"Host": "x.example", "Origin": "https://y.example"}
        self.refused(421, "/whoami", headers=headers)
        table = ServerTable(allowed_hosts=("x.example",), allowed_origins=("https://y.example",))
        self.fleet.apply(ServerSettings(server=table))
        self.good("/whoami", headers=headers)

    def test_use_is_noted(self) -> None:
        """When a token was last used can be seen, to the minute."""
        self.good("/whoami")
        [token] = self.good("/tokens", role="admin")["tokens"][1:]
        self.assertEqual(token["name"], "my-viewer")
        self.assertIsNotNone(token["last_used_at"])


class Faults(WebCase):
    def test_what_is_not_there(self) -> None:
        """An unknown path is a problem, and a known one with another method says which."""
        self.refused(404, "/nonesuch")
        answer = self.ask("/search", method="DELETE")
        self.assertEqual((answer.status, answer.headers["allow"]), (405, "GET, HEAD"))

    def test_the_field_is_named(self) -> None:
        """A wrong parameter is told by name and what was expected, without its value."""
        problem = self.refused(400, "/search", {"limit": "12345678"})
        self.assertEqual(problem["field"], "limit")
        self.assertIn("1000", problem["expected"])
        self.assertNotIn("12345678", str(problem))

    def test_a_body_where_none_belongs(self) -> None:
        """A body is refused where it would be ignored."""
        self.assertEqual(self.refused(400, "/hosts", body={"x": 1})["field"], "body")

    def test_store_errors(self) -> None:
        """What the store cannot do has a status of its own (A62)."""
        for error, status in (
            (StoreFull("no room"), 507),
            (StoreError("the query took too long"), 503),
        ):
            self.patch(self.store, "search", lambda *args, error=error: fail(error))
            answer = self.ask("/search")
            self.assertEqual(answer.status, status)
            self.assertEqual("retry-after" in answer.headers, status == 503)

    def test_a_fault_of_ours_tells_nothing(self) -> None:
        """An exception is logged, and nothing of it is told."""
        self.patch(self.store, "search", lambda *args: fail(RuntimeError("secret")))
        problem = self.refused(500, "/search")
        self.assertNotIn("secret", str(problem))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_client_that_goes_takes_its_query_along(self) -> None:
        """When the client goes away, what it asked the store for is cancelled."""
        cancelled: list[Any] = []
        self.patch(self.store, "search", lambda *args: Deferred(cancelled.append))
        client = self.begin("/api/v1/search")
        self.assertEqual(cancelled, [])
        client.lost()
        self.assertEqual(len(cancelled), 1)

    def test_head(self) -> None:
        """HEAD answers as GET does, without a body."""
        answer = self.ask("/hosts", method="HEAD")
        self.assertEqual((answer.status, answer.body), (200, b""))
        self.assertNotEqual(answer.headers["content-length"], "0")

    def test_answers_are_nobody_elses(self) -> None:
        """Answers are not to be stored, nor guessed at."""
        headers = self.ask("/hosts").headers
        self.assertEqual(headers["cache-control"], "no-store")
        self.assertEqual(headers["x-content-type-options"], "nosniff")

    def test_header_given_twice(self) -> None:
        """Two Host headers are a bad request: whoever stands in front may have read the other."""
        self.refused(400, "/whoami", headers={"host": "127.0.0.1"})


class Others(WebCase):
    def test_readyz(self) -> None:
        """/readyz is 200 while entries can be taken, and 503 while the store is full."""
        self.assertEqual(self.begin("/readyz", role=None).answer().status, 200)
        self.issue()
        self.patch(self.store, "append", lambda batches: fail(StoreFull("no room")))
        self.push("x")
        self.flushLoggedErrors(AssertionError)
        answer = self.begin("/readyz", role=None).answer()
        self.assertEqual((answer.status, answer.body), (503, b"the store takes no entries\n"))

    def test_readyz_while_stopping(self) -> None:
        """/readyz is 503 from the first moment of a stop."""
        Deferred.fromCoroutine(self.fleet.stop())
        self.assertEqual(self.begin("/readyz", role=None).answer().status, 503)

    def test_a_store_that_does_not_answer(self) -> None:
        """/readyz is 503 when the store fails, or takes too long."""
        self.patch(self.store, "head", lambda: fail(StoreError("gone")))
        self.assertEqual(self.begin("/readyz", role=None).answer().status, 503)
        self.patch(self.store, "head", lambda: Deferred())
        client = self.begin("/readyz", role=None)
        self.clock.advance(5)
        self.assertEqual(client.answer().status, 503)

    def test_hosts_are_told(self) -> None:
        """A host that is issued is listed, and shown by name and id."""
        self.issue()
        [row] = self.good("/hosts")["hosts"]
        self.assertEqual((row["name"], row["host_id"]), ("web1", HOST_A))
        for ref in ("web1", HOST_A):
            self.assertEqual(self.good(f"/hosts/{ref}")["host_id"], HOST_A)
        self.refused(404, "/hosts/nobody")
