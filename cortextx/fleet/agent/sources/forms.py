"""What structured log lines say of themselves: JSON, logfmt, access logs and the like (PURE).

Each reader looks at one shape and answers the facts as they stand there, or None where the
line has another shape. `parse.LineParser` turns their times into those of an entry.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from cortextx.core.syslog import SEVERITIES, Severity

WORDS: dict[str, Severity] = {
    "EMERG": "emerg", "EMERGENCY": "emerg", "PANIC": "emerg", "ALERT": "alert",
    "CRIT": "crit", "CRITICAL": "crit", "FATAL": "crit", "ERR": "err", "ERROR": "err",
    "SEVERE": "err", "WARN": "warning", "WARNING": "warning", "NOTICE": "notice",
    "INFO": "info", "INFORMATION": "info", "DEBUG": "debug", "TRACE": "debug",
}  # fmt: skip
"""Severity words that stand in running text, in capitals."""
LEVELS: dict[str, Severity] = {
    **WORDS, "DPANIC": "crit", "FINE": "debug", "VERBOSE": "debug", "INFORMATIONAL": "info",
    "DEFAULT": "info", "LOG": "info", "NOTE": "info",
    "F": "crit", "E": "err", "W": "warning", "I": "info", "D": "debug", "T": "debug",
}  # fmt: skip
"""What may stand as the value of a level field."""
PAIRS_WITHIN = 1024
"""Characters of a line in which key=value pairs are looked for."""
CLF_HEAD = 200
"""Characters before the time of an access log."""

_PAIR = re.compile(r'([A-Za-z_@][\w.@-]{0,47})=("(?:[^"\\]|\\.)*"|[^\s"]*)(?:\s+|$)', re.ASCII)
_ACCESS = re.compile(
    r" \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):([0-5]\d|60) ([+-]\d{4})\]"
    r'(?: "(?:[^"\\]|\\.)*" (\d{3})(?!\d))?',
    re.ASCII,
)
_KLOG = re.compile(
    r"([IWEF])([01]\d)([0-3]\d) ([0-2]\d:[0-5]\d):([0-5]\d)\.(\d{1,9}) +(\d{1,10}) \S+:\d+\]",
    re.ASCII,
)
_APACHE = re.compile(
    r"\[(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2} [ \d]\d [0-2]\d:[0-5]\d):([0-5]\d|60)(?:\.(\d{1,9}))?"
    r" (\d{4})\](?: \[(?:[\w.-]*:)?(\w{1,12})\](?: \[pid (\d{1,10})(?:[:\]]))?)?",
    re.ASCII,
)
_AUDIT = re.compile(r"(?:node=\S+ )?type=\S+ msg=audit\((\d{9,10})\.(\d{3}):\d+\):", re.ASCII)
_REDIS = re.compile(
    r"(\d{1,10}):[XCSM] (\d\d [A-Z][a-z]{2} \d{4} [0-2]\d:[0-5]\d):([0-5]\d)\.(\d{3}) ([.*#-]) ",
    re.ASCII,
)
_EPOCH = re.compile(r"(\d{10})(?:\.(\d{1,9}))? ", re.ASCII)
_MARKS: dict[str, Severity] = {".": "debug", "-": "info", "*": "notice", "#": "warning"}


class Stamp(NamedTuple):
    """A local or zoned time: up to the minute, seconds, digits of the fraction, and how to
    read the first: an offset, or one of "clf±HHMM", "bsd", "year", "day"."""

    minute: str
    second: str
    fraction: str
    zone: str


class Facts(NamedTuple):
    """What a line says. `when` is a `Stamp`, text that begins with a time, or seconds,
    milli-, micro- or nanoseconds since 1970."""

    when: Stamp | str | float | None
    severity: Severity | None = None
    app_name: str | None = None
    process_id: str | None = None


# A struct reads only these members and skips over the rest, which is fast.
_TIMES = {
    "t1": "@timestamp", "t2": "timestamp", "t3": "time", "t4": "ts", "t5": "datetime",
    "t6": "date", "t7": "eventTime", "t8": "t",
}  # fmt: skip
_LEVELS = {
    "l1": "level", "l2": "severity", "l3": "lvl", "l4": "levelname", "l5": "log.level",
    "l6": "loglevel", "l7": "log_level", "l8": "priority",
}  # fmt: skip
_APPS = {
    "a1": "app", "a2": "app_name", "a3": "service.name", "a4": "application", "a5": "service",
    "a6": "program", "a7": "name",
}  # fmt: skip
_PIDS = {"p1": "pid", "p2": "process_id", "p3": "process.pid", "p4": "procid"}
_NESTED = {"log": "log", "process": "process"}
_MEMBERS = {**_TIMES, **_LEVELS, **_APPS, **_PIDS, **_NESTED}

_JsonLine = msgspec.defstruct(
    "_JsonLine",
    [(name, Any, None) for name in _MEMBERS],
    rename=_MEMBERS,
    gc=False,
    bases=(Struct,),
)
_decode = msgspec.json.Decoder(_JsonLine).decode
_KINDS = {
    **{key: (0, order) for order, key in enumerate(_TIMES.values())},
    **{key: (1, order) for order, key in enumerate(_LEVELS.values())},
    **{key: (2, order) for order, key in enumerate(_APPS.values())},
    **{key: (3, order) for order, key in enumerate(_PIDS.values())},
}


def json_line(text: str) -> Facts | None:
    """A line that is one JSON object; a member of another shape than expected says nothing."""
    try:
        found: Any = _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError):
        return None
    log, process = found.log, found.process
    level = _first(found, _LEVELS)
    if level is None and isinstance(log, dict):
        level = log.get("level")
    app = _first(found, _APPS)
    if isinstance(app, dict):
        app = app.get("name")
    pid = _first(found, _PIDS)
    if pid is None and isinstance(process, dict):
        pid = process.get("pid")
    when = _first(found, _TIMES)
    return Facts(_when(when), severity_of(level), _word(app, 255), _word(pid, 128))


def logfmt(text: str) -> Facts | None:
    """A line of key=value pairs, with or without quotes."""
    if _PAIR.match(text) is None:
        return None
    best: list[tuple[int, str] | None] = [None, None, None, None]
    for key, value in _PAIR.findall(text, 0, PAIRS_WITHIN):
        place = _KINDS.get(key)
        if place is not None:
            kind, order = place
            known = best[kind]
            if known is None or order < known[0]:
                best[kind] = (order, value)
    if best[0] is None and best[1] is None:
        return None
    when, level, app, pid = (None if kept is None else _unquoted(kept[1]) for kept in best)
    return Facts(_when(when), severity_of(level), _word(app, 255), _word(pid, 128))


def access(text: str) -> Facts | None:
    """Apache's and nginx's access logs (common, combined, with a virtual host before).

    An answer of 5xx has the severity err, since the server says that it failed.
    """
    at = text.find(" [", 0, CLF_HEAD)
    found = _ACCESS.match(text, at) if at > 0 else None
    if found is None:
        return None
    minute, second, offset, status = found.groups()
    failed = status is not None and status[0] == "5"
    return Facts(Stamp(minute, second, "", f"clf{offset}"), "err" if failed else "info")


def apache_error(text: str) -> Facts | None:
    """Apache's error log, of 2.2 and 2.4."""
    found = _APACHE.match(text)
    if found is None:
        return None
    minute, second, fraction, year, level, pid = found.groups()
    severity = None if level is None else LEVELS.get(level.rstrip("012345678").upper())
    return Facts(Stamp(f"{year} {minute}", second, fraction or "", "year"), severity, None, pid)


