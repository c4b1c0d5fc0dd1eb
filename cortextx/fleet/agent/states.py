"""The state graph of the agent's link, and what each transition does (PURE, §6).

`TABLE` is the whole graph; `Core` holds what the link knows. The inputs from
outside, which choose among these transitions, are `link.Link`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from automat import TypeMachineBuilder

from cortextx.core.backoff import FullJitter
from cortextx.core.liveness import Quiet
from cortextx.fleet import jsonrpc
from cortextx.fleet.agent.actions import (
    Action,
    Adopt,
    Close,
    Configure,
    Connect,
    DeleteToken,
    PauseSources,
    RefuseConfig,
    ReportRestored,
    ResumeSources,
    Say,
    Send,
    StoreToken,
)
from cortextx.fleet.agent.asked import Asked
from cortextx.fleet.agent.hello import Welcome
from cortextx.fleet.agent.metering import Metering
from cortextx.fleet.agent.sending import Sender
from cortextx.fleet.contract import (
    DEFAULT_AGENT_CONFIG,
    HELLO,
    CloseCode,
    Code,
)

if TYPE_CHECKING:
    from cortextx.fleet.contract import AgentConfig, HelloParams

CONNECT_TIMEOUT = 30.0
"""Seconds for an upgrade; the adapter has one of its own for the TCP part."""
WELCOME_TIMEOUT = 15.0
"""Seconds for the answer to a hello: the server's own 5 s (§3), and a slow path."""
PING_TIMEOUT = 70.0
"""Seconds without a ping of the server (F36)."""
TOKEN_RETRY = 5.0
"""Seconds until a token that could not be stored is tried again."""

FATAL = frozenset({Code.AUTH_FAILED, Code.AGENT_VERSION_UNSUPPORTED, Code.TOKEN_ROTATION_REQUIRED})
"""The hello errors that no retry mends (F34)."""
_ADVICE = {
    Code.AUTH_FAILED: "the token is not valid for this host; enrol it again",
    Code.AGENT_VERSION_UNSUPPORTED: "this agent is too old for the server; update it",
    Code.TOKEN_ROTATION_REQUIRED: "the token was replaced and its grace is over; enrol again",
}


class Transitions(Protocol):
    """What moves the link from state to state."""

    def start(self, now: float) -> list[Action]:
        """The process has started."""

    def upgraded(self, now: float) -> list[Action]:
        """The WebSocket is open, with the subprotocol confirmed."""

    def accepted(self, welcome: Welcome, now: float) -> list[Action]:
        """The hello was accepted."""

    def refused(self, code: Code, now: float) -> list[Action]:
        """The hello was refused for good (F34)."""

    def unknown(self, now: float) -> list[Action]:
        """The server does not know the token, but may know the one before (A56)."""

    def revoke(self, now: float) -> list[Action]:
        """This host was revoked (F8)."""

    def settled(self, now: float) -> list[Action]:
        """The token is stored and the buffer adopted (F42)."""

    def drain(self, why: str, seconds: float, now: float) -> list[Action]:
        """Send what can be sent, then close."""

    def drained(self, now: float) -> list[Action]:
        """The drain is over: come back later."""

    def fail(self, why: str, code: int, now: float) -> list[Action]:
        """Close the connection and come back later."""

    def lost(self, why: str, now: float) -> list[Action]:
        """The connection is gone."""

    def due(self, now: float) -> list[Action]:
        """The backoff is over."""

    def retry(self, now: float) -> list[Action]:
        """The operator wants an attempt now (F34)."""

    def stop(self, now: float) -> list[Action]:
        """The process stops."""


