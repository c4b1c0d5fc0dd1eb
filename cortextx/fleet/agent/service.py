"""The agent as a whole: identity, buffer, sources and link, started and stopped in order.

Data flows from the sources through the buffer, where it becomes durable, to the
link. Stopping goes the same way: sources first, then what they gave, then the
link's last answers, then the buffer.
"""

from __future__ import annotations

import contextlib
import platform
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.application.service import Service
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from cortextx.core.backoff import FullJitter
from cortextx.errors import ConfigError, CortexError, JsonError, StoreClosed, StoreFull
from cortextx.fleet.agent.hello import read_config
from cortextx.fleet.agent.link import Link
from cortextx.fleet.agent.policy import AVAILABLE, FileGroup, Plan, groups, plan
from cortextx.fleet.agent.reports import losses_reported, refusal_reported, restored_reported
from cortextx.fleet.agent.runner import Connects, LinkRunner
from cortextx.fleet.agent.running import RunningSources
from cortextx.fleet.agent.sources.identity import decode_checkpoint
from cortextx.fleet.contract import (
    MAX_ENTRIES,
    AgentConfig,
    Capabilities,
    HelloParams,
    Platform,
)

if TYPE_CHECKING:
    from cortextx.fleet.agent.buffer_writer import BufferWriter
    from cortextx.fleet.agent.identity import Identity, IdentityFiles
    from cortextx.fleet.agent.policy import EffectiveSource, LeftOut
    from cortextx.fleet.agent.settings import AgentSettings
    from cortextx.fleet.agent.sources.file import FileReport, Put
    from cortextx.interfaces.fleet import ILogSource

LOOK_SECONDS = 1.0
"""How often the buffer's fill is looked at (F19)."""
MAX_FILES = 200
"""Files that a status names at most."""
BETWEEN_WORDS = 60.0
"""Seconds between two words to the operator about a buffer without room."""
REOPEN_SECONDS = 10.0
"""How often a buffer that a failed sync has broken is opened anew."""

MakeSource = Callable[[FileGroup, "Put", dict[str, bytes]], "ILogSource"]
"""Makes a source from what is wanted, the way to the buffer, and the checkpoints."""


