"""What a Docker source reads (PURE).

TOML keys of `[[sources]]` with `kind = "docker"`:

    socket   the Engine API's Unix socket, default /var/run/docker.sock (podman's will do)
    include  globs of container names; [] is all
    exclude  globs of container names that are not read
    labels   globs of label names that go into the metadata; default compose's and ours
    format   how a line is read for its severity, as of a file source; default "auto"
    start    "end" skips what a container has written when it is first seen
    since    how far back it is read then, as "24h" (the default)

A container with the label `cortextx.logs=false` is never read, nor is the agent's own (A35).
The socket is root on its host (S7): the agent asks for lists, logs and events only.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

SOCKET = "/var/run/docker.sock"
OPT_OUT = "cortextx.logs"
LABELS = ("com.docker.compose.project", "com.docker.compose.service", "cortextx.*")
DAY_SECONDS = 86_400.0
MAX_CONTAINERS = 256
"""Containers that are followed at once; the others wait, and the report says so."""


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """One Docker source's configuration; see this file's head. `since_secs` is `since`."""

    socket: str = SOCKET
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    labels: tuple[str, ...] = LABELS
    form: str = "auto"
    start: Literal["start", "end"] = "start"
    since_secs: float = DAY_SECONDS
    max_containers: int = MAX_CONTAINERS
    look_every: float = 10.0
    partial_secs: float = 5.0

    def wants(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a container of this name is read."""
        if labels.get(OPT_OUT, "").lower() in ("false", "0", "no", "off"):
            return False
        if any(fnmatchcase(name, glob) for glob in self.exclude):
            return False
        return not self.include or any(fnmatchcase(name, glob) for glob in self.include)

    def kept_labels(self, labels: dict[str, str]) -> dict[str, str]:
        """The labels that go into the metadata."""
        return {
            name[:256]: value[:1024]
            for name, value in labels.items()
            if any(fnmatchcase(name, glob) for glob in self.labels)
        }
