"""`cortextx agent …`: the hosts that a server knows, and the agent on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from cortextx.app.cli.agent_buffer import buffer, probe
from cortextx.app.cli.client import calling
from cortextx.app.cli.enroll import checked_uuid, enroll
from cortextx.app.cli.faults import USAGE, Fault
from cortextx.app.cli.filters import Span
from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.terminal import escaped, print_json, print_pairs, print_table, shown

LIST_COLUMNS = {
    "name": "HOST",
    "state": "STATE",
    "last_seen": "LAST SEEN",
    "accepted_seq": "ENTRIES",
    "push_lag_seq": "LAG",
    "lost_entries": "LOST",
    "agent_version": "VERSION",
    "host_id": "HOST ID",
}

GAP_COLUMNS = {
    "host": "HOST",
    "first": "FIRST",
    "last": "LAST",
    "entries": "ENTRIES",
    "detected_at": "SEEN",
    "cause": "CAUSE",
    "detail": "DETAIL",
}


STATUS_SOURCES = {
    "name": "SOURCE",
    "kind": "KIND",
    "origin": "BY",
    "start": "FROM",
    "files": "FILES",
    "state": "STATE",
    "why": "WHY",
}

STATUS_REPORTS = {"name": "READS AS", "kind": "KIND", "state": "STATE", "counters": "COUNTS"}

STATUS_RULES = {
    "name": "RULE",
    "matched": "MATCHED",
    "dropped": "DROPPED",
    "redacted": "REDACTED",
}

STATUS_PROBES = {"name": "PROBE", "offered": "OFFERED", "why": "WHY"}

STATUS_FILES = {"path": "FILE", "offset": "READ", "size": "OF", "why": "WHY"}


def example(*lines: str) -> str:
    """A command's epilog."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return "\b\n" + "\n".join([head, *(f"  {line}" for line in lines)])


@click.group(
    epilog=example(
        "cortextx agent issue --host web1    (on the server)",
        "cortextx agent enroll               (on the host web1)",
        "cortextx agent list                 (on the server)",
        "cortextx agent status               (on the host)",
    )
)
def agent() -> None:
    """The hosts of a server, and the host agent on this machine."""


agent.add_command(enroll)
agent.add_command(buffer)
agent.add_command(probe)


@agent.command(
    epilog=example("cortextx agent issue --host web1", "cortextx agent issue --host web1 --json")
)
@click.option("--host", "name", required=True, metavar="NAME", help="What to call the host.")
@click.option("--host-id", metavar="UUID", help="Only the host with this id may use the token.")
@click.option("--expire-in", type=Span(), metavar="SECS", help="How long the token is good.")
@json_option
@pass_invocation
def issue(invocation: Invocation, name: str, host_id: str | None, expire_in: int | None) -> None:
    """Make a one-time token with which a new host may enrol.

    Give the invitation to `cortextx agent enroll` on that host. A name has one unused
    invitation at most: another takes its place. With --json: one
    object with `host_id` (null: the host's first connection decides), `token`
    and `invitation`.
    """
    if not name.strip():
        raise Fault("--host is empty", "name the host: letters, digits and . _ - : @", USAGE)
    if host_id is not None:
        host_id = checked_uuid(host_id)
    with invocation.server() as server:
        made = server.one("agent.issue", name=name, host_id=host_id, expires_in=expire_in)
    if invocation.json:
        print_json({key: made.get(key) for key in ("host_id", "token", "invitation")})
        return
    if made.get("replaced"):
        click.echo(
            f"Note: {escaped(name)} had an invitation that nobody used; it is good no more\n",
            err=True,
        )
    click.echo(f"token       {made.get('token')}")
    click.echo(f"invitation  {made.get('invitation')}")
    if made.get("hint"):
        click.echo(f"\nNote: {escaped(str(made['hint']))}", err=True)
    click.echo(
        "\nOn the host, give it the invitation when it asks:\n  cortextx agent enroll", err=True
    )


