"""What custom sources are told to do: listeners for syslog, commands, standard input (PURE).

In TOML, as members of `[[sources]]` with kind = "custom", a name, and a type; besides,
each has format (exec, stdin), timezone (of times without an offset):

type = "syslog-udp" | "syslog-tcp" | "syslog-tls" | "syslog-unix"
    listen = "127.0.0.1:5514"   # ADDRESS:PORT ([::1]:PORT); for syslog-unix the path of a
                                # datagram socket. Loopback unless said otherwise (S7)
    allow = ["192.0.2.0/24"]    # networks that may send; default: any (not syslog-unix)
    rate = 1000.0               # messages a second of one sender, 0 (default): no limit.
                                # UDP and Unix drop and count, TCP and TLS read no faster
    max_line_bytes = 65536      # 480 to 65536: a longer message comes in parts (F17)
    receive_buffer = 4194304    # bytes asked of the kernel (UDP, Unix): 4096 to 256 MiB
    socket_mode = "0666"        # syslog-unix: who may write to it
  and for TCP and TLS
    max_connections = 256       # 1 to 65536
    framing = "auto"            # or "octet-counting", "newline" (RFC 6587)
    idle_secs = 0.0             # a connection that is quiet for so long is closed; 0: never,
                                # but when all connections are taken, the quietest goes
    certificate, key = PATH     # PEM, required for syslog-tls; read again when they change
    client_ca = PATH            # only senders with a certificate of this CA

type = "exec"
    command = ["/usr/bin/x"]    # a program's absolute path and its arguments; no shell
    directory = "/"             # where it runs
    environment = ["A=b"]       # besides PATH, LANG and HOME
    user = "nobody"             # who runs it, where the agent is root
    restart_secs = 10.0         # 0.1 to 86400: pause before it is started again; after a
                                # failure twice as long each time, up to 300 s

type = "stdin"
    # nothing more; needs an agent in the foreground
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import tzinfo
from typing import Literal

from cortextx.fleet.agent.sources.syslog_framing import PART_BYTES, Framing

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Transport = Literal["udp", "tcp", "tls", "unix"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of a listener's certificate (chain) and key, and of its senders' CA."""

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class SyslogSettings:
    """One listener; see the module. `address` and `port`, or `path`, are where it listens."""

    transport: Transport
    address: str = "127.0.0.1"
    port: int = 0
    path: str = ""
    zone: tzinfo | None = None
    allow: tuple[Network, ...] = ()
    rate: float = 0.0
    part_bytes: int = PART_BYTES
    receive_buffer: int = 4 * 2**20
    socket_mode: int = 0o666
    max_connections: int = 256
    framing: Framing = "auto"
    idle_secs: float = 0.0
    tls: TlsFiles | None = None

    def admits(self, peer: str | None) -> bool:
        """Whether a sender with this address may send."""
        if not self.allow or peer is None:
            return True
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.allow)


@dataclass(frozen=True, slots=True)
class ExecSettings:
    """One command; see the module. `environment` are (name, value) pairs."""

    command: tuple[str, ...]
    directory: str = "/"
    environment: tuple[tuple[str, str], ...] = ()
    user: str | None = None
    restart_secs: float = 10.0
    stop_secs: float = 5.0
    format: str = "auto"
    zone: tzinfo | None = None
    part_bytes: int = PART_BYTES


@dataclass(frozen=True, slots=True)
class StdinSettings:
    """Standard input; see the module."""

    format: str = "auto"
    zone: tzinfo | None = None
    part_bytes: int = PART_BYTES


def place_of(listen: str) -> tuple[str, int]:
    """ADDRESS and PORT of a listener; raises ValueError unless it is an IP address."""
    host, _, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    host = {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(host, host)  # noqa: S104
    number = int(port)
    if not 0 <= number < 65_536:
        raise ValueError("a port is below 65536")
    return str(ipaddress.ip_address(host)), number


def shown_peer(host: str) -> str:
    """An address as people write it: an IPv4 one that came through IPv6 is that."""
    host = host.partition("%")[0]
    return host[7:] if host.startswith("::ffff:") and "." in host else host
