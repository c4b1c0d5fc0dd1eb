"""Time stamps of log lines, as the RFC 3339 text of an entry (PURE)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cortextx.fleet.agent.entries import EPOCH, moment_text

DAY = timedelta(days=1)
DAY_MICROS = 86_400_000_000
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
CACHED = 512
"""Time stamps (to the minute) that a reader remembers."""

_ISO = re.compile(
    r"(\d{4}[-/][01]\d[-/][0-3]\d[T ] ?[0-2]\d:[0-5]\d):([0-5]\d|60)(?:[.,](\d{1,9}))?"
    r"( ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\w:]))?",
    re.ASCII,
)
_BSD = re.compile(r"([A-Z][a-z]{2} [ \d]\d [0-2]\d:[0-5]\d):([0-5]\d|60)(?![\d:])", re.ASCII)
_OFFSET = re.compile(r"[+-]\d\d:?\d\d", re.ASCII)


class StampReader:
    """Reads times; remembers the last ones to the minute, for they repeat.

    `zone` is for times without an offset, None the host's own.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._day = -1
        self._seen: dict[tuple[str, str], tuple[str, str] | None] = {}
        self._arrival = (0, moment_text(0))

    def day_of(self, late: int) -> None:
        """Say when the following lines were written at the latest (µs); see `stamped`."""
        day = late // DAY_MICROS
        if day != self._day or len(self._seen) > CACHED:
            self._seen.clear()
            self._day = day

    def now(self, arrival: int) -> str:
        """The time of a line without one; many lines arrive together."""
        if self._arrival[0] != arrival:
            self._arrival = (arrival, moment_text(arrival))
        return self._arrival[1]

    def at(self, text: str, at: int, late: int) -> tuple[str | None, int]:
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
        known = self._seen.get((minute, zone))
        if known is None or second == "60":
            when = self.stamped(minute, second, fraction, zone, late)
            return (None, at) if when is None else (when, found.end())
        if not fraction:
            return f"{known[0]}:{second}{known[1]}", found.end()
        return f"{known[0]}:{second}.{fraction[:6]}{known[1]}", found.end()

    def stamped(self, minute: str, second: str, fraction: str, zone: str, late: int) -> str | None:
        """A time as an entry has it; None where there is no such time.

        `minute` is the time up to the minute, in the form that `zone` tells: an offset
        or nothing for ISO 8601, else `bsd` (Feb 28 23:04, of the year that puts it at
        most a day behind `late`), `year` (2026 Feb 28 23:04), `day` (28 Feb 2026 23:04)
        or `clf+0100` (28/Feb/2026:23:04).
        """
        try:
            known = self._seen[minute, zone]
        except KeyError:
            known = self._seen[minute, zone] = self._resolve(minute, zone, late)
        if known is None:
            return None
        if second == "60":
            second = "59"  # a leap second, which nothing behind us can hold
        if not fraction:
            return f"{known[0]}:{second}{known[1]}"
        return f"{known[0]}:{second}.{fraction[:6]}{known[1]}"

    def _resolve(self, minute: str, zone: str, late: int) -> tuple[str, str] | None:
        """A time up to the minute as (its text, its offset); None where there is none such."""
        try:
            if zone == "bsd":
                local = self._with_year(minute, late)
            elif zone in _ORDERS or zone.startswith("clf"):
                local = _in_order(minute, zone[:3])
                zone = zone[3:] if zone not in _ORDERS else ""
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


_ORDERS = {"year": "yea", "day": "day"}


def _in_order(minute: str, kind: str) -> datetime:
    """A minute that names its month: `28/Feb/2026:23:04`, `2026 Feb 28 23:04`, or
    `28 Feb 2026 23:04`."""
    if kind == "yea":
        year, month, day, clock = minute.split()
    elif kind == "day":
        day, month, year, clock = minute.split()
    else:
        date, _, clock = minute.partition(":")
        day, month, year = date.split("/")
    if not 1970 <= int(year) <= 2999:
        raise ValueError("no such year")
    return datetime.fromisoformat(f"{year}-{MONTHS[month]:02}-{int(day):02}T{clock}")


def since_epoch(value: float) -> str | None:
    """RFC 3339 for a number since 1970, whose size tells its unit; None if it is no time."""
    for unit, limit in ((1e6, 1e11), (1e3, 1e14), (1, 1e17), (1e-3, 1e20)):
        if value < limit:
            micros = round(value * unit)
            return moment_text(micros) if micros > 0 else None
    return None


def zone_named(name: str) -> tzinfo | None:
    """The zone for a source's `timezone`: "local" (None, the host's own), "UTC", an offset as
    "+02:00", or a name of the time zone database. Raises ValueError."""
    if name in ("", "local"):
        return None
    if name in ("UTC", "Z"):
        return UTC
    if _OFFSET.fullmatch(name):
        text = _offset(name)
        offset = timedelta(hours=int(text[1:3]), minutes=int(text[4:]))
        return timezone(-offset if text[0] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("no such time zone") from None


def _offset(zone: str) -> str:
    if zone in {"Z", "UTC", "GMT"}:
        return "Z"
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise ValueError("no such offset")
    return f"{zone[0]}{hours:02}:{minutes:02}"
