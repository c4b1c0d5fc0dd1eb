"""The routes about hosts: who they are, what they miss, how they enrol and leave (F6–F8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, field

from cortextx.fleet.contract import Uuid
from cortextx.fleet.server.audit import AuditRange
from cortextx.fleet.server.rows import gap_row, host_row, json_of, moment
from cortextx.interfaces.fleet import HostRecord
from cortextx.web import answers
from cortextx.web.api_logs import MAX_PAGE, Several, Time, moment_of
from cortextx.web.gap_pages import audited, cursor_of, place_of
from cortextx.web.problems import Problem
from cortextx.web.routes import Body, Call, Params, Route
from cortextx.web.sources import Sources

MAX_EXPIRY = 365 * 86_400.0
HostName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
Seconds = Annotated[float, Meta(gt=0, le=MAX_EXPIRY)]
Seq = Annotated[int, Meta(ge=1, le=2**62)]


class IssueBody(Body, frozen=True):
    """A host that may enrol; `expires_in` in seconds."""

    name: HostName
    host_id: Uuid | None = None
    expires_in: Seconds | None = None


class RotateBody(Body, frozen=True):
    """`now` cuts the session; after `expire_in` seconds the old token ends (F7)."""

    now: bool = False
    expire_in: Seconds | None = None


class AuditParams(Params, frozen=True):
    """Gaps in a range of seqs, or that were noticed in a span of time."""

    from_seq: Seq | None = None
    to_seq: Seq | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class MetricParams(Params, frozen=True):
    """Which samples; `until` is exclusive."""

    names: Several = field(default=(), name="name")
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


class HostRoutes:
    """The routes over a server's hosts."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._store = sources.store
        self._fleet = sources.fleet

    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (
            Route(
                method="GET",
                path="/hosts",
                role="viewer",
                name="list_hosts",
                run=self.list_hosts,
                answer=answers.Hosts,
                text="All hosts, by name.",
            ),
            Route(
                method="POST",
                path="/hosts",
                role="admin",
                name="issue_host",
                run=self.issue,
                body=IssueBody,
                answer=answers.Issued,
                status=201,
                text="Let a host enrol: a one-time token and its invitation.",
            ),
            Route(
                method="GET",
                path="/hosts/{host}",
                role="viewer",
                name="show_host",
                run=self.show,
                answer=answers.ShownHost,
                text="One host, by id or name.",
            ),
            Route(
                method="DELETE",
                path="/hosts/{host}",
                role="admin",
                name="forget_host",
                run=self.forget,
                answer=answers.Acted,
                text="Remove a host; its entries stay.",
            ),
            Route(
                method="POST",
                path="/hosts/{host}/rotate",
                role="admin",
                name="rotate_host",
                run=self.rotate,
                body=RotateBody,
                answer=answers.Acted,
                text="Give a host a fresh token at its next hello.",
            ),
            Route(
                method="POST",
                path="/hosts/{host}/revoke",
                role="admin",
                name="revoke_host",
                run=self.revoke,
                answer=answers.Acted,
                text="Refuse a host from now on, and cut its session.",
            ),
            Route(
                method="GET",
                path="/hosts/{host}/audit",
                role="viewer",
                name="audit_host",
                run=self.audit,
                params=AuditParams,
                answer=answers.HostAudit,
                text="Whether all that a host numbered is here, or what is missing and why.",
            ),
            Route(
                method="GET",
                path="/hosts/{host}/metrics",
                role="viewer",
                name="host_metrics",
                run=self.metrics,
                params=MetricParams,
                answer=answers.Points,
                text="What a host measured.",
            ),
        )

    async def list_hosts(self, call: Call) -> Any:
        """All hosts."""
        records = await self._store.list_hosts()
        return {"hosts": [host_row(record, self._fleet) for record in records]}

    async def show(self, call: Call) -> Any:
        """One host."""
        record = await self._sources.host(call.names["host"])
        groups = [] if record.host_id is None else await self._store.groups_of(record.host_id)
        return {
            **host_row(record, self._fleet),
            "platform": json_of(record.platform),
            "capabilities": json_of(record.capabilities),
            "groups": groups,
        }

    async def issue(self, call: Call) -> Any:
        """A pending host."""
        body: IssueBody = call.body
        host_id = None if body.host_id is None else body.host_id.lower()
        self._fleet.public_url()
        issued = await self._fleet.issue(body.name, host_id, body.expires_in)
        await self._record(call, "agent.issue", issued.record)
        return {
            "name": issued.record.name,
            "host_id": issued.record.host_id,
            "token": issued.token,
            "invitation": issued.invitation,
            "replaced": issued.replaced,
            "expires_at": moment(issued.record.token_expires_at),
        }

    async def rotate(self, call: Call) -> Any:
        """A fresh token at the next hello."""
        body: RotateBody = call.body
        _, host_id = await self._sources.enrolled(call.names["host"])
        record = await self._fleet.rotate(host_id, body.now, body.expire_in)
        if record.state == "revoked":
            raise Problem(409, "revoked", "the host is revoked: it has no token")
        await self._record(call, "agent.rotate", record, now=body.now, expire_in=body.expire_in)
        return _acted(record)

    async def revoke(self, call: Call) -> Any:
        """No token is good any more."""
        _, host_id = await self._sources.enrolled(call.names["host"])
        record = await self._fleet.revoke(host_id)
        await self._record(call, "agent.revoke", record)
        return _acted(record)

    async def forget(self, call: Call) -> Any:
        """Remove the row; one that never enrolled is known by its key alone."""
        record = await self._sources.host(call.names["host"])
        if record.host_id is None:
            await self._store.forget_row(record.key)
        else:
            await self._fleet.forget(record.host_id)
        await self._record(call, "agent.forget", record)
        return _acted(record)

    async def audit(self, call: Call) -> Any:
        """What is missing."""
        record, host_id = await self._sources.enrolled(call.names["host"])
        asked: AuditParams = call.params
        which = AuditRange(
            asked.from_seq,
            asked.to_seq,
            moment_of("since", asked.since),
            moment_of("until", asked.until),
        )
        after = place_of(asked.cursor)
        found, page, more = await audited(self._store, record, which, asked.limit, after)
        return {
            "host": record.name,
            "host_id": host_id,
            "complete": found.complete,
            "accepted_seq": record.accepted_seq,
            "missing_entries": found.missing,
            "awaited_entries": found.awaited,
            "gaps": [gap_row(gap, record.name) for gap in page],
            "cursor": cursor_of(page[-1]) if more else None,
        }

    async def metrics(self, call: Call) -> Any:
        """What a host measured."""
        params: MetricParams = call.params
        _, host_id = await self._sources.enrolled(call.names["host"])
        since, until = moment_of("since", params.since), moment_of("until", params.until)
        found = await self._store.metrics(host_id, params.names, since, until, params.limit)
        return {
            "points": [
                {
                    "host_id": point.host_id,
                    "name": point.name,
                    "labels": dict(point.labels),
                    "ts": moment(point.ts),
                    "value": point.value,
                }
                for point in found
            ]
        }

    async def _record(self, call: Call, act: str, record: HostRecord, **details: Any) -> None:
        said = {name: value for name, value in details.items() if value is not None}
        subject = record.host_id or record.name
        await self._sources.record(call, act, subject, {"name": record.name, **said})


def _acted(record: HostRecord) -> dict[str, Any]:
    return {"name": record.name, "host_id": record.host_id}
