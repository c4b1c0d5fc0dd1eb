"""How one running source is, for the agent's status (PURE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SourceState = Literal["running", "waiting", "failed", "paused"]


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a source tells of itself when it is asked.

    `state` is `running`, `waiting` (for a file, a daemon or a retry to come), `paused`
    (by the agent, F19, F34) or `failed` (it does not go on by itself); `why` says in
    words why it is not `running`, or what is wrong although it runs. `counters` only
    grow while the source runs (`entries`, `bytes`, `dropped`, `truncated`, …); they are
    shown, and pushed as metrics. `details` is whatever else an operator should see, of
    plain JSON values. A file source's details have `files` (the number of files that
    each glob matched, None before the first scan), `why` (of a glob why that is none)
    and `faults` (of a path why it is not read). Any source's may have `trouble`, what is
    wrong although it runs, and `at_rest`, that it waits as it is meant to. No secret is in
    any of it (F23).
    """

    name: str
    kind: str
    state: SourceState = "running"
    why: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