@agent.command("list", epilog=example("cortextx agent list", "cortextx agent list --json"))
@remote_options
@json_option
@pass_invocation
def list_hosts(invocation: Invocation) -> None:
    """List the hosts. With --json: {"hosts": [{…}, …]}.

    \b
    ENTRIES  the last number that is stored of what the host numbered
    LAG      what it had numbered and this server not stored, by its last heartbeat
             (every 30 s, while it is connected) less what was stored since
    LOST     numbers that never came: `cortextx audit HOST`
    """
    with invocation.server() as server:
        hosts, _ = server.call("agent.list")
    if invocation.json:
        print_json({"hosts": hosts})
    elif hosts:
        print_table(LIST_COLUMNS, hosts)
    else:
        click.echo(
            "no host yet; make a token for one with "
            f"`{calling(invocation.state_dir)} agent issue --host NAME`",
            err=True,
        )


@agent.command(epilog=example("cortextx agent show web1"))
@click.argument("host")
@remote_options
@json_option
@pass_invocation
def show(invocation: Invocation, host: str) -> None:
    """Show all that is known of a host (by name or id). With --json: one object."""
    with invocation.server() as server:
        found = server.one("agent.show", host=host)
    if invocation.json:
        print_json(found)
    else:
        print_pairs(found)


@agent.command(epilog=example("cortextx agent gaps", "cortextx agent gaps web1 --json"))
@click.argument("host", required=False)
@remote_options
@json_option
@pass_invocation
def gaps(invocation: Invocation, host: str | None) -> None:
    """List the entries that a host numbered and the server never got.

    With --json: {"gaps": [{…}, …]}.
    """
    with invocation.server() as server:
        found, _ = server.call("gaps", host=host)
    if invocation.json:
        print_json({"gaps": found})
    elif found:
        # What never had numbers is not 0 entries, but as `detail` says.
        rows = [{**row, "entries": row.get("entries") or None} for row in found]
        print_table(GAP_COLUMNS, rows)
    else:
        click.echo("nothing is missing", err=True)


@agent.command(epilog=example("cortextx agent rotate web1", "cortextx agent rotate web1 --now"))
@click.argument("host")
@click.option("--now", is_flag=True, help="Cut the host's connection, so that it is done at once.")
@click.option("--expire-in", type=Span(), metavar="SECS", help="Refuse the old token after that.")
@pass_invocation
def rotate(invocation: Invocation, host: str, now: bool, expire_in: int | None) -> None:
    """Give a host a new token when it connects next; the old one is good until then.

    A token that others may know is answered with --expire-in, or with revoke. A host
    that is connected is then cut, so that it takes its new token at once; one that does
    not connect in time is locked out, and has to enrol again.
    """
    with invocation.server() as server:
        _, end = server.call("agent.rotate", host=host, now=now or None, expire_in=expire_in)
    for line in rotation_told(escaped(str(end.get("name") or host)), end, now, expire_in):
        click.echo(line)


def rotation_told(
    name: str, end: Mapping[str, Any], now: bool, expire_in: int | None
) -> Iterator[str]:
    """What comes of a rotation, from the answer's end."""
    ends_at, again = shown(end.get("ends_at")), f"--host {shlex.quote(name)}"
    if end.get("host_id"):
        again += f" --host-id {end['host_id']}"
    if not end.get("pending", True):
        yield f"{name} was issued an invitation anew, and gets a new token when it uses that"
        if expire_in is not None:
            yield f"the token that it has now is refused from {ends_at} on"
        return
    cut = end.get("connected") and (now or expire_in is not None)
    if cut:
        yield f"{name} gets a new token now: it was cut, and is back in a moment"
    else:
        yield f"{name} gets a new token when it connects next"
    if expire_in is not None:
        yield f"its old token is refused from {ends_at} on" + (
            "" if cut else ": if it does not connect before, it is locked out, until"
        )
        if not cut:
            yield f"  cortextx agent issue {again}"


