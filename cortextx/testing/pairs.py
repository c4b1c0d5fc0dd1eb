"""Connected pairs of byte streams in memory, which cut and break as one says.

A protocol that works with whole writes may fail when its bytes come one by one,
when the connection goes in the middle, or when its peer does not read. `Pair`
connects two Twisted protocols without a reactor, and does these things to them;
`pieces` cuts bytes for a machine that has no transport.

    pair = Pair(client, server, cut=byte_by_byte)
    pair.flush()
    pair.drop()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any, Final

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IHalfCloseableProtocol,
    IProtocol,
    IPushProducer,
    ITransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

Cut = Callable[[], Iterator[int]]
"""Answers the sizes, in bytes, of the chunks that a stream is delivered in; 0 is all there is."""


def whole() -> Iterator[int]:
    """Deliver all that was written at once."""
    return repeat(0)


def byte_by_byte() -> Iterator[int]:
    """Deliver every byte alone."""
    return repeat(1)


def in_chunks(sizes: Iterable[int]) -> Cut:
    """Deliver chunks of these sizes, and what comes after them whole."""
    kept = tuple(sizes)
    return lambda: chain(kept, repeat(0))


def pieces(data: bytes, cut: Cut) -> list[bytes]:
    """Cut `data` as a stream would be; the pieces joined are `data`, none is empty."""
    chunks, start, sizes = [], 0, cut()
    while start < len(data):
        size = next(sizes) or len(data)
        chunks.append(data[start : start + size])
        start += size
    return chunks


HIGH_WATER: Final = 65_536
"""Undelivered bytes above which a transport pauses its producer."""


@implementer(IAddress)
class MemoryAddress:
    """The address of an end that is nowhere."""

    def __repr__(self) -> str:
        return "MemoryAddress()"


@implementer(ITransport, IConsumer, IPushProducer)
class End:
    """One end of a pair: the transport of its protocol.

    `written` counts the bytes the protocol wrote, `in_flight` those that the other
    end has not got yet. While the protocol has paused it, and once it asked for a
    close, nothing is delivered to it. As with a socket's transport, what is written
    between asking for a close and the close itself still goes out.
    """

    disconnecting = False

    def __init__(self, protocol: IProtocol, cut: Cut, high_water: int) -> None:
        self.protocol = protocol
        self.written = 0
        self.connected = True
        self.write_closed = False
        self.reading_paused = False
        self.aborted = False
        self.end_told = False
        self._out = bytearray()
        self._sizes = cut()
        self._high_water = high_water
        self._producer: Any = None
        self._streaming = False
        self._producer_paused = False

    # ITransport

    def write(self, data: bytes) -> None:
        """Take bytes for the other end."""
        if not isinstance(data, bytes):
            raise TypeError(f"a transport takes bytes, not {type(data).__name__}")
        if not data or not self.connected or self.end_told:
            return
        self.written += len(data)
        self._out += data
        if self._producer is not None and self.in_flight > self._high_water:
            self._pause_producer()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Take several pieces."""
        self.write(b"".join(iovec))

    def loseConnection(self) -> None:
        """Close once all is delivered and no producer is left."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Close at once; what is in flight is lost."""
        self.aborted = True

    def loseWriteConnection(self) -> None:
        """Close this direction once all is delivered (half-close)."""
        self.write_closed = True

    def getPeer(self) -> MemoryAddress:
        """The other end's address."""
        return MemoryAddress()

    def getHost(self) -> MemoryAddress:
        """This end's address."""
        return MemoryAddress()

    # IPushProducer, as the protocol's own backpressure

    def pauseProducing(self) -> None:
        """Stop delivering to this end's protocol."""
        self.reading_paused = True

    def resumeProducing(self) -> None:
        """Deliver again, at the next flush."""
        self.reading_paused = False

    def stopProducing(self) -> None:
        """As loseConnection."""
        self.loseConnection()

    # IConsumer, for what the protocol sends from

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause and resume this producer by the bytes in flight."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        self._producer, self._streaming, self._producer_paused = producer, streaming, False
        if not self.connected:
            producer.stopProducing()
        elif not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self._producer = None

    # What the pair sees

    @property
    def in_flight(self) -> int:
        """Bytes written here and not delivered."""
        return len(self._out)

    @property
    def reads(self) -> bool:
        """Whether the protocol takes bytes now."""
        return not self.reading_paused and not self.disconnecting

    @property
    def may_close(self) -> bool:
        """Whether a close that was asked for can happen now."""
        return self.aborted or (self.disconnecting and not self._out and self._producer is None)

    @property
    def write_ended(self) -> bool:
        """Whether a half-close that was asked for can be told to the other end."""
        return self.write_closed and not self._out and not self.end_told

    def take(self) -> bytes:
        """Take the next chunk out of what is in flight."""
        size = next(self._sizes) or len(self._out)
        data = bytes(self._out[:size])
        del self._out[:size]
        if not self._out and self._producer is not None:
            self._resume_producer()
        return data

    def lost(self, reason: Failure) -> None:
        """Tell the protocol, once, that the connection has gone."""
        if not self.connected:
            return
        self.connected = False
        self._out.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        self.protocol.connectionLost(reason)

    def _pause_producer(self) -> None:
        if self._streaming and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def _resume_producer(self) -> None:
        if self._producer_paused or not self._streaming:
            self._producer_paused = False
            self._producer.resumeProducing()


