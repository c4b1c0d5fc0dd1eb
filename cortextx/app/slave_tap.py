"""`twistd cortex-slave`: agent sessions as a service.

Starting takes, in this order: the state directory's lock, the journals' threads, the
socket, the address file. Whatever of it fails ends the process with a message on
stderr and exit code 1. Sessions are opened when somebody asks for them.
"""

from __future__ import annotations

import grp
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python import usage

from cortextx.app.config import blamed, load, state_dir
from cortextx.app.process import (
    end_process,
    keep_steady_time,
    misconfigured,
    raise_file_limit,
    share_the_lock,
    tell_systemd,
    tune_memory,
)
from cortextx.app.statedir import StateDir
from cortextx.core.names import is_name
from cortextx.errors import ConfigError, CortexError
from cortextx.interaction import v1
from cortextx.interaction.data import DEFAULT_LIMITS, Limits
from cortextx.interaction.slave.live import Agent, LiveSettings
from cortextx.interaction.slave.policy import RulePolicy, Rules
from cortextx.interaction.slave.service import SlaveService, SlaveSettings
from cortextx.interfaces.sessions import IAgentRuntime
from cortextx.runtimes.echo import EchoRuntime, EchoSettings
from cortextx.stores.journal import FileJournals

PLUGIN = "cortex-slave"
SOCKET = "slave.sock"
SESSIONS = "sessions"
STOP_SECONDS = 20.0
"""How long one step of stopping may take before it is given up."""


class AgentTable(EchoSettings, frozen=True, kw_only=True, tag_field="runtime", tag="echo"):
    """`[agents.NAME]`. `root` is where its runs may work (S1)."""

    root: str = "/"


class SlaveTable(Struct, frozen=True, kw_only=True):
    """`[slave]`. Times are seconds; `socket_mode` is octal, as "0660"."""

    socket: str | None = None
    socket_mode: str = "0600"
    socket_group: str | None = None
    policy: str | None = None
    default_agent: str | None = None
    v1_form: v1.Form = "both"
    slow_seconds: float = 10.0
    idle_seconds: float = 60.0
    approval_seconds: float = 600.0
    max_connections: int = 1024


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
    agents: dict[str, AgentTable] = msgspec.field(default_factory=lambda: {"echo": AgentTable()})


class Options(usage.Options):
    """The options; they win over the environment, and that over the file."""

    synopsis = "[options]"
    longdesc = (
        "Keeps the sessions of AI agents and serves them to terminals, web and channel hosts."
        " Settings come from a TOML file, from CORTEXTX_SLAVE_… variables, and from here."
    )
    optParameters = [
        ["state-dir", "d", None, "Where everything is kept (or CORTEXTX_STATE_DIR)"],
        ["config", "c", None, "TOML file [default: STATE_DIR/cortex-slave.toml if it is there]"],
        ["socket", "s", None, "The Unix socket [default: STATE_DIR/run/slave.sock]"],
    ]
    optFlags = [["check", None, "Check the configuration, say so, and exit"]]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.environ = os.environ if environ is None else environ

    def postOptions(self) -> None:
        """Load and check the settings; raises usage.UsageError."""
        origins: dict[str, str] = {}
        try:
            directory = StateDir(state_dir(self["state-dir"], self.environ))
            default = directory.config_file(PLUGIN)
            where = self["config"] or default
            settings = load(
                Settings,
                path=self["config"],
                default_path=default,
                environ=self.environ,
                overrides={"slave.socket": self["socket"]},
                origins=origins,
            )
            check(settings, where)
            if self["check"]:
                directory.check()
        except ConfigError as error:
            raise misconfigured(PLUGIN, blamed(error, origins), self) from None
        self["directory"], self["settings"], self["where"] = directory, settings, where
        if self["check"]:
            print(f"{PLUGIN}: the configuration is good")
            raise SystemExit(0)


def makeService(options: Options, reactor: Any = None) -> SlaveProcess:
    """The service; it opens nothing before it is started."""
    if reactor is None:
        from twisted.internet import reactor

        keep_steady_time(reactor)
    return SlaveProcess(reactor, options["directory"], options["settings"], options["where"])


def check(settings: Settings, where: str) -> None:
    """What types do not say; raises ConfigError."""
    if not settings.agents:
        raise ConfigError(where, "agents", "at least one [agents.NAME]")
    for name in settings.agents:
        if not is_name(name):
            raise ConfigError(where, f"agents.{name}", "letters, digits, '.', '_' and '-'")
    chosen = settings.slave.default_agent
    if chosen is not None and chosen not in settings.agents:
        raise ConfigError(where, "slave.default_agent", "one of the agents")
    for name in settings.limits.__struct_fields__:
        if getattr(settings.limits, name) < 1:
            raise ConfigError(where, f"limits.{name}", "a number above 0")
    socket_mode(settings.slave, where)
    socket_group(settings.slave, where)
    rules_of(settings.slave)


