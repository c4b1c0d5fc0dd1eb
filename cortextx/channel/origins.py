"""Who and where an input comes from, in the words of the interaction ABI (PURE; C1).

Nothing of a platform's own types: the channel's family is the transport, its whole
name the endpoint. Platforms have ids that are no identifiers there (I2: too long,
control characters, empty): a digest stands for such a one, and the metadata says
what it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from blake3 import blake3

from cortextx.channel.route import family
from cortextx.channel.values import MessageTarget, Participant
from cortextx.core.exchange import MAX_METADATA_BYTES, Origin, is_identifier

WHOLE = "cortextx.whole."
"""Before the name of a part of the origin: its whole value."""
CUT = "cortextx.cut"
"""The names, comma between, of what did not fit into the metadata."""


def identifier(text: str) -> str:
    """`text`, or `h-` and 32 hex digits of its BLAKE3 where it is no identifier (C1)."""
    if is_identifier(text):
        return text
    return f"h-{blake3(text.encode()).hexdigest(length=16)}"


def origin_of(
    target: MessageTarget,
    sender: Participant | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Origin:
    """The origin of what came from `sender` at `target`; always a strict one.

    `metadata` is the driver's; names that begin with `cortextx.` are ours and are
    left out of it. Whole values come first; what does not fit within the bound is
    left out and named.
    """
    given = {
        "transport": family(target.channel),
        "endpoint": target.channel,
        "identity": None if sender is None else sender.id,
        "conversation": target.conversation,
        "thread": target.thread,
    }
    parts = {name: text for name, text in given.items() if text is not None}
    short = {name: identifier(text) for name, text in parts.items()}
    wanted = {WHOLE + name: text for name, text in parts.items() if text != short[name]}
    for name, text in (metadata or {}).items():
        if not name.startswith("cortextx."):
            wanted[name] = text
    return Origin(**short, metadata=_fitting(wanted))


def _fitting(wanted: Mapping[str, str]) -> dict[str, str]:
    """As much of the metadata as fits, whole entries only, with a mark where it is cut."""
    if _size(wanted) <= MAX_METADATA_BYTES:
        return dict(wanted)
    left = MAX_METADATA_BYTES - _ROOM_FOR_MARK
    kept: dict[str, str] = {}
    cut: list[str] = []
    for name, text in wanted.items():
        size = _size({name: text})
        if size <= left:
            kept[name] = text
            left -= size
        else:
            cut.append(name)
    mark = ",".join(cut).encode()[: _ROOM_FOR_MARK - len(CUT)]
    return kept | {CUT: mark.decode("utf-8", "ignore")}


_ROOM_FOR_MARK = 1024


def _size(metadata: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(text.encode()) for name, text in metadata.items())
