"""Ops of the admin socket about what hosts do: probes, configs, groups, audits (F39).

Whoever may use the admin socket is called `local` in records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from cortextx.app.admin import _Args, _Name, _Time, enrolled, find_host
from cortextx.app.linesocket import Op, OpError, Rows, arguments
from cortextx.errors import JsonShapeError, LocalProtocolError, NotConnected
from cortextx.fleet.server.audit import Audit, AuditRange, every_gap
from cortextx.fleet.server.probe_router import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from cortextx.fleet.server.rows import (
    config_row,
    entry_row,
    gap_row,
    layer_row,
    micros,
    moment,
    probe_row,
)
from cortextx.fleet.server.service import FleetServer
from cortextx.interfaces.fleet import EntryFilter, StoredEntry
from cortextx.interfaces.fleet_records import ConfigScope

ACTOR = "local"
REPORTS = 20
"""What an agent said of itself (F18, F37) that is shown beside its config."""
_Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class AuditArgs(_Args, frozen=True):
    """`agent.audit`: seqs inclusive; since and until are of when a gap was noticed."""

    host: _Name
    from_seq: _Seq | None = None
    to_seq: _Seq | None = None
    since: _Time | None = None
    until: _Time | None = None


class ProbeArgs(_Args, frozen=True):
    """`probe.run`; `args` are the probe's own, by name (F44)."""

    host: _Name
    probe: Annotated[str, Meta(min_length=1, max_length=128)]
    args: dict[str, Any] = {}
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = DEFAULT_TIMEOUT_MS


class HistoryArgs(_Args, frozen=True):
    """`probe.history`, the newest first; go on with `before` = the end's `next`."""

    host: _Name | None = None
    probe: str | None = None
    before: int | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ConfigGetArgs(_Args, frozen=True):
    """`config.get`: of a host, or of a group, or all that is set."""

    host: _Name | None = None
    group: _Name | None = None


class ConfigSetArgs(_Args, frozen=True):
    """`config.set` for a host, a group, or (neither) all hosts.

    `config` holds members of an AgentConfig and replaces what the scope set
    before; null removes it all. With `merge` its members are added to what is
    set, and those that `unset` names are taken away.
    """

    config: dict[str, Any] | None
    host: _Name | None = None
    group: _Name | None = None
    merge: bool = False
    unset: tuple[str, ...] = ()
    apply_after: _Time | None = None


class ConfigPushArgs(_Args, frozen=True):
    """`config.push`: send its config again to a host, a group's hosts, or all."""

    host: _Name | None = None
    group: _Name | None = None
    apply_after: _Time | None = None


class GroupArgs(_Args, frozen=True):
    """`group.set`: the host is in these groups and no others; a later one's config wins."""

    host: _Name
    groups: Annotated[tuple[_Name, ...], Meta(max_length=64)]


class NoArgs(_Args, frozen=True):
    """For ops that take none."""


