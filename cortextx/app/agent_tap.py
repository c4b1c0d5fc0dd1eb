"""`twistd cortex-agent`: the host agent as a service.

Starting takes, in this order: the state directory's lock, the enrolment (bound
to this machine, F14), the buffer, the sources and the link, the control socket,
the address file. Whatever of it fails ends the process with a message on stderr
and exit code 1; a server that cannot be reached does not. Neither web nor
terminal code is imported here.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python import usage

from cortextx.app.config import blamed, load, state_dir
from cortextx.app.process import (
    keep_steady_time,
    misconfigured,
    raise_file_limit,
    tell_systemd,
    warn_if_slow,
)
from cortextx.app.spare import (
    TLS,
    absent,
    give_back,
    import_websocket,
    share_one_heap,
    sweep,
)
from cortextx.app.starting import SteppedService
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError, CortexError
from cortextx.fleet.agent.identity import MACHINE_ID, Identity, IdentityFiles
from cortextx.fleet.agent.settings import (
    AgentSettings,
    check,
    check_available,
    check_transport,
)
from cortextx.fleet.pin import check_pin

if TYPE_CHECKING:
    from cortextx.fleet.agent.fair_puts import Give
    from cortextx.fleet.agent.policy import SourceGroup
    from cortextx.fleet.agent.service import AgentService
    from cortextx.interfaces.fleet import ILogSource

PLUGIN = "cortex-agent"
PREFIX = "CORTEXTX_"
INVITED_BY = "agent/enrolment.json (from `cortextx agent enroll`)"
"""The file of the state directory that says where the invitation's server is."""
PROBES_FILE = "probes.json"
"""The file of DIR/agent that says which probes are disabled (A61)."""
TIDY_SECONDS = 5.0
"""How often memory that is free is given back to the system."""
CACHE_BYTES = 1_048_576
"""Bytes of the buffer's newest blocks that stay in memory."""
MAX_PENDING_BYTES = 1_048_576
"""Bytes of entries that are with the buffer's thread at most."""
STOP_SECONDS = 75.0
"""How long one step of stopping may take before it is given up; a drain may take 60."""


class Options(usage.Options):
    """The options; they win over the environment, and that over the file."""

    synopsis = "[options]"
    longdesc = (
        "Ships this host's logs to a cortex-server. `cortextx agent enroll` tells it where"
        " that is. Settings come from a TOML file, from CORTEXTX_AGENT_… variables, and from"
        " here."
    )
    optParameters = [
        ["state-dir", "d", None, "Where everything is kept (or CORTEXTX_STATE_DIR)"],
        ["config", "c", None, "TOML file [default: STATE_DIR/cortex-agent.toml if it is there]"],
        ["listen", "l", None, "The control socket, as unix:/PATH [default: in the state dir]"],
    ]
    optFlags = [["check", None, "Check the configuration and the enrolment, say so, and exit"]]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.environ = os.environ if environ is None else environ

    def postOptions(self) -> None:
        """Load and check the settings (F20); raises usage.UsageError."""
        origins: dict[str, str] = {}
        try:
            directory = StateDir(state_dir(self["state-dir"], self.environ))
            default = directory.config_file(PLUGIN)
            where = self["config"] or default
            settings = load(
                AgentSettings,
                path=self["config"],
                default_path=default,
                environ=self.environ,
                others=_of_the_server,
                origins=origins,
            )
            check(settings, where)
            self["socket"] = socket_path(self["listen"], directory)
            if self["check"]:
                from cortextx.fleet.agent.making import lacking
                from cortextx.fleet.agent.runnable import check_runnable

                directory.check()
                check_available(settings, where, lacking())
                check_runnable(settings, where)
                files = IdentityFiles(directory.join("agent"))
                identity = files.load()
                server_pin(settings, identity, server_url(settings, identity, where), where)
        except ConfigError as error:
            raise misconfigured(PLUGIN, blamed(error, origins), self) from None
        self["directory"], self["settings"], self["where"] = directory, settings, where
        if self["check"]:
            print(f"{PLUGIN}: the configuration is good")
            raise SystemExit(0)


def _of_the_server() -> list[type]:
    """What else variables may set: the server's settings, which an agent has no other use for."""
    from cortextx.fleet.server.settings import ServerSettings

    return [ServerSettings]


