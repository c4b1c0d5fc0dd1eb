"""`twistd cortex-slave`: agent sessions as a service.

Starting takes, in this order: the state directory's lock, the journals' threads, the
socket, the address file. Whatever of it fails ends the process with a message on
stderr and exit code 1. Sessions are opened when somebody asks for them.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python import usage

from cortextx.app.config import blamed, load, state_dir
from cortextx.app.process import (
    OTHER_FILES,
    end_process,
    keep_steady_time,
    misconfigured,
    raise_file_limit,
    share_the_lock,
    tell_systemd,
    tune_memory,
)
from cortextx.app.slave_settings import (
    MIB,
    AgentTable,
    EchoAgent,
    ExecAgent,
    ModelAgent,
    Settings,
    check,
    default_agent,
    rules_of,
    socket_group,
    socket_mode,
)
from cortextx.app.statedir import StateDir
from cortextx.app.trimming import trimming
from cortextx.errors import ConfigError, CortexError
from cortextx.interaction.slave.live import Agent, LiveSettings
from cortextx.interaction.slave.policy import RulePolicy, Rules
from cortextx.interaction.slave.service import SlaveService, SlaveSettings
from cortextx.interfaces.sessions import IAgentRuntime, ISessionJournal, SessionKey
from cortextx.runtimes.echo import EchoRuntime
from cortextx.stores.journal import FileJournals

PLUGIN = "cortex-slave"
SOCKET = "slave.sock"
SESSIONS = "sessions"
SESSION_FILES = 4
"""Files that an open session keeps open."""
STOP_SECONDS = 20.0
"""How long one step of stopping may take before it is given up."""


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
            settings = with_whole_paths(settings)
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


def with_whole_paths(settings: Settings) -> Settings:
    """The same, with absolute paths: a daemon leaves the directory that it was started in."""
    table = settings.slave
    whole = {
        name: os.path.abspath(os.path.expanduser(path))
        for name in ("socket", "policy")
        if (path := getattr(table, name)) is not None
    }
    return msgspec.structs.replace(settings, slave=msgspec.structs.replace(table, **whole))


def runtime_of(reactor: Any, table: AgentTable) -> IAgentRuntime:
    """The runtime that a table asks for; only those that are used are imported."""
    runtime: IAgentRuntime
    match table:
        case EchoAgent():
            runtime = EchoRuntime(reactor, table)
        case ExecAgent():
            from cortextx.runtimes.exec import ExecRuntime

            runtime = ExecRuntime(reactor, table)
        case ModelAgent():
            from cortextx.runtimes.model import ModelRuntime

            runtime = ModelRuntime(reactor, table)
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
        self._service: SlaveService | None = None
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
        self._warn_if_few_files()
        tune_memory()
        share_the_lock()
        directory.prepare(SESSIONS)
        directory.lock(PLUGIN)
        self._undo.append(("the lock", lambda: directory.unlock(PLUGIN)))
        journals = FileJournals(self._reactor, directory.join(SESSIONS))
        journals.start()
        self._undo.append(("the journals", journals.stop))
        open_journal: Callable[[SessionKey], ISessionJournal] = journals.journal
        if table.session_mib:
            open_journal = trimming(journals.journal, table.session_mib * MIB)
        agents = {
            name: Agent(runtime_of(self._reactor, agent), agent.root)
            for name, agent in self._settings.agents.items()
        }
        rules = rules_of(table)
        self._policy = RulePolicy(os.geteuid(), agents, rules.allow)
        path = table.socket or directory.join("run", SOCKET)
        service = SlaveService(
            self._reactor,
            path,
            agents,
            open_journal,
            self._policy,
            slave_settings(self._settings, socket_mode(table, rules, self._where)),
        )
        service.startService()
        self._undo.append(("the slave", service.stopService))
        self._service = service
        self._open_way(rules)
        before = signal.signal(signal.SIGHUP, self._hung_up)
        self._undo.append(("the signal", lambda: signal.signal(signal.SIGHUP, before)))
        directory.write_address(PLUGIN, path)
        self._undo.append(("the address", lambda: directory.remove_address(PLUGIN)))
        self.log.info("{plugin} serves {path}", plugin=PLUGIN, path=path)
        self.started.callback(None)
        tell_systemd("READY=1")

    def _warn_if_few_files(self) -> None:
        """Say that fewer files can be open than all that is allowed would need."""
        table = self._settings.slave
        wanted = table.max_connections + SESSION_FILES * table.max_sessions + OTHER_FILES
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most != resource.RLIM_INFINITY and most < wanted:
            self.log.warn(
                "max_connections and max_sessions may need {wanted} open files, and at most {most}"
                " can be: raise the limit (LimitNOFILE in a systemd unit), or lower them",
                wanted=wanted,
                most=most,
            )

    def _hung_up(self, number: int, frame: object) -> None:
        """SIGHUP reads the policy file again (I15)."""
        self._reactor.callFromThread(self._reload)

    def _reload(self) -> None:
        try:
            rules = rules_of(self._settings.slave)
        except ConfigError as error:
            self.log.warn("SIGHUP: the rules stay as they are: {why}", why=error)
            return
        if self._policy is None or self._service is None:
            return
        self._policy.replace(rules.allow)
        try:
            self._service.set_mode(socket_mode(self._settings.slave, rules, self._where))
            self._open_way(rules)
        except OSError as error:
            self.log.warn("SIGHUP: the socket's mode stays as it is: {why}", why=error)
        self.log.info("SIGHUP: {count} rules", count=len(rules.allow))

    def _open_way(self, rules: Rules) -> None:
        """See that those of whom the rules speak can reach the socket (I15)."""
        assert self._service is not None
        if not self._service.is_open or not rules.allow:
            return
        if self._settings.slave.socket is None:
            # Ours from the root down: they may pass, and list nothing.
            for directory in (self._directory.path, self._directory.run):
                let_pass(directory)
        closed = closed_directory(self._service.path)
        if closed is not None:
            self.log.warn(
                "{closed} keeps other users from {path}: open it to them (chmod o+x), or set"
                " slave.socket to a path that they can reach, as /run/cortextx/slave.sock",
                closed=closed,
                path=self._service.path,
            )

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


def let_pass(directory: str) -> None:
    """Let everybody pass through a directory of ours; another's is left as it is."""
    found = os.stat(directory)
    if found.st_uid == os.geteuid():
        os.chmod(directory, stat.S_IMODE(found.st_mode) | 0o011)  # noqa: S103 - to pass, not to list


def closed_directory(path: str) -> str | None:
    """The first directory on the way to `path` that others may not pass, if there is one."""
    above = os.path.dirname(os.path.abspath(path))
    ways = [above]
    while above != "/":
        above = os.path.dirname(above)
        ways.append(above)
    for way in reversed(ways):
        if not os.stat(way).st_mode & stat.S_IXOTH:
            return way
    return None


def slave_settings(settings: Settings, mode: int) -> SlaveSettings:
    """The settings as the service takes them; `mode` is the socket's."""
    table = settings.slave
    return SlaveSettings(
        default_agent=default_agent(settings),
        form=table.v1_form,
        limits=settings.limits.limits(),
        slow_seconds=table.slow_seconds,
        max_connections=table.max_connections,
        max_sessions=table.max_sessions,
        mode=mode,
        group=socket_group(table, "configuration"),
        live=LiveSettings(idle_seconds=table.idle_seconds, approval_seconds=table.approval_seconds),
    )
