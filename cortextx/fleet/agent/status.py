"""What an agent says of itself to its operator (PURE, F23: no secret is in it)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from cortextx.fleet.agent.health import judge
from cortextx.fleet.agent.sources.identity import decode_checkpoint
from cortextx.fleet.agent.sources.report import SourceReport

if TYPE_CHECKING:
    from cortextx.fleet.agent.buffer_writer import BufferWriter
    from cortextx.fleet.agent.changing import Standing
    from cortextx.fleet.agent.policy import EffectiveSource, Plan
    from cortextx.fleet.agent.probes.registry import ProbeState
    from cortextx.fleet.agent.runner import LinkRunner

MAX_LOOKED_AT = 5000
"""Checkpoints that a status looks at for that."""
MAX_FILES = 200
"""Files that a status names at most."""
_AUTH = {"fatal_auth": "refused", "revoked": "revoked", "active": "ok", "draining": "ok"}


def agent_status(
    *,
    now: float,
    host_id: str,
    version: str,
    runner: LinkRunner,
    buffer: BufferWriter,
    oldest: bytes | None,
    apart: Sequence[str] | None,
    planned: Plan,
    reports: Sequence[SourceReport],
    troubled: Sequence[SourceReport],
    held_by: Sequence[str],
    checkpoints: Mapping[str, bytes],
    config: Standing,
    rules: Mapping[str, Mapping[str, int]],
    probes: Sequence[ProbeState],
) -> dict[str, Any]:
    """The whole status; `now` in seconds of the link's clock.

    `oldest` is the body of the oldest entry that was not acknowledged, `apart` the
    buffer's files that somebody must look at (None: not known now), `troubled` those of the
    `reports` that tell of trouble.
    """
    link, status = runner.link, buffer.status
    accepted, dropped = link.samples
    health, health_why = judge(
        state=link.state,
        why=link.why or runner.last_error or "",
        broken=status.broken,
        full=status.full,
        apart=apart,
        troubled=troubled,
        left_out=planned.left_out,
        config=config,
    )
    return {
        "health": health,
        "health_why": health_why,
        "state": link.state,
        "connected": link.state in ("active", "draining"),
        "reason": link.why or None,
        "auth": _AUTH.get(link.state, "unknown" if link.session_id is None else "ok"),
        "probable_clone": runner.superseded.is_probable_clone(now),
        "last_error": runner.last_error,
        "next_attempt_in": _seconds_to(link.attempt_at, now),
        "host_id": host_id,
        "session_id": link.session_id,
        "acked_seq": link.acked,
        "last_seq": buffer.last,
        "backlog_entries": buffer.depth,
        "oldest_unsent": time_of(oldest),
        "buffer_bytes": buffer.size,
        "unanswered_pushes": link.in_flight,
        "buffer_pressure": buffer.pressure if status.full is None else "hard",
        "sources_paused_by": list(held_by),
        "evicted_entries": status.evicted,
        "damaged_entries": status.damaged,
        "set_aside_entries": status.set_aside,
        "unreported_losses": status.losses,
        "unacknowledged": None if apart is None else list(apart),
        "buffer_fault": status.broken or status.full,
        "buffer_story": status.story,
        "samples_accepted": accepted,
        "samples_dropped": dropped,
        "config": {
            **msgspec.to_builtins(config),
            "applies_in": _seconds_to(link.config_due_at, now),
        },
        "version": version,
        "sources": [source_row(source, reports) for source in planned.run],
        "sources_left_out": [msgspec.to_builtins(left) for left in planned.left_out],
        "files": files_read(checkpoints, reports),
        "reports": [report_row(report) for report in reports],
        "rules": [{"name": name, **counts} for name, counts in rules.items()],
        "probes": [msgspec.to_builtins(probe) for probe in probes],
    }


def time_of(body: bytes | None) -> str | None:
    """The time of an entry, as it stands at the head of its body."""
    if body is None or not body.startswith(b'"ts":"'):
        return None
    return body[6 : body.index(b'"', 6)].decode("ascii", "replace")


def report_row(report: SourceReport) -> dict[str, Any]:
    """How one source object is; a file source's lists stand elsewhere."""
    details = {
        key: value
        for key, value in report.details.items()
        if not (report.kind == "file" and key in ("files", "why", "faults"))
    }
    row = {"name": report.name, "kind": report.kind, "state": report.state, "why": report.why}
    return {**row, "counters": dict(report.counters), "details": details}


def _seconds_to(due: float | None, now: float) -> float | None:
    """The time until `due`, to a tenth of a second: it is for people."""
    return None if due is None else round(max(0.0, due - now), 1)


def source_row(source: EffectiveSource, reports: Iterable[SourceReport]) -> dict[str, Any]:
    """A source that is to run and what is known of it: for files how many its glob matches
    now (None: not known yet) and why there are none; for others how they are."""
    table = source.table
    row: dict[str, Any] = {
        "kind": source.kind,
        "name": source.name,
        "path": table.path,
        "start": None if source.kind == "custom" else table.start or "start",
        "origin": source.origin,
        "state": None,
        "files": None,
        "why": source.note,
    }
    path = table.path or ""
    for report in reports:
        files = report.details.get("files") or {}
        if report.kind != source.kind:
            continue
        if source.kind == "file" and report.state == "failed" and row["state"] is None:
            row |= {"state": report.state, "why": report.why}
        if source.kind == "file" and path in files:
            row["files"] = files[path]
            row["state"] = report.state
            row["why"] = report.details.get("why", {}).get(path) or report.why or source.note
        elif source.kind != "file" and report.name == source.name:
            row |= {"state": report.state, "why": report.why or source.note}
    return row


def files_read(
    checkpoints: Mapping[str, bytes], reports: Iterable[SourceReport]
) -> list[dict[str, Any]]:
    """Which files are read, and how far, as their checkpoints say; those that cannot be
    read come first, with the reason in `why`."""
    faults: dict[str, str] = {}
    for report in reports:
        faults |= report.details.get("faults", {})
    rows: list[dict[str, Any]] = []
    # The newest: a status must not take longer for who has very many files.
    newest = islice(reversed(list(checkpoints)), MAX_LOOKED_AT)
    for key in newest:
        data = checkpoints[key]
        if key.startswith("file:"):
            with contextlib.suppress(ValueError):
                found = decode_checkpoint(data)
                if not found.finished:
                    row = {"path": found.path, "offset": found.offset, "size": found.size}
                    rows.append({**row, "why": faults.pop(found.path, None)})
    rows += [{"path": path, "offset": None, "size": None, "why": faults[path]} for path in faults]
    return sorted(rows, key=lambda row: (row["why"] is None, str(row["path"])))[:MAX_FILES]
