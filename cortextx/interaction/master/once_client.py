"""One v1 request over a Unix socket, on a connection of its own.

    stream = await ask_once(reactor, path, v1.Input("r1", "default", "private", "hi", origin))
    async for reply in stream: ...

Breaking off the iteration needs `close`. The write half stays open, so that a command
can be answered before it is read on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.protocol import Factory

from cortextx.core.exchange import Result
from cortextx.errors import SlaveUnavailable
from cortextx.interaction.master.link import Link, why_not
from cortextx.interaction.master.once import (
    MAX_RESPONSE_BYTES,
    QUIET_SECONDS,
    Asked,
    Exchange,
    RequestForm,
)
from cortextx.interaction.master.peer import expected_uids, peer_uid
from cortextx.interaction.v1 import Reply

CONNECT_SECONDS = 10


async def ask_once(
    reactor: Any,
    path: str,
    request: Asked,
    *,
    form: RequestForm = "framed",
    slave_uids: Collection[int] | None = None,
    max_bytes: int = MAX_RESPONSE_BYTES,
    quiet: float = QUIET_SECONDS,
    uid_of: Callable[[Any], int] = peer_uid,
) -> Stream:
    """Connect, check who answers, and send the request.

    Raises SlaveUnavailable without a slave that may be trusted, and LocalProtocolError
    for a request that cannot be said.
    """
    exchange = Exchange(request, form=form, max_bytes=max_bytes, quiet=quiet)
    line = exchange.started(reactor.seconds())
    stream = Stream(reactor, exchange, line, path)
    trusted = expected_uids(slave_uids)
    factory = Factory.forProtocol(lambda: Link(stream, trusted, uid_of))
    factory.noisy = False
    try:
        await UNIXClientEndpoint(reactor, path, CONNECT_SECONDS).connect(factory)
    except Exception as error:
        raise SlaveUnavailable(f"{path}: {why_not(error)}") from None
    if stream.refusal is not None:
        raise stream.refusal
    return stream


class Stream:
    """The events that answer a request; raises SlaveUnavailable where it is broken."""

    def __init__(self, reactor: Any, exchange: Exchange, line: bytes, path: str) -> None:
        self.refusal: SlaveUnavailable | None = None
        self._reactor = reactor
        self._exchange = exchange
        self._line = line
        self._path = path
        self._link: Link | None = None
        self._waiting: deque[Reply] = deque()
        self._waiter: Deferred[None] | None = None
        self._timer: Any = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Reply:
        while not self._waiting:
            if self._exchange.why_broken is not None:
                raise SlaveUnavailable(self._exchange.why_broken)
            if self._exchange.is_over:
                raise StopAsyncIteration
            self._waiter = Deferred()
            await self._waiter
        return self._waiting.popleft()

    def answer(self, command_id: str, result: Result) -> None:
        """Answer a command of the run; raises SessionRefused if it is not open."""
        line = self._exchange.answer(command_id, result)
        if self._link is not None:
            self._link.transport.write(line)
        self._set_timer()

    def close(self) -> None:
        """Want no more of it; a run goes on in the slave, its open commands fail closed."""
        if self._link is not None:
            self._link.transport.loseConnection()

    # See link.Owner

    def link_made(self, link: Link) -> None:
        """Send the request."""
        self._link = link
        link.transport.write(self._line)
        self._set_timer()

    def link_refused(self, link: Link, uid: int) -> None:
        """Nothing was said to it, and nothing will be."""
        self.refusal = SlaveUnavailable(f"{self._path}: the slave runs as UID {uid}")

    def data_received(self, link: Link, data: bytes) -> None:
        """Take what there is."""
        self._waiting.extend(self._exchange.data_received(data, self._reactor.seconds()))
        self._changed()

    def link_lost(self, link: Link, reason: str) -> None:
        """The slave closes when it has said all."""
        self._link = None
        self._exchange.peer_lost()
        self._changed()

    def _changed(self) -> None:
        self._set_timer()
        if self._exchange.is_over:
            self.close()
        if self._waiter is not None and (self._waiting or self._exchange.is_over):
            waiter, self._waiter = self._waiter, None
            waiter.callback(None)

    def _set_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        deadline = self._exchange.deadline
        if deadline is not None:
            wait = max(0.0, deadline - self._reactor.seconds())
            self._timer = self._reactor.callLater(wait, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._exchange.time_passed(self._reactor.seconds())
        self._changed()
