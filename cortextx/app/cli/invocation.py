"""What one call of the command line works with; tests put their own in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from cortextx.app.cli.client import Client, agent_client, server_client
from cortextx.app.config import state_dir
from cortextx.errors import ConfigError


@dataclass
class Remote:
    """A server on another machine (F39): its URL, and the files of the token and of its CA."""

    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """Once it was read: standard input can be read but once."""


@dataclass
class Invocation:
    """The global options, and the ways to the outside. Times are seconds of the wall clock."""

    state_dir_option: str | None = None
    json: bool = False
    remote: Remote = field(default_factory=Remote)
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
        """The server, on this machine or where --server says; raises NotReachable, Fault."""
        if self.remote.url is not None:
            from cortextx.app.cli.remote import connect

            return connect(self.remote)
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


def remote_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command ask a server on another machine, by its HTTP API (F39)."""

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(ctx.ensure_object(Invocation).remote, _REMOTE[param.name or ""], value)

    options = (
        click.option(
            "--server", metavar="URL", expose_value=False, callback=remember,
            help="Ask the server at https://HOST:PORT instead of the one on this machine.",
        ),
        click.option(
            "--token-file", metavar="F", expose_value=False, callback=remember,
            help="With --server: a file with a token of `cortextx server token add`; - is stdin.",
        ),
        click.option(
            "--ca-file", metavar="F", expose_value=False, callback=remember,
            help="With --server: trust the CA in this PEM file, instead of the system's.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


_REMOTE = {"server": "url", "token_file": "token_file", "ca_file": "ca_file"}