class Core:
    """What the transitions do, and what they know."""

    def __init__(
        self,
        hello: HelloParams,
        last: int,
        backoff: FullJitter,
        random: Callable[[], float],
        previous: str | None = None,
    ) -> None:
        self.ids = count(1)
        self.sender = Sender(self.ids, hello.resume_from_seq or 0, last)
        self.metering = Metering(self.ids, random)
        self.asked = Asked(self.ids)
        self.hello = hello
        self.previous = previous
        self.on_previous = False
        self.backoff = backoff
        self.random = random
        self.config: AgentConfig = DEFAULT_AGENT_CONFIG
        self.state = "disconnected"
        self.why = ""
        self.connected = False
        self.closing = False
        self.stopping = False
        self.sources_paused = False
        self.hello_id = 0
        self.token_pending: str | None = None
        self.token_replaced = ""
        self.token_retry_at = inf
        self.adopting: list[bool] = []
        self.adopted: tuple[int, int, bool] | None = None
        self.held: list[bytes] = []
        self.welcome: Welcome | None = None
        self.active_since: float | None = None
        self.welcome_at = 0.0
        self.pings = Quiet(PING_TIMEOUT)
        self.patience = Quiet(CONNECT_TIMEOUT)
        self.due_at = inf
        self.beat_at = inf
        self.drain_until = inf
        self.full_backoff = False
        self.least_delay = 0.0
        self.renumbered = False
        self.restored: tuple[int, int] | None = None
        self.told_restored: tuple[int, int] | None = None
        self.pending_config: tuple[float, AgentConfig] | None = None

    def connect(self, now: float) -> list[Action]:
        self.connected = True
        self.due_at = inf
        self.patience.timeout = CONNECT_TIMEOUT
        self.patience.heard(now)
        return [Connect()]

    def say_hello(self, now: float) -> list[Action]:
        self.patience.timeout = WELCOME_TIMEOUT
        self.patience.heard(now)
        self.pings.heard(now)
        self.hello_id = next(self.ids)
        token = self.previous if self.on_previous and self.previous else self.hello.token
        hello = msgspec.structs.replace(self.hello, token=token, resume_from_seq=self.sender.acked)
        return [Send(jsonrpc.request(self.hello_id, HELLO, hello))]

    def store(self, welcome: Welcome, now: float) -> list[Action]:
        self.patience.stop()
        self.welcome, self.welcome_at = welcome, now
        self.adopted = None
        self.held = []
        self.adopting.append(True)
        actions: list[Action] = []
        if welcome.unknown:
            names = ", ".join(name[:40] for name in welcome.unknown[:10])
            actions.append(Say("info", f"the server's answer has members unknown here: {names}"))
        if welcome.fault:
            actions.append(
                Say("warn", f"the server's configuration is not usable: {welcome.fault}")
            )
            actions.append(RefuseConfig(welcome.fault))
        self.restored = None
        if welcome.accepted_seq < self.sender.acked:
            self.restored = (welcome.accepted_seq + 1, self.sender.acked)
            text = f"the server has entries up to {welcome.accepted_seq} only, but acknowledged"
            text += f" {self.sender.acked}: it was restored, and what lies between is lost there"
            actions.append(Say("warn", text))
        return [*actions, *self._take_token(welcome.rotated_token), Adopt(welcome.accepted_seq)]

    def _take_token(self, rotated: str | None) -> list[Action]:
        """Which token is to be used from now on, and which was before it (§3.5, A56)."""
        known, other = self.hello.token, self.previous
        if self.on_previous and other is not None:
            known, other = other, known
        if rotated is not None:
            self.token_pending, self.token_replaced = rotated, known
        elif self.on_previous and other is not None:
            self.token_pending, self.token_replaced = known, other
        else:
            return []
        return [self.store_token()]

    def store_token(self) -> StoreToken:
        """Have what is pending stored; the answer to it is waited for."""
        assert self.token_pending is not None
        self.token_retry_at = inf
        return StoreToken(self.token_pending, self.token_replaced)

    def use_token(self) -> None:
        """The token that was pending is the one from now on."""
        if self.token_pending is not None:
            self.hello = msgspec.structs.replace(self.hello, token=self.token_pending)
            self.previous = self.token_replaced
        self.token_pending = None
        self.token_retry_at = inf
        self.on_previous = False

    def activate(self, now: float) -> list[Action]:
        assert self.welcome is not None and self.adopted is not None
        acked, last, renumbered = self.adopted
        self.active_since = now
        self.why = ""
        actions: list[Action] = [Say("info", "connected: the server takes this host's logs")]
        renumbered = renumbered or self.renumbered
        self.renumbered = False
        if renumbered:
            text = f"the server has more than this buffer ever held: numbering from {acked + 1}"
            actions.append(Say("warn", text))
        if self.sources_paused:
            self.sources_paused = False
            actions.append(ResumeSources())
        if self.welcome.config is not None:
            self.pending_config = None
            actions += self.configure(self.welcome.config, now)
        self.beat_at = now + self.random() * self.config.heartbeat_interval_secs
        self.metering.begin(now)
        if self.restored is not None and self.restored != self.told_restored:
            # Else the gap would show when this host next has something to log (F26).
            self.told_restored = self.restored
            actions.append(ReportRestored(*self.restored))
        return actions + self.sender.begin(acked, last, renumbered, now)

    def configure(self, config: AgentConfig, now: float, pushed: bool = False) -> list[Action]:
        self.use_config(config, now)
        return [Configure(config, pushed)]

    def use_config(self, config: AgentConfig, now: float) -> None:
        """Send by this configuration from now on (§4.1)."""
        if self.beat_at < inf:
            self.beat_at = min(self.beat_at, now + config.heartbeat_interval_secs)
        self.config = config
        self.sender.configure(config)
        self.metering.configure(config, now)

    def drain(self, why: str, seconds: float, now: float) -> list[Action]:
        self.why = why
        self.drain_until = min(self.drain_until, now + seconds)
        return [Say("info", f"draining: {why}"), *self.sender.hurry(now)]

    def goodbye(self, now: float) -> list[Action]:
        """Close cleanly after a drain; the reason carries the last acked seq (§11, F42)."""
        self._over(now)
        return self._close(CloseCode.NORMAL, f"final_seq={self.sender.acked}")

    def break_off(self, why: str, code: int, now: float) -> list[Action]:
        self.why = why
        self._over(now)
        return [Say("warn", f"reconnecting: {why}"), *self._close(code, "")]

    def mourn(self, why: str, now: float) -> list[Action]:
        self.why = why
        self._over(now)
        return [Say("warn", f"not connected: {why}")]

    def try_previous(self, now: float) -> list[Action]:
        """A restored server knows tokens of its backup's time: one attempt with that of then."""
        self.on_previous = True
        self._over(now)
        self.why = "the server does not know the token; the one before it comes next"
        return [Say("warn", self.why), *self._close(CloseCode.NORMAL, "")]

    def give_up(self, code: Code, now: float) -> list[Action]:
        if self.on_previous and code == Code.TOKEN_ROTATION_REQUIRED:
            # What is told is the verdict on the token that is kept.
            code = Code.AUTH_FAILED
        self.on_previous = False
        self._end(now)
        self.why = f"{code.title} ({code.value}): {_ADVICE[code]}"
        text = f"{self.why}. Nothing is sent until then; `cortextx agent retry` tries again"
        return [Say("critical", text), *self._close(CloseCode.NORMAL, ""), *self._rest()]

    def revoke(self, now: float) -> list[Action]:
        self.previous, self.on_previous = None, False
        self._end(now)
        self.why = "this host was revoked; enrol it again to go on"
        closing = self._close(CloseCode.NORMAL, "")
        return [DeleteToken(), Say("critical", self.why), *closing, *self._rest()]

    def retry(self, now: float) -> list[Action]:
        self.due_at = now
        return []

    def finish(self, now: float) -> list[Action]:
        actions = self.goodbye(now)
        self.due_at = inf
        return actions

    def ignore(self, *details: object) -> list[Action]:
        return []

    def _rest(self) -> list[Action]:
        self.sources_paused = True
        return [PauseSources()]

    def _close(self, code: int, reason: str) -> list[Action]:
        if not self.connected or self.closing:
            return []
        self.closing = True
        return [Close(code, reason)]

    def _over(self, now: float) -> None:
        """The connection is no more: plan the next one (§6, A52)."""
        self._end(now)
        if self.full_backoff:
            self.backoff.exhaust()
        self.due_at = now + max(self.backoff.next_delay(), self.least_delay)
        self.full_backoff = False
        self.least_delay = 0.0

    def _end(self, now: float) -> None:
        self.sender.end()
        self.metering.end()
        self.pings.stop()
        self.patience.stop()
        self.held = []
        self.adopting = [False] * len(self.adopting)
        self.beat_at = self.drain_until = inf
        if self.active_since is not None:
            self.backoff.stayed_up(now - self.active_since)
            self.active_since = None


