"""The role of a channel adapter: one platform account behind a channel host.

A driver process speaks `cortexfs.channel.socket/v1` to the host; an adapter of
ours does the same in process, through this interface. The values are read only
by the members named here; `channel.frames` has the full shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from cortextx.core.exchange import ChannelCommand, Result

HealthState = Literal["Ready", "Degraded", "Unavailable"]


class TargetLike(Protocol):
    """Where a message goes: `thread` and `reply_to` may be None."""

    @property
    def channel(self) -> str: ...
    @property
    def conversation(self) -> str: ...
    @property
    def thread(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...


class MessageLike(Protocol):
    """A message to send: `body` has text, attachments, or both."""

    @property
    def target(self) -> TargetLike: ...
    @property
    def body(self) -> Any: ...
    @property
    def metadata(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """The platform has it: its id there, and when (ms since 1970), where it says."""

    message_id: str
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Whether the platform has it cannot be told; `detail` for people (C3)."""

    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """How the connection to the platform is; `detail` holds no credentials."""

    state: HealthState
    detail: str | None = None


class ChannelSink(Protocol):
    """Where an adapter says what happens on the platform."""

    def inbound(self, event_id: str, message: Any) -> Deferred[None]:
        """Give a message in; fires when it is safe to let the platform forget it.

        The same message may come twice: it runs the agent once. Fails when the
        host's queue is full (retryable).
        """

    def happened(self, event_id: str, event: Any) -> None:
        """Give a reaction, an edit, a deletion, typing or a read mark in."""

    def health_changed(self, health: Health) -> None:
        """Say that the connection got better or worse."""


class IChannelAdapter(Interface):
    """One platform account: takes its messages in and carries effects out."""

    channel: str = Attribute("The channel's whole name, as `irc.primary`.")
    capabilities: frozenset[str] = Attribute("What the platform can do, by the contract's names.")
    actions: frozenset[str] = Attribute("The effects it can carry out; no others are asked.")

    def start(sink: ChannelSink) -> Deferred[None]:
        """Connect to the platform; fires when messages can flow. It reconnects itself."""

    def stop() -> Deferred[None]:
        """Disconnect; fires when nothing more comes."""

    def send(request_id: str, message: MessageLike) -> Deferred[Sent | Unknown]:
        """Send a message; fires once the platform confirmed it.

        A failure means that it was not sent and may be tried again; where that is
        not known the Deferred fires with Unknown, and it is not sent again (C3).
        """

    def effect(request_id: str, target: TargetLike, effect: Any) -> Deferred[None]:
        """Carry out an effect that `actions` declares; typing and preview may be lost."""

    def command(request_id: str, target: TargetLike, command: ChannelCommand) -> Deferred[Result]:
        """Ask the user; only where `capabilities` has `commands` (`tool_control` for invoke).

        Never answers for the user: what cannot be asked is a Rejected with the reason.
        """

    def health() -> Health:
        """How the connection is now."""
