"""The tables `[[sources]]` of an agent's TOML file (PURE).

[[sources]]
kind = "file"
path = "/srv/app/*.log"
exclude = ["/srv/app/debug-*.log"]
multiline = { start = '^\\d{4}-' }

[[sources]]
kind = "custom"
type = "syslog-udp"
name = "switches"
listen = "0.0.0.0:514"

A table is flat and frozen, so that it is a key of what runs; its lists are tuples.
What no type can check is checked by `check_source`. `[[rules]]` too stand here; what
they do is in `rules`.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import Meta, Struct

from cortextx.core.forms import formed
from cortextx.core.patterns import PatternError, compiled
from cortextx.core.syslog import Severity
from cortextx.errors import ConfigError
from cortextx.fleet.agent.sources.custom_settings import place_of
from cortextx.fleet.agent.sources.glob_forms import glob_fault
from cortextx.fleet.contract import SourceKind

Name = Annotated[
    str,
    formed(
        r"^[^\x00-\x1f\x7f]+\Z", "a name without control characters",
        min_length=1, max_length=128,
    ),
]  # fmt: skip
Encoding = Literal["auto", "utf-8", "utf-16le", "utf-16be", "latin-1"]
Format = Literal["auto", "plain", "json", "logfmt", "rfc3164", "rfc5424", "nginx", "apache"]
CustomType = Literal["syslog-udp", "syslog-tcp", "syslog-tls", "syslog-unix", "exec", "stdin"]
Span = Annotated[str, formed(r"^[0-9]{1,9}[smhd]\Z", "a time as 90s, 15m, 24h or 7d")]
"""A time as `90s`, `15m`, `24h` or `7d`."""
Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]
RESERVED = "cortextx"
"""The custom source of what the agent says itself (F37)."""

_SPAN = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})\Z")
_MATCH = re.compile(r"[A-Z_][A-Z0-9_]{0,63}=[^\x00-\x1f\x7f]{0,1024}\Z")


class MultilineTable(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"continue_": "continue"},
):
    """How lines become one entry: `start` matches an entry's first line, or `continue`
    all its further lines; one of the two. The caps and the time-out bound an entry."""

    start: str | None = None
    continue_: str | None = None
    max_lines: Annotated[int, Meta(ge=2, le=10_000)] = 500
    max_bytes: Annotated[int, Meta(ge=1024, le=4_194_304)] = 262_144
    timeout_secs: Annotated[float, Meta(ge=0.1, le=600)] = 5.0


class SourceTable(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One table `[[sources]]`: what this host sends whatever the server asks for (F18).

    Which members belong to which kind is in `MEMBERS`. None is "as the kind has it".
    """

    kind: SourceKind
    name: Name | None = None
    start: Literal["start", "end"] | None = None
    since: Span | None = None
    timezone: str | None = None
    format: Format | None = None
    # file
    path: str | None = None
    exclude: tuple[str, ...] = ()
    encoding: Encoding | None = None
    multiline: MultilineTable | None = None
    partial_secs: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    max_files: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    # journald
    units: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    priority_max: Severity | None = None
    directory: str | None = None
    namespace: str | None = None
    # docker (and `exclude`)
    socket: str | None = None
    include: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    # custom
    type: CustomType | None = None
    listen: str | None = None
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    max_connections: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    max_line_bytes: Annotated[int, Meta(ge=480, le=65_536)] | None = None
    command: tuple[str, ...] = ()
    restart_secs: Seconds | None = None
    # custom; what each means is in `sources.custom_settings`
    allow: tuple[str, ...] = ()
    rate: Annotated[float, Meta(gt=0, le=10_000_000)] | None = None
    receive_buffer: Annotated[int, Meta(ge=4096, le=268_435_456)] | None = None
    socket_mode: Annotated[str, formed(r"^0?[0-7]{3}\Z", "a mode as 0660")] | None = None
    framing: Literal["auto", "octet-counting", "newline"] | None = None
    idle_secs: Annotated[float, Meta(ge=1, le=604_800)] | None = None
    environment: tuple[str, ...] = ()
    user: str | None = None

    @property
    def title(self) -> str:
        """What it is called where it has no name of its own."""
        return self.name or self.path or self.kind


