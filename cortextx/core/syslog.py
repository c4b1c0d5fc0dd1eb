"""Syslog's severities and facilities by name and number, RFC 5424 §6.2.1 (PURE)."""

from __future__ import annotations

from typing import Literal, get_args

Severity = Literal["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""By number, 0 (emerg) to 7 (debug)."""
SEVERITY_NUMBER: dict[str, int] = {name: number for number, name in enumerate(SEVERITIES)}

FACILITIES: tuple[str, ...] = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
)  # fmt: skip
"""By number, 0 (kern) to 23 (local7)."""
