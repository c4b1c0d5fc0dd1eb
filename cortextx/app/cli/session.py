"""`cortextx session`: the files of sessions, beside a slave that may run.

What only reads works on a session that is in use; what changes one does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cortextx.app.cli.agent import example, sure
from cortextx.app.cli.faults import FOUND, USAGE, Fault
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.session_names import (
    as_owner_of,
    called,
    files_at,
    matching,
    one,
    place_options,
    root_of,
    told,
    user,
)
from cortextx.app.cli.terminal import escaped, print_json, print_pairs, print_table
from cortextx.core.names import is_name
from cortextx.interfaces.sessions import SessionKey

if TYPE_CHECKING:
    from cortextx.stores.journal_repair import Verdict
    from cortextx.stores.session_files import Details, Form, SessionFiles, Summary

LOOKS = 5
"""How often a log that is in use is looked at before it is called damaged."""
LOOK_SECONDS = 0.2
LATEST_LINES = 20

COLUMNS = {
    "session": "SESSION",
    "agent": "AGENT",
    "place": "OF",
    "state": "STATE",
    "messages": "MESSAGES",
    "updated_at": "UPDATED",
    "size": "BYTES",
    "in_use": "IN USE",
}


@click.group(
    epilog=example(
        "cortextx session list",
        "cortextx session show notes",
        "cortextx session export notes --form markdown > notes.md",
    )
)
@click.option("--root", metavar="DIR", help="The sessions below DIR, not STATE_DIR/sessions.")
@click.pass_context
def session(ctx: click.Context, root: str | None) -> None:
    """List, show, check, repair, rename, delete, copy and export sessions.

    A session is named as SESSION or AGENT/SESSION. Temporary sessions have no files.
    """
    ctx.meta["root"] = root


def _files(invocation: Invocation) -> SessionFiles:
    root: str | None = click.get_current_context().meta.get("root")
    if root is not None and not os.path.isdir(root):
        raise Fault(f"{root} is no directory", "name the directory that holds home/ or shared/")
    return files_at(root_of(invocation, root))


@session.command(
    "list", epilog=example("cortextx session list", "cortextx session list --agent echo --json")
)
@place_options
@json_option
@pass_invocation
def list_(
    invocation: Invocation, /, agent: str | None, owner: int | None, space: str | None
) -> None:
    """List the sessions, the one that changed last first. With --json: an object a line."""
    files = _files(invocation)
    with told():
        if os.path.isdir(files.root.path):
            os.listdir(files.root.path)  # no right to is not the same as none
        wanted = set(matching(files, agent=agent, owner=owner, space=space))
        found = [each for each in files.list(agent=agent, owner=owner) if each.key in wanted]
    rows = [_row(each) for each in found]
    if invocation.json:
        for row in rows:
            print_json(row)
    elif rows:
        print_table(COLUMNS, [{**row, "place": _place(each.key)} for row, each in
                              zip(rows, found, strict=True)])  # fmt: skip
    else:
        click.echo(f"no sessions in {escaped(files.root.path)}", err=True)
        click.echo("  next: `cortextx chat` begins one", err=True)


@session.command(epilog=example("cortextx session show notes", "cortextx session show echo/notes"))
@click.argument("name", metavar="SESSION")
@place_options
@json_option
@pass_invocation
def show(invocation: Invocation, /, name: str, **place: Any) -> None:
    """Show one session: what its log tells, and the newest answer."""
    files = _files(invocation)
    key = one(files, name, **place)
    with told():
        details = files.show(key)
    shown = _details(details)
    if invocation.json:
        print_json({**shown, "latest": details.latest})
        return
    print_pairs({**shown, "owner": user(key.owner)} if key.owner is not None else shown)
    if details.latest:
        click.echo()
        lines = details.latest.splitlines()
        for line in lines[:LATEST_LINES]:
            click.echo(f"| {escaped(line)}")
        if len(lines) > LATEST_LINES:
            click.echo(f"| … {len(lines) - LATEST_LINES} more lines; `session export` has them all")


@session.command(
    epilog=example(
        "cortextx session export notes > notes.jsonl",
        "cortextx session export notes --form markdown --output notes.md",
    )
)
@click.argument("name", metavar="SESSION")
@click.option(
    "--form", type=click.Choice(("events", "messages", "markdown")), default="events",
    show_default=True, help="The events as frontends see them, the conversation, or a text.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write to FILE, which must not be there yet.")
@place_options
@pass_invocation
def export(
    invocation: Invocation, /, name: str, form: Form, output: str | None, **place: Any
) -> None:
    """Write a session to standard output, or to a file. It may be in use.

    Nothing that frontends must not see is in it: no user ids, digests or paths.
    """
    files = _files(invocation)
    key = one(files, name, **place)
    with told():
        write_export(files.export(key, form), output)


def write_export(lines: Iterable[bytes], output: str | None) -> None:
    """Write an export's lines to a new file (0600), or to stdout; OSErrors pass through."""
    if output is None:
        _print_lines(lines)
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Fault(f"{output} is there already", "name a file that is not") from None
    try:
        with open(descriptor, "wb") as file:
            file.writelines(lines)
    except BaseException:
        os.unlink(output)  # half a transcript would pass for a whole one
        raise


