"""Reading the answer to agent.hello, with the patience that F42 asks for (PURE, §4.1).

What the agent cannot do without is checked strictly. Members it does not know
are left out and named; a configuration that is out of range costs the
configuration, not the connection (A58, A59).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from cortextx.core import jsontext
from cortextx.fleet.contract import (
    AgentConfig,
    HelloResult,
    Moment,
    SourceKind,
    Token,
    Uuid,
)

if TYPE_CHECKING:
    from datetime import datetime

MOST_ACCEPTED = 2**62
"""The highest `accepted_seq` that is taken: seqs go up to 2^63 - 1 (F31), and beyond a
value near that there would be none left for what comes."""

_KNOWN = frozenset(HelloResult.__struct_fields__)
_KNOWN_CONFIG = frozenset(AgentConfig.__struct_fields__)
_KINDS = frozenset(get_args(SourceKind))


class _Needed(Struct, frozen=True, kw_only=True):
    """The members of a HelloResult that must be right."""

    server_version: str
    server_time: Moment
    accepted_seq: Annotated[int, Meta(ge=0, le=MOST_ACCEPTED)]
    session_id: Uuid
    config: Raw
    rotated_token: Token | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a server said to a hello it accepted.

    `config` is None where `fault` says in words what is wrong with it. `unknown`
    names members that were left out.
    """

    server_version: str
    server_time: datetime
    accepted_seq: int
    session_id: str
    config: AgentConfig | None
    fault: str | None = None
    unknown: tuple[str, ...] = ()
    rotated_token: str | None = field(default=None, repr=False)


def read_welcome(result: Raw) -> Welcome:
    """Read a HelloResult; raises JsonError if a member that is needed is wrong."""
    needed = jsontext.decode(result, _Needed)
    unknown = sorted(set(jsontext.decode(result, dict[str, Raw])) - _KNOWN)
    config, fault, strange = read_config(needed.config)
    return Welcome(
        server_version=needed.server_version,
        server_time=needed.server_time,
        accepted_seq=needed.accepted_seq,
        session_id=needed.session_id,
        config=config,
        fault=fault,
        unknown=tuple(unknown) + strange,
        rotated_token=needed.rotated_token,
    )


def read_config(raw: Raw) -> tuple[AgentConfig | None, str | None, tuple[str, ...]]:
    """Read an AgentConfig leniently: it or None, what is wrong, and what was left out."""
    members: Any = jsontext.decode(raw)
    if not isinstance(members, dict):
        return None, "config: expected an object", ()
    unknown = [f"config.{name}" for name in sorted(set(members) - _KNOWN_CONFIG)]
    kept = {name: value for name, value in members.items() if name in _KNOWN_CONFIG}
    sources = kept.get("log_sources")
    if isinstance(sources, list):
        kept["log_sources"] = [source for source in sources if not _is_strange(source)]
        if len(kept["log_sources"]) < len(sources):
            unknown.append("config.log_sources[].kind")
    try:
        return msgspec.convert(kept, AgentConfig), None, tuple(unknown)
    except msgspec.ValidationError as error:
        return None, f"config: {error}", tuple(unknown)


def _is_strange(source: Any) -> bool:
    """Whether a source is well formed but of a kind that this version does not know."""
    if not isinstance(source, dict):
        return False
    kind = source.get("kind")
    return isinstance(kind, str) and kind not in _KINDS
