"""`cortextx server tls`: a CA and a certificate of the server's own (F40)."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any
from urllib.parse import urlsplit

import click

from cortextx.app.cli.faults import NotReachable
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import print_json, print_pairs
from cortextx.app.config import load
from cortextx.app.statedir import StateDir
from cortextx.fleet.server.settings import ServerSettings, ServerTable

PLUGIN = "cortex-server"

name_option = click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name or address that agents connect to; may be given several times.",
)
config_option = click.option(
    "--config",
    metavar="F",
    help="The server's TOML file.  [default: cortex-server.toml in the state directory]",
)


@click.group()
def tls() -> None:
    """The server's own CA and certificate, for endpoints such as tls:8600."""


@tls.command(
    epilog="""\b
Example:
  cortextx server tls init --name logs.example --name 192.0.2.7"""
)
@name_option
@config_option
@pass_invocation
def init(invocation: Invocation, names: tuple[str, ...], config: str | None) -> None:
    """Make a CA and a certificate in the state directory.

    Without --name the certificate is for this machine's names, and for the one
    in public_url. Invitations made from then on carry the CA's pin.
    """
    from cortextx.app import certificates

    directory = StateDir(invocation.state_dir)
    table = _table(invocation, config)
    shown = certificates.init(directory, names or _names(table), _now(invocation))
    _print(shown, _now(invocation))
    if not any(endpoint.startswith("tls:") for endpoint in table.listen):
        click.echo(
            f'next: in [server] of {directory.config_file(PLUGIN)}, listen = ["tls:8600"], '
            "then restart the server",
            err=True,
        )


@tls.command(
    epilog="""\b
Examples:
  cortextx server tls renew
  cortextx server tls renew --name logs.example     (for other names than before)"""
)
@name_option
@pass_invocation
def renew(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Make a new certificate from the same CA. Agents do not notice.

    A server that runs shows it from the next connection on.
    """
    from cortextx.app import certificates

    directory = StateDir(invocation.state_dir)
    shown = certificates.renew(directory, names, _now(invocation))
    _print(shown, _now(invocation))
    try:
        with invocation.server() as client:
            client.one("server.reload")
    except NotReachable:
        click.echo("no server runs here; one that is started shows it", err=True)
    else:
        click.echo("the server shows it from now on", err=True)


@tls.command(
    epilog="""\b
Example:
  cortextx server tls show --json"""
)
@config_option
@json_option
@pass_invocation
def show(invocation: Invocation, config: str | None) -> None:
    """Show the certificate and the CA's pin, which `agent enroll --ca-pin` takes."""
    from cortextx.app import certificates

    directory, table = StateDir(invocation.state_dir), _table(invocation, config)
    files = certificates.tls_files(directory, table.tls_certificate, table.tls_key)
    _print(certificates.show(files), _now(invocation), as_json=invocation.json)


@click.command(
    epilog="""\b
Example:
  cortextx server reload"""
)
@click.option("--yes", is_flag=True, help="Even if a new min_agent_version locks hosts out.")
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


def _table(invocation: Invocation, config: str | None) -> ServerTable:
    """The server's settings as its file and the environment have them; raises ConfigError."""
    default = StateDir(invocation.state_dir).config_file(PLUGIN)
    return load(ServerSettings, path=config, default_path=default, environ=os.environ).server


def _names(table: ServerTable) -> list[str]:
    from cortextx.app.certificates import own_names

    public = urlsplit(table.public_url or "").hostname
    return [*([public] if public else []), *own_names()]


def _now(invocation: Invocation) -> dt.datetime:
    return dt.datetime.fromtimestamp(invocation.now(), dt.UTC)


def _print(shown: Any, now: dt.datetime, as_json: bool = False) -> None:
    """A certificate, as pairs or as one JSON object."""
    pairs = {
        "names": list(shown.names),
        "not_before": shown.not_before.isoformat(),
        "not_after": shown.not_after.isoformat(),
        "days_left": shown.days_left(now),
        "issuer": shown.issuer,
        "certificate": shown.certificate,
        "ca_pin": shown.ca_pin,
        "ca_not_after": None if shown.ca_not_after is None else shown.ca_not_after.isoformat(),
    }
    if as_json:
        print_json(pairs)
    else:
        print_pairs({**pairs, "names": ", ".join(shown.names)})