def makeService(options: Options, reactor: Any = None) -> AgentProcess:
    """The service; it opens nothing before it is started."""
    if reactor is None:
        with absent(*_unneeded(options)):
            from twisted.internet import endpoints as endpoints
            from twisted.internet import reactor

        keep_steady_time(reactor)
    return AgentProcess(
        reactor, options["directory"], options["settings"], options["where"], options["socket"]
    )


def _unneeded(options: Options) -> tuple[str, ...]:
    """What Twisted need not import: OpenSSL, where the server is reached without TLS.

    A fault that keeps the server's place from being known is told when starting.
    """
    try:
        identity = IdentityFiles(options["directory"].join("agent")).load()
        url = server_url(options["settings"], identity, options["where"])
    except CortexError:
        return ()
    return () if _by_tls(url) else (TLS,)


def _by_tls(url: str) -> bool:
    return url.lower().startswith("wss:")


class AgentProcess(SteppedService):
    """The whole agent in one state directory.

    `started` fires once the control socket accepts; `fail` is called with the
    reason of a failed start, by default to end the process.
    """

    def __init__(
        self,
        reactor: Any,
        directory: StateDir,
        settings: AgentSettings,
        where: str,
        socket: str,
        *,
        machine_id_path: str = MACHINE_ID,
        fail: Callable[[Any, str], None] | None = None,
    ) -> None:
        super().__init__(reactor, PLUGIN, "agent", STOP_SECONDS, fail)
        self._directory = directory
        self._settings = settings
        self._where = where
        self._socket = socket
        self._machine_id_path = machine_id_path
        self._agent: AgentService | None = None

    def agent(self) -> AgentService:
        """The agent; raises OpError `unavailable` before it runs and while it stops."""
        from cortextx.app.linesocket import OpError

        if self._agent is None:
            raise OpError("unavailable", "the agent is starting or stopping; try again")
        return self._agent

    async def begin(self) -> None:
        directory = self._directory
        raise_file_limit()
        share_one_heap()
        directory.prepare("agent")
        directory.lock(PLUGIN)
        self.undo_by("the lock", lambda: directory.unlock(PLUGIN))
        files = IdentityFiles(directory.join("agent"), self._machine_id_path)
        files.bind()
        identity = files.load()
        url = server_url(self._settings, identity, self._where)
        pin = server_pin(self._settings, identity, url, self._where)
        with absent(*(() if _by_tls(url) else (TLS,))):
            import_websocket()
            import_module("cortextx.fleet.agent.protocol")
            from cortextx.app.agent_control import AgentOps
            from cortextx.app.linesocket import LineSocketService
        warn_if_slow()
        agent = make_agent(self._reactor, self._settings, directory, files, identity, url, pin)
        # What opened in part is closed by the same call.
        self.undo_by("the agent", lambda: Deferred.fromCoroutine(agent.stop()))
        await agent.start()
        self._agent = agent
        self.undo_by("the answers", self._forget_agent)
        version = metadata.version("cortextx")
        control = LineSocketService(
            self._reactor, self._socket, AgentOps(self.agent, version).ops()
        )
        control.startService()
        self.undo_by("the control socket", control.stopService)
        before = signal.signal(signal.SIGHUP, self._hung_up)
        self.undo_by("the signal", lambda: signal.signal(signal.SIGHUP, before))
        directory.write_address(PLUGIN, self._socket)
        self.undo_by("the address", lambda: directory.remove_address(PLUGIN))
        tidy = LoopingCall(give_back)
        tidy.clock = self._reactor
        tidy.start(TIDY_SECONDS, now=False).addErrback(
            lambda failure: self.log.failure("memory could not be given back", failure)
        )
        self.undo_by("tidying", tidy.stop)
        sweep()
        self.log.info("{plugin} runs, for {url}", plugin=PLUGIN, url=url)
        self.started.callback(None)
        tell_systemd("READY=1")

    def _forget_agent(self) -> None:
        self._agent = None

    def _hung_up(self, number: int, frame: object) -> None:
        """SIGHUP makes an attempt now (F34)."""
        self._reactor.callFromThread(self._retry)

    def _retry(self) -> None:
        try:
            self.agent().retry()
        except CortexError as error:
            self.log.warn("SIGHUP: {why}", why=error)


