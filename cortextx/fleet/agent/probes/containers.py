"""docker.health: containers, their state and health, by the Engine's socket (S7)."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import msgspec

from cortextx.fleet.agent.probes.catalogue import DOCKER_SOCKET, Args
from cortextx.fleet.agent.probes.needs import is_usable_socket
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

MAX_CONTAINERS = 500
MAX_BODY = 8_388_608


class _Engine(http.client.HTTPConnection):
    """HTTP over the Engine's Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def health(args: Args, place: Place) -> dict[str, Any]:
    """Every container, running or not; `health` is null where it has no check."""
    usable = (path for path in place.docker_sockets if is_usable_socket(path))
    engine = _Engine(next(usable, DOCKER_SOCKET), place.seconds_left)
    try:
        engine.request("GET", "/containers/json?all=1")
        answer = engine.getresponse()
        body = answer.read(MAX_BODY)
        if answer.status != 200:
            raise ProbeFault(f"the Engine answered {answer.status}")
        rows = msgspec.json.decode(body)
        return {
            "containers": [_container(row) for row in rows[:MAX_CONTAINERS]],
            "complete": len(rows) <= MAX_CONTAINERS,
        }
    except (http.client.HTTPException, msgspec.DecodeError, KeyError, TypeError):
        raise ProbeFault("the Engine answered in a form that is not known") from None
    finally:
        engine.close()


def _container(row: dict[str, Any]) -> dict[str, Any]:
    status = str(row.get("Status") or "")
    health = None
    for word in ("unhealthy", "healthy", "starting"):
        if f"({word})" in status or f"health: {word}" in status:
            health = word
            break
    names = row.get("Names") or ["/" + str(row["Id"])[:12]]
    return {
        "id": str(row["Id"])[:12],
        "name": str(names[0]).lstrip("/"),
        "image": row.get("Image"),
        "state": row.get("State"),
        "status": status or None,
        "health": health,
        "created": row.get("Created"),
    }
