"""GET /readyz: whether this server should be sent work; and what answers without a token.

/healthz says that the process and its store live. /readyz says more: 503 while
the server stops, and while the store takes no entries (as with a full disk), so
that a load balancer can leave it alone. Neither tells anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web import http, server
from twisted.web.resource import IResource
from zope.interface import implementer

from cortextx.errors import in_words
from cortextx.web.guard import Guard
from cortextx.web.problems import Problem
from cortextx.web.refusals import Refusing, refused

READY_SECONDS = 5.0
"""How long the store may take to show that it answers."""


class Readiness(Protocol):
    """Who knows whether the server can take work."""

    @property
    def unready(self) -> str | None:
        """Why not, in a few words; None if it can."""

    def is_healthy(self) -> Deferred[None]:
        """Fires if the store answers, fails if it does not."""


@implementer(IResource)
class Readyz(Refusing):
    """The resource."""

    isLeaf = True
    log = Logger()

    def __init__(self, reactor: Any, readiness: Readiness) -> None:
        super().__init__()
        self._reactor = reactor
        self._readiness = readiness

    def render_GET(self, request: Any) -> Any:
        gone: list[bool] = []
        request.notifyFinish().addErrback(lambda _: gone.append(True))
        asked = Deferred.fromCoroutine(self._why_not())
        asked.addCallback(lambda why: None if gone else answer(request, why))
        asked.addErrback(lambda failure: self.log.failure("/readyz failed", failure))
        return server.NOT_DONE_YET

    async def _why_not(self) -> str | None:
        why = self._readiness.unready
        if why is None:
            try:
                await self._readiness.is_healthy().addTimeout(READY_SECONDS, self._reactor)
            except Exception as error:
                self.log.warn("/readyz: the store does not answer: {why}", why=in_words(error))
                why = "the store does not answer"
        return why


def answer(request: Any, why: str | None) -> None:
    """200 `ready`, or 503 with what is wrong."""
    request.setHeader(b"Content-Type", b"text/plain; charset=utf-8")
    request.setHeader(b"Cache-Control", b"no-store")
    if why is not None:
        request.setResponseCode(http.SERVICE_UNAVAILABLE)
    body = f"{why or 'ready'}\n".encode()
    request.setHeader(b"Content-Length", b"%d" % len(body))
    request.write(body)
    request.finish()


class Document(Refusing):
    """A JSON document that anybody may read who calls us by a name of ours."""

    isLeaf = True

    def __init__(self, guard: Callable[[], Guard], text: bytes) -> None:
        super().__init__()
        self._guard = guard
        self._text = text

    def render_GET(self, request: Any) -> bytes:
        try:
            self._guard().check_host(request.getHeader("Host"))
        except Problem as problem:
            return refused(request, problem)
        request.setHeader(b"Content-Type", b"application/json")
        request.setHeader(b"Cache-Control", b"no-cache")
        return self._text
