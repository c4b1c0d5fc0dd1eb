"""How often and how many may come before anyone is known by name (A52; PURE).

Two bounds, both on what an unknown peer can cost: connections from one source
address in a minute, and connections that have upgraded but sent no good hello
yet. Addresses in `exempt` (loopback unless told otherwise, where a proxy may
stand in front) and peers without an address, on Unix sockets, are bound by
neither. IPv6 addresses count by their /64, which one machine can have to itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from cortextx.core.budgets import LeakyBucket

MAX_ADDRESSES = 10_000
"""Source addresses that are remembered; the one not seen for longest is forgotten first."""
IPV6_PREFIX = 64

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """`connections_per_minute` of one source address (0: any number), `hellos_in_flight`
    in all, and the networks that are `exempt`."""

    connections_per_minute: int
    hellos_in_flight: int
    exempt: tuple[Network, ...] = ()


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks or single addresses; raises ValueError for what is neither."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


class Admission:
    """Says who may go on. `limits` may be replaced at any time; `refused_connections` and
    `refused_hellos` count what was not let in."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.refused_connections = 0
        self.refused_hellos = 0
        self._rates: dict[str, LeakyBucket] = {}
        self._before_hello: set[Hashable] = set()

    @property
    def hellos_in_flight(self) -> int:
        """Connections that count as having sent no good hello yet."""
        return len(self._before_hello)

    def admits(self, address: str | None, now: float) -> bool:
        """Whether one more connection from `address` may be; `now` is in seconds."""
        limit = self.limits.connections_per_minute
        source = self._source(address)
        if source is None or limit == 0:
            return True
        # Taken out and put back, so that the first in the table is the one unseen for longest.
        rate = self._rates.pop(source, None)
        if rate is None or rate.burst != limit:
            rate = LeakyBucket(limit / 60, limit)
        self._rates[source] = rate
        if len(self._rates) > MAX_ADDRESSES:
            del self._rates[next(iter(self._rates))]
        if rate.take(1, now) == 0.0:
            return True
        self.refused_connections += 1
        return False

    def admits_hello(self, address: str | None) -> bool:
        """Whether one more connection may begin to say hello."""
        if self._source(address) is None:
            return True
        if len(self._before_hello) < self.limits.hellos_in_flight:
            return True
        self.refused_hellos += 1
        return False

    def hello_began(self, connection: Hashable, address: str | None) -> None:
        """A connection is there whose hello is still to come or to be judged."""
        if self._source(address) is not None:
            self._before_hello.add(connection)

    def hello_over(self, connection: Hashable) -> None:
        """Its hello was good, or it is gone; may be said again."""
        self._before_hello.discard(connection)

    def _source(self, address: str | None) -> str | None:
        """What a peer is counted as; None for one that no bound is for."""
        found = read_address(address)
        if found is None:
            # On a Unix socket, or something that a proxy made up: counted together.
            return None if not address else "?"
        if any(found.version == net.version and found in net for net in self.limits.exempt):
            return None
        if found.version == 6:
            return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
        return str(found)


def read_address(text: str | None) -> Address | None:
    """The IP address in `text`, with or without a port; an IPv4 one in IPv6 is IPv4."""
    if not text:
        return None
    host = text.partition("%")[0]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
