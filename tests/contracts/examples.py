"""One good message of each method of the contract, with every member that it may have."""

from __future__ import annotations

import copy
from typing import Any

HOST_ID = "6f1c2d3e-4a5b-4c6d-8e7f-a0b1c2d3e4f5"
TOKEN = "b25lLXRva2VuLWluLWJhc2U2NHVybC1vZi0zMi1ieXRlcw"
TS = "2026-08-09T06:30:00.250Z"

CONFIG: dict[str, Any] = {
    "heartbeat_interval_secs": 30,
    "max_batch_entries": 500,
    "flush_interval_ms": 200,
    "metrics_interval_secs": 60,
    "probe_concurrency": 4,
    "log_sources": [
        {"kind": "journald", "filter": "_SYSTEMD_UNIT=cron.service"},
        {"kind": "file", "path": "/var/log/app/*.log", "labels": {"team": "web"}},
        {"kind": "docker", "filter": None},
    ],
}
HELLO: dict[str, Any] = {
    "protocol_version": 1,
    "agent_version": "0.4.2",
    "hostname": "db-3.example",
    "host_id": HOST_ID,
    "platform": {"os": "linux", "arch": "aarch64", "kernel": "6.1.0", "distro": "Debian 12"},
    "capabilities": {
        "supported_probes": ["fs.disk_usage", "proc.top"],
        "sources": ["journald", "file"],
        "max_batch_entries": 1000,
        "compression": ["zstd"],
    },
    "token": TOKEN,
    "resume_from_seq": 17,
}
HEARTBEAT: dict[str, Any] = {
    "ts": TS,
    "queue_depth": 3,
    "buffer_bytes": 2048,
    "push_lag_seq": 5,
}
ENTRY: dict[str, Any] = {
    "seq": 1,
    "ts": TS,
    "severity": "warning",
    "facility": "daemon",
    "app_name": "cron",
    "process_id": "812",
    "message": "a job took 7 s",
    "source": "file:/var/log/cron.log",
    "metadata": {"job": "backup", "cortextx": {"part": 1}},
}
PUSH: dict[str, Any] = {"seq_start": 1, "entries": [ENTRY]}
METRICS: dict[str, Any] = {
    "ts": TS,
    "samples": [{"name": "load1", "value": 0.5, "labels": {"core": "0"}}],
}

PARAMS: dict[str, Any] = {
    "agent.hello": HELLO,
    "agent.heartbeat": HEARTBEAT,
    "agent.shutdown": {"reason": "ServerReload", "drain_seconds": 10},
    "logs.push": PUSH,
    "metrics.push": METRICS,
    "probe.request": {"probe": "proc.top", "args": {"count": 5}, "timeout_ms": 2000},
    "config.update": {"apply_after": TS, "config": CONFIG},
}
RESULTS: dict[str, Any] = {
    "agent.hello": {
        "server_version": "0.2.0",
        "server_time": TS,
        "accepted_seq": 17,
        "session_id": "0d9f7c52-1a2b-4c3d-9e8f-112233445566",
        "rotated_token": TOKEN,
        "config": CONFIG,
    },
    "logs.push": {"up_to_seq": 1, "received_at": TS},
    "metrics.push": {"accepted": 1, "dropped": 0},
    "probe.request": {"output": [1, 2], "exit_code": 0, "stderr": None, "duration_ms": 12},
}


def params(method: str, **changes: Any) -> Any:
    """A copy of a method's example params, some members changed."""
    return copy.deepcopy(PARAMS[method]) | changes


def entries(first: int, count: int, **changes: Any) -> list[dict[str, Any]]:
    """So many entries from a seq on."""
    return [copy.deepcopy(ENTRY) | {"seq": first + n} | changes for n in range(count)]


def push(first: int, count: int = 1, **changes: Any) -> dict[str, Any]:
    """The params of a push."""
    return {"seq_start": first, "entries": entries(first, count, **changes)}
