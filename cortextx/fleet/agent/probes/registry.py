"""The probes of this host: which may run, and running them (§4.6, §7, F27, F44, A61).

Each runs in a child process of its own (`child`), with limits of time, memory and
output; at most `concurrency` at once, the others wait within their own time-out.
A probe whose process dies of something else than its time-out is disabled until
`reset`, over restarts too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from cortextx.errors import JsonShapeError
from cortextx.fleet.agent.probes.catalogue import PROBES, Args, Probe, allowed, read_args
from cortextx.fleet.agent.probes.disabled import Death, Disabled
from cortextx.fleet.agent.probes.needs import missing
from cortextx.fleet.agent.probes.process import Ended, ProbeProcess
from cortextx.fleet.agent.probes.verdicts import ProbeRefused, ProbeResult
from cortextx.fleet.contract import Code

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

MAX_QUEUED = 64
"""Probes that wait for a slot at most."""
OUTPUT_BYTES = 786_432
"""Bytes of an answer, which leaves room for a frame's other members (§2: 1 MiB)."""
MEMORY_BYTES = 536_870_912
"""Bytes of address space of a probe's process (a bare Python takes about 50 MB)."""
CHILD = "cortextx.fleet.agent.probes.child"


@dataclass(frozen=True, slots=True)
class ProbeState:
    """One probe for the operator: whether it is offered, and if not, why."""

    name: str
    about: str
    offered: bool
    why: str | None = None


@dataclass(slots=True)
class _Call:
    probe: Probe
    args: Args
    timeout: float
    began: float
    done: Deferred[ProbeResult] = field(repr=False)
    process: ProbeProcess | None = None
    timer: IDelayedCall | None = None


class _Answer(msgspec.Struct, frozen=True):
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    fault: str | None = None


