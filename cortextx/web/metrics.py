"""GET /metrics: the server's state for Prometheus, in whichever text format it asks for.

Everything is read when it is asked for; nothing is counted twice, and ingest
pays nothing for it. Names of hosts are in it, so that it needs a token of the
role viewer, unless the configuration makes it public.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.web import server

from cortextx.core import jsontext
from cortextx.interfaces.fleet import HostRecord, StoreStats
from cortextx.web.guard import Guard
from cortextx.web.problems import CONTENT_TYPE, INTERNAL, Problem, problem_of
from cortextx.web.refusals import Refusing
from cortextx.web.sources import Sources

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from cortextx.fleet.server.service import FleetServer
    from cortextx.web.api import Authenticator

AT_ONCE = 100
"""Samples of a family that are written without letting others have a turn."""
END = b"# EOF\n"
"""How OpenMetrics ends."""
METRICS_SECONDS = 10.0
"""How long the store may take."""


class AnswerCounts:
    """How many answers the API gave, by route and status."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()

    def counted(self, route: str, status: int) -> None:
        """One more."""
        if status:
            self.counts[route, status] += 1


class Snapshot:
    """What is told at one moment: as prometheus_client's registries do."""

    def __init__(
        self,
        sources: Sources,
        hosts: Iterable[HostRecord],
        stats: StoreStats,
        counts: AnswerCounts,
    ) -> None:
        self._sources = sources
        self._hosts = list(hosts)
        self._stats = stats
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """All families, each with the values of the moment at which it is asked for."""
        yield from self._server()
        yield from self._store()
        yield from self._api()
        yield from self._of_hosts()
        yield from _process()

    def _server(self) -> Iterator[Metric]:
        fleet = self._sources.fleet
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily(
            "cortextx_server", "The server's version", {"version": fleet.version}
        )
        yield _gauge("connections", "Open WebSocket connections", fleet.connections)
        yield _gauge("live_hosts", "Hosts with a live session", fleet.live_count)
        states = GaugeMetricFamily("cortextx_hosts", "Registered hosts", labels=["state"])
        for state, count in Counter(record.state for record in self._hosts).items():
            states.add_metric([state], count)
        yield states
        writer = fleet.writer
        yield _counter("ingest_entries", "Entries stored", writer.entries)
        yield _counter("ingest_commits", "Transactions of entries", writer.commits)
        yield _counter("ingest_failed_commits", "Transactions that failed", writer.failures)
        yield _gauge("ingest_waiting_batches", "Batches that wait for the store", writer.depth)
        yield _gauge("ingest_waiting_bytes", "Their bytes", fleet.gauge.used)
        yield _counter(
            "refused_connections",
            "Connections refused by rate",
            fleet.admission.refused_connections,
        )
        yield _counter("refused_hellos", "Upgrades refused", fleet.admission.refused_hellos)
        yield _counter("quota_refusals", "Pushes beyond a host's quota", fleet.quotas.refusals)
        yield _counter("samples_accepted", "Samples of hosts stored", fleet.meter.accepted)
        yield _counter("samples_dropped", "Samples of hosts not stored", fleet.meter.dropped)
        yield _gauge("waiting_probes", "Probes that are not over", fleet.probes.waiting)

    def _store(self) -> Iterator[Metric]:
        stats = self._stats
        yield _gauge("store_entries", "Entries that are held", stats.entries)
        yield _gauge("store_segments", "Segments that are held", stats.segments)
        yield _gauge("store_bytes", "Bytes of the store's files", stats.size)
        yield _gauge("store_free_bytes", "Bytes of them to be used again", stats.free)
        yield _gauge("store_unindexed_entries", "Entries not yet indexed", stats.unindexed)
        yield _gauge("store_damaged_entries", "Entries found damaged", stats.damaged)
        yield _gauge("gaps", "Recorded gaps", stats.gaps)
        if stats.disk_free is not None:
            yield _gauge("disk_free_bytes", "Free bytes where the store is", stats.disk_free)
        if stats.oldest is not None:
            at = stats.oldest / 1e6
            yield _gauge("store_oldest_timestamp_seconds", "Since when entries are held", at)

    def _api(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        answers = CounterMetricFamily(
            "cortextx_api_answers", "Answers of the HTTP API", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._counts.counts.items()):
            answers.add_metric([route, str(status)], count)
        yield answers

    def _of_hosts(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        fleet = self._sources.fleet
        told: tuple[tuple[str, str, Callable[[HostRecord], float | None]], ...] = (
            ("connected", "Whether it is connected", lambda r: float(_is_live(fleet, r))),
            ("last_seen_timestamp_seconds", "When it was last seen", lambda r: _s(r.last_seen)),
            ("accepted_seq", "The last seq that is stored", lambda r: r.accepted_seq),
            ("lost_entries", "Entries that never came", lambda r: r.lost_entries),
            ("queue_depth", "Entries in its buffer", lambda r: r.queue_depth),
            ("buffer_bytes", "Bytes in its buffer", lambda r: r.buffer_bytes),
            ("push_lag_seq", "Entries behind", fleet.lags.of),
            ("clock_skew_seconds", "How far its clock is ahead", lambda r: _s(r.clock_skew)),
            (
                "heartbeat_overdue",
                "Whether its live session sends no heartbeats",
                lambda r: float(fleet.heartbeat_overdue(r.host_id)),
            ),
            (
                "probable_clone",
                "Whether two machines seem to use its token",
                lambda r: float(fleet.clones.report(r.host_id) is not None),
            ),
        )
        for name, text, value_of in told:
            family = GaugeMetricFamily(f"cortextx_host_{name}", text, labels=["host", "host_id"])
            for record in self._hosts:
                value = value_of(record)
                if record.host_id is not None and value is not None:
                    family.add_metric([record.name, record.host_id], value)
            yield family


class _Family:
    """One family, as prometheus_client's registries are."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Metrics(Refusing):
    """The resource."""

    isLeaf = True
    log = Logger()

    def __init__(
        self,
        sources: Sources,
        guard: Callable[[], Guard],
        authenticator: Authenticator,
        counts: AnswerCounts,
    ) -> None:
        super().__init__()
        self._sources = sources
        self._guard = guard
        self._authenticator = authenticator
        self._counts = counts

    def render_GET(self, request: Any) -> Any:
        gone: list[bool] = []
        running = Deferred.fromCoroutine(self._answer(request))

        def went(_: object) -> None:
            gone.append(True)
            running.cancel()

        def finish(answer: tuple[int, str, bytes]) -> None:
            status, kind, body = answer
            if gone:
                return
            request.setResponseCode(status)
            request.setHeader(b"Content-Type", kind.encode())
            request.setHeader(b"Cache-Control", b"no-store")
            request.setHeader(b"Content-Length", b"%d" % len(body))
            request.write(body)
            request.finish()

        request.notifyFinish().addErrback(went)
        running.addCallback(finish)
        running.addErrback(lambda failure: self.log.failure("/metrics failed", failure))
        return server.NOT_DONE_YET

    async def _answer(self, request: Any) -> tuple[int, str, bytes]:
        try:
            self._guard().check_host(request.getHeader("Host"))
            if not self._sources.fleet.settings.server.metrics_public:
                await self._authenticator.principal(request.getHeader("Authorization"))
            return await self._told(request.getHeader("Accept") or "")
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                self.log.failure("/metrics failed")
                problem = INTERNAL
            for name, value in problem.headers.items():
                request.setHeader(name.encode(), value.encode())
            return problem.status, str(CONTENT_TYPE, "ascii"), jsontext.encode(problem.body())

    async def _told(self, accept: str) -> tuple[int, str, bytes]:
        try:
            from prometheus_client.exposition import choose_encoder
        except ImportError:
            raise Problem(501, "not_installed", "install cortextx[server] for /metrics") from None
        store = self._sources.store
        stats = await store.stats().addTimeout(METRICS_SECONDS, self._sources.reactor)
        hosts = await store.list_hosts()
        encode, kind = choose_encoder(accept)
        text = bytearray()
        for family in Snapshot(self._sources, hosts, stats, self._counts).collect():
            one: Any = _Family(family)
            text += encode(one).removesuffix(END)
            if len(family.samples) > AT_ONCE:
                # A thousand hosts are not to hold up the agents.
                await deferLater(self._sources.reactor, 0)
        return 200, kind, bytes(text + END if "openmetrics" in kind else text)


def _gauge(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"cortextx_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"cortextx_{name}", text, value)


def _process() -> Iterable[Metric]:
    from prometheus_client import ProcessCollector

    return ProcessCollector(registry=None).collect()


def _is_live(fleet: FleetServer, record: HostRecord) -> bool:
    return fleet.live(record.host_id) is not None


def _s(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6
