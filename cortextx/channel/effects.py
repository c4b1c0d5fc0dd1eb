"""What a host has a driver do on the platform, besides sending messages (PURE)."""

from __future__ import annotations

from msgspec import Struct

from cortextx.channel.values import (
    Body,
    MessageTarget,
    OutboundMessage,
    check_bounded,
    check_filled,
    check_target,
)
from cortextx.core.exchange import ChannelCommand


class Typing(Struct, frozen=True, tag_field="type", tag="typing"):
    """Show or hide that we are typing; never durable."""

    active: bool


class Preview(Struct, frozen=True, tag_field="type", tag="preview"):
    """Show the text so far; never durable, each replaces the one before."""

    text: str


class _MessageEffect(Struct, frozen=True, tag_field="type"):
    """An effect on one message, whose id is the platform's and may be of any length."""

    message_id: str

    def __post_init__(self) -> None:
        check_filled("message_id", self.message_id)


class React(_MessageEffect, frozen=True, tag="reaction"):
    """Add a reaction, or with `remove` take it away."""

    emoji: str
    remove: bool

    def __post_init__(self) -> None:
        check_filled("message_id", self.message_id)
        check_filled("emoji", self.emoji)


class Edit(_MessageEffect, frozen=True, tag="edit"):
    """Replace what a message of ours says."""

    body: Body


class Delete(_MessageEffect, frozen=True, tag="delete"):
    """Take a message back."""


class MarkRead(_MessageEffect, frozen=True, tag="mark_read"):
    """Tell the platform that a message was read."""


class Pin(_MessageEffect, frozen=True, tag="pin"):
    """Pin a message."""


class Unpin(_MessageEffect, frozen=True, tag="unpin"):
    """Unpin a message."""


class Redact(_MessageEffect, frozen=True, tag="redact"):
    """Have a message's content removed."""

    reason: str | None = None


Effect = Typing | Preview | React | Edit | Delete | MarkRead | Pin | Unpin | Redact
"""Something to do on a platform; a driver declares which ones it can (`actions`)."""


class Send(Struct, frozen=True, tag_field="type", tag="send"):
    """A controller's wish to send a message; the host judges its target's bounds."""

    message: OutboundMessage


class ControlEffect(Struct, frozen=True, tag_field="type", tag="effect"):
    """A controller's wish for an effect."""

    target: MessageTarget
    effect: Effect

    def __post_init__(self) -> None:
        check_target("target", self.target)


class ControlCommand(Struct, frozen=True, tag_field="type", tag="command"):
    """A controller's wish to ask a user something."""

    session: str
    command_id: str
    command: ChannelCommand
    target: MessageTarget | None = None

    def __post_init__(self) -> None:
        check_bounded("session", self.session)
        check_bounded("command_id", self.command_id)
        check_target("target", self.target)


ControlAction = Send | ControlEffect | ControlCommand
"""What a controller may ask a driver for, through the host."""
