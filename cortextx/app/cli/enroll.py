"""`cortextx agent enroll`: give the agent on this machine its server and its token (F40).

Secrets come by prompt, standard input or a file, never in the arguments, which
every user of the machine can read.
"""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from typing import IO

import click

from cortextx.app.cli.client import calling
from cortextx.app.cli.faults import USAGE, Fault, Refused
from cortextx.app.cli.invocation import Invocation, pass_invocation
from cortextx.app.cli.processes import AGENT, Place, running_pid, twistd
from cortextx.app.config import load
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.agent.identity import IdentityFiles
from cortextx.fleet.agent.settings import AgentSettings, check_transport
from cortextx.fleet.invitation import (
    Invitation,
    check_token,
    check_url,
    invitation_in,
    read_invitation,
)
from cortextx.fleet.pin import check_pin
from cortextx.fleet.server.settings import ServerSettings

MAX_SECRET_CHARS = 4096
"""More than that is no token or invitation."""


@click.command(
    epilog="""\b
Examples:
  cortextx agent enroll                          (asks for the invitation)
  cortextx agent enroll --invitation-file invitation.txt
  cortextx agent enroll --url wss://logs.example/ws/agent --token-file token.txt"""
)
@click.option("--url", metavar="URL", help="The server's ws:// or wss:// URL; needs --token-file.")
@click.option(
    "--token-file", type=click.File(), metavar="F", help="A file with the token; - is stdin."
)
@click.option(
    "--ca-pin", metavar="PIN",
    help="The pin of the server's own CA (`cortextx server tls show`), with --url.",
)  # fmt: skip
@click.option("--host-id", metavar="UUID", help="This host's id, where one was decided.")
@click.option(
    "--invitation-file", type=click.File(), metavar="F",
    help="A file with the invitation, or with all that `agent issue` printed, with --json"
    " or without; - is stdin.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an enrolment that is there.")
@pass_invocation
def enroll(
    invocation: Invocation,
    url: str | None,
    token_file: IO[str] | None,
    ca_pin: str | None,
    host_id: str | None,
    invitation_file: IO[str] | None,
    force: bool,
) -> None:
    """Enrol this host: keep the server's URL and the one-time token for the agent.

    The token is used up by the agent's first connection. Without options the
    invitation that `cortextx agent issue` printed is asked for, or read from
    standard input.
    """
    if (url is None) != (token_file is None):
        raise click.UsageError("--url and --token-file belong together")
    if url is not None and invitation_file is not None:
        raise click.UsageError("an invitation has the URL and the token in it already")
    if ca_pin is not None and not (url or "").startswith("wss://"):
        raise click.UsageError("--ca-pin belongs to --url wss://…; an invitation has its own")
    if url is not None and token_file is not None:
        token = check_token(_secret(token_file), "--token-file")
        pin = None if ca_pin is None else check_pin(ca_pin, "--ca-pin")
        invitation = Invitation(check_url(url, "--url"), token, ca_pin=pin)
    else:
        invitation = read_invitation(invitation_in(_invitation(invitation_file)))
    chosen = enrol_agent(invocation.state_dir, invitation, host_id, force)
    click.echo(f"enrolled as {chosen}, for {invitation.url}")
    if running_pid(Place(invocation.state_dir, AGENT)) is not None:
        click.echo(_told_to_retry(invocation), err=True)
        return
    click.echo(
        "start the agent:\n"
        f"  {calling(invocation.state_dir)} up\n"
        f"or, in the foreground or as a service:\n  {foreground(invocation.state_dir)}",
        err=True,
    )


def foreground(directory: str) -> str:
    """The command line that is the agent of a state directory."""
    program = twistd()
    call = [
        program[0] if len(program) == 1 else "twistd",
        "--pidfile=",
        "-n",
        AGENT,
        "--state-dir",
        directory,
    ]
    return shlex.join(call)


