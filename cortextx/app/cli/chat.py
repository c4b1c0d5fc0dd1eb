"""`cortextx chat`: talk to an agent's session, at a terminal or in a pipe."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tomllib

import click

from cortextx.app.cli.agent import example
from cortextx.app.cli.faults import USAGE, Fault
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.session_names import Owner, root_of
from cortextx.app.config import state_dir
from cortextx.app.statedir import StateDir
from cortextx.core.names import is_name

PLUGIN = "cortex-slave"
FIRST_AGENT = "echo"


@click.command(
    epilog=example(
        "cortextx chat",
        "cortextx chat helper --session notes",
        "cortextx chat --observe --session notes",
        "echo hi | cortextx chat --json",
    )
)
@click.argument("agent", required=False)
@click.option("--session", metavar="S", default="default", show_default=True, help="Which one.")
@click.option("--space", metavar="NAME", help="A shared session of this space.")
@click.option("--temp", is_flag=True, help="A temporary session, which leaves no files.")
@click.option("--observe", is_flag=True, help="Look only.")
@click.option(
    "--after", type=click.IntRange(0), metavar="SEQ",
    help="Show first what came after this event; 0 for everything.",
)  # fmt: skip
@click.option("--cwd", metavar="DIR", help="Where the agent is to work.")
@click.option("--socket", metavar="PATH", help="The slave's socket, not the one of --state-dir.")
@click.option(
    "--slave-user", type=Owner(), metavar="USER",
    help="Whom the slave runs as, if that is neither you nor root.",
)  # fmt: skip
@json_option
@pass_invocation
def chat(
    invocation: Invocation,
    /,
    agent: str | None,
    session: str,
    space: str | None,
    temp: bool,
    observe: bool,
    after: int | None,
    cwd: str | None,
    socket: str | None,
    slave_user: int | None,
) -> None:
    """Talk to AGENT in a session, which others may be attached to as well.

    Without AGENT it is the configuration's default_agent, or echo. At a terminal,
    /help shows what can be typed; ^C cancels a run, a second one leaves. What runs
    goes on when you leave. If the slave goes away it is waited for.

    In a pipe all of stdin is one input, stdout gets the answer, and the code is 0 if
    the run completed. With --json each line of stdin is an input, or an object
    ({"input": …}, {"answer": COMMAND_ID, "value": … | "reject": …}, {"cancel": true},
    {"status": true}), and each event a line of stdout. With --observe stdin is not read.
    """
    if space is not None and temp:
        raise click.UsageError("--space and --temp exclude one another")
    directory = invocation.state_dir
    chosen = agent or default_agent(StateDir(directory).config_file(PLUGIN))
    for name in (chosen, session, *([space] if space is not None else [])):
        if not is_name(name):
            raise Fault(
                f"nothing can be called {name!r}",
                "letters, digits, '.', '_' and '-', 128 at most; not '.', '..' or 'index'",
                USAGE,
            )
    from cortextx.app.chat.run import Conversation, Where, run

    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and _can_move_its_cursor()
    code = run(
        Conversation(
            where=Where(
                agent=chosen,
                session=session,
                mode="observe" if observe else "interact",
                space=space,
                temp=temp,
                after=after,
            ),
            socket=socket or slave_socket(directory),
            slave_uids=trusted(directory, slave_user),
            start=f"start one with `{start_with(directory)}`, or name the directory of one that"
            " runs with --state-dir",
            root=root_of(invocation),
            cwd=None if cwd is None else os.path.abspath(cwd),
            look="json" if invocation.json else "terminal" if is_terminal else "text",
        )
    )
    if code:
        click.get_current_context().exit(code)


def _can_move_its_cursor() -> bool:
    return os.environ.get("TERM", "dumb") not in ("", "dumb")


def default_agent(config: str) -> str:
    """The agent that a slave with this configuration file serves without a name (I24)."""
    try:
        with open(config, "rb") as file:
            table = tomllib.load(file)
    except (OSError, ValueError):
        return FIRST_AGENT
    slave, agents = table.get("slave"), table.get("agents")
    chosen = slave.get("default_agent") if isinstance(slave, dict) else None
    if isinstance(chosen, str):
        return chosen
    if not isinstance(agents, dict) or not agents or FIRST_AGENT in agents:
        return FIRST_AGENT
    return str(next(iter(agents)))


def slave_socket(directory: str) -> str:
    """Where the slave of a state directory listens."""
    run = os.path.join(directory, "run")
    try:
        with open(os.path.join(run, f"{PLUGIN}.address"), encoding="utf-8") as file:
            told = file.read().strip()
    except (OSError, ValueError):
        told = ""
    return told or os.path.join(run, "slave.sock")


def trusted(directory: str, slave_user: int | None) -> frozenset[int]:
    """Whose slave is given the user's words: root's, our own, and whom the user named.

    Root, who may look anywhere, trusts whom the state directory belongs to.
    """
    uids = {0, os.geteuid()}
    if slave_user is not None:
        uids.add(slave_user)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            uids.add(os.stat(directory).st_uid)
    return frozenset(uids)


def start_with(directory: str) -> str:
    """The command line that starts a slave on a state directory."""
    if directory == state_dir(None, os.environ):
        return f"twistd -n {PLUGIN}"
    return f"twistd -n {PLUGIN} --state-dir {shlex.quote(directory)}"
