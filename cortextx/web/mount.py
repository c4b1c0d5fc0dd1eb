"""What is mounted beside /ws/agent and /healthz: /api/v1, /metrics, /readyz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.web.resource import IResource
from zope.interface import implementer

from cortextx.core import jsontext
from cortextx.errors import CortexError
from cortextx.fleet.server.settings import ServerTable
from cortextx.web.api import Api, Authenticator, only_header
from cortextx.web.api_admin import AdminRoutes
from cortextx.web.api_configs import ConfigRoutes
from cortextx.web.api_hosts import HostRoutes
from cortextx.web.api_logs import LogRoutes
from cortextx.web.api_probes import ProbeRoutes
from cortextx.web.api_tail import TailRoutes
from cortextx.web.flow import Flow
from cortextx.web.guard import Guard, guard_of
from cortextx.web.health import Document, Readyz
from cortextx.web.metrics import AnswerCounts, Metrics
from cortextx.web.openapi import document
from cortextx.web.refusals import NotThere, Refusing
from cortextx.web.routes import Routes
from cortextx.web.sources import Sources


def routes_of(sources: Sources) -> Routes:
    """All routes of the API."""
    return Routes(
        (
            *LogRoutes(sources).routes(),
            *TailRoutes(sources).routes(),
            *HostRoutes(sources).routes(),
            *ProbeRoutes(sources).routes(),
            *ConfigRoutes(sources).routes(),
            *AdminRoutes(sources).routes(),
        )
    )


def mounts(sources: Sources) -> dict[bytes, IResource]:
    """The resources by the first part of their paths."""
    guard = LiveGuard(sources)
    authenticator = Authenticator(sources.store, sources.wall)
    counts = AnswerCounts()
    routes = routes_of(sources)
    fleet = sources.fleet
    api = Api(
        sources.reactor,
        guard.current,
        authenticator,
        routes,
        Flow(lambda: fleet.settings.server),
        counts.counted,
        lambda: fleet.slow_peer_seconds,
    )
    text = jsontext.encode(document(routes.routes, sources.fleet.version))
    versions = Versions(guard.current, authenticator)
    versions.putChild(b"v1", VersionOne(api, Document(guard.current, text)))
    return {
        b"api": versions,
        b"metrics": Metrics(sources, guard.current, authenticator, counts),
        b"readyz": Readyz(sources.reactor, sources.fleet),
    }


class LiveGuard:
    """The guard by the settings as they are now: a reload may change them (A59)."""

    def __init__(self, sources: Sources) -> None:
        self._fleet = sources.fleet
        self._made: tuple[ServerTable, str | None, Guard] | None = None

    def current(self) -> Guard:
        """The guard."""
        table, own = self._fleet.settings.server, self._fleet.own_url
        if self._made is None or self._made[0] is not table or self._made[1] != own:
            guard = guard_of(table.public_url or own, table.allowed_hosts, table.allowed_origins)
            self._made = table, own, guard
        return self._made[2]


@implementer(IResource)
class Versions(Refusing):
    """/api: what is below it takes bodies from who is known (`bodies.BodyGate`)."""

    def __init__(self, guard: Callable[[], Guard], authenticator: Authenticator) -> None:
        super().__init__()
        self._guard = guard
        self._authenticator = authenticator

    def admits_body(self, headers: Any) -> Deferred[bool]:
        """By its Host, its Origin and its token, as the request itself is judged then."""
        return Deferred.fromCoroutine(self._admits(headers))

    async def _admits(self, headers: Any) -> bool:
        try:
            host = only_header(headers, "Host")
            guard = self._guard()
            guard.check_host(host)
            guard.check_origin(only_header(headers, "Origin"), host or "")
            await self._authenticator.principal(only_header(headers, "Authorization"))
        except CortexError:
            return False
        return True


@implementer(IResource)
class VersionOne(NotThere):
    """/api/v1: its description, and else the API, which finds its routes itself."""

    isLeaf = False

    def __init__(self, api: Api, description: Document) -> None:
        super().__init__()
        self._api = api
        self.putChild(b"openapi.json", description)

    def getChild(self, path: bytes, request: Any) -> IResource:
        request.postpath.insert(0, request.prepath.pop())
        return self._api