def _told_to_retry(invocation: Invocation) -> str:
    """Have the agent that runs connect with its new token (F34); answers what comes of it."""
    call = calling(invocation.state_dir)
    try:
        with invocation.agent() as client:
            client.call("retry")
    except Refused as error:
        if error.code != "not_enrolled":
            return f"the agent runs, but does not try again: {error.message}"
        return (
            "the agent that runs began with another enrolment: restart it, "
            f"as `{call} up` does if it started it"
        )
    except Fault as fault:
        return f"the agent runs, but does not answer: {fault.message}; restart it"
    return f"the agent runs and connects with it now: `{call} agent status` shows what comes of it"


def enrol_agent(directory: str, invitation: Invitation, host_id: str | None, force: bool) -> str:
    """Write the enrolment below DIR/agent; answers the host id.

    A host id that nobody decided is the one that this machine has already, else
    a new one. Raises Fault where an enrolment is there and `force` is not given.
    """
    files = identity_files(directory)
    if host_id is not None:
        host_id = checked_uuid(host_id)
    if host_id and invitation.host_id and host_id != invitation.host_id.lower():
        raise Fault("--host-id is not the id that the invitation is for", None, USAGE)
    if is_enrolled(directory) and not force:
        raise Fault(
            f"this host is enrolled already, for {server_of(directory)}",
            "add --force to replace that enrolment; what is buffered is kept",
        )
    _check_transport(directory, invitation.url)
    chosen = host_id or invitation.host_id
    kept = None if chosen else _own_host_id(directory)
    StateDir(directory).prepare("agent")
    made = files.enrol(invitation.url, invitation.token, chosen or kept, invitation.ca_pin)
    if kept:
        click.echo(
            "this host keeps its id; if its server knows it, the token must be one for it:\n"
            f"  cortextx agent issue --host NAME --host-id {kept}",
            err=True,
        )
    return made


def _check_transport(directory: str, url: str) -> None:
    """Refuse now what the agent would refuse when it starts (F20); raises ConfigError."""
    try:
        check_transport(url, False, "invitation", "url")
    except ConfigError:
        settings = load(
            AgentSettings,
            default_path=StateDir(directory).config_file(AGENT),
            environ=os.environ,
            others=lambda: [ServerSettings],
        )
        if not settings.agent.allow_insecure:
            raise


def identity_files(directory: str) -> IdentityFiles:
    """The agent's files below a state directory."""
    return IdentityFiles(os.path.join(directory, "agent"))


def is_enrolled(directory: str) -> bool:
    """Whether the agent of this state directory has a token."""
    return os.path.exists(identity_files(directory).path("token"))


def server_of(directory: str) -> str:
    """The URL that the agent is enrolled for, in words if only its configuration knows."""
    enrolment = identity_files(directory).load_enrolment()
    return "the server in its configuration" if enrolment is None else enrolment.url


def _own_host_id(directory: str) -> str | None:
    """The id that this very machine was enrolled with before; a copied state's does not count."""
    files = identity_files(directory)
    try:
        with open(files.path("host_id"), encoding="utf-8") as file:
            found = str(uuid.UUID(file.read(64).strip()))
        files.bind()
    except (OSError, ValueError, ConfigError):
        return None
    return found


def _invitation(file: IO[str] | None) -> str:
    if file is not None:
        return _secret(file)
    if sys.stdin.isatty():
        return str(click.prompt("Invitation (it does not show)", hide_input=True, err=True))
    return _secret(sys.stdin)


def _secret(file: IO[str]) -> str:
    try:
        return file.read(MAX_SECRET_CHARS).strip()
    except UnicodeDecodeError:
        raise Fault(f"{file.name} is no text", None, USAGE) from None


def checked_uuid(text: str) -> str:
    """The value of --host-id as a UUID is written; raises Fault."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise Fault(
            "--host-id is no UUID",
            "it looks like 6f1d2a1e-0000-4000-8000-000000000001; `cortextx agent list` shows it",
            USAGE,
        ) from None
