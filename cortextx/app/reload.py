"""`cortextx server reload` and SIGHUP: settings and certificate anew, without a restart.

All is read and checked before anything is changed, so that a reload that is
refused changes nothing (A59). What cannot change while the server runs keeps
its value, and the answer names it.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from cortextx.app.keeping import keep_as
from cortextx.app.linesocket import Op, OpError, Rows, arguments
from cortextx.errors import ConfigError, CortexError, in_words
from cortextx.fleet.server.hello import version_key
from cortextx.fleet.server.rows import moment
from cortextx.fleet.server.settings import ServerSettings

if TYPE_CHECKING:
    from cortextx.app.certificates import Shown
    from cortextx.app.listening import ServerTls
    from cortextx.fleet.server.service import FleetServer

FIXED = frozenset(
    {
        "listen",
        "tls_terminated_externally",
        "allow_insecure",
        "max_connections",
        "trust_forwarded_for",
        "tls_certificate",
        "tls_key",
    }
)
"""Settings of [server] that need a restart."""


class ReloadArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`server.reload`: `yes` accepts that hosts are locked out, by min_agent_version or by
    another CA (F34)."""

    yes: bool = False


class Reloader:
    """Reloads one server. `reread` reads and checks its settings (raising ConfigError)."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        fleet: Callable[[], FleetServer],
        tls: ServerTls,
        reread: Callable[[], ServerSettings],
    ) -> None:
        self._reactor = reactor
        self._fleet = fleet
        self._tls = tls
        self._reread = reread

    def ops(self) -> dict[str, Op]:
        """By the names of the admin protocol."""
        return {"server.reload": self.op}

    async def op(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """What changed, what waits for a restart, and until when the certificate is good."""
        return await self.reload(arguments(args, ReloadArgs).yes)

    async def reload(self, confirmed: bool = False) -> dict[str, Any]:
        """Do it; raises ConfigError, or OpError `would_strand`, and then nothing changed."""
        fleet = self._fleet()
        before = fleet.settings
        wanted = self._reread()
        certificate = self._tls.prepare() if self._tls.shown is not None else None
        if certificate is not None:
            await self._check_certificate(fleet, certificate.shown, confirmed)
        await self._check_versions(fleet, before, wanted, confirmed)
        kept = {name: getattr(before.server, name) for name in FIXED}
        after = structs.replace(wanted, server=structs.replace(wanted.server, **kept))
        changed = sorted(_differences(before, after))
        waiting = sorted(set(_differences(before, wanted)) - set(changed))
        fleet.apply(after)
        if after.store != before.store:
            await keep_as(fleet.store, after.store)
        if certificate is not None:
            certificate()
            if not after.server.tls_terminated_externally:
                fleet.ca_pin = certificate.shown.ca_pin
        self.log.info(
            "reloaded; changed: {changed}; after a restart: {waiting}",
            changed=changed,
            waiting=waiting,
        )
        shown = self._tls.shown
        until = None if shown is None else moment(round(shown.not_after.timestamp() * 1e6))
        return {"changed": changed, "needs_restart": waiting, "certificate_until": until}

    def on_hangup(self) -> Callable[[], None]:
        """Reload at SIGHUP from now on; answers what ends that."""

        def hung_up(number: int, frame: object) -> None:
            self._reactor.callFromThread(self.hung_up)

        before = signal.signal(signal.SIGHUP, hung_up)

        def end() -> None:
            signal.signal(signal.SIGHUP, before)

        return end

    def hung_up(self) -> Deferred[Any]:
        """Reload, and say in the log if that is refused; nobody can be asked."""

        def refused(failure: Any) -> None:
            failure.trap(CortexError)
            self.log.error("the reload changed nothing: {why}", why=in_words(failure.value))

        reloading = Deferred.fromCoroutine(self.reload()).addErrback(refused)
        return reloading.addErrback(lambda failure: self.log.failure("reloading failed", failure))

    async def _check_certificate(self, fleet: FleetServer, shown: Shown, confirmed: bool) -> None:
        """One that has ended is no good in place of one that has not; another CA than the one
        that hosts were enrolled with wants a yes (F34, F40)."""
        now, current = dt.datetime.fromtimestamp(fleet.wall() / 1e6, dt.UTC), self._tls.shown
        assert current is not None
        if shown.not_after <= now < current.not_after:
            raise ConfigError(shown.certificate, "certificate", "one that has not ended yet")
        if confirmed or current.ca_pin is None or shown.ca_pin == current.ca_pin:
            return
        records = await fleet.registry.list_hosts()
        enrolled = sum(record.state in ("active", "disconnected") for record in records)
        if enrolled:
            raise OpError(
                "would_strand",
                f"the CA is another one: it locks out {enrolled} hosts, if they were enrolled"
                " with the one before",
                "put its files back, or `cortextx reload --yes` and enrol them anew",
            )

    async def _check_versions(
        self, fleet: FleetServer, before: ServerSettings, wanted: ServerSettings, confirmed: bool
    ) -> None:
        """Hosts that are too old for a raised min_agent_version want a yes (F34)."""
        least, was = wanted.server.min_agent_version, before.server.min_agent_version
        if least is None or confirmed or least == was:
            return
        stranded = [
            record.name
            for record in await fleet.registry.list_hosts()
            if record.state != "revoked"
            and record.agent_version is not None
            and version_key(record.agent_version) < version_key(least)
            and (was is None or version_key(record.agent_version) >= version_key(was))
        ]
        if stranded:
            some = ", ".join(stranded[:5]) + (", …" if len(stranded) > 5 else "")
            raise OpError(
                "would_strand",
                f"min_agent_version {least} locks out {len(stranded)} hosts: {some}",
                "bring their agents up to date first, or `cortextx reload --yes`",
            )


def _differences(one: ServerSettings, other: ServerSettings) -> list[str]:
    """The names of the settings that differ, as `server.listen`."""
    return [
        f"{table}.{name}"
        for table in one.__struct_fields__
        for name in getattr(one, table).__struct_fields__
        if getattr(getattr(one, table), name) != getattr(getattr(other, table), name)
    ]
