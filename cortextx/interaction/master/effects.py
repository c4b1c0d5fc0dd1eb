"""What was done outside for which effect_id, so that nothing is done twice (PURE; B43).

A record is told of an effect before it is attempted and once its result is known. An
effect that was attempted in a life before this one, and whose result is not known,
is `unknown`: it may have happened, and is nobody's to repeat blindly.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from blake3 import blake3
from msgspec import Struct

from cortextx.core.exchange import Command, Rejected, Result
from cortextx.core.jsontext import Decoder, encode
from cortextx.errors import JsonError

EffectState = Literal["attempting", "confirmed", "failed", "unknown"]


class Effect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One effect. `digest` tells its content, `result` how it ended."""

    effect_id: str
    digest: str
    state: EffectState
    result: Result | None = None


class EffectRecord(Protocol):
    """Where effects are recorded. `find` answers from memory, at once."""

    def find(self, effect_id: str) -> Effect | None:
        """What is known of an effect."""

    def note(self, effect: Effect) -> None:
        """Keep what is known now; it is safe when this returns. May block."""


def digest_of(command: Command) -> str:
    """What tells a command's content from another's; the order of members does not."""
    values = msgspec.json.decode(encode(command))
    return blake3(msgspec.json.encode(values, order="deterministic")).hexdigest()


def attempted(effect_id: str, command: Command) -> Effect:
    """The effect is about to be carried out."""
    return Effect(effect_id=effect_id, digest=digest_of(command), state="attempting")


def ended(effect_id: str, command: Command, result: Result) -> Effect:
    """The effect has this result; a rejection counts as failed."""
    return Effect(
        effect_id=effect_id,
        digest=digest_of(command),
        state="failed" if isinstance(result, Rejected) else "confirmed",
        result=result,
    )


class MemoryEffects:
    """A record that lasts as long as the process; the oldest that ended are forgotten."""

    def __init__(self, max_effects: int = 10_000) -> None:
        self._known: dict[str, Effect] = {}
        self._max = max_effects

    def find(self, effect_id: str) -> Effect | None:
        """See EffectRecord."""
        return self._known.get(effect_id)

    def note(self, effect: Effect) -> None:
        """See EffectRecord."""
        self._known.pop(effect.effect_id, None)
        self._known[effect.effect_id] = effect
        if len(self._known) > self._max:
            oldest = next((e for e in self._known.values() if e.result is not None), None)
            if oldest is not None:
                del self._known[oldest.effect_id]

    @property
    def effects(self) -> list[Effect]:
        """All that are known, the oldest first."""
        return list(self._known.values())


_effect: Decoder[Effect] = Decoder(Effect)


def read_effect(line: bytes, *, is_old: bool = True) -> Effect | None:
    """An effect out of a line of a file, or None if it is none.

    What a life before this one (`is_old`) was attempting is unknown.
    """
    try:
        effect = _effect.decode(line)
    except JsonError:
        return None
    if is_old and effect.result is None:
        return msgspec.structs.replace(effect, state="unknown")
    return effect


def line_of(effect: Effect) -> bytes:
    """The line of a file for an effect."""
    return encode(effect) + b"\n"
