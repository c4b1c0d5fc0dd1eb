"""Whether this host has what a probe needs. Looks at paths only."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from shutil import which

from cortextx.fleet.agent.probes.catalogue import Probe


def missing(probe: Probe, docker_sockets: Sequence[str] = ()) -> str | None:
    """What the host lacks, in words; None if nothing. Any of the `docker_sockets` is as good
    as the usual one."""
    for need in probe.needs:
        kind, _, what = need.partition(":")
        if kind == "command":
            if which(what) is None:
                return f"{what} is not on this host"
        elif kind == "folder":
            if not os.path.isdir(what):
                return f"{what} is not there"
        elif kind == "socket":
            sockets = list(dict.fromkeys((*docker_sockets, what)))
            if not any(map(is_usable_socket, sockets)):
                return f"{' or '.join(sockets)} is not a socket that the agent may use"
        elif not os.access(what, os.R_OK):
            return f"{what} cannot be read"
    return None


def is_usable_socket(path: str) -> bool:
    """Whether this process may connect to the socket at `path`."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False
