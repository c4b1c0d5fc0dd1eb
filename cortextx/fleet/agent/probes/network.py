"""net.listen, net.neigh, net.dns_check, net.tcp_check (S3: only where allowed locally)."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import time
from typing import Any

import msgspec
import psutil

from cortextx.fleet.agent.probes.addresses import refusal
from cortextx.fleet.agent.probes.catalogue import Args, DnsArgs, TcpArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

MAX_ROWS = 2000
_FAMILIES = {"any": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


def listening(args: Args, place: Place) -> dict[str, Any]:
    """Sockets that wait for others: TCP that listens, UDP that is bound to no peer."""
    rows = []
    for found in psutil.net_connections(kind="inet"):
        stream = found.type == socket.SOCK_STREAM
        if found.status != psutil.CONN_LISTEN if stream else found.raddr:
            continue
        row: dict[str, Any] = {
            "protocol": "tcp" if stream else "udp",
            "address": found.laddr.ip,
            "port": found.laddr.port,
            "pid": found.pid,
            "process": None,
        }
        if found.pid is not None:
            with contextlib.suppress(psutil.Error):
                row["process"] = psutil.Process(found.pid).name()
        rows.append(row)
    rows.sort(key=lambda row: (row["protocol"], row["port"], row["address"]))
    return {"sockets": rows[:MAX_ROWS], "complete": len(rows) <= MAX_ROWS}


def neighbours(args: Args, place: Place) -> dict[str, Any]:
    """Who is on the links of this host: address, hardware address, device, state."""
    if shutil.which("ip") is not None:
        code, out, words = place.command("ip", "-json", "neighbour", "show")
        if code != 0:
            raise ProbeFault(f"ip: {words.strip()}")
        rows = [_neighbour(row) for row in msgspec.json.decode(out or b"[]") if row]
    else:
        rows = _arp_table()
    return {"neighbours": rows[:MAX_ROWS], "complete": len(rows) <= MAX_ROWS}


def _neighbour(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "address": row.get("dst"),
        "hardware": row.get("lladdr"),
        "device": row.get("dev"),
        "state": ",".join(row.get("state", ())).lower() or None,
    }


def _arp_table() -> list[dict[str, Any]]:
    rows = []
    try:
        with open("/proc/net/arp") as file:
            for line in list(file)[1:]:
                address, _, flags, hardware, _, device = line.split()[:6]
                state = "reachable" if int(flags, 16) & 2 else "incomplete"
                row = {"address": address, "hardware": hardware, "device": device}
                rows.append({**row, "state": state})
    except FileNotFoundError:
        raise ProbeFault("neither ip nor /proc/net/arp is on this host") from None
    return rows


def dns_check(args: DnsArgs, place: Place) -> dict[str, Any]:
    """What a name resolves to by this host's own resolver, and how long it took (ms)."""
    began = time.monotonic()
    fault, addresses = None, []
    try:
        addresses = _resolve(args.name, 0, _FAMILIES[args.family])
    except ProbeFault as error:
        fault = str(error)
    return {
        "name": args.name,
        "resolved": fault is None,
        "addresses": addresses,
        "fault": fault,
        "duration_ms": _milliseconds(began),
    }


def tcp_check(args: TcpArgs, place: Place) -> dict[str, Any]:
    """Whether a connection can be made, to the first address that may be tried.

    The address that is connected to is the one that was judged: the name is looked
    up once.
    """
    began = time.monotonic()
    addresses = _resolve(args.host, args.port, socket.AF_UNSPEC)
    resolved = _milliseconds(began)
    may = [address for address in addresses if refusal(address) is None]
    if not may:
        raise ProbeFault(f"{args.host}: not connected to: {refusal(addresses[0])}")
    wait = min(args.connect_ms / 1000, place.seconds_left)
    began = time.monotonic()
    fault = None
    try:
        socket.create_connection((may[0], args.port), timeout=wait).close()
    except TimeoutError:
        fault = "timed out"
    except OSError as error:
        fault = errno.errorcode.get(error.errno or 0, "") + f" {error.strerror or error}"
    return {
        "host": args.host,
        "port": args.port,
        "address": may[0],
        "connected": fault is None,
        "fault": fault if fault is None else fault.strip(),
        "resolve_ms": resolved,
        "connect_ms": _milliseconds(began),
    }


def _resolve(name: str, port: int, family: int) -> list[str]:
    try:
        found = socket.getaddrinfo(name, port or None, family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ProbeFault(f"{name}: {error.strerror}") from None
    except (UnicodeError, OSError) as error:
        raise ProbeFault(f"{name}: {getattr(error, 'strerror', None) or 'not a name'}") from None
    return list(dict.fromkeys(str(info[4][0]) for info in found))[:64]


def _milliseconds(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
