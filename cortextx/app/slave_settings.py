"""The settings of `twistd cortex-slave`, and what is checked of them beyond their types.

docs/slave.md lists them; what an agent's runtime takes is in docs/runtimes.md.
"""

from __future__ import annotations

import grp
import os
import stat

import msgspec
from msgspec import Struct

from cortextx.app.config import load
from cortextx.core.names import is_name
from cortextx.errors import ConfigError
from cortextx.interaction import v1
from cortextx.interaction.data import DEFAULT_LIMITS, Limits
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.slave.policy import Rules
from cortextx.runtimes.echo import EchoSettings
from cortextx.runtimes.settings import ExecSettings, ModelSettings

MIB = 1024 * 1024
MOST = 1_000_000_000
"""More than anybody means; infinity is none of ours."""


class EchoAgent(
    EchoSettings, frozen=True, kw_only=True, tag_field="runtime", tag="echo",
    forbid_unknown_fields=True,
):  # fmt: skip
    """An `[agents.NAME]` that repeats. `root` is where its runs may work (S1)."""

    root: str = "/"


class ExecAgent(
    ExecSettings, frozen=True, kw_only=True, tag_field="runtime", tag="exec",
    forbid_unknown_fields=True,
):  # fmt: skip
    """An `[agents.NAME]` that is a command. `root` is where its runs may work (S1)."""

    root: str = "/"


class ModelAgent(
    ModelSettings, frozen=True, kw_only=True, tag_field="runtime", tag="model",
    forbid_unknown_fields=True,
):  # fmt: skip
    """An `[agents.NAME]` that is a model. `root` is where its tools may work (S1)."""

    root: str = "/"


AgentTable = EchoAgent | ExecAgent | ModelAgent


class SlaveTable(Struct, frozen=True, kw_only=True):
    """`[slave]`. Times are seconds; `socket_mode` is octal, as "0660".

    Without a mode it is as open as the policy file needs it (I15). Of a session's log
    that has grown beyond `session_mib` the oldest quarter goes (I38); 0 keeps all.
    """

    socket: str | None = None
    socket_mode: str | None = None
    socket_group: str | None = None
    policy: str | None = None
    default_agent: str | None = None
    v1_form: v1.Form = "both"
    slow_seconds: float = 10.0
    idle_seconds: float = 60.0
    approval_seconds: float = 600.0
    max_connections: int = 1024
    max_sessions: int = 1024
    session_mib: int = 1024


class LimitsTable(Struct, frozen=True, kw_only=True):
    """`[limits]`: what welcome says (I16)."""

    max_attachments: int = DEFAULT_LIMITS.max_attachments
    max_pending_requests: int = DEFAULT_LIMITS.max_pending_requests_per_attachment
    max_pending_commands: int = DEFAULT_LIMITS.max_pending_commands_per_attachment
    max_unacked_events: int = DEFAULT_LIMITS.max_unacked_events_per_attachment
    max_attachment_bytes: int = DEFAULT_LIMITS.max_outbound_bytes_per_attachment
    max_connection_bytes: int = DEFAULT_LIMITS.max_outbound_bytes_per_connection
    max_replay_events: int = DEFAULT_LIMITS.max_replay_events_per_batch

    def limits(self) -> Limits:
        """As a connection takes them."""
        return Limits(
            max_attachments=self.max_attachments,
            max_pending_requests_per_attachment=self.max_pending_requests,
            max_pending_commands_per_attachment=self.max_pending_commands,
            max_unacked_events_per_attachment=self.max_unacked_events,
            max_outbound_bytes_per_attachment=self.max_attachment_bytes,
            max_outbound_bytes_per_connection=self.max_connection_bytes,
            max_replay_events_per_batch=self.max_replay_events,
        )


class Settings(Struct, frozen=True, kw_only=True):
    """The whole file; without one there is one agent, `echo`."""

    slave: SlaveTable = SlaveTable()
    limits: LimitsTable = LimitsTable()
    agents: dict[str, AgentTable] = msgspec.field(default_factory=lambda: {"echo": EchoAgent()})


