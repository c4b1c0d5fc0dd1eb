"""`cortextx up` and `cortextx down`: a server and an agent on this machine, in one step."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from cortextx.app.cli import processes
from cortextx.app.cli.client import calling
from cortextx.app.cli.enroll import enrol_agent, identity_files, is_enrolled, server_of
from cortextx.app.cli.faults import USAGE, Fault, NotReachable, Refused
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.processes import AGENT, SERVER, Place
from cortextx.app.cli.remembered import (
    Remembered,
    configured_listen,
    recall,
    remember,
    server_belongs_here,
)
from cortextx.app.cli.terminal import print_json
from cortextx.fleet.contract import Code
from cortextx.fleet.invitation import read_invitation

POLL = 0.05
"""Seconds between two looks at what we wait for."""
STOP_SECONDS = 30.0
"""How long `down` waits for a process to end."""
_ENDPOINT = re.compile(r"\btcp[46]?:(\d+)")


class TokenNotKnown(Fault):
    """The server answers the agent's token with -32001."""


FATAL = ("fatal_auth", "revoked")
"""States of an agent's link that no waiting mends (F34)."""


@click.command(
    epilog="""\b
Examples:
  cortextx up
  cortextx --state-dir /tmp/try up --listen tcp:0:interface=127.0.0.1"""
)
@click.option(
    "--listen", metavar="ENDPOINT",
    help="Where a server that is started listens; kept for the next time, if no configuration"
    " says it.",
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(1), default=60.0, show_default=True, metavar="SECS",
    help="How long to wait for the server, and then for the agent.",
)  # fmt: skip
@json_option
@pass_invocation
def up(invocation: Invocation, listen: str | None, wait: float) -> None:
    """Start a server and an agent on this machine, and enrol the agent.

    What runs already is left alone, what has died is started again: it is safe
    to call at any time. `cortextx down` stops both. On a host that is enrolled
    for another server only the agent is started. With --json: one object.
    """
    say = _to_stderr if invocation.json else click.echo
    done: dict[str, Any] = {"state_dir": invocation.state_dir, "server": None, "enrolled": None}
    directory = invocation.state_dir
    server, agent = Place(directory, SERVER), Place(directory, AGENT)
    with _alone(directory):
        note = recall(directory)
        here = listen is not None or server_belongs_here(directory, note)
        if here or processes.running_pid(server) is not None:
            note = _server_up(invocation, server, listen, note, wait)
            say(f"server   {_runs(server)}, listens on {server.address()}")
            done["server"] = {"pid": processes.running_pid(server), "address": server.address()}
            if not is_enrolled(directory):
                host, note = _enrol_this_host(invocation, directory, note)
                say(f"enrolled this host as {host}")
                done["enrolled"] = host
            else:
                note = _follow_server(directory, note)
            remember(directory, note)
        else:
            say("server   none here: this host is enrolled for another (--listen starts one)")
        child = _ensure(agent) or _renew(invocation, agent)
        try:
            state = _await_agent(invocation, agent, child, wait)
        except TokenNotKnown:
            if not done["server"] or note.enrolled != server_of(directory):
                raise
            done["enrolled"] = _enrol_again(invocation, directory)
            say(f"enrolled {done['enrolled']} again: the server did not know its token")
            child = _renew(invocation, agent)
            state = _await_agent(invocation, agent, child, wait)
        say(f"agent    {_runs(agent)}, {state}, sends to {server_of(directory)}")
        done["agent"] = {
            "pid": processes.running_pid(agent), "state": state, "url": server_of(directory),
        }  # fmt: skip
    say(f"state    {directory}")
    if invocation.json:
        print_json(done)
        return
    call = f"{calling(directory)}"
    looks = ["agent list", "search error --since 1h", "tail -f"] if done["server"] else []
    tries = "".join(f"\n  {call} {look}" for look in looks or ["agent status"])
    click.echo(f"\nTry next:{tries}")


@click.command(
    epilog="""\b
Example:
  cortextx down"""
)
@pass_invocation
def down(invocation: Invocation) -> None:
    """Stop what `cortextx up` started: the agent, then the server. Nothing is lost."""
    directory = invocation.state_dir
    if not os.path.isdir(os.path.join(directory, "run")):
        click.echo(f"nothing runs on {directory}")
        return
    nothing = _nothing_runs(directory)
    with _alone(directory):
        left = [
            place for name in (AGENT, SERVER) if _stop(invocation, place := Place(directory, name))
        ]
    if left:
        raise Fault(
            "still running: " + ", ".join(place.plugin for place in left),
            "stop what `cortextx up` did not start in the way it was started",
        )
    if nothing:
        click.echo(f"nothing runs on {directory}")


