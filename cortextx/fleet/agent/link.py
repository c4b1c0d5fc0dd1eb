"""The agent's side of the connection as a machine: §6, with F34, F36 and F42 (PURE).

`Link` takes what happened (in the past tense, with `now` in seconds of any
clock that does not jump) and answers the actions to carry out in order. The
state graph is `states.TABLE`; what is sent in `active` and `draining` is
`sending.Sender`'s.

ReadBatch and Adopt must each be answered in the order they were asked for, also
when the connection has gone meanwhile; StoreToken always. No input may come while
the actions of the one before are still being carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

import msgspec

from cortextx.core import jsontext
from cortextx.core.backoff import FullJitter
from cortextx.errors import JsonError
from cortextx.fleet import jsonrpc
from cortextx.fleet.agent.actions import (
    Action,
    Beat,
    RefuseConfig,
    Say,
    SetDeadline,
)
from cortextx.fleet.agent.hello import read_config, read_welcome
from cortextx.fleet.agent.sending import Broken, refusal_wait
from cortextx.fleet.agent.states import FATAL, TOKEN_RETRY, Core, make_transitions
from cortextx.fleet.contract import (
    CONFIG_UPDATE,
    SHUTDOWN,
    CloseCode,
    Code,
    HelloParams,
    Moment,
    Shutdown,
)

if TYPE_CHECKING:
    from cortextx.fleet.agent.asked import ProbeError
    from cortextx.fleet.contract import AgentConfig, Capabilities, MetricsParams, ProbeOutput

MAX_HELD = 64
"""Frames that are held while the hello's result is stored (F42)."""
PROTOCOL_FAULT = 1002
"""RFC 6455's close code for a peer that breaks the protocol."""
_LIVE = frozenset({"connecting", "authenticating", "storing", "active", "draining"})
_SENDING = frozenset({"active", "draining"})


class _Update(msgspec.Struct, frozen=True):
    """config.update's params, the config read apart (§4.8)."""

    config: msgspec.Raw
    apply_after: Moment | None = None


