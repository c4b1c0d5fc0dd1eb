"""Which containers are followed, and when (PURE).

The truth is the daemon's list, which is asked for now and then and whenever an event
says that something changed (A32). A container is followed while it runs; one that does
not run is read once, to its end. What is in two lists no more is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cortextx.core.backoff import FullJitter
from cortextx.fleet.agent.sources.docker_settings import DockerSettings

AGAIN = 0.5
"""Seconds between two followings of one container at least."""


@dataclass(frozen=True, slots=True)
class Container:
    """One row of the daemon's list."""

    id: str
    name: str
    image: str
    labels: dict[str, str] = field(default_factory=dict)
    running: bool = True


@dataclass(frozen=True, slots=True)
class Follow:
    """Begin to read a container's log, at its checkpoint."""

    container: Container


@dataclass(frozen=True, slots=True)
class Rename:
    """A container has another name, from now on."""

    container: Container


@dataclass(frozen=True, slots=True)
class Forget:
    """A container is gone: its checkpoint may go."""

    id: str


@dataclass(slots=True)
class _Row:
    container: Container
    backoff: FullJitter
    following: bool = False
    done: bool = False
    changed: bool = False
    not_before: float = 0.0
    missed: int = 0
    unreadable: bool = False


class Roster:
    """The containers of one daemon. `own` are ids that are never read (A35); `random` is
    for the delays after failures."""

    def __init__(self, settings: DockerSettings, own: frozenset[str], random: object) -> None:
        self._settings = settings
        self._own = own
        self._random = random
        self._rows: dict[str, _Row] = {}
        self.waiting = 0
        """Containers that are not followed because too many are."""

    @property
    def followed(self) -> int:
        """How many are followed."""
        return sum(row.following for row in self._rows.values())

    def name_of(self, id: str) -> str | None:
        """A container's name, None if it is not read."""
        row = self._rows.get(id)
        return None if row is None else row.container.name

    def listed(
        self, containers: Sequence[Container], now: float, known: Sequence[str] = ()
    ) -> list[Follow | Rename | Forget]:
        """The daemon told which containers there are; `known` are ids with checkpoints."""
        actions: list[Follow | Rename | Forget] = []
        there = set()
        for container in containers:
            there.add(container.id)
            row = self._rows.get(container.id)
            if row is None:
                if self._is_own(container.id):
                    continue
                if not self._settings.wants(container.name, container.labels):
                    continue
                backoff = FullJitter(random=self._random, base=1.0, cap=30.0)  # type: ignore[arg-type]
                row = self._rows[container.id] = _Row(container, backoff)
            elif row.container != container:
                if row.container.name != container.name:
                    actions.append(Rename(container))
                if container.running and not row.container.running:
                    row.done = False
                row.container = container
            row.missed = 0
        for id in known:
            if id not in self._rows and id not in there:
                self._rows[id] = _Row(
                    Container(id, id[:12], "", running=False),
                    FullJitter(random=self._random),  # type: ignore[arg-type]
                    done=True,
                )
        for id, row in list(self._rows.items()):
            if id in there or row.following:
                continue
            row.missed += 1
            if row.missed >= 2:
                del self._rows[id]
                actions.append(Forget(id))
        return actions + self.due(now)

    def due(self, now: float) -> list[Follow | Rename | Forget]:
        """Whom to follow now."""
        actions: list[Follow | Rename | Forget] = []
        room = self._settings.max_containers - self.followed
        self.waiting = 0
        for row in self._rows.values():
            wanted = (row.container.running and not row.unreadable) or not row.done
            if row.following or row.missed or not wanted or now < row.not_before:
                continue
            if room <= 0:
                self.waiting += 1
                continue
            room -= 1
            row.following, row.changed = True, False
            actions.append(Follow(row.container))
        return actions

    def next_due(self) -> float | None:
        """When a container is to be followed that has to wait until then."""
        return min(
            (
                row.not_before
                for row in self._rows.values()
                if not row.following
                and not row.missed
                and ((row.container.running and not row.unreadable) or not row.done)
            ),
            default=None,
        )

    def changed(self, id: str | None = None) -> None:
        """An event told of a container, or events may have been missed: read them again."""
        rows = self._rows.values() if id is None else filter(None, [self._rows.get(id)])
        for row in rows:
            row.done = row.unreadable = False
            row.changed = True

    def ended(self, id: str, entries: int, now: float) -> None:
        """A following ended by itself, after so many new frames."""
        row = self._rows.get(id)
        if row is None:
            return
        row.following = False
        if entries:
            row.backoff.reset()
        # Whether it has started again meanwhile is for the next reading to show.
        row.done = entries == 0 and not row.changed and not row.container.running
        row.not_before = now + AGAIN
        if entries == 0 and row.container.running:
            row.not_before = now + max(AGAIN, row.backoff.next_delay())

    def failed(self, id: str, now: float, for_good: bool = False) -> float:
        """A following failed; answers the seconds until the next. `for_good`: the daemon
        cannot give this container's log."""
        row = self._rows.get(id)
        if row is None:
            return 0.0
        row.following = False
        delay = max(AGAIN, row.backoff.next_delay())
        row.not_before = now + delay
        if for_good:
            row.done = row.unreadable = True
        return delay

    def _is_own(self, id: str) -> bool:
        return any(id.startswith(own) for own in self._own)
