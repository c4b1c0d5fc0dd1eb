"""systemd.failed and systemd.status, by systemctl."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from cortextx.fleet.agent.probes.catalogue import Args, UnitArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

_SHOWN = (
    "Id", "Description", "LoadState", "ActiveState", "SubState", "UnitFileState", "Result",
    "ExecMainStatus", "ExecMainCode", "MainPID", "NRestarts", "MemoryCurrent", "TasksCurrent",
    "ActiveEnterTimestamp", "InactiveEnterTimestamp", "StateChangeTimestamp",
)  # fmt: skip
_NUMBERS = {
    "ExecMainStatus", "ExecMainCode", "MainPID", "NRestarts", "MemoryCurrent", "TasksCurrent",
}  # fmt: skip


def failed(args: Args, place: Place) -> dict[str, Any]:
    """The units that failed."""
    code, out, words = place.command(
        "systemctl", "list-units", "--state=failed", "--all", "--no-pager", "--output=json"
    )
    if code != 0:
        raise ProbeFault(f"systemctl: {words.strip() or f'exit code {code}'}")
    try:
        rows = msgspec.json.decode(out or b"[]")
        units = [
            {
                "unit": row["unit"],
                "load": row.get("load"),
                "active": row.get("active"),
                "sub": row.get("sub"),
                "description": row.get("description"),
            }
            for row in rows
        ]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise ProbeFault("systemctl answered in a form that is not known") from None
    return {"failed": units}


def status(args: UnitArgs, place: Place) -> dict[str, Any]:
    """One unit: its state, result, process, memory (bytes), restarts."""
    code, out, words = place.command(
        "systemctl", "show", "--no-pager", f"--property={','.join(_SHOWN)}", "--", args.unit
    )
    if code != 0:
        raise ProbeFault(f"systemctl: {words.strip() or f'exit code {code}'}")
    found: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name in _SHOWN:
            found[_member(name)] = _number(value) if name in _NUMBERS else value or None
    if found.get("load_state") == "not-found":
        raise ProbeFault(f"there is no unit {args.unit}")
    return found


def _member(name: str) -> str:
    out = [name[0].lower()]
    for before, char in pairwise(name):
        if char.isupper() and not before.isupper():
            out.append("_")
        out.append(char.lower())
    return "".join(out)


def _number(value: str) -> int | None:
    """A count; systemd says "[not set]", or all bits, where it has none."""
    return int(value) if value.isdigit() and int(value) < 2**63 else None
