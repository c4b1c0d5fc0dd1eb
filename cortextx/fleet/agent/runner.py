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

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel

from cortextx.fleet import jsonrpc
from cortextx.fleet.agent import actions
from cortextx.fleet.contract import HEARTBEAT, CloseCode, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from cortextx.fleet.agent.actions import Action
    from cortextx.fleet.agent.buffer import Batch, Numbering
    from cortextx.fleet.agent.identity import IdentityFiles
    from cortextx.fleet.agent.link import Link
    from cortextx.fleet.contract import AgentConfig

_LEVELS = {"info": LogLevel.info, "warn": LogLevel.warn, "critical": LogLevel.critical}
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

    def configure(self, config: AgentConfig) -> None:
        """The server's configuration is this now (F18)."""

    def pause_sources(self) -> None:
        """Nothing can be sent for long (F34)."""

    def resume_sources(self) -> None:
        """Things flow again."""


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
        self.last_error: str | None = None

    def start(self) -> None:
        """Connect, and stay connected."""
        self.feed(self.link.started)

    def stop(self, seconds: float) -> Deferred[None]:
        """Drain for at most `seconds`, close; fires when the connection is gone (F42)."""
        done: Deferred[None] = Deferred()
        self._stopped = done
        self.feed(partial(self._stop, seconds))
        self._check_stopped()
        if not done.called:
            done.addTimeout(seconds + STOP_MARGIN, self._reactor)
            done.addErrback(lambda _: self.log.warn("the connection did not end in time"))
        return done

    def retry(self, token: str | None) -> None:
        """Make an attempt now, with the token as it is stored (F34)."""
        self.feed(lambda now: self.link.retry_requested(now, token))

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
            for action in given(self._reactor.seconds()) or ():
                self._do(action)
        except Exception:
            # A bug of ours must not end the link for good: begin with a new connection.
            self.log.failure("a fault in the agent's link")
            if self._attempt is not None:
                self._attempt.close(CloseCode.INTERNAL_ERROR, "")

    def _stop(self, seconds: float, now: float) -> list[Action]:
        return self.link.stop_requested(now, seconds)

    def _check_stopped(self) -> None:
        done = self._stopped
        if done is not None and self.link.state == "stopped" and not self.link.is_connected:
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
                # A connection that is refused at once calls back while `connect` runs.
                ear = _Ear(self)
                self._attempt = self._connector.connect(ear)
            case actions.Close(code, reason):
                if self._attempt is not None:
                    self._attempt.close(int(code), reason)
            case actions.Adopt(accepted_seq):
                adopted = maybeDeferred(self._buffer.adopt, accepted_seq)
                adopted.addCallbacks(self._adopted, partial(self._failed, self.link.adopt_failed))
                self._watch(adopted)
            case actions.StoreToken(token):
                stored = self._in_thread(self._files.store_token, token)
                failed = partial(self._failed, self.link.token_not_stored)
                stored.addCallbacks(lambda _: self.feed(self.link.token_stored), failed)
                self._watch(stored)
            case actions.DeleteToken():
                self._watch(self._in_thread(self._files.delete_token))
            case actions.SetAside(seq, reason):
                self._watch(self._buffer.set_aside(seq, reason))
            case actions.Configure(config):
                self._wants.configure(config)
            case actions.PauseSources():
                self._wants.pause_sources()
            case actions.ResumeSources():
                self._wants.resume_sources()
            case actions.Say(level, text):
                if level != "info":
                    self.last_error = text
                self.log.emit(_LEVELS[level], "{text}", text=text)

    def _batch_read(self, batch: Batch) -> None:
        self.feed(lambda now: self.link.batch_read(batch.first, batch.bodies, now))

    def _adopted(self, numbering: Numbering) -> None:
        acked, last, renumbered = numbering
        self.feed(lambda now: self.link.adopted(acked, last, now, renumbered))

    def _failed(self, given: Callable[[str, float], list[Action]], failure: Failure) -> None:
        reason = failure.getErrorMessage() or failure.value.__class__.__name__
        self.feed(lambda now: given(reason, now))

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
        work.addErrback(lambda failure: self.log.failure("the agent's work failed", failure))

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
        self.feed(lambda now: self.link.peer_lost(why, now))


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