def default_agent(settings: Settings) -> str:
    """Who serves v1 requests that name nobody (I24): as configured, `echo`, or the first."""
    chosen = settings.slave.default_agent
    if chosen is not None:
        return chosen
    return "echo" if "echo" in settings.agents else next(iter(settings.agents))


def socket_mode(table: SlaveTable, where: str) -> int:
    """The socket's mode as a number; raises ConfigError."""
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
    """The policy file's rules (I15); raises ConfigError."""
    return Rules() if table.policy is None else load(Rules, path=table.policy)


def runtime_of(reactor: Any, table: AgentTable) -> IAgentRuntime:
    """The runtime that a table asks for."""
    runtime: IAgentRuntime = EchoRuntime(reactor, table)
    return runtime


class SlaveProcess(Service):
    """The whole slave in one state directory.

    `started` fires once the socket accepts; `fail` is called with the reason of a
    failed start, by default to end the process.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        directory: StateDir,
        settings: Settings,
        where: str,
        *,
        fail: Callable[[Any, str], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._directory = directory
        self._settings = settings
        self._where = where
        self._fail = partial(end_process, PLUGIN) if fail is None else fail
        self._starting: Deferred[None] | None = None
        self._undo: list[tuple[str, Callable[[], Any]]] = []
        self._policy: RulePolicy | None = None
        self.started: Deferred[None] = Deferred()

    def startService(self) -> None:
        super().startService()
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._start_failed)
        self._starting.addErrback(lambda failure: self.log.failure("starting failed", failure))

    def stopService(self) -> Deferred[None]:
        """Stop all that was started, the newest first; fires when it is done."""
        super().stopService()
        tell_systemd("STOPPING=1")
        starting, self._starting = self._starting, None
        if starting is not None and not starting.called:
            starting.cancel()
        return Deferred.fromCoroutine(self._undo_all())

    async def _start(self) -> None:
        directory, table = self._directory, self._settings.slave
        raise_file_limit()
        tune_memory()
        share_the_lock()
        directory.prepare(SESSIONS)
        directory.lock(PLUGIN)
        self._undo.append(("the lock", lambda: directory.unlock(PLUGIN)))
        journals = FileJournals(self._reactor, directory.join(SESSIONS))
        journals.start()
        self._undo.append(("the journals", journals.stop))
        agents = {
            name: Agent(runtime_of(self._reactor, agent), agent.root)
            for name, agent in self._settings.agents.items()
        }
        self._policy = RulePolicy(os.geteuid(), agents, rules_of(table).allow)
        path = table.socket or directory.join("run", SOCKET)
        service = SlaveService(
            self._reactor,
            path,
            agents,
            journals.journal,
            self._policy,
            slave_settings(self._settings, self._where),
        )
        service.startService()
        self._undo.append(("the slave", service.stopService))
        before = signal.signal(signal.SIGHUP, self._hung_up)
        self._undo.append(("the signal", lambda: signal.signal(signal.SIGHUP, before)))
        directory.write_address(PLUGIN, path)
        self._undo.append(("the address", lambda: directory.remove_address(PLUGIN)))
        self.log.info("{plugin} serves {path}", plugin=PLUGIN, path=path)
        self.started.callback(None)
        tell_systemd("READY=1")

    def _hung_up(self, number: int, frame: object) -> None:
        """SIGHUP reads the policy file again (I15)."""
        self._reactor.callFromThread(self._reload)

    def _reload(self) -> None:
        try:
            rules = rules_of(self._settings.slave)
        except ConfigError as error:
            self.log.warn("SIGHUP: the rules stay as they are: {why}", why=error)
            return
        if self._policy is not None:
            self._policy.replace(rules.allow)
            self.log.info("SIGHUP: {count} rules", count=len(rules.allow))

    async def _undo_all(self) -> None:
        undo, self._undo = self._undo[::-1], []
        for what, step in undo:
            done = maybeDeferred(step)
            done.addTimeout(STOP_SECONDS, self._reactor)
            try:
                await done
            except Exception:
                self.log.failure("{what} could not be stopped cleanly", what=what)

    def _start_failed(self, failure: Any) -> Deferred[None]:
        if failure.check(CancelledError):
            # Stopped while it started.
            return Deferred.fromCoroutine(self._undo_all())
        if isinstance(failure.value, CortexError):
            message = str(failure.value)
        else:
            self.log.failure("the slave cannot start", failure)
            message = f"the slave cannot start: {failure.value}"
        return Deferred.fromCoroutine(self._give_up(message))

    async def _give_up(self, message: str) -> None:
        await self._undo_all()
        if self.running:
            self._fail(self._reactor, message)


def slave_settings(settings: Settings, where: str) -> SlaveSettings:
    """The settings as the service takes them."""
    table = settings.slave
    return SlaveSettings(
        default_agent=default_agent(settings),
        form=table.v1_form,
        limits=settings.limits.limits(),
        slow_seconds=table.slow_seconds,
        max_connections=table.max_connections,
        mode=socket_mode(table, where),
        group=socket_group(table, where),
        live=LiveSettings(idle_seconds=table.idle_seconds, approval_seconds=table.approval_seconds),
    )
