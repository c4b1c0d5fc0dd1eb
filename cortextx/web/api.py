"""/api/v1: HTTP requests to routes, and what they answer back as JSON.

Every request passes the guard first: a Host that we know, no foreign Origin, a
Bearer token that is good (S8). A failed search, or anything else that cannot be
done, is a problem with a status of its own, never an empty answer (A62). When a
client goes away, what it asked for is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import server
from twisted.web.resource import IResource, Resource
from zope.interface import implementer

from cortextx.core import jsontext
from cortextx.errors import in_words
from cortextx.fleet.server import tokens
from cortextx.interfaces.fleet_records import ApiToken, IApiTokens
from cortextx.web.flow import PIECE_BYTES, Flow, Paced, Stalled
from cortextx.web.guard import Guard, Principal, bearer, check_role, unauthorized
from cortextx.web.problems import CONTENT_TYPE, INTERNAL, Problem, problem_of, wrong
from cortextx.web.routes import Call, Route, Routes, body_of, parameters, path_parts
from cortextx.web.sse import EventSink

STALL_SECONDS = 300.0
"""How long a client of a stream may take nothing of what was sent to it."""
USED_EVERY = 60_000_000
"""µs between two notes of a token's last use."""


class Authenticator:
    """Knows API tokens by their hashes. `wall` gives µs UTC."""

    log = Logger()

    def __init__(self, tokens: IApiTokens, wall: Callable[[], int]) -> None:
        self._tokens = tokens
        self._wall = wall
        self._noted: dict[str, int] = {}

    async def principal(self, authorization: str | None) -> Principal:
        """Who sends this Authorization header; raises Problem 401."""
        token = bearer(authorization)
        found = await self._tokens.find_token(tokens.hash_token(token))
        now = self._wall()
        if found is None or found.revoked_at is not None:
            raise unauthorized("the token is not known here, or was revoked")
        if found.expires_at is not None and found.expires_at <= now:
            raise unauthorized("the token has expired")
        self._note(found, now)
        return Principal(found.name, found.role)

    def _note(self, token: ApiToken, now: int) -> None:
        """Write down that a token was used, now and then, without waiting for it."""
        if now - self._noted.get(token.name, 0) < USED_EVERY:
            return
        self._noted[token.name] = now

        def failed(failure: Failure) -> None:
            self.log.warn("a token's use was not noted: {why}", why=in_words(failure.value))

        self._tokens.tokens_used({token.name: now}).addErrback(failed)


@implementer(IResource)
class Api(Resource):
    """All that is below /api/v1.

    `counted` is told each answer's route and status, for the metrics. A client that
    takes nothing of an answer for `stall_seconds` is dropped.
    """

    isLeaf = True
    log = Logger()

    def __init__(
        self,
        reactor: Any,
        guard: Callable[[], Guard],
        authenticator: Authenticator,
        routes: Routes,
        flow: Flow,
        counted: Callable[[str, int], None] = lambda route, status: None,
        stall_seconds: Callable[[], float] = lambda: STALL_SECONDS,
    ) -> None:
        super().__init__()
        self._reactor = reactor
        self._guard = guard
        self._authenticator = authenticator
        self._routes = routes
        self._flow = flow
        self._counted = counted
        self._stall_seconds = stall_seconds

    def render(self, request: Any) -> Any:
        exchange = Exchange(request)
        running = Deferred.fromCoroutine(self._answer(exchange))
        request.notifyFinish().addErrback(lambda _: exchange.went(running))
        running.addErrback(exchange.broken)
        return server.NOT_DONE_YET

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._carry_out(exchange)
        except Exception as error:
            problem = problem_of(error)
            if exchange.gone and isinstance(error, CancelledError):
                return
            if isinstance(error, Stalled):
                self.log.info("{route}: {why}", route=exchange.route, why=in_words(error))
                exchange.refuse(INTERNAL)
                return
            if problem is None:
                self.log.failure("{route} failed", route=exchange.route)
                problem = INTERNAL
            exchange.refuse(problem)
        finally:
            self._counted(exchange.route, exchange.status)

    async def _carry_out(self, exchange: Exchange) -> None:
        request = exchange.request
        guard, host = self._guard(), exchange.only_header("Host")
        guard.check_host(host)
        guard.check_origin(exchange.only_header("Origin"), host or "")
        route, names = self._routes.find(
            request.method.decode("ascii", "replace"), path_parts(request.postpath)
        )
        exchange.route = route.name
        authorization = exchange.only_header("Authorization")
        principal = await self._authenticator.principal(authorization)
        check_role(principal, route.role)
        call = Call(
            principal=principal,
            names=names,
            params=parameters(exchange.query(), route.params),
            body=exchange.body(route),
            last_event_id=exchange.only_header("Last-Event-ID"),
        )
        who = principal.name
        if route.stream:
            with self._flow.tailing(who):
                await self._stream(exchange, route, call, authorization)
            return
        self._flow.check(who)
        async with self._flow.searching(who) if route.searches else nullcontext():
            answer = await route.run(call)
        if route.answer is None:
            exchange.finish(204, b"")
            return
        body = jsontext.encode(answer)
        del answer
        with self._flow.sending(who, len(body)):
            paced = Paced(self._reactor, exchange.request, self._stall_seconds())
            await exchange.write(route.status, body, paced)
        # Only now, as it is this that has the connection's next request looked at.
        exchange.end()

    async def _stream(
        self, exchange: Exchange, route: Route, call: Call, authorization: str | None
    ) -> None:
        if exchange.request.method == b"HEAD":
            exchange.request.setHeader(b"Content-Type", b"text/event-stream; charset=utf-8")
            exchange.finish(200, b"")
            return
        sink = EventSink(self._reactor, exchange.request, STALL_SECONDS, exchange.began)

        async def still_allowed() -> None:
            check_role(await self._authenticator.principal(authorization), route.role)

        await route.run(
            Call(
                principal=call.principal,
                names=call.names,
                params=call.params,
                last_event_id=call.last_event_id,
                events=sink,
                still_allowed=still_allowed,
            )
        )
        sink.end()


def only_header(headers: Any, name: str) -> str | None:
    """A header that may be there once, None without; raises Problem 400."""
    values: Sequence[bytes] = headers.getRawHeaders(name.encode()) or ()
    if len(values) > 1:
        raise wrong(name, "to be given once")
    return values[0].decode("latin-1").strip() if values else None


class Exchange:
    """One request and its answer, which is given once, to a client that is still there."""

    log = Logger()

    def __init__(self, request: Any) -> None:
        self.request = request
        self.route = "none"
        self.status = 0
        self.gone = False
        self._begun = False
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Content-Type-Options", b"nosniff")

    def only_header(self, name: str) -> str | None:
        """A header that may be there once, None without; raises Problem 400."""
        return only_header(self.request.requestHeaders, name)

    def query(self) -> str:
        """The query string as it came."""
        query: bytes = self.request.uri.partition(b"?")[2]
        return query.decode("ascii", "replace")

    def body(self, route: Route) -> Any:
        """The request's body as the route wants it."""
        if route.body is None:
            if self.request.content.read(1):
                raise wrong("body", "no body")
            return None
        return body_of(self.request.content.read(), self.only_header("Content-Type"), route.body)

    async def write(self, status: int, body: bytes, paced: Paced) -> None:
        """Write what a route answered, as fast as the client takes it; then comes `end`."""
        self.status = status
        if self.gone:
            return
        self.request.setHeader(b"Content-Type", b"application/json")
        self.request.setResponseCode(status)
        self.request.setHeader(b"Content-Length", b"%d" % len(body))
        if len(body) <= PIECE_BYTES or self.request.method == b"HEAD":
            self.request.write(body)
            return
        self.began()
        self.status = status
        await paced.send_body(body)

    def end(self) -> None:
        """All of the answer is written."""
        if not self.gone:
            self.request.finish()

    def refuse(self, problem: Problem) -> None:
        """Send a problem; an answer that has begun can only be cut off."""
        if self._begun:
            self.status = problem.status
            if not self.gone:
                self.request.channel.transport.abortConnection()
            return
        for name, value in problem.headers.items():
            self.request.setHeader(name.encode(), value.encode())
        self.request.setHeader(b"Content-Type", CONTENT_TYPE)
        self.finish(problem.status, jsontext.encode(problem.body()))

    def finish(self, status: int, body: bytes) -> None:
        """Send the answer."""
        self.status = status
        if self.gone:
            return
        self.request.setResponseCode(status)
        if status != 204:
            self.request.setHeader(b"Content-Length", b"%d" % len(body))
        self.request.write(body)
        self.end()

    def began(self) -> None:
        """The head of an answer that comes in pieces is being sent."""
        self._begun = True
        self.status = 200

    def went(self, running: Deferred[None]) -> None:
        """The client has gone."""
        self.gone = True
        running.cancel()

    def broken(self, failure: Failure) -> None:
        """Answering failed itself."""
        self.log.failure("{route} could not be answered", failure, route=self.route)
        if not self.gone:
            self.request.channel.transport.abortConnection()
