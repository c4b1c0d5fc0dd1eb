"""Where a message goes: session keys and request ids (PURE; C2, C4).

Both are FNV-1a hashes of 64 bits, as deployed hosts make them, so that a host of
ours continues their sessions. The hash is no protection: anybody can make two keys
collide, and NUL in a part makes two tuples one. A host keeps the `RouteKey` beside
the name that it gave and refuses another one under the same name (C2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from msgspec.structs import replace

from cortextx.channel.values import InboundMessage, IncomingEvent, is_bounded
from cortextx.core import jsontext
from cortextx.errors import CortexError
from cortextx.interfaces.channels import TargetLike

_OFFSET = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = 2**64 - 1
_CHANNEL = re.compile(r"[a-z0-9._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_RESERVED = frozenset({".", "..", "index"})


class BadRoute(CortexError):
    """A route cannot be made: `field` is what is at fault, `expected` what it should be."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


def fnv1a64(data: bytes, state: int = _OFFSET) -> int:
    """The FNV-1a hash of `data`; with the hash of what stands before it, that of both.

    Its time is that of the bytes, in Python: about 0.1 ms for a kilobyte.
    """
    prime, mask = _PRIME, _MASK
    for byte in data:
        state = (state ^ byte) * prime & mask
    return state


def is_channel(text: str) -> bool:
    """Whether `text` names a channel: 1 to 64 of `a-z 0-9 . - _`."""
    return _CHANNEL.fullmatch(text) is not None


def is_conversation(text: str) -> bool:
    """Whether `text` names a conversation: 1 to 256 bytes without NUL."""
    return is_bounded(text)


def family(channel: str) -> str:
    """The kind of platform: what stands before the first dot of a channel's name."""
    return channel.partition(".")[0]


@dataclass(frozen=True, slots=True)
class RouteKey:
    """What a session's name is derived from; `sender` only under identity isolation."""

    channel: str
    conversation: str
    thread: str | None = None
    sender: str | None = None

    @property
    def digest(self) -> int:
        """The hash of the parts that are given, a NUL between each two."""
        parts = (self.channel, self.conversation, self.thread, self.sender)
        return fnv1a64("\0".join(part for part in parts if part is not None).encode())

    def digest_with(self, text: bytes) -> int:
        """The hash of the key, a NUL and `text`."""
        return fnv1a64(text, fnv1a64(b"\0", self.digest))


@dataclass(frozen=True, slots=True)
class Naming:
    """How the sessions of one agent are named for the channels that lead to it.

    `isolated`: a session for each sender, as private ones are. Raises BadRoute for
    an agent or a prefix that may not be one.
    """

    agent: str
    prefix: str = "im"
    isolated: bool = False

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.agent) is None or self.agent in _RESERVED:
            raise BadRoute("agent", "1 to 128 letters, digits, dots, dashes and underscores")
        if _PREFIX.fullmatch(self.prefix) is None:
            raise BadRoute("prefix", "1 to 64 letters, digits, dots, dashes and underscores")

    def key_for(self, target: TargetLike, sender: str | None) -> RouteKey:
        """The key of a place, for a sender where senders are kept apart.

        Raises BadRoute where they are and nobody is named: what belongs to no one
        goes into no one's session.
        """
        if not self.isolated:
            return RouteKey(target.channel, target.conversation, target.thread)
        if sender is None:
            raise BadRoute("sender", "a participant, because sessions are kept apart by identity")
        return RouteKey(target.channel, target.conversation, target.thread, sender)

    def key_for_message(self, message: InboundMessage) -> RouteKey:
        """The key of the session that a message goes to."""
        return self.key_for(message.target, message.sender.id)

    def key_for_event(self, event: IncomingEvent) -> RouteKey:
        """The key of the session that an event goes to; raises BadRoute as `key_for`."""
        who = event.context.participant
        return self.key_for(event.context.target, None if who is None else who.id)

    def session(self, key: RouteKey) -> str:
        """The session's name."""
        return f"{self.prefix}-{key.digest:016x}"

    def request_id(self, key: RouteKey, message_id: str) -> str:
        """The id of the request that a message makes; the same message makes the same."""
        return f"im-{self.prefix}-{key.digest_with(message_id.encode()):016x}"

    def request_id_for_event(self, key: RouteKey, event: IncomingEvent) -> str:
        """The id of the request that an event makes (C4)."""
        return f"im-{self.prefix}-{key.digest_with(event_text(event)):016x}"


def event_id(event: IncomingEvent) -> str:
    """An event id for what a platform gives none: the same event has the same."""
    return f"event-{fnv1a64(event_text(event)):016x}"


def event_text(event: IncomingEvent) -> bytes:
    """The event as compact JSON in the contract's order, metadata by name (C4)."""
    context = event.context
    if context.metadata:
        metadata = dict(sorted(context.metadata.items()))
        event = replace(event, context=replace(context, metadata=metadata))
    return jsontext.encode(event)
