"""Which probes there are: their names, arguments and needs (PURE, §4.6, F44, S3).

What a probe does stands in other modules, which only its child process loads.
An argument that could be taken for an option or lead elsewhere does not get
past the patterns here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from cortextx.core.forms import formed
from cortextx.core.jsontext import convert
from cortextx.errors import JsonShapeError

_Limit = Annotated[int, Meta(ge=1, le=200)]
_Lines = Annotated[int, Meta(ge=1, le=2000)]
PATH = r"\A/[^\x00-\x1f\x7f]*\Z"
HOST = r"\A(?:[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_.])?|::[0-9A-Fa-f:.]*)\Z"
UNIT = r"\A[A-Za-z0-9_@][A-Za-z0-9_@.:\\-]*\Z"
_WORDS = r"\A[^\x00-\x1f\x7f]*\Z"
_Path = Annotated[str, formed(PATH, "an absolute path", max_length=4096)]
_Host = Annotated[str, formed(HOST, "a host's name or address", max_length=253)]
_Unit = Annotated[str, formed(UNIT, "the name of a unit", max_length=255)]
_Since = Annotated[int, Meta(ge=1, le=31 * 86_400)]


class Args(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No arguments."""


class MountArgs(Args, frozen=True):
    """`mount`: one mount point only."""

    mount: _Path | None = None


class LargestArgs(Args, frozen=True):
    """What below `path`, a directory, is largest: `limit` files and as many directories."""

    path: _Path
    limit: _Limit = 20


class TopArgs(Args, frozen=True):
    """The first `limit` processes."""

    limit: _Limit = 20


class CpuArgs(TopArgs, frozen=True):
    """Measured over `interval_ms`."""

    interval_ms: Annotated[int, Meta(ge=100, le=10_000)] = 1000


class DnsArgs(Args, frozen=True):
    """Look `name` up, for addresses of a family."""

    name: _Host
    family: Literal["any", "ipv4", "ipv6"] = "any"


class TcpArgs(Args, frozen=True):
    """Connect to `host` (a name or address) and `port`, within `connect_ms`."""

    host: _Host
    port: Annotated[int, Meta(ge=1, le=65_535)]
    connect_ms: Annotated[int, Meta(ge=10, le=60_000)] = 3000


class UnitArgs(Args, frozen=True):
    """One unit of systemd's, with its suffix or without (then it is a service)."""

    unit: _Unit


class TailArgs(Args, frozen=True):
    """The last `lines` of the file at `path`."""

    path: _Path
    lines: _Lines = 100


class GrepArgs(Args, frozen=True):
    """The newest `lines` of the journal's messages that match `pattern` (as `journalctl
    --grep` takes it), of one unit if it is given, of the last `since_secs`."""

    pattern: Annotated[str, formed(_WORDS, "a pattern in one line", min_length=1, max_length=512)]
    unit: _Unit | None = None
    since_secs: _Since = 86_400
    lines: _Lines = 100


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe. `needs` are `command:NAME`, `file:/PATH`, `folder:/PATH` and
    `socket:/PATH`, all of which the host must have. `module` and `function` say
    where it is carried out."""

    name: str
    about: str
    args: type[Args]
    function: str
    needs: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module below this package, without its name."""
        return self.function.partition(":")[0]


SYSTEMD = ("command:systemctl", "folder:/run/systemd/system")
DOCKER_SOCKET = "/var/run/docker.sock"

PROBES = {
    probe.name: probe
    for probe in (
        Probe("host.info", "what this host is", Args, "host:info"),
        Probe("disk.usage", "space and inodes of file systems", MountArgs, "disks:usage"),
        Probe("disk.largest", "what takes the space", LargestArgs, "disks:largest"),
        Probe("mem.top", "processes by memory", TopArgs, "processes:by_memory"),
        Probe(
            "mem.pressure", "memory, swap and stalls", Args, "memory:pressure",
            ("file:/proc/meminfo",),
        ),
        Probe("cpu.top", "processes by CPU", CpuArgs, "processes:by_cpu"),
        Probe("net.listen", "sockets that listen", Args, "network:listening"),
        Probe("net.neigh", "neighbours on the link", Args, "network:neighbours"),
        Probe("net.dns_check", "look a name up", DnsArgs, "network:dns_check"),
        Probe("net.tcp_check", "connect to a port", TcpArgs, "network:tcp_check"),
        Probe("systemd.failed", "units that failed", Args, "units:failed", SYSTEMD),
        Probe("systemd.status", "one unit's state", UnitArgs, "units:status", SYSTEMD),
        Probe(
            "docker.health", "containers and their health", Args, "containers:health",
            (f"socket:{DOCKER_SOCKET}",),
        ),
        Probe("file.tail", "a log file's last lines", TailArgs, "files:tail"),
        Probe(
            "journal.grep", "search the journal", GrepArgs, "journal:grep",
            ("command:journalctl",),
        ),
        Probe("time.sync", "the clock's synchronisation", Args, "clock:sync"),
    )
}  # fmt: skip

DEFAULT_ALLOW = ("host.*", "disk.*", "mem.*", "cpu.*", "systemd.*", "time.*")
"""What a server may run unless told otherwise: not what looks into the network, into
files, the journal, or at Docker (S3, S7)."""


def is_pattern(text: str) -> bool:
    """Whether an entry of `allow_probes` names one probe at least."""
    return any(fnmatchcase(name, text) for name in PROBES)


def allowed(patterns: Iterable[str]) -> list[str]:
    """The names of the probes that an agent's own configuration lets run (F18)."""
    globs = tuple(patterns)
    return [name for name in PROBES if any(fnmatchcase(name, glob) for glob in globs)]


def read_args(probe: Probe, args: Any) -> Args:
    """Check a request's arguments (F44).

    Raises JsonShapeError, with the argument's name, for one that is unknown, missing,
    or not as declared.
    """
    if args is None:
        args = {}
    if not isinstance(args, dict):
        raise JsonShapeError("$.args", f"an object with the arguments of {probe.name}")
    known = probe.args.__struct_encode_fields__
    for name in args:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            shown = name if name.isidentifier() and len(name) <= 64 else "?"
            raise JsonShapeError(f"$.args.{shown}", f"an argument of {probe.name}, which {takes}")
    try:
        return convert(args, probe.args)
    except JsonShapeError as fault:
        field = fault.field.removeprefix("$")
        raise JsonShapeError(f"$.args{field}", fault.expected) from None
