"""`cortextx probe`: ask a host something that it allows, or see what earlier probes found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import click

from cortextx.app.cli.faults import FAILED, OK, USAGE
from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.terminal import escaped, print_json, print_pairs, print_table
from cortextx.app.cli.values import assignments

MARGIN_SECONDS = 30.0
"""How much longer than the probe itself we wait for the server to tell how it ended."""
MAX_SECONDS = 600.0

HISTORY_COLUMNS = {
    "requested_at": "AT",
    "host": "HOST",
    "probe": "PROBE",
    "outcome": "OUTCOME",
    "exit_code": "EXIT",
    "duration_ms": "MS",
    "actor": "BY",
    "output": "OUTPUT",
}

_EXIT_CODES = {"ok": OK, "invalid": USAGE}
_WORDS = {
    "failed": "the probe failed on the host",
    "timeout": "the probe did not end in time",
    "unavailable": "the host does not have or allow this probe",
    "invalid": "the host refused the arguments",
    "lost": "the host's connection was lost while the probe ran",
    "error": "the host answered with an error",
}


@click.command(
    epilog="""\b
Examples:
  cortextx probe --list                    (the probes there are, and their arguments)
  cortextx probe web1                      (those that web1 offers)
  cortextx probe web1 host.info
  cortextx probe web1 disk.usage mount=/var --timeout 5 --json
  cortextx probe web1 disk.largest path=/var/log limit=5
  cortextx probe web1 --history -n 20

\b
A value that is JSON is sent as that (n=5, deep=true, names='["a","b"]'), any other as text.
Exit codes: 0 the probe ran well, 1 it did not, 2 the host refused its arguments,
3 the host is not connected."""
)
@click.argument("host", required=False)
@click.argument("name", required=False)
@click.argument("args", nargs=-1, metavar="[ARG=VALUE]...")
@click.option(
    "--timeout", type=click.FloatRange(0.001, MAX_SECONDS), default=10.0, show_default=True,
    metavar="SECS", help="How long the probe may take, waiting for its turn included.",
)  # fmt: skip
@click.option(
    "--list", "listing", is_flag=True,
    help="Run nothing; list the probes that HOST offers, or all, with their arguments.",
)  # fmt: skip
@click.option("--history", is_flag=True, help="Run nothing; list what was run on the host.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N",
    help="With --history: the newest N.",
)  # fmt: skip
@remote_options
@json_option
@pass_invocation
def probe(
    invocation: Invocation,
    host: str | None,
    name: str | None,
    args: tuple[str, ...],
    timeout: float,
    listing: bool,
    history: bool,
    limit: int,
) -> None:
    """Run the probe NAME on HOST (by name or id), and show what it found.

    Without NAME: what the host offers, and with which arguments. Every run is
    recorded, failed ones too. With --json: the record as one object, or
    {"probes": […]} with --history or --list.
    """
    if host is None:
        if not listing:
            raise click.UsageError("HOST is missing: which host? (--list lists the probes)")
        print_probes(None, invocation.json)
        return
    if history:
        _history(invocation, host, name, limit)
        return
    if name is None or listing:
        print_probes(_offered(invocation, host), invocation.json)
        return
    asked = assignments(args, "argument of a probe")
    milliseconds = round(timeout * 1000)
    with invocation.server() as server:
        server.allow(timeout + MARGIN_SECONDS)
        rows, end = server.call(
            "probe.run", host=host, probe=name, args=asked, timeout_ms=max(1, milliseconds)
        )
    _show(invocation, rows[0] if rows else {}, str(end.get("outcome")))


def _show(invocation: Invocation, record: dict[str, Any], outcome: str) -> None:
    """Print what came of a probe, and end with its exit code."""
    if invocation.json:
        print_json(record)
    else:
        output = record.get("output")
        fault = None if outcome == "ok" else _fault_in(output)
        if fault is not None:
            click.echo(escaped(fault), err=True)
        elif isinstance(output, dict):
            _print_found(output)
        elif output is not None:
            # A text keeps its lines.
            lines = output.split("\n") if isinstance(output, str) else [str(output)]
            click.echo("\n".join(map(escaped, lines)))
        if record.get("stderr"):
            click.echo("\n".join(map(escaped, str(record["stderr"]).split("\n"))), err=True)
        if outcome != "ok":
            code = "" if record.get("code") is None else f" ({record['code']})"
            said = _WORDS.get(outcome, f"the probe ended as {outcome}")
            click.echo(f"cortextx: {escaped(said)}{code}", err=True)
        elif record.get("exit_code"):
            click.echo(f"the probe's exit code is {record['exit_code']}", err=True)
    click.get_current_context().exit(_EXIT_CODES.get(outcome, FAILED))


def _print_found(output: dict[str, Any]) -> None:
    """Print what a probe found: its lists of objects as tables, all else as pairs."""
    tables = {name: rows for name, rows in output.items() if _is_table(rows)}
    pairs = {name: value for name, value in output.items() if name not in tables}
    if pairs:
        print_pairs(pairs)
    for name, rows in tables.items():
        if pairs or len(tables) > 1:
            click.echo(f"\n{escaped(name)}")
        columns = {str(key): escaped(str(key)).upper() for row in rows for key in row}
        if "command" in columns:  # the one that may be long
            columns["command"] = columns.pop("command")
        print_table(columns, rows)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _fault_in(output: Any) -> str | None:
    """Which argument is wrong, and what it should be, if a refusal says so as §5 has it."""
    found = output if isinstance(output, dict) else {}
    field, expected = found.get("field"), found.get("expected")
    if not isinstance(field, str) or not isinstance(expected, str):
        return None
    return f"{field.removeprefix('$.args.')}: expected {expected}"


def _offered(invocation: Invocation, host: str) -> list[str]:
    """The names of the probes that a host said it has and allows, when it last connected."""
    with invocation.server() as server:
        shown = server.one("agent.show", host=host)
    found = (shown.get("capabilities") or {}).get("supported_probes") or []
    return [str(name) for name in found]


def print_probes(offered: Collection[str] | None, as_json: bool) -> None:
    """List the probes of this version, or what a host offers, which may be of another."""
    from cortextx.fleet.agent.probes.arguments import arguments_of
    from cortextx.fleet.agent.probes.catalogue import PROBES

    names = list(PROBES) if offered is None else sorted(offered)
    rows: list[dict[str, Any]] = []
    for name in names:
        probe = PROBES.get(name)
        found = None if probe is None else [asdict(each) for each in arguments_of(probe)]
        about = None if probe is None else probe.about
        rows.append({"name": name, "about": about, "arguments": found})
    if as_json:
        print_json({"probes": rows})
        return
    if not rows:
        click.echo("the host offers no probe: allow_probes in its [agent] says which", err=True)
    width = max((len(name) for name in names), default=0)
    for name in names:
        probe = PROBES.get(name)
        about = "not known to this version" if probe is None else probe.about
        click.echo(f"{escaped(name).ljust(width)}  {about}")
        for argument in arguments_of(probe) if probe else ():
            click.echo(f"{' ' * width}    {argument}")


def _history(invocation: Invocation, host: str, name: str | None, limit: int) -> None:
    with invocation.server() as server:
        found, _ = server.call("probe.history", host=host, probe=name, limit=limit)
    if invocation.json:
        print_json({"probes": found})
    elif found:
        print_table(HISTORY_COLUMNS, found)
    else:
        click.echo("no probe was run there", err=True)
