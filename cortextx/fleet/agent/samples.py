"""What a host measures of itself: load, memory, disks, network, and the agent (§4.5, F19, F24).

`host_samples` asks the system and blocks for it: a disk may not answer, so it belongs in
a thread. psutil is loaded with the first call. Names end in their unit; what only grows
ends in `_total`. There are never more than one push takes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cortextx.fleet.contract import MAX_SAMPLES, MetricSample

if TYPE_CHECKING:
    from cortextx.fleet.agent.buffer_lane import BufferStatus
    from cortextx.fleet.agent.sources.report import SourceReport

MAX_MOUNTS = 32
MAX_INTERFACES = 32
MAX_LABEL = 256
"""Characters of a label's value."""


def host_samples() -> list[MetricSample]:
    """The host's samples; what cannot be read is left out."""
    import psutil

    found: list[MetricSample] = []
    for part in (_load, _memory, _disks, _network, _own):
        try:
            found += part(psutil)
        except (OSError, psutil.Error, RuntimeError, AttributeError):
            continue
    return found


def agent_samples(
    status: BufferStatus,
    reports: Iterable[SourceReport],
    rules: Mapping[str, Mapping[str, int]],
) -> list[MetricSample]:
    """The agent's own: its buffer (F19), its sources' counters and its rules'."""
    found = [
        _sample("buffer_entries", status.depth),
        _sample("buffer_bytes", status.size),
        _sample("buffer_evicted_entries", status.evicted),
        _sample("buffer_damaged_entries", status.damaged),
        _sample("buffer_set_aside_entries", status.set_aside),
    ]
    for report in reports:
        labels = {"source": report.name[:MAX_LABEL], "kind": report.kind}
        for name, value in report.counters.items():
            found.append(_sample(f"source_{name}_total"[:128], value, **labels))
    for name, counts in rules.items():
        for what, value in counts.items():
            found.append(_sample(f"rule_{what}_total", value, rule=name[:MAX_LABEL]))
    return found


def bounded(samples: Iterable[MetricSample]) -> list[MetricSample]:
    """As many as one push takes, without what is no number (§4.5)."""
    return [sample for sample in samples if math.isfinite(sample.value)][:MAX_SAMPLES]


def _sample(name: str, value: float, **labels: str) -> MetricSample:
    if labels:
        return MetricSample(name=name, value=float(value), labels=labels)
    return MetricSample(name=name, value=float(value))


def _load(psutil: Any) -> Iterator[MetricSample]:
    for minutes, value in zip((1, 5, 15), os.getloadavg(), strict=True):
        yield _sample(f"load{minutes}", value)
    yield _sample("cpu_count", psutil.cpu_count() or 1)
    # Since the call before; the first answers 0.
    yield _sample("cpu_used_pct", psutil.cpu_percent(interval=None))


def _memory(psutil: Any) -> Iterator[MetricSample]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    yield _sample("mem_total_bytes", memory.total)
    yield _sample("mem_available_bytes", memory.available)
    yield _sample("mem_used_pct", memory.percent)
    yield _sample("swap_used_bytes", swap.used)
    yield _sample("swap_used_pct", swap.percent)


def _disks(psutil: Any) -> Iterator[MetricSample]:
    seen: set[str] = set()
    for part in psutil.disk_partitions(all=False):
        if part.device in seen or part.fstype == "squashfs" or len(seen) >= MAX_MOUNTS:
            continue
        seen.add(part.device)
        try:
            usage = psutil.disk_usage(part.mountpoint)
        except OSError:
            continue
        mount = os.fsencode(part.mountpoint).decode("utf-8", "replace")[:MAX_LABEL]
        yield _sample("disk_used_pct", usage.percent, mount=mount)
        yield _sample("disk_free_bytes", usage.free, mount=mount)


def _network(psutil: Any) -> Iterator[MetricSample]:
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    names = [name for name in sorted(counters) if name != "lo"][:MAX_INTERFACES]
    for name in names:
        one = counters[name]
        yield _sample("net_received_bytes_total", one.bytes_recv, interface=name)
        yield _sample("net_sent_bytes_total", one.bytes_sent, interface=name)
        yield _sample("net_errors_total", one.errin + one.errout, interface=name)
        yield _sample("net_dropped_total", one.dropin + one.dropout, interface=name)


def _own(psutil: Any) -> Iterator[MetricSample]:
    process = psutil.Process()
    with process.oneshot():
        yield _sample("agent_rss_bytes", process.memory_info().rss)
        times = process.cpu_times()
        yield _sample("agent_cpu_seconds_total", times.user + times.system)
        yield _sample("agent_open_files", process.num_fds())


Sampler = Callable[[], list[MetricSample]]
"""Takes the host's samples, in a thread."""
