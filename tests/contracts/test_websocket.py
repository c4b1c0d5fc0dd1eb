"""The wire's frame: RFC 6455 as §2 uses it, case by case, on a real server.

Each case is bytes on a raw socket and what must come back. The cases follow the
sections of the RFC (and the numbers of the Autobahn test suite, which does not
run on a Python of today).
"""

from __future__ import annotations

import os
import socket
import time
import unittest
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests import wire
from tests.integration.processes import Connection, shared_server
from tests.wire import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Frame, frame

MAX = 1_048_576


class Served(SynchronousTestCase):
    """Cases on one server process."""

    def setUp(self) -> None:
        self.server, self.token = shared_server()

    def active(self) -> Connection:
        connection = self.server.connect()
        self.addCleanup(connection.socket.close)
        self.assertIn("result", connection.call(wire.hello(self.token)))
        return connection


class Handshake(Served):
    def answer(self, request: bytes) -> bytes:
        with Connection(self.server.address) as connection:
            connection.send(request)
            return connection.head()

    def test_the_key_is_answered(self) -> None:
        """§4.2.2: 101 with the accept value of the RFC's own example, cortex.v1 and no
        extension."""
        head = self.answer(wire.upgrade(Sec_WebSocket_Extensions="permessage-deflate"))
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "))
        self.assertIn(b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", head)
        self.assertIn(b"Sec-WebSocket-Protocol: cortex.v1", head)
        self.assertNotIn(b"Sec-WebSocket-Extensions", head)

    def test_bad_requests_are_refused(self) -> None:
        """§4.2.1: each requirement that is not met is refused, none with 101."""
        for expected, request in (
            (400, wire.upgrade(protocol=None)),
            (400, wire.upgrade(protocol="cortex.v2")),
            (400, wire.upgrade(protocol="")),
            (400, wire.upgrade(Host=None)),
            (400, wire.upgrade(Connection="close")),
            (400, wire.upgrade(Upgrade="h2c")),
            (400, wire.upgrade(Sec_WebSocket_Key=None)),
            (400, wire.upgrade(Sec_WebSocket_Key="short")),
            (400, wire.upgrade(Sec_WebSocket_Version="8, 13")),
            (426, wire.upgrade(Upgrade=None)),
            (404, wire.upgrade("/ws/agent/")),
            (404, wire.upgrade("/ws/other")),
            (405, wire.upgrade().replace(b"GET", b"PUT", 1)),
            (505, wire.upgrade().replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
            (400, b"GET\r\n\r\n"),
        ):
            status = self.answer(request).split(b" ")[1:2]
            self.assertEqual(status, [b"%d" % expected], request)

    def test_a_query_is_no_other_path(self) -> None:
        """A query behind the path is ignored."""
        self.assertTrue(self.answer(wire.upgrade("/ws/agent?x=1")).startswith(b"HTTP/1.1 101 "))

    def test_bytes_behind_the_request(self) -> None:
        """What is sent in one piece with the upgrade request is not lost."""
        with Connection(self.server.address) as connection:
            connection.send(
                wire.upgrade() + wire.text(wire.hello(self.token)) + frame(PING, b"behind")
            )
            self.assertTrue(connection.head().startswith(b"HTTP/1.1 101 "))
            # The pong need not wait for the hello's verdict.
            found = sorted((connection.frame(), connection.frame()), key=lambda one: one.opcode)
            self.assertIn("result", found[0].json)
            self.assertEqual(found[1], Frame(PONG, b"behind"))

    def test_bytes_one_by_one(self) -> None:
        """The same stream, byte by byte."""
        with Connection(self.server.address) as connection:
            for byte in wire.upgrade() + wire.text(wire.hello(self.token)):
                connection.send(bytes([byte]))
            connection.head()
            self.assertIn("result", connection.frame().json)

    def test_on_a_connection_that_was_used(self) -> None:
        """An upgrade may follow another request on the same connection."""
        with Connection(self.server.address) as connection:
            connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b"200", connection.head())
            while len(connection.received) < 3:
                connection.received += connection.socket.recv(100)
            self.assertEqual(connection.received, b"ok\n")
            connection.received = b""
            connection.upgrade()
            self.assertIn("result", connection.call(wire.hello(self.token)))


class Frames(Served):
    def close_code(self, *stream: bytes) -> int | None:
        connection = self.active()
        for piece in stream:
            connection.send(piece)
        return connection.close_code()

    def test_broken_frames(self) -> None:
        """§5: a frame against the rules fails the connection with 1002."""
        cases: dict[str, bytes] = {
            "3.1 a reserved bit": frame(TEXT, b"{}", rsv=1),
            "3.2 another": frame(TEXT, b"{}", rsv=2),
            "3.7 all": frame(PING, b"x", rsv=7),
            "a compressed frame": frame(TEXT, b"{}", rsv=4),
            "5.1 an unmasked frame": frame(TEXT, b"{}", mask=None),
            "an unmasked ping": frame(PING, b"", mask=None),
            "2.5 a ping of 126 bytes": frame(PING, b"x" * 126),
            "5.1 a fragmented ping": frame(PING, b"x", fin=False),
            "a continuation of nothing": frame(CONTINUATION, b"x"),
            "an unfinished continuation of nothing": frame(CONTINUATION, b"x", fin=False),
            "a message within a message": frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"),
            "a length of 16 bits that fits in 7": b"\x81\xfe\x00\x05mask" + b"\0" * 5,
            "a length of 64 bits that fits in 16": b"\x81\xff" + b"\0" * 6 + b"\xff\xffmask",
            "a length beyond 2**63": b"\x81\xff\xff" + b"\0" * 7 + b"mask",
        }
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
            cases[f"4 opcode {opcode}"] = frame(opcode, b"")
            cases[f"4 opcode {opcode} with payload"] = frame(opcode, b"x")
        for name, stream in cases.items():
            self.assertEqual(self.close_code(stream), 1002, name)

    def test_pings(self) -> None:
        """§5.5.2: pings are answered with their payload, in order; pongs are not answered."""
        connection = self.active()
        payloads = [b"", b"hello", bytes(range(125)), b"\xff\xfe"]
        connection.send(frame(PONG, b"unasked"))
        for payload in payloads:
            connection.send(frame(PING, payload))
        self.assertEqual([connection.frame() for _ in payloads], [Frame(PONG, p) for p in payloads])

    def test_fragments(self) -> None:
        """§5.4: a fragmented message is one message, with pings between its fragments."""
        connection = self.active()
        message = wire.json.dumps(wire.request("é", "nonesuch", {}), ensure_ascii=False).encode()
        for cut in (1, 2, 10, len(message) - 1):
            connection.send(
                frame(TEXT, message[:cut], fin=False)
                + frame(CONTINUATION, b"", fin=False)
                + frame(PING, b"between")
                + frame(CONTINUATION, message[cut:])
            )
            self.assertEqual(connection.frame(), Frame(PONG, b"between"))
            self.assertEqual(connection.frame().json["id"], "é")

    def test_text_that_is_not_utf8(self) -> None:
        """§8.1: 1007 for each kind of bad UTF-8, also when a fragment ends in the midst."""
        for bad in (
            b"\xff",
            b"\x80",
            b"\xc0\xaf",
            b"\xe0\x80\x80",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xc3",
            b"\xf0\x9f\x98",
        ):
            self.assertEqual(self.close_code(frame(TEXT, b'{"x":"' + bad + b'"}')), 1007, bad)
            self.assertEqual(
                self.close_code(frame(TEXT, bad[:1], fin=False) + frame(CONTINUATION, bad[1:])),
                1007,
                bad,
            )

    def test_a_character_across_fragments(self) -> None:
        """A character may be cut by a fragment's end."""
        connection = self.active()
        message = '{"jsonrpc":"2.0","id":"😀","method":"nonesuch","params":{}}'.encode()
        cut = message.index("😀".encode()) + 2
        connection.send(frame(TEXT, message[:cut], fin=False))
        connection.send(frame(CONTINUATION, message[cut:]))
        self.assertEqual(connection.frame().json["id"], "😀")

    def test_binary(self) -> None:
        """§2: binary messages are refused with 1003, whole or in fragments, empty too."""
        for stream in (
            frame(BINARY, b"x"),
            frame(BINARY, b""),
            frame(BINARY, b"x", fin=False) + frame(CONTINUATION, b"y"),
        ):
            self.assertEqual(self.close_code(stream), 1003)

    def test_sizes(self) -> None:
        """§2, F31: a message of 1 MiB passes, one byte more is 1009, in fragments too."""
        connection = self.active()
        connection.send(frame(TEXT, b" " * MAX))
        self.assertEqual(connection.frame().json["error"]["code"], -32700)
        half = b" " * (MAX // 2)
        for stream in (
            frame(TEXT, b" " * (MAX + 1)),
            frame(TEXT, half, fin=False) + frame(CONTINUATION, half + b" "),
            frame(TEXT, half, fin=False)
            + frame(CONTINUATION, half, fin=False)
            + frame(CONTINUATION, b" "),
            frame(TEXT, b"")[:1] + b"\xff" + (2**40).to_bytes(8, "big") + b"mask",
        ):
            self.assertEqual(self.close_code(stream), 1009)


class Closes(Served):
    def reply(self, payload: bytes) -> list[Frame]:
        connection = self.active()
        connection.send(frame(CLOSE, payload))
        return connection.until_closed()

    def test_good_codes_are_answered(self) -> None:
        """§7.1: a close is answered with one close, and the connection ends."""
        for payload in (
            b"",
            b"\x03\xe8",
            b"\x03\xe8final_seq=12",
            b"\x03\xe8" + "é".encode() * 61,
            *(code.to_bytes(2, "big") for code in (1001, 1002, 1003, 1007, 1011, 3000, 4999)),
        ):
            found = self.reply(payload)
            self.assertEqual([one.opcode for one in found], [CLOSE], payload)
            self.assertEqual(found[0].code, 1000, payload)

    def test_bad_closes(self) -> None:
        """§7.4: a code that must not be sent, or half a code, is 1002; a reason that is
        not UTF-8 is 1007."""
        for code in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535):
            self.assertEqual(self.reply(code.to_bytes(2, "big"))[0].code, 1002, code)
        self.assertEqual(self.reply(b"\x03")[0].code, 1002)
        self.assertEqual(self.reply(b"\x03\xe8\xff")[0].code, 1007)

    def test_nothing_after_a_close(self) -> None:
        """§5.5.1: what comes behind a close is not handled."""
        connection = self.active()
        connection.send(frame(CLOSE, b"\x03\xe8") + frame(PING, b"x") + wire.text(wire.push(2, 1)))
        self.assertEqual([one.opcode for one in connection.until_closed()], [CLOSE])


class Unauthenticated(Served):
    def test_the_hello_has_five_seconds(self) -> None:
        """§3: 4000 five seconds after the upgrade, without a message, dripping or not."""
        connection = self.server.connect()
        self.addCleanup(connection.socket.close)
        began = time.monotonic()
        connection.socket.settimeout(0.5)
        for byte in wire.text(wire.hello(self.token))[:30]:
            connection.send(bytes([byte]))
            try:
                found = connection.frame()
                break
            except TimeoutError:
                continue
        self.assertEqual((found.opcode, found.code), (CLOSE, 4000))
        self.assertTrue(4.9 < time.monotonic() - began < 7.0)

    def test_the_head_has_five_seconds(self) -> None:
        """F3: an HTTP head that drips in is cut after five seconds."""
        with Connection(self.server.address) as connection:
            began = time.monotonic()
            with self.assertRaises((ConnectionError, EOFError)):
                for byte in wire.upgrade():
                    connection.send(bytes([byte]))
                    connection.socket.settimeout(0.3)
                    try:
                        if not connection.socket.recv(1):
                            raise EOFError
                    except TimeoutError:
                        continue
            self.assertTrue(4.9 < time.monotonic() - began < 7.0)

    def test_the_budget_is_exact(self) -> None:
        """F3: 1,024 bytes beside the hello's payload pass, 1,025 are 1009."""
        message = wire.text(wire.hello(self.token))
        header = 8
        for extra, passes in ((0, True), (1, False)):
            connection = self.server.connect()
            self.addCleanup(connection.socket.close)
            pings = frame(PING, b"p" * 100) * 9
            rest = 1024 - header - len(pings) + extra
            connection.send(pings + frame(PING, b"p" * (rest - 6)) + message)
            found = [one for one in (connection.frame() for _ in range(11)) if one.opcode != PONG]
            if passes:
                self.assertIn("result", found[0].json)
            else:
                self.assertEqual((found[0].opcode, found[0].code), (CLOSE, 1009))


class OtherPeers(Served):
    """Independent implementations as clients."""

    def test_websockets(self) -> None:
        """The `websockets` library's client enrols, pushes and closes cleanly."""
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise missing("websockets") from None
        host, port = self.server.address
        with connect(f"ws://{host}:{port}/ws/agent", subprotocols=["cortex.v1"]) as peer:
            peer.send(wire.json.dumps(wire.hello(self.token)))
            result = wire.json.loads(peer.recv(timeout=10))["result"]
            first = result["accepted_seq"] + 1
            peer.send(cut(wire.json.dumps(wire.push(2, first, 100)), 7))
            ack = wire.json.loads(peer.recv(timeout=10))
            self.assertEqual(ack["result"]["up_to_seq"], first + 99)
            peer.close(1000, f"final_seq={first + 99}")
            self.assertEqual(peer.close_code, 1000)

    def test_wsproto(self) -> None:
        """The `wsproto` machine's client sees a close with code and reason."""
        try:
            import wsproto
            from wsproto import events
        except ImportError:
            raise missing("wsproto") from None
        peer = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        with socket.create_connection(self.server.address, 10) as raw:
            raw.sendall(
                peer.send(events.Request(host="x", target="/ws/agent", subprotocols=["cortex.v1"]))
            )
            seen: list[Any] = []
            while not any(isinstance(one, events.CloseConnection) for one in seen):
                data = raw.recv(65_536)
                self.assertTrue(data, "the connection ended without a close")
                peer.receive_data(data)
                for event in peer.events():
                    seen.append(event)
                    if isinstance(event, events.AcceptConnection):
                        self.assertEqual(event.subprotocol, "cortex.v1")
                        raw.sendall(peer.send(events.BytesMessage(b"binary")))
            close = seen[-1]
            self.assertEqual(close.code, 1003)
            raw.sendall(peer.send(close.response()))
            self.assertEqual(raw.recv(10), b"")


def cut(text: str, size: int) -> list[str]:
    """A text in pieces."""
    step = len(text) // size + 1
    return [text[at : at + step] for at in range(0, len(text), step)]


def missing(peer: str) -> Exception:
    """Skip for want of a peer, or fail where all must be there."""
    if os.environ.get("REQUIRE_PEERS") == "1":
        return AssertionError(f"{peer} is not installed")
    return unittest.SkipTest(f"{peer} is not installed")
