"""`cortextx server backup|restore|verify`: the server's database as a file."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import UTC, datetime
from typing import Any

import click

from cortextx.app.cli.agent import example, sure
from cortextx.app.cli.client import calling
from cortextx.app.cli.faults import FOUND, Fault
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json, print_pairs
from cortextx.app.statedir import StateDir
from cortextx.app.store_made import forget
from cortextx.errors import ConfigError, SchemaTooNew, StoreError

PLUGIN = "cortex-server"
ACTOR = "local"
"""How acts name whoever works on the server's own machine."""
SILENT_SECONDS = 300.0
"""How long a backup may say nothing: syncing a big file to a slow disk takes its time."""


@click.command(
    epilog=example(
        "cortextx server backup /backup/cortextx-$(date +%F).db",
        "cortextx server backup /backup/new.db --json",
    )
)
@click.argument("file", type=click.Path(dir_okay=False))
@json_option
@pass_invocation
def backup(invocation: Invocation, file: str) -> None:
    """Copy the database of the running server to FILE, which must not be there yet.

    The server goes on as it does; the copy is the state of one moment: entries,
    hosts, tokens, configs, all of it. The server's process writes it (0600), so it
    needs the right to. Keys of TLS and the configuration are files of their own.

    The copy is checked: if anything is wrong with it, the command fails and says what,
    and the copy is called FILE.damaged.

    Until it is whole it is called FILE.partial. What a killed backup leaves under
    that name is of no use; the next backup to the same FILE replaces it.
    """
    from cortextx.stores.sqlite_backup import left_over

    path = os.path.abspath(file)
    with invocation.server() as server:
        server.allow(SILENT_SECONDS)
        answers = server.stream("server.backup", path=path)
        while True:
            try:
                _progress(float(next(answers).get("done") or 0.0))
            except StopIteration as stop:
                made: dict[str, Any] = stop.value
                break
    _progress(None)
    if invocation.json:
        print_json(made)
    else:
        print_pairs(made)
    for left in left_over(path):
        click.echo(f"{escaped(left)} is left of a backup that was killed: remove it", err=True)


@click.command(
    epilog=example(
        "cortextx server verify", "cortextx server verify /backup/cortextx.db",
        "cortextx server verify --quick --json",
    )
)  # fmt: skip
@click.argument("file", type=click.Path(dir_okay=False), required=False)
@click.option("--quick", is_flag=True, help="Check the structure, not every page and index.")
@json_option
@pass_invocation
def verify(invocation: Invocation, file: str | None, quick: bool) -> None:
    """Check a database or a backup, without changing it: FILE, or the server's own.

    It may be in use. Ends with 5 if something is wrong. With --json: one object.
    """
    from cortextx.stores.sqlite_backup import verify

    path = _own(invocation) if file is None else os.path.abspath(file)
    with _told():
        found = verify(path, deep=not quick)
    shown = {
        "path": path,
        "sound": found.sound,
        "schema": found.version,
        "entries": found.entries,
        "hosts": found.hosts,
        "newest_entry_id": found.head,
        "faults": list(found.faults),
    }
    if invocation.json:
        print_json(shown)
    else:
        print_pairs({name: value for name, value in shown.items() if name != "faults"})
        for fault in found.faults:
            click.echo(f"fault: {escaped(fault)}")
    if not found.sound:
        if not invocation.json:
            click.echo("  next: `cortextx server restore FILE` puts a backup there", err=True)
        click.get_current_context().exit(FOUND)


@click.command(epilog=example("cortextx server restore /backup/cortextx.db"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_invocation
def restore(invocation: Invocation, file: str, yes: bool) -> None:
    """Put a backup in the place of the server's database, while the server is stopped.

    FILE is checked first; if anything is wrong with it, nothing is changed. What was
    there is kept beside it, under a name that is told: to go back, restore that. The
    restored database records this among its acts (`cortextx server acts`). Hosts go
    on by themselves; what they had sent since the backup, and do not hold any more,
    is then a gap in `cortextx audit`.
    """
    from cortextx.stores.sqlite_backup import Restoring, restore

    directory = StateDir(invocation.state_dir)
    path, source = _own(invocation), os.path.abspath(file)
    if os.path.exists(path) and os.path.samefile(path, source):
        raise Fault(f"{file} is the server's database itself", "name a backup of it")
    with _stopped(invocation, directory):
        aside = None
        if os.path.exists(path):
            at = datetime.fromtimestamp(invocation.now(), UTC).strftime("%Y%m%dT%H%M%SZ")
            aside = f"{path}.before-{at}"
            kept = f"what is there now is kept as {aside}"
            sure(f"Put {escaped(file)} in the place of {path} ({kept})", yes, kept)
        act = Restoring(
            ACTOR, round(invocation.now() * 1e6), {"backup": escaped(source), "kept": aside}
        )
        with _told():
            found = restore(source, path, aside or f"{path}.before", act)
            forget(path)
        _give_to_owner(directory.path, path)
    shown = {
        "path": path, "kept": aside, "entries": found.entries, "hosts": found.hosts,
        "newest_entry_id": found.head,
    }  # fmt: skip
    if invocation.json:
        print_json(shown)
        return
    print_pairs(shown)
    click.echo(
        f"start the server with `{calling(invocation.state_dir)} up`, "
        "or with the service that runs it",
        err=True,
    )


def _own(invocation: Invocation) -> str:
    if invocation.remote.url is not None:
        raise Fault("this works on the server's own machine only")
    return StateDir(invocation.state_dir).join("server", "store.db")


@contextlib.contextmanager
def _stopped(invocation: Invocation, directory: StateDir) -> Any:
    """Hold the server's lock, so that none starts meanwhile."""
    directory.prepare("server")
    try:
        directory.lock(PLUGIN)
    except ConfigError:
        raise Fault(
            f"the server on {directory.path} runs",
            f"stop it first: `{calling(invocation.state_dir)} down`, or systemctl stop {PLUGIN}",
        ) from None
    try:
        yield
    finally:
        directory.unlock(PLUGIN)


def _give_to_owner(directory: str, path: str) -> None:
    """What root restores belongs to whom the state directory does."""
    if os.geteuid() == 0:
        owner = os.stat(directory)
        os.chown(path, owner.st_uid, owner.st_gid)
        lock = os.path.join(directory, "run", f"{PLUGIN}.lock")
        for made in (lock, os.path.dirname(lock), os.path.dirname(path)):
            os.chown(made, owner.st_uid, owner.st_gid)


@contextlib.contextmanager
def _told() -> Any:
    """Say what a store's error is."""
    try:
        yield
    except SchemaTooNew as error:
        raise Fault(str(error), "update cortextx, then try again") from None
    except StoreError as error:
        raise Fault(str(error)) from None


def _progress(done: float | None) -> None:
    """How far it is, where somebody looks."""
    if sys.stderr.isatty():
        text = "" if done is None else f"{done:4.0%} copied"
        click.echo(f"\r{text:<20}\r", err=True, nl=False)
