"""The shapes of Agent to Server Protocol V1 as JSON Schema, stated apart from the code.

The types of `cortextx.fleet.contract` are one reading of the contract's §4; this is
another, so that each checks the other. The rulings that narrow a shape (offsets,
2**63, control characters) are not here: see `test_shapes.py`.
"""

from __future__ import annotations

import re
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Schema = dict[str, Any]

_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_formats = FormatChecker()


@_formats.checks("date-time")
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or _MOMENT.fullmatch(value) is not None


def closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object of these members and no others."""
    return opened(required, optional) | {"additionalProperties": False}


def opened(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object of these members, and perhaps others."""
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties}


def integer(low: int | None = None, high: int | None = None) -> Schema:
    """An integer between bounds, both inclusive."""
    bounds = {"minimum": low, "maximum": high}
    return {"type": "integer"} | {name: at for name, at in bounds.items() if at is not None}


def text(low: int | None = None, high: int | None = None) -> Schema:
    """Text of so many characters, both bounds inclusive."""
    bounds = {"minLength": low, "maxLength": high}
    return {"type": "string"} | {name: at for name, at in bounds.items() if at is not None}


def one_of(*words: str) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(words)}


def many(items: Schema, low: int | None = None, high: int | None = None) -> Schema:
    """An array."""
    bounds = {"minItems": low, "maxItems": high}
    return {"type": "array", "items": items} | {k: at for k, at in bounds.items() if at is not None}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return schema | {"type": [schema["type"], "null"]}


def labelled(values: Schema) -> Schema:
    """An object of any names."""
    return {"type": "object", "additionalProperties": values}


NATURAL = integer(0)
MOMENT: Schema = {"type": "string", "format": "date-time"}
UUID: Schema = {"type": "string", "format": "uuid"}
TOKEN = text(32, 256)
KIND = one_of("journald", "file", "docker", "custom")

