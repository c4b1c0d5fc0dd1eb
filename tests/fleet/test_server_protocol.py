"""An agent's connection byte by byte: from the HTTP head to the session's actions and back.

The site, Autobahn, the session machine and the store in memory are real; the
transport and the clock are not.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreFull
from cortextx.fleet.server import tokens
from cortextx.fleet.server.protocol import (
    CLOSE_SECONDS,
    STRANGER_SECONDS,
    AgentSocketFactory,
)
from cortextx.fleet.server.service import FleetServer
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from cortextx.interfaces.fleet import LogBatch
from cortextx.stores.memory import MemoryStore
from cortextx.web.site import HEAD_SECONDS, make_site
from tests import wire
from tests.wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Frame, frame

WALL = 1_800_000_000_000_000


class Transport(StringTransport):
    """A transport as TCP's: its protocol can change, and it tells how it was ended."""

    protocol: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.reading = True

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


class Peer:
    """A client of the site, by hand."""

    def __init__(self, site: Any) -> None:
        self.transport = Transport()
        protocol = site.buildProtocol(None)
        self.transport.protocol = protocol
        protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        if not self.transport.disconnecting:
            self.transport.protocol.dataReceived(data)

    def drip(self, data: bytes) -> None:
        for place in range(len(data)):
            self.send(data[place : place + 1])

    def upgrade(self, behind: bytes = b"") -> None:
        self.send(wire.upgrade() + behind)
        head, _, rest = self.transport.value().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        self.transport.clear()
        self.transport.write(rest)

    def frames(self) -> list[Frame]:
        found, rest = wire.frames(self.transport.value())
        assert rest == b"", rest
        self.transport.clear()
        return found

    def lost(self) -> None:
        self.transport.protocol.connectionLost(Failure(ConnectionDone()))


class FleetCase(SynchronousTestCase):
    table: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        count = iter(range(1, 10_000))
        self.fleet = FleetServer(
            self.clock,
            self.store,
            self.store,
            ServerSettings(server=ServerTable(**self.table)),
            mint=tokens.Mint(lambda size: next(count).to_bytes(size, "big")),
            wall=lambda: WALL + round(self.clock.seconds() * 1e6),
            version="0.1.0",
        )
        self.fleet.addresses.append("127.0.0.1:8600")
        self.fleet.own_url = "ws://127.0.0.1:8600/ws/agent"
        agents = AgentSocketFactory(self.clock, self.fleet)
        self.site = make_site(self.clock, agents, self.fleet, 100)

    def enrolled(self, host_id: str = wire.HOST_ID) -> str:
        """The long-lived token of a host that has enrolled and gone."""
        issued = self.result(self.fleet.issue("testhost", host_id, None))
        peer = self.peer()
        peer.send(wire.text(wire.hello(issued.token, host_id)))
        token = peer.frames()[0].json["result"]["rotated_token"]
        peer.lost()
        return str(token)

    def result(self, coroutine: Any) -> Any:
        """What a coroutine that need not wait returns."""
        return self.successResultOf(Deferred.fromCoroutine(coroutine))

    def peer(self) -> Peer:
        peer = Peer(self.site)
        peer.upgrade()
        return peer

    def active(self, host_id: str = wire.HOST_ID) -> Peer:
        """A peer whose hello was accepted."""
        peer = self.peer()
        peer.send(wire.text(wire.hello(self.enrolled(host_id), host_id)))
        [result] = peer.frames()
        self.assertIn("result", result.json)
        return peer

    def assertClosed(self, peer: Peer, code: int) -> list[Frame]:
        """The last thing that the peer was sent is a close with `code`; returns the rest."""
        *before, last = peer.frames()
        self.assertEqual((last.opcode, last.code if last.opcode == CLOSE else None), (CLOSE, code))
        return before

    def row(self) -> Any:
        [record] = self.successResultOf(self.store.find(wire.HOST_ID))
        return record


