"""What the routes of the HTTP API work on, and how they find a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortextx.fleet.server.invitations import rows_named, told_apart
from cortextx.interfaces.fleet import HostRecord, IHostRegistry, ILogStore
from cortextx.interfaces.fleet_records import (
    IApiTokens,
    IAuditLog,
    IConfigs,
    IMetricStore,
    IProbeRecords,
)
from cortextx.web.problems import Problem, not_found

if TYPE_CHECKING:
    from cortextx.fleet.server.service import FleetServer
    from cortextx.web.routes import Call


class IStore(
    ILogStore, IHostRegistry, IMetricStore, IProbeRecords, IAuditLog, IApiTokens, IConfigs
):
    """One store that has all the roles."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The server as the routes see it. `wall` gives µs UTC; `random` bytes for new tokens."""

    reactor: Any
    fleet: FleetServer
    store: IStore
    wall: Callable[[], int]
    random: Callable[[int], bytes]
    started_at: int

    async def host(self, ref: str) -> HostRecord:
        """The host with this id or name; raises Problem 404 for none, 409 for several (F39)."""
        found = await rows_named(self.store, ref)
        if not found:
            raise not_found("host")
        if len(found) > 1:
            raise Problem(
                409,
                "ambiguous",
                "several hosts have that name",
                hint=f"name one by its id: {told_apart(found)}",
            )
        return found[0]

    async def enrolled(self, ref: str) -> tuple[HostRecord, str]:
        """The same with its host id; raises Problem 409 for one that has none yet (F6)."""
        record = await self.host(ref)
        if record.host_id is None:
            raise Problem(409, "not_enrolled", "the host has not enrolled yet")
        return record, record.host_id

    async def names(self) -> dict[str | None, str]:
        """The names of all hosts by their ids."""
        return {record.host_id: record.name for record in await self.store.list_hosts()}

    async def record(self, call: Call, act: str, subject: str, details: Mapping[str, Any]) -> None:
        """Write down an administrative act, which was done, by who asked for it (S8)."""
        await self.fleet.record_act(call.principal.actor, act, subject, details)