def _nothing_runs(directory: str) -> bool:
    return all(processes.running_pid(Place(directory, name)) is None for name in (AGENT, SERVER))


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Hold the lock that keeps two `up` or `down` of one state directory apart."""
    run = os.path.join(directory, "run")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.makedirs(run, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(run, "up.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        above = directory
        while not os.path.exists(os.path.dirname(above)):
            above = os.path.dirname(above)
        missing = "" if os.path.exists(above) or above == directory else f"{above} is missing: "
        raise Fault(
            f"{directory} cannot be used: {missing}{error.strerror}",
            "name a directory of your own with --state-dir",
            USAGE,
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Fault(
            "another `cortextx up` or `cortextx down` is at work here", "try again when it is done"
        ) from None
    else:
        yield
    finally:
        os.close(lock)


def _runs(place: Place) -> str:
    return f"runs (pid {processes.running_pid(place)})"


def _ensure(place: Place, *options: str) -> subprocess.Popen[bytes] | None:
    """Start the plugin unless it runs; answers our child, or None."""
    if processes.running_pid(place) is not None:
        return None
    click.echo(f"starting {place.plugin} …", err=True)
    return processes.start(place, *options)


def _await(
    invocation: Invocation,
    place: Place,
    child: subprocess.Popen[bytes] | None,
    wait: float,
    what: str,
    ready: Callable[[], Any],
) -> Any:
    """Look until `ready` answers something; raises Fault if the process dies or time is up."""
    for _ in range(int(wait / POLL) + 1):
        answer = ready()
        if answer:
            return answer
        if child is not None and child.poll() is not None:
            processes.forget(place)
            _say_if_taken(place)
            raise Fault(
                f"{place.plugin} ended at once (exit {child.returncode}); its last words:\n"
                f"{processes.last_words(place)}",
                f"mend that, then try again; all it said is in {os.path.dirname(place.log)}",
            )
        invocation.sleep(POLL)
    raise Fault(
        f"{place.plugin} {what} within {wait:.0f} s",
        f"it goes on trying; {place.log} says more, `cortextx up` waits again",
    )


def _say_if_taken(place: Place) -> None:
    """Raise the Fault that says it in a line, if an address in use is what ended the process."""
    words = processes.last_words(place)
    if "Address already in use" not in words:
        return
    found = _ENDPOINT.findall(words)
    port = found[-1] if found else None
    raise Fault(
        f"{place.plugin} cannot listen: {f'port {port}' if port else 'its address'} is in use",
        "`cortextx up --listen tcp:PORT:interface=127.0.0.1` with another port (0: any free"
        f" one), or stop what holds {port or 'it'}",
    )


def _server_up(
    invocation: Invocation, place: Place, listen: str | None, note: Remembered, wait: float
) -> Remembered:
    """Have the server run; answers the note with what it was told and where it is."""
    directory = place.directory
    if listen is not None and processes.running_pid(place) is not None:
        if listen != note.listen:
            click.echo(
                f"{place.plugin} runs already: --listen is for one that is started;"
                f" `{calling(directory)} down` first",
                err=True,
            )
        listen = note.listen
    elif listen is None and not configured_listen(directory, os.environ):
        listen = note.listen
    child = _ensure(place, *(("--listen", listen) if listen else ()))
    ping = _await_server(invocation, place, child, wait)
    urls = [ping.get("local_url"), ping.get("public_url")]
    return Remembered(listen or note.listen, tuple(str(url) for url in urls if url), note.enrolled)


def _follow_server(directory: str, note: Remembered) -> Remembered:
    """Where `up` wrote the agent's URL, let it be the one that the server has now."""
    files = identity_files(directory)
    enrolment = files.load_enrolment()
    if enrolment is None or enrolment.url != note.enrolled or not note.urls:
        return note
    if enrolment.url in note.urls:
        return note
    files.move(note.urls[0])
    click.echo(f"the server was at {enrolment.url}, it is at {note.urls[0]} now", err=True)
    return msgspec.structs.replace(note, enrolled=note.urls[0])


def _renew(invocation: Invocation, place: Place) -> subprocess.Popen[bytes] | None:
    """Let an agent that runs already use the enrolment as it is now (F34).

    One that waits, or was refused, tries at once with the token of today. One
    that began as another host or for another server is started again.
    """
    try:
        with invocation.agent() as agent:
            agent.call("retry")
    except Refused as error:
        if error.code != "not_enrolled":
            return None
    except NotReachable:
        return None
    else:
        return None
    pid = processes.running_pid(place)
    if pid is not None and not processes.started_here(place, pid):
        raise Fault(
            f"{place.plugin} (pid {pid}) began with another enrolment, and `cortextx up` did not"
            " start it",
            "start it again in the way it was started",
        )
    if _stop(invocation, place, quiet=True):
        raise Fault(f"{place.plugin} does not stop", "end it, then try again")
    return _ensure(place)