class Upgrades(FleetCase):
    def answer(self, request: bytes) -> bytes:
        peer = Peer(self.site)
        peer.send(request)
        return peer.transport.value()

    def test_the_subprotocol_is_confirmed(self) -> None:
        """An upgrade that offers cortex.v1 is confirmed, without a compression that was
        offered and without a word on who serves it (§2)."""
        head = self.answer(
            wire.upgrade(
                protocol="other, cortex.v1",
                Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
            )
        )
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "))
        self.assertIn(b"Sec-WebSocket-Protocol: cortex.v1\r\n", head)
        self.assertNotIn(b"extensions", head.lower())
        self.assertNotIn(b"server:", head.lower())

    def test_no_other_subprotocol_is_taken(self) -> None:
        """Without cortex.v1 among the offers the upgrade is refused with 400 (§2, F28)."""
        for protocol in (None, "cortex.v2", "CORTEX.V1"):
            peer = Peer(self.site)
            peer.send(wire.upgrade(protocol=protocol))
            self.assertTrue(peer.transport.value().startswith(b"HTTP/1.1 400 "), protocol)
            self.assertTrue(peer.transport.disconnecting)

    def test_what_is_no_upgrade_is_refused(self) -> None:
        """A plain GET gets 426, another path 404, a wrong version 400 with the right one."""
        self.assertIn(b" 426 ", self.answer(wire.upgrade(Upgrade=None)))
        for path in ("/ws", "/ws/agent/", "/ws/agent/x", "/"):
            self.assertIn(b" 404 ", self.answer(wire.upgrade(path)).partition(b"\r\n")[0], path)
        refusal = self.answer(wire.upgrade(Sec_WebSocket_Version="12"))
        self.assertIn(b" 400 ", refusal)
        self.assertIn(b"Sec-WebSocket-Version: 13", refusal)

    def test_a_refusal_repeats_nothing(self) -> None:
        """What the peer sent does not come back in a refusal."""
        self.assertNotIn(b"echo-me", self.answer(wire.upgrade(Origin="echo-me://x y")))

    def test_bytes_behind_the_upgrade_belong_to_the_websocket(self) -> None:
        """A hello in one piece with the upgrade request is answered."""
        token = self.enrolled()
        peer = Peer(self.site)
        peer.upgrade(wire.text(wire.hello(token)) + frame(PING, b"x"))
        result, pong = peer.frames()
        self.assertIn("result", result.json)
        self.assertEqual(pong, Frame(PONG, b"x"))

    def test_any_cut_of_the_stream_is_the_same(self) -> None:
        """Upgrade, hello and a push byte by byte are answered as in one piece."""
        stream = (
            wire.upgrade()
            + wire.text(wire.hello(self.enrolled()))
            + wire.text(wire.push(2, 1, 3))
            + frame(PING, b"x")
        )
        peer = Peer(self.site)
        peer.drip(stream)
        found, _ = wire.frames(peer.transport.value().partition(b"\r\n\r\n")[2])
        self.assertEqual([one.opcode for one in found], [TEXT, TEXT, PONG])
        self.assertEqual(found[1].json["result"]["up_to_seq"], 3)

    def test_http_lets_go(self) -> None:
        """After an upgrade nothing of HTTP is left: no timer, no producer, no count."""
        peer = self.peer()
        self.assertIs(peer.transport.producer, peer.transport.protocol)
        self.assertEqual(self.site.open_channels, set())
        # The hello's deadline alone.
        self.assertEqual([call.getTime() for call in self.clock.getDelayedCalls()], [5.0])

    def test_a_slow_head_is_cut(self) -> None:
        """A head that is not complete after 5 s ends the connection, however it drips (F3)."""
        peer = Peer(self.site)
        for byte in wire.upgrade()[:4]:
            peer.send(bytes([byte]))
            self.clock.advance(HEAD_SECONDS / 4 - 0.01)
        self.assertFalse(peer.transport.aborted)
        self.clock.advance(0.05)
        self.assertTrue(peer.transport.aborted)

    def test_the_head_has_exactly_5_seconds(self) -> None:
        """The 5 s run from the connection, whether nothing, a byte, an empty line or all but
        the head's last byte comes, and are not begun anew by what comes (F3)."""
        whole = wire.upgrade()
        for sent in (b"", b"G", b"\r\n", whole[:-1], whole[: whole.index(b"\r\n") + 2]):
            peer = Peer(self.site)
            if sent:
                peer.send(sent)
            self.clock.advance(HEAD_SECONDS - 0.125)
            self.assertFalse(peer.transport.aborted, sent)
            if sent != whole[:-1]:
                peer.send(b"x")
            self.clock.advance(0.125)
            self.assertTrue(peer.transport.aborted, sent)
            self.assertEqual(len(self.site.open_channels), 1)
            peer.lost()
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_big_head_is_cut(self) -> None:
        """A head of more than 16 KiB ends the connection (F3)."""
        for padding in ("x" * 17_000, "x" * 9000):
            peer = Peer(self.site)
            peer.send(wire.upgrade(Cookie=padding, Other=padding))
            self.assertNotIn(b" 101 ", peer.transport.value())
            self.assertTrue(peer.transport.disconnecting)


