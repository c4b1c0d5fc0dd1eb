"""Agent to Server Protocol V1 as types: methods, params, results, codes (PURE).

The shapes are the contract's §4, strict where it says `additionalProperties:
false`; the numbers are its §2, §3 and §5. Envelopes are `fleet.jsonrpc`'s.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from cortextx.core.syslog import Severity

SUBPROTOCOL = "cortex.v1"
PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 1_048_576
"""The largest WebSocket message, fragmented or not (§2, F31)."""
PRE_HELLO_BYTES = 1024
"""Bytes taken before the hello is complete, beside its own payload (§2, F3)."""
HELLO_MAX_BYTES = 65_536
"""The default cap of the hello's payload (F3)."""
HELLO_TIMEOUT = 5.0
"""Seconds from the upgrade to a complete hello (§3)."""
PING_INTERVAL = 20.0
"""Seconds between the server's pings (§2)."""
MISSED_PONGS = 3
"""Unanswered pings in a row that end a connection (§2, F21)."""
MAX_ENTRIES = 1000
"""Entries of one logs.push (§4.4)."""
MAX_SAMPLES = 512
"""Samples of one metrics.push (§4.5)."""
MAX_MESSAGE_CHARS = 65_536
"""Characters of one entry's message (§4.4, F17)."""
MAX_ENTRY_BYTES = 524_288
"""Encoded bytes of one entry that an agent sends (F17)."""
ACK_ENTRIES = 100
"""K of §7: waiting entries that force a commit (F10)."""
ACK_DELAY = 0.2
"""T of §7, seconds: the longest wait of an entry for its commit (F10)."""
ROTATION_GRACE = 300.0
"""Seconds for which a replaced token is good for another fresh one (F7)."""

HELLO = "agent.hello"
HEARTBEAT = "agent.heartbeat"
SHUTDOWN = "agent.shutdown"
LOGS_PUSH = "logs.push"
METRICS_PUSH = "metrics.push"
PROBE_REQUEST = "probe.request"
CONFIG_UPDATE = "config.update"

CLIENT_METHODS = frozenset({HELLO, HEARTBEAT, LOGS_PUSH, METRICS_PUSH})
"""What an agent may send; a probe's answer is a response, not a method (§4.7)."""
SERVER_METHODS = frozenset({SHUTDOWN, PROBE_REQUEST, CONFIG_UPDATE})
"""What a server may send."""


class Code(IntEnum):
    """JSON-RPC error codes (§5)."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    AUTH_REQUIRED = -32000
    AUTH_FAILED = -32001
    TOKEN_REVOKED = -32002
    AGENT_VERSION_UNSUPPORTED = -32003
    UNKNOWN_HOST = -32004
    TOKEN_ROTATION_REQUIRED = -32005
    BUFFER_OVERFLOW = -32007
    PAYLOAD_TOO_LARGE = -32008
    PROBE_UNAVAILABLE = -32010
    PROBE_EXECUTION_FAILED = -32011
    PROBE_TIMEOUT = -32012
    BACKPRESSURE = -32020
    QUOTA_EXCEEDED = -32030

    @property
    def title(self) -> str:
        """The name of §5, as `AuthFailed`: an error's `message` on the wire."""
        return self.name.title().replace("_", "")


class CloseCode(IntEnum):
    """WebSocket close codes (§5; 1007 by RFC 6455, F9)."""

    NORMAL = 1000
    BINARY_FRAME = 1003
    NOT_UTF8 = 1007
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    HANDSHAKE_TIMEOUT = 4000
    AUTH_FAILED = 4001
    TOKEN_REVOKED = 4002


