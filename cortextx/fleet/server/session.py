"""One agent's connection as the server sees it, without I/O (PURE; §2–§5).

Inputs are methods in the past tense; each answers the actions to carry out, in
order. `now` is seconds of the reactor's clock, `wall` µs since the epoch.

    awaiting_hello → authenticating → active → draining → closed

Every state may go to closed; a closed session ignores whatever comes. In
authenticating, frames are held and handled after the verdict, in order (F30).
Pushes are `intake`'s, metrics `samples`', and what the host is asked `probes`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Literal

from cortextx.core import liveness
from cortextx.core.budgets import Gauge
from cortextx.errors import JsonError
from cortextx.fleet import contract, jsonrpc
from cortextx.fleet.contract import AgentConfig, CloseCode, Code
from cortextx.fleet.server.actions import (
    Action,
    Beat,
    Close,
    Judge,
    Opened,
    PauseReading,
    Ping,
    ProbeDone,
    ResumeReading,
    Send,
    SetDeadline,
    Warn,
)
from cortextx.fleet.server.garbled import answered_id
from cortextx.fleet.server.hello import HelloFault, read_hello
from cortextx.fleet.server.intake import Intake, moment
from cortextx.fleet.server.probes import CLOSING, ProbeCall, ProbeQueue, Todo
from cortextx.fleet.server.quota import Quotas
from cortextx.fleet.server.samples import Samples
from cortextx.fleet.server.tokens import Accepted, Verdict
from cortextx.interfaces.fleet import Appended

State = Enum("State", ["awaiting_hello", "authenticating", "active", "draining", "closed"])
NEXT = {
    State.awaiting_hello: {State.authenticating, State.closed},
    State.authenticating: {State.active, State.closed},
    State.active: {State.draining, State.closed},
    State.draining: {State.closed},
    State.closed: set(),
}
"""The moves that a session makes."""

MAX_PENDING = 32
"""Pushes of one session that may wait for the store; beyond, nothing is read."""
MAX_HELD = 1024
"""Messages held behind a hello; reading is paused then, so few come (F30)."""
MAX_HELD_BYTES = 2 * contract.MAX_FRAME_BYTES
MAX_WARNINGS = 20
"""Faults of one peer that are logged."""
ShutdownReason = Literal["ServerReload", "Revoked", "Decommission"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What all sessions of a server share. Times in seconds, sizes in bytes."""

    server_version: str
    agent_config: AgentConfig = contract.DEFAULT_AGENT_CONFIG
    min_agent_version: str | None = None
    hello_timeout: float = contract.HELLO_TIMEOUT
    hello_max_bytes: int = contract.HELLO_MAX_BYTES
    ping_interval: float = contract.PING_INTERVAL
    missed_pongs: int = contract.MISSED_PONGS
    max_pending: int = MAX_PENDING
    retry_after_ms: int = 250
    """How long an agent should pause when the ingest queue is full (-32020, -32007)."""
    full_retry_after_ms: int = 5000
    """The same when the disk is full."""


@dataclass(slots=True)
class _Held:
    """What came behind a hello."""

    inputs: list[Callable[[], list[Action]]] = field(default_factory=list)
    size: int = 0