def _print_lines(lines: Iterable[bytes]) -> None:
    if sys.stdout.isatty():
        for text in (line.decode("utf-8", "replace") for line in lines):
            click.echo("\n".join(map(escaped, text.split("\n"))), nl=False)
        return
    sys.stdout.flush()
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


@session.command(epilog=example("cortextx session verify", "cortextx session verify notes --json"))
@click.argument("names", metavar="[SESSION]...", nargs=-1)
@place_options
@json_option
@pass_invocation
def verify(invocation: Invocation, /, names: tuple[str, ...], **place: Any) -> None:
    """Prove the logs of SESSIONs, or of all, without changing anything.

    Every line must be JSON, the seqs consecutive, the last line whole. A session may
    be in use. Ends with 5 if a log cannot be proved. With --json: an object a line.
    """
    files = _files(invocation)
    keys = [one(files, name, **place) for name in names] or matching(files, **place)
    damaged = 0
    for key in keys:
        with told():
            verdict = _verified(invocation, files, key)
        damaged += verdict.why is not None
        if invocation.json:
            print_json({**_name(key), **_proof(verdict)})
        else:
            click.echo(_verdict_line(key, verdict))
    if not keys:
        click.echo(f"no sessions in {escaped(files.root.path)}", err=True)
    if damaged:
        if not invocation.json:
            click.echo(
                "  next: `cortextx session repair SESSION` moves what cannot be proved aside",
                err=True,
            )
        click.get_current_context().exit(FOUND)


def _verified(invocation: Invocation, files: SessionFiles, key: SessionKey) -> Verdict:
    """A log that is being written to may end in half a line for a moment."""
    for _ in range(LOOKS):
        verdict = files.verify(key)
        if verdict.why is None or not files.summary(key).in_use:
            break
        invocation.sleep(LOOK_SECONDS)
    return verdict


def _verdict_line(key: SessionKey, verdict: Verdict) -> str:
    name = escaped(called(key))
    if verdict.why is None:
        return f"{name}: sound, seqs {verdict.first} to {verdict.head}, {verdict.end} bytes"
    return (
        f"{name}: damaged at byte {verdict.end} of {verdict.size}, behind seq {verdict.head}: "
        f"{escaped(verdict.why)}"
    )


@session.command(epilog=example("cortextx session repair notes"))
@click.argument("name", metavar="SESSION")
@place_options
@json_option
@pass_invocation
def repair(invocation: Invocation, /, name: str, **place: Any) -> None:
    """Move what cannot be proved of a log into a file beside it, and say what was done.

    Nothing is thrown away: the bytes stand in events.jsonl.damaged-TIME. A sound log
    stays as it is. The session must not be in use.
    """
    files = _files(invocation)
    key = one(files, name, **place)
    stamp = datetime.fromtimestamp(invocation.now(), UTC).strftime("%Y%m%dT%H%M%SZ")
    with told(), as_owner_of(files.root.path):
        done = files.repair(key, stamp)
        path = files.root.directory(key)
    if invocation.json:
        print_json({
            **_name(key), "repaired": done.aside is not None, "moved_bytes": done.moved,
            "moved_lines": done.whole_lines, "first_seq": done.verdict.first,
            "head_seq": done.verdict.head, "why": done.verdict.why,
            "aside": None if done.aside is None else os.path.join(path, done.aside),
        })  # fmt: skip
    elif done.aside is None:
        click.echo(f"{escaped(called(key))} is sound; nothing was changed")
    else:
        click.echo(
            f"{escaped(called(key))}: {escaped(done.verdict.why or '')} at byte "
            f"{done.verdict.end}; kept up to seq {done.verdict.head}"
        )
        click.echo(
            f"{done.moved} bytes, {done.whole_lines} whole lines among them, now stand in "
            f"{escaped(os.path.join(path, done.aside))}"
        )