class Link:
    """One agent's link to its server, over all its connections.

    `hello` carries the stored token, the buffer's acked seq as `resume_from_seq`
    and what else the server is told; `last` is the highest seq in the buffer.
    `random` answers a float from 0 to below 1. `previous` is the token that the
    stored one replaced: it is tried once where the server does not know that (A56).
    """

    def __init__(
        self,
        hello: HelloParams,
        last: int,
        backoff: FullJitter,
        random: Callable[[], float],
        previous: str | None = None,
    ) -> None:
        self._core = Core(hello, last, backoff, random, previous)
        self._machine = make_transitions(self._core)
        self._deadline: float | None = None

    @property
    def state(self) -> str:
        """The state's name, as in `states.TABLE`."""
        return self._core.state

    @property
    def why(self) -> str:
        """In words, why the link is not active; empty while it is."""
        return self._core.why

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open or being opened."""
        return self._core.connected

    @property
    def is_storing(self) -> bool:
        """Whether a token is on its way to the disk; an agent that stops waits for that."""
        return self._core.token_pending is not None

    @property
    def acked(self) -> int:
        """The highest seq that is durable on the server, as far as is known."""
        return self._core.sender.acked

    @property
    def last(self) -> int:
        """The highest seq in the buffer, as far as is known."""
        return self._core.sender.last

    @property
    def in_flight(self) -> int:
        """The pushes that wait for an answer."""
        return self._core.sender.in_flight

    @property
    def samples(self) -> tuple[int, int]:
        """How many samples the server has accepted and dropped since the agent started (F24)."""
        return self._core.metering.accepted, self._core.metering.dropped

    @property
    def config_due_at(self) -> float | None:
        """When a pending config.update is applied; None if none is (F22)."""
        pending = self._core.pending_config
        return None if pending is None else pending[0]

    @property
    def session_id(self) -> str | None:
        """The session that the server gave, if there ever was one."""
        welcome = self._core.welcome
        return None if welcome is None else welcome.session_id

    @property
    def attempt_at(self) -> float | None:
        """When the next attempt to connect is due; None if none is planned."""
        return None if self._core.due_at == inf else self._core.due_at

    def offers(self, capabilities: Capabilities) -> None:
        """What the next hello says that this host can do (§8)."""
        self._core.hello = msgspec.structs.replace(self._core.hello, capabilities=capabilities)

    def started(self, now: float) -> list[Action]:
        """The agent runs: connect."""
        return self._step(now, lambda: self._machine.start(now))

    def connected(self, now: float) -> list[Action]:
        """The WebSocket that Connect asked for is open."""
        if self.state != "connecting" or self._core.closing:
            return []
        return self._step(now, lambda: self._machine.upgraded(now))

    def peer_lost(self, reason: str, now: float) -> list[Action]:
        """The connection is gone, or was never made; `reason` is for people."""
        self._core.connected = self._core.closing = False
        if self.state == "disconnected":
            return []
        if self._core.stopping and self.state == "draining":
            return self._step(now, lambda: self._machine.stop(now))
        return self._step(now, lambda: self._machine.lost(reason, now))

    def frame_received(self, payload: bytes, now: float) -> list[Action]:
        """A text message came; it need not be UTF-8."""
        return self._step(now, lambda: self._frame(payload, now))

    def binary_received(self, now: float) -> list[Action]:
        """A binary message came: that is not for V1 (§2, F42)."""
        why = "the server sent a binary frame"
        return self._step(now, lambda: self._fail(why, now, CloseCode.BINARY_FRAME, full=True))

    def ping_received(self, now: float) -> list[Action]:
        """The server pinged (F36)."""
        if self._core.pings.deadline is not None:
            self._core.pings.heard(now)
        return self._step(now, list)

    def token_stored(self, now: float) -> list[Action]:
        """The token of the last StoreToken is durable (§3)."""
        self._core.use_token()
        return self._step(now, lambda: self._settle(now))

    def token_not_stored(self, reason: str, now: float) -> list[Action]:
        """The token could not be stored: no hello goes out before it is, or it would be lost.

        A previous token that only takes its place again is on the disk anyway. An agent
        that stops has no time for another try.
        """
        core = self._core
        if core.token_pending is not None and core.token_pending == core.previous:
            core.use_token()
            text = f"the token before is good, but cannot be put back in its place: {reason}"
            return self._step(now, lambda: [Say("warn", text), *self._settle(now)])
        if self.state == "stopped":
            core.token_pending = None
            text = f"the server's new token could not be stored and is lost: {reason}. This host"
            text += " must be issued again (`cortextx agent issue --host-id`), unless the server"
            text += " still takes the token before"
            return self._step(now, lambda: [Say("critical", text)])
        core.token_retry_at = now + TOKEN_RETRY
        text = f"the new token cannot be stored: {reason}; trying again"
        return self._step(now, lambda: [Say("critical", text)])

    def adopted(self, acked: int, last: int, now: float, renumbered: bool = False) -> list[Action]:
        """The buffer has taken in what the server has (§7, F2, F26)."""
        self._core.renumbered |= renumbered
        if not self._core.adopting.pop(0):
            return []
        self._core.adopted = (acked, last, renumbered)
        return self._step(now, lambda: self._settle(now))

    def adopt_failed(self, reason: str, now: float) -> list[Action]:
        """The buffer could not carry out the oldest Adopt."""
        if not self._core.adopting.pop(0):
            return []
        why = f"the buffer cannot be brought up to date: {reason}"
        return self._step(now, lambda: self._fail(why, now, CloseCode.NORMAL, full=True))

    def batch_read(self, first: int, bodies: Sequence[bytes], now: float) -> list[Action]:
        """The buffer answers the oldest ReadBatch; the first body has seq `first`."""
        return self._step(now, lambda: self._core.sender.batch_read(first, bodies, now))

    def read_failed(self, reason: str, now: float) -> list[Action]:
        """The buffer could not carry out the oldest ReadBatch."""

        def work() -> list[Action]:
            self._core.sender.read_failed(reason)
            return []

        return self._step(now, work)

    def entries_available(self, last: int, now: float) -> list[Action]:
        """All up to `last` is durable in the buffer."""
        core = self._core
        if core.adopted is not None and self.state == "storing":
            # The buffer has answered already, but its answer is in use only when the
            # token is stored too: what came in between would wait for the next entry.
            acked, known, renumbered = core.adopted
            core.adopted = (acked, max(known, last), renumbered)
        return self._step(now, lambda: core.sender.entries_available(last, now))

    def transport_full(self) -> None:
        """The transport's own buffer is full: read nothing more for it."""
        self._core.sender.transport_full()

    def transport_ready(self, now: float) -> list[Action]:
        """The transport takes data again."""
        return self._step(now, lambda: self._core.sender.transport_ready(now))

    def gathered(self, params: MetricsParams | None, now: float) -> list[Action]:
        """The samples that Gather asked for; None if they cannot be taken."""
        return self._step(now, lambda: self._core.metering.gathered(params))

    def probe_done(
        self, ticket: int, outcome: ProbeOutput | ProbeError, now: float
    ) -> list[Action]:
        """What became of a RunProbe; nobody hears it if its connection has gone (F27)."""
        return self._step(now, lambda: self._core.asked.done(ticket, outcome))

    def rolled_back(self, config: AgentConfig, now: float) -> list[Action]:
        """The newest configuration did not do: this one is in effect again (A58)."""

        def work() -> list[Action]:
            self._core.use_config(config, now)
            return []

        return self._step(now, work)

    def retry_requested(
        self, now: float, token: str | None = None, previous: str | None = None
    ) -> list[Action]:
        """The operator asks for an attempt now (F34); both tokens are what is stored today.

        A revoked host needs a new token for it. A token that is still on its way
        to the disk is not replaced.
        """
        core = self._core
        new = token is not None and token != core.hello.token and core.token_pending is None
        if self.state == "revoked" and not new:
            return [Say("warn", "this host is revoked: enrol it before trying again")]
        if token is not None and new:
            core.hello = msgspec.structs.replace(core.hello, token=token)
            core.previous, core.on_previous = previous, False
        if self.state not in ("fatal_auth", "revoked", "reconnecting"):
            return []
        return self._step(now, lambda: self._machine.retry(now))

    def stop_requested(self, now: float, seconds: float) -> list[Action]:
        """The agent stops: drain for at most `seconds`, close, and end in `stopped`.

        A token that waits to be stored is tried once more (see `is_storing`).
        """
        self._core.stopping = True
        if self._core.token_retry_at < inf and self.state != "stopped":
            return self._step(now, lambda: [self._core.store_token(), *self._machine.stop(now)])
        if self.state in _SENDING:
            return self._step(now, lambda: self._machine.drain("the agent stops", seconds, now))
        if self.state == "stopped":
            return []
        return self._step(now, lambda: self._machine.stop(now))

    def time_passed(self, now: float) -> list[Action]:
        """The time of the last SetDeadline has come."""
        self._deadline = None
        return self._step(now, lambda: self._on_time(now))

    def _step(self, now: float, work: Callable[[], list[Action]]) -> list[Action]:
        """Do one input's work and all that follows from it at once."""
        try:
            actions = [*work(), *self._follow(now)]
        except Broken as broken:
            actions = self._fail(broken.why, now, CloseCode.NORMAL, full=broken.full)
        if self._core.asked and self.state not in _SENDING:
            actions += self._core.asked.forget()
        deadline = self._next_deadline()
        if deadline != self._deadline:
            self._deadline = deadline
            actions.append(SetDeadline(deadline))
        return actions

    def _follow(self, now: float) -> list[Action]:
        core = self._core
        if self.state == "draining" and (core.sender.drained or now >= core.drain_until):
            return self._machine.stop(now) if core.stopping else self._machine.drained(now)
        if self.state == "reconnecting" and self._may_connect() and now >= core.due_at:
            return self._machine.due(now)
        return []

    def _may_connect(self) -> bool:
        """Not while the old connection closes, nor with a token that is not safe yet."""
        return not self._core.connected and self._core.token_pending is None

    def _next_deadline(self) -> float | None:
        core = self._core
        times = [core.token_retry_at, core.sender.deadline, core.beat_at, core.drain_until]
        times.append(core.metering.due_at)
        times += [watch.deadline or inf for watch in (core.pings, core.patience)]
        if self.state == "reconnecting" and self._may_connect():
            times.append(core.due_at)
        if core.pending_config is not None:
            times.append(core.pending_config[0])
        first = min(times)
        return None if first == inf or self.state == "stopped" else first

    def _on_time(self, now: float) -> list[Action]:
        core = self._core
        if core.patience.expired(now):
            what = "upgrade" if self.state == "connecting" else "answer to the hello"
            return self._fail(f"no {what} in time", now, CloseCode.NORMAL)
        if core.pings.expired(now):
            why = f"no ping of the server for {core.pings.timeout:.0f} s"
            return self._fail(why, now, CloseCode.INTERNAL_ERROR)
        actions: list[Action] = []
        if core.token_pending is not None and now >= core.token_retry_at:
            actions.append(core.store_token())
        if core.pending_config is not None and now >= core.pending_config[0]:
            config = core.pending_config[1]
            core.pending_config = None
            actions += core.configure(config, now, pushed=True)
        actions += core.metering.time_passed(now)
        if now >= core.beat_at:
            # Up to a fifth early, so that hosts that started together drift apart.
            core.beat_at = now + core.config.heartbeat_interval_secs * (1 - core.random() / 5)
            actions.append(Beat(max(0, self.last - self.acked)))
        return actions + core.sender.time_passed(now)

    def _fail(self, why: str, now: float, code: int, full: bool = False) -> list[Action]:
        if self.state not in _LIVE:
            return []
        self._core.full_backoff = full
        return self._machine.fail(why, code, now)

    def _settle(self, now: float) -> list[Action]:
        """Go active once token and buffer are both safe, and then take what was held (F42)."""
        core = self._core
        if self.state != "storing" or core.adopted is None or core.token_pending is not None:
            return []
        held, core.held = core.held, []
        actions = self._machine.settled(now)
        for payload in held:
            actions += self._frame(payload, now)
        return actions

    def _frame(self, payload: bytes, now: float) -> list[Action]:
        if self.state == "storing":
            if len(self._core.held) >= MAX_HELD:
                return self._fail("too many frames before the first answer", now, PROTOCOL_FAULT)
            self._core.held.append(payload)
            return []
        if self.state not in ("authenticating", *_SENDING):
            return []
        try:
            jsontext.check_utf8(payload)
        except JsonError:
            return self._fail("a frame is not UTF-8", now, CloseCode.NOT_UTF8, full=True)
        try:
            message = jsonrpc.parse(payload, utf8_checked=True)
        except jsonrpc.EnvelopeError as error:
            return self._fail(f"a frame is no message: {error}", now, PROTOCOL_FAULT, full=True)
        match message:
            case jsonrpc.Response():
                return self._response(message, now)
            case jsonrpc.Notification():
                return self._notification(message, now)
        return self._request(message)

    def _response(self, response: jsonrpc.Response, now: float) -> list[Action]:
        if self.state == "authenticating":
            if response.id in (self._core.hello_id, None):
                return self._hello_answered(response, now)
        elif self._core.sender.awaits(response.id):
            return self._core.sender.answered(response, now)
        elif self._core.metering.awaits(response.id):
            wait = 0.0 if response.error is None else refusal_wait(response.error)
            return self._core.metering.answered(response, wait)
        elif response.id is None:
            why = "the server could not read what was sent"
            return self._fail(why, now, CloseCode.NORMAL, full=True)
        return [Say("warn", "an answer came that nothing waits for")]

    def _hello_answered(self, response: jsonrpc.Response, now: float) -> list[Action]:
        core, error = self._core, response.error
        if error is None:
            try:
                welcome = read_welcome(response.result or msgspec.Raw(b"null"))
            except JsonError as fault:
                why = f"the answer to the hello is wrong: {fault}"
                return self._fail(why, now, PROTOCOL_FAULT, full=True)
            return self._machine.accepted(welcome, now)
        untried = core.previous is not None and not core.on_previous
        if error.code == Code.AUTH_FAILED and untried:
            return self._machine.unknown(now)
        if error.code in FATAL:
            return self._machine.refused(Code(error.code), now)
        if error.code == Code.TOKEN_REVOKED:
            return self._machine.revoke(now)
        core.least_delay = refusal_wait(error)
        why = f"the hello was refused with error {error.code}"
        return self._fail(why, now, CloseCode.NORMAL, full=True)

    def _notification(self, message: jsonrpc.Notification, now: float) -> list[Action]:
        if message.method == SHUTDOWN:
            return self._shutdown(message.params, now)
        if message.method == CONFIG_UPDATE and self.state in _SENDING:
            return self._config_update(message.params, now)
        return [Say("info", "a notification came that means nothing here")]

    def _shutdown(self, params: msgspec.Raw, now: float) -> list[Action]:
        try:
            shutdown = jsonrpc.decode_params(params, Shutdown)
        except JsonError as error:
            return [Say("warn", f"an agent.shutdown is malformed and ignored: {error}")]
        if shutdown.reason == "Revoked":
            return self._machine.revoke(now)
        why = f"the server goes away ({shutdown.reason})"
        if self.state == "authenticating":
            return self._fail(why, now, CloseCode.NORMAL)
        return self._machine.drain(why, shutdown.drain_seconds, now)

    def _config_update(self, params: msgspec.Raw, now: float) -> list[Action]:
        """The newest wins; an invalid one changes nothing (F22)."""
        core = self._core
        try:
            update = jsonrpc.decode_params(params, _Update)
            config, fault, _ = read_config(update.config)
        except JsonError as error:
            config, fault = None, str(error)
        if config is None:
            say = Say("warn", f"a config.update is not usable: {fault}")
            return [say, RefuseConfig(fault or "it is not usable")]
        at = now if update.apply_after is None else self._moment(update.apply_after)
        core.pending_config = (at, config) if at > now else None
        return core.configure(config, now, pushed=True) if at <= now else []

    def _moment(self, moment: Moment) -> float:
        """A moment that the server named, by our clock: the hello gave the server's time."""
        welcome = self._core.welcome
        assert welcome is not None
        return self._core.welcome_at + (moment - welcome.server_time).total_seconds()

    def _request(self, request: jsonrpc.Request) -> list[Action]:
        if self.state == "authenticating":
            return [Say("warn", "a request came before the answer to the hello")]
        return self._core.asked.request(request)
