"""`cortextx up` and `cortextx down`: a server and an agent on this machine, in one step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import click

from cortextx.app.cli import processes
from cortextx.app.cli.client import calling
from cortextx.app.cli.enroll import enrol_agent, identity_files, is_enrolled, server_of
from cortextx.app.cli.faults import Fault, NotReachable, Refused
from cortextx.app.cli.invocation import Invocation, pass_invocation
from cortextx.app.cli.processes import AGENT, SERVER, Place
from cortextx.fleet.invitation import read_invitation

POLL = 0.05
"""Seconds between two looks at what we wait for."""
STOP_SECONDS = 30.0
"""How long `down` waits for a process to end."""
FATAL = ("fatal_auth", "revoked")
"""States of an agent's link that no waiting mends (F34)."""


@click.command(
    epilog="""\b
Examples:
  cortextx up
  cortextx --state-dir /tmp/try up --listen tcp:0:interface=127.0.0.1"""
)
@click.option("--listen", metavar="ENDPOINT", help="Where a server that is started listens.")
@click.option(
    "--wait", type=click.FloatRange(1), default=60.0, show_default=True, metavar="SECS",
    help="How long to wait for the server, and then for the agent.",
)  # fmt: skip
@pass_invocation
def up(invocation: Invocation, listen: str | None, wait: float) -> None:
    """Start a server and an agent on this machine, and enrol the agent.

    What runs already is left alone, what has died is started again: it is safe
    to call at any time. `cortextx down` stops both.
    """
    directory = invocation.state_dir
    server, agent = Place(directory, SERVER), Place(directory, AGENT)
    with _alone(directory):
        options = ("--listen", listen) if listen else ()
        child = _ensure(server, *options)
        _await_server(invocation, server, child, wait)
        click.echo(f"server   {_runs(server)}, listens on {server.address()}")
        if not is_enrolled(directory):
            host = _enrol_this_host(invocation, directory)
            click.echo(f"enrolled this host as {host}")
        child = _ensure(agent)
        state = _await_agent(invocation, agent, child, wait)
        click.echo(f"agent    {_runs(agent)}, {state}, sends to {server_of(directory)}")
    call = f"{calling(directory)}"
    click.echo(f"state    {directory}")
    click.echo(
        f"\nTry next:\n  {call} agent list\n  {call} search error --since 1h\n  {call} tail -f"
    )


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
    with _alone(directory):
        left = [
            place for name in (AGENT, SERVER) if _stop(invocation, place := Place(directory, name))
        ]
    if left:
        raise Fault(
            "still running: " + ", ".join(place.plugin for place in left),
            "stop what `cortextx up` did not start in the way it was started",
        )


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Hold the lock that keeps two `up` or `down` of one state directory apart."""
    run = os.path.join(directory, "run")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.makedirs(run, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(run, "up.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Fault(
            f"{directory} cannot be used: {error.strerror}",
            "name a directory of your own with --state-dir",
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


def _await_server(
    invocation: Invocation, place: Place, child: subprocess.Popen[bytes] | None, wait: float
) -> None:
    def ready() -> bool:
        if place.address() is None:
            return False
        try:
            with invocation.server() as server:
                server.call("ping")
        except (NotReachable, Refused):
            return False
        return True

    _await(invocation, place, child, wait, "did not accept connections", ready)


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
            raise Fault(
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


def _enrol_this_host(invocation: Invocation, directory: str) -> str:
    """Only a host that never was enrolled: a token that a server refused is not replaced."""
    if os.path.exists(identity_files(directory).path("host_id")):
        raise Fault(
            "this host was enrolled before, and has no token any more",
            _again(directory),
        )
    host = socket.gethostname() or "localhost"
    with invocation.server() as server:
        made = server.one("agent.issue", name=host)
    enrol_agent(directory, read_invitation(str(made["invitation"])), None, force=False)
    return host


def _stop(invocation: Invocation, place: Place) -> bool:
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
            click.echo(f"{place.plugin} (pid {pid}) stopped")
            return False
        invocation.sleep(POLL)
    click.echo(f"{place.plugin} (pid {pid}) did not stop within {STOP_SECONDS:.0f} s", err=True)
    return True