class FleetOps:
    """The ops over one fleet server."""

    def __init__(self, fleet: Callable[[], FleetServer]) -> None:
        self._fleet = fleet

    def ops(self) -> dict[str, Op]:
        """By the names of the admin protocol."""
        return {
            "agent.audit": self.audit,
            "probe.run": self.run_probe,
            "probe.history": self.history,
            "config.get": self.get_config,
            "config.set": self.set_config,
            "config.push": self.push_config,
            "group.set": self.set_groups,
            "group.list": self.list_groups,
        }

    async def audit(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """The gaps of a host in a range, and whether it is complete (F13)."""
        asked = arguments(args, AuditArgs)
        fleet = self._fleet()
        record = await find_host(fleet, asked.host)
        host_id = enrolled(record)
        which = AuditRange(
            asked.from_seq,
            asked.to_seq,
            None if asked.since is None else micros(asked.since),
            None if asked.until is None else micros(asked.until),
        )
        found = Audit(record.accepted_seq, which)
        async for gaps in every_gap(fleet.store, host_id, which):
            await rows(gap_row(gap, record.name) for gap in found.take(gaps))
        return {
            "host": record.name,
            "host_id": host_id,
            "complete": found.complete,
            "accepted_seq": record.accepted_seq,
            "missing_entries": found.missing,
            "awaited_entries": found.awaited,
            "gaps": found.count,
        }

    async def run_probe(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Run a probe and answer with its record, however it ended (§4.6)."""
        asked = arguments(args, ProbeArgs)
        fleet = self._fleet()
        record = await find_host(fleet, asked.host)
        enrolled(record)
        try:
            done = await fleet.probes.run(record, asked.probe, asked.args, asked.timeout_ms, ACTOR)
        except NotConnected as error:
            hint = "`cortextx agent show HOST` says when it was last seen, and why it went"
            raise OpError("not_connected", str(error), hint) from None
        except LocalProtocolError as error:
            raise OpError("bad_request", str(error)) from None
        await rows([probe_row(done, record.name)])
        return {"host_id": done.host_id, "outcome": done.outcome, "code": done.code}

    async def history(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Probes that were run."""
        asked = arguments(args, HistoryArgs)
        fleet = self._fleet()
        host_id = None if asked.host is None else enrolled(await find_host(fleet, asked.host))
        names = {record.host_id: record.name for record in await fleet.registry.list_hosts()}
        store: Any = fleet.store
        found = await store.probe_history(host_id, asked.probe, asked.before, asked.limit)
        await rows(probe_row(record, names.get(record.host_id)) for record in found)
        return {"next": found[-1].id if len(found) == asked.limit else None}

    async def get_config(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """A host's config with its layers; or what a group, or every scope, sets."""
        asked = arguments(args, ConfigGetArgs)
        fleet = self._fleet()
        store: Any = fleet.store
        scope, _ = _scope(asked.host, asked.group)
        if scope == "host":
            assert asked.host is not None
            record = await find_host(fleet, asked.host)
            host_id = enrolled(record)
            shown = await fleet.configs.show(host_id)
            own = EntryFilter(hosts=(host_id,), sources=("custom:cortextx",))
            said = await fleet.store.search(own, REPORTS)
            row = config_row(shown, record, await store.groups_of(host_id))
            of_configs = await fleet.store.search(replace(own, text="configuration"), REPORTS)
            row["at_host"] = standing_said(of_configs.entries)
            await rows([{**row, "reports": [entry_row(entry) for entry in said.entries]}])
            return {}
        layers = await store.configs()
        if scope == "group":
            layers = [one for one in layers if (one.scope, one.name) == (scope, asked.group)]
        await rows(layer_row(layer) for layer in layers)
        return {"count": len(layers), "defaults": fleet.settings.agent_config}

    async def set_config(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Set what a scope tells its hosts, and tell those that are connected (§4.8)."""
        asked = arguments(args, ConfigSetArgs)
        fleet = self._fleet()
        scope, name = await self._named(asked.host, asked.group)
        members = asked.config
        if asked.merge or asked.unset:
            store: Any = fleet.store
            held = [one for one in await store.configs() if (one.scope, one.name) == (scope, name)]
            before = dict(held[0].members) if held else {}
            members = {**before, **(members or {})}
            members = {key: members[key] for key in members if key not in asked.unset} or None
        try:
            stored, told = await fleet.configs.set(scope, name, members, asked.apply_after)
        except JsonShapeError as error:
            raise OpError("bad_request", f"config: {error}") from None
        end: dict[str, Any] = {"scope": scope, "name": name, "told": told}
        if scope == "host":
            end["host_id"] = name
        return end | {"version": None if stored is None else stored.version}

    async def push_config(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Send config.update again to hosts that are connected."""
        asked = arguments(args, ConfigPushArgs)
        fleet = self._fleet()
        scope, name = await self._named(asked.host, asked.group)
        host_ids: Sequence[str] | None = [name]
        if scope == "all":
            host_ids = None
        elif scope == "group":
            store: Any = fleet.store
            groups = await store.groups()
            if name not in groups:
                raise OpError("not_found", f"no group {name!r}")
            host_ids = groups[name]
        told = await fleet.configs.push(host_ids, asked.apply_after, again=True)
        end: dict[str, Any] = {"scope": scope, "name": name, "told": told}
        return {**end, "host_id": name} if scope == "host" else end

    async def set_groups(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Say which groups a host is in."""
        asked = arguments(args, GroupArgs)
        fleet = self._fleet()
        host_id = enrolled(await find_host(fleet, asked.host))
        told = await fleet.configs.set_groups(host_id, asked.groups)
        return {"host_id": host_id, "groups": list(asked.groups), "told": told}

    async def list_groups(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """All groups and who is in them."""
        arguments(args, NoArgs)
        store: Any = self._fleet().store
        groups = await store.groups()
        await rows({"name": name, "host_ids": groups[name]} for name in sorted(groups))
        return {"count": len(groups)}

    async def _named(self, host: str | None, group: str | None) -> tuple[ConfigScope, str]:
        """A scope and its name in the store; a host is named by its id there."""
        scope, name = _scope(host, group)
        if scope == "host":
            return scope, enrolled(await find_host(self._fleet(), name))
        return scope, name


def _scope(host: str | None, group: str | None) -> tuple[ConfigScope, str]:
    if host is not None and group is not None:
        raise OpError("bad_request", "`host` and `group` exclude one another")
    if host is not None:
        return "host", host
    return ("all", "") if group is None else ("group", group)


class _Config(Struct, frozen=True):
    state: str
    failed: str | None = None
    effective: str | None = None
    reason: str | None = None


class _Said(Struct, frozen=True):
    config: _Config


class _Metadata(Struct, frozen=True):
    cortextx: _Said


def standing_said(entries: Iterable[StoredEntry]) -> dict[str, Any] | None:
    """How a host's config stands there, by the first of its own reports, the newest before
    the others, that tells of it (A58): its state, why, what failed and what is in effect."""
    for entry in entries:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
            found = msgspec.json.decode(entry.metadata or "", type=_Metadata).cortextx.config
            return {"at": moment(entry.received_at), **msgspec.to_builtins(found)}
    return None