SourceKind = Literal["journald", "file", "docker", "custom"]

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""An integer from 0 to 2**63 - 1 (F31)."""
Moment = Annotated[datetime, Meta(tz=True)]
"""A date-time with an offset (F15)."""
Uuid = Annotated[
    str,
    Meta(pattern=r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\Z"),
]
Token = Annotated[str, Meta(min_length=32, max_length=256)]
LogSource = Annotated[
    str, Meta(pattern=r"^(?:journald|(?:file|docker|custom):[^\x00-\x1f\x7f]+)\Z")
]
"""§4.4's LogSource without control characters (F32)."""


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shape with `additionalProperties: false`."""


class Platform(Strict, frozen=True):
    """Where an agent runs (§4.1)."""

    os: str
    arch: str
    kernel: str
    distro: str | None = None


class Capabilities(Strict, frozen=True, omit_defaults=False):
    """What an agent can do (§8)."""

    supported_probes: list[str]
    sources: list[SourceKind]
    max_batch_entries: Annotated[int, Meta(ge=1, le=65535)]
    compression: list[Literal["zstd"]]


class HelloParams(Strict, frozen=True):
    """agent.hello (§4.1). The token never shows in a repr (F23)."""

    protocol_version: int
    agent_version: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?\Z")]
    hostname: Annotated[str, Meta(min_length=1, max_length=253)]
    host_id: Uuid
    platform: Platform
    capabilities: Capabilities
    token: Token
    resume_from_seq: Natural | None = None

    def __repr__(self) -> str:
        return f"HelloParams(host_id={self.host_id!r}, hostname={self.hostname!r}, token=…)"

    __str__ = __repr__


class LogSourceConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One source that the server asks for (§4.1); open to further members."""

    kind: SourceKind
    path: str | msgspec.UnsetType = msgspec.UNSET
    filter: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class AgentConfig(Strict, frozen=True):
    """AgentConfig (§4.1), with the server's defaults."""

    heartbeat_interval_secs: Annotated[int, Meta(ge=5, le=600)]
    max_batch_entries: Annotated[int, Meta(ge=1, le=65535)]
    flush_interval_ms: Annotated[int, Meta(ge=10, le=60000)]
    probe_concurrency: Annotated[int, Meta(ge=1, le=64)]
    log_sources: list[LogSourceConfig]
    metrics_interval_secs: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


DEFAULT_AGENT_CONFIG = AgentConfig(
    heartbeat_interval_secs=30,
    max_batch_entries=1000,
    flush_interval_ms=200,
    metrics_interval_secs=60,
    probe_concurrency=4,
    log_sources=[
        LogSourceConfig(kind="journald"),
        LogSourceConfig(kind="docker"),
        LogSourceConfig(kind="file", path="/var/log/**/*.log"),
    ],
)
"""What a server sends unless it is configured otherwise (F18)."""


class HelloResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to agent.hello (§4.1); an agent tolerates further members (F42)."""

    server_version: str
    server_time: Moment
    accepted_seq: Natural
    session_id: Uuid
    config: AgentConfig
    rotated_token: Token | None = None

    def __repr__(self) -> str:
        rotated = "no" if self.rotated_token is None else "yes"
        return f"HelloResult(accepted_seq={self.accepted_seq}, rotated={rotated})"

    __str__ = __repr__


class Heartbeat(Strict, frozen=True):
    """agent.heartbeat (§4.2)."""

    ts: Moment
    queue_depth: Natural
    buffer_bytes: Natural
    push_lag_seq: Natural | msgspec.UnsetType = msgspec.UNSET


class Shutdown(Strict, frozen=True):
    """agent.shutdown (§4.3)."""

    reason: Literal["ServerReload", "Revoked", "Decommission"]
    drain_seconds: Annotated[int, Meta(ge=0, le=300)]


NO_METADATA = Raw()
"""The metadata of an entry that has none; absent and null are told apart by length only."""


class LogEntry(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One LogBatchEntry (§4.4).

    `metadata` keeps the sender's text: an object or null, checked apart from the
    decoder (`fleet.jsonrpc`), as is `source`, whose values repeat.
    """

    seq: Natural
    ts: Moment
    severity: Severity
    message: Annotated[str, Meta(max_length=MAX_MESSAGE_CHARS)]
    source: str
    facility: str | None = None
    app_name: str | None = None
    process_id: str | None = None
    metadata: Raw = NO_METADATA


class PushParams(Strict, frozen=True):
    """logs.push (§4.4)."""

    seq_start: Natural
    entries: Annotated[list[LogEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class PushResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ack of logs.push (§4.4)."""

    up_to_seq: Natural
    received_at: Moment | None = None


class MetricSample(Strict, frozen=True):
    """One sample of metrics.push (§4.5)."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    value: float
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class MetricsParams(Strict, frozen=True):
    """metrics.push (§4.5)."""

    ts: Moment
    samples: Annotated[list[MetricSample], Meta(min_length=1, max_length=MAX_SAMPLES)]


class MetricsResult(Struct, frozen=True, kw_only=True):
    """The ack of metrics.push (§4.5)."""

    accepted: Natural
    dropped: Natural = 0


class ProbeParams(Strict, frozen=True):
    """probe.request (§4.6)."""

    probe: Annotated[str, Meta(min_length=1, max_length=128)]
    args: Any
    timeout_ms: Annotated[int, Meta(ge=1, le=600_000)]


class ProbeOutput(Strict, frozen=True, omit_defaults=False):
    """A probe's result (§4.4 $defs)."""

    output: Any
    duration_ms: Natural
    exit_code: int | None = None
    stderr: str | None = None


class ConfigUpdate(Strict, frozen=True):
    """config.update (§4.8)."""

    config: AgentConfig
    apply_after: Moment | None = None
