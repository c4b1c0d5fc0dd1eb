"""How a conversation looks: safe lines on a terminal (S4), a JSON object an event in a pipe."""

from __future__ import annotations

from typing import Any

from cortextx.app.cli.terminal import escaped
from cortextx.interaction import data
from cortextx.interaction.master.events import (
    Attached,
    CommandLost,
    Detached,
    Disconnected,
    Event,
    Warned,
)

_NAMES: dict[type, str] = {
    data.Accepted: "accepted",
    data.Started: "started",
    data.Delta: "delta",
    data.Message: "message",
    data.Tool: "tool",
    data.Command: "command",
    data.CommandResolved: "command_resolved",
    data.SessionState: "status",
    data.Error: "error",
    data.Done: "done",
    data.Gap: "gap",
    data.Opaque: "opaque",
    Attached: "attached",
    Disconnected: "disconnected",
    Detached: "detached",
    CommandLost: "command_lost",
    Warned: "warned",
}


def safe(text: str) -> str:
    """Text of several lines with all but its newlines and tabs made visible."""
    return "\n".join(map(escaped, text.replace("\r\n", "\n").split("\n")))


def row(event: Event) -> dict[str, Any]:
    """An event as `chat --json` prints it; what says nothing is left out."""
    found: dict[str, Any] = {"event": _NAMES[type(event.content)]}
    for name in ("seq", "request_id", "run_id", "command_id"):
        if getattr(event, name) is not None:
            found[name] = getattr(event, name)
    if event.is_replay:
        found["replay"] = True
    if event.is_own:
        found["own"] = True
    if event.effect != "none":
        found["effect"] = event.effect
    found["data"] = event.content
    return found