def _await_server(
    invocation: Invocation, place: Place, child: subprocess.Popen[bytes] | None, wait: float
) -> dict[str, Any]:
    def ready() -> dict[str, Any] | None:
        if place.address() is None:
            return None
        try:
            with invocation.server() as server:
                return server.one("ping")
        except (NotReachable, Refused):
            return None

    found: dict[str, Any] = _await(
        invocation, place, child, wait, "did not accept connections", ready
    )
    return found


def _await_agent(
    invocation: Invocation, place: Place, child: subprocess.Popen[bytes] | None, wait: float
) -> str:
    last = ""
    directory = place.directory

    def ready() -> str | None:
        nonlocal last
        try:
            with invocation.agent() as agent:
                status = agent.one("status")
        except (NotReachable, Refused):
            return None
        state = link_state(status)
        if state in FATAL:
            reason = status.get("reason") or status.get("last_error") or "refused"
            refused = TokenNotKnown if str(Code.AUTH_FAILED.value) in str(reason) else Fault
            raise refused(
                f"the server refuses this agent ({state}): {reason}",
                _again(directory),
            )
        if state and state != last:
            click.echo(f"  {place.plugin}: {state}", err=True)
            last = state
        return "connected" if state == "active" else None

    found: str = _await(invocation, place, child, wait, "did not connect", ready)
    return found


def _again(directory: str) -> str:
    """How to enrol a host anew that its server knows (F29)."""
    try:
        with open(identity_files(directory).path("host_id"), encoding="utf-8") as file:
            host_id = file.read(64).strip()
    except OSError:
        host_id = "UUID"
    call = f"{calling(directory)} agent"
    return (
        f"enrol it anew: `{call} issue --host NAME --host-id {host_id}`, "
        f"then `{call} enroll --force`"
    )


def link_state(status: dict[str, Any]) -> str:
    """The state of the agent's link out of its status, in lower case."""
    return str(status.get("state") or "").lower()


def _enrol_this_host(
    invocation: Invocation, directory: str, note: Remembered
) -> tuple[str, Remembered]:
    """Only a host that never was enrolled: a token that a server refused is not replaced.

    The agent gets the server's address on this machine, not the one for other hosts.
    """
    if os.path.exists(identity_files(directory).path("host_id")):
        raise Fault(
            "this host was enrolled before, and has no token any more",
            _again(directory),
        )
    host = _host_name()
    with invocation.server() as server:
        made = server.one("agent.issue", name=host)
    invitation = read_invitation(str(made["invitation"]))
    url = note.urls[0] if note.urls else invitation.url
    enrol_agent(directory, dataclasses.replace(invitation, url=url), None, force=False)
    return host, msgspec.structs.replace(note, enrolled=url)


def _enrol_again(invocation: Invocation, directory: str) -> str:
    """Give the host that `up` enrolled at this machine's own server a fresh token (F29).

    A first hello whose answer is lost, with the machine's power for instance,
    spends the one-time token and delivers nothing, and the contract grants it
    no second one (§3.5). Only -32001 is mended so: a host that was revoked, or
    whose token was told to expire, was refused on purpose.
    """
    files = identity_files(directory)
    with open(files.path("host_id"), encoding="utf-8") as file:
        host_id = file.read(64).strip()
    with invocation.server() as server:
        try:
            host = str(server.one("agent.show", host=host_id)["name"])
        except Refused as error:
            if error.code != "not_found":
                raise
            host = _host_name()
        made = server.one("agent.issue", name=host, host_id=host_id)
    invitation = read_invitation(str(made["invitation"]))
    url = server_of(directory) or invitation.url
    enrol_agent(directory, dataclasses.replace(invitation, url=url), None, force=True)
    return host


def _host_name() -> str:
    return re.sub(r"[^\w.:@-]", "-", socket.gethostname()).lstrip("_.:@-") or "localhost"


def _stop(invocation: Invocation, place: Place, quiet: bool = False) -> bool:
    """Stop one process if `up` started it; answers whether it still runs."""
    pid = processes.running_pid(place)
    if pid is None:
        processes.forget(place)
        return False
    if not processes.started_here(place, pid):
        click.echo(f"{place.plugin} (pid {pid}) was not started by `cortextx up`", err=True)
        return True
    processes.terminate(pid)
    for _ in range(int(STOP_SECONDS / POLL)):
        if processes.running_pid(place) is None:
            processes.forget(place)
            if not quiet:
                click.echo(f"{place.plugin} (pid {pid}) stopped")
            return False
        invocation.sleep(POLL)
    click.echo(f"{place.plugin} (pid {pid}) did not stop within {STOP_SECONDS:.0f} s", err=True)
    return True