def klog(text: str) -> Facts | None:
    """What glog and Kubernetes' klog write: `I0228 23:04:01.123456    77 main.go:12] text`."""
    found = _KLOG.match(text)
    if found is None:
        return None
    letter, month, day, clock, second, fraction, pid = found.groups()
    if not 1 <= int(month) <= 12:
        return None
    minute = f"{_MONTHS[int(month) - 1]} {day} {clock}"
    return Facts(Stamp(minute, second, fraction, "bsd"), LEVELS[letter], None, pid)


def audit(text: str) -> Facts | None:
    """The kernel's audit log."""
    found = _AUDIT.match(text)
    if found is None:
        return None
    return Facts(float(f"{found[1]}.{found[2]}"), None, "audit")


def redis(text: str) -> Facts | None:
    """Redis' own log: `77:M 28 Feb 2026 23:04:01.123 * text`."""
    found = _REDIS.match(text)
    if found is None:
        return None
    pid, minute, second, fraction, mark = found.groups()
    return Facts(Stamp(minute, second, fraction, "day"), _MARKS[mark], None, pid)


def epoch(text: str) -> Facts | None:
    """A line that begins with seconds since 1970 (squid, say)."""
    found = _EPOCH.match(text)
    return None if found is None else Facts(float(f"{found[1]}.{found[2] or 0}"))


def severity_of(level: Any) -> Severity | None:
    """A severity for a level: a word, syslog's number (0 to 7), or bunyan's (10 to 60)."""
    if isinstance(level, str):
        known = LEVELS.get(level) or LEVELS.get(level.strip().upper())
        if known is not None or not level.strip().isdecimal() or len(level) > 4:
            return known
        level = int(level)
    if isinstance(level, bool) or not isinstance(level, int | float) or level < 0:
        return None
    if level <= 7:
        return SEVERITIES[int(level)] if level == int(level) else None
    for least, severity in _NUMBERS:
        if level >= least:
            return severity
    return None


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NUMBERS: tuple[tuple[int, Severity], ...] = (
    (60, "crit"), (50, "err"), (40, "warning"), (30, "info"), (10, "debug"),
)  # fmt: skip
_ESCAPED = re.compile(r'\\(["\\])')


def _first(found: Any, names: dict[str, str]) -> Any:
    for name in names:
        value = getattr(found, name)
        if value is not None:
            return value
    return None


def _when(value: Any) -> str | float | None:
    if isinstance(value, str):
        if value[:4].isdecimal() and value[4:5] in "-/":
            return value
        try:
            return float(value) if value[:1].isdecimal() and len(value) < 32 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e20:
        return None
    return value


def _word(value: Any, limit: int) -> str | None:
    """A name or number as an entry's field; None for what is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**18 else None
    return value if isinstance(value, str) and 0 < len(value) <= limit else None


def _unquoted(value: str) -> str:
    return _ESCAPED.sub(r"\1", value[1:-1]) if value[:1] == '"' and len(value) > 1 else value
