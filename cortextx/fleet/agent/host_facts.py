"""What an agent says of its host and of itself in a hello (§4.1, §8)."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cortextx.fleet.contract import MAX_ENTRIES, Capabilities, HelloParams, Platform

if TYPE_CHECKING:
    from cortextx.fleet.agent.identity import Identity


def capabilities(kinds: Iterable[str], probes: Iterable[str]) -> Capabilities:
    """What this host can do: the kinds of source that it can run, the probes that it offers.

    No compression: V1 has none (§2).
    """
    sources: list[Any] = sorted(kinds)
    return Capabilities(
        supported_probes=sorted(probes),
        sources=sources,
        max_batch_entries=MAX_ENTRIES,
        compression=[],
    )


def make_hello(identity: Identity, version: str, acked: int, can: Capabilities) -> HelloParams:
    """What the server is told of this host (§4.1, F36)."""
    return HelloParams(
        protocol_version=1,
        agent_version=version,
        hostname=(socket.gethostname() or "localhost")[:253],
        host_id=identity.host_id,
        platform=Platform(
            os=platform.system().lower(),
            arch=platform.machine(),
            kernel=platform.release(),
            distro=_distro(),
        ),
        capabilities=can,
        token=identity.token,
        resume_from_seq=acked,
    )


def _distro() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
