"""The server's plugin: options, settings, and the order of starting and stopping."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
import shutil
import socket
import stat
import tempfile
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import certificates, server_tap
from cortextx.app.linesocket import OpError
from cortextx.app.room import RETRY_SECONDS
from cortextx.app.server_tap import Options, ServerService, makeService
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError, SchemaTooNew, StoreFull
from cortextx.fleet.server import settings
from cortextx.stores.memory import MemoryStore


def short_path(test: SynchronousTestCase) -> str:
    """A directory that is not there yet, short enough for sockets below it."""
    above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
    test.addCleanup(shutil.rmtree, above, ignore_errors=True)
    return os.path.join(above, "s")


class OptionCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.state = short_path(self)

    def parse(self, *args: str, **environ: str) -> Options:
        options = Options(environ)
        options.parseOptions(["--state-dir", self.state, *args])
        return options

    def table(self, *args: str, **environ: str) -> settings.ServerTable:
        made: settings.ServerSettings = self.parse(*args, **environ)["settings"]
        return made.server


class Settings(OptionCase):
    def test_the_default_is_loopback(self) -> None:
        """Without a word the server listens on loopback only (F20)."""
        self.assertEqual(self.table().listen, ("tcp:8600:interface=127.0.0.1",))

    def test_listen_may_be_repeated(self) -> None:
        """Each --listen is one more endpoint."""
        first, second = "tcp:1:interface=127.0.0.1", "unix:/x"
        self.assertEqual(self.table("--listen", first, "--listen", second).listen, (first, second))

    def test_options_win(self) -> None:
        """An option wins over a variable, a variable over the file."""
        os.makedirs(self.state)
        with open(os.path.join(self.state, "cortex-server.toml"), "w") as file:
            file.write('[server]\nlisten = ["unix:/file"]\nmax_connections = 7\n')
        variable = {"CORTEXTX_SERVER_LISTEN": "unix:/variable"}
        self.assertEqual(self.table().listen, ("unix:/file",))
        self.assertEqual(self.table(**variable).listen, ("unix:/variable",))
        table = self.table("--listen", "unix:/option", **variable)
        self.assertEqual((table.listen, table.max_connections), (("unix:/option",), 7))

    def test_an_open_bind_is_refused(self) -> None:
        """A bind beyond loopback without TLS of its own, a terminator in front, or consent
        refuses to start and says why (F20)."""
        for endpoint in (
            "tcp:8600",
            "tcp:8600:interface=0.0.0.0",
            "tcp6:8600:interface=\\:\\:",
            "tcp:8600:interface=192.0.2.1",
            "tcp:8600:interface=127.0.0.1.example.com",
            "systemd:domain=INET:index=0",
        ):
            error = self.assertRaises(UsageError, self.parse, "--listen", endpoint)
            self.assertIn("tls_terminated_externally", str(error), endpoint)
            for consent in ("ALLOW_INSECURE", "TLS_TERMINATED_EXTERNALLY"):
                self.parse("--listen", endpoint, **{f"CORTEXTX_SERVER_{consent}": "true"})

    def test_a_safe_bind_is_not(self) -> None:
        """Loopback, Unix sockets and endpoints with TLS need no consent (F20)."""
        for endpoint in (
            "tcp:0:interface=127.0.0.1",
            "tcp:0:interface=127.9.9.9",
            "tcp:port=0:interface=localhost",
            "tcp6:0:interface=\\:\\:1",
            "unix:/run/x.sock",
            "ssl:8600:privateKey=k.pem",
        ):
            self.parse("--listen", endpoint)

    def test_faults_name_the_field(self) -> None:
        """A wrong setting is told by its name, and where it stands."""
        for variable, value in (
            ("MAX_CONNECTIONS", "many"),
            ("MIN_AGENT_VERSION", "one"),
            ("PUBLIC_URL", "http://x"),
        ):
            error = self.assertRaises(
                UsageError, self.parse, **{f"CORTEXTX_SERVER_{variable}": value}
            )
            self.assertIn(variable.lower(), str(error).lower())
        self.assertRaises(UsageError, self.parse, "--config", "/nonexistent.toml")

    def test_one_endpoint_needs_no_array(self) -> None:
        """In the file `listen` may be one string."""
        os.makedirs(self.state)
        with open(os.path.join(self.state, "cortex-server.toml"), "w") as file:
            file.write('[server]\nlisten = "unix:/file"\n')
        self.assertEqual(self.table().listen, ("unix:/file",))

    def test_what_is_no_endpoint(self) -> None:
        """A text that is no endpoint is told so, with or without consent to bind openly,
        and blamed on where it stands: variable or option."""
        consent = {"CORTEXTX_SERVER_ALLOW_INSECURE": "true"}
        for endpoint in ("bad", "8600", "127.0.0.1:8600", "localhost:8600", ":8600"):
            for more in ({}, consent):
                error = self.assertRaises(UsageError, self.parse, "--listen", endpoint, **more)
                self.assertIn(f"not {endpoint!r}", str(error))
                self.assertNotIn("tls_terminated_externally", str(error))
                self.assertTrue(str(error).startswith("command line: server.listen"), error)
        error = self.assertRaises(UsageError, self.parse, CORTEXTX_SERVER_LISTEN="tcp:8600")
        self.assertTrue(str(error).startswith("CORTEXTX_SERVER_LISTEN: server.listen"), error)

    def test_a_misspelt_variable(self) -> None:
        """A variable with a slip in it is told; the agent's own variables are not."""
        self.parse(CORTEXTX_SERVER_URL="x", CORTEXTX_AGENT_BUFFER_SOFT_MIB="64")
        error = self.assertRaises(UsageError, self.parse, CORTEXTX_SERVER_LISTN="x")
        self.assertIn("CORTEXTX_SERVER_LISTEN", str(error))

    def test_check_looks_at_the_state_directory(self) -> None:
        """--check refuses a state directory that cannot be made."""
        with open(self.state, "w"):
            pass
        self.state = os.path.join(self.state, "below")
        error = self.assertRaises(UsageError, self.parse, "--check")
        self.assertIn("directory", str(error))

    def test_check_wants_the_certificate(self) -> None:
        """--check refuses a tls: endpoint whose certificate is not there, and says how to make
        one; with it the configuration is good."""
        error = self.assertRaises(UsageError, self.parse, "--check", "--listen", "tls:8600")
        self.assertIn("tls init", str(error))
        certificates.init(StateDir(self.state), ["localhost"], dt.datetime.now(dt.UTC))
        with contextlib.redirect_stdout(io.StringIO()):
            end = self.assertRaises(SystemExit, self.parse, "--check", "--listen", "tls:8600")
        self.assertEqual(end.code, 0)

    def test_check_understands_endpoints(self) -> None:
        """--check refuses what no endpoint's parser takes, and leaves alone what only the
        surroundings could tell."""
        for bad in ("tcp:nonsense:interface=127.0.0.1", "unix:/x:mode=abc", "ssl:1"):
            self.assertRaises(UsageError, self.parse, "--check", "--listen", bad)

    def test_a_public_url_that_is_none(self) -> None:
        """public_url must be a ws or wss URL that can be taken apart."""
        for url in ("wss://[::1", "wss://", "https://logs.example", "wss://logs.example:99999"):
            environ = {"CORTEXTX_SERVER_PUBLIC_URL": url}
            error = self.assertRaises(UsageError, self.parse, **environ)
            self.assertIn("PUBLIC_URL", str(error))

    def test_an_interval_without_end(self) -> None:
        """[agent_config] has the bounds of what is set at run time: none that cannot be sent."""
        config = "heartbeat_interval_secs = 30\nmax_batch_entries = 1000\n"
        config += "flush_interval_ms = 200\nprobe_concurrency = 4\nlog_sources = []\n"
        os.mkdir(self.state)
        for seconds in (2**70, 2**62, 0):
            with open(os.path.join(self.state, "cortex-server.toml"), "w") as file:
                file.write(f"[agent_config]\n{config}metrics_interval_secs = {seconds}\n")
            error = self.assertRaises(UsageError, self.parse)
            self.assertIn("agent_config.metrics_interval_secs", str(error))

    def test_below_twistd_only_the_fault_is_said(self) -> None:
        """twistd would print its own usage before a usage error: below it the process ends
        with 2, as the command line does for a wrong value, and the fault on stderr."""
        options = Options({})
        options.parent = Options({})
        with contextlib.redirect_stderr(io.StringIO()) as said:
            end = self.assertRaises(
                SystemExit, options.parseOptions, ["--state-dir", self.state, "--listen", "bad"]
            )
        self.assertEqual(end.code, 2)
        self.assertTrue(said.getvalue().startswith("cortex-server: command line: server.listen"))

    def test_check_says_good(self) -> None:
        """--check ends with exit code 0 if all is well, and touches nothing."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            end = self.assertRaises(SystemExit, self.parse, "--check")
        self.assertIn("good", said.getvalue())
        self.assertEqual(end.code, 0)
        self.assertFalse(os.path.exists(self.state))

    def test_making_a_service_opens_nothing(self) -> None:
        """makeService neither makes a file nor touches the reactor (it runs before a fork)."""
        reactor = MemoryReactorClock()
        makeService(self.parse(), reactor)
        self.assertFalse(os.path.exists(self.state))
        self.assertEqual(reactor.getDelayedCalls(), [])
        self.assertEqual(reactor.tcpServers, [])


class SlowStore(MemoryStore):
    """A store that is started and stopped by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.starting: Deferred[None] = Deferred()
        self.stopped = 0

    def start(self) -> Deferred[None]:
        return self.starting

    def stop(self) -> Deferred[None]:
        self.stopped += 1
        return succeed(None)


