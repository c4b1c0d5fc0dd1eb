"""`cortextx agent buffer …` and `agent probe …`: the agent on this machine, looked into.

A buffer is asked for through the agent where one runs. Where none does, the directory
is read here, under the lock that an agent would take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from cortextx.app.cli.faults import Fault, NotReachable
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json, print_pairs, print_table

VERIFY_SECONDS = 600.0
SEGMENT_COLUMNS = {"file": "SEGMENT", "first_seq": "FIRST", "bytes": "BYTES"}
VERIFY_COLUMNS = {
    "file": "SEGMENT",
    "entries": "ENTRIES",
    "bytes": "BYTES",
    "missing_entries": "MISSING",
    "damage": "DAMAGE",
    "good": "GOOD",
}
APART_COLUMNS = {
    "what": "WHAT",
    "file": "FILE",
    "seq": "SEQ",
    "bytes": "BYTES",
    "reason": "REASON",
}

Row = dict[str, Any]


@click.group()
def buffer() -> None:
    """The durable buffer of the agent on this machine."""


@click.group()
def probe() -> None:
    """The probes of the agent on this machine."""


@buffer.command(epilog="\b\nExample:\n  cortextx agent buffer inspect")
@json_option
@pass_invocation
def inspect(invocation: Invocation) -> None:
    """Show what the buffer holds, as its files say. With --json: one object."""
    from cortextx.fleet.agent import buffer_view

    rows, _ = _ask(invocation, "buffer.inspect", lambda disk: [buffer_view.inspect(disk)])
    found = dict(rows[0])
    if invocation.json:
        print_json(found)
        return
    files = found.pop("files", [])
    found["unacknowledged"] = ", ".join(found["unacknowledged"]) or None
    print_pairs(found)
    if files:
        click.echo()
        print_table(SEGMENT_COLUMNS, files)


@buffer.command(epilog="\b\nExample:\n  cortextx agent buffer verify")
@json_option
@pass_invocation
def verify(invocation: Invocation) -> None:
    """Read the whole buffer and check every block of it. Fails if anything is damaged.

    With --json: {"segments": [{…}, …], "good": true}.
    """
    from cortextx.fleet.agent import buffer_view

    def work(disk: Any) -> list[Row]:
        return [buffer_view.verify(disk, segment) for segment in buffer_view.segments(disk)]

    rows, _ = _ask(invocation, "buffer.verify", work)
    good = all(row["good"] for row in rows)
    if invocation.json:
        print_json({"segments": rows, "good": good})
    elif rows:
        shown = [{**row, "damage": sum(bad["bytes"] for bad in row["damage"])} for row in rows]
        print_table(VERIFY_COLUMNS, shown)
    else:
        click.echo("the buffer is empty", err=True)
    if not good:
        raise Fault(
            "parts of the buffer are damaged",
            "the agent sets them apart and sends the rest; `cortextx agent buffer quarantine`"
            " shows them",
        )


@buffer.command(
    epilog="\b\nExamples:\n  cortextx agent buffer quarantine\n"
    "  cortextx agent buffer quarantine --acknowledge"
)
@click.option("--acknowledge", is_flag=True, help="Say that you have looked at all of it.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@json_option
@pass_invocation
def quarantine(invocation: Invocation, acknowledge: bool, limit: int) -> None:
    """List damaged parts, and entries that the server refused for good.

    While there are any that nobody has acknowledged, the agent's health is red.
    Acknowledged files stay in the buffer's directory under another name; remove
    them by hand. With --json: {"apart": [{…}, …], "acknowledged": […]}.
    """
    from cortextx.fleet.agent import buffer_view

    names: list[str] = []

    def work(disk: Any) -> list[Row]:
        rows = buffer_view.set_apart(disk, limit)
        if acknowledge:
            names.extend(buffer_view.acknowledge(disk))
        return rows

    rows, end = _ask(
        invocation, "buffer.quarantine", work, acknowledge=acknowledge or None, limit=limit
    )
    names = names or end.get("acknowledged", [])
    if invocation.json:
        print_json({"apart": rows, "acknowledged": names})
        return
    if rows:
        print_table(APART_COLUMNS, rows)
    else:
        click.echo("nothing is set apart", err=True)
    for name in names:
        click.echo(f"acknowledged; kept as {escaped(name)}", err=True)


@probe.command(epilog="\b\nExample:\n  cortextx agent probe reset disk.largest")
@click.argument("name")
@pass_invocation
def reset(invocation: Invocation, name: str) -> None:
    """Let a probe run again whose process had died (`agent status` names them)."""
    with invocation.agent() as client:
        client.call("probe.reset", name=name)
    click.echo(f"{escaped(name)} is offered again from the next connection on")


def _ask(
    invocation: Invocation, op: str, offline: Callable[[Any], list[Row]], **args: Any
) -> tuple[list[Row], Row]:
    """Ask the agent that runs, or look at the directory where none does."""
    try:
        client = invocation.agent()
    except NotReachable:
        with _directory(os.path.join(invocation.state_dir, "agent", "buffer")) as disk:
            return offline(disk), {}
    with client:
        client.allow(VERIFY_SECONDS)
        return client.call(op, **args)


@contextmanager
def _directory(path: str) -> Iterator[Any]:
    """The buffer's directory, locked; raises Fault."""
    from cortextx.errors import StoreError
    from cortextx.fleet.agent.disk import RealDisk

    if not os.path.isdir(path):
        raise Fault(f"there is no buffer at {path}", "an agent makes it when it first starts")
    try:
        disk = RealDisk(path)
    except StoreError as error:
        raise Fault(str(error), "an agent that starts or stops has it; try again") from None
    try:
        yield disk
    except OSError as error:
        raise Fault(f"{path}: {error.strerror}") from None
    finally:
        disk.close()
