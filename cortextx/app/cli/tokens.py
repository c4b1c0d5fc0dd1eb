"""`cortextx server token …`: named tokens of the HTTP API and their roles (S8)."""

from __future__ import annotations

import click

from cortextx.app.cli.agent import example, sure
from cortextx.app.cli.filters import Span
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json, print_table

COLUMNS = {
    "name": "NAME",
    "role": "ROLE",
    "last_used_at": "LAST USED",
    "expires_at": "EXPIRES",
    "revoked_at": "REVOKED",
    "created_at": "MADE",
}


@click.group()
def token() -> None:
    """Tokens for the HTTP API, for --server on other machines, and for Prometheus."""


@token.command(
    epilog=example(
        "cortextx server token add grafana --role viewer > grafana.token",
        "cortextx server token add ci --role operator --expire-in 90d",
    )
)
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["viewer", "operator", "admin"]), required=True,
    help="viewer reads; operator also runs probes and sets configs; admin may do everything.",
)  # fmt: skip
@click.option("--expire-in", type=Span(), metavar="SECS", help="How long it is good.")
@json_option
@pass_invocation
def add(invocation: Invocation, name: str, role: str, expire_in: int | None) -> None:
    """Make a token and print it. It is told this once, and stored as a hash.

    With --json: one object with `token` in it.
    """
    with invocation.server() as server:
        made = server.one("token.add", name=name, role=role, expires_in=expire_in)
    if invocation.json:
        print_json(made)
        return
    click.echo(str(made.get("token")))
    click.echo("keep it in a file that only you can read: it is not shown again", err=True)


@token.command("list", epilog=example("cortextx server token list --json"))
@json_option
@pass_invocation
def list_tokens(invocation: Invocation) -> None:
    """List the tokens, revoked ones too. With --json: {"tokens": [{…}, …]}."""
    with invocation.server() as server:
        found, _ = server.call("token.list")
    if invocation.json:
        print_json({"tokens": found})
    elif found:
        print_table(COLUMNS, found)
    else:
        click.echo("no token yet; `cortextx server token add NAME --role viewer`", err=True)


@token.command(epilog=example("cortextx server token revoke grafana --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def revoke(invocation: Invocation, name: str, yes: bool) -> None:
    """Let a token be good no more; what is streamed to it ends."""
    sure(f"Revoke the token {escaped(name)}", yes)
    with invocation.server() as server:
        server.call("token.revoke", name=name)
    click.echo(f"{escaped(name)} is revoked")