@agent.command(epilog=example("cortextx agent revoke web1 --yes"))
@click.argument("host")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def revoke(invocation: Invocation, host: str, yes: bool) -> None:
    """Refuse a host from now on, and cut its connection. Its entries stay.

    An invitation that nobody has used is withdrawn, which removes it from the list.
    """
    question = f"Refuse {escaped(host)} from now on"
    if not yes and sys.stdin.isatty():
        with invocation.server() as server:
            if server.one("agent.show", host=host)["host_id"] is None:
                question = f"Withdraw the invitation for {escaped(host)}"
    sure(question, yes)
    with invocation.server() as server:
        _, end = server.call("agent.revoke", host=host)
    if end.get("withdrawn"):
        click.echo(f"the invitation for {escaped(str(end['name']))} is withdrawn")
        return
    click.echo(f"{escaped(host)} is revoked; `cortextx agent forget` removes it from the list")


@agent.command(epilog=example("cortextx agent forget web1 --yes"))
@click.argument("host")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def forget(invocation: Invocation, host: str, yes: bool) -> None:
    """Remove a host from the list; to come back it must enrol anew.

    An invitation that nobody has used is withdrawn so.
    """
    sure(f"Forget {escaped(host)}", yes)
    with invocation.server() as server:
        _, end = server.call("agent.forget", host=host)
    if end.get("withdrawn"):
        click.echo(f"the invitation for {escaped(str(end['name']))} is withdrawn")
        return
    click.echo(f"{escaped(host)} is forgotten")


@agent.command(epilog=example("cortextx agent status", "cortextx agent status --json"))
@json_option
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show how the agent on this machine is. With --json: one object."""
    with invocation.agent() as client:
        found = client.one("status")
    if invocation.json:
        print_json(found)
    else:
        _print_status(found)


def _print_status(found: Mapping[str, Any]) -> None:
    """An agent's status for people: its members, then its sources, then their files."""
    pairs = dict(found)
    sources = [*(pairs.pop("sources", None) or []), *(pairs.pop("sources_left_out", None) or [])]
    files = pairs.pop("files", None) or []
    reasons = pairs.get("health_why")
    if reasons is not None:
        numbered = {str(at): reason for at, reason in enumerate(reasons, 1)}
        pairs["health_why"] = numbered if len(reasons) > 1 else "".join(reasons) or None
    if pairs.get("next_attempt_in") is not None:
        pairs["next_attempt_in"] = f"{pairs['next_attempt_in']} s"
    if pairs.get("sources_paused_by") is not None:
        pairs["sources_paused_by"] = ", ".join(pairs["sources_paused_by"])
    reports = [
        {**row, "counters": _counts(row["counters"])} for row in pairs.pop("reports", None) or []
    ]
    rules = pairs.pop("rules", None) or []
    probes = pairs.pop("probes", None) or []
    if pairs.get("unacknowledged") is not None:
        pairs["unacknowledged"] = ", ".join(pairs["unacknowledged"]) or None
    print_pairs(pairs)
    for columns, rows in (
        (STATUS_SOURCES, sources),
        (STATUS_REPORTS, reports),
        (STATUS_RULES, rules),
        (STATUS_PROBES, probes),
        (STATUS_FILES, files),
    ):
        if rows:
            click.echo()
            print_table(columns, rows)


def _counts(counters: Mapping[str, int]) -> str:
    """Counters for a column: those that are not 0."""
    return " ".join(f"{name}={value}" for name, value in counters.items() if value)


@agent.command(epilog=example("cortextx agent retry"))
@pass_invocation
def retry(invocation: Invocation) -> None:
    """Let the agent on this machine try once more after a fatal refusal.

    For a host that was revoked there is nothing to try with: `agent enroll` it again.
    """
    with invocation.agent() as client:
        _, end = client.call("retry")
    if end.get("connected"):
        click.echo("the agent is connected; there is nothing to try again")
        return
    click.echo("the agent tries once more; `cortextx agent status` shows what comes of it")


def sure(question: str, yes: bool, why: str = "this cannot be undone") -> None:
    """Return if the user means it; raises Fault or Abort."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Fault(why, "add --yes if you mean it", USAGE)
    if not click.confirm(f"{question}?"):
        raise Fault("nothing was changed")
