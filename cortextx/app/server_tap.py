"""`twistd cortex-server`: the fleet server as a service.

Starting takes, in this order: the state directory's lock, the store, the admin
socket, the listening ports, the address file. Whatever of it fails ends the
process with a message on stderr and exit code 1, after what was begun is undone;
but for want of room on the disk it waits (`app.room`).
Stopping goes the other way round, and says goodbye to the agents first.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python import usage
from twisted.web.resource import IResource

from cortextx.app.admin import AdminOps
from cortextx.app.admin_fleet import FleetOps
from cortextx.app.admin_store import StoreOps
from cortextx.app.admin_tokens import TokenOps, audited
from cortextx.app.certificates import tls_files
from cortextx.app.config import blamed, load, state_dir
from cortextx.app.linesocket import LineSocketService, OpError
from cortextx.app.listening import ServerTls, check_endpoint, listen
from cortextx.app.process import (
    keep_steady_time,
    misconfigured,
    raise_file_limit,
    share_the_lock,
    tell_systemd,
    tune_memory,
    warn_if_few_files,
    warn_if_slow,
)
from cortextx.app.reload import Reloader
from cortextx.app.room import OpeningStore, WrittenLater
from cortextx.app.starting import SteppedService
from cortextx.app.statedir import StateDir
from cortextx.app.store_made import about_to_open, opened, warning
from cortextx.errors import ConfigError
from cortextx.fleet.agent.settings import AgentSettings
from cortextx.fleet.server.keeping import StoreTable
from cortextx.fleet.server.protocol import PATH, AgentSocketFactory
from cortextx.fleet.server.rows import moment
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import ServerSettings, check
from cortextx.fleet.server.tokens import Mint
from cortextx.web.mount import mounts
from cortextx.web.site import BoundedSite, make_site
from cortextx.web.sources import Sources

PLUGIN = "cortex-server"
DAY = 86_400.0
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
            settings = self.read(directory, origins)
            if self["check"]:
                directory.check()
                table = settings.server
                tls = ServerTls(tls_files(directory, table.tls_certificate, table.tls_key))
                for endpoint in table.listen:
                    check_endpoint(endpoint, tls)
        except ConfigError as error:
            raise misconfigured(PLUGIN, blamed(error, origins), self) from None
        self["directory"], self["settings"] = directory, settings
        if self["check"]:
            print(f"{PLUGIN}: the configuration is good")
            raise SystemExit(0)

    def read(self, directory: StateDir, origins: dict[str, str] | None = None) -> ServerSettings:
        """The settings as they are now, checked (F20); raises ConfigError."""
        default = directory.config_file(PLUGIN)
        # A daemon's working directory is another one: a reload has to find the same file.
        where = None if self["config"] is None else os.path.abspath(self["config"])
        self["config"] = where
        settings = load(
            ServerSettings,
            path=where,
            default_path=default,
            environ=self.environ,
            overrides={"server.listen": self["listen"] or None},
            others=lambda: [AgentSettings],
            origins=origins,
        )
        check(settings, where or default)
        return settings


def makeService(options: Options, reactor: Any = None) -> ServerService:
    """The service; it opens nothing before it is started."""
    if reactor is None:
        from twisted.internet import reactor

        keep_steady_time(reactor)
    directory = options["directory"]
    reread = partial(options.read, directory)
    settings = options["settings"]
    open_store = partial(open_sqlite, table=settings.store)
    return ServerService(reactor, directory, settings, open_store, reread=reread)


def open_sqlite(reactor: Any, path: str, *, table: StoreTable) -> Any:
    """The store that is used."""
    from cortextx.app.keeping import store_settings
    from cortextx.stores.sqlite import SqliteStore

    return SqliteStore(reactor, path, store_settings(table))


class ServerService(SteppedService):
    """The whole server in one state directory.

    `started` fires once it accepts connections, and fails if it cannot; `exit`
    is called after a failed start, by default to end the process.
    """

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
        reread: Callable[[], ServerSettings] | None = None,
    ) -> None:
        super().__init__(reactor, PLUGIN, "server", STOP_SECONDS, fail)
        self._directory = directory
        self._settings = settings
        self._open_store = open_store
        self._wall = wall
        self._random = random
        self._reread = reread or (lambda: settings)
        self._fleet: FleetServer | None = None

    def fleet(self) -> FleetServer:
        """The fleet server; raises OpError `unavailable` before it is up and while it stops."""
        if self._fleet is None or not self.started.called:
            raise OpError("unavailable", "the server is starting or stopping; try again")
        return self._fleet

    async def begin(self) -> None:
        reactor, directory = self._reactor, self._directory
        raise_file_limit()
        tune_memory()
        share_the_lock()
        warn_if_slow()
        directory.prepare("server")
        directory.lock(PLUGIN)
        self.undo_by("the lock", lambda: directory.unlock(PLUGIN))
        table = self._settings.server
        warn_if_few_files(table.max_connections)
        tls = ServerTls(tls_files(directory, table.tls_certificate, table.tls_key))
        reloader = Reloader(reactor, self.fleet, tls, self._reread)
        # From here on SIGHUP does not end the process.
        self.undo_by("the signal", reloader.on_hangup())

        path = directory.join("server", "store.db")
        made = about_to_open(path, self._wall())
        opening = OpeningStore(reactor, path, self._open_store)
        self.undo_by("the store", opening.stop)
        store = await opening.open()
        opened(path, made)

        self.undo_by("the answers", self._forget_fleet)
        fleet = self._fleet = FleetServer(
            reactor,
            store,
            store,
            self._settings,
            mint=Mint(self._random),
            wall=self._wall,
            version=metadata.version("cortextx"),
        )
        fleet.store_made_at, fleet.store_warning = made.at, warning(made, moment(made.at))
        if fleet.store_warning:
            self.log.critical("{what}", what=fleet.store_warning)
        await fleet.start()
        self.undo_by("the connections", lambda: Deferred.fromCoroutine(fleet.stop()))

        ops = {
            **AdminOps(reactor, self.fleet, self._wall()).ops(),
            **FleetOps(self.fleet).ops(),
            **StoreOps(reactor, self.fleet, path).ops(),
            **reloader.ops(),
            **TokenOps(self.fleet, self._random).ops(),
        }
        admin = LineSocketService(reactor, directory.admin_socket, audited(ops, self.fleet))
        admin.startService()
        self.undo_by("the admin socket", admin.stopService)

        await self._listen(fleet, tls)
        self.undo_by("the address", lambda: directory.remove_address(PLUGIN))
        address = WrittenLater(
            reactor,
            directory.address_file(PLUGIN),
            lambda: directory.write_address(PLUGIN, fleet.addresses[0]),
        )
        self.undo_by("writing the address", address.stop)
        address.begin()
        self.log.info("{plugin} accepts connections at {at}", plugin=PLUGIN, at=fleet.addresses)
        self.started.callback(None)
        tell_systemd("READY=1")

    def _forget_fleet(self) -> None:
        self._fleet = None

    async def _listen(self, fleet: FleetServer, tls: ServerTls) -> None:
        table = self._settings.server
        agents = AgentSocketFactory(
            self._reactor,
            fleet,
            max_connections=table.max_connections,
            trust_forwarded_for=table.trust_forwarded_for,
            admission=fleet.admission,
        )
        site = make_site(self._reactor, agents, fleet, table.max_connections, self._mounts(fleet))
        # Behind proxies the rate of a source is judged when they have said which one it is.
        admits = None if table.trust_forwarded_for else fleet.admission.admits
        for description in table.listen:
            port = await listen(self._reactor, description, site, tls, admits)
            self.undo_by(description, port.stopListening)
            fleet.addresses.append(address_of(port.getHost()))
            fleet.own_url = fleet.own_url or url_of(port.getHost(), description)
        if tls.shown is not None and not table.tls_terminated_externally:
            fleet.ca_pin = tls.shown.ca_pin
        daily = LoopingCall(tls.warn_if_ending)
        daily.clock = self._reactor
        daily.start(DAY, now=False).addErrback(
            lambda failure: self.log.failure("the certificate could not be looked at", failure)
        )
        self.undo_by("the look at the certificate", daily.stop)
        self.undo_by("HTTP connections", lambda: _closed(site))

    def _mounts(self, fleet: FleetServer) -> dict[bytes, IResource]:
        """What the site has beside the agents' socket."""
        store: Any = fleet.store
        return mounts(
            Sources(
                reactor=self._reactor,
                fleet=fleet,
                store=store,
                wall=self._wall,
                random=self._random,
                started_at=self._wall(),
            )
        )


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