MEMBERS: dict[str, frozenset[str]] = {
    "file": frozenset(
        {
            "path",
            "exclude",
            "encoding",
            "multiline",
            "partial_secs",
            "max_files",
            "format",
            "timezone",
            "start",
        }
    ),
    "journald": frozenset(
        {"units", "identifiers", "matches", "priority_max", "directory", "namespace"}
        | {"start", "since"}
    ),
    "docker": frozenset({"socket", "include", "exclude", "labels", "start", "since", "format"}),
    "custom": frozenset({"type", "timezone", "max_line_bytes"}),
}
"""The members that a source of each kind may have, beside `kind` and `name`."""
_LISTENER = frozenset({"listen", "rate"})
_DATAGRAMS = _LISTENER | {"receive_buffer"}
_STREAMS = _LISTENER | {"max_connections", "allow", "framing", "idle_secs"}
TYPE_MEMBERS: dict[str, frozenset[str]] = {
    "syslog-udp": _DATAGRAMS | {"allow"},
    "syslog-tcp": _STREAMS,
    "syslog-tls": _STREAMS | {"certificate", "key", "client_ca"},
    "syslog-unix": _DATAGRAMS | {"socket_mode"},
    "exec": frozenset({"command", "restart_secs", "directory", "environment", "user", "format"}),
    "stdin": frozenset({"format"}),
}
"""The further members of a custom source, by its `type`."""


class RuleMatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries a rule is for; all that is given must hold (see `rules`)."""

    source: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    app: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    severity_min: Severity | None = None
    severity_max: Severity | None = None
    message: str | None = None


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[[rules]]`, applied in order before the buffer (see `rules`)."""

    action: Literal["drop", "sample", "redact", "limit"]
    match: RuleMatch = RuleMatch()
    name: Name | None = None
    keep: Annotated[float, Meta(ge=0, le=1)] | None = None
    by: Literal["random", "message", "app_name", "process_id"] | None = None
    pattern: str | None = None
    replacement: Annotated[str, Meta(max_length=1024)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    burst: Annotated[float, Meta(ge=1, le=1e9)] | None = None


_RULE_NEEDS = {"sample": "keep", "redact": "pattern", "limit": "rate"}
_RULE_MAY = {
    "drop": frozenset[str](),
    "sample": frozenset({"keep", "by"}),
    "redact": frozenset({"pattern", "replacement"}),
    "limit": frozenset({"rate", "burst"}),
}


def seconds_of(span: str) -> int:
    """The seconds of a `Span`."""
    return int(span[:-1]) * _SPAN[span[-1]]


def check_source(table: SourceTable, where: str, field: str) -> None:
    """Check what the types cannot say; raises ConfigError with the member's name."""
    allowed = MEMBERS[table.kind]
    if table.kind == "custom":
        if table.type is None:
            raise ConfigError(where, f"{field}.type", "what kind of custom source it is")
        allowed |= TYPE_MEMBERS[table.type]
    for name in table.__struct_fields__:
        if name in ("kind", "name") or name in allowed:
            continue
        if getattr(table, name) not in (None, ()):
            whose = table.type if table.kind == "custom" else f"kind {table.kind}"
            raise ConfigError(where, f"{field}.{name}", f"nothing: it is no member of {whose}")
    _CHECKS[table.kind](table, where, field)
    if table.timezone is not None:
        try:
            ZoneInfo(table.timezone)
        except (ValueError, OSError, KeyError):
            expected = "a time zone, as Europe/Berlin or UTC"
            raise ConfigError(where, f"{field}.timezone", expected) from None


class Place(NamedTuple):
    """Where a listener listens: the transport (TLS is TCP), and a path, or address and port."""

    transport: str
    at: str
    port: int

    def overlaps(self, other: Place) -> bool:
        """Whether one of the two could not listen while the other does."""
        if (self.transport, self.port) != (other.transport, other.port):
            return False
        return self.at == other.at or (
            self.port > 0
            and (":" in self.at) == (":" in other.at)
            and any(ipaddress.ip_address(each).is_unspecified for each in (self.at, other.at))
        )


def place_listened_at(table: SourceTable) -> Place | None:
    """Where a checked source listens, if it is a listener."""
    if table.listen is None or table.type is None:
        return None
    if table.type == "syslog-unix":
        return Place("unix", posixpath.normpath(table.listen), 0)
    transport = "udp" if table.type == "syslog-udp" else "tcp"
    return Place(transport, *place_of(table.listen))


def check_rule(rule: RuleTable, where: str, field: str) -> None:
    """Check which members a rule has; raises ConfigError with the member's name.

    Whether a pattern can be run is for `rules.compile_rules` to say.
    """
    needed = _RULE_NEEDS.get(rule.action)
    if needed is not None and getattr(rule, needed) is None:
        raise ConfigError(where, f"{field}.{needed}", f"a value, which {rule.action!r} needs")
    for name in ("keep", "by", "pattern", "replacement", "rate", "burst"):
        if name not in _RULE_MAY[rule.action] and getattr(rule, name) is not None:
            expected = f"nothing: it does not belong to action = {rule.action!r}"
            raise ConfigError(where, f"{field}.{name}", expected)


def _check_glob(glob: str, where: str, field: str) -> None:
    fault = glob_fault(glob)
    if fault is not None:
        raise ConfigError(where, field, f"a glob that can be used: {fault}")


def _check_file(table: SourceTable, where: str, field: str) -> None:
    if not (table.path or "").startswith("/"):
        raise ConfigError(where, f"{field}.path", "an absolute path or glob")
    _check_glob(table.path or "", where, f"{field}.path")
    for at, glob in enumerate(table.exclude):
        if not glob.startswith("/"):
            raise ConfigError(where, f"{field}.exclude[{at}]", "an absolute path or glob")
        _check_glob(glob, where, f"{field}.exclude[{at}]")
    rules = table.multiline
    if rules is None:
        return
    if (rules.start is None) == (rules.continue_ is None):
        raise ConfigError(where, f"{field}.multiline", "`start` or `continue`, one of them")
    name, pattern = ("start", rules.start) if rules.start else ("continue", rules.continue_)
    check_pattern(pattern or "", where, f"{field}.multiline.{name}")


def check_pattern(pattern: str, where: str, field: str) -> None:
    """See that `pattern` is a regular expression (RE2); raises ConfigError."""
    try:
        compiled(pattern)
    except PatternError as error:
        raise ConfigError(where, field, f"a regular expression: {error}") from None


def _check_journald(table: SourceTable, where: str, field: str) -> None:
    for at, match in enumerate(table.matches):
        if not is_journal_match(match):
            raise ConfigError(where, f"{field}.matches[{at}]", "FIELD=value")
    if table.directory is not None and not table.directory.startswith("/"):
        raise ConfigError(where, f"{field}.directory", "an absolute path")
    if table.start is not None and table.since is not None:
        raise ConfigError(where, f"{field}.since", "nothing where `start` is given")


def is_journal_match(text: str) -> bool:
    """Whether `text` is one match of a journal's field, as journalctl takes it."""
    return _MATCH.match(text) is not None


def _check_docker(table: SourceTable, where: str, field: str) -> None:
    if table.socket is not None and not table.socket.startswith("/"):
        raise ConfigError(where, f"{field}.socket", "an absolute path")
    if table.start is not None and table.since is not None:
        raise ConfigError(where, f"{field}.since", "nothing where `start` is given")


def _check_custom(table: SourceTable, where: str, field: str) -> None:
    if table.name is None or table.name == RESERVED:
        raise ConfigError(where, f"{field}.name", f"a name, other than {RESERVED}")
    match table.type:
        case "exec":
            if not table.command or not table.command[0].startswith("/"):
                expected = "the absolute path of a program, and its arguments"
                raise ConfigError(where, f"{field}.command", expected)
            if not (table.directory or "/").startswith("/"):
                raise ConfigError(where, f"{field}.directory", "an absolute path")
            for at, pair in enumerate(table.environment):
                if not pair.partition("=")[0] or "=" not in pair or "\0" in pair:
                    raise ConfigError(where, f"{field}.environment[{at}]", "NAME=value")
        case "syslog-unix":
            if not (table.listen or "").startswith("/"):
                raise ConfigError(where, f"{field}.listen", "the absolute path of a socket")
        case "syslog-udp" | "syslog-tcp" | "syslog-tls":
            check_address(table.listen or "", where, f"{field}.listen")
            for at, network in enumerate(table.allow):
                try:
                    ipaddress.ip_network(network)
                except ValueError:
                    expected = "an address or a network, as 192.0.2.0/24"
                    raise ConfigError(where, f"{field}.allow[{at}]", expected) from None
            if table.type == "syslog-tls":
                for name in ("certificate", "key"):
                    if not (getattr(table, name) or "").startswith("/"):
                        raise ConfigError(where, f"{field}.{name}", "an absolute path")


def check_address(text: str, where: str, field: str) -> None:
    """See that `text` is ADDRESS:PORT, with an IPv6 address in brackets; raises ConfigError."""
    found = _ADDRESS.match(text)
    good = found is not None and 0 < int(found[1]) < 65_536
    try:
        ipaddress.ip_address(text.rpartition(":")[0].strip("[]").replace("localhost", "::1"))
    except ValueError:
        good = False
    if not good:
        raise ConfigError(where, field, "ADDRESS:PORT, as 127.0.0.1:514 or [::1]:514")


_CHECKS = {
    "file": _check_file,
    "journald": _check_journald,
    "docker": _check_docker,
    "custom": _check_custom,
}