class AgentService(Service):
    """One agent, from its state directory to its server.

    `start` fires when it runs (connected or not); it fails with what the buffer
    says if that cannot be opened. `random` answers a float from 0 to below 1,
    `wall` seconds since 1970.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: AgentSettings,
        files: IdentityFiles,
        identity: Identity,
        buffer: BufferWriter,
        connector: Connects,
        make_source: MakeSource,
        *,
        version: str,
        random: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._files = files
        self._identity = identity
        self._buffer = buffer
        self._connector = connector
        self._version = version
        self._random = random
        self._wall = wall
        self._sources = RunningSources(
            lambda group, found: make_source(group, buffer.put, found), buffer.checkpoints
        )
        self._planned = Plan((), ())
        self._runner: LinkRunner | None = None
        self._config: AgentConfig | None = None
        self._reopen_at = 0.0
        self._say_full_at = 0.0
        self._look = LoopingCall(self._look_at_buffer)
        self._look.clock = reactor

    async def start(self) -> None:
        """Open the buffer, start the sources that are known, and connect."""
        found = await self._buffer.start()
        for note in found.notes:
            self.log.warn("buffer: {note}", note=note)
        hello = make_hello(self._identity, self._version, self._buffer.acked)
        backoff, previous = FullJitter(random=self._random), self._identity.previous
        link = Link(hello, self._buffer.last, backoff, self._random, previous)
        self._runner = LinkRunner(
            self._reactor, link, self._buffer, self._files, self._connector, self, self._wall
        )
        self._buffer.on_durable = self._runner.entries_available
        self._config = self._kept_config()
        self._plan()
        self._look.start(LOOK_SECONDS).addErrback(self._failed, "looking at the buffer")
        self._runner.start()

    async def stop(self) -> None:
        """Stop in order; what is not acknowledged by then stays in the buffer."""
        if self._look.running:
            self._look.stop()
        await self._sources.stop()
        if self._runner is not None:
            await self._runner.stop(self._settings.agent.stop_drain_secs)
        try:
            await self._buffer.stop()
        except StoreClosed:
            # It never opened.
            return

    def retry(self) -> None:
        """Attempt to connect now, with the token as it is stored (F34).

        Raises ConfigError where there is none, or where the enrolment is for another
        host id or server than this process began with.
        """
        now, begun = self._files.load(), self._identity
        if (now.host_id, now.enrolment) != (begun.host_id, begun.enrolment):
            expected = "what this process began with: restart the agent to use the new enrolment"
            raise ConfigError(self._files.directory, "enrolment", expected)
        if self._runner is not None:
            self._runner.retry(now.token, now.previous)

    def configure(self, config: AgentConfig) -> None:
        """The link says what the server wants (F18)."""
        changed = config != self._config
        self._config = config
        if changed:
            told = set(self._planned.left_out)
            self._plan()
            self._report_refusals([left for left in self._planned.left_out if left not in told])
            self._keep_config(config)

    def pause_sources(self) -> None:
        """The link says that nothing can be sent for long (F34)."""
        self._sources.hold("link")

    def resume_sources(self) -> None:
        """The link says that things flow again."""
        self._sources.release("link")

    def report_restored(self, first: int, last: int) -> None:
        """The link says that the server lost what it had acked (F26)."""
        bodies = [restored_reported(first, last, self._micros())]
        put = self._buffer.put(bodies, {}, can_wait=False)
        put.addErrback(self._failed, "reporting what the server lost")

    async def status(self) -> dict[str, Any]:
        """How the agent is, for `cortextx agent status`. No secret is in it (F23)."""
        runner, buffer = self._runner, self._buffer
        if runner is None:
            return {"state": "starting", "host_id": self._identity.host_id}
        reports = self._sources.reports()
        files = _files_read(await buffer.checkpoints(), reports)
        link = runner.link
        due = link.attempt_at
        return {
            "state": link.state,
            "connected": link.state in ("active", "draining"),
            "reason": link.why or None,
            "auth": _AUTH.get(link.state, "unknown" if link.session_id is None else "ok"),
            "last_error": runner.last_error,
            "next_attempt_in": _seconds_to(due, self._reactor.seconds()),
            "host_id": self._identity.host_id,
            "session_id": link.session_id,
            "acked_seq": link.acked,
            "last_seq": buffer.last,
            "backlog_entries": buffer.depth,
            "buffer_bytes": buffer.size,
            "unanswered_pushes": link.in_flight,
            "buffer_pressure": buffer.pressure if buffer.status.full is None else "hard",
            "sources_paused_by": self._sources.held_by,
            "sources": [_source_row(source, reports) for source in self._planned.run],
            "sources_left_out": [msgspec.to_builtins(left) for left in self._planned.left_out],
            "files": files,
            "evicted_entries": buffer.status.evicted,
            "damaged_entries": buffer.status.damaged,
            "set_aside_entries": buffer.status.set_aside,
            "buffer_fault": buffer.status.broken or buffer.status.full,
            "version": self._version,
        }

    def _plan(self) -> None:
        asked = () if self._config is None else self._config.log_sources
        allow = self._settings.agent.allow_sources
        before = set(self._planned.left_out)
        self._planned = plan(asked, allow, self._settings.sources)
        for left in self._planned.left_out:
            if left not in before:
                self.log.warn(
                    "{origin} source {kind} {name} does not run: {why}",
                    origin=left.origin, kind=left.kind, name=left.name, why=left.why,
                )  # fmt: skip
        self._sources.apply(groups(self._planned.run, allow))

    def _report_refusals(self, refused: Sequence[LeftOut]) -> None:
        """Once, when the server asks for it first (F18)."""
        bodies = [refusal_reported(left, self._micros()) for left in refused]
        if bodies:
            self._buffer.put(bodies, {}).addErrback(self._failed, "reporting refused sources")

    async def _report_losses(self) -> None:
        """Tell the server what the buffer lost, once (F37)."""
        losses = await self._buffer.losses()
        if losses:
            bodies, mark = losses_reported(losses, self._micros())
            await self._buffer.put(bodies, mark, can_wait=False)

    async def _reopen(self) -> None:
        self.log.warn("the buffer is opened anew: {why}", why=self._buffer.status.broken)
        await self._buffer.reopen()

    def _micros(self) -> int:
        return int(self._wall() * 1_000_000)

    async def _look_at_buffer(self) -> None:
        """Sources that can wait do so above the soft bound (F19)."""
        status, now = self._buffer.status, self._reactor.seconds()
        if status.full is not None and now >= self._say_full_at:
            self._say_full_at = now + BETWEEN_WORDS
            self.log.warn("nothing more can be buffered for now: {why}", why=status.full)
        try:
            if status.broken is not None and now >= self._reopen_at:
                self._reopen_at = now + REOPEN_SECONDS
                await self._reopen()
            elif status.losses and status.next_seq is not None and status.broken is None:
                await self._report_losses()
        except StoreFull:
            # That is said above.
            pass
        except CortexError as error:
            self.log.warn("the buffer is in trouble: {why}", why=error)
        if self._buffer.pressure == "ok":
            self._sources.release("buffer")
        elif "buffer" not in self._sources.held_by:
            if status.full is None:
                self.log.warn("the buffer is filling: the sources rest until it is sent")
            self._sources.hold("buffer")

    def _kept_config(self) -> AgentConfig | None:
        kept = self._files.load_config()
        if kept is None:
            return None
        try:
            return read_config(msgspec.Raw(kept))[0]
        except JsonError:
            return None

    def _keep_config(self, config: AgentConfig) -> None:
        """So that a start without the server runs the sources that it wanted last."""
        try:
            self._files.store_config(msgspec.json.encode(config))
        except OSError as error:
            self.log.warn("the configuration cannot be kept: {why}", why=error.strerror)

    def _failed(self, failure: Any, what: str) -> None:
        if failure.check(StoreFull):
            # `_look_at_buffer` says that, now and then.
            return
        self.log.failure("{what} failed", failure, what=what)


_AUTH = {"fatal_auth": "refused", "revoked": "revoked", "active": "ok", "draining": "ok"}


def _seconds_to(due: float | None, now: float) -> float | None:
    """The time until `due`, to a tenth of a second: it is for people."""
    return None if due is None else round(max(0.0, due - now), 1)


def _source_row(source: EffectiveSource, reports: Iterable[FileReport]) -> dict[str, Any]:
    """A source that is to run, with the files that it matches now (None: not known yet),
    and why there are none."""
    row: dict[str, Any] = msgspec.to_builtins(source)
    row["files"] = row["why"] = None
    for report in reports:
        path, files = source.path or "", report.files or {}
        if path in files:
            row["files"], row["why"] = files[path], report.why.get(path)
    return row


def _files_read(
    checkpoints: dict[str, bytes], reports: Iterable[FileReport]
) -> list[dict[str, Any]]:
    """Which files are read, and how far, as their checkpoints say; those that cannot be
    read come first, with the reason in `why`."""
    faults = {path: why for report in reports for path, why in report.faults.items()}
    rows: list[dict[str, Any]] = []
    for key, data in checkpoints.items():
        if key.startswith("file:"):
            with contextlib.suppress(ValueError):
                found = decode_checkpoint(data)
                if not found.finished:
                    row = {"path": found.path, "offset": found.offset, "size": found.size}
                    rows.append({**row, "why": faults.pop(found.path, None)})
    rows += [{"path": path, "offset": None, "size": None, "why": faults[path]} for path in faults]
    return sorted(rows, key=lambda row: (row["why"] is None, str(row["path"])))[:MAX_FILES]


def make_hello(identity: Identity, version: str, acked: int) -> HelloParams:
    """What the server is told of this host (§4.1, F36)."""
    return HelloParams(
        protocol_version=1,
        agent_version=version,
        hostname=(socket.gethostname() or "localhost")[:253],
        host_id=identity.host_id,
        platform=Platform(
            os=platform.system().lower(),
            arch=platform.machine(),
            kernel=platform.release(),
            distro=_distro(),
        ),
        capabilities=Capabilities(
            supported_probes=[],
            sources=sorted(AVAILABLE),  # type: ignore[arg-type]
            max_batch_entries=MAX_ENTRIES,
            compression=[],
        ),
        token=identity.token,
        resume_from_seq=acked,
    )


def _distro() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
