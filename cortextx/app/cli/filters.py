"""The options of search and tail that say which entries are meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from cortextx.core.syslog import SEVERITIES

_SPAN = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h|d|w)\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ALIASES = {"error": "err", "warn": "warning", "critical": "crit", "emergency": "emerg"}


def span(text: str) -> float:
    """The seconds of `90s`, `15m`, `1h`, `2d`, `1w`, or of a bare number; raises ValueError."""
    match = _SPAN.match(text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else float(text)


def moment(text: str, now: float) -> str:
    """`1h` (so long before `now`) or a date or time as RFC 3339 in UTC; raises ValueError.

    A time without an offset is meant in this machine's time zone.
    """
    match = _SPAN.match(text.strip())
    try:
        if match:
            found = datetime.fromtimestamp(now, UTC) - timedelta(seconds=span(text))
        else:
            found = datetime.fromisoformat(text.strip()).astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range") from None
    return found.isoformat().replace("+00:00", "Z")


class Span(click.ParamType[int]):
    """A number of whole seconds, or `1h` and the like."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            seconds = int(span(str(value)))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither seconds nor a time span as 90s, 15m, 1h, 2d", param)
        if seconds <= 0:
            self.fail("it must be above zero", param)
        return seconds


class When(click.ParamType[str]):
    """A time, or `1h` for an hour ago."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from cortextx.app.cli.invocation import Invocation

        invocation = ctx.find_object(Invocation) if ctx else None
        try:
            return moment(str(value), (invocation or Invocation()).now())
        except ValueError:
            self.fail(
                f"{value!r} is neither an RFC 3339 time nor a span as 90s, 15m, 1h, 2d", param
            )


class SeverityName(click.ParamType[str]):
    """A syslog severity by name or number; `error` and `warn` are understood."""

    name = "severity"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).lower()
        text = _ALIASES.get(text, text)
        if text in SEVERITIES:
            return text
        if not text.isdecimal() or int(text) >= len(SEVERITIES):
            self.fail(f"{value!r} is none of {', '.join(SEVERITIES)}", param)
        return SEVERITIES[int(text)]


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the filters on a command: its parameters text, host, app, source, severity, …"""
    options = (
        click.argument("text", nargs=-1),
        click.option("--host", multiple=True, metavar="HOST", help="Only this host (repeatable)."),
        click.option("--app", multiple=True, metavar="NAME", help="Only this program (likewise)."),
        click.option(
            "--source", multiple=True, metavar="SOURCE",
            help="Only this source, as journald or file:/var/log/syslog; file:* is a prefix.",
        ),
        click.option(
            "--severity", type=SeverityName(), metavar="NAME", help="This severity and worse."
        ),
        click.option("--since", type=When(), metavar="WHEN", help="From 1h ago, or from a time."),
        click.option("--until", type=When(), metavar="WHEN", help="Before 5m ago, or a time."),
        click.option("--raw", is_flag=True, help="Do not escape control characters in text."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def filter_args(
    text: tuple[str, ...],
    host: tuple[str, ...],
    app: tuple[str, ...],
    source: tuple[str, ...],
    severity: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """The filters as a request's args; what was not asked for is left out.

    Raises click.UsageError for a time span that ends before it begins.
    """
    if since and until and datetime.fromisoformat(since) > datetime.fromisoformat(until):
        raise click.UsageError(f"--since is later than --until: {since} and {until}")
    found: dict[str, Any] = {
        "text": " ".join(map(_word, text)),
        "hosts": list(host),
        "apps": list(app),
        "sources": list(source),
        "severity": severity,
        "since": since,
        "until": until,
    }
    return {name: value for name, value in found.items() if value}


def _word(argument: str) -> str:
    """An argument that the shell kept together is a phrase."""
    if " " in argument.strip() and '"' not in argument:
        return f'"{argument}"'
    return argument
