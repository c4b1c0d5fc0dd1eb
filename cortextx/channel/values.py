"""The values that channel frames carry: targets, messages, events, receipts (PURE).

Each is checked when it is built. A target is checked by where it stands, because
deployed peers are: on its own it may be of any length (a control connection's
`send` takes a conversation of 300 bytes, which the host then refuses in its
answer), in a frame to or from a driver its conversation is bounded, and in an
event every part is. Members that are not declared are ignored.

Members come in the contract's order. One that may be null is always sent; an empty
list or map that is optional is not.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from cortextx.channel.faults import IllegalValue

MAX_VALUE_BYTES = 256
"""Bytes of a bounded value: an id, a code, a conversation."""
MAX_TIMESTAMP_MS = 2**64 - 1
"""Milliseconds since 1970, as an unsigned integer of 64 bits."""

BOUNDED = f"1 to {MAX_VALUE_BYTES} bytes without NUL"
FILLED = "text that is not empty and has no NUL"
NO_NUL = "text without NUL"


def _null() -> None:
    """The default of a member that is sent as null where it is not given."""


def is_bounded(text: str) -> bool:
    """Whether `text` is 1 to 256 bytes of UTF-8 without NUL."""
    return 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_VALUE_BYTES and "\0" not in text


def check_bounded(place: str, text: str | None) -> None:
    """Raise IllegalValue unless a value that is given is bounded."""
    if text is not None and not is_bounded(text):
        raise IllegalValue(place, BOUNDED)


def check_filled(place: str, text: str) -> None:
    """Raise IllegalValue for an empty text or one with NUL."""
    if not text or "\0" in text:
        raise IllegalValue(place, FILLED)


def check_no_nul(place: str, text: str | None) -> None:
    """Raise IllegalValue for a text with NUL."""
    if text is not None and "\0" in text:
        raise IllegalValue(place, NO_NUL)


def check_time(place: str, timestamp_ms: int | None) -> None:
    """Raise IllegalValue for a time that does not fit in 64 bits."""
    if timestamp_ms is not None and not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise IllegalValue(place, "milliseconds since 1970, below 2^64")


class MessageTarget(Struct, frozen=True):
    """Where a message is: a thread of "" is another one than none."""

    channel: str
    conversation: str
    thread: str | None = None
    reply_to: str | None = None

    def __post_init__(self) -> None:
        check_filled("channel", self.channel)
        check_filled("conversation", self.conversation)
        check_no_nul("thread", self.thread)
        check_no_nul("reply_to", self.reply_to)


def check_target(place: str, target: MessageTarget | None) -> None:
    """Raise IllegalValue unless the conversation of a target is bounded."""
    if target is not None:
        check_bounded(f"{place}.conversation", target.conversation)


class Participant(Struct, frozen=True):
    """Somebody on the platform: a claim of the driver's, not an identity of ours."""

    id: str
    display_name: str | None = None
    handle: str | None = None

    def __post_init__(self) -> None:
        check_bounded("id", self.id)


class Attachment(Struct, frozen=True):
    """A file that is to be had at a URL."""

    url: str
    name: str | None = None
    mime: str | None = None

    def __post_init__(self) -> None:
        check_filled("url", self.url)
        check_no_nul("name", self.name)
        check_no_nul("mime", self.mime)


class Body(Struct, frozen=True, omit_defaults=True):
    """What a message says: text, attachments, or both."""

    text: str
    attachments: list[Attachment] = []

    def __post_init__(self) -> None:
        check_no_nul("text", self.text)
        if not self.text and not self.attachments:
            raise IllegalValue("text", "text or an attachment")


class InboundMessage(Struct, frozen=True, omit_defaults=True):
    """A message that came in from the platform; `id` is the platform's."""

    id: str
    target: MessageTarget
    sender: Participant
    body: Body
    timestamp_ms: int | None = field(default_factory=_null)
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_bounded("id", self.id)
        check_target("target", self.target)
        check_time("timestamp_ms", self.timestamp_ms)


class OutboundMessage(Struct, frozen=True, omit_defaults=True):
    """A message to send."""

    target: MessageTarget
    body: Body
    metadata: dict[str, str] = {}


class EventContext(Struct, frozen=True, omit_defaults=True):
    """Where and by whom something happened."""

    target: MessageTarget
    participant: Participant | None = field(default_factory=_null)
    timestamp_ms: int | None = field(default_factory=_null)
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        for part in ("channel", "conversation", "thread", "reply_to"):
            check_bounded(f"target.{part}", getattr(self.target, part))
        check_time("timestamp_ms", self.timestamp_ms)
        if not all(map(is_bounded, self.metadata)):
            raise IllegalValue("metadata", f"names of {BOUNDED}")


class _Event(Struct, frozen=True, tag_field="type"):
    """What every incoming event has."""

    context: EventContext


class _MessageEvent(_Event, frozen=True):
    """An event about one message."""

    message_id: str

    def __post_init__(self) -> None:
        check_bounded("message_id", self.message_id)


class Reacted(_MessageEvent, frozen=True, tag="reaction"):
    """Somebody added a reaction to a message, or took it away."""

    emoji: str
    added: bool

    def __post_init__(self) -> None:
        check_bounded("message_id", self.message_id)
        check_bounded("emoji", self.emoji)


class SeenTyping(_Event, frozen=True, tag="typing"):
    """Somebody began or ceased to type."""

    active: bool


class MessageEdited(_MessageEvent, frozen=True, tag="message_edited"):
    """A message now says something else."""

    body: Body


class MessageDeleted(_MessageEvent, frozen=True, tag="message_deleted"):
    """A message is gone."""


class MessageRead(_MessageEvent, frozen=True, tag="read"):
    """Somebody has read up to a message."""


IncomingEvent = Reacted | SeenTyping | MessageEdited | MessageDeleted | MessageRead
"""What happens on a platform besides messages."""


class Receipt(Struct, frozen=True):
    """The platform has a message, under this id.

    The id may be of any length, as in the effects that will name it: a receipt
    that were refused for it would leave its message unknown (C3).
    """

    channel: str
    message_id: str
    target: MessageTarget
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        check_filled("channel", self.channel)
        check_filled("message_id", self.message_id)
        check_time("timestamp_ms", self.timestamp_ms)


class Health(Struct, frozen=True):
    """How a driver's connection to its platform is; `detail` holds no credentials."""

    state: Literal["Ready", "Degraded", "Unavailable"]
    detail: str | None = None


class Connected(Struct, frozen=True, tag_field="type", tag="connected"):
    """The connection to the platform stands."""


class Disconnected(Struct, frozen=True, tag_field="type", tag="disconnected"):
    """The connection to the platform is gone."""


class RetryScheduled(Struct, frozen=True, tag_field="type", tag="retry_scheduled"):
    """It will be tried again; `attempt` counts the tries."""

    attempt: Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Heartbeat(Struct, frozen=True, tag_field="type", tag="heartbeat"):
    """All is well."""


LifecycleEvent = Connected | Disconnected | RetryScheduled | Heartbeat
"""What becomes of a connection."""
