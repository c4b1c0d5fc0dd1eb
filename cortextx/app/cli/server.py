"""`cortextx server …`: the server on this machine: how it is, its database, keys, tokens."""

from __future__ import annotations

import click

from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.reload import reload
from cortextx.app.cli.store import backup, restore, verify
from cortextx.app.cli.terminal import print_json, print_pairs, print_table
from cortextx.app.cli.tls import tls
from cortextx.app.cli.tokens import token

ACT_COLUMNS = {"at": "AT", "actor": "BY", "act": "ACT", "subject": "ON", "details": "DETAILS"}


@click.group(
    epilog="""\b
Example:
  cortextx server status"""
)
def server() -> None:
    """The server on this machine."""


for command in (backup, restore, verify, tls, token, reload):
    server.add_command(command)


@server.command(
    epilog="""\b
Example:
  cortextx server status --json"""
)
@remote_options
@json_option
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show how the server is. With --json: one object."""
    with invocation.server() as client:
        found = client.one("server.status")
    if invocation.json:
        print_json(found)
    else:
        print_pairs(found)


@server.command(
    epilog="""\b
Examples:
  cortextx server acts -n 20
  cortextx server acts --by token:ci --json"""
)
@click.option("--on", "subject", metavar="WHAT", help="Only on this: a host's id, a token, ….")
@click.option("--by", "actor", metavar="WHO", help="Only by `local`, or by token:NAME.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="The newest N.",
)  # fmt: skip
@json_option
@pass_invocation
def acts(invocation: Invocation, subject: str | None, actor: str | None, limit: int) -> None:
    """List who did what to the server and its hosts. With --json: {"acts": [{…}, …]}."""
    with invocation.server() as client:
        found, _ = client.call("acts", subject=subject, actor=actor, limit=limit)
    if invocation.json:
        print_json({"acts": found})
    elif found:
        print_table(ACT_COLUMNS, found)
    else:
        click.echo("nothing yet", err=True)
