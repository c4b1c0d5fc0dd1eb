"""Carries out what the link machine asks: sockets, buffer, token file, time.

The one rule that everything here keeps is the link's: an input never comes
while the actions of the one before are still being carried out. What happens
meanwhile waits in a queue.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel

from cortextx.errors import StoreFull
from cortextx.fleet import jsonrpc
from cortextx.fleet.agent import actions
from cortextx.fleet.contract import HEARTBEAT, CloseCode, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from cortextx.fleet.agent.actions import Action
    from cortextx.fleet.agent.asked import ProbeError
    from cortextx.fleet.agent.buffer import Batch, Numbering
    from cortextx.fleet.agent.identity import IdentityFiles
    from cortextx.fleet.agent.link import Link
    from cortextx.fleet.contract import AgentConfig, Capabilities, MetricsParams, ProbeOutput

_LEVELS = {"info": LogLevel.info, "warn": LogLevel.warn, "critical": LogLevel.critical}
SUPERSEDED_TIMES, SUPERSEDED_SECONDS = 3, 600.0
"""Sessions lost to another agent with this identity, within so long, that tell of a clone."""
STOP_MARGIN = 6.0
"""Seconds beyond the drain after which a stop no longer waits for the connection's end."""


class AgentBuffer(Protocol):
    """The buffer as the reactor sees it (`fleet.agent.buffer_writer`)."""

    @property
    def depth(self) -> int: ...
    @property
    def size(self) -> int: ...
    def read(self, first_seq: int, max_entries: int, max_bytes: int) -> Deferred[Batch]: ...
    def adopt(self, accepted_seq: int) -> Deferred[Numbering]: ...
    def truncate(self, acked: int) -> Deferred[None]: ...
    def set_aside(self, seq: int, reason: str) -> Deferred[bool]: ...


class Connects(Protocol):
    """Makes connections (`protocol.Connector`)."""

    def connect(self, hears: Any) -> Any: ...


class Wants(Protocol):
    """What the link tells the rest of the agent."""

    def configure(self, config: AgentConfig, pushed: bool) -> None:
        """The server's configuration is this now, by a config.update if `pushed` (F18)."""

    def config_refused(self, reason: str) -> None:
        """The server sent a configuration that is not usable (A58)."""

    def capabilities(self) -> Capabilities:
        """What this host can do now (§8)."""

    def run_probe(self, name: str, args: Any, seconds: float) -> Deferred[ProbeOutput | ProbeError]:
        """Run a probe; it never fails, but for being cancelled (§4.6)."""

    def samples(self) -> Deferred[MetricsParams | None]:
        """Take this host's samples (§4.5)."""

    def pause_sources(self) -> None:
        """Nothing can be sent for long (F34)."""

    def resume_sources(self) -> None:
        """Things flow again."""

    def report_restored(self, first: int, last: int) -> None:
        """The server lost what it had acked, from one seq to the other (F26)."""


