"""What a driver can do, as its hello declares it, and what it is not asked for (PURE).

A name that is not declared is not there, and one that we do not know is ignored.
What a driver cannot do is refused by the host itself: it never waits for an answer
that will not come, and nothing is approved for the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict, cast

from cortextx.channel.effects import ControlAction, ControlEffect, Effect, Send
from cortextx.core.exchange import ChannelCommand, Invoke, RequestChoice


class CapabilityFlags(TypedDict, total=False):
    """The wire form of capabilities (a map and never an array: hence no Struct)."""

    receive: bool
    send: bool
    group: bool
    threads: bool
    media: bool
    attachments: bool
    receive_attachments: bool
    send_attachments: bool
    audio: bool
    video: bool
    reactions: bool
    typing: bool
    streaming: bool
    draft_updates: bool
    multi_message_streaming: bool
    commands: bool
    choices: bool
    multi_choice: bool
    tool_control: bool
    polling: bool
    long_polling: bool
    websocket: bool
    webhook: bool


class ActionFlags(TypedDict, total=False):
    """The wire form of actions: the effects that a driver carries out."""

    typing: bool
    preview: bool
    reaction: bool
    edit: bool
    delete: bool
    mark_read: bool
    pin: bool
    unpin: bool
    redact: bool


CAPABILITIES = tuple(CapabilityFlags.__annotations__)
"""Every capability that the contract names, in its order."""
ACTIONS = tuple(ActionFlags.__annotations__)
"""Every effect that the contract names, in its order."""


def capability_flags(names: Iterable[str]) -> CapabilityFlags:
    """The wire form of these capabilities, in the contract's order."""
    wanted = frozenset(names)
    return cast(CapabilityFlags, {name: True for name in CAPABILITIES if name in wanted})


def action_flags(names: Iterable[str]) -> ActionFlags:
    """The wire form of these actions, in the contract's order."""
    wanted = frozenset(names)
    return cast(ActionFlags, {name: True for name in ACTIONS if name in wanted})


@dataclass(frozen=True, slots=True)
class Abilities:
    """The capabilities and actions that a driver has, by the contract's names.

    A `missing_…` method answers what is not there, as `actions.pin`, or None where
    the driver may be asked.
    """

    capabilities: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()

    @classmethod
    def declared(cls, capabilities: CapabilityFlags, actions: ActionFlags) -> Abilities:
        """What the flags of a hello say."""
        return cls(
            frozenset(name for name, there in capabilities.items() if there),
            frozenset(name for name, there in actions.items() if there),
        )

    def missing_for_effect(self, effect: Effect) -> str | None:
        """What this effect needs and the driver lacks."""
        name = str(type(effect).__struct_config__.tag)
        return None if name in self.actions else f"actions.{name}"

    def missing_for_command(self, command: ChannelCommand) -> str | None:
        """What this command needs and the driver lacks."""
        return self._missing("commands", *_needed(command))

    def missing_for_message(self) -> str | None:
        """What sending a message unasked needs and the driver lacks.

        An answer (`deliver`) is not asked for: who gives messages in takes them.
        """
        return self._missing("send")

    def missing_for_action(self, action: ControlAction) -> str | None:
        """What a controller's action needs and the driver lacks."""
        if isinstance(action, Send):
            return self.missing_for_message()
        if isinstance(action, ControlEffect):
            return self.missing_for_effect(action.effect)
        return self.missing_for_command(action.command)

    def _missing(self, *names: str) -> str | None:
        for name in names:
            if name not in self.capabilities:
                return f"capabilities.{name}"
        return None


def _needed(command: ChannelCommand) -> tuple[str, ...]:
    """What a command needs besides `commands`."""
    if isinstance(command, Invoke):
        return ("tool_control",)
    if isinstance(command, RequestChoice):
        return ("choices", "multi_choice") if command.multiple else ("choices",)
    return ()
