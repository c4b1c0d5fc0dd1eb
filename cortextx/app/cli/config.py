"""`cortextx config …`: what hosts are told to do, for all, by group, by host (§4.1, §4.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import click
import msgspec

from cortextx.app.cli.agent import example
from cortextx.app.cli.filters import When
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json, print_pairs, print_table
from cortextx.app.cli.values import assignments

MAX_FILE = 1_000_000
"""Characters of a config's file: more does not fit a request."""

LAYER_COLUMNS = {
    "scope": "SCOPE",
    "name": "NAME",
    "version": "VERSION",
    "changed_at": "CHANGED",
    "members": "SETS",
}


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """--host, --group and --all, one of which says for whom."""
    options = (
        click.option("--host", metavar="HOST", help="This host only, by name or id."),
        click.option("--group", metavar="NAME", help="The hosts of this group."),
        click.option("--all", "everyone", is_flag=True, help="All hosts."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _scope(host: str | None, group: str | None, everyone: bool) -> dict[str, str | None]:
    if (host is not None) + (group is not None) + everyone != 1:
        raise click.UsageError("one of --host HOST, --group NAME and --all says for whom")
    return {"host": host, "group": group}


@click.group()
def config() -> None:
    """What the server tells its hosts to do.

    What is set for a host wins over what its groups set, that over what is set for
    all, and that over [agent_config] in the server's own file.
    """


@config.command(
    epilog=example(
        "cortextx config show", "cortextx config show web1", "cortextx config show --json"
    )
)  # fmt: skip
@click.argument("host", required=False)
@click.option("--group", metavar="NAME", help="What this group sets.")
@json_option
@pass_invocation
def show(invocation: Invocation, host: str | None, group: str | None) -> None:
    """Show what HOST is told and by whom; or what is set, in all.

    `in_step` says whether the host was told that last; `at_host` what became of it
    there (`applied`, `rolled_back`, `refused`, and why), and `reports` is all that it
    said of itself. With --json: one object, or {"configs": […], "defaults": {…}}.
    """
    if host is not None and group is not None:
        raise click.UsageError("HOST and --group exclude one another")
    with invocation.server() as server:
        rows, end = server.call("config.get", host=host, group=group)
    if host is not None:
        _print_host(invocation, rows[0])
    elif invocation.json:
        print_json({"configs": rows, "defaults": end.get("defaults")})
    elif rows:
        print_table(LAYER_COLUMNS, rows)
    else:
        click.echo("nothing is set; hosts are told the defaults ([agent_config])", err=True)


def _print_host(invocation: Invocation, shown: dict[str, Any]) -> None:
    if invocation.json:
        print_json(shown)
        return
    reports = shown.pop("reports", None) or []
    layers = shown.pop("layers", None) or []
    print_pairs(shown)
    _tell_failure(shown)
    if layers:
        click.echo("\nset by")
        print_table(LAYER_COLUMNS, layers)
    if reports:
        click.echo("\nthe host said")
        for row in reports:
            click.echo(f"{row.get('ts')} {escaped(str(row.get('message')))}")


def _tell_failure(shown: dict[str, Any]) -> None:
    """Say so if the host does not do what it is told (A58)."""
    there = shown.get("at_host") or {}
    did = {"rolled_back": "took this config back", "refused": "cannot use this config"}
    words = did.get(str(there.get("state")))
    # What it said of another config is over; what it cannot read at all has no name.
    if words is not None and there.get("failed") in (None, shown.get("fingerprint")):
        name, why = escaped(str(shown.get("host"))), escaped(str(there.get("reason")))
        click.echo(f"\nNote: {name} {words}: {why}", err=True)
        click.echo("      change it, or have it tried again: cortextx config push", err=True)


@config.command(
    "set",
    epilog=example(
        "cortextx config set --host web1 flush_interval_ms=100",
        "cortextx config set --group web --unset probe_concurrency",
        "cortextx config set --all --file config.json",
        "cortextx config set --host web1 --clear",
    ),
)  # fmt: skip
@scope_options
@click.argument("members", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--unset", multiple=True, metavar="NAME", help="Take this member away (repeatable).")
@click.option(
    "--file", type=click.File(), metavar="F",
    help="Set just what stands in this JSON object, in place of all before; - is stdin.",
)  # fmt: skip
@click.option("--clear", is_flag=True, help="Take all away that is set for them.")
@click.option("--at", type=When(), metavar="WHEN", help="Hosts are to apply it at that time.")
@json_option
@pass_invocation
def set_config(
    invocation: Invocation,
    host: str | None,
    group: str | None,
    everyone: bool,
    members: tuple[str, ...],
    unset: tuple[str, ...],
    file: IO[str] | None,
    clear: bool,
    at: str | None,
) -> None:
    """Set members of a config, and tell the hosts that are connected.

    A value that is JSON is taken as that, any other as text. Hosts that are not
    connected are told when they come. With --json: one object.
    """
    scope = _scope(host, group, everyone)
    if bool(members or unset) + (file is not None) + clear != 1:
        raise click.UsageError("give NAME=VALUE or --unset NAME, or --file F, or --clear")
    asked: dict[str, Any] = {"config": None}
    if file is not None:
        asked["config"] = _object(file)
    elif not clear:
        asked = {
            "config": assignments(members, "member of a config"), "merge": True,
            "unset": list(unset),
        }  # fmt: skip
    with invocation.server() as server:
        # Client.call leaves out what is None: an explicit null is what clears.
        end = server.one("config.set", **scope, apply_after=at, **_explicit(asked))
    if invocation.json:
        print_json(end)
        return
    version = end.get("version")
    click.echo("nothing is set any more" if version is None else f"set, version {version}")
    _told(end)


@config.command(epilog=example("cortextx config push --host web1", "cortextx config push --all"))
@scope_options
@click.option("--at", type=When(), metavar="WHEN", help="Hosts are to apply it at that time.")
@json_option
@pass_invocation
def push(
    invocation: Invocation, host: str | None, group: str | None, everyone: bool, at: str | None
) -> None:
    """Send its config to a host again, or to those of a group, or to all.

    Setting does that by itself; this is for a host that is to try once more.
    """
    with invocation.server() as server:
        end = server.one("config.push", **_scope(host, group, everyone), apply_after=at)
    if invocation.json:
        print_json(end)
    else:
        _told(end)


@config.command(
    epilog=example(
        "cortextx config groups", "cortextx config groups web1 web frankfurt",
        "cortextx config groups web1 --none",
    )
)  # fmt: skip
@click.argument("host", required=False)
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("--none", is_flag=True, help="HOST is in no group any more.")
@json_option
@pass_invocation
def groups(invocation: Invocation, host: str | None, names: tuple[str, ...], none: bool) -> None:
    """List the groups; or put HOST into these groups and no others.

    Where two groups set the same, the later one wins. With --json: {"groups": […]},
    or one object.
    """
    if host is None:
        if none:
            raise click.UsageError("--none needs a HOST")
        with invocation.server() as server:
            found, _ = server.call("group.list")
        if invocation.json:
            print_json({"groups": found})
        elif found:
            print_table({"name": "GROUP", "host_ids": "HOSTS"}, found)
        else:
            click.echo("no host is in a group", err=True)
        return
    if bool(names) == none:
        raise click.UsageError("name the groups, or say --none")
    with invocation.server() as server:
        end = server.one("group.set", host=host, groups=list(names))
    if invocation.json:
        print_json(end)
    else:
        _told(end)


def _explicit(asked: dict[str, Any]) -> dict[str, Any]:
    """`config` as null survives as msgspec's raw null."""
    if asked["config"] is None:
        return {**asked, "config": msgspec.Raw(b"null")}
    return asked


def _object(file: IO[str]) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(file.read(MAX_FILE), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        raise click.UsageError("the file holds no JSON object") from None
    return found


def _told(end: dict[str, Any]) -> None:
    told = end.get("told") or []
    click.echo(f"told {len(told)} connected host{'' if len(told) == 1 else 's'}", err=True)
