"""mem.top and cpu.top: which processes take most. Command lines are redacted (S3)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psutil

from cortextx.fleet.agent.probes.catalogue import CpuArgs, TopArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.redact import redacted


def by_memory(args: TopArgs, place: Place) -> dict[str, Any]:
    """The processes with the most resident memory, in bytes."""
    rows = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            rows.append((process.memory_info().rss, process))
    rows.sort(key=lambda row: row[0], reverse=True)
    total = psutil.virtual_memory().total
    return {
        "memory_bytes": total,
        "processes": [
            {**facts, "rss_bytes": rss, "percent": round(100 * rss / total, 1)}
            for rss, process in rows[: args.limit]
            if (facts := _facts(process)) is not None
        ],
    }


def by_cpu(args: CpuArgs, place: Place) -> dict[str, Any]:
    """The processes that used most of the processors in an interval, in percent of one."""
    before = _times()
    began = time.monotonic()
    time.sleep(min(args.interval_ms / 1000, place.seconds_left / 2))
    after = _times()
    passed = time.monotonic() - began
    used = []
    for key, (seconds, process) in after.items():
        earlier = before.get(key)
        if earlier is not None:
            used.append((seconds - earlier[0], process))
    used.sort(key=lambda row: row[0], reverse=True)
    return {
        "interval_ms": round(passed * 1000),
        "cpus": psutil.cpu_count(),
        "processes": [
            {**facts, "percent": round(100 * seconds / passed, 1)}
            for seconds, process in used[: args.limit]
            if seconds > 0 and (facts := _facts(process)) is not None
        ],
    }


def _times() -> dict[tuple[int, float], tuple[float, psutil.Process]]:
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            found[process.pid, process.create_time()] = (spent.user + spent.system, process)
    return found


def _facts(process: psutil.Process) -> dict[str, Any] | None:
    try:
        with process.oneshot():
            row: dict[str, Any] = {"pid": process.pid, "name": process.name()}
            with contextlib.suppress(psutil.Error, KeyError):
                row["user"] = process.username()
            with contextlib.suppress(psutil.Error):
                row["command"] = redacted(process.cmdline())
            row["since"] = int(process.create_time())
    except psutil.Error:
        return None
    return row
