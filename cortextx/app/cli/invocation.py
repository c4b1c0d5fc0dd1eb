"""What one call of the command line works with; tests put their own in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import click

from cortextx.app.cli.client import Client, agent_client, server_client
from cortextx.app.config import state_dir
from cortextx.errors import ConfigError


@dataclass
class Invocation:
    """The global options, and the ways to the outside. Times are seconds of the wall clock."""

    state_dir_option: str | None = None
    json: bool = False
    connect_server: Callable[[str], Client] = server_client
    connect_agent: Callable[[str], Client] = agent_client
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    @property
    def state_dir(self) -> str:
        """The state directory; raises ConfigError."""
        if self.state_dir_option is not None and not self.state_dir_option.strip():
            raise ConfigError("--state-dir", "directory", "a path; it is empty")
        return state_dir(self.state_dir_option, os.environ)

    def server(self) -> Client:
        """A connection to the server; raises NotReachable."""
        return self.connect_server(self.state_dir)

    def agent(self) -> Client:
        """A connection to the agent; raises NotReachable."""
        return self.connect_agent(self.state_dir)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a listing its own --json, which is the same as the global one."""

    def remember(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.ensure_object(Invocation).json = True

    return click.option(
        "--json", is_flag=True, expose_value=False, callback=remember, help="Print JSON."
    )(command)
