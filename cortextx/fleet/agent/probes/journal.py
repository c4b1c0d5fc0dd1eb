"""journal.grep: messages of the journal that match, by journalctl."""

from __future__ import annotations

from typing import Any

import msgspec

from cortextx.fleet.agent.probes.catalogue import GrepArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

MAX_MESSAGE = 8192
NO_MATCH = 1


def grep(args: GrepArgs, place: Place) -> dict[str, Any]:
    """The newest matches, oldest first."""
    words = [
        "journalctl", "--quiet", "--no-pager", "--output=json", "--reverse",
        "--output-fields=MESSAGE,PRIORITY,SYSLOG_IDENTIFIER,_PID,_SYSTEMD_UNIT",
        f"--lines={args.lines}", f"--since=-{args.since_secs}s", f"--grep={args.pattern}",
    ]  # fmt: skip
    if args.unit is not None:
        words.append(f"--unit={args.unit}")
    code, out, said = place.command(*words)
    if code not in (0, NO_MATCH) or (code == NO_MATCH and said.strip()):
        raise ProbeFault(f"journalctl: {said.strip() or f'exit code {code}'}")
    rows = []
    for line in out.split(b"\n"):
        if line:
            try:
                rows.append(_row(msgspec.json.decode(line)))
            except (msgspec.DecodeError, KeyError, ValueError, TypeError):
                continue
    return {"matches": rows[: args.lines][::-1]}


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    priority = entry.get("PRIORITY")
    return {
        "ts_us": int(entry["__REALTIME_TIMESTAMP"]),
        "unit": _text(entry.get("_SYSTEMD_UNIT")),
        "app": _text(entry.get("SYSLOG_IDENTIFIER")),
        "pid": _text(entry.get("_PID")),
        "priority": int(priority) if isinstance(priority, str) and priority.isdigit() else None,
        "message": (_text(entry.get("MESSAGE")) or "")[:MAX_MESSAGE],
    }


def _text(value: Any) -> str | None:
    """A field: text, the bytes of what is none, or the first of several."""
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return bytes(value).decode(errors="replace")
        return _text(value[0]) if value else None
    return value if isinstance(value, str) else None