def check(settings: Settings, where: str) -> None:
    """What types do not say; raises ConfigError. The policy file is read."""
    if not settings.agents:
        raise ConfigError(where, "agents", "at least one [agents.NAME]")
    for name, agent in settings.agents.items():
        if not is_name(name):
            raise ConfigError(where, f"agents.{name}", "letters, digits, '.', '_' and '-'")
        if not os.path.isabs(agent.root) or not os.path.isdir(agent.root):
            expected = f"the absolute path of a directory, not {agent.root!r}"
            raise ConfigError(where, f"agents.{name}.root", expected)
    table = settings.slave
    if table.default_agent is not None and table.default_agent not in settings.agents:
        known = ", ".join(settings.agents)
        raise ConfigError(where, "slave.default_agent", f"one of the agents ({known})")
    for name in ("slow_seconds", "approval_seconds", "max_connections", "max_sessions"):
        if not 0 < getattr(table, name) <= MOST:
            raise ConfigError(where, f"slave.{name}", "a number above 0")
    for name in ("idle_seconds", "session_mib"):
        if not 0 <= getattr(table, name) <= MOST:
            raise ConfigError(where, f"slave.{name}", "a number not below 0")
    for name in settings.limits.__struct_fields__:
        if getattr(settings.limits, name) < 1:
            raise ConfigError(where, f"limits.{name}", "a number above 0")
    for name, frames in (("max_attachment_bytes", 1), ("max_connection_bytes", 2)):
        least = frames * MAX_FRAME_BYTES  # less could never carry a fact of the longest kind
        if getattr(settings.limits, name) < least:
            raise ConfigError(where, f"limits.{name}", f"at least {least}")
    socket_group(table, where)
    socket_mode(table, rules_of(table), where)


def default_agent(settings: Settings) -> str:
    """Who serves v1 requests that name nobody (I24): as configured, `echo`, or the first."""
    chosen = settings.slave.default_agent
    if chosen is not None:
        return chosen
    return "echo" if "echo" in settings.agents else next(iter(settings.agents))


def socket_mode(table: SlaveTable, rules: Rules, where: str) -> int:
    """The socket's mode as a number; raises ConfigError.

    Without a setting: its owner's alone, or with rules for others also the group's,
    or everybody's where no group is named; then the rules decide (I15).
    """
    if table.socket_mode is None:
        if not rules.allow:
            return 0o600
        return 0o666 if table.socket_group is None else 0o660
    if table.socket_mode not in ("0600", "0660", "0666"):
        raise ConfigError(where, "slave.socket_mode", 'one of "0600", "0660", "0666"')
    return int(table.socket_mode, 8)


def socket_group(table: SlaveTable, where: str) -> int | None:
    """The group's GID; raises ConfigError if there is none of the name."""
    if table.socket_group is None:
        return None
    try:
        return grp.getgrnam(table.socket_group).gr_gid
    except KeyError:
        raise ConfigError(where, "slave.socket_group", "a group of this machine") from None


def rules_of(table: SlaveTable) -> Rules:
    """The policy file's rules (I15); raises ConfigError.

    The file must be this user's or root's, and nobody else's to write.
    """
    if table.policy is None:
        return Rules()
    rules = load(Rules, path=table.policy)
    found = os.stat(table.policy)
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o022:
        expected = "a file that only its owner can write to, who is root or the slave's user"
        raise ConfigError(table.policy, "policy", expected)
    for index, rule in enumerate(rules.allow):
        if rule.scope == "shared" and not rule.spaces:
            raise ConfigError(table.policy, f"allow[{index}].spaces", 'spaces, or ["*"] for all')
        if rule.delegate and (rule.scope == "shared" or not rule.owners):
            expected = "owners whom a peer may act for, in scope private or temp"
            raise ConfigError(table.policy, f"allow[{index}].owners", expected)
    return rules
