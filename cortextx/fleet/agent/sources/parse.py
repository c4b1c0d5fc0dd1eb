"""What a log line says of itself: its time, severity, program and facility (PURE).

Known forms: RFC 5424 and RFC 3164 with or without PRI, rsyslog's RFC 3339 file form,
ISO 8601 at the line's start (as dpkg, PostgreSQL, nginx and most programs write it),
`[time] …`, and a time behind a first word (`update-alternatives …:`, `Start-Date: …`).
Whatever is not found stays None, the severity `info`, the time that of arrival. The
message of an entry is always the whole line: what is read here is only an index to it.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from cortextx.core.syslog import FACILITIES, SEVERITIES, Severity
from cortextx.fleet.agent.entries import EPOCH, moment_text

DAY = timedelta(days=1)
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
CACHED = 512
"""Time stamps (to the minute) that a parser remembers."""
HEAD = 128
"""Characters behind the time among which a severity word is looked for."""
MAX_TOKENS = 12
"""Words among these that are looked at."""

WORDS: dict[str, Severity] = {
    "EMERG": "emerg", "EMERGENCY": "emerg", "PANIC": "emerg", "ALERT": "alert",
    "CRIT": "crit", "CRITICAL": "crit", "FATAL": "crit", "ERR": "err", "ERROR": "err",
    "SEVERE": "err", "WARN": "warning", "WARNING": "warning", "NOTICE": "notice",
    "INFO": "info", "INFORMATION": "info", "DEBUG": "debug", "TRACE": "debug",
}  # fmt: skip

_ISO = re.compile(
    r"(\d{4}[-/][01]\d[-/][0-3]\d[T ] ?[0-2]\d:[0-5]\d):([0-5]\d|60)(?:[.,](\d{1,9}))?"
    r"( ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\w:]))?",
    re.ASCII,
)
_BSD = re.compile(r"([A-Z][a-z]{2} [ \d]\d [0-2]\d:[0-5]\d):([0-5]\d|60)(?![\d:])", re.ASCII)
_PRI = re.compile(r"<(\d{1,3})>(1 )?", re.ASCII)
_5424 = re.compile(r"\S+ \S{1,255} (\S{1,48}) (\S{1,128}) \S{1,32} ", re.ASCII)
_FIRST_WORD = re.compile(r"([\w.-]{1,48})(:)? (?=\d|[A-Z][a-z]{2} [ \d]\d )", re.ASCII)
_TAG = re.compile(r" (\S{1,255}) ([^\s:\[\]]{1,48})(?:\[(\d{1,10})\])?:(?: |$)", re.ASCII)
_BARE_TAG = re.compile(r" ?([^\s:\[\]]{1,48})(?:\[(\d{1,10})\])?:(?: |$)", re.ASCII)


def _forms(word: str) -> list[str]:
    """How a severity word stands in a line as one token between spaces."""
    quiet = word.lower()
    forms = [f"{word}{end}" for end in ("", ":", ",", "]", "]:")]
    for name in (word, quiet):
        forms += [f"[{name}]", f"[{name}]:", f"<{name}>", f"({name})", f"|{name}|", f"[{name}"]
        for key in ("level", "severity", "lvl"):
            forms += [f"{key}={name}", f'{key}="{name}"', f"{key}={name},"]
    return [*forms, f"{quiet}:", f"{word.title()}:", f"[{word.title()}]"]


_TOKENS = {form: severity for word, severity in WORDS.items() for form in _forms(word)}


class Parsed(NamedTuple):
    """`ts` is RFC 3339 with an offset; `dated` says that the line itself gave it."""

    ts: str
    severity: Severity
    facility: str | None
    app_name: str | None
    process_id: str | None
    dated: bool


class LineParser:
    """Reads lines of one file; remembers the last time stamps, for they repeat.

    `zone` is for times without an offset, None the host's own.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._day = -1
        self._seen: dict[tuple[str, str], tuple[str, str] | None] = {}

    def parse(self, text: str, arrival: int, reference: int | None = None) -> Parsed:
        """Read one line. Never raises.

        `arrival` (µs) is the time of a line that has none. `reference` (µs) is about
        when the line was written at the latest, which settles the year of an RFC 3164
        time; by default, `arrival`.
        """
        late = arrival if reference is None else reference
        day = late // 86_400_000_000
        if day != self._day or len(self._seen) > CACHED:
            self._seen.clear()
            self._day = day
        facility: str | None = None
        severity: Severity | None = None
        at = 0
        if text.startswith("<"):
            pri = _PRI.match(text)
            if pri is not None and (value := int(pri[1])) < 192:
                facility, severity = FACILITIES[value >> 3], SEVERITIES[value & 7]
                at = pri.end()
                shape = _5424.match(text, at) if pri[2] is not None else None
                if shape is not None:
                    when, _ = self._time(text, at, late)
                    app, process = (None if word == "-" else word for word in shape.groups())
                    ts = moment_text(arrival) if when is None else when
                    return Parsed(ts, severity, facility, app, process, when is not None)
        elif text.startswith("["):
            at = 1
        when, app, process, end = self._time_and_tag(text, at, late)
        if severity is None:
            severity = _severity(text[end : end + HEAD])
        ts = moment_text(arrival) if when is None else when
        return Parsed(ts, severity, facility, app, process, when is not None)

    def _time_and_tag(
        self, text: str, at: int, late: int
    ) -> tuple[str | None, str | None, str | None, int]:
        """Time, program and process id of a line whose time may stand at `at`, and where
        the rest begins."""
        when, end = self._time(text, at, late)
        if when is not None:
            tag = _TAG.match(text, end) if text[0] != "[" else None
            if tag is None or tag[1] in WORDS:
                return when, None, None, end
            # "time word word:" is syslog's only with a process id, or in its own time forms.
            syslog = tag[3] or text[at].isalpha() or text[at + 10] == "T"
            return (when, tag[2], tag[3], tag.end()) if syslog else (when, None, None, end)
        if at == 0:
            word = _FIRST_WORD.match(text)
            if word is not None:
                when, behind = self._time(text, word.end(), late)
                if when is not None:
                    return when, word[1] if word[2] is None else None, None, behind
        elif text[0] == "<":
            bare = _BARE_TAG.match(text, at)
            if bare is not None:
                return None, bare[1], bare[2], bare.end()
        return None, None, None, at

    def _time(self, text: str, at: int, late: int) -> tuple[str | None, int]:
        """The time that stands at `at`, and the index behind it."""
        if text[at : at + 1].isdecimal():
            found = _ISO.match(text, at)
            if found is None:
                return None, at
            minute, second, fraction, zone = found.groups("")
        else:
            found = _BSD.match(text, at)
            if found is None:
                return None, at
            minute, second = found.groups()
            fraction, zone = "", "bsd"
        try:
            known = self._seen[minute, zone]
        except KeyError:
            known = self._seen[minute, zone] = self._resolve(minute, zone, late)
        if known is None:
            return None, at
        if second == "60":
            second = "59"  # a leap second, which nothing behind us can hold
        if not fraction:
            return f"{known[0]}:{second}{known[1]}", found.end()
        return f"{known[0]}:{second}.{fraction[:6]}{known[1]}", found.end()

    def _resolve(self, minute: str, zone: str, late: int) -> tuple[str, str] | None:
        """A time up to the minute as (its text, its offset); None where there is none such."""
        try:
            if zone == "bsd":
                local = self._with_year(minute, late)
            else:
                day, clock = minute[:10].replace("/", "-"), minute[11:].strip()
                local = datetime.fromisoformat(f"{day}T{clock}")
                if not 1970 <= local.year <= 2999:
                    return None
                zone = zone.strip()
            text = local.isoformat(timespec="minutes")
            if zone and zone != "bsd":
                return text, _offset(zone)
            offset = self._localized(local).isoformat(timespec="minutes")[len(text) :]
            return (text, offset) if len(offset) == len("+00:00") else None
        except (ValueError, KeyError, OverflowError, OSError):
            return None

    def _with_year(self, minute: str, late: int) -> datetime:
        """An RFC 3164 time in the year that puts it at most a day behind `late`."""
        month, day, clock = MONTHS[minute[:3]], int(minute[4:6]), minute[7:]
        reference = EPOCH + timedelta(microseconds=late)
        for year in range(reference.year + 1, reference.year - 8, -1):
            try:
                local = datetime.fromisoformat(f"{year:04}-{month:02}-{day:02}T{clock}")
            except ValueError:
                continue
            if self._localized(local) <= reference + DAY:
                return local
        raise ValueError("no such day")

    def _localized(self, local: datetime) -> datetime:
        return local.replace(tzinfo=self._zone) if self._zone else local.astimezone()


def _offset(zone: str) -> str:
    if zone in {"Z", "UTC", "GMT"}:
        return "Z"
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise ValueError("no such offset")
    return f"{zone[0]}{hours:02}:{minutes:02}"


def _severity(head: str) -> Severity:
    """The first severity word that stands alone: loud, in brackets, or before a colon."""
    for token in head.split(None, MAX_TOKENS):
        if token in _TOKENS:
            return _TOKENS[token]
    return "info"
