"""Trying what the server configures, and going back from what does not do (PURE, A58).

A configuration is used at once and watched: it is kept once it has been in effect for
`TRIAL_SECONDS` of a live connection without a source of it failing. If one fails, or the
server ends the connection again and again for what this agent sends, the last good one is
taken up again. A server that restarts, or a network that breaks, is no configuration's
fault. What failed is not tried anew at each hello, but when it is pushed again; any other
one is tried. The very first has nothing to go back to and is kept at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cortextx.core.jsontext import encode
from cortextx.fleet.contract import AgentConfig

TRIAL_SECONDS = 30.0
MAX_CUTS = 3
"""Connections that the server ends for what it was sent, in one trial, from which on the
configuration is to blame."""
MAX_SOURCES = 1024
LONGEST_METRICS = 86_400
"""Seconds between samples at most (A59)."""
MAX_PATH = 4096
_CUT = re.compile(r"the server closed the connection \((?:1002|1003|1007|1008|1009)\b")
"""How a connection ends for what the server was sent (§5, RFC 6455 §7.4.1)."""

ConfigState = Literal["none", "trying", "applied", "rolled_back", "refused"]


@dataclass(frozen=True, slots=True)
class Use:
    """This is in effect now: what runs follows it; `back` if the link must too."""

    config: AgentConfig
    back: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """This is good: a start without the server begins with it."""

    config: AgentConfig


@dataclass(frozen=True, slots=True)
class Standing:
    """How the server's configuration stands here; hashes as the server has them."""

    state: ConfigState = "none"
    desired: str | None = None
    effective: str | None = None
    failed: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """The server is to hear how its configuration stands."""

    standing: Standing


Step = Use | Keep | Tell


@dataclass(slots=True)
class _Trial:
    config: AgentConfig
    before: frozenset[str]
    up: float = 0.0
    looked: float | None = None
    cuts: int = 0
    session: str | None = None


def fingerprint(config: AgentConfig) -> str:
    """16 hex digits, as the server makes them: the same for the same configuration.

    BLAKE3 takes half a megabyte of an agent's memory, and most never need it.
    """
    from blake3 import blake3

    return blake3(encode(config)).hexdigest()[:16]


def _name(config: AgentConfig | None) -> str | None:
    return None if config is None else fingerprint(config)


def blames_us(cut_by: str | None) -> bool:
    """Whether a connection ended for what this agent sent, as far as the words for it say."""
    return cut_by is not None and _CUT.match(cut_by) is not None


def fault_of(config: AgentConfig) -> str | None:
    """What is wrong with a configuration beyond its types (A59); None if nothing."""
    if len(config.log_sources) > MAX_SOURCES:
        return f"log_sources: more than {MAX_SOURCES}"
    if (config.metrics_interval_secs or 0) > LONGEST_METRICS:
        return f"metrics_interval_secs: more than {LONGEST_METRICS}"
    for at, source in enumerate(config.log_sources):
        for name in ("path", "filter"):
            text = getattr(source, name)
            if not isinstance(text, str):
                continue
            if len(text) > MAX_PATH or any(ord(char) < 32 or ord(char) == 127 for char in text):
                return f"log_sources[{at}].{name}: too long, or with control characters"
    return None


class ConfigTrial:
    """The configurations of one agent; `kept` is the last good one, of an earlier process."""

    def __init__(self, kept: AgentConfig | None) -> None:
        self._good = kept
        self._trial: _Trial | None = None
        self._desired: AgentConfig | None = None
        self._failed: AgentConfig | None = None
        self._reason: str | None = None
        self._state: ConfigState = "none" if kept is None else "applied"

    @property
    def effective(self) -> AgentConfig | None:
        """What is in effect; None before there was any."""
        return self._good if self._trial is None else self._trial.config

    @property
    def standing(self) -> Standing:
        """For the status, and for the server."""
        return Standing(
            self._state,
            _name(self._desired),
            _name(self.effective),
            _name(self._failed),
            self._reason,
        )

    def proposed(self, config: AgentConfig, pushed: bool, faults: Mapping[str, str]) -> list[Step]:
        """The server wants this, with its hello or `pushed`; `faults` are the sources that
        fail or wait already, with why."""
        self._desired = config
        fault = fault_of(config)
        if fault is None and config == self._failed and not pushed:
            return self._back()
        if fault is not None:
            return [*self._back(), *self._refuse(config, fault)]
        current = self.effective
        if config == current:
            if self._trial is None:
                self._state, self._failed, self._reason = "applied", None, None
            return []
        if self._good is None:
            self._good, self._state = config, "applied"
            return [Use(config), Keep(config)]
        if config == self._good:
            return [Use(config), *self._passed(config)]
        self._trial = _Trial(config, frozenset(faults))
        self._state = "trying"
        return [Use(config)]

    def refused(self, reason: str) -> list[Step]:
        """The server sent what is no configuration: it changes nothing."""
        self._desired = None
        return self._refuse(None, reason)

    def looked(
        self,
        now: float,
        session: str | None,
        faults: Mapping[str, str],
        waiting: Mapping[str, str] = MappingProxyType({}),
        cut_by: str | None = None,
    ) -> list[Step]:
        """How the agent is: the live session's id, the sources that fail, and those that wait
        for something, with why; `cut_by` is how the connection before this one ended."""
        trial = self._trial
        if trial is None:
            return []
        for name, why in faults.items():
            if name not in trial.before:
                return self._roll_back(f"{name}: {why}")
        if session is not None:
            if session != trial.session:
                trial.cuts += trial.session is not None and blames_us(cut_by)
                trial.session = session
            elif trial.looked is not None:
                trial.up += now - trial.looked
        trial.looked = now if session is not None else None
        if trial.cuts >= MAX_CUTS:
            return self._roll_back(f"the connection was cut again and again: {cut_by}")
        if trial.up < TRIAL_SECONDS:
            return []
        self._good = trial.config
        idle = [f"{name}: {why}" for name, why in waiting.items() if name not in trial.before]
        return self._passed(trial.config, idle)

    def _passed(self, config: AgentConfig, idle: Sequence[str] = ()) -> list[Step]:
        """It is kept, and told, as the server may know of a failure of it from before a
        restart; what of it waits for something is told too, and is no failure."""
        self._trial = None
        self._state, self._failed = "applied", None
        self._reason = f"waiting: {'; '.join(idle)}" if idle else None
        return [Keep(config), Tell(self.standing)]

    def _roll_back(self, why: str) -> list[Step]:
        trial, self._trial = self._trial, None
        assert trial is not None
        self._state = "rolled_back"
        self._failed, self._reason = trial.config, why
        return [*self._back(), Tell(self.standing)]

    def _back(self) -> list[Step]:
        """What is in effect stays so, for the link too."""
        config = self.effective
        return [] if config is None else [Use(config, back=True)]

    def _refuse(self, config: AgentConfig | None, reason: str) -> list[Step]:
        same = (self._failed, self._reason) == (config, reason)
        self._failed, self._reason = config, reason
        if self._trial is None:
            self._state = "refused"
        return [] if same else [Tell(self.standing)]
