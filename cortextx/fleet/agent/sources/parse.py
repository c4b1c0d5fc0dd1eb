"""What a log line says of itself: its time, severity, program and facility (PURE).

Known forms: RFC 5424 and RFC 3164 with or without PRI, rsyslog's RFC 3339 file form,
ISO 8601 at the line's start (as dpkg, PostgreSQL, nginx and most programs write it),
`[time] …`, a time behind a first word (`update-alternatives …:`, `Start-Date: …`), and the
shapes of `forms`: JSON and logfmt, access and error logs of nginx and Apache, klog, redis,
audit. A source may name one form instead of letting each line be looked at.
Whatever is not found stays None, the severity `info`, the time that of arrival. The
message of an entry is always the whole line: what is read here is only an index to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import tzinfo
from typing import NamedTuple

from cortextx.core.syslog import FACILITIES, SEVERITIES, Severity
from cortextx.fleet.agent.sources import forms
from cortextx.fleet.agent.sources.forms import WORDS, Facts, Stamp
from cortextx.fleet.agent.sources.stamps import CACHED, DAY_MICROS, StampReader, since_epoch

HEAD = 128
"""Characters behind the time among which a severity word is looked for."""
MAX_TOKENS = 12
"""Words among these that are looked at."""

FORMATS = ("auto", "plain", "json", "logfmt", "rfc3164", "rfc5424", "nginx", "apache")
"""What a source's `format` may be."""

_PRI = re.compile(r"<(\d{1,3})>(1 )?", re.ASCII)
_5424 = re.compile(r"\S+ \S{1,255} (\S{1,48}) (\S{1,128}) \S{1,32} ", re.ASCII)
_FIRST_WORD = re.compile(r"([\w.-]{1,48})(:)? (?=\d|[A-Z][a-z]{2} [ \d]\d )", re.ASCII)
_TAG = re.compile(r" (\S{1,255}) ([^\s:\[\]]{1,48})(?:\[(\d{1,10})\])?:(?: |$)", re.ASCII)
_WHOLE = re.compile(
    r"(\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d):([0-5]\d)(?:\.(\d{1,6})\d{0,3})?(Z|[+-]\d\d:\d\d)"
    r" (\S{1,255}) ([^\s:\[\]]{1,48})(?:\[(\d{1,10})\])?:(?: |$)",
    re.ASCII,
)
"""rsyslog's own form, by far the commonest, in one look; all else goes step by step."""
_NGINX_PID = re.compile(r" \[\w+\] (\d{1,10})#\d+: ", re.ASCII)
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
_FORMS = frozenset(_TOKENS)


class Parsed(NamedTuple):
    """`ts` is RFC 3339 with an offset; `dated` says that the line itself gave it."""

    ts: str
    severity: Severity
    facility: str | None
    app_name: str | None
    process_id: str | None
    dated: bool


_parsed = tuple.__new__
"""Makes a Parsed of its members, which costs half of what calling it does."""


