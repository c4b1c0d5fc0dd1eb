"""Who supersedes itself too often: probably two machines with one token (PURE; F14, A55)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SUPERSESSIONS = 5
"""More supersessions than this within SECONDS point to a clone (F14)."""
SECONDS = 60.0
MAX_HOSTS = 4096
"""Hosts that are watched at once; the one that was quiet longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class CloneReport:
    """A probable clone: when it was last noticed (µs UTC), and from where the sessions came."""

    at: int
    supersessions: int
    addresses: tuple[str, ...]


@dataclass(slots=True)
class _Watched:
    times: deque[float]
    addresses: tuple[str, ...] = ()
    total: int = 0
    report: CloneReport | None = None


class CloneWatch:
    """Counts the supersessions of hosts; `now` is in seconds of the reactor's clock."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Watched] = {}

    def superseded(
        self, host_id: str, older: str, newer: str, now: float, wall: int
    ) -> CloneReport | None:
        """A session from the address `newer` replaced one from `older`.

        Answers a report when that makes too many; the count begins anew then.
        """
        watched = self._hosts.pop(host_id, None)
        if watched is None:
            watched = _Watched(deque(maxlen=SUPERSESSIONS + 1))
        self._hosts[host_id] = watched
        if len(self._hosts) > MAX_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        watched.times.append(now)
        watched.total += 1
        watched.addresses = (older, newer)
        if len(watched.times) <= SUPERSESSIONS or now - watched.times[0] > SECONDS:
            return None
        watched.times.clear()
        watched.report = CloneReport(wall, watched.total, watched.addresses)
        return watched.report

    def report(self, host_id: str | None) -> CloneReport | None:
        """The newest report on a host since this process began, if there is one."""
        watched = None if host_id is None else self._hosts.get(host_id)
        return None if watched is None else watched.report

    def forget(self, host_id: str) -> None:
        """Nothing is known of the host any more (it was forgotten, or enrolled anew)."""
        self._hosts.pop(host_id, None)
