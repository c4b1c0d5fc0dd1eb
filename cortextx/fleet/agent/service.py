"""The agent as a whole: identity, buffer, sources and link, started and stopped in order.

Data flows from the sources through the buffer, where it becomes durable, to the
link. Stopping goes the same way: sources first, then what they gave, then the
link's last answers, then the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from cortextx.core.backoff import FullJitter
from cortextx.errors import ConfigError, CortexError, JsonError, StoreClosed, StoreFull
from cortextx.fleet.agent.asked import ProbeError
from cortextx.fleet.agent.buffer_care import BufferCare
from cortextx.fleet.agent.changing import ConfigTrial, Keep, Step, Tell, Use
from cortextx.fleet.agent.composing import tallies
from cortextx.fleet.agent.fair_puts import FairPuts
from cortextx.fleet.agent.health import Waits
from cortextx.fleet.agent.hello import read_config
from cortextx.fleet.agent.host_facts import capabilities, make_hello
from cortextx.fleet.agent.link import Link
from cortextx.fleet.agent.policy import AVAILABLE, Plan, SourceGroup, groups, plan
from cortextx.fleet.agent.probes.verdicts import ProbeRefused
from cortextx.fleet.agent.reports import (
    config_reported,
    limited_reported,
    refusal_reported,
    restored_reported,
)
from cortextx.fleet.agent.runner import Connects, LinkRunner
from cortextx.fleet.agent.running import RunningSources
from cortextx.fleet.agent.samples import Sampler, agent_samples, bounded, host_samples
from cortextx.fleet.agent.status import agent_status
from cortextx.fleet.contract import (
    AgentConfig,
    Capabilities,
    Code,
    MetricSample,
    MetricsParams,
    ProbeOutput,
)

if TYPE_CHECKING:
    from cortextx.fleet.agent.buffer_writer import BufferWriter
    from cortextx.fleet.agent.fair_puts import Give
    from cortextx.fleet.agent.identity import Identity, IdentityFiles
    from cortextx.fleet.agent.policy import LeftOut
    from cortextx.fleet.agent.probes.registry import ProbeRegistry
    from cortextx.fleet.agent.probes.verdicts import ProbeResult
    from cortextx.fleet.agent.rules import Rule
    from cortextx.fleet.agent.settings import AgentSettings
    from cortextx.fleet.agent.sources.report import SourceState
    from cortextx.interfaces.fleet import ILogSource

LOOK_SECONDS = 1.0
"""How often the buffer's fill and the sources' health are looked at (F19, A58)."""
LIMITED_SECONDS = 60.0
"""How often the server is told what a rule's rate limit left out (F37)."""

MakeSource = Callable[[SourceGroup, "Give", dict[str, bytes]], "ILogSource"]
"""Makes a source from what is wanted, the way to the buffer, and the checkpoints."""


