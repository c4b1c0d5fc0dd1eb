"""The routes about probes: run one on a host (§4.6), and what earlier ones answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from cortextx.errors import LocalProtocolError, NotConnected
from cortextx.fleet.server.probe_router import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from cortextx.fleet.server.rows import probe_row
from cortextx.web import answers
from cortextx.web.problems import Problem, wrong
from cortextx.web.routes import Body, Call, Params, Route
from cortextx.web.sources import Sources

ProbeName = Annotated[str, Meta(min_length=1, max_length=128)]


class ProbeBody(Body, frozen=True):
    """A probe to be run; `args` are the probe's own, by name (F44)."""

    probe: ProbeName
    args: dict[str, Any] = {}
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = DEFAULT_TIMEOUT_MS


class ProbeParams(Params, frozen=True):
    """Which records; `before` is the `next` of the page before."""

    host: str | None = None
    probe: str | None = None
    before: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ProbeRoutes:
    """The routes."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (
            Route(
                method="POST",
                path="/hosts/{host}/probes",
                role="operator",
                name="run_probe",
                run=self.run,
                body=ProbeBody,
                answer=answers.ProbeRow,
                text=(
                    "Run a probe on a host and wait for it. A probe that failed is an answer"
                    " too: `outcome` says how it ended, and `code` the agent's error."
                ),
            ),
            Route(
                method="GET",
                path="/probes",
                role="viewer",
                name="probe_history",
                run=self.history,
                params=ProbeParams,
                answer=answers.Probes,
                text="Probes that were run, the newest first.",
            ),
        )

    async def run(self, call: Call) -> Any:
        """Run one. Who goes away stops waiting; the probe goes on, and its record is kept."""
        body: ProbeBody = call.body
        record, host_id = await self._sources.enrolled(call.names["host"])
        try:
            done = await self._sources.fleet.probes.run(
                record, body.probe, body.args, body.timeout_ms, call.principal.actor
            )
        except NotConnected:
            raise Problem(409, "not_connected", "the host is not connected") from None
        except LocalProtocolError:
            raise wrong("args", "JSON that is shorter") from None
        details = {"name": record.name, "probe": body.probe, "outcome": done.outcome}
        await self._sources.record(call, "probe.run", host_id, details)
        return probe_row(done, record.name)

    async def history(self, call: Call) -> Any:
        """Records."""
        params: ProbeParams = call.params
        host_id = None
        if params.host is not None:
            _, host_id = await self._sources.enrolled(params.host)
        found = await self._sources.store.probe_history(
            host_id, params.probe, params.before, params.limit
        )
        names = await self._sources.names()
        return {
            "probes": [probe_row(record, names.get(record.host_id)) for record in found],
            "next": found[-1].id if len(found) == params.limit else None,
        }
