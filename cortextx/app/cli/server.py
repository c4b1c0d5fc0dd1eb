"""`cortextx server …`: what the server on this machine says of itself."""

from __future__ import annotations

import click

from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import print_json, print_pairs


@click.group(
    epilog="""\b
Example:
  cortextx server status"""
)
def server() -> None:
    """The server on this machine."""


@server.command(
    epilog="""\b
Example:
  cortextx server status --json"""
)
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
