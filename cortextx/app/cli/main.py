"""`cortextx`: the global options, which module has which command, and the exit codes.

A command's module is imported when the command is used, and none imports
Twisted: a one-shot command starts in a fraction of a second.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import click

from cortextx.app.cli.faults import EXIT_CODES, INTERRUPTED, USAGE, Fault
from cortextx.app.cli.invocation import Invocation
from cortextx.errors import ConfigError

COMMANDS = {
    "up": "cortextx.app.cli.up:up",
    "down": "cortextx.app.cli.up:down",
    "search": "cortextx.app.cli.search:search",
    "tail": "cortextx.app.cli.tail:tail",
    "probe": "cortextx.app.cli.probe:probe",
    "audit": "cortextx.app.cli.audit:audit",
    "agent": "cortextx.app.cli.agent:agent",
    "config": "cortextx.app.cli.config:config",
    "doctor": "cortextx.app.cli.doctor:doctor",
    "reload": "cortextx.app.cli.reload:reload",
    "server": "cortextx.app.cli.server:server",
    "chat": "cortextx.app.cli.chat:chat",
    "session": "cortextx.app.cli.session:session",
    "conformance": "cortextx.app.cli.conformance:conformance",
}


class LazyGroup(click.Group):
    """A group whose commands are imported by name when they are wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, name = target.split(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"cortextx {version('cortextx')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--state-dir",
    metavar="DIR",
    help="Where the server and the agent on this machine keep everything. Default: "
    "$CORTEXTX_STATE_DIR, else /var/lib/cortextx for root and ~/.local/state/cortextx for others.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in every command that lists.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Print the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(ctx: click.Context, state_dir: str | None, as_json: bool) -> None:
    """Logs of your hosts, and sessions with your agents.

    \b
    Start a server and an agent on this machine, then look at its logs:
      cortextx up
      cortextx search error --since 1h
      cortextx tail -f

    \b
    Start a session slave, then talk to its agent:
      twistd -n cortex-slave
      cortextx chat
    """
    invocation = ctx.ensure_object(Invocation)
    invocation.state_dir_option = state_dir
    invocation.json = as_json


def run(args: list[str] | None = None, obj: Any = None) -> int:
    """Carry out a command line; answers its exit code and raises nothing."""
    try:
        answer = cli.main(args=args, prog_name="cortextx", standalone_mode=False, obj=obj)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Fault as fault:
        say(fault.message, fault.hint)
        return fault.exit_code
    except ConfigError as error:
        say(str(error))
        return USAGE
    return answer if isinstance(answer, int) else 0


def say(message: str, hint: str | None = None) -> None:
    """Tell the user on stderr what is wrong, and what to do next."""
    from cortextx.app.cli.terminal import escaped

    # Line by line: a message may quote what a process wrote.
    shown = "\n".join(map(escaped, message.split("\n")))
    click.echo(f"cortextx: {shown}", err=True)
    if hint:
        click.echo(f"  next: {escaped(hint)}", err=True)


def main() -> None:
    """The console script."""
    # A reader that goes away (`cortextx search | head`) ends us without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(run())