class AgentService(Service):
    """One agent, from its state directory to its server.

    `start` fires when it runs (connected or not); it fails with what the buffer
    says if that cannot be opened. `random` answers a float from 0 to below 1,
    `wall` seconds since 1970. `rules` are those of the sources, for their counts;
    `lacking` says of each kind of source that this host cannot run why, `able` which
    it can; `sampler` takes the host's samples, in a thread.
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
        probes: ProbeRegistry | None = None,
        rules: Sequence[Rule] = (),
        lacking: Callable[[], Mapping[str, str]] = dict,
        able: Callable[[], Iterable[str]] = lambda: AVAILABLE,
        sampler: Sampler = host_samples,
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
        self._probes = probes
        self._rules = rules
        self._lacking = lacking
        self._able = able
        self._sampler = sampler
        self._fair = FairPuts(buffer.put)
        self._sources = RunningSources(
            lambda group, found: make_source(group, self._fair.way(group.name), found),
            buffer.checkpoints,
        )
        self._care = BufferCare(reactor, buffer, self._sources, self._micros)
        self._planned = Plan((), ())
        self._runner: LinkRunner | None = None
        self._trial = ConfigTrial(None)
        self._waits = Waits()
        self._limited: dict[str, int] = {}
        self._limited_at = 0.0
        self._look = LoopingCall(self._look_around)
        self._look.clock = reactor

    async def start(self) -> None:
        """Open the buffer, start the sources that are known, and connect."""
        found = await self._buffer.start()
        for note in found.notes:
            self.log.warn("buffer: {note}", note=note)
        hello = make_hello(self._identity, self._version, self._buffer.acked, self.capabilities())
        backoff, previous = FullJitter(random=self._random), self._identity.previous
        link = Link(hello, self._buffer.last, backoff, self._random, previous)
        self._runner = LinkRunner(
            self._reactor, link, self._buffer, self._files, self._connector, self, self._wall
        )
        self._buffer.on_durable = self._runner.entries_available
        self._trial = ConfigTrial(self._kept_config())
        self._plan()
        self._look.start(LOOK_SECONDS).addErrback(self._failed, "looking at the buffer")
        self._runner.start()

    async def stop(self) -> None:
        """Stop in order; what is not acknowledged by then stays in the buffer."""
        if self._look.running:
            self._look.stop()
        if self._probes is not None:
            await self._probes.stop()
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

    def reset_probe(self, name: str) -> None:
        """Offer a disabled probe again, from the next connection on (A61).

        Raises ConfigError if it is not disabled, OSError if that cannot be kept.
        """
        if self._probes is None:
            raise ConfigError("probes", name, "an agent that has probes")
        self._probes.reset(name)

    @property
    def buffer(self) -> BufferWriter:
        """The buffer, for its inspection."""
        return self._buffer

    # What the link asks (`runner.Wants`)

    def configure(self, config: AgentConfig, pushed: bool) -> None:
        """The link says what the server wants (F18, A58)."""
        troubles = {**self._faults("waiting"), **self._faults()}
        self._carry_out(self._trial.proposed(config, pushed, troubles))

    def config_refused(self, reason: str) -> None:
        """The link says that the server sent what cannot be used (A58)."""
        self._carry_out(self._trial.refused(reason))

    def capabilities(self) -> Capabilities:
        """What this host can do now (§8): no more than it says, however often it is asked."""
        probes = [] if self._probes is None else self._probes.supported()
        return capabilities(self._able(), probes)

    def run_probe(self, name: str, args: Any, seconds: float) -> Deferred[Any]:
        """The link has a probe to run (§4.6, F27)."""
        if self._probes is None:
            return succeed(ProbeError(Code.PROBE_UNAVAILABLE, {"probe": name}))

        def done(result: ProbeResult) -> ProbeOutput:
            output = msgspec.Raw(result.output)
            return ProbeOutput(output=output, duration_ms=max(0, result.duration_ms))

        def refused(failure: Any) -> ProbeError:
            failure.trap(ProbeRefused)
            why = failure.value
            return ProbeError(why.code, {"reason": str(why), **why.data})

        return self._probes.run(name, args, seconds).addCallbacks(done, refused)

    def samples(self) -> Deferred[MetricsParams | None]:
        """The link's samples are due (§4.5, F19, F24)."""
        pool = self._reactor.getThreadPool()
        taken: Deferred[Any] = deferToThreadPool(self._reactor, pool, self._sampler)

        def with_own(host: list[MetricSample]) -> MetricsParams | None:
            status = self._buffer.status
            own = agent_samples(status, self._sources.reports(), tallies(self._rules))
            found = bounded([*own, *host])
            at = datetime.fromtimestamp(self._wall(), UTC)
            return MetricsParams(ts=at, samples=found) if found else None

        return taken.addCallback(with_own)

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
        runner = self._runner
        if runner is None:
            return {"state": "starting", "host_id": self._identity.host_id}
        # What is broken or stopping is told without what only its thread knows.
        try:
            checkpoints = await self._buffer.checkpoints()
            oldest = await self._buffer.oldest()
            apart = await self._buffer.apart()
        except CortexError:
            checkpoints, oldest, apart = {}, None, None
        now, reports = self._reactor.seconds(), self._sources.reports()
        return agent_status(
            now=now,
            host_id=self._identity.host_id,
            version=self._version,
            runner=runner,
            buffer=self._buffer,
            oldest=oldest,
            apart=apart,
            planned=self._planned,
            reports=reports,
            troubled=self._waits.troubled(now, reports),
            held_by=self._sources.held_by,
            checkpoints=checkpoints,
            config=self._trial.standing,
            rules=tallies(self._rules),
            probes=[] if self._probes is None else self._probes.states(),
        )

    # Configurations

    def _carry_out(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Use(config, back):
                    told = set(self._planned.left_out)
                    self._plan()
                    new = [left for left in self._planned.left_out if left not in told]
                    self._report_refusals(new)
                    if self._probes is not None:
                        self._probes.allow_at_once(config.probe_concurrency)
                    if back:
                        self._take_back(config)
                case Keep(config):
                    self._keep_config(config)
                case Tell(standing):
                    if standing.state != "applied":
                        self.log.warn("the server's configuration: {why}", why=standing.reason)
                    body = config_reported(standing, self._micros())
                    self._put_own([body], "reporting the configuration")

    def _take_back(self, config: AgentConfig) -> None:
        runner = self._runner
        if runner is not None:
            runner.feed(lambda now: runner.link.rolled_back(config, now))

    def _faults(self, state: SourceState = "failed") -> dict[str, str]:
        """The sources that fail, or wait, of what a server can ask for, with why (A58)."""
        return {
            f"{report.kind} {report.name}": report.why or "it does not say why"
            for report in self._sources.reports()
            if report.state == state and report.kind != "custom"
        }

    def _plan(self) -> None:
        config = self._trial.effective
        asked = () if config is None else config.log_sources
        allow = self._settings.agent.allow_sources
        before = set(self._planned.left_out)
        self._planned = plan(asked, allow, self._settings.sources, self._lacking())
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
            self._put_own(bodies, "reporting refused sources")

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

    # Once a second

    async def _look_around(self) -> None:
        try:
            await self._care.look()
            now = self._reactor.seconds()
            runner = self._runner
            live = runner is not None and runner.link.state == "active"
            session = runner.link.session_id if runner is not None and live else None
            self._waits.looked(now, self._sources.reports())
            cut = None if runner is None else runner.cut_by
            faults, waiting = self._faults(), self._faults("waiting")
            self._carry_out(self._trial.looked(now, session, faults, waiting, cut))
            if now >= self._limited_at:
                self._limited_at = now + LIMITED_SECONDS
                self._report_limited()
        except Exception:
            self.log.failure("looking around failed")

    def _report_limited(self) -> None:
        """Tell the server what rate limits left out since the last time (F37)."""
        for rule in self._rules:
            if rule.action != "limit":
                continue
            count = rule.tally.dropped - self._limited.get(rule.name, 0)
            if count > 0:
                self._limited[rule.name] = rule.tally.dropped
                body = limited_reported(rule.name, count, self._micros())
                self._put_own([body], "reporting a rate limit")

    def _put_own(self, bodies: Sequence[bytes], what: str) -> None:
        self._buffer.put(bodies, {}).addErrback(self._failed, what)

    def _micros(self) -> int:
        return int(self._wall() * 1_000_000)

    def _failed(self, failure: Any, what: str) -> None:
        if failure.check(StoreFull):
            # `BufferCare` says that, now and then.
            return
        self.log.failure("{what} failed", failure, what=what)