@session.command(epilog=example("cortextx session rename notes ideas"))
@click.argument("name", metavar="SESSION")
@click.argument("new", metavar="NEW")
@place_options
@json_option
@pass_invocation
def rename(invocation: Invocation, /, name: str, new: str, **place: Any) -> None:
    """Give a session another name. It must not be in use."""
    files = _files(invocation)
    key = one(files, name, **place)
    _check_new(new)
    with told(), as_owner_of(files.root.path):
        to = files.rename(key, new)
    _say(invocation, to, f"{escaped(called(key))} is now {escaped(new)}")


@session.command(epilog=example("cortextx session delete notes", "cortextx session delete x --yes"))
@click.argument("name", metavar="SESSION")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
@pass_invocation
def delete(invocation: Invocation, /, name: str, yes: bool, **place: Any) -> None:
    """Remove a session and all of its files, for good. It must not be in use."""
    files = _files(invocation)
    key = one(files, name, **place)
    sure(f"Delete {escaped(called(key))} and everything in it", yes)
    with told(), as_owner_of(files.root.path):
        files.delete(key)
    _say(invocation, key, f"{escaped(called(key))} is deleted")


@session.command(
    epilog=example("cortextx session fork notes attempt", "cortextx session fork notes y --at 41")
)
@click.argument("name", metavar="SESSION")
@click.argument("new", metavar="NEW")
@click.option(
    "--at", "through", type=click.IntRange(1), metavar="SEQ",
    help="Copy up to this event only; `session export` shows the seqs.",
)  # fmt: skip
@place_options
@json_option
@pass_invocation
def fork(invocation: Invocation, /, name: str, new: str, through: int | None, **place: Any) -> None:
    """Copy a session, or its beginning, to one with another name. It may be in use."""
    files = _files(invocation)
    key = one(files, name, **place)
    _check_new(new)
    with told(), as_owner_of(files.root.path):
        to = files.fork(key, new, through)
    _say(invocation, to, f"{escaped(new)} is a copy of {escaped(called(key))}")


def _check_new(name: str) -> None:
    if not is_name(name):
        raise Fault(
            f"no session can be called {name!r}",
            "letters, digits, '.', '_' and '-', 128 at most; not '.', '..' or 'index'",
            USAGE,
        )


def _say(invocation: Invocation, key: SessionKey, text: str) -> None:
    if invocation.json:
        print_json(_name(key))
    else:
        click.echo(text)


def _name(key: SessionKey) -> dict[str, Any]:
    return {
        "session": key.session,
        "agent": key.agent,
        "scope": key.scope,
        "owner": key.owner,
        "space": key.space,
    }


def _place(key: SessionKey) -> str:
    return f"space {key.space}" if key.scope == "shared" else user(key.owner)


def _row(summary: Summary) -> dict[str, Any]:
    told = summary.told
    return {
        **_name(summary.key),
        "state": told.state,
        "messages": told.messages,
        "created_at": told.created_at or None,
        "updated_at": told.updated_at or None,
        "cwd": told.cwd,
        "model": told.model,
        "client": told.client,
        "size": summary.size,
        "in_use": summary.in_use,
    }


def _proof(verdict: Verdict) -> dict[str, Any]:
    return {
        "sound": verdict.why is None,
        "first_seq": verdict.first,
        "head_seq": verdict.head,
        "proved_bytes": verdict.end,
        "size": verdict.size,
        "why": verdict.why,
    }


def _details(details: Details) -> dict[str, Any]:
    return {**_row(details.summary), **_proof(details.verdict), "path": details.path}
