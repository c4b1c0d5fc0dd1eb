"""Reloading settings while the server runs (A59, F34)."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from dataclasses import replace
from typing import Any

from msgspec import structs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import certificates
from cortextx.app.certificates import TlsFiles
from cortextx.app.linesocket import OpError
from cortextx.app.listening import ServerTls
from cortextx.app.reload import FIXED, Reloader
from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError
from cortextx.fleet.server import tokens
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet import HostRecord
from cortextx.stores.memory import MemoryStore


class Reloading(SynchronousTestCase):
    def setUp(self) -> None:
        self.wanted: ServerSettings | Exception = ServerSettings()
        store = MemoryStore()
        self.store = store
        self.fleet = FleetServer(
            Clock(), store, store, ServerSettings(),
            mint=tokens.Mint(lambda size: bytes(size)), wall=lambda: 1, version="0.1.0",
        )  # fmt: skip
        tls = ServerTls(TlsFiles("/nonexistent", "/nonexistent"))
        self.reloader = Reloader(Clock(), lambda: self.fleet, tls, self.reread)

    def reread(self) -> ServerSettings:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        return self.wanted

    def want(self, **table: Any) -> None:
        self.wanted = ServerSettings(server=ServerTable(**table))

    def reload(self, **args: Any) -> Deferred[dict[str, Any]]:
        async def rows(some: Any) -> None:
            raise AssertionError("there are no rows")

        return Deferred.fromCoroutine(self.reloader.ops()["server.reload"](args, rows))

    def host(self, name: str, version: str, state: Any = "active") -> None:
        """A host that said hello with this version."""
        number = len(self.successResultOf(self.store.list_hosts())) + 1
        host_id = f"6f1d2a1e-0000-4000-8000-{number:012d}"
        digest = number.to_bytes(32, "big")
        self.successResultOf(self.store.issue(name, None, digest, 10**18, 1))

        def decide(candidates: Any) -> tuple[None, HostRecord]:
            row = candidates.unbound
            return None, replace(row, host_id=host_id, agent_version=version, state=state)

        self.successResultOf(self.store.judge(host_id, digest, decide))

    def test_what_changes(self) -> None:
        """Changed settings are in force and named; others are not."""
        self.want(min_agent_version="0.2.0", slow_peer_secs=5.0, connections_per_minute=7)
        end = self.successResultOf(self.reload())
        self.assertEqual(
            end["changed"],
            ["server.connections_per_minute", "server.min_agent_version", "server.slow_peer_secs"],
        )
        self.assertEqual(end["needs_restart"], [])
        self.assertEqual(self.fleet.slow_peer_seconds, 5.0)
        self.assertEqual(self.fleet.admission.limits.connections_per_minute, 7)
        self.assertEqual(self.fleet.settings.server.min_agent_version, "0.2.0")
        self.assertEqual(self.successResultOf(self.reload())["changed"], [])

    def test_what_needs_a_restart(self) -> None:
        """Where it listens and the like stay as they are, and are named, each time."""
        self.want(listen=("unix:/x",), max_connections=7, public_url="wss://x/ws/agent")
        for changed in (["server.public_url"], []):
            end = self.successResultOf(self.reload())
            self.assertEqual(end["changed"], changed)
            self.assertEqual(end["needs_restart"], ["server.listen", "server.max_connections"])
        self.assertEqual(self.fleet.settings.server.listen, ServerTable().listen)
        self.assertEqual(self.fleet.public_url(), "wss://x/ws/agent")

    def test_fixed_settings_exist(self) -> None:
        """Each name that needs a restart is one of a setting."""
        self.assertLessEqual(FIXED, set(ServerTable.__struct_fields__))

    def test_a_refused_reload_changes_nothing(self) -> None:
        """A configuration with a fault in it is told, and all stays (A59)."""
        before = self.fleet.settings
        self.wanted = ConfigError("f.toml", "server.listen", "at least one endpoint")
        self.failureResultOf(self.reload(), ConfigError)
        self.assertIs(self.fleet.settings, before)

    def test_a_fault_at_sighup_is_logged(self) -> None:
        """At SIGHUP nobody can be answered: the log says what was refused, and why."""
        self.wanted = ConfigError("f.toml", "server.listen", "at least one endpoint")
        with capturedLogs() as events:
            self.successResultOf(self.reloader.hung_up())
        self.assertIn("at least one endpoint", str(events[-1]["why"]))

    def test_a_version_that_strands_hosts(self) -> None:
        """A min_agent_version that locks hosts out says how many and wants a yes; revoked
        hosts, and those that are locked out already, do not count (F34)."""
        for name, version, state in (
            ("old", "0.1.0", "active"),
            ("older", "0.0.1", "disconnected"),
            ("gone", "0.0.1", "revoked"),
            ("new", "0.3.0", "active"),
        ):
            self.host(name, version, state)
        self.want(min_agent_version="0.2.0")
        failure = self.failureResultOf(self.reload(), OpError)
        self.assertEqual(failure.value.code, "would_strand")
        self.assertIn("2 hosts: old, older", str(failure.value))
        self.assertIsNone(self.fleet.settings.server.min_agent_version)
        self.successResultOf(self.reload(yes=True))
        self.assertEqual(self.fleet.settings.server.min_agent_version, "0.2.0")
        self.want(min_agent_version="0.2.1")
        self.successResultOf(self.reload())

    def with_tls(self, directory: StateDir, now: dt.datetime) -> None:
        """Serve with a certificate of its own, at that time."""
        certificates.init(directory, ["localhost"], now)
        tls = ServerTls(certificates.tls_files(directory, None, None))
        tls.prepare()()
        assert tls.shown is not None
        self.fleet.ca_pin = tls.shown.ca_pin
        self.fleet.wall = lambda: round(now.timestamp() * 1e6)
        self.reloader = Reloader(Clock(), lambda: self.fleet, tls, self.reread)

    def test_another_ca_wants_a_yes(self) -> None:
        """Files of another CA would lock out every host that was enrolled with the one before
        (F34, F40): that is refused, or with a yes invitations carry the new pin from then on."""
        above = self.mktemp()
        one, other = StateDir(os.path.join(above, "1")), StateDir(os.path.join(above, "2"))
        now = dt.datetime.now(dt.UTC)
        self.with_tls(one, now)
        before = self.fleet.ca_pin
        certificates.init(other, ["localhost"], now)
        for name in os.listdir(certificates.tls_dir(other)):
            shutil.copy(os.path.join(certificates.tls_dir(other), name), certificates.tls_dir(one))
        self.host("web1", "0.1.0", "active")
        failure = self.failureResultOf(self.reload(), OpError)
        self.assertEqual(failure.value.code, "would_strand")
        self.assertEqual(self.fleet.ca_pin, before)
        self.successResultOf(self.reload(yes=True))
        self.assertNotIn(self.fleet.ca_pin, (before, None))

    def test_a_certificate_that_has_ended(self) -> None:
        """It is not shown in place of one that is still good."""
        directory, now = StateDir(os.path.join(self.mktemp(), "s")), dt.datetime.now(dt.UTC)
        self.with_tls(directory, now)
        certificates.renew(directory, [], now - dt.timedelta(days=500))
        failure = self.failureResultOf(self.reload(), ConfigError)
        self.assertIn("has not ended", str(failure.value))
        certificates.renew(directory, [], now)
        self.successResultOf(self.reload())

    def test_new_sessions_have_it(self) -> None:
        """What a session is told comes from the settings of its start."""
        config = structs.replace(ServerSettings().agent_config, heartbeat_interval_secs=77)
        self.wanted = ServerSettings(agent_config=config)
        end = self.successResultOf(self.reload())
        self.assertEqual(end["changed"], ["agent_config.heartbeat_interval_secs"])
        self.assertEqual(self.fleet.settings.agent_config, config)
