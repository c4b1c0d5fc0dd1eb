"""How a server is, in one shape for the admin socket and the HTTP API."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cortextx.fleet.server.rows import moment

if TYPE_CHECKING:
    from cortextx.fleet.server.service import FleetServer


async def status_row(fleet: FleetServer, started_at: int) -> dict[str, Any]:
    """The row; `started_at` is µs UTC. Sizes are bytes, counts are since the start."""
    records = await fleet.registry.list_hosts()
    stats = await fleet.store.stats()
    return {
        "version": fleet.version,
        "pid": os.getpid(),
        "started_at": moment(started_at),
        "listen": list(fleet.addresses),
        "connections": fleet.connections,
        "live_hosts": fleet.live_count,
        "hosts": dict(Counter(record.state for record in records)),
        "newest_entry_id": await fleet.store.head(),
        "admission": {
            "hellos_in_flight": fleet.admission.hellos_in_flight,
            "refused_connections": fleet.admission.refused_connections,
            "refused_hellos": fleet.admission.refused_hellos,
        },
        "ingest": {
            "waiting_batches": fleet.writer.depth,
            "waiting_bytes": fleet.gauge.used,
            "commits": fleet.writer.commits,
            "entries": fleet.writer.entries,
            "failed_commits": fleet.writer.failures,
            "quota_refusals": fleet.quotas.refusals,
        },
        "metrics": {"accepted": fleet.meter.accepted, "dropped": fleet.meter.dropped},
        "waiting_probes": fleet.probes.waiting,
        "store": {
            **asdict(stats),
            "oldest": moment(stats.oldest),
            "made_at": moment(fleet.store_made_at),
        },
        "warnings": fleet.warnings(stats.damaged, stats.excess),
    }