class ProbeRegistry:
    """The probes that `patterns` (`allow_probes`) lets run and this host can.

    Files that probes read lie below `roots` and not below `excluded`; Docker is asked at
    one of `docker_sockets` or where it usually is. `wall` is in seconds since 1970.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        patterns: Sequence[str],
        state_path: str,
        wall: Callable[[], float],
        *,
        roots: Sequence[str] = ("/var/log",),
        excluded: Sequence[str] = (),
        docker_sockets: Sequence[str] = (),
        concurrency: int = 4,
    ) -> None:
        self._reactor = reactor
        self._allowed = allowed(patterns)
        self._disabled = Disabled(state_path)
        self._wall = wall
        self._roots = tuple(roots)
        self._excluded = tuple(excluded)
        self._docker_sockets = tuple(docker_sockets)
        self._concurrency = concurrency
        self._queue: deque[_Call] = deque()
        self._running: list[_Call] = []
        self._stopped: Deferred[None] | None = None
        if self._disabled.note is not None:
            self.log.warn("{note}", note=self._disabled.note)

    def states(self) -> list[ProbeState]:
        """All probes there are, in the catalogue's order."""
        return [
            ProbeState(probe.name, probe.about, why is None, why)
            for probe in PROBES.values()
            for why in (self._why_not(probe.name),)
        ]

    def supported(self) -> list[str]:
        """What is advertised (§7): allowed here, not disabled, and what it needs is there."""
        return [name for name in PROBES if self._why_not(name) is None]

    @property
    def running(self) -> int:
        """The number of probes that run now."""
        return len(self._running)

    def allow_at_once(self, concurrency: int) -> None:
        """The server's `probe_concurrency` is this from now on."""
        self._concurrency = concurrency
        self._go_on()

    def reset(self, name: str) -> None:
        """Enable a disabled probe; raises ConfigError if it is not, or OSError."""
        self._disabled.reset(name)

    def run(self, name: str, args: Any, timeout: float) -> Deferred[ProbeResult]:
        """Run a probe within `timeout` seconds, waiting included.

        Fails with ProbeRefused: unavailable, invalid arguments, failed, or timed out.
        Cancelling ends the process and is answered by CancelledError.
        """
        done: Deferred[ProbeResult] = Deferred()
        why = self._why_not(name)
        if why is not None:
            done.errback(ProbeRefused(Code.PROBE_UNAVAILABLE, why, {"probe": name[:128]}))
            return done
        probe = PROBES[name]
        try:
            checked = read_args(probe, args)
        except JsonShapeError as fault:
            data = {"field": fault.field, "expected": fault.expected}
            done.errback(ProbeRefused(Code.INVALID_PARAMS, str(fault), data))
            return done
        if len(self._queue) >= MAX_QUEUED:
            why = f"{MAX_QUEUED} probes wait already"
            refused = {"probe": name, "stderr": why, "exit_code": None}
            done.errback(ProbeRefused(Code.PROBE_EXECUTION_FAILED, why, refused))
            return done
        call = _Call(probe, checked, timeout, self._reactor.seconds(), done)
        call.done = Deferred(lambda _: self._give_up(call))
        call.timer = self._reactor.callLater(timeout, self._timed_out, call)
        self._queue.append(call)
        self._go_on()
        return call.done

    def stop(self) -> Deferred[None]:
        """End all; fires when no process is left."""
        done: Deferred[None] = Deferred()
        self._stopped = done
        for call in [*self._queue, *self._running]:
            if call.process is not None:
                call.process.kill()
            self._fail(call, Code.PROBE_UNAVAILABLE, "the agent stops", {})
        self._queue.clear()
        self._check_stopped()
        return done

    def _why_not(self, name: str) -> str | None:
        probe = PROBES.get(name)
        if probe is None:
            return "there is no such probe"
        if name not in self._allowed:
            return "not in allow_probes of this agent"
        death = self._disabled.deaths.get(name)
        if death is not None:
            return f"disabled since {death.at}: {death.why}"
        return missing(probe, self._docker_sockets)

    def _go_on(self) -> None:
        while self._queue and len(self._running) < self._concurrency and self._stopped is None:
            call = self._queue.popleft()
            self._running.append(call)
            self._begin(call)

    def _begin(self, call: _Call) -> None:
        left = call.timeout - (self._reactor.seconds() - call.began)
        order = {
            "probe": call.probe.name,
            "args": msgspec.to_builtins(call.args),
            "seconds": max(0.1, left),
            "output_bytes": OUTPUT_BYTES,
            "memory_bytes": MEMORY_BYTES,
            "roots": self._roots,
            "excluded": self._excluded,
            "docker_sockets": self._docker_sockets,
        }
        call.process = ProbeProcess(OUTPUT_BYTES + 64, lambda ended: self._ended(call, ended))
        command = [sys.executable, "-P", "-m", CHILD]
        try:
            self._reactor.spawnProcess(
                call.process, command[0], command, env=_environ(), path="/",
                childFDs={0: "w", 1: "r", 2: "r"},
            )  # fmt: skip
        except OSError as error:
            self._running.remove(call)
            self._failed(call, error.strerror or "the process cannot start", None)
            self._go_on()
            return
        call.process.give(msgspec.json.encode(order))

    def _ended(self, call: _Call, ended: Ended) -> None:
        self._running.remove(call)
        if not call.done.called:
            self._judge(call, ended)
        self._go_on()
        self._check_stopped()

    def _judge(self, call: _Call, ended: Ended) -> None:
        if ended.too_much:
            self._failed(call, f"the answer is larger than {OUTPUT_BYTES} bytes", ended)
        elif ended.signal is not None:
            name = _signal_name(ended.signal)
            why = f"its process was ended by {name}"
            self._died(call.probe.name, why)
            self._failed(call, why, ended)
        elif ended.exit_code != 0:
            words = ended.stderr.strip().rpartition("\n")[2] or "no words"
            why = f"its process ended with exit code {ended.exit_code}: {words}"[:400]
            self._died(call.probe.name, why)
            self._failed(call, why, ended)
        else:
            self._answer(call, ended)

    def _answer(self, call: _Call, ended: Ended) -> None:
        try:
            answer = msgspec.json.decode(ended.output, type=_Answer)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self._died(call.probe.name, "its answer is no JSON")
            self._failed(call, "the probe's answer is no JSON", ended)
            return
        if isinstance(answer.output, msgspec.UnsetType):
            self._failed(call, answer.fault or "no answer", ended)
            return
        self._over(call)
        spent = round((self._reactor.seconds() - call.began) * 1000)
        call.done.callback(ProbeResult(bytes(answer.output), spent))

    def _died(self, name: str, why: str) -> None:
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="seconds")
        self.log.warn("probe {name} is disabled from now on: {why}", name=name, why=why)
        try:
            self._disabled.died(name, Death(at=at.replace("+00:00", "Z"), why=why[:512]))
        except OSError as error:
            self.log.warn("that cannot be kept over a restart: {why}", why=error.strerror)

    def _timed_out(self, call: _Call) -> None:
        call.timer = None
        if call in self._queue:
            self._queue.remove(call)
        elif call.process is not None:
            call.process.kill()
        data = {"probe": call.probe.name, "timeout_ms": round(call.timeout * 1000)}
        self._fail(call, Code.PROBE_TIMEOUT, "not done in time", data)

    def _give_up(self, call: _Call) -> None:
        if call in self._queue:
            self._queue.remove(call)
        elif call.process is not None:
            call.process.kill()
        self._over(call)

    def _failed(self, call: _Call, why: str, ended: Ended | None) -> None:
        said = (why if ended is None else f"{why}\n{ended.stderr}").strip()[:4096]
        code = None if ended is None else ended.exit_code
        data = {"probe": call.probe.name, "stderr": said, "exit_code": code}
        self._fail(call, Code.PROBE_EXECUTION_FAILED, why, data)

    def _fail(self, call: _Call, code: Code, why: str, data: dict[str, Any]) -> None:
        self._over(call)
        if not call.done.called:
            call.done.errback(ProbeRefused(code, why, data))

    def _over(self, call: _Call) -> None:
        timer, call.timer = call.timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def _check_stopped(self) -> None:
        if self._stopped is not None and not self._running and not self._stopped.called:
            self._stopped.callback(None)


def _environ() -> dict[str, str]:
    """What a probe's process sees: nothing of the agent's settings."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "TZ") if name in os.environ}
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **kept}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
