"""`twistd cortex-server`: the fleet server as a service.

Starting takes, in this order: the state directory's lock, the store, the admin
socket, the listening ports, the address file. Whatever of it fails ends the
process with a message on stderr and exit code 1, after what was begun is undone.
Stopping goes the other way round, and says goodbye to the agents first.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.python import usage

from cortextx.app.admin import AdminOps
from cortextx.app.config import blamed, load, state_dir
from cortextx.app.linesocket import LineSocketService, OpError
from cortextx.app.process import (
    misconfigured,
    raise_file_limit,
    share_the_lock,
    tune_memory,
    warn_if_slow,
)
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError, CortexError
from cortextx.fleet.agent.settings import AgentSettings
from cortextx.fleet.server.protocol import PATH, AgentSocketFactory
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import ServerSettings, check
from cortextx.fleet.server.tokens import Mint
from cortextx.web.site import BoundedSite, make_site

PLUGIN = "cortex-server"
STOP_SECONDS = 10.0
"""How long stopping may take before it is given up."""

OpenStore = Callable[[Any, str], Any]
"""Makes a store (ILogStore, IHostRegistry, `start`, `stop`) from a reactor and a path."""


class Options(usage.Options):
    """The options; they win over the environment, and that over the file."""

    synopsis = "[options]"
    longdesc = (
        "Takes the logs of enrolled hosts at ws://HOST:PORT/ws/agent, keeps them and makes"
        " them searchable. `cortextx agent issue` makes a token for a host. Settings come"
        " from a TOML file, from CORTEXTX_SERVER_… variables, and from here."
    )
    optParameters = [
        ["state-dir", "d", None, "Where everything is kept (or CORTEXTX_STATE_DIR)"],
        ["config", "c", None, "TOML file [default: STATE_DIR/cortex-server.toml if it is there]"],
    ]
    optFlags = [["check", None, "Check the configuration, say so, and exit"]]

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.environ = os.environ if environ is None else environ
        self["listen"] = []

    def opt_listen(self, endpoint: str) -> None:
        """A Twisted endpoint to listen on, as tcp:8600:interface=127.0.0.1, which is the
        default; may be given several times"""
        self["listen"].append(endpoint)

    def postOptions(self) -> None:
        """Load and check the settings (F20); raises usage.UsageError."""
        origins: dict[str, str] = {}
        try:
            directory = StateDir(state_dir(self["state-dir"], self.environ))
            settings = load(
                ServerSettings,
                path=self["config"],
                default_path=directory.config_file(PLUGIN),
                environ=self.environ,
                overrides={"server.listen": self["listen"] or None},
                others=[AgentSettings],
                origins=origins,
            )
            check(settings, self["config"] or directory.config_file(PLUGIN))
            if self["check"]:
                directory.check()
        except ConfigError as error:
            raise misconfigured(PLUGIN, blamed(error, origins), self) from None
        self["directory"], self["settings"] = directory, settings
        if self["check"]:
            print(f"{PLUGIN}: the configuration is good")
            raise SystemExit(0)


def makeService(options: Options, reactor: Any = None) -> ServerService:
    """The service; it opens nothing before it is started."""
    if reactor is None:
        from twisted.internet import reactor
    return ServerService(reactor, options["directory"], options["settings"], open_sqlite)


def open_sqlite(reactor: Any, path: str) -> Any:
    """The store that is used."""
    from cortextx.stores.sqlite import SqliteStore

    return SqliteStore(reactor, path)


class ServerService(Service):
    """The whole server in one state directory.

    `started` fires once it accepts connections, and fails if it cannot; `exit`
    is called after a failed start, by default to end the process.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        directory: StateDir,
        settings: ServerSettings,
        open_store: OpenStore,
        *,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
        random: Callable[[int], bytes] = os.urandom,
        fail: Callable[[Any, str], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._directory = directory
        self._settings = settings
        self._open_store = open_store
        self._wall = wall
        self._random = random
        self._fail = end_process if fail is None else fail
        self._fleet: FleetServer | None = None
        self._starting: Deferred[None] | None = None
        self._undo: list[tuple[str, Callable[[], Any]]] = []
        self.started: Deferred[None] = Deferred()

    def startService(self) -> None:
        super().startService()
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._start_failed)
        self._starting.addErrback(lambda failure: self.log.failure("starting failed", failure))

    def stopService(self) -> Deferred[None]:
        """Stop all that was started, the newest first; fires when it is done."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def fleet(self) -> FleetServer:
        """The fleet server; raises OpError `unavailable` before it is up and while it stops."""
        if self._fleet is None or not self.started.called:
            raise OpError("unavailable", "the server is starting or stopping; try again")
        return self._fleet

    async def _start(self) -> None:
        reactor, directory = self._reactor, self._directory
        raise_file_limit()
        tune_memory()
        share_the_lock()
        warn_if_slow()
        directory.prepare("server")
        directory.lock(PLUGIN)
        self._undo.append(("the lock", lambda: directory.unlock(PLUGIN)))

        store = self._open_store(reactor, directory.join("server", "store.db"))
        self._undo.append(("the store", store.stop))
        await store.start()

        fleet = self._fleet = FleetServer(
            reactor,
            store,
            store,
            self._settings,
            mint=Mint(self._random),
            wall=self._wall,
            version=metadata.version("cortextx"),
        )
        await fleet.start()
        self._undo.append(("the connections", lambda: Deferred.fromCoroutine(fleet.stop())))

        ops = AdminOps(reactor, self.fleet, self._wall()).ops()
        admin = LineSocketService(reactor, directory.admin_socket, ops)
        admin.startService()
        self._undo.append(("the admin socket", admin.stopService))

        await self._listen(fleet)
        directory.write_address(PLUGIN, fleet.addresses[0])
        self._undo.append(("the address", lambda: directory.remove_address(PLUGIN)))
        self.log.info("{plugin} accepts connections at {at}", plugin=PLUGIN, at=fleet.addresses)
        self.started.callback(None)

    async def _listen(self, fleet: FleetServer) -> None:
        table = self._settings.server
        agents = AgentSocketFactory(
            self._reactor,
            fleet,
            max_connections=table.max_connections,
            trust_forwarded_for=table.trust_forwarded_for,
        )
        site = make_site(self._reactor, agents, fleet, table.max_connections)
        for description in table.listen:
            try:
                port = await serverFromString(self._reactor, description).listen(site)
            except CannotListenError as error:
                why = f"an address that is free ({error.socketError})"
                raise ConfigError("server.listen", description, why) from None
            except (ValueError, TypeError, KeyError, OSError) as error:
                why = f"an endpoint that can be listened on ({error})"
                raise ConfigError("server.listen", description, why) from None
            self._undo.append((description, port.stopListening))
            fleet.addresses.append(address_of(port.getHost()))
            fleet.own_url = fleet.own_url or url_of(port.getHost(), description)
        self._undo.append(("HTTP connections", lambda: _closed(site)))

    async def _stop(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None and not starting.called:
            starting.cancel()
        await self._undo_all()

    async def _undo_all(self) -> None:
        undo, self._undo = self._undo[::-1], []
        for what, step in undo:
            done = maybeDeferred(step)
            done.addTimeout(STOP_SECONDS, self._reactor)
            try:
                await done
            except Exception:
                self.log.failure("{what} could not be stopped cleanly", what=what)
        self._fleet = None

    def _start_failed(self, failure: Any) -> Deferred[None]:
        if failure.check(CancelledError):
            # Stopped while it started.
            return Deferred.fromCoroutine(self._undo_all())
        if isinstance(failure.value, CortexError):
            message = str(failure.value)
        else:
            self.log.failure("the server cannot start", failure)
            message = f"the server cannot start: {failure.value}"
        return Deferred.fromCoroutine(self._give_up(message))

    async def _give_up(self, message: str) -> None:
        await self._undo_all()
        if self.running:
            self._fail(self._reactor, message)


def _closed(site: BoundedSite) -> None:
    site.close_connections()


def address_of(host: Any) -> str:
    """A listening port's address: `host:port`, or a socket's path."""
    if hasattr(host, "port"):
        shown = f"[{host.host}]" if ":" in host.host else host.host
        return f"{shown}:{host.port}"
    name = host.name
    return name.decode() if isinstance(name, bytes) else str(name)


def url_of(host: Any, description: str) -> str | None:
    """The URL of /ws/agent at a listening port; None for one that has no port.

    One that listens on all addresses is named by this machine's name.
    """
    if not hasattr(host, "port"):
        return None
    scheme = "wss" if description.startswith(("ssl:", "tls:")) else "ws"
    if host.host in ("0.0.0.0", "::"):  # noqa: S104
        return f"{scheme}://{socket.gethostname()}:{host.port}{PATH}"
    return f"{scheme}://{address_of(host)}{PATH}"


def end_process(reactor: Any, message: str) -> None:
    """Stop the reactor, and have the process end with exit code 1 and `message` on stderr."""
    print(f"{PLUGIN}: {message}", file=sys.stderr, flush=True)

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    # twistd has no way to be told an exit code: its own clean-up runs, then this.
    atexit.register(leave)
    reactor.callWhenRunning(reactor.stop)
