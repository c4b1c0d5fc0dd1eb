"""A pair in memory carries, cuts, holds and breaks a stream as a socket would."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    IPushProducer,
    ITransport,
)
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from cortextx.core.framing import LineFramer
from cortextx.testing.pairs import Pair, byte_by_byte, in_chunks, pieces, whole


class Recorder(Protocol):
    """Keeps what it gets, and why it ended."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.reasons: list[type] = []

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    def dataReceived(self, data: bytes) -> None:
        self.chunks.append(data)

    def connectionLost(self, reason) -> None:
        self.reasons.append(reason.type)


@implementer(IHalfCloseableProtocol)
class HalfRecorder(Recorder):
    """Goes on writing when the peer has ended its direction."""

    ended = 0
    closed = 0

    def readConnectionLost(self) -> None:
        self.ended += 1

    def writeConnectionLost(self) -> None:
        self.closed += 1


class Producer:
    """Writes a piece whenever it may, and notes how it is driven."""

    def __init__(self, transport, pieces: int, streaming: bool) -> None:
        self.transport = transport
        self.left = pieces
        self.calls: list[str] = []
        self.paused = False
        transport.registerProducer(self, streaming)

    def produce(self) -> None:
        self.left -= 1
        self.transport.write(b"x" * 1000)
        if not self.left:
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self.calls.append("pause")
        self.paused = True

    def resumeProducing(self) -> None:
        self.calls.append("resume")
        self.paused = False
        if self.left:
            self.produce()

    def stopProducing(self) -> None:
        self.calls.append("stop")


class DeliveryTests(SynchronousTestCase):
    def test_bytes_arrive_in_order_both_ways(self) -> None:
        client, server = Recorder(), Recorder()
        pair = Pair(client, server)
        client.transport.write(b"one ")
        client.transport.writeSequence([b"two", b" three"])
        server.transport.write(b"back")
        self.assertEqual(client.chunks + server.chunks, [])
        pair.flush()
        self.assertEqual((server.chunks, client.chunks), ([b"one two three"], [b"back"]))

    def test_each_cut_gives_its_chunks(self) -> None:
        for cut, chunks in [
            (whole, [b"abcdef"]),
            (byte_by_byte, [b"a", b"b", b"c", b"d", b"e", b"f"]),
            (in_chunks([2, 3]), [b"ab", b"cde", b"f"]),
            (in_chunks([4, 100]), [b"abcd", b"ef"]),
        ]:
            client, server = Recorder(), Recorder()
            pair = Pair(client, server, cut)
            client.transport.write(b"abcdef")
            pair.flush()
            self.assertEqual(server.chunks, chunks)
            self.assertEqual(pieces(b"abcdef", cut), chunks)

    @settings(max_examples=60)
    @given(st.binary(max_size=60), st.lists(st.integers(1, 9)))
    def test_pieces_join_to_what_was_cut(self, data: bytes, sizes: list[int]) -> None:
        for cut in (whole, byte_by_byte, in_chunks(sizes)):
            chunks = pieces(data, cut)
            self.assertEqual(b"".join(chunks), data)
            self.assertNotIn(b"", chunks)

    def test_a_machine_without_a_transport_is_fed_pieces(self) -> None:
        framer = LineFramer(10)
        lines = [line for piece in pieces(b"a\nbc\n", byte_by_byte) for line in framer.feed(piece)]
        self.assertEqual(lines, [b"a", b"bc"])

    def test_a_big_stream_byte_by_byte_is_linear(self) -> None:
        """Each step costs its own bytes only: else this would take minutes."""
        client, server = Recorder(), Recorder()
        pair = Pair(client, server, byte_by_byte)
        client.transport.write(b"x" * 300_000)
        self.assertEqual(pair.flush(), 300_000)

    def test_two_that_never_fall_silent_are_reported(self) -> None:
        class Echo(Protocol):
            def dataReceived(self, data: bytes) -> None:
                self.transport.write(data)

        pair = Pair(Echo(), Echo())
        pair.client.write(b"x")
        self.assertRaises(AssertionError, pair.flush, limit=100)

    def test_the_ends_have_the_interfaces_of_a_transport(self) -> None:
        end = Pair(Recorder(), Recorder()).client
        for interface in (ITransport, IConsumer, IPushProducer):
            verifyObject(interface, end)
        self.assertRaises(TypeError, end.write, "text")


class ClosingTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.client, self.server = Recorder(), Recorder()
        self.pair = Pair(self.client, self.server, byte_by_byte)

    def test_a_close_comes_after_what_was_written(self) -> None:
        self.client.transport.write(b"bye")
        self.client.transport.loseConnection()
        self.client.transport.write(b"!")
        self.pair.flush()
        self.assertEqual(self.server.data, b"bye!")
        self.assertEqual(self.server.reasons, [ConnectionDone])
        self.assertEqual(self.client.reasons, [ConnectionDone])
        self.assertFalse(self.pair.connected)

    def test_who_asked_for_a_close_gets_no_more(self) -> None:
        self.server.transport.write(b"unread")
        self.client.transport.loseConnection()
        self.pair.flush()
        self.assertEqual((self.client.data, self.client.reasons), (b"", [ConnectionDone]))

    def test_a_drop_loses_what_is_in_flight_and_is_told_once(self) -> None:
        self.client.transport.write(b"lost")
        self.pair.step()
        self.pair.drop()
        self.pair.drop()
        self.pair.flush()
        self.assertEqual(self.server.data, b"l")
        self.assertEqual(self.server.reasons, [ConnectionLost])
        self.assertEqual(self.client.reasons, [ConnectionLost])

    def test_an_abort_does_not_wait(self) -> None:
        self.client.transport.write(b"lost")
        self.client.transport.abortConnection()
        self.pair.flush()
        self.assertEqual((self.server.data, self.server.reasons), (b"", [ConnectionLost]))
        self.assertEqual(self.client.reasons, [ConnectionAborted])

    def test_writes_after_the_end_are_ignored(self) -> None:
        self.pair.drop()
        self.client.transport.write(b"x")
        self.assertEqual(self.client.transport.in_flight, 0)


class HalfCloseTests(SynchronousTestCase):
    """What I35 needs: a peer that ends its direction may still be answered."""

    def test_the_other_direction_stays_open(self) -> None:
        client, server = HalfRecorder(), HalfRecorder()
        pair = Pair(client, server)
        client.transport.write(b"question")
        client.transport.loseWriteConnection()
        pair.flush()
        client.transport.write(b"too late")
        pair.flush()
        self.assertEqual((server.data, server.ended, client.closed), (b"question", 1, 1))
        self.assertTrue(pair.connected)
        server.transport.write(b"answer")
        server.transport.loseWriteConnection()
        pair.flush()
        self.assertEqual((client.data, client.ended), (b"answer", 1))
        self.assertEqual((client.reasons, server.reasons), ([ConnectionDone], [ConnectionDone]))

    def test_a_protocol_that_cannot_is_closed(self) -> None:
        client, server = HalfRecorder(), Recorder()
        pair = Pair(client, server)
        client.transport.write(b"question")
        client.transport.loseWriteConnection()
        pair.flush()
        self.assertEqual((server.data, server.reasons), (b"question", [ConnectionDone]))


class BackpressureTests(SynchronousTestCase):
    def test_nothing_is_delivered_to_a_paused_end(self) -> None:
        client, server = Recorder(), Recorder()
        pair = Pair(client, server)
        server.transport.pauseProducing()
        client.transport.write(b"wait")
        self.assertEqual(pair.flush(), 0)
        self.assertEqual((server.data, client.transport.in_flight), (b"", 4))
        server.transport.resumeProducing()
        pair.flush()
        self.assertEqual(server.data, b"wait")

    def test_a_push_producer_is_paused_above_the_mark_and_resumed_when_all_is_out(self) -> None:
        client, server = Recorder(), Recorder()
        pair = Pair(client, server, high_water=2500)
        producer = Producer(client.transport, 10, streaming=True)
        while not producer.paused:
            producer.produce()
        self.assertEqual(client.transport.in_flight, 3000)
        pair.step()
        self.assertEqual(producer.calls, ["pause", "resume"])
        self.assertFalse(producer.paused)

    def test_a_pull_producer_is_asked_whenever_all_is_out(self) -> None:
        client, server = Recorder(), Recorder()
        pair = Pair(client, server)
        producer = Producer(client.transport, 5, streaming=False)
        pair.flush()
        self.assertEqual(len(server.data), 5000)
        self.assertEqual(producer.calls, ["resume"] * 5)

    def test_a_close_waits_for_the_producer_and_a_drop_stops_it(self) -> None:
        client, server = Recorder(), Recorder()
        pair = Pair(client, server)
        producer = Producer(client.transport, 3, streaming=True)
        client.transport.loseConnection()
        pair.flush()
        self.assertTrue(pair.connected)
        pair.drop()
        self.assertEqual(producer.calls, ["stop"])
