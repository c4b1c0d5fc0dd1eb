"""Listeners for syslog of devices that cannot run an agent: UDP, TCP, TLS, Unix datagrams.

UDP and Unix senders are never held up: what finds no room, or exceeds a sender's rate, is
dropped and counted, as is what the kernel dropped, and reported as a gap (F37) at most once
a minute. TCP and TLS are read only as fast as the buffer takes what came.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.core.budgets import LeakyBucket
from cortextx.errors import ConfigError
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.reports import GapReason, gap_reported
from cortextx.fleet.agent.sources.custom_settings import SyslogSettings, shown_peer
from cortextx.fleet.agent.sources.feed import Feed
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.fleet.agent.sources.syslog_framing import Frame
from cortextx.fleet.agent.sources.syslog_machine import SyslogEncoder
from cortextx.fleet.agent.sources.syslog_streams import Streams
from cortextx.interfaces.fleet import ILogSource

MAX_DATAGRAM = 262_144
"""Bytes of the longest datagram (UDP ends at 65,507, a Unix socket by its buffer)."""
MAX_SENDERS = 4096
"""Senders whose rate is known."""
LOOK_SECONDS = 10.0
"""How often losses are looked for."""
REPORT_SECONDS = 60.0
"""How often they are reported at most."""
REBIND_SECONDS = (2.0, 60.0)
"""The first and the longest pause before an address is tried again."""
DRAIN_SECONDS = 5.0
SO_RCVBUFFORCE = 33
SO_MEMINFO = 55
SK_MEMINFO_DROPS = 8


@implementer(ILogSource)
class SyslogSource:
    """One listener.

    `put` is the buffer's; a listener cannot wait (F19), and has no checkpoints.
    `can_wait` tells who holds sources back that pausing it loses what comes meanwhile,
    beyond what the kernel, or a sender's own queue, keeps.
    """

    log = Logger()
    can_wait = False

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: SyslogSettings,
        put: Callable[..., Deferred[Any]],
        checkpoints: Callable[[], Mapping[str, bytes]] = dict,
        *,
        compose: Callable[..., bytes | None] = encode_body,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._source = f"custom:{name}"
        self._reactor = reactor
        self._settings = settings
        self._compose = compose
        self._wall = wall
        self._feed = Feed(reactor, name, put, can_wait=False, on_room=self._room)
        self._port: Any = None
        self._running = False
        self._held = False
        self._why: str | None = None
        self._rebind = REBIND_SECONDS[0]
        self._timer: Any = None
        self._look: Any = None
        self._socket_id: tuple[int, int] | None = None
        self._streams: Streams | None = None
        self._datagrams: Datagrams | None = None
        self._losses: dict[GapReason, int] = {}
        self._reported: float | None = None
        self._kernel_drops = 0
        self._counters = {"messages": 0, "bytes": 0, "ended_by_rules": 0, "dropped": 0,
                          "rate_limited": 0, "kernel_dropped": 0, "refused_peers": 0}  # fmt: skip

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`. An address that cannot be had yet is tried again."""
        self._running = True
        self._look = self._reactor.callLater(LOOK_SECONDS, self._looked)
        self._listen()

    async def _stop(self) -> None:
        self._running = False
        for timer in (self._timer, self._look):
            if timer is not None and timer.active():
                timer.cancel()
        if self._port is not None:
            self._count_kernel_drops()
            port, self._port = self._port, None
            await maybeDeferred(port.stopListening)
            self._unlink()
        if self._streams is not None:
            await self._streams.close()
        self._report_losses()
        await self._feed.drain(DRAIN_SECONDS)

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        return Deferred.fromCoroutine(self._stop())

    def pause(self) -> None:
        """See `ILogSource.pause`: what waits with the kernel and the senders stays there."""
        self._held = True
        self._read_or_not()

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._held = False
        self._read_or_not()

    def report(self) -> SourceReport:
        """How the listener is."""
        self._count_kernel_drops()
        state: SourceState = "paused" if self._held else "running"
        if self._port is None:
            state = "waiting" if self._running else "failed"
        details: dict[str, Any] = {"type": f"syslog-{self._settings.transport}"}
        if self._port is not None:
            details["listen"] = self.address
            if self._settings.transport in ("udp", "unix"):
                option = self._port.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                details["receive_buffer"] = option
        counters = {**self._counters, "entries": self._feed.entries}
        if self._streams is not None:
            counters |= self._streams.counters
            details["connections"] = len(self._streams.open)
        return SourceReport(
            self.name, "custom", state, self._why or self._feed.why, counters, details
        )

    @property
    def address(self) -> str:
        """Where it listens: ADDRESS:PORT, or a path; only while it does."""
        if self._settings.transport == "unix":
            return self._settings.path
        host = self._port.getHost()
        return f"[{host.host}]:{host.port}" if ":" in host.host else f"{host.host}:{host.port}"

    # -- what came ---------------------------------------------------------------------

    def take(
        self, encoder: SyslogEncoder, frames: list[Frame], size: int, peer: str | None
    ) -> None:
        """Give messages of one sender to the buffer; `size` is their bytes on the wire."""
        arrival = int(self._wall() * 1e6)
        self._counters["bytes"] += size
        bodies: list[bytes] = []
        for frame in frames:
            made = encoder.bodies(frame, arrival, peer)
            self._counters["messages"] += frame.part < 2
            bodies += made
            if not made and frame.data.strip(b"\r\n\0"):
                self._counters["ended_by_rules"] += 1
        if bodies:
            taken = self._feed.give(bodies)
            if taken < len(bodies):
                self.lost("overflowed", len(bodies) - taken)
            if self._feed.full:
                self._read_or_not()

    def lost(self, why: GapReason, count: int = 1) -> None:
        """Count messages that were not taken."""
        counter = {"overflowed": "dropped"}.get(why, why)
        self._counters[counter] += count
        self._losses[why] = self._losses.get(why, 0) + count

    def refused(self) -> None:
        """Count what came from an address that may not send."""
        self._counters["refused_peers"] += 1

    def encoder(self) -> SyslogEncoder:
        """For one stream or socket."""
        return SyslogEncoder(self._source, self._settings.zone, self._compose)

    # -- listening ---------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._port = self._bind()
        except (CannotListenError, OSError, ConfigError) as error:
            cause = error.socketError if isinstance(error, CannotListenError) else error
            why = f"cannot listen: {cause}"
            if why != self._why:
                self.log.error("{name}: {why}", name=self.name, why=why)
            self._why = why
            self._timer = self._reactor.callLater(self._rebind, self._listen)
            self._rebind = min(self._rebind * 2, REBIND_SECONDS[1])
            return
        self._why, self._rebind = None, REBIND_SECONDS[0]
        self.log.info("{name}: listens on {at}", name=self.name, at=self.address)
        self._read_or_not()

    def _bind(self) -> Any:
        settings, reactor = self._settings, self._reactor
        if settings.transport in ("tcp", "tls"):
            self._streams = Streams(reactor, self, settings)
            return reactor.listenTCP(
                settings.port, self._streams.factory(), interface=settings.address
            )
        self._datagrams = Datagrams(reactor, self, settings)
        if settings.transport == "udp":
            port = reactor.listenUDP(
                settings.port, self._datagrams, settings.address, maxPacketSize=MAX_DATAGRAM
            )
        else:
            free_path(settings.path)
            before = os.umask(0o177)
            try:
                port = reactor.listenUNIXDatagram(
                    settings.path,
                    self._datagrams,
                    maxPacketSize=MAX_DATAGRAM,
                    mode=settings.socket_mode,
                )
            finally:
                os.umask(before)
            found = os.stat(settings.path)
            self._socket_id = (found.st_dev, found.st_ino)
        widen(port.socket, settings.receive_buffer)
        self._kernel_drops = 0
        return port

    def _unlink(self) -> None:
        """Remove our own socket's path."""
        try:
            found = os.lstat(self._settings.path) if self._socket_id else None
            if found is not None and (found.st_dev, found.st_ino) == self._socket_id:
                os.unlink(self._settings.path)
        except FileNotFoundError:
            pass

    def _room(self) -> None:
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._streams is not None:
            self._streams.rest(self._held or self._feed.full)
        elif self._port is not None:
            if self._held:
                self._port.stopReading()
            else:
                self._port.startReading()

    # -- losses ------------------------------------------------------------------------

    def _looked(self) -> None:
        self._look = self._reactor.callLater(LOOK_SECONDS, self._looked)
        try:
            self._count_kernel_drops()
            now = self._reactor.seconds()
            if self._reported is None or now - self._reported >= REPORT_SECONDS:
                self._report_losses()
        except Exception:
            self.log.failure("{name}: counting losses failed", Failure(), name=self.name)

    def _count_kernel_drops(self) -> None:
        if self._port is None or self._datagrams is None:
            return
        drops = kernel_drops(self._port.socket)
        if drops > self._kernel_drops:
            self.lost("kernel_dropped", drops - self._kernel_drops)
            self._kernel_drops = drops

    def _report_losses(self) -> None:
        if not self._losses:
            return
        now = int(self._wall() * 1e6)
        self._reported = self._reactor.seconds()
        for why, count in list(self._losses.items()):
            self.log.warn(
                "{name}: {count} messages were lost ({why})", name=self.name, count=count, why=why
            )
            if self._feed.give([gap_reported(self._source, why, now, count=count)]):
                del self._losses[why]