def server_url(settings: AgentSettings, identity: Identity, where: str) -> str:
    """Where the server is: the configuration's word, else the invitation's (F20).

    A fault of the invitation's is not blamed on the configuration.
    """
    enrolment = identity.enrolment
    url = settings.server.url or (None if enrolment is None else enrolment.url)
    if url is None:
        raise ConfigError(where, "server.url", "the server's URL, here or by an invitation")
    ours = bool(settings.server.url)
    insecure = settings.agent.allow_insecure
    check_transport(url, insecure, where if ours else INVITED_BY, "server.url" if ours else "url")
    return url


def server_pin(settings: AgentSettings, identity: Identity, url: str, where: str) -> str | None:
    """The pin of the server's own CA: the configuration's word, else the invitation's (F40).

    Raises ConfigError where it could not be kept: in the clear there is no certificate.
    """
    enrolment = identity.enrolment
    pin = settings.server.ca_pin
    if pin is None and enrolment is not None:
        pin = enrolment.ca_pin
    if not pin:
        return None
    if not url.startswith("wss://"):
        ours = bool(settings.server.url)
        expected = "wss://, as this agent's server has a pinned CA"
        raise ConfigError(where if ours else INVITED_BY, "server.url" if ours else "url", expected)
    return check_pin(pin, where, "server.ca_pin")


def socket_path(listen: str | None, directory: StateDir) -> str:
    """The path of the control socket, from an endpoint `unix:/PATH`; raises ConfigError."""
    if listen is None:
        return directory.agent_socket
    kind, _, path = listen.partition(":")
    if kind != "unix" or not path.startswith("/") or ":" in path:
        raise ConfigError("--listen", listen, "unix:/PATH: the agent listens on nothing else")
    return path


def make_agent(
    reactor: Any,
    settings: AgentSettings,
    directory: StateDir,
    files: IdentityFiles,
    identity: Identity,
    url: str,
    pin: str | None = None,
) -> AgentService:
    """Put one agent together; nothing is opened yet."""
    from cortextx.fleet.agent.buffer import MIB, Buffer, BufferLimits
    from cortextx.fleet.agent.buffer_writer import BufferWriter
    from cortextx.fleet.agent.composing import Composer
    from cortextx.fleet.agent.disk import RealDisk
    from cortextx.fleet.agent.making import (
        DOCKER_SOCKET,
        Parts,
        able,
        lacking,
        make_source,
    )
    from cortextx.fleet.agent.probes.registry import ProbeRegistry
    from cortextx.fleet.agent.protocol import Connector
    from cortextx.fleet.agent.rules import compile_rules
    from cortextx.fleet.agent.service import AgentService

    version = metadata.version("cortextx")
    limits = BufferLimits(
        soft=settings.agent.buffer_soft_mib * MIB,
        hard=settings.agent.buffer_hard_mib * MIB,
        cache=CACHE_BYTES,
    )
    at = directory.join("agent", "buffer")

    rules = compile_rules(settings.rules, "rules")

    sockets = tuple(
        source.socket or DOCKER_SOCKET for source in settings.sources if source.kind == "docker"
    )

    def compose_for(kind: str, name: str) -> Callable[..., bytes | None]:
        return Composer(rules, kind, name, clock=reactor.seconds).compose

    def source(group: SourceGroup, put: Give, found: dict[str, bytes]) -> ILogSource:
        return make_source(group, Parts(reactor, put, found, directory.path, compose_for))

    probes = ProbeRegistry(
        reactor,
        settings.agent.allow_probes,
        directory.join("agent", PROBES_FILE),
        time.time,
        roots=settings.agent.probe_file_roots,
        docker_sockets=sockets,
        excluded=(directory.path,),
    )

    return AgentService(
        reactor,
        settings,
        files,
        identity,
        BufferWriter(
            reactor, lambda: Buffer.open(RealDisk(at), limits), max_pending=MAX_PENDING_BYTES
        ),
        Connector(reactor, url, f"cortextx/{version}", pin),
        source,
        version=version,
        random=random.SystemRandom().random,
        wall=time.time,
        probes=probes,
        rules=rules,
        lacking=lacking,
        able=partial(able, sockets),
    )
