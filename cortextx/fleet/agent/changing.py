"""Trying what the server configures, and going back from what does not do (PURE, A58).

A configuration is used at once and watched: it is kept once it has been in effect for
`TRIAL_SECONDS` of a live connection without a source of it failing. If one fails, or the
connection breaks again and again, the last good one is taken up again. What failed is
not tried anew at each hello, but when it is pushed again; any other one is tried.
The very first has nothing to go back to and is kept at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cortextx.core.jsontext import encode
from cortextx.fleet.contract import AgentConfig

TRIAL_SECONDS = 30.0
MAX_SESSIONS = 4
"""Sessions in one trial from which on the configuration is to blame."""
MAX_SOURCES = 1024
LONGEST_METRICS = 86_400
"""Seconds between samples at most (A59)."""
MAX_PATH = 4096

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
    pushed: bool
    before: frozenset[str]
    up: float = 0.0
    looked: float | None = None
    sessions: int = 0
    session: str | None = None


def fingerprint(config: AgentConfig) -> str:
    """16 hex digits, as the server makes them: the same for the same configuration.

    BLAKE3 takes half a megabyte of an agent's memory, and most never need it.
    """
    from blake3 import blake3

    return blake3(encode(config)).hexdigest()[:16]


def _name(config: AgentConfig | None) -> str | None:
    return None if config is None else fingerprint(config)


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
        fail already, with why."""
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
            return [Use(config), *self._passed(config, pushed)]
        self._trial = _Trial(config, pushed, frozenset(faults))
        self._state = "trying"
        return [Use(config)]

    def refused(self, reason: str) -> list[Step]:
        """The server sent what is no configuration: it changes nothing."""
        self._desired = None
        return self._refuse(None, reason)

    def looked(self, now: float, session: str | None, faults: Mapping[str, str]) -> list[Step]:
        """How the agent is: the live session's id, and the sources that fail, with why."""
        trial = self._trial
        if trial is None:
            return []
        for name, why in faults.items():
            if name not in trial.before:
                return self._roll_back(f"{name}: {why}")
        if session is not None:
            if session != trial.session:
                trial.session = session
                trial.sessions += 1
            elif trial.looked is not None:
                trial.up += now - trial.looked
        trial.looked = now if session is not None else None
        if trial.sessions >= MAX_SESSIONS:
            return self._roll_back("the connection broke again and again")
        if trial.up < TRIAL_SECONDS:
            return []
        self._good = trial.config
        return self._passed(trial.config, trial.pushed)

    def _passed(self, config: AgentConfig, pushed: bool) -> list[Step]:
        self._trial = None
        known = self._reason is not None
        self._state, self._failed, self._reason = "applied", None, None
        told: list[Step] = [Tell(self.standing)] if pushed or known else []
        return [Keep(config), *told]

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
