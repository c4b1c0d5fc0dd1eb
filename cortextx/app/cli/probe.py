"""`cortextx probe`: ask a host something that it allows, or see what earlier probes found."""

from __future__ import annotations

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
  cortextx probe web1 fs.disk_usage path=/var
  cortextx probe web1 host.uptime --timeout 5 --json
  cortextx probe web1 --history -n 20

\b
A value that is JSON is sent as that (n=5, deep=true, names='["a","b"]'), any other as text.
Exit codes: 0 the probe ran well, 1 it did not, 2 the host refused its arguments,
3 the host is not connected."""
)
@click.argument("host")
@click.argument("name", required=False)
@click.argument("args", nargs=-1, metavar="[ARG=VALUE]...")
@click.option(
    "--timeout", type=click.FloatRange(0.001, MAX_SECONDS), default=10.0, show_default=True,
    metavar="SECS", help="How long the probe may take, waiting for its turn included.",
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
    host: str,
    name: str | None,
    args: tuple[str, ...],
    timeout: float,
    history: bool,
    limit: int,
) -> None:
    """Run the probe NAME on HOST (by name or id), and show what it found.

    Which probes a host has, and allows, is in `cortextx agent show`. Every run is
    recorded, failed ones too. With --json: the record as one object, or
    {"probes": […]} with --history.
    """
    if history:
        _history(invocation, host, name, limit)
        return
    if name is None:
        raise click.UsageError("NAME is missing: which probe?")
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
        if isinstance(output, dict):
            print_pairs(output)
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


def _history(invocation: Invocation, host: str, name: str | None, limit: int) -> None:
    with invocation.server() as server:
        found, _ = server.call("probe.history", host=host, probe=name, limit=limit)
    if invocation.json:
        print_json({"probes": found})
    elif found:
        print_table(HISTORY_COLUMNS, found)
    else:
        click.echo("no probe was run there", err=True)