class LinkRunner:
    """One link, and everything that it needs done."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        link: Link,
        buffer: AgentBuffer,
        files: IdentityFiles,
        connector: Connects,
        wants: Wants,
        wall: Callable[[], float],
    ) -> None:
        self.link = link
        self._reactor = reactor
        self._buffer = buffer
        self._files = files
        self._connector = connector
        self._wants = wants
        self._wall = wall
        self._attempt: Any = None
        self._inputs: deque[Callable[[float], list[Action] | None]] = deque()
        self._busy = False
        self._deadline: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None
        self._probes: set[Deferred[Any]] = set()
        self.superseded = Superseded()
        self.last_error: str | None = None
        self.cut_by: str | None = None
        """How the last connection, or attempt at one, ended, in words."""

    def start(self) -> None:
        """Connect, and stay connected."""
        self.feed(self.link.started)

    def stop(self, seconds: float) -> Deferred[None]:
        """Drain for at most `seconds`, close; fires when the connection is gone (F42), and
        a token that is being stored has been, or has not."""
        done: Deferred[None] = Deferred()
        self._stopped = done
        self.feed(partial(self._stop, seconds))
        self._check_stopped()
        if not done.called:
            done.addTimeout(seconds + STOP_MARGIN, self._reactor)
            done.addErrback(lambda _: self.log.warn("the connection did not end in time"))
        return done

    def retry(self, token: str | None, previous: str | None = None) -> None:
        """Make an attempt now, with the tokens as they are stored (F34)."""
        self.feed(lambda now: self.link.retry_requested(now, token, previous))

    def entries_available(self, last: int) -> None:
        """All up to `last` is durable in the buffer."""
        self.feed(lambda now: self.link.entries_available(last, now))

    def feed(self, given: Callable[[float], list[Action] | None]) -> None:
        """Give the link an input, in turn; it is called with the time."""
        self._inputs.append(given)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inputs:
                self._one(self._inputs.popleft())
        finally:
            self._busy = False
        self._check_stopped()

    def _one(self, given: Callable[[float], list[Action] | None]) -> None:
        try:
            was_active = self.link.state == "active"
            actions = given(self._reactor.seconds()) or ()
            if self.link.state == "active" and not was_active:
                # What was wrong before is over.
                self.last_error = None
            for action in actions:
                self._do(action)
        except Exception:
            # A bug of ours must not end the link for good: begin with a new connection.
            self.log.failure("a fault in the agent's link")
            if self._attempt is not None:
                self._attempt.close(CloseCode.INTERNAL_ERROR, "")

    def _stop(self, seconds: float, now: float) -> list[Action]:
        return self.link.stop_requested(now, seconds)

    def _check_stopped(self) -> None:
        done, link = self._stopped, self.link
        busy = link.is_connected or link.is_storing
        if done is not None and link.state == "stopped" and not busy:
            self._stopped = None
            self._set_deadline(None)
            done.callback(None)

    def _do(self, action: Action) -> None:
        match action:
            case actions.Send(payload):
                if self._attempt is not None:
                    self._attempt.send(payload)
            case actions.ReadBatch(first, max_entries, max_bytes):
                asked = maybeDeferred(self._buffer.read, first, max_entries, max_bytes)
                asked.addCallbacks(self._batch_read, partial(self._failed, self.link.read_failed))
                self._watch(asked)
            case actions.SetDeadline(at):
                self._set_deadline(at)
            case actions.Truncate(acked):
                self._watch(self._buffer.truncate(acked))
            case actions.Beat(lag):
                self._beat(lag)
            case actions.Connect():
                self._prepare()
            case actions.Close(code, reason):
                if self._attempt is not None:
                    self._attempt.close(int(code), reason)
            case actions.Adopt(accepted_seq):
                adopted = maybeDeferred(self._buffer.adopt, accepted_seq)
                adopted.addCallbacks(self._adopted, partial(self._failed, self.link.adopt_failed))
                self._watch(adopted)
            case actions.StoreToken(token, replaced):
                stored = self._in_thread(self._files.store_token, token, replaced)
                failed = partial(self._failed, self.link.token_not_stored)
                stored.addCallbacks(lambda _: self.feed(self.link.token_stored), failed)
                self._watch(stored)
            case actions.DeleteToken():
                self._watch(self._in_thread(self._files.delete_token))
            case actions.SetAside(seq, reason):
                self._watch(self._buffer.set_aside(seq, reason))
            case actions.Configure(config, pushed):
                self._wants.configure(config, pushed)
            case actions.RefuseConfig(reason):
                self._wants.config_refused(reason)
            case actions.RunProbe():
                self._run_probe(action)
            case actions.CancelProbes():
                for probe in list(self._probes):
                    probe.cancel()
            case actions.Gather():
                self._gather()
            case actions.PauseSources():
                self._wants.pause_sources()
            case actions.ResumeSources():
                self._wants.resume_sources()
            case actions.ReportRestored(first, last):
                self._wants.report_restored(first, last)
            case actions.Say(level, text):
                if level != "info":
                    self.last_error = text
                self.log.emit(_LEVELS[level], "{text}", text=text)

    def _prepare(self) -> None:
        """Connect, once there is room for a token that the server may give."""
        self.link.offers(self._wants.capabilities())
        attempt = self._attempt = _Preparing(_Ear(self))
        room = self._in_thread(self._make_room)
        room.addCallbacks(lambda _: self.feed(lambda _: self._dial(attempt)), attempt.fail)
        self._watch(room)

    def _make_room(self) -> None:
        """Raises OSError where the token may be a one-time token and its answer has no room.

        A long-lived one has a grace when it is replaced, and its host's logs should go.
        """
        try:
            self._files.reserve()
        except OSError:
            if self._files.never_rotated:
                raise

    def _dial(self, attempt: _Preparing) -> None:
        if self._attempt is attempt:
            # A connection that is refused at once calls back while `connect` runs.
            self._attempt = self._connector.connect(attempt.ear)

    def _batch_read(self, batch: Batch) -> None:
        self.feed(lambda now: self.link.batch_read(batch.first, batch.bodies, now))

    def _adopted(self, numbering: Numbering) -> None:
        acked, last, renumbered = numbering
        self.feed(lambda now: self.link.adopted(acked, last, now, renumbered))

    def _failed(self, given: Callable[[str, float], list[Action]], failure: Failure) -> None:
        reason = failure.getErrorMessage() or failure.value.__class__.__name__
        self.feed(lambda now: given(reason, now))

    def _run_probe(self, asked: actions.RunProbe) -> None:
        done = maybeDeferred(self._wants.run_probe, asked.probe, asked.args, asked.seconds)
        self._probes.add(done)

        def answered(outcome: ProbeOutput | ProbeError) -> None:
            self.feed(lambda now: self.link.probe_done(asked.ticket, outcome, now))

        def over(result: Any) -> Any:
            self._probes.discard(done)
            return result

        done.addBoth(over)
        done.addCallback(answered)
        done.addErrback(lambda failure: failure.trap(CancelledError) and None)
        self._watch(done)

    def _gather(self) -> None:
        def gathered(params: MetricsParams | None) -> None:
            self.feed(lambda now: self.link.gathered(params, now))

        def failed(failure: Failure) -> None:
            self.log.failure("the samples could not be taken", failure)
            gathered(None)

        self._watch(maybeDeferred(self._wants.samples).addCallbacks(gathered, failed))

    def _beat(self, lag: int) -> None:
        beat = Heartbeat(
            ts=datetime.fromtimestamp(self._wall(), UTC),
            queue_depth=max(0, self._buffer.depth),
            buffer_bytes=max(0, self._buffer.size),
            push_lag_seq=lag,
        )
        if self._attempt is not None:
            self._attempt.send(jsonrpc.notification(HEARTBEAT, beat))

    def _in_thread(self, work: Callable[..., None], *details: str) -> Deferred[None]:
        pool = self._reactor.getThreadPool()
        done: Deferred[None] = deferToThreadPool(self._reactor, pool, work, *details)
        return done

    def _watch(self, work: Deferred[Any]) -> None:
        work.addErrback(self._work_failed)

    def _work_failed(self, failure: Failure) -> None:
        # A full disk is no fault of ours; the agent says it once for all (`AgentService`).
        if not failure.check(StoreFull):
            self.log.failure("the agent's work failed", failure)

    def _set_deadline(self, at: float | None) -> None:
        call, self._deadline = self._deadline, None
        if call is not None and call.active():
            call.cancel()
        if at is not None:
            wait = max(0.0, at - self._reactor.seconds())
            self._deadline = self._reactor.callLater(wait, self._time_passed)

    def _time_passed(self) -> None:
        self._deadline = None
        self.feed(self.link.time_passed)

    def lost(self, why: str) -> None:
        """The connection of now is gone."""
        self._attempt = None
        self.cut_by = why
        if "superseded" in why and self.superseded.noted(self._reactor.seconds()):
            self.log.critical(
                "another agent with this host's identity keeps taking its place: is this host"
                " a copy of another one? Enrol one of them anew"
            )
        self.feed(lambda now: self.link.peer_lost(why, now))


class Superseded:
    """Counts how often another agent took this one's place (A55, F14)."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=SUPERSEDED_TIMES)
        self._said_at = -SUPERSEDED_SECONDS

    def noted(self, now: float) -> bool:
        """It happened again; whether the operator is to hear of it."""
        self._times.append(now)
        if not self.is_probable_clone(now) or now < self._said_at + SUPERSEDED_SECONDS:
            return False
        self._said_at = now
        return True

    def is_probable_clone(self, now: float) -> bool:
        """Whether that was so often of late that two agents must share an identity."""
        return len(self._times) == SUPERSEDED_TIMES and now - self._times[0] < SUPERSEDED_SECONDS


