"""The routes about what hosts are told to do: of all, of groups, of single hosts (§4.1, §4.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from cortextx.core.jsontext import convert
from cortextx.errors import JsonShapeError
from cortextx.fleet.server.rows import config_row, layer_row
from cortextx.interfaces.fleet_records import ConfigScope
from cortextx.web import answers
from cortextx.web.problems import not_found, wrong
from cortextx.web.routes import Body, Call, Route
from cortextx.web.sources import Sources

GroupName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
Time = Annotated[datetime, Meta(tz=True)]


class ConfigBody(Body, frozen=True):
    """Members of an AgentConfig, in place of what the scope set before; null for none.

    Hosts that are connected are told at once, to be applied at `apply_after` if given.
    """

    config: dict[str, Any] | None
    apply_after: Time | None = None


class PushBody(Body, frozen=True):
    """To a host, to a group's hosts, or (neither) to all."""

    host: str | None = None
    group: str | None = None
    apply_after: Time | None = None


class GroupsBody(Body, frozen=True):
    """The groups that a host is in, and no others; a later one's config wins."""

    groups: Annotated[tuple[GroupName, ...], Meta(max_length=64)]


class ConfigRoutes:
    """The routes."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._store = sources.store
        self._configs = sources.fleet.configs

    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (
            Route(
                method="GET",
                path="/config",
                role="viewer",
                name="list_configs",
                run=self.all,
                answer=answers.Layers,
                text="All that is set, and the server's defaults below it.",
            ),
            Route(
                method="PUT",
                path="/config",
                role="operator",
                name="set_config",
                run=self.set_for_all,
                body=ConfigBody,
                answer=answers.ConfigSet,
                text="Set members of the config of all hosts.",
            ),
            Route(
                method="POST",
                path="/config/push",
                role="operator",
                name="push_config",
                run=self.push,
                body=PushBody,
                answer=answers.ConfigPushed,
                text="Send their config to connected hosts again.",
            ),
            Route(
                method="GET",
                path="/groups",
                role="viewer",
                name="list_groups",
                run=self.groups,
                answer=answers.Groups,
                text="All groups and who is in them.",
            ),
            Route(
                method="PUT",
                path="/groups/{group}/config",
                role="operator",
                name="set_group_config",
                run=self.set_for_group,
                body=ConfigBody,
                answer=answers.ConfigSet,
                names={"group": GroupName},
                text="Set members of the config of a group's hosts.",
            ),
            Route(
                method="GET",
                path="/hosts/{host}/config",
                role="viewer",
                name="host_config",
                run=self.show,
                answer=answers.HostConfig,
                text="What a host is told, by which scopes, and whether it was told that last.",
            ),
            Route(
                method="PUT",
                path="/hosts/{host}/config",
                role="operator",
                name="set_host_config",
                run=self.set_for_host,
                body=ConfigBody,
                answer=answers.ConfigSet,
                text="Set members of a host's own config.",
            ),
            Route(
                method="PUT",
                path="/hosts/{host}/groups",
                role="operator",
                name="set_host_groups",
                run=self.set_groups,
                body=GroupsBody,
                answer=answers.HostGroups,
                text="Say which groups a host is in.",
            ),
        )

    async def all(self, call: Call) -> Any:
        """Every layer."""
        layers = await self._store.configs()
        return {
            "configs": [layer_row(layer) for layer in layers],
            "defaults": self._sources.fleet.settings.agent_config,
        }

    async def show(self, call: Call) -> Any:
        """One host's."""
        record, host_id = await self._sources.enrolled(call.names["host"])
        shown = await self._configs.show(host_id)
        return config_row(shown, record, await self._store.groups_of(host_id))

    async def set_for_all(self, call: Call) -> Any:
        """Of all hosts."""
        return await self._set(call, "all", "", {})

    async def set_for_group(self, call: Call) -> Any:
        """Of a group, which need have nobody in it yet."""
        group = call.names["group"]
        try:
            convert(group, GroupName)
        except JsonShapeError as error:
            raise wrong("group", error.expected) from None
        return await self._set(call, "group", group, {"group": group})

    async def set_for_host(self, call: Call) -> Any:
        """Of one host."""
        record, host_id = await self._sources.enrolled(call.names["host"])
        return await self._set(call, "host", host_id, {"name": record.name})

    async def push(self, call: Call) -> Any:
        """Again."""
        body: PushBody = call.body
        host_ids: Sequence[str] | None = None
        subject = "all"
        if body.host is not None and body.group is not None:
            raise wrong("group", "no group beside a host")
        if body.host is not None:
            _, subject = await self._sources.enrolled(body.host)
            host_ids = [subject]
        elif body.group is not None:
            groups = await self._store.groups()
            if body.group not in groups:
                raise not_found("group")
            subject, host_ids = body.group, groups[body.group]
        told = await self._configs.push(host_ids, body.apply_after, again=True)
        await self._sources.record(call, "config.push", subject, {"told": len(told)})
        return {"told": told}

    async def groups(self, call: Call) -> Any:
        """All groups."""
        groups = await self._store.groups()
        return {"groups": [{"name": name, "host_ids": groups[name]} for name in sorted(groups)]}

    async def set_groups(self, call: Call) -> Any:
        """A host's groups."""
        body: GroupsBody = call.body
        record, host_id = await self._sources.enrolled(call.names["host"])
        told = await self._configs.set_groups(host_id, body.groups)
        details = {"name": record.name, "groups": list(body.groups)}
        await self._sources.record(call, "group.set", host_id, details)
        return {"host_id": host_id, "groups": list(body.groups), "told": told}

    async def _set(self, call: Call, scope: ConfigScope, name: str, said: Mapping[str, Any]) -> Any:
        body: ConfigBody = call.body
        try:
            stored, told = await self._configs.set(scope, name, body.config, body.apply_after)
        except JsonShapeError as error:
            raise wrong("config" + error.field.removeprefix("$"), error.expected) from None
        details = {**said, "scope": scope, "config": body.config}
        await self._sources.record(call, "config.set", name or "all", details)
        version = None if stored is None else stored.version
        return {"scope": scope, "name": name, "version": version, "told": told}