class Starting(SynchronousTestCase):
    def setUp(self) -> None:
        self.place = StateDir(short_path(self))
        self.reactor = MemoryReactorClock()
        self.store = SlowStore()
        self.failures: list[str] = []
        self.service = ServerService(
            self.reactor,
            self.place,
            settings.ServerSettings(),
            lambda reactor, path: self.store,
            fail=lambda reactor, message: self.failures.append(message),
        )
        self.addCleanup(self.service._directory.unlock, "cortex-server")

    def exists(self, *parts: str) -> bool:
        return os.path.exists(self.place.join(*parts))

    def test_the_order(self) -> None:
        """The store first, then the admin socket, then the port, then the address; and the
        socket is private."""
        self.service.startService()
        self.assertFalse(self.exists("run", "admin.sock"))
        self.assertEqual(self.reactor.tcpServers, [])
        self.store.starting.callback(None)
        self.assertTrue(self.exists("run", "admin.sock"))
        mode = os.stat(self.place.admin_socket).st_mode
        self.assertEqual(stat.S_IMODE(mode), 0o600)
        self.assertEqual(len(self.reactor.tcpServers), 1)
        self.assertTrue(self.exists("run", "cortex-server.address"))
        self.successResultOf(self.service.started)
        self.assertIs(self.service.fleet().store, self.store)
        self.stop()

    def stop(self) -> None:
        stopped = self.service.stopService()
        # The Unix port closes in the reactor's next turn.
        self.reactor.advance(0)
        self.successResultOf(stopped)

    def test_stopping_undoes_all(self) -> None:
        """After a stop neither socket nor address nor lock is left, and the store is closed."""
        self.store.starting.callback(None)
        self.service.startService()
        self.stop()
        self.assertEqual(sorted(os.listdir(self.place.run)), ["cortex-server.lock"])
        self.assertEqual(self.store.stopped, 1)
        another = StateDir(self.place.path)
        another.lock("cortex-server")
        another.unlock("cortex-server")
        self.assertRaises(OpError, self.service.fleet)

    def test_a_store_that_is_gone_is_told(self) -> None:
        """A server that finds no store where one was says so in its log and its status."""
        self.place.prepare("server")
        with open(self.place.join("server", "store.made"), "wb") as file:
            file.write(b'{"at":1}')
        self.store.starting.callback(None)
        with capturedLogs() as logs:
            self.service.startService()
        said = [one for one in logs if "is gone" in str(one.get("what"))]
        self.assertEqual([one["log_level"] for one in said], [LogLevel.critical])
        [warning] = self.service.fleet().warnings(0)
        self.assertIn("is gone", warning)
        self.assertEqual(len(self.service.fleet().warnings(3)), 2)
        self.stop()

    def test_the_fleet_is_unavailable_before(self) -> None:
        """Until the server is up, ops answer `unavailable`."""
        self.service.startService()
        error = self.assertRaises(OpError, self.service.fleet)
        self.assertEqual(error.code, "unavailable")

    def test_a_failed_store_ends_the_process(self) -> None:
        """A store that cannot be opened ends the process with its message, and what was
        begun is undone."""
        self.service.startService()
        self.store.starting.errback(SchemaTooNew("made by a newer version"))
        [said] = self.failures
        for part in ("made by a newer version", "store.db", "update cortextx"):
            self.assertIn(part, said)
        self.assertEqual(self.reactor.tcpServers, [])
        self.assertFalse(self.exists("run", "cortex-server.address"))
        another = StateDir(self.place.path)
        another.lock("cortex-server")
        another.unlock("cortex-server")

    def test_a_full_disk_is_waited_for(self) -> None:
        """A store that cannot be opened for want of room is tried again, with a word on why and
        what to do, until it opens; nothing listens before."""
        first, self.store = self.store, SlowStore()
        stores = [first, self.store]
        self.service._open_store = lambda reactor, path: stores.pop(0)
        with capturedLogs() as logs:
            self.service.startService()
            first.starting.errback(StoreFull("the disk is full"))
            self.assertEqual((self.failures, first.stopped), ([], 1))
            [said] = [one for one in logs if one["log_level"] is LogLevel.error]
            for part in ("the disk is full", "make room"):
                self.assertIn(part, str(said["why"]))
            self.assertEqual(self.reactor.tcpServers, [])
            self.reactor.advance(RETRY_SECONDS)
            self.store.starting.callback(None)
        self.assertTrue(self.exists("run", "cortex-server.address"))
        self.stop()

    def test_stopping_while_waiting_for_room(self) -> None:
        """It gives up waiting, and no timer is left."""
        self.service.startService()
        self.store.starting.errback(StoreFull("the disk is full"))
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.failures, self.reactor.getDelayedCalls()), ([], []))

    def test_an_address_that_cannot_be_written(self) -> None:
        """The server is up nevertheless, and writes it as soon as there is room."""
        self.place.prepare("server")
        os.mkdir(self.place.address_file("cortex-server") + ".new")
        self.store.starting.callback(None)
        with capturedLogs() as logs:
            self.service.startService()
            self.successResultOf(self.service.started)
            self.reactor.advance(RETRY_SECONDS)
        said = [one for one in logs if one["log_level"] is LogLevel.error]
        self.assertEqual(len(said), 1)
        self.assertFalse(self.exists("run", "cortex-server.address"))
        os.rmdir(self.place.address_file("cortex-server") + ".new")
        self.reactor.advance(RETRY_SECONDS)
        self.assertTrue(self.exists("run", "cortex-server.address"))
        self.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_taken_state_directory_ends_the_process(self) -> None:
        """A second server on one state directory says so and leaves the first alone."""
        other = StateDir(self.place.path)
        other.prepare()
        other.lock("cortex-server")
        self.addCleanup(other.unlock, "cortex-server")
        self.service.startService()
        [message] = self.failures
        self.assertIn("another", message.replace(f"process {os.getpid()}", "another"))
        self.assertEqual(self.store.stopped, 0)

    def test_stopping_while_starting(self) -> None:
        """A stop before the start is done gives up the start, without a complaint."""
        self.service.startService()
        self.successResultOf(self.service.stopService())
        self.assertEqual(self.failures, [])
        self.assertEqual(self.store.stopped, 1)

    def test_a_bad_endpoint_ends_the_process(self) -> None:
        """An endpoint that is none is told by name."""
        self.service._settings = settings.ServerSettings(
            server=settings.ServerTable(listen=("nonesuch:1",))
        )
        self.store.starting.callback(None)
        self.service.startService()
        self.reactor.advance(0)
        [message] = self.failures
        self.assertIn("nonesuch:1", message)