class Datagrams(DatagramProtocol):
    """A socket on which each datagram is a message; each sender's rate is held."""

    noisy = False

    def __init__(self, reactor: Any, owner: SyslogSource, settings: SyslogSettings) -> None:
        self._reactor = reactor
        self._owner = owner
        self._settings = settings
        self._encoder = owner.encoder()
        self._buckets: OrderedDict[str, LeakyBucket] = OrderedDict()

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        """Take a message."""
        peer = shown_peer(addr[0]) if isinstance(addr, tuple) else None
        if not self._settings.admits(peer):
            self._owner.refused()
        elif self._settings.rate and not self._within(peer or ""):
            self._owner.lost("rate_limited")
        else:
            self._owner.take(self._encoder, [Frame(data)], len(data), peer)

    def _within(self, peer: str) -> bool:
        bucket = self._buckets.get(peer)
        if bucket is None:
            if len(self._buckets) >= MAX_SENDERS:
                self._buckets.popitem(last=False)
            rate = self._settings.rate
            bucket = self._buckets[peer] = LeakyBucket(rate, max(1.0, rate))
        else:
            self._buckets.move_to_end(peer)
        return bucket.take(1.0, self._reactor.seconds()) == 0.0


def widen(opened: socket.socket, size: int) -> None:
    """Ask for a receive buffer of `size` bytes, beyond the system's bound where we may."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def kernel_drops(opened: socket.socket) -> int:
    """Datagrams that the kernel dropped for want of room; 0 where it does not tell."""
    try:
        facts = opened.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 64)
    except OSError:
        return 0
    return struct.unpack_from("I", facts, 4 * SK_MEMINFO_DROPS)[0] if len(facts) >= 36 else 0


def free_path(path: str) -> None:
    """Remove a Unix socket that nobody listens on; raises OSError if the path is in use."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(f"{path} is there, and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise OSError(f"{path} is in use ({error.strerror})") from None
    raise OSError(f"{path} is in use")