class _Preparing:
    """An attempt that is not under way yet."""

    def __init__(self, ear: _Ear) -> None:
        self.ear = ear

    def send(self, payload: bytes) -> None:
        """There is nobody to send to."""

    def close(self, code: int, reason: str) -> None:
        """Give it up."""
        self.ear.lost("given up before it began")

    def fail(self, failure: Failure) -> None:
        """It cannot begin."""
        why = getattr(failure.value, "strerror", None) or failure.getErrorMessage()
        self.ear.lost(f"there is no room to store the token that the server will give: {why}")


class _Ear:
    """Hears one connection for a runner; a connection that is over is heard no more."""

    def __init__(self, runner: LinkRunner) -> None:
        self._runner: LinkRunner | None = runner

    def opened(self) -> None:
        if self._runner is not None:
            self._runner.feed(self._runner.link.connected)

    def message(self, payload: bytes, binary: bool) -> None:
        runner = self._runner
        if runner is None:
            return
        if binary:
            runner.feed(runner.link.binary_received)
        else:
            runner.feed(lambda now: runner.link.frame_received(payload, now))

    def pinged(self) -> None:
        if self._runner is not None:
            self._runner.feed(self._runner.link.ping_received)

    def full(self) -> None:
        runner = self._runner
        if runner is not None:
            runner.feed(lambda _: runner.link.transport_full())

    def ready(self) -> None:
        if self._runner is not None:
            self._runner.feed(self._runner.link.transport_ready)

    def lost(self, why: str) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            # In turn, so that an attempt that fails at once is forgotten after it is made.
            runner.feed(lambda now: runner.lost(why))
