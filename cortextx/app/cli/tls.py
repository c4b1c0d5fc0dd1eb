"""`cortextx server tls`: a CA and a certificate of the server's own (F40)."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import click

from cortextx.app.cli.faults import NotReachable
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import print_json, print_pairs
from cortextx.app.config import load
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.invitation import check_url
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

    Without --name the certificate is for this machine's names; it is for the one in
    public_url in any case. Invitations made from then on carry the CA's pin.
    """
    from cortextx.app import certificates

    directory = StateDir(invocation.state_dir)
    table = _table(invocation, config)
    wanted = _with_public(table, names or certificates.own_names())
    shown = certificates.init(directory, wanted, _now(invocation))
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
@config_option
@pass_invocation
def renew(invocation: Invocation, names: tuple[str, ...], config: str | None) -> None:
    """Make a new certificate from the same CA. Agents do not notice.

    Without --name it is for the names of the one before; it is for the one in
    public_url in any case. Names that it is no longer for are told. A server that
    runs shows it from the next connection on.
    """
    from cortextx.app import certificates

    directory = StateDir(invocation.state_dir)
    own = certificates.tls_files(directory, None, None)
    before = _names_before(own)
    wanted = _with_public(_table(invocation, config), names or before)
    shown = certificates.renew(directory, wanted, _now(invocation))
    _print(shown, _now(invocation))
    gone = [name for name in before if name not in shown.names]
    if gone:
        click.echo(f"no longer for: {', '.join(gone)}", err=True)
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


def _table(invocation: Invocation, config: str | None) -> ServerTable:
    """The server's settings as its file and the environment have them; raises ConfigError."""
    default = StateDir(invocation.state_dir).config_file(PLUGIN)
    return load(ServerSettings, path=config, default_path=default, environ=os.environ).server


def _with_public(table: ServerTable, names: Sequence[str]) -> list[str]:
    """`names`, and the one in public_url, at which agents connect; raises ConfigError."""
    from cortextx.app.certificates import covers

    public = None
    if table.public_url is not None:
        public = urlsplit(check_url(table.public_url, "server.public_url")).hostname
    if public is None or not names or any(covers(held, public) for held in names):
        return list(names)
    return [*names, public]


def _names_before(files: Any) -> Sequence[str]:
    """What the certificate that is there is for; nothing, where none can be read."""
    from cortextx.app import certificates

    try:
        return certificates.show(files).names
    except ConfigError:
        return ()


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
