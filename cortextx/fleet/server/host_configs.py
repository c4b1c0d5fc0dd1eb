"""Each host's config: from the store to its hello, and to its session when it changes (§4.8).

What is stored are the members that scopes set (`configs`); what a host is told is
put together when it says hello, and again whenever one of its scopes changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from cortextx.errors import StoreError, in_words
from cortextx.fleet.server import configs
from cortextx.interfaces.fleet_records import EffectiveConfig

if TYPE_CHECKING:
    from cortextx.fleet.contract import AgentConfig
    from cortextx.interfaces.fleet_records import ConfigScope, IConfigs, StoredConfig


class Configured(Protocol):
    """A connection whose host can be told another config."""

    def configured(self, config: AgentConfig, apply_after: datetime | None) -> None:
        """Send config.update."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a live host was told last, and when (µs UTC)."""

    config: AgentConfig
    at: int


@dataclass(frozen=True, slots=True)
class HostConfig:
    """A host's config: `wanted` is what it is to do, by `layers`; `told` what it was told
    last in its live session, None if it has none. `ignored` members are not good."""

    host_id: str
    wanted: AgentConfig
    layers: Sequence[StoredConfig]
    version: int
    ignored: Sequence[str]
    told: Told | None

    @property
    def in_step(self) -> bool:
        """Whether the host was told what it is to do."""
        return self.told is not None and self.told.config == self.wanted


class HostConfigs:
    """See the module. `live` answers the connections by host_id, `defaults` the config of
    hosts for which nothing is set, `wall` µs UTC. `store` is None where nothing is kept.
    """

    log = Logger()

    def __init__(
        self,
        store: IConfigs | None,
        defaults: Callable[[], AgentConfig],
        live: Callable[[], Mapping[str, Configured]],
        wall: Callable[[], int],
    ) -> None:
        self._store = store
        self._defaults = defaults
        self._live = live
        self._wall = wall
        self._told: dict[str, Told] = {}
        self._preferred: dict[str, int] = {}
        self._changes = 0

    async def for_hello(self, host_id: str, preferred_batch: int) -> AgentConfig:
        """What to tell a host that is accepted; `preferred_batch` is its own hint (§8).

        Never fails: a host that cannot be told its own config is told the default.
        """
        while True:
            changes = self._changes
            try:
                found = await self._effective(host_id)
            except StoreError as error:
                self.log.error(
                    "{host_id} is told the default config, as its own cannot be read: {error}",
                    host_id=host_id,
                    error=in_words(error),
                )
                found = _nothing(host_id)
            # What changed while the store was asked is in the answer or not: ask again.
            if changes == self._changes:
                break
        config, _ = self._merged(found)
        return configs.instructed(config, preferred_batch)

    def told(self, host_id: str, config: AgentConfig, preferred_batch: int) -> None:
        """A session of the host began with this config in its HelloResult."""
        self._told[host_id] = Told(config, self._wall())
        self._preferred[host_id] = preferred_batch

    def last_told(self, host_id: str | None) -> Told | None:
        """What the host's live session was told last."""
        return None if host_id is None else self._told.get(host_id)

    def gone(self, host_id: str) -> None:
        """The host has no live session any more."""
        self._told.pop(host_id, None)
        self._preferred.pop(host_id, None)

    async def show(self, host_id: str) -> HostConfig:
        """All that is known of a host's config."""
        found = await self._effective(host_id)
        config, ignored = self._merged(found)
        wanted = configs.instructed(config, self._preferred.get(host_id))
        told = self._told.get(host_id)
        return HostConfig(host_id, wanted, found.layers, found.version, ignored, told)

    async def set(
        self,
        scope: ConfigScope,
        name: str,
        members: Mapping[str, Any] | None,
        apply_after: datetime | None = None,
    ) -> tuple[StoredConfig | None, list[str]]:
        """Replace what a scope sets (None: nothing), and tell the hosts that it concerns.

        Answers what is stored and the host_ids that were told. Raises JsonShapeError
        for members that are not good; then nothing changed.
        """
        good = None if members is None else configs.checked(members)
        if self._store is None:
            raise StoreError("this store keeps no configs")
        stored = await self._store.set_config(scope, name, good, self._wall())
        self._changes += 1
        return stored, await self.push(apply_after=apply_after)

    async def set_groups(self, host_id: str, groups: Sequence[str]) -> list[str]:
        """Put a host into these groups and no others; answers whom that told something new."""
        if self._store is None:
            raise StoreError("this store keeps no configs")
        await self._store.set_groups(host_id, groups, self._wall())
        self._changes += 1
        return await self.push([host_id])

    async def push(
        self,
        host_ids: Sequence[str] | None = None,
        apply_after: datetime | None = None,
        again: bool = False,
    ) -> list[str]:
        """Send config.update to connected hosts (None: to all) whose config is another than
        the one they were told, or to each of them where `again`; answers to whom."""
        sent = []
        for host_id in list(self._live()) if host_ids is None else host_ids:
            shown = await self.show(host_id)
            socket = self._live().get(host_id)
            if socket is None or shown.told is None or (shown.in_step and not again):
                continue
            self._told[host_id] = Told(shown.wanted, self._wall())
            socket.configured(shown.wanted, apply_after)
            sent.append(host_id)
        return sent

    def defaults_changed(self) -> Deferred[list[str]]:
        """The server's defaults are others now (a reload): tell whom it concerns."""
        self._changes += 1
        return Deferred.fromCoroutine(self.push())

    async def _effective(self, host_id: str) -> EffectiveConfig:
        if self._store is None:
            return _nothing(host_id)
        return await self._store.effective_config(host_id)

    def _merged(self, found: EffectiveConfig) -> tuple[AgentConfig, list[str]]:
        if not found.members:
            return self._defaults(), []
        config, ignored = configs.merged(self._defaults(), found.members)
        if ignored:
            self.log.warn(
                "{host_id}: members of its config are not good and left out: {names}",
                host_id=found.host_id,
                names=ignored,
            )
        return config, ignored


def _nothing(host_id: str) -> EffectiveConfig:
    return EffectiveConfig(host_id, {}, (), 0)
