"""Correlation: which ids a frame of each kind carries, exactly (PURE; I1, I2).

The five ids form a chain, connection → attachment → request → run → command, and
every frame carries a prefix of it: `DEPTHS` says which for each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct

from cortextx.core.exchange import MAX_ID_BYTES, is_identifier
from cortextx.interaction.faults import IllegalFrame

Kind = Literal[
    "hello",
    "welcome",
    "attach",
    "attached",
    "detach",
    "ack",
    "gap",
    "input",
    "status",
    "cancel",
    "accepted",
    "started",
    "event",
    "done",
    "command",
    "command_result",
    "error",
]

CHAIN = ("connection_id", "attachment_id", "request_id", "run_id", "command_id")
"""The ids in the order of the chain, which is that on the wire."""

CONNECTION, ATTACHMENT, REQUEST, RUN, COMMAND = range(1, 6)
"""How many ids of the chain a frame carries."""

_BY_DEPTH: Mapping[int, tuple[Kind, ...]] = {
    CONNECTION: ("hello", "welcome", "error"),
    ATTACHMENT: ("attach", "attached", "detach", "ack", "gap", "error"),
    REQUEST: ("input", "status", "error"),
    RUN: ("cancel", "accepted", "started", "event", "done", "error"),
    COMMAND: ("command", "command_result", "error"),
}
DEPTHS: Mapping[Kind, frozenset[int]] = {
    kind: frozenset(depth for depth, kinds in _BY_DEPTH.items() if kind in kinds)
    for kind in get_args(Kind)
}
"""The numbers of ids that a frame of a kind may carry; more than one only for error."""


class Correlation(Struct, frozen=True):
    """What a frame belongs to; no id stands behind a missing one."""

    connection_id: str
    attachment_id: str | None = None
    request_id: str | None = None
    run_id: str | None = None
    command_id: str | None = None

    def __post_init__(self) -> None:
        ended = False
        for name in CHAIN:
            text = getattr(self, name)
            if text is None:
                ended = True
            elif ended:
                raise IllegalFrame(f"expected no {name} without the ids before it")
            elif not _is_id(text):
                raise IllegalFrame(
                    f"expected {name} of 1 to {MAX_ID_BYTES} bytes without control characters"
                )

    @property
    def depth(self) -> int:
        """How many ids there are, 1 to 5."""
        return COMMAND - self.ids.count(None)

    @property
    def ids(self) -> tuple[str | None, ...]:
        """The five ids in the order of the chain."""
        return (
            self.connection_id,
            self.attachment_id,
            self.request_id,
            self.run_id,
            self.command_id,
        )

    def prefix(self, depth: int) -> Correlation:
        """The first `depth` ids."""
        return Correlation(*self.ids[:depth])  # type: ignore[arg-type]  # the first is there


def longest_prefix(members: Mapping[str, object], depth: int = COMMAND) -> Correlation | None:
    """The ids of a refused frame up to the first that is missing or no identifier.

    At most `depth` of them; None without a connection id.
    """
    ids: list[str] = []
    for name in CHAIN[:depth]:
        text = members.get(name)
        if not isinstance(text, str) or not _is_id(text):
            break
        ids.append(text)
    return Correlation(*ids) if ids else None


def _is_id(text: str) -> bool:
    # Printable ASCII is by far the most frequent, and told without a search.
    if text.isascii() and text.isprintable():
        return 0 < len(text) <= MAX_ID_BYTES
    return is_identifier(text)
