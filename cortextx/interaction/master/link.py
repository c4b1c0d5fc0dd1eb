"""One connection to a slave's socket, checked before a byte is sent (I15)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from cortextx.interaction.master.peer import peer_uid


class Owner(Protocol):
    """Whom a connection tells what happens to it."""

    def link_made(self, link: Link) -> None:
        """The slave may be trusted."""

    def link_refused(self, link: Link, uid: int) -> None:
        """It runs as somebody that is not to be trusted with anything."""

    def data_received(self, link: Link, data: bytes) -> None:
        """Bytes came."""

    def link_lost(self, link: Link, reason: str) -> None:
        """It is gone."""


class Link(TwistedProtocol):
    """See the module."""

    def __init__(
        self,
        owner: Owner,
        trusted: frozenset[int],
        uid_of: Callable[[Any], int] = peer_uid,
    ) -> None:
        self.transport: Any = None
        self._owner = owner
        self._trusted = trusted
        self._uid_of = uid_of

    def connectionMade(self) -> None:
        uid = self._uid_of(self.transport)
        if uid in self._trusted:
            self._owner.link_made(self)
        else:
            self.transport.abortConnection()
            self._owner.link_refused(self, uid)

    def dataReceived(self, data: bytes) -> None:
        self._owner.data_received(self, data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._owner.link_lost(self, "the slave closed the connection")


def why_not(error: BaseException | None) -> str:
    """Why a connection could not be made, in the system's words."""
    number = getattr(error, "osError", None)
    if isinstance(number, int):
        return os.strerror(number)
    cause = error if number is None else number
    return getattr(cause, "strerror", None) or str(cause).rstrip(".") or type(error).__name__
