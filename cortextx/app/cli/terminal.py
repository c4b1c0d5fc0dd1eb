"""How entries and tables look: safe to show on a terminal (S4), easy to read for programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_SECONDS = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z$")
_SHORT = {"\n": "\\n", "\r": "\\r", "\x1b": "\\e"}
_COLOURS = {
    "emerg": "bright_red",
    "alert": "bright_red",
    "crit": "bright_red",
    "err": "red",
    "warning": "yellow",
    "debug": "bright_black",
}


def escaped(text: str) -> str:
    """The text on one line, with C0, C1 and bidi controls made visible (S4). Tabs stay."""
    return _UNSAFE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def json_text(value: Any) -> str:
    """JSON on one line; C1 and bidi controls are escaped, which any reader undoes (S4)."""
    text = msgspec.json.encode(value).decode()
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON document on a line."""
    click.echo(json_text(value))


def entry_text(row: Mapping[str, Any], raw: bool, colour: bool) -> str:
    """One entry as a line: time, host, severity, source, program, message."""
    clean = (lambda text: text) if raw else escaped
    app = row.get("app_name") or ""
    if row.get("process_id"):
        app = f"{app}[{row['process_id']}]"
    severity = str(row.get("severity", ""))
    head = " ".join(
        clean(str(part))
        for part in (row.get("ts"), row.get("host"), severity, row.get("source"))
        if part
    )
    line = f"{head} {clean(app)}: " if app else f"{head}: "
    line += clean(str(row.get("message", "")))
    wanted = _COLOURS.get(severity)
    return click.style(line, fg=wanted) if colour and wanted else line


class EntryPrinter:
    """Prints entries as they come: a JSON line each, or text."""

    def __init__(self, as_json: bool, raw: bool) -> None:
        self._as_json = as_json
        self._raw = raw
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def show(self, row: Mapping[str, Any]) -> None:
        """Print one entry."""
        if self._as_json:
            text = json_text(row)
        else:
            text = entry_text(row, self._raw, self._colour)
        # One write a line, and no flush: a million lines of a search go in blocks.
        sys.stdout.write(text + "\n")

    def flush(self) -> None:
        """Let what was printed be seen."""
        sys.stdout.flush()


def shown(value: Any) -> str:
    """A value of a table's cell."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        return json_text(value)
    return escaped(str(value))


def print_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table; `columns` maps a row's member to its heading.

    Times are shown to the second there.
    """
    cells = [[_SECONDS.sub(r"\1Z", shown(row.get(name))) for name in columns] for row in rows]
    heads = list(columns.values())
    if sys.stdout.isatty() and _rich_table(heads, cells):
        return
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (heads, *cells):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo(text.rstrip())


def _rich_table(heads: list[str], cells: list[list[str]]) -> bool:
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for line in cells:
        table.add_row(*map(Text, line))
    Console().print(table)
    return True


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print a thing's members, one a line; a member of a member as `outer.inner`."""
    flat = _flat(pairs)
    width = max((len(name) for name in flat), default=0)
    for name, value in flat.items():
        click.echo(f"{escaped(name).ljust(width)}  {shown(value)}")


def _flat(pairs: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in pairs.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat
