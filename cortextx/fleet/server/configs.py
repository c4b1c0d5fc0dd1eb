"""What a host is told to do: the server's defaults, and what its scopes set (PURE; §4.1, §4.8).

A scope ("all", a group, a host) sets some members of an AgentConfig, whole: a list
of sources replaces the list of the layer below. What an operator sets is checked
more strictly than the contract asks, since a typo would otherwise be carried
out by every agent without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from blake3 import blake3
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from cortextx.core.jsontext import convert, decode, encode
from cortextx.errors import JsonError, JsonShapeError
from cortextx.fleet.contract import MAX_ENTRIES, AgentConfig, SourceKind, Strict

MAX_SOURCES = 256
MAX_NAME = 64
"""Characters of an unknown member's name that an error repeats."""
MAX_METRICS_INTERVAL = 31_536_000
"""Seconds, a year: the contract names no bound, but a longer one is a slip. null is for never."""
_Text = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class _Source(Strict, frozen=True):
    """A source as an operator may ask for it: nothing beyond what §4.1 names."""

    kind: SourceKind
    path: _Text | UnsetType = UNSET
    filter: _Text | UnsetType | None = UNSET
    labels: dict[_Text, str] | UnsetType = UNSET


class _Members(Strict, frozen=True):
    """Some members of an AgentConfig, with its bounds."""

    heartbeat_interval_secs: Annotated[int, Meta(ge=5, le=600)] | UnsetType = UNSET
    max_batch_entries: Annotated[int, Meta(ge=1, le=65535)] | UnsetType = UNSET
    flush_interval_ms: Annotated[int, Meta(ge=10, le=60000)] | UnsetType = UNSET
    metrics_interval_secs: (
        Annotated[int, Meta(ge=1, le=MAX_METRICS_INTERVAL)] | UnsetType | None
    ) = UNSET
    probe_concurrency: Annotated[int, Meta(ge=1, le=64)] | UnsetType = UNSET
    log_sources: Annotated[list[_Source], Meta(max_length=MAX_SOURCES)] | UnsetType = UNSET


def checked(members: Mapping[str, Any]) -> dict[str, Any]:
    """The same members, known to be good; raises JsonShapeError with the path of a fault."""
    _check_known("$", members, _Members)
    sources = members.get("log_sources")
    for at, source in enumerate(sources if isinstance(sources, list | tuple) else ()):
        if isinstance(source, Mapping):
            _check_known(f"$.log_sources[{at}]", source, _Source)
    given = convert(dict(members), _Members)
    for at, source in enumerate(given.log_sources or ()):
        if source.kind == "file" and source.path is UNSET:
            raise JsonShapeError(f"$.log_sources[{at}].path", "a path or a glob of files")
    plain: dict[str, Any] = decode(encode(given), dict[str, Any])
    return plain


def _check_known(at: str, members: Mapping[str, Any], kind: type[Strict]) -> None:
    """Raise JsonShapeError with the first member that is none, and those that there are."""
    known = kind.__struct_fields__
    for name in members:
        if name not in known:
            raise JsonShapeError(f"{at}.{name[:MAX_NAME]}", f"a member, as {', '.join(known)}")


def merged(defaults: AgentConfig, members: Mapping[str, Any]) -> tuple[AgentConfig, list[str]]:
    """`defaults` with `members` in their place, and the names of those that are not good.

    What another version of this program stored may be: it is left out, as a host
    is better told the rest than nothing.
    """
    good, bad = {}, []
    for name, value in members.items():
        try:
            good.update(checked({name: value}))
        except JsonError:
            bad.append(name)
    whole = decode(encode(defaults), dict[str, Any]) | good
    # An absent interval is the contract's null; the default's must not show through.
    config = convert(whole, AgentConfig)
    return config, bad


def instructed(config: AgentConfig, preferred_batch: int | None = None) -> AgentConfig:
    """`config` as it is sent: batches no larger than the server takes (F31) and the
    agent would like (§8, `capabilities.max_batch_entries`)."""
    most = min(config.max_batch_entries, MAX_ENTRIES, preferred_batch or MAX_ENTRIES)
    return config if most == config.max_batch_entries else replace(config, max_batch_entries=most)


def fingerprint(config: AgentConfig) -> str:
    """16 hex digits that tell configs apart: the same for the same config."""
    return blake3(encode(config)).hexdigest()[:16]
