"""How long the server keeps what it stores: the table `[store]` of its file (PURE).

[store]
keep_days = 90               # entries; without it for ever, within max_mib
max_mib = 50000              # above it the oldest entries go
keep_lesser = [{ severity = "warning", days = 14 }]   # then only warnings and worse
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cortextx.core.syslog import Severity

_Days = Annotated[float, Meta(gt=0, le=36_500)]


class Lesser(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After `days` only entries of this severity and worse stay."""

    severity: Severity
    days: _Days


class StoreTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[store]`; all of it changes live.

    A missing number of days, or one of None, keeps for ever. Entries are judged by
    when they came and go in whole segments (a day, or a million entries). While
    the disk has less than `reserve_mib` left, agents are put off (-32020).
    """

    keep_days: _Days | None = None
    keep_lesser: tuple[Lesser, ...] = ()
    max_mib: Annotated[int, Meta(ge=16, le=2**30)] | None = None
    metrics_days: _Days | None = 7.0
    probes_days: _Days | None = 30.0
    acts_days: _Days | None = 400.0
    gaps_days: _Days | None = 400.0
    reserve_mib: Annotated[int, Meta(ge=0, le=2**20)] = 32