class Pair:
    """Two protocols, connected to each other in memory.

    Nothing moves but within `step` and `flush`. `cut` says how each direction is
    cut into chunks. Losing the connection is told to both ends: ConnectionDone
    after a close, ConnectionLost after `drop` or the other end's abort.
    """

    def __init__(
        self,
        client: IProtocol,
        server: IProtocol,
        cut: Cut = whole,
        high_water: int = HIGH_WATER,
    ) -> None:
        self.client = End(client, cut, high_water)
        self.server = End(server, cut, high_water)
        server.makeConnection(self.server)
        client.makeConnection(self.client)

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""
        return self.client.connected and self.server.connected

    def step(self) -> bool:
        """Deliver one chunk, or one close, each way; returns whether anything happened."""
        moved = self._move(self.client, self.server)
        return self._move(self.server, self.client) or moved

    def flush(self, limit: int = 1_000_000) -> int:
        """Step until all is quiet; returns the steps. AssertionError beyond `limit` of them."""
        steps = 0
        while self.step():
            steps += 1
            if steps > limit:
                raise AssertionError(f"not quiet after {limit} steps")
        return steps

    def drop(self) -> None:
        """Break the connection: what is in flight is lost, both ends are told."""
        self._close(ConnectionLost())

    def _move(self, source: End, sink: End) -> bool:
        if not self.connected:
            return False
        if source.aborted:
            source.lost(Failure(ConnectionAborted()))
            sink.lost(Failure(ConnectionLost()))
            return True
        if source.in_flight and sink.reads:
            sink.protocol.dataReceived(source.take())
            return True
        if source.may_close:
            self._close(ConnectionDone())
            return True
        if source.write_ended:
            source.end_told = True
            closing = IHalfCloseableProtocol(source.protocol, None)
            if closing is not None:
                closing.writeConnectionLost()
            self._tell_end(sink)
            return True
        return False

    def _tell_end(self, sink: End) -> None:
        """Tell an end that nothing more comes; one that cannot half-close is closed (I35)."""
        protocol = IHalfCloseableProtocol(sink.protocol, None)
        if protocol is not None:
            protocol.readConnectionLost()
        if protocol is None or (self.client.end_told and self.server.end_told):
            self._close(ConnectionDone())

    def _close(self, reason: Exception) -> None:
        self.client.lost(Failure(reason))
        self.server.lost(Failure(reason))
