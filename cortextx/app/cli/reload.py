"""`cortextx reload`, which is `cortextx server reload` too: settings and certificate anew."""

from __future__ import annotations

import click

from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import print_json


@click.command(
    epilog="""\b
Examples:
  cortextx reload
  cortextx reload --yes

\b
Exit codes: 0 reloaded, 2 the configuration has a fault, 1 refused for another reason,
3 no server runs here. Whatever is not 0 has changed nothing."""
)
@click.option(
    "--yes", is_flag=True, help="Even if another min_agent_version or CA locks hosts out."
)
@json_option
@pass_invocation
def reload(invocation: Invocation, yes: bool) -> None:
    """Have the server read its settings and its certificate again.

    SIGHUP does the same, but cannot say --yes. What only a restart changes is
    named; a configuration with a fault in it changes nothing.
    """
    with invocation.server() as client:
        found = client.one("server.reload", yes=yes)
    if invocation.json:
        print_json(found)
        return
    click.echo("changed: " + (", ".join(found["changed"]) or "nothing"))
    if found["needs_restart"]:
        click.echo("after a restart: " + ", ".join(found["needs_restart"]))
