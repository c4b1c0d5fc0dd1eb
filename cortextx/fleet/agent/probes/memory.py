"""mem.pressure: how tight memory is, as the kernel tells it."""

from __future__ import annotations

from typing import Any

from cortextx.fleet.agent.probes.catalogue import Args
from cortextx.fleet.agent.probes.place import Place

_MEMORY = {
    "MemTotal": "total_bytes", "MemAvailable": "available_bytes", "MemFree": "free_bytes",
    "Buffers": "buffers_bytes", "Cached": "cached_bytes", "Dirty": "dirty_bytes",
    "SwapTotal": "swap_total_bytes", "SwapFree": "swap_free_bytes", "Shmem": "shared_bytes",
    "Slab": "slab_bytes", "Committed_AS": "committed_bytes", "CommitLimit": "commit_limit_bytes",
}  # fmt: skip
_EVENTS = {"oom_kill": "oom_kills", "pswpin": "swapped_in_pages", "pswpout": "swapped_out_pages"}


def pressure(args: Args, place: Place) -> dict[str, Any]:
    """Sizes in bytes, events since boot, and stalls in percent of time where the kernel
    measures them (`some`: a task waited; `full`: all did)."""
    answer: dict[str, Any] = {"memory": _sizes(), "since_boot": _events()}
    stalls = {name: _stalls(name) for name in ("memory", "io", "cpu")}
    answer["stalls"] = {name: found for name, found in stalls.items() if found is not None} or None
    return answer


def _sizes() -> dict[str, int]:
    found = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in _MEMORY:
                found[_MEMORY[name]] = int(rest.split()[0]) * 1024
    return found


def _events() -> dict[str, int]:
    found = {}
    try:
        with open("/proc/vmstat") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name in _EVENTS:
                    found[_EVENTS[name]] = int(value)
    except OSError:
        return {}
    return found


def _stalls(name: str) -> dict[str, dict[str, float]] | None:
    found = {}
    try:
        with open(f"/proc/pressure/{name}") as file:
            for line in file:
                kind, *parts = line.split()
                values = dict(part.split("=") for part in parts)
                found[kind] = {
                    f"percent_{seconds}s": float(values[f"avg{seconds}"])
                    for seconds in (10, 60, 300)
                }
    except (OSError, KeyError, ValueError):
        return None
    return found
