"""Whether this host has what a probe needs. Looks at paths only."""

from __future__ import annotations

import os
import stat
from shutil import which

from cortextx.fleet.agent.probes.catalogue import Probe


def missing(probe: Probe) -> str | None:
    """What the host lacks, in words; None if nothing."""
    for need in probe.needs:
        kind, _, what = need.partition(":")
        if kind == "command":
            if which(what) is None:
                return f"{what} is not on this host"
        elif kind == "folder":
            if not os.path.isdir(what):
                return f"{what} is not there"
        elif kind == "socket":
            if not _is_usable_socket(what):
                return f"{what} is not a socket that the agent may use"
        elif not os.access(what, os.R_OK):
            return f"{what} cannot be read"
    return None


def _is_usable_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False
