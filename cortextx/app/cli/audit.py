"""`cortextx audit`: whether all that a host numbered is on the server, or what is missing."""

from __future__ import annotations

from typing import Any

import click

from cortextx.app.cli.faults import FOUND, OK
from cortextx.app.cli.filters import When
from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.terminal import escaped, print_json, print_table

COLUMNS = {
    "first": "FIRST",
    "last": "LAST",
    "entries": "ENTRIES",
    "cause": "CAUSE",
    "source": "SOURCE",
    "detected_at": "SEEN",
    "detail": "DETAIL",
}


class Edge(click.ParamType[Any]):
    """The edge of a range: an entry's number, or a time as --since takes it."""

    name = "number|when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if text.isdecimal() and text.isascii():
            if not 1 <= int(text) < 2**62:
                self.fail(f"{text} is no number of an entry", param)
            return int(text)
        return When().convert(text, param, ctx)


@click.command(
    epilog="""\b
Examples:
  cortextx audit web1
  cortextx audit web1 --from 1 --to 200000
  cortextx audit web1 --from 1d --json

\b
Exit codes: 0 complete, 5 something is missing."""
)
@click.argument("host")
@click.option(
    "--from", "start", type=Edge(), metavar="N|WHEN",
    help="From this entry's number on, or gaps that were noticed since then.",
)  # fmt: skip
@click.option(
    "--to", "end", type=Edge(), metavar="N|WHEN",
    help="Up to this number, or gaps that were noticed before then.",
)  # fmt: skip
@remote_options
@json_option
@pass_invocation
def audit(invocation: Invocation, host: str, start: Any, end: Any) -> None:
    """Say whether all that HOST numbered is here, or list every gap with its cause.

    Hosts number what they send; a number that never came is a gap. What was lost
    before it had a number is listed without one. With --json: one object, its
    gaps in it.
    """
    asked: dict[str, Any] = {}
    for edge, seq, time in ((start, "from_seq", "since"), (end, "to_seq", "until")):
        if edge is not None:
            asked[seq if isinstance(edge, int) else time] = edge
    with invocation.server() as server:
        gaps, found = server.call("agent.audit", host=host, **asked)
    if invocation.json:
        print_json({**found, "gaps": gaps})
    else:
        _print(found, gaps)
    click.get_current_context().exit(OK if found.get("complete") else FOUND)


def _print(found: dict[str, Any], gaps: list[dict[str, Any]]) -> None:
    name, upto = escaped(str(found.get("host"))), found.get("accepted_seq")
    if found.get("complete"):
        click.echo(f"{name}: complete, up to entry {upto}")
        return
    missing, awaited = found.get("missing_entries") or 0, found.get("awaited_entries") or 0
    unnumbered = sum(gap.get("first") is None for gap in gaps)
    parts = [f"{missing} entries are missing"] if missing else []
    if unnumbered:
        parts.append(f"{unnumbered} losses before numbering")
    if awaited:
        parts.append(f"{awaited} numbers have not come yet")
    said = ", ".join(parts) or "not complete"
    click.echo(f"{name}: {said} (the server has up to entry {upto})")
    if gaps:
        print_table(COLUMNS, [_shown(gap) for gap in gaps])


def _shown(gap: dict[str, Any]) -> dict[str, Any]:
    """A gap for the table: what never had numbers is not 0 entries, but as `detail` says."""
    return {**gap, "entries": gap.get("entries") or None, "cause": gap.get("cause") or "not told"}