class Health(FleetCase):
    def test_it_says_ok(self) -> None:
        """GET /healthz answers 200 while the store answers."""
        peer = Peer(self.site)
        peer.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertTrue(peer.transport.value().startswith(b"HTTP/1.1 200 "))
        self.assertTrue(peer.transport.value().rstrip().endswith(b"ok"))
        self.assertNotIn(b"server:", peer.transport.value().lower())

    def test_a_store_that_fails_is_told(self) -> None:
        """GET /healthz answers 503 if the store fails."""
        self.patch(self.store, "head", lambda: fail(StoreFull("full")))
        peer = Peer(self.site)
        peer.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertTrue(peer.transport.value().startswith(b"HTTP/1.1 503 "))

    def test_a_big_body_is_refused(self) -> None:
        """A request that announces more than 64 KiB, or no length, is not read."""
        for header in (b"Content-Length: 65537", b"Transfer-Encoding: chunked"):
            peer = Peer(self.site)
            peer.send(b"POST /healthz HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
            self.assertTrue(peer.transport.value().startswith(b"HTTP/1.1 413 "), header)
            self.assertTrue(peer.transport.disconnecting)

    def test_a_second_head_is_timed_too(self) -> None:
        """On a connection that is kept the 5 s run from a later request's first byte."""
        peer = Peer(self.site)
        peer.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        self.clock.advance(30)
        self.assertFalse(peer.transport.aborted)
        peer.send(b"GET")
        self.clock.advance(HEAD_SECONDS)
        self.assertTrue(peer.transport.aborted)

    def test_a_second_head_in_the_same_piece_is_timed(self) -> None:
        """A later head that begins in one piece with the request before it, or while that
        one is answered, has no more time than another (F3)."""
        whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for pieces in ([whole + b"GET"], [whole, b"GET"]):
            waiting: Deferred[int] = Deferred()
            self.patch(self.store, "head", lambda waiting=waiting: waiting)
            peer = Peer(self.site)
            for piece in pieces:
                peer.send(piece)
            self.clock.advance(1)
            waiting.callback(1)
            self.clock.advance(HEAD_SECONDS - 0.01)
            self.assertFalse(peer.transport.aborted)
            self.clock.advance(0.01)
            self.assertTrue(peer.transport.aborted)


def fail(error: Exception) -> Deferred[Any]:
    failed: Deferred[Any] = Deferred()
    failed.errback(error)
    return failed


class BeforeTheHello(FleetCase):
    # Bytes of the hello's frame header: opcode, length 126, two of length, mask.
    HEADER = 8

    def pings(self, count: int) -> bytes:
        """Ping frames of `count` bytes together."""
        data = b""
        while count > 131:
            size = min(131, count - 6)
            data += frame(PING, b"p" * (size - 6))
            count -= size
        return data + frame(PING, b"p" * (count - 6))

    def test_1024_bytes_are_taken(self) -> None:
        """1 KiB beside the hello's payload is within the budget, in one piece or many (F3)."""
        token = self.enrolled()
        for cut in (True, False):
            peer = self.peer()
            stream = self.pings(1024 - self.HEADER) + wire.text(wire.hello(token))
            (peer.drip if cut else peer.send)(stream)
            self.assertIn("result", peer.frames()[-1].json)

    def test_1025_bytes_are_not(self) -> None:
        """One byte more closes with 1009 before the hello is looked at (F3)."""
        token = self.enrolled()
        for cut in (True, False):
            peer = self.peer()
            stream = self.pings(1025 - self.HEADER) + wire.text(wire.hello(token))
            (peer.drip if cut else peer.send)(stream)
            before = self.assertClosed(peer, 1009)
            self.assertEqual({one.opcode for one in before}, {PONG})

    def test_what_comes_behind_a_hello_does_not_count(self) -> None:
        """Frames in the same read as the hello, behind it, are no pre-hello bytes (F3, F30)."""
        peer = self.peer()
        behind = b"".join(wire.text(wire.push(n, n, 10)) for n in range(2, 20))
        self.assertGreater(len(behind), 4096)
        peer.send(wire.text(wire.hello(self.enrolled())) + behind)
        self.assertEqual(peer.frames()[0].json["id"], 1)
        self.assertFalse(peer.transport.disconnecting)

    def test_a_hello_may_be_bigger_than_the_budget(self) -> None:
        """The hello's payload has a cap of its own: 60 KB pass, in fragments too (F3)."""
        token = self.enrolled()
        payload = wire.text(wire.hello(token, padding=60_000))
        peer = self.peer()
        peer.send(payload)
        self.assertIn("result", peer.frames()[-1].json)
        plain = wire.json.dumps(wire.hello(token, padding=60_000)).encode()
        peer = self.peer()
        peer.send(frame(TEXT, plain[:30_000], fin=False))
        peer.send(frame(CONTINUATION, plain[30_000:]))
        self.assertIn("result", peer.frames()[-1].json)

    def test_an_oversize_hello_ends_at_its_header(self) -> None:
        """A first message beyond hello_max_bytes is refused by its announced size (F3)."""
        peer = self.peer()
        peer.send(frame(TEXT, b"x" * 65_537)[:20])
        self.assertClosed(peer, 1009)
        peer = self.peer()
        peer.send(frame(TEXT, b"x" * 60_000, fin=False))
        peer.send(frame(CONTINUATION, b"x" * 6_000)[:20])
        self.assertClosed(peer, 1009)

    def test_headers_of_fragments_count(self) -> None:
        """A hello in very small fragments uses up the budget by their headers (F3)."""
        peer = self.peer()
        plain = wire.json.dumps(wire.hello(self.enrolled())).encode()
        peer.send(frame(TEXT, plain[:1], fin=False))
        for at in range(1, len(plain)):
            peer.send(frame(CONTINUATION, plain[at : at + 1], fin=False))
        self.assertClosed(peer, 1009)

    def test_a_big_binary_counts_in_full(self) -> None:
        """A first message that is binary has no payload that would not count (F3)."""
        peer = self.peer()
        peer.send(frame(BINARY, b"x" * 2000))
        self.assertClosed(peer, 1009)

    def test_the_hello_has_5_seconds(self) -> None:
        """Without a complete hello 5 s after the upgrade: close 4000, no message (§3)."""
        peer = self.peer()
        self.clock.advance(4.9)
        peer.send(wire.text(wire.hello())[:-1])
        self.assertEqual(peer.frames(), [])
        self.clock.advance(0.2)
        self.assertEqual(self.assertClosed(peer, 4000), [])

    def test_reading_stops_until_the_verdict(self) -> None:
        """While a hello is judged nothing is read; then what came is handled (F30)."""
        token = self.enrolled()
        judge, waiting = self.store.judge, Deferred[None]()

        def later(*args: Any) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            waiting.addCallback(lambda _: judge(*args).chainDeferred(done))
            return done

        self.patch(self.store, "judge", later)
        peer = self.peer()
        peer.send(wire.text(wire.hello(token)) + wire.text(wire.push(2, 1)))
        self.assertFalse(peer.transport.reading)
        self.assertEqual(peer.frames(), [])
        waiting.callback(None)
        self.assertTrue(peer.transport.reading)
        self.assertEqual([one.json["id"] for one in peer.frames()], [1, 2])

    def test_too_much_behind_a_hello_is_not_kept(self) -> None:
        """An oversize message behind a hello closes with 1009 after the verdict, and is not
        kept until then (F30, F31)."""
        token = self.enrolled()
        judge, waiting = self.store.judge, Deferred[None]()

        def first(*args: Any) -> Any:
            self.patch(self.store, "judge", judge)
            return waiting.addCallback(lambda _: judge(*args))

        self.patch(self.store, "judge", first)
        peer = self.peer()
        peer.send(wire.text(wire.hello(token)) + frame(TEXT, b" " * 1_048_577)[:600_000])
        self.assertEqual(peer.frames(), [])
        self.assertEqual(peer.transport.protocol.frame_data, [])
        waiting.callback(None)
        [result] = self.assertClosed(peer, 1009)
        self.assertIn("result", result.json)

    def test_a_registry_that_fails_ends_the_connection(self) -> None:
        """If nobody can judge, the host is told -32603 and closed, nothing of the fault."""
        token = self.enrolled()
        self.patch(self.store, "judge", lambda *args: fail(RuntimeError("secret")))
        peer = self.peer()
        peer.send(wire.text(wire.hello(token)))
        [error] = self.assertClosed(peer, 1011)
        self.assertEqual(error.json["error"]["code"], -32603)
        self.assertNotIn(b"secret", error.payload)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class Messages(FleetCase):
    def test_a_push_is_acked(self) -> None:
        """A push is answered with its last seq, and its entries are stored."""
        peer = self.active()
        peer.send(wire.text(wire.push(2, 1, 3)))
        [ack] = peer.frames()
        self.assertEqual(ack.json["result"]["up_to_seq"], 3)
        self.assertEqual(self.successResultOf(self.store.head()), 3)

    def test_an_ack_waits_for_the_store(self) -> None:
        """Nothing is answered before the append has fired (F10)."""
        append, waiting = self.store.append, Deferred[None]()
        self.patch(
            self.store, "append", lambda batches: waiting.addCallback(lambda _: append(batches))
        )
        peer = self.active()
        peer.send(wire.text(wire.push(2, 1)))
        self.assertEqual(peer.frames(), [])
        waiting.callback(None)
        self.assertEqual(len(peer.frames()), 1)

    def test_a_failed_append_refuses_what_follows(self) -> None:
        """After a failed append a push beyond it is refused until the agent goes back (F33)."""
        append = self.store.append
        peer = self.active()
        self.patch(self.store, "append", lambda batches: fail(StoreFull("full")))
        peer.send(wire.text(wire.push(2, 1)))
        error, fence = peer.frames()
        self.assertEqual((error.json["error"]["code"], fence.opcode), (-32020, PING))
        self.patch(self.store, "append", append)
        peer.send(wire.text(wire.push(3, 2)))
        self.assertEqual(peer.frames()[0].json["error"]["data"]["resend_from"], 1)
        peer.send(wire.text(wire.push(4, 1)))
        self.assertEqual(peer.frames()[0].json["result"]["up_to_seq"], 1)

    def test_a_gone_session_costs_no_budget(self) -> None:
        """A batch whose session went away is stored, and its bytes are given back."""
        waiting: list[tuple[Any, Deferred[Any]]] = []

        def append(batches: list[LogBatch]) -> Deferred[Any]:
            asked: Deferred[Any] = Deferred()
            waiting.append((batches, asked))
            return asked

        peer = self.active()
        real = self.store.append
        self.patch(self.store, "append", append)
        peer.send(wire.text(wire.push(2, 1)) + wire.text(wire.push(3, 2)))
        peer.lost()
        self.assertGreater(self.fleet.gauge.used, 0)
        self.patch(self.store, "append", real)
        batches, asked = waiting[0]
        asked.callback(self.successResultOf(real(batches)))
        self.assertEqual(self.fleet.gauge.used, 0)
        self.assertEqual(self.successResultOf(self.store.head()), 2)

    def test_sizes_count_the_whole_message(self) -> None:
        """1 MiB passes the frame's bound and one byte more does not, whole or in
        fragments (§2, F31)."""
        limit = 1_048_576
        peer = self.active()
        peer.send(frame(TEXT, b" " * limit))
        self.assertEqual(peer.frames()[0].json["error"]["code"], -32700)
        for stream in (
            frame(TEXT, b" " * (limit + 1)),
            frame(TEXT, b" " * limit, fin=False) + frame(CONTINUATION, b" "),
            frame(BINARY, b" " * (limit + 1)),
        ):
            peer = self.active()
            peer.send(stream)
            self.assertClosed(peer, 1009)
            peer.lost()
        self.clock.advance(10)
        self.assertEqual(self.row().last_disconnect_reason, "1009 oversize")

    def test_a_header_beyond_the_bound_is_enough(self) -> None:
        """An oversize frame is refused at its header, and its bytes are not kept."""
        peer = self.active()
        peer.send(frame(TEXT, b" " * 1_048_577)[:14])
        self.assertClosed(peer, 1009)
        peer.send(b" " * 500_000)
        self.assertEqual(peer.transport.protocol.frame_data, [])

    def test_binary_is_refused(self) -> None:
        """A binary message closes with 1003 (§2)."""
        peer = self.active()
        peer.send(frame(BINARY, b"{}"))
        self.assertClosed(peer, 1003)

    def test_text_is_utf8(self) -> None:
        """A text message that is not UTF-8 closes with 1007 (F9)."""
        peer = self.active()
        peer.send(frame(TEXT, b'{"jsonrpc":"2.0","method":"\xff"}'))
        self.assertClosed(peer, 1007)

    def test_pings_keep_it_alive(self) -> None:
        """Every 20 s a ping; three unanswered ones close with 1011, other bytes are no
        pong (§2, F21)."""
        peer = self.active()
        self.clock.advance(20)
        [ping] = peer.frames()
        peer.send(frame(PONG, ping.payload))
        for _ in range(3):
            self.clock.advance(20)
            peer.send(frame(PONG, b"other") + frame(PING))
            self.assertFalse(peer.transport.disconnecting)
        peer.frames()
        self.clock.advance(20)
        self.assertClosed(peer, 1011)


class Closing(FleetCase):
    def test_the_peer_answers(self) -> None:
        """The connection ends when the peer answers our close, and no call is left over."""
        peer = self.active()
        peer.send(frame(BINARY, b"x"))
        self.assertFalse(peer.transport.disconnecting)
        peer.send(frame(CLOSE, b"\x03\xeb"))
        self.assertTrue(peer.transport.disconnecting)
        peer.lost()
        self.clock.advance(self.fleet.settings.server.presence_flush_secs)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_peer_that_does_not_answer_is_cut(self) -> None:
        """Without an answer to our close the connection is aborted after a while."""
        peer = self.active()
        peer.send(frame(BINARY, b"x"))
        self.clock.advance(CLOSE_SECONDS)
        self.assertTrue(peer.transport.aborted)

    def test_a_stranger_that_does_not_answer_is_cut_sooner(self) -> None:
        """Who said no hello in time gets 1 s for the answer to our close 4000."""
        peer = self.peer()
        self.clock.advance(5)
        self.assertClosed(peer, 4000)
        self.clock.advance(STRANGER_SECONDS - 0.01)
        self.assertFalse(peer.transport.aborted)
        self.clock.advance(0.01)
        self.assertTrue(peer.transport.aborted)

    def test_nothing_follows_a_close(self) -> None:
        """After our close neither pushes nor pings are answered."""
        peer = self.active()
        peer.send(frame(BINARY, b"x"))
        self.assertClosed(peer, 1003)
        peer.send(wire.text(wire.push(2, 1)) + frame(PING, b"x"))
        self.assertEqual(peer.frames(), [])
        self.assertEqual(self.successResultOf(self.store.head()), 0)

    def test_the_host_closes(self) -> None:
        """The peer's close is echoed, and the row says so."""
        peer = self.active()
        peer.send(frame(CLOSE, b"\x03\xe8final_seq=0"))
        self.assertClosed(peer, 1000)
        self.assertTrue(peer.transport.disconnecting)
        peer.lost()
        self.clock.advance(3)
        self.assertEqual(self.row().last_disconnect_reason, "1000 closed by the host")

    def test_a_broken_frame_closes_with_1002(self) -> None:
        """A frame against RFC 6455 closes with 1002, and what follows is not handled."""
        peer = self.active()
        peer.send(frame(3, b"x") + wire.text(wire.push(2, 1)))
        self.assertClosed(peer, 1002)
        self.assertEqual(self.successResultOf(self.store.head()), 0)

    def test_a_fault_of_ours_closes_with_1011(self) -> None:
        """An exception in our own code ends the one connection, with 1011."""

        def fault(*args: Any) -> Any:
            raise RuntimeError("a bug")

        peer = self.active()
        self.patch(peer.transport.protocol._session, "text_received", fault)
        peer.send(wire.text(wire.push(2, 1)))
        self.assertClosed(peer, 1011)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class SlowPeers(FleetCase):
    table = {"slow_peer_secs": 30.0}

    def test_who_does_not_read_is_not_read(self) -> None:
        """While what was sent stays unread, the peer is not read; then it is again."""
        peer = self.active()
        peer.transport.protocol.pauseProducing()
        self.assertFalse(peer.transport.reading)
        peer.transport.protocol.resumeProducing()
        self.assertTrue(peer.transport.reading)
        self.clock.advance(15)
        self.assertFalse(peer.transport.aborted)

    def test_who_never_reads_is_dropped(self) -> None:
        """A peer that leaves its acks unread is dropped, and the row says why."""
        peer = self.active()
        peer.transport.protocol.pauseProducing()
        self.clock.advance(30)
        self.assertTrue(peer.transport.aborted)
        peer.lost()
        self.clock.advance(3)
        self.assertEqual(self.row().last_disconnect_reason, "not reading what it is sent")


class Directory(FleetCase):
    def test_a_newer_session_supersedes(self) -> None:
        """The older session of a host is closed with 1000 `superseded` (F14), and what it
        then does changes nothing of the newer one."""
        token = self.enrolled()
        older = self.peer()
        older.send(wire.text(wire.hello(token)))
        newer = self.peer()
        newer.send(wire.text(wire.hello(token)))
        *_, close = older.frames()
        self.assertEqual((close.code, close.payload[2:]), (1000, b"superseded"))
        older.lost()
        self.clock.advance(3)
        self.assertEqual(self.row().state, "active")
        newer.send(wire.text(wire.push(2, 1)))
        self.assertIn("result", newer.frames()[-1].json)

    def test_a_probable_clone_is_told(self) -> None:
        """More than five supersessions a minute are reported, five are not (F14)."""
        token = self.enrolled()
        with capturedLogs() as logs:
            for _ in range(6):
                self.peer().send(wire.text(wire.hello(token)))
            self.assertEqual([one for one in logs if "superseded" in one["log_format"]], [])
            self.peer().send(wire.text(wire.hello(token)))
            self.assertEqual(len([one for one in logs if "superseded" in one["log_format"]]), 1)

    def test_heartbeats_are_written_now_and_then(self) -> None:
        """Heartbeats are collected and written together, the newest of each host (§4.2)."""
        writes: list[Any] = []
        seen = self.store.seen
        self.patch(self.store, "seen", lambda updates: writes.append(updates) or seen(updates))
        peer = self.active()
        self.clock.advance(3)
        writes.clear()
        for depth in (5, 7):
            beat = {"ts": "2027-01-15T08:00:10Z", "queue_depth": depth, "buffer_bytes": 9}
            peer.send(wire.text({"jsonrpc": "2.0", "method": "agent.heartbeat", "params": beat}))
        self.assertEqual(writes, [])
        self.clock.advance(3)
        self.assertEqual(len(writes), 1)
        row = self.row()
        self.assertEqual((row.queue_depth, row.buffer_bytes), (7, 9))
        self.assertTrue(6e6 <= row.clock_skew <= 8e6, row.clock_skew)

    def test_a_failed_write_is_tried_again(self) -> None:
        """What could not be written is kept, under what was seen since."""
        peer = self.active()
        seen = self.store.seen
        self.patch(self.store, "seen", lambda updates: fail(StoreFull("full")))
        peer.lost()
        self.clock.advance(3)
        self.patch(self.store, "seen", seen)
        self.clock.advance(3)
        self.assertEqual(self.row().state, "disconnected")

    def test_a_revoked_host_is_cut(self) -> None:
        """A live session gets agent.shutdown Revoked and close 4002, and no token is good
        any more (F8)."""
        peer = self.active()
        self.result(self.fleet.revoke(wire.HOST_ID))
        [shutdown] = self.assertClosed(peer, 4002)
        self.assertEqual(shutdown.json["params"]["reason"], "Revoked")
        again = self.peer()
        again.send(wire.text(wire.hello()))
        [error] = self.assertClosed(again, 4002)
        self.assertEqual(error.json["error"]["code"], -32002)

    def test_a_rotation_now_closes_with_1000(self) -> None:
        """`rotate --now` closes the session so that it comes back for its token (F7)."""
        peer = self.active()
        self.result(self.fleet.rotate(wire.HOST_ID, True, None))
        self.assertClosed(peer, 1000)
        self.assertTrue(self.row().rotation_pending)

    def test_a_rotation_leaves_the_session_alone(self) -> None:
        """Without --now the live session goes on (F7)."""
        peer = self.active()
        self.result(self.fleet.rotate(wire.HOST_ID, False, None))
        self.assertEqual(peer.frames(), [])

    def test_a_forgotten_host_is_let_go(self) -> None:
        """A live session of a forgotten host ends, and its row is gone."""
        peer = self.active()
        self.result(self.fleet.forget(wire.HOST_ID))
        [shutdown] = self.assertClosed(peer, 1000)
        self.assertEqual(shutdown.json["params"]["reason"], "Decommission")
        self.assertEqual(self.successResultOf(self.store.find(wire.HOST_ID)), [])

    def test_an_invitation_says_where(self) -> None:
        """An invitation carries the server's URL and the token (F6)."""
        issued = self.result(self.fleet.issue("other", None, None))
        self.assertTrue(issued.invitation.startswith("ws://127.0.0.1:8600/ws/agent#token="))
        self.assertIn(issued.token, issued.invitation)
        self.assertNotIn(issued.token, repr(issued))

    def test_a_crash_leaves_no_host_active(self) -> None:
        """Rows that a dead server left as active are disconnected at the start."""
        self.active()
        self.assertEqual(self.row().state, "active")
        self.result(self.fleet.start())
        self.assertEqual(self.row().state, "disconnected")


class Stopping(FleetCase):
    def test_agents_are_told_and_may_finish(self) -> None:
        """Stopping sends ServerReload, takes pushes until the drain ends, then closes
        with 1000; a connection without a hello is closed at once (§4.3)."""
        peer, silent = self.active(), self.peer()
        stopped = Deferred.fromCoroutine(self.fleet.stop())
        [shutdown] = peer.frames()
        self.assertEqual(shutdown.json["params"], {"reason": "ServerReload", "drain_seconds": 2})
        self.assertClosed(silent, 1000)
        silent.lost()
        peer.send(wire.text(wire.push(2, 1)))
        self.assertIn("result", peer.frames()[0].json)
        self.clock.advance(2)
        self.assertClosed(peer, 1000)
        self.assertNoResult(stopped)
        peer.lost()
        self.successResultOf(stopped)
        self.assertEqual(self.row().state, "disconnected")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_who_does_not_go_is_not_waited_for(self) -> None:
        """A peer that answers nothing delays a stop by some seconds only."""
        self.active()
        stopped = Deferred.fromCoroutine(self.fleet.stop())
        for _ in range(20):
            self.clock.advance(1)
        self.successResultOf(stopped)
