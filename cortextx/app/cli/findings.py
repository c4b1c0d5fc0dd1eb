"""What `cortextx doctor` finds: one line a look, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "wrong"]
"""`note` works, but somebody should know; `wrong` does not work, or soon will not."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what mends it."""

    level: Level
    about: str
    said: str
    hint: str | None = None


def ok(about: str, said: str) -> Finding:
    """All is well there."""
    return Finding("ok", about, said)


def note(about: str, said: str, hint: str | None = None) -> Finding:
    """Worth knowing."""
    return Finding("note", about, said, hint)


def wrong(about: str, said: str, hint: str | None = None) -> Finding:
    """To be mended."""
    return Finding("wrong", about, said, hint)