AGENT_CONFIG = closed(
    {
        "heartbeat_interval_secs": integer(5, 600),
        "max_batch_entries": integer(1, 65_535),
        "flush_interval_ms": integer(10, 60_000),
        "probe_concurrency": integer(1, 64),
        "log_sources": many(
            opened(
                {"kind": KIND},
                {"path": text(), "filter": or_null(text()), "labels": labelled(text())},
            )
        ),
    },
    {"metrics_interval_secs": or_null(integer(1))},
)
HELLO_PARAMS = closed(
    {
        "protocol_version": integer(1, 1),
        "agent_version": text() | {"pattern": r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?$"},
        "hostname": text(1, 253),
        "host_id": UUID,
        "platform": closed(
            {"os": text(), "arch": text(), "kernel": text()}, {"distro": or_null(text())}
        ),
        "capabilities": closed(
            {
                "supported_probes": many(text()),
                "sources": many(KIND),
                "max_batch_entries": integer(1, 65_535),
                "compression": many(one_of("zstd")),
            }
        ),
        "token": TOKEN,
    },
    {"resume_from_seq": or_null(NATURAL)},
)
HELLO_RESULT = closed(
    {
        "server_version": text(),
        "server_time": MOMENT,
        "accepted_seq": NATURAL,
        "session_id": UUID,
        "config": AGENT_CONFIG,
    },
    {"rotated_token": or_null(TOKEN)},
)
HEARTBEAT = closed(
    {"ts": MOMENT, "queue_depth": NATURAL, "buffer_bytes": NATURAL}, {"push_lag_seq": NATURAL}
)
SHUTDOWN = closed(
    {
        "reason": one_of("ServerReload", "Revoked", "Decommission"),
        "drain_seconds": integer(0, 300),
    }
)
SOURCE: Schema = {
    "oneOf": [
        one_of("journald"),
        *(text() | {"pattern": f"^{kind}:.+$"} for kind in ("file", "docker", "custom")),
    ]
}
ENTRY = closed(
    {
        "seq": NATURAL,
        "ts": MOMENT,
        "severity": one_of(
            "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"
        ),
        "message": text(high=65_536),
        "source": SOURCE,
    },
    {
        "facility": or_null(text()),
        "app_name": or_null(text()),
        "process_id": or_null(text()),
        "metadata": {"type": ["object", "null"]},
    },
)  # fmt: skip
PUSH_PARAMS = closed({"seq_start": NATURAL, "entries": many(ENTRY, 1, 1000)})
PUSH_RESULT = closed({"up_to_seq": NATURAL}, {"received_at": MOMENT})
SAMPLE = closed({"name": text(1, 128), "value": {"type": "number"}}, {"labels": labelled(text())})
METRICS_PARAMS = closed({"ts": MOMENT, "samples": many(SAMPLE, 1, 512)})
METRICS_RESULT = closed({"accepted": NATURAL}, {"dropped": NATURAL})
PROBE_PARAMS = closed({"probe": text(1, 128), "args": {}, "timeout_ms": integer(1, 600_000)})
PROBE_OUTPUT = closed(
    {"output": {}, "duration_ms": NATURAL},
    {"exit_code": or_null(integer()), "stderr": or_null(text())},
)
CONFIG_UPDATE = closed({"config": AGENT_CONFIG}, {"apply_after": or_null(MOMENT)})

TITLES = {
    -32700: "ParseError",
    -32600: "InvalidRequest",
    -32601: "MethodNotFound",
    -32602: "InvalidParams",
    -32603: "InternalError",
    -32000: "AuthRequired",
    -32001: "AuthFailed",
    -32002: "TokenRevoked",
    -32003: "AgentVersionUnsupported",
    -32004: "UnknownHost",
    -32005: "TokenRotationRequired",
    -32007: "BufferOverflow",
    -32008: "PayloadTooLarge",
    -32010: "ProbeUnavailable",
    -32011: "ProbeExecutionFailed",
    -32012: "ProbeTimeout",
    -32020: "Backpressure",
    -32030: "QuotaExceeded",
}
"""§5: every code and its name."""
SENT_BY_SERVER = set(TITLES) - {-32010, -32011, -32012}
"""§5's direction column; the probe codes are an agent's words."""
CLOSE_CODES = {
    "NORMAL": 1000,
    "BINARY_FRAME": 1003,
    "NOT_UTF8": 1007,
    "TOO_BIG": 1009,
    "INTERNAL_ERROR": 1011,
    "HANDSHAKE_TIMEOUT": 4000,
    "AUTH_FAILED": 4001,
    "TOKEN_REVOKED": 4002,
}
"""§5's close codes, and F9's 1007."""

_WAIT = opened({"retry_after_ms": NATURAL}, {"resend_from": NATURAL})
_FAULT = closed({"field": text(1), "expected": text(1)})
ERROR_DATA: dict[int, Schema] = {
    -32700: _FAULT,
    -32600: _FAULT,
    -32602: _FAULT,
    -32008: _FAULT,
    -32001: closed({"reason": text(1)}),
    -32005: closed({"reason": text(1)}),
    -32003: opened({}, {"required_protocol_version": integer(1), "current": integer(1)}),
    -32007: _WAIT,
    -32020: _WAIT,
    -32030: _WAIT,
}
"""What stands in an error's data, where there is any; ours where the contract is silent."""
NEEDS_DATA = {-32020, -32030, -32007, -32001, -32003}
"""Codes whose data must be there (§5, §9, F5, F33, F42)."""

PARAMS = {
    "agent.hello": HELLO_PARAMS,
    "agent.heartbeat": HEARTBEAT,
    "agent.shutdown": SHUTDOWN,
    "logs.push": PUSH_PARAMS,
    "metrics.push": METRICS_PARAMS,
    "probe.request": PROBE_PARAMS,
    "config.update": CONFIG_UPDATE,
}
"""The params of each method."""
RESULTS = {
    "agent.hello": HELLO_RESULT,
    "logs.push": PUSH_RESULT,
    "metrics.push": METRICS_RESULT,
    "probe.request": PROBE_OUTPUT,
}
"""The result of each method that is answered."""
NOTIFIED_BY_SERVER = {"agent.shutdown", "config.update"}
ASKED_BY_SERVER = {"probe.request"}


def faults(schema: Schema, value: Any) -> list[str]:
    """What is wrong with a value; empty where nothing is."""
    validator = Draft202012Validator(schema, format_checker=_formats)
    return [f"{fault.json_path}: {fault.message[:200]}" for fault in validator.iter_errors(value)]


def server_faults(message: Any, asked: dict[Any, str]) -> list[str]:
    """What is wrong with a message that a server sent.

    `asked` is the method of each request that was sent, by id.
    """
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return ["not one JSON-RPC 2.0 message"]
    members = set(message) - {"jsonrpc"}
    method = message.get("method")
    if members == {"method", "params"} and method in NOTIFIED_BY_SERVER:
        return faults(PARAMS[method], message["params"])
    if members == {"id", "method", "params"} and method in ASKED_BY_SERVER:
        return faults(PARAMS[method], message["params"])
    if members == {"id", "result"}:
        if asked.get(message["id"]) not in RESULTS:
            return [f"a result for {message['id']!r}, which asked for none"]
        return faults(RESULTS[asked[message["id"]]], message["result"])
    if members == {"id", "error"}:
        if message["id"] is not None and message["id"] not in asked:
            return [f"an error for {message['id']!r}, which was not asked"]
        return _error_faults(message["error"])
    return [f"members {sorted(members)} are no message of a server"]


def _error_faults(error: Any) -> list[str]:
    found = faults(closed({"code": integer(), "message": text(1)}, {"data": {}}), error)
    if found:
        return found
    code = error["code"]
    if code not in SENT_BY_SERVER or error["message"] != TITLES[code]:
        return [f"{code} {error['message']!r} is no error of a server"]
    if "data" in error:
        return faults(ERROR_DATA.get(code, closed({})), error["data"])
    return [f"{code} without data"] if code in NEEDS_DATA else []