class Checks(SynchronousTestCase):
    def test_budgets_must_be_ordered(self) -> None:
        """A soft bound above the hard one is refused."""
        table = settings.ServerTable(ingest_soft_bytes=2**22, ingest_hard_bytes=2**21)
        self.assertRaises(ConfigError, settings.check, settings.ServerSettings(server=table))

    def test_addresses_read_well(self) -> None:
        """An address is host:port, an IPv6 one in brackets, a socket's its path."""

        self.assertEqual(server_tap.address_of(tcp("127.0.0.1", 1)), "127.0.0.1:1")
        self.assertEqual(server_tap.address_of(tcp("::1", 1)), "[::1]:1")
        self.assertEqual(server_tap.address_of(UNIXAddress(b"/x")), "/x")

    def test_urls_for_invitations(self) -> None:
        """An invitation names where the server listens, wss where it has TLS itself, and
        the machine where it listens on every address."""
        here = tcp("127.0.0.1", 8600)
        self.assertEqual(server_tap.url_of(here, "tcp:8600"), "ws://127.0.0.1:8600/ws/agent")
        self.assertEqual(server_tap.url_of(here, "ssl:8600"), "wss://127.0.0.1:8600/ws/agent")
        self.assertEqual(
            server_tap.url_of(tcp("0.0.0.0", 1), "tcp:1"),
            f"ws://{socket.gethostname()}:1/ws/agent",
        )
        self.assertIsNone(server_tap.url_of(UNIXAddress(b"/x"), "unix:/x"))


def tcp(host: str, port: int) -> Any:
    kind = IPv6Address if ":" in host else IPv4Address
    return kind("TCP", host, port)