class LineParser(StampReader):
    """Reads lines of one file; remembers the last time stamps, for they repeat.

    `zone` is for times without an offset, None the host's own.
    """

    def __init__(self, zone: tzinfo | None = None, form: str = "auto") -> None:
        super().__init__(zone)
        self._read: Callable[[str, int, int], Parsed] = {
            "auto": self._any,
            "plain": self._plain,
            "json": self._json,
            "logfmt": self._logfmt,
            "rfc3164": self._rfc3164,
            "rfc5424": self._rfc5424,
            "nginx": self._nginx,
            "apache": self._apache,
        }[form]

    def parse(self, text: str, arrival: int, reference: int | None = None) -> Parsed:
        """Read one line. Never raises.

        `arrival` (µs) is the time of a line that has none. `reference` (µs) is about
        when the line was written at the latest, which settles the year of an RFC 3164
        time; by default, `arrival`.
        """
        late = arrival if reference is None else reference
        if late // DAY_MICROS != self._day or len(self._seen) > CACHED:
            self.day_of(late)
        return self._read(text, arrival, late)

    # -- one form ----------------------------------------------------------------------

    def _plain(self, text: str, arrival: int, late: int) -> Parsed:
        return Parsed(self.now(arrival), "info", None, None, None, False)

    def _json(self, text: str, arrival: int, late: int) -> Parsed:
        return self._of(forms.json_line(text), arrival, late)

    def _logfmt(self, text: str, arrival: int, late: int) -> Parsed:
        return self._of(forms.logfmt(text), arrival, late)

    def _rfc5424(self, text: str, arrival: int, late: int) -> Parsed:
        pri = _PRI.match(text)
        if pri is not None and pri[2] is not None and (value := int(pri[1])) < 192:
            parsed = self._rfc5424_at(text, pri.end(), value, arrival, late)
            if parsed is not None:
                return parsed
        return self._plain(text, arrival, late)

    def _nginx(self, text: str, arrival: int, late: int) -> Parsed:
        facts = forms.access(text)
        if facts is not None:
            return self._of(facts, arrival, late, "nginx")
        return self._rfc3164(text, arrival, late)._replace(app_name="nginx")

    def _apache(self, text: str, arrival: int, late: int) -> Parsed:
        facts = forms.access(text) or forms.apache_error(text)
        return self._of(facts, arrival, late, "apache")

    def _rfc5424_at(self, text: str, at: int, pri: int, arrival: int, late: int) -> Parsed | None:
        """What stands behind `<PRI>1 `; None if that is not RFC 5424's header."""
        shape = _5424.match(text, at)
        if shape is None:
            return None
        when, _ = self.at(text, at, late)
        app, process = (None if word == "-" else word for word in shape.groups())
        ts = self.now(arrival) if when is None else when
        return Parsed(ts, SEVERITIES[pri & 7], FACILITIES[pri >> 3], app, process, when is not None)

    def _rfc3164(self, text: str, arrival: int, late: int) -> Parsed:
        return self._any(text, arrival, late, guess=False)

    def _any(self, text: str, arrival: int, late: int, guess: bool = True) -> Parsed:
        """Syslog's older form, with or without PRI, and anything that begins with a time;
        `guess`: try other shapes too."""
        if text[10:11] == "T":
            whole = self._whole(text, late)
            if whole is not None:
                return whole
        facility: str | None = None
        severity: Severity | None = None
        at = 0
        first = text[:1]
        if first == "<":
            pri = _PRI.match(text)
            if pri is not None and (value := int(pri[1])) < 192:
                facility, severity = FACILITIES[value >> 3], SEVERITIES[value & 7]
                at = pri.end()
                if guess and pri[2] is not None:
                    parsed = self._rfc5424_at(text, at, value, arrival, late)
                    if parsed is not None:
                        return parsed
        elif first == "[":
            at = 1
        elif first == "{" and guess:
            facts = forms.json_line(text)
            if facts is not None:
                return self._of(facts, arrival, late)
        when, app, process, end = self._time_and_tag(text, at, late)
        if guess and when is None and facility is None:
            facts = _guessed(text)
            if facts is not None:
                return self._of(facts, arrival, late, text=text)
        if severity is None:
            severity = _severity(text[end : end + HEAD])
        if when is None:
            return Parsed(self.now(arrival), severity, facility, app, process, False)
        if process is None and text[4] == "/":  # as nginx writes a time
            pid = _NGINX_PID.match(text, end)
            process = None if pid is None else pid[1]
        return Parsed(when, severity, facility, app, process, True)

    def _whole(self, text: str, late: int) -> Parsed | None:
        """A line of `_WHOLE`'s form, as `_any` would read it; None for any other."""
        found = _WHOLE.match(text)
        if found is None:
            return None
        minute, second, fraction, zone, host, app, process = found.groups()
        if host in WORDS:
            return None
        known = self._seen.get((minute, zone))
        if known is not None:
            dot = f".{fraction}" if fraction is not None else ""
            when: str | None = f"{known[0]}:{second}{dot}{known[1]}"
        else:
            when = self.stamped(minute, second, fraction or "", zone, late)
            if when is None:
                return None
        end = found.end()
        severity = _severity(text[end : end + HEAD])
        return _parsed(Parsed, (when, severity, None, app, process, True))

    def _of(
        self, facts: Facts | None, arrival: int, late: int, app: str | None = None, text: str = ""
    ) -> Parsed:
        """The facts of a shape; what is missing is as for any line."""
        if facts is None:
            return Parsed(self.now(arrival), "info", None, app, None, False)
        stamp, severity, named, process = facts
        when: str | None = None
        if isinstance(stamp, Stamp):
            when = self.stamped(*stamp, late)
        elif isinstance(stamp, str):
            when, _ = self.at(stamp, 0, late)
        elif stamp is not None:
            when = since_epoch(stamp)
        ts = self.now(arrival) if when is None else when
        if severity is None:
            severity = _severity(text[:HEAD])
        return Parsed(ts, severity, None, named or app, process, when is not None)

    def _time_and_tag(
        self, text: str, at: int, late: int
    ) -> tuple[str | None, str | None, str | None, int]:
        """Time, program and process id of a line whose time may stand at `at`, and where
        the rest begins."""
        when, end = self.at(text, at, late)
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
                when, behind = self.at(text, word.end(), late)
                if when is not None:
                    return when, word[1] if word[2] is None else None, None, behind
        elif text[0] == "<":
            bare = _BARE_TAG.match(text, at)
            if bare is not None:
                return None, bare[1], bare[2], bare.end()
        return None, None, None, at


def _guessed(text: str) -> Facts | None:
    """The facts of an undated line by what it looks like."""
    first = text[:1]
    if first.isdecimal():
        return forms.access(text) or forms.redis(text) or forms.epoch(text)
    if first == "[":
        return forms.apache_error(text)
    if first in "IWEF" and text[1:5].isdecimal():
        return forms.klog(text)
    if "=" in text[:32]:
        return forms.audit(text) or forms.logfmt(text)
    return forms.access(text)


def _severity(head: str) -> Severity:
    """The first severity word that stands alone: loud, in brackets, or before a colon."""
    tokens = head.split(None, MAX_TOKENS)
    if _FORMS.isdisjoint(tokens):
        return "info"
    for token in tokens:
        if token in _TOKENS:
            return _TOKENS[token]
    return "info"