_T = Transitions
# From state, on input, to state, by doing. Whatever is not here is a bug of ours.
TABLE: tuple[tuple[str, Any, str, Any], ...] = (
    ("disconnected", _T.start, "connecting", Core.connect),
    ("disconnected", _T.stop, "stopped", Core.finish),
    ("connecting", _T.upgraded, "authenticating", Core.say_hello),
    ("connecting", _T.lost, "reconnecting", Core.mourn),
    ("connecting", _T.fail, "reconnecting", Core.break_off),
    ("connecting", _T.stop, "stopped", Core.finish),
    ("authenticating", _T.accepted, "storing", Core.store),
    ("authenticating", _T.refused, "fatal_auth", Core.give_up),
    ("authenticating", _T.unknown, "reconnecting", Core.try_previous),
    ("authenticating", _T.revoke, "revoked", Core.revoke),
    ("authenticating", _T.lost, "reconnecting", Core.mourn),
    ("authenticating", _T.fail, "reconnecting", Core.break_off),
    ("authenticating", _T.stop, "stopped", Core.finish),
    ("storing", _T.settled, "active", Core.activate),
    ("storing", _T.lost, "reconnecting", Core.mourn),
    ("storing", _T.fail, "reconnecting", Core.break_off),
    ("storing", _T.stop, "stopped", Core.finish),
    ("active", _T.drain, "draining", Core.drain),
    ("active", _T.revoke, "revoked", Core.revoke),
    ("active", _T.lost, "reconnecting", Core.mourn),
    ("active", _T.fail, "reconnecting", Core.break_off),
    ("draining", _T.drain, "draining", Core.drain),
    ("draining", _T.revoke, "revoked", Core.revoke),
    ("draining", _T.drained, "reconnecting", Core.goodbye),
    ("draining", _T.lost, "reconnecting", Core.mourn),
    ("draining", _T.fail, "reconnecting", Core.break_off),
    ("draining", _T.stop, "stopped", Core.finish),
    ("reconnecting", _T.due, "connecting", Core.connect),
    ("reconnecting", _T.retry, "reconnecting", Core.retry),
    ("reconnecting", _T.lost, "reconnecting", Core.ignore),
    ("reconnecting", _T.stop, "stopped", Core.finish),
    ("fatal_auth", _T.retry, "reconnecting", Core.retry),
    ("fatal_auth", _T.lost, "fatal_auth", Core.ignore),
    ("fatal_auth", _T.stop, "stopped", Core.finish),
    ("revoked", _T.retry, "reconnecting", Core.retry),
    ("revoked", _T.lost, "revoked", Core.ignore),
    ("revoked", _T.stop, "stopped", Core.finish),
    ("stopped", _T.lost, "stopped", Core.ignore),
)


def _build() -> Callable[[Core], Transitions]:
    builder: Any = TypeMachineBuilder(Transitions, Core)
    states = {name: builder.state(name) for name in dict.fromkeys(row[0] for row in TABLE)}
    for before, given, after, work in TABLE:
        states[before].upon(given).to(states[after])(_entering(after, work))
    machine: Callable[[Core], Transitions] = builder.build()
    return machine


def _entering(state: str, work: Any) -> Any:
    """An output of Automat that does `work` with the core already in `state`."""

    def output(machine: Transitions, core: Core, *details: Any) -> list[Action]:
        core.state = state
        actions: list[Action] = work(core, *details)
        return actions

    output.__name__ = f"{work.__name__}_to_{state}"
    return output


make_transitions = _build()
"""Makes a core's machine; a transition that TABLE lacks raises automat.NoTransition."""
