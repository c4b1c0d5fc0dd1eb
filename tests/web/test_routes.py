"""How a request finds its route, and what its parameters and body may be."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from twisted.trial.unittest import SynchronousTestCase

from cortextx.web.api_logs import SearchParams
from cortextx.web.problems import Problem
from cortextx.web.routes import (
    MAX_PARAMETERS,
    Body,
    Call,
    Params,
    Route,
    Routes,
    body_of,
    parameters,
    path_parts,
)


class Wanted(Params, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=10)] = 3
    share: float | None = None
    cursor: str | None = None
    hosts: tuple[str, ...] = field(default=(), name="host")
    since: Annotated[datetime, Meta(tz=True)] | None = None
    order: Literal["up", "down"] = "up"
    deep: bool = False


class Sent(Body, frozen=True):
    name: str


class Parameters(SynchronousTestCase):
    def read(self, query: str) -> Any:
        return parameters(query, Wanted)

    def fault(self, query: str) -> str:
        problem = self.assertRaises(Problem, self.read, query)
        self.assertEqual(problem.status, 400)
        return str(problem.field)

    def test_values_have_their_types(self) -> None:
        """Numbers, booleans, times and repeated parameters are read from their text."""
        read = self.read("limit=5&share=0.5&host=a&host=1&since=2026-05-16T19:42:51Z&deep=true")
        self.assertEqual((read.limit, read.share, read.deep), (5, 0.5, True))
        self.assertEqual(read.hosts, ("a", "1"))
        self.assertEqual(read.since.isoformat(), "2026-05-16T19:42:51+00:00")
        self.assertEqual(self.read(""), Wanted())

    def test_text_stays_text(self) -> None:
        """What looks like a number or null is text where text is wanted."""
        self.assertEqual(self.read("cursor=5").cursor, "5")
        self.assertEqual(self.read("cursor=null").cursor, "null")
        self.assertEqual(self.read("cursor=a%2Bb+c%C3%A9").cursor, "a+b cé")

    def test_the_fault_is_named(self) -> None:
        """A wrong parameter is told by name: range, type, unknown, doubled."""
        for query, name in (
            ("limit=11", "limit"),
            ("limit=x", "limit"),
            ("limit=", "limit"),
            ("limit=1e1", "limit"),
            ("limit=99999999999999999999", "limit"),
            ("limit=1&limit=1", "limit"),
            ("since=5", "since"),
            ("since=2026-05-16T19:42:51", "since"),
            ("order=sideways", "order"),
            ("deep=1", "deep"),
            ("hosts=a", "hosts"),
            ("nonesuch=1", "nonesuch"),
            ("cursor=%ff", "query"),
            ("&".join(["host=a"] * (MAX_PARAMETERS + 1)), "query"),
        ):
            self.assertEqual(self.fault(query), name, query[:40])


class Bodies(SynchronousTestCase):
    def test_json_alone(self) -> None:
        """Only a body that says that it is JSON is read: a page's form cannot say so."""
        self.assertEqual(
            body_of(b'{"name":"x"}', "application/json; charset=utf-8", Sent).name, "x"
        )
        for other in (None, "", "text/plain", "application/x-www-form-urlencoded"):
            problem = self.assertRaises(Problem, body_of, b'{"name":"x"}', other, Sent)
            self.assertEqual(problem.status, 415)

    def test_the_fault_is_named(self) -> None:
        """A body's fault names its member."""
        for body, name in (
            (b"{}", "name"),
            (b'{"name":1}', "name"),
            (b'{"name":"x","more":1}', "$"),
            (b"{", "$"),
            (b"", "$"),
            (b"[]", "$"),
        ):
            problem = self.assertRaises(Problem, body_of, body, "application/json", Sent)
            self.assertEqual((problem.status, problem.field), (400, name), body)


class Finding(SynchronousTestCase):
    async def run_nothing(self, call: Call) -> None:
        """Routes here are only found."""

    def setUp(self) -> None:
        self.routes = Routes(
            tuple(
                Route(method=method, path=path, role="viewer", name=name, run=self.run_nothing)
                for method, path, name in (
                    ("GET", "/hosts", "list"),
                    ("POST", "/hosts", "issue"),
                    ("GET", "/hosts/{host}", "show"),
                    ("POST", "/hosts/{host}/revoke", "revoke"),
                )
            )
        )

    def test_paths(self) -> None:
        """Method and path find a route, and the names in its path."""
        for method, parts, name, names in (
            ("GET", ("hosts",), "list", {}),
            ("POST", ("hosts",), "issue", {}),
            ("GET", ("hosts", "a/b"), "show", {"host": "a/b"}),
            ("HEAD", ("hosts", "x"), "show", {"host": "x"}),
            ("POST", ("hosts", "x", "revoke"), "revoke", {"host": "x"}),
        ):
            route, found = self.routes.find(method, parts)
            self.assertEqual((route.name, found), (name, names))

    def test_no_path(self) -> None:
        """A path that is none is 404; one part too many or empty is another path."""
        for parts in ((), ("",), ("host",), ("hosts", ""), ("hosts", "x", ""), ("hosts", "x", "y")):
            problem = self.assertRaises(Problem, self.routes.find, "GET", parts)
            self.assertEqual(problem.status, 404, parts)

    def test_no_method(self) -> None:
        """A method that a path does not know is 405, with those that it knows."""
        problem = self.assertRaises(Problem, self.routes.find, "DELETE", ("hosts",))
        self.assertEqual(problem.status, 405)
        self.assertEqual(problem.headers["Allow"], "GET, HEAD, POST")

    def test_parts_are_text(self) -> None:
        """A path that is not UTF-8, or far too long, finds nothing."""
        self.assertEqual(path_parts([b"a", "é".encode()]), ("a", "é"))
        self.assertRaises(Problem, path_parts, [b"\xff"])
        self.assertRaises(Problem, path_parts, [b"x" * 1000])

    def test_few_values(self) -> None:
        """Where only some values are right, the refusal lists them."""
        for query, values in (
            ("order=x", "one of newest_first, oldest_first"),
            ("severity_min=error", "emerg, err, info, notice, warning"),
        ):
            problem = self.assertRaises(Problem, parameters, query, SearchParams)
            self.assertEqual(problem.field, query.partition("=")[0])
            self.assertIn(values, str(problem.expected))
        problem = self.assertRaises(Problem, body_of, b'{"order":"x"}', "application/json", Ordered)
        self.assertEqual((problem.field, problem.expected), ("order", "one of down, up"))


class Ordered(Body, frozen=True):
    order: Literal["up", "down"]
