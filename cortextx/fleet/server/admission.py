"""How often and how many may come before anyone is known by name (A52; PURE).

Bounds on what an unknown peer can cost: connections from one source address in a
minute, and connections that have upgraded but sent no good hello yet, in all and
from one address. Addresses in `exempt` (loopback unless told otherwise, where a
proxy may stand in front) and peers without an address, on Unix sockets, are bound
by none. IPv6 addresses count by their /64, which one machine can have to itself.

An address that a proxy told (`forwarded`) is a word, no fact: one that is none
counts as unknown, and loopback in it is no reason to let anybody through.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from cortextx.core.budgets import LeakyBucket

MAX_ADDRESSES = 10_000
"""Source addresses that are remembered; the one not seen for longest is forgotten first."""
IPV6_PREFIX = 64
UNKNOWN = "?"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """`connections_per_minute` of one source address (0: any number), `hellos_in_flight`
    in all and `hellos_per_source` (0: any number), and the networks that are `exempt`."""

    connections_per_minute: int
    hellos_in_flight: int
    exempt: tuple[Network, ...] = ()
    hellos_per_source: int = 0


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks or single addresses; raises ValueError for what is neither."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


class Admission:
    """Says who may go on. `limits` may be replaced at any time; `refused_connections` and
    `refused_hellos` count what was not let in.

    `forwarded` says that a proxy told an address, not the connection itself.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.refused_connections = 0
        self.refused_hellos = 0
        self._rates: dict[str, LeakyBucket] = {}
        self._before_hello: dict[Hashable, str] = {}
        self._of_source: Counter[str] = Counter()

    @property
    def hellos_in_flight(self) -> int:
        """Connections that count as having sent no good hello yet."""
        return len(self._before_hello)

    def admits(self, address: str | None, now: float, *, forwarded: bool = False) -> bool:
        """Whether one more connection from `address` may be; `now` is in seconds."""
        limit = self.limits.connections_per_minute
        source = self._source(address, forwarded)
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

    def admits_hello(self, address: str | None, *, forwarded: bool = False) -> bool:
        """Whether one more connection may begin to say hello."""
        source, own = self._source(address, forwarded), self.limits.hellos_per_source
        if source is None:
            return True
        room = len(self._before_hello) < self.limits.hellos_in_flight
        if room and (own == 0 or self._of_source[source] < own):
            return True
        self.refused_hellos += 1
        return False

    def hello_began(
        self, connection: Hashable, address: str | None, *, forwarded: bool = False
    ) -> None:
        """A connection is there whose hello is still to come or to be judged."""
        source = self._source(address, forwarded)
        if source is not None and connection not in self._before_hello:
            self._before_hello[connection] = source
            self._of_source[source] += 1

    def hello_over(self, connection: Hashable) -> None:
        """Its hello was good, or none will come any more; may be said again."""
        source = self._before_hello.pop(connection, None)
        if source is None:
            return
        self._of_source[source] -= 1
        if self._of_source[source] <= 0:
            del self._of_source[source]

    def _source(self, address: str | None, forwarded: bool) -> str | None:
        """What a peer is counted as; None for one that no bound is for."""
        found = read_address(address)
        if found is None:
            # Something that a proxy made up is counted together; else a Unix socket.
            return UNKNOWN if address or forwarded else None
        if not (forwarded and found.is_loopback) and any(
            found.version == net.version and found in net for net in self.limits.exempt
        ):
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