class ServerSession:
    """See the module; `gauge` and `quotas` are what all sessions share (`Intake`)."""

    def __init__(
        self, settings: SessionSettings, gauge: Gauge, quotas: Quotas | None = None
    ) -> None:
        self._settings = settings
        self._intake = Intake(
            gauge,
            settings.retry_after_ms,
            settings.full_retry_after_ms,
            Quotas() if quotas is None else quotas,
        )
        self._samples = Samples(gauge, settings.retry_after_ms, settings.full_retry_after_ms)
        self._probes: ProbeQueue | None = None
        self._probe_concurrency = settings.agent_config.probe_concurrency
        self._state = State.awaiting_hello
        self._hello_id: jsonrpc.Id = 0
        self._hello_due: float | None = None
        self._drained_at: float | None = None
        self._host_id: str | None = None
        self._pinger = liveness.Pinger(settings.ping_interval, settings.missed_pongs)
        self._held = _Held()
        self._paused = False
        self._deadline: float | None = None
        self._warnings = 0

    @property
    def state(self) -> str:
        """The state's name."""
        return self._state.name

    @property
    def host_id(self) -> str | None:
        """The authenticated host's id."""
        return self._host_id

    @property
    def pending(self) -> int:
        """The number of pushes that wait for the store."""
        return self._intake.pending

    # What the connection brings.

    def opened(self, now: float) -> list[Action]:
        """The upgrade is done: the hello must be complete in time (§3, F3)."""
        self._hello_due = now + self._settings.hello_timeout
        return self._settled([])

    def wire_counted(self, wire_bytes: int, payload_bytes: int) -> list[Action]:
        """So many bytes came since the upgrade, before the hello is complete (F3).

        `payload_bytes` are those of the first text message's payload, `wire_bytes`
        all others.
        """
        if self._state is not State.awaiting_hello:
            return []
        if wire_bytes > contract.PRE_HELLO_BYTES or payload_bytes > self._settings.hello_max_bytes:
            return self.too_big()
        return []

    def text_received(self, payload: bytes, now: float, wall: int) -> list[Action]:
        """A whole text message came."""
        match self._state:
            case State.closed:
                return []
            case State.authenticating:
                return self._hold(partial(self.text_received, payload, now, wall), len(payload))
            case State.awaiting_hello:
                limit = self._settings.hello_max_bytes
            case _:
                limit = contract.MAX_FRAME_BYTES
        if len(payload) > limit:
            return self.too_big()
        if not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                return self.not_utf8()
        if self._state is State.awaiting_hello:
            return self._settled(self._hello(payload))
        return self._settled(self._message(payload, now, wall))

    def binary_received(self) -> list[Action]:
        """A binary message came or began (§2, F9)."""
        return self._fatal(CloseCode.BINARY_FRAME, "binary frames are not taken", "1003 binary")

    def not_utf8(self) -> list[Action]:
        """A text message is not UTF-8 (RFC 6455 §8.1, F9)."""
        return self._fatal(CloseCode.NOT_UTF8, "text is not UTF-8", "1007 not UTF-8")

    def too_big(self) -> list[Action]:
        """A message exceeds what is taken (§2, F3, F31)."""
        return self._fatal(CloseCode.TOO_BIG, "message too big", "1009 oversize")

    def pong_received(self, payload: bytes, now: float) -> list[Action]:
        """A pong came: to a fence (F33), or as a sign of life (F21)."""
        if not self._intake.ponged(payload):
            self._pinger.ponged(payload, now)
        return []

    def peer_lost(self) -> list[Action]:
        """The connection is gone."""
        self._move(State.closed)
        return self._settled([])

    # What the server brings.

    def hello_judged(
        self, verdict: Verdict, now: float, wall: int, config: AgentConfig | None = None
    ) -> list[Action]:
        """The registry decided on the hello (§3). `config` is the host's, where it has its own."""
        if self._state is not State.authenticating:
            return []
        if not isinstance(verdict, Accepted):
            return self._settled(
                [
                    Send(jsonrpc.error(self._hello_id, verdict.code, verdict.data)),
                    self._close(
                        verdict.close_code,
                        verdict.code.title,
                        _record(verdict.close_code, verdict.code),
                    ),
                ]
            )
        self._move(State.active)
        self._host_id = verdict.host_id
        self._intake.begin(verdict.host_id, verdict.accepted_seq)
        self._pinger.started(now)
        config = self._settings.agent_config if config is None else config
        self._probe_concurrency = config.probe_concurrency
        result = contract.HelloResult(
            server_version=self._settings.server_version,
            server_time=moment(wall),
            accepted_seq=verdict.accepted_seq,
            session_id=verdict.session_id,
            config=config,
            rotated_token=verdict.rotated_token,
        )
        todo: list[Action] = [
            Opened(verdict.host_id, verdict.session_id),
            Send(jsonrpc.result(self._hello_id, result)),
        ]
        held, self._held = self._held, _Held()
        for handle in held.inputs:
            todo += handle()
        return self._settled(todo)

    def stored(self, key: int, appended: Appended, now: float, wall: int) -> list[Action]:
        """A batch is durable: this is its ack (F10, F11)."""
        if self._state is State.closed:
            return []
        return self._settled(self._intake.stored(key, appended))

    def not_stored(self, key: int, error: Exception, now: float) -> list[Action]:
        """Nothing of a batch was stored, nor will be of those behind it (F33)."""
        if self._state is State.closed:
            return []
        return self._settled(self._intake.not_stored(key, error))

    def measured(self, key: int, outcome: tuple[int, int] | Exception) -> list[Action]:
        """So many samples of a metrics.push are stored, so many are not (F24); or it failed."""
        if self._state is State.closed:
            return []
        return self._settled(self._samples.done(key, outcome))

    def probe_asked(self, key: int, call: ProbeCall, now: float) -> list[Action]:
        """The host is to run a probe; a ProbeDone with `key` says what came of it (§4.6)."""
        if self._state is not State.active:
            return [ProbeDone(key, CLOSING)]
        if self._probes is None:
            self._probes = ProbeQueue(self._probe_concurrency)
        return self._settled(_probing(self._probes.asked(key, call, now)))

    def configured(
        self, config: AgentConfig, apply_after: datetime | None, now: float
    ) -> list[Action]:
        """The host is to do as `config` says, from `apply_after` on (§4.8, F22)."""
        if self._state is not State.active:
            return []
        self._probe_concurrency = config.probe_concurrency
        update = contract.ConfigUpdate(config=config, apply_after=apply_after)
        todo: list[Action] = [Send(jsonrpc.notification(contract.CONFIG_UPDATE, update))]
        if self._probes is not None:
            todo += _probing(self._probes.allowed(config.probe_concurrency, now))
        return self._settled(todo)

    def superseded(self) -> list[Action]:
        """A newer session of the host is there (F14)."""
        return self._fatal(CloseCode.NORMAL, "superseded", "1000 superseded", held=False)

    def revoked(self) -> list[Action]:
        """The host was revoked (F8)."""
        todo: list[Action] = []
        if self._state is State.authenticating:
            todo.append(Send(jsonrpc.error(self._hello_id, Code.TOKEN_REVOKED)))
        elif self._state in (State.active, State.draining):
            todo.append(_shutdown("Revoked", 0))
        return todo + self._fatal(CloseCode.TOKEN_REVOKED, "revoked", "4002 revoked", held=False)

    def shut_down(self, reason: ShutdownReason, drain_seconds: int, now: float) -> list[Action]:
        """The server lets go of the host: pushes are taken until the drain ends (§4.3)."""
        record = f"1000 {reason}"
        if self._state in (State.awaiting_hello, State.authenticating):
            return self._fatal(CloseCode.NORMAL, reason, record, held=False)
        if self._state is State.closed:
            return []
        todo: list[Action] = [_shutdown(reason, drain_seconds)]
        if drain_seconds <= 0:
            return self._settled([*todo, self._close(CloseCode.NORMAL, reason, record)])
        if self._state is State.active:
            self._move(State.draining)
        end = now + drain_seconds
        self._drained_at = end if self._drained_at is None else min(end, self._drained_at)
        return self._settled(todo)

    def time_passed(self, now: float) -> list[Action]:
        """The deadline of the last SetDeadline is there."""
        # The caller's timer is spent, so the next deadline is told even if it is the same.
        self._deadline = None
        if self._state is State.closed:
            return []
        if self._hello_due is not None and now >= self._hello_due:
            return self._fatal(
                CloseCode.HANDSHAKE_TIMEOUT, "handshake timeout", "4000 handshake timeout"
            )
        if self._drained_at is not None and now >= self._drained_at:
            return self._fatal(CloseCode.NORMAL, "drained", "1000 drained")
        over = [] if self._probes is None else _probing(self._probes.time_passed(now))
        return self._settled(over + self._beat_of_time(now))

    # The messages.

    def _hello(self, payload: bytes) -> list[Action]:
        """The first message: a hello, or the end (§3, F4)."""
        try:
            self._hello_id, hello = read_hello(payload, self._settings.min_agent_version)
        except HelloFault as fault:
            close = CloseCode.AUTH_FAILED
            return [
                Send(jsonrpc.error(fault.id, fault.code, fault.data)),
                self._close(close, fault.code.title, _record(close, fault.code)),
            ]
        self._hello_due = None
        self._move(State.authenticating)
        return [Judge(hello)]

    def _message(self, payload: bytes, now: float, wall: int) -> list[Action]:
        try:
            message = jsonrpc.parse(payload, utf8_checked=True)
        except jsonrpc.EnvelopeError as error:
            return self._unreadable(error, payload, now)
        match message:
            case jsonrpc.Request(id, contract.LOGS_PUSH, _):
                return self._intake.pushed(message, payload, now, wall)
            case jsonrpc.Request(id, contract.METRICS_PUSH, _):
                assert self._host_id is not None
                return self._samples.pushed(message, len(payload), self._host_id)
            case jsonrpc.Notification(contract.HEARTBEAT, params):
                try:
                    beat = jsonrpc.decode_params(params, contract.Heartbeat)
                    return [Beat(beat, self._intake.accepted_seq)]
                except JsonError:
                    return self._warn("a malformed heartbeat was dropped")
            case jsonrpc.Request(id, contract.HELLO | contract.HEARTBEAT, _):
                # A second hello (F30), or a notification that asks for an answer.
                return [Send(jsonrpc.error(id, Code.INVALID_REQUEST))]
            case jsonrpc.Request(id, _, _):
                return [Send(jsonrpc.error(id, Code.METHOD_NOT_FOUND))]
            case jsonrpc.Notification():
                return self._warn("a notification that is none of the agent's was dropped")
            case jsonrpc.Response():
                return self._answered(message, now)

    def _unreadable(self, error: jsonrpc.EnvelopeError, payload: bytes, now: float) -> list[Action]:
        """Answer a message without a usable envelope; it may have been a push (F33), or end
        the probe whose answer it is as far as can be told (§4.7)."""
        if self._probes is not None and self._probes.out:
            todo = self._probes.garbled(answered_id(payload), error, now)
            if todo is not None:
                return self._warn("a probe's answer cannot be read") + _probing(todo)
        data = {"field": error.field, "expected": error.expected}
        if error.method is not None and error.method != contract.LOGS_PUSH:
            return [Send(jsonrpc.error(error.id, error.code, data))]
        return self._intake.refuse(error.id, None, error.code, data)

    def _answered(self, response: jsonrpc.Response, now: float) -> list[Action]:
        """A probe's answer (§4.7); one that comes too late is dropped without a word."""
        todo = None if self._probes is None else self._probes.answered(response, now)
        if todo is None:
            return self._warn("an answer to nothing that was asked was dropped")
        return _probing(todo)

    def _warn(self, text: str) -> list[Action]:
        self._warnings += 1
        if self._warnings > MAX_WARNINGS:
            return []
        return [
            Warn(text if self._warnings < MAX_WARNINGS else f"{text}; further ones are not told")
        ]

    # Time, reading, and the end.

    def _beat_of_time(self, now: float) -> list[Action]:
        due = self._pinger.deadline
        if due is None or now < due:
            return []
        if self._paused:
            # We do not read, so its pongs cannot come: they are not missed (F21).
            self._pinger.started(now)
            return [Ping(b"paused")]
        match self._pinger.time_passed(now):
            case liveness.Ping(payload):
                return [Ping(payload)]
            case liveness.Dead():
                return [self._close(CloseCode.INTERNAL_ERROR, "missed pongs", "1011 missed pongs")]
        return []

    def _hold(self, handle: Callable[[], list[Action]], size: int = 0) -> list[Action]:
        held = self._held
        held.inputs.append(handle)
        held.size += size
        if len(held.inputs) > MAX_HELD or held.size > MAX_HELD_BYTES:
            return self._settled(
                [self._close(CloseCode.TOO_BIG, "too much behind a hello", "1009 oversize")]
            )
        return []

    def _fatal(self, code: CloseCode, reason: str, record: str, held: bool = True) -> list[Action]:
        """Close; what follows a hello waits for its verdict where `held` (F30)."""
        if self._state is State.closed:
            return []
        if held and self._state is State.authenticating:
            return self._hold(partial(self._fatal, code, reason, record))
        return self._settled([self._close(code, reason, record)])

    def _close(self, code: CloseCode, reason: str, record: str) -> Close:
        self._move(State.closed)
        self._held = _Held()
        return Close(code, reason, record)

    def _move(self, state: State) -> None:
        if state is not self._state:
            assert state in NEXT[self._state], (self._state, state)
            self._state = state

    def _settled(self, todo: list[Action]) -> list[Action]:
        """Add what reading and the deadline need by now; a Close stays the last."""
        also: list[Action] = []
        if self._state is State.closed and self._probes is not None:
            also += [ProbeDone(key, outcome) for key, outcome in self._probes.lost()]
        paused = self._state is State.authenticating or (
            self._state is not State.closed and self._intake.pending >= self._settings.max_pending
        )
        if paused is not self._paused:
            self._paused = paused
            also.append(PauseReading() if paused else ResumeReading())
        deadline = self._next_deadline()
        if deadline != self._deadline:
            self._deadline = deadline
            also.append(SetDeadline(deadline))
        if todo and isinstance(todo[-1], Close):
            return [*todo[:-1], *also, todo[-1]]
        return todo + also

    def _next_deadline(self) -> float | None:
        if self._state is State.closed:
            return None
        probes = None if self._probes is None else self._probes.deadline
        times = (self._hello_due, self._drained_at, self._pinger.deadline, probes)
        return min((time for time in times if time is not None), default=None)


def _record(close: CloseCode, code: Code) -> str:
    return f"{close.value} {code.title}"


def _probing(todo: Todo) -> list[Action]:
    messages, done = todo
    over: list[Action] = [ProbeDone(key, outcome) for key, outcome in done]
    return [*map(Send, messages), *over]


def _shutdown(reason: ShutdownReason, drain_seconds: int) -> Send:
    params = contract.Shutdown(reason=reason, drain_seconds=drain_seconds)
    return Send(jsonrpc.notification(contract.SHUTDOWN, params))
