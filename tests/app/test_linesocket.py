"""The line socket's protocol: requests, rows with backpressure, errors, bounds."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app import linesocket
from cortextx.app.linesocket import LineSocketProtocol, LineSocketService, OpError, Rows
from cortextx.errors import BadQuery, ConfigError, StoreClosed, StoreFull, UnknownHost


class PeerHandle:
    def __init__(self, uid: int) -> None:
        self.uid = uid

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return struct.pack("3i", 1, self.uid, 1)


class UnixTransport(StringTransport):
    """A StringTransport with a peer; a pause is what its consumer would ask for."""

    def __init__(self, uid: int | None = None) -> None:
        super().__init__()
        self.handle = PeerHandle(os.geteuid() if uid is None else uid)
        self.aborted = False

    def abortConnection(self) -> None:
        self.aborted = True

    def getHandle(self) -> PeerHandle:
        return self.handle


class SocketCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.waits: list[Deferred[Any]] = []
        self.cancelled: list[Deferred[Any]] = []
        self.service = LineSocketService(
            self.clock,
            "/nowhere",
            {"echo": self.echo, "count": self.count, "wait": self.wait, "fail": self.fail_with},
            max_connections=2,
            max_request_bytes=200,
        )
        self.error: Exception = OpError("no", "it is not so", "do it otherwise")

    async def echo(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        return args

    async def count(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        for first in range(0, args["to"], 2):
            await rows([{"n": first}, {"n": first + 1}])
        return {}

    async def wait(self, args: dict[str, Any], rows: Rows) -> None:
        waiting: Deferred[Any] = Deferred(self.cancelled.append)
        self.waits.append(waiting)
        await waiting

    async def fail_with(self, args: dict[str, Any], rows: Rows) -> None:
        raise self.error

    def connect(self, uid: int | None = None) -> tuple[LineSocketProtocol, UnixTransport]:
        protocol, transport = LineSocketProtocol(self.service), UnixTransport(uid)
        protocol.makeConnection(transport)
        return protocol, transport

    def answers(self, transport: UnixTransport) -> list[Any]:
        sent = transport.value()
        transport.clear()
        self.assertTrue(not sent or sent.endswith(b"\n"))
        return [msgspec.json.decode(line) for line in sent.splitlines()]

    def ask(self, line: bytes) -> list[Any]:
        protocol, transport = self.connect()
        protocol.dataReceived(line + b"\n")
        protocol.connectionLost(Failure(ConnectionDone()))
        return self.answers(transport)


class Requests(SocketCase):
    def test_an_end_answers(self) -> None:
        """What an op returns is the end; nothing returned is an empty end."""
        self.assertEqual(self.ask(b'{"op":"echo","args":{"a":1}}'), [{"end": {"a": 1}}])
        self.assertEqual(self.ask(b'{"op":"echo"}'), [{"end": {}}])

    def test_rows_come_before_the_end(self) -> None:
        """Rows come in order, each on a line of its own."""
        self.assertEqual(
            self.ask(b'{"op":"count","args":{"to":4}}'),
            [{"row": {"n": n}} for n in range(4)] + [{"end": {}}],
        )

    def test_any_cut_of_the_stream_is_the_same(self) -> None:
        """Requests byte by byte are answered as in one piece."""
        both = b'{"op":"echo","args":{"a":1}}\n{"op":"count","args":{"to":2}}\n'
        whole, transport = self.connect()
        whole.dataReceived(both)
        expected = self.answers(transport)
        cut, transport = self.connect()
        for place in range(len(both)):
            cut.dataReceived(both[place : place + 1])
        self.assertEqual(self.answers(transport), expected)
        self.assertEqual(len(expected), 4)

    def test_requests_are_answered_one_at_a_time(self) -> None:
        """A second request waits until the first one is answered."""
        protocol, transport = self.connect()
        protocol.dataReceived(b'{"op":"wait"}\n{"op":"echo"}\n')
        self.assertEqual(self.answers(transport), [])
        self.waits[0].callback(None)
        self.assertEqual(self.answers(transport), [{"end": {}}, {"end": {}}])

    def test_a_client_that_leaves_cancels_its_request(self) -> None:
        """The op of a client that went away is cancelled where it waits."""
        protocol, _ = self.connect()
        protocol.dataReceived(b'{"op":"wait"}\n')
        protocol.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.cancelled, self.waits)
        self.assertEqual(self.service.connections, set())


class Backpressure(SocketCase):
    def test_an_op_waits_for_its_reader(self) -> None:
        """While the transport's buffer is full the op makes no further rows."""
        protocol, transport = self.connect()
        protocol.pauseProducing()
        protocol.dataReceived(b'{"op":"count","args":{"to":6}}\n')
        self.assertEqual(len(self.answers(transport)), 2)
        protocol.resumeProducing()
        self.assertEqual(len(self.answers(transport)), 5)

    def test_a_big_row_set_goes_in_pieces(self) -> None:
        """One call with many rows waits for the reader in between, too."""

        async def big(args: dict[str, Any], rows: Rows) -> None:
            await rows({"text": "x" * 1000} for _ in range(200))

        self.service.ops["big"] = big
        protocol, transport = self.connect()
        protocol.pauseProducing()
        protocol.dataReceived(b'{"op":"big"}\n')
        self.assertLess(len(transport.value()), 2 * linesocket.WRITE_BYTES)
        for _ in range(5):
            protocol.resumeProducing()
        self.assertEqual(len(self.answers(transport)), 201)


class Errors(SocketCase):
    def test_every_refusal_has_a_code(self) -> None:
        """The one map gives each of the package's errors its code."""
        for error, code in (
            (self.error, "no"),
            (UnknownHost("no such host"), "not_found"),
            (BadQuery("cursor", "a cursor"), "bad_request"),
            (StoreFull("full"), "store_full"),
            (StoreClosed("closed"), "unavailable"),
        ):
            self.error = error
            [answer] = self.ask(b'{"op":"fail"}')
            self.assertEqual(answer["error"]["code"], code)
            self.assertEqual(answer["error"]["message"], str(error))

    def test_a_fault_of_ours_tells_nothing(self) -> None:
        """An unforeseen exception is logged; the client gets no text of it."""
        self.error = RuntimeError("secret detail")
        [answer] = self.ask(b'{"op":"fail"}')
        self.assertEqual(answer["error"]["code"], "internal")
        self.assertNotIn("secret", str(answer))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_malformed_requests_are_told(self) -> None:
        """What is no request is `bad_request`, an unknown op `unknown_op`."""
        for line in (b"[]", b"{", b'{"op":1}', b'{"args":{}}', b"\xff", b"[" * 150, b""):
            self.assertEqual(self.ask(line)[0]["error"]["code"], "bad_request", line)
        [answer] = self.ask(b'{"op":"nonesuch"}')
        self.assertEqual(answer["error"]["code"], "unknown_op")
        self.assertIn("echo", answer["error"]["message"])

    def test_arguments_name_the_field(self) -> None:
        """Arguments of a wrong type are refused by name."""

        class Args(msgspec.Struct):
            n: int

        error = self.assertRaises(OpError, linesocket.arguments, {"n": "x"}, Args)
        self.assertIn("$.n", str(error))


class Bounds(SocketCase):
    def test_a_request_is_bounded(self) -> None:
        """A line over the limit gets one error and the connection is closed."""
        protocol, transport = self.connect()
        protocol.dataReceived(b"x" * 200)
        [answer] = self.answers(transport)
        self.assertEqual(answer["error"]["code"], "bad_request")
        self.assertTrue(transport.disconnecting)

    def test_waiting_requests_are_bounded(self) -> None:
        """More than MAX_WAITING requests behind one that runs end the connection."""
        protocol, transport = self.connect()
        protocol.dataReceived(b'{"op":"wait"}\n')
        protocol.dataReceived(b'{"op":"echo"}\n' * (linesocket.MAX_WAITING + 1))
        self.assertTrue(transport.disconnecting)

    def test_connections_are_bounded(self) -> None:
        """A connection beyond the bound is told so and closed."""
        self.connect()
        self.connect()
        _, transport = self.connect()
        self.assertEqual(self.answers(transport)[0]["error"]["code"], "busy")
        self.assertTrue(transport.disconnecting)

    def test_other_users_get_nothing(self) -> None:
        """A peer of another uid is refused before it can ask; root is not."""
        protocol, transport = self.connect(uid=os.geteuid() + 1)
        protocol.dataReceived(b'{"op":"echo"}\n')
        self.assertEqual([*self.answers(transport)[0]], ["error"])
        self.assertTrue(transport.disconnecting)
        protocol, transport = self.connect(uid=0)
        protocol.dataReceived(b'{"op":"echo"}\n')
        self.assertEqual(self.answers(transport), [{"end": {}}])

    def test_a_silent_connection_ends(self) -> None:
        """A client without a request is dropped after a while, one that waits is not."""
        _, silent = self.connect()
        waiting, transport = self.connect()
        waiting.dataReceived(b'{"op":"wait"}\n')
        self.clock.advance(linesocket.IDLE_SECONDS)
        self.assertTrue(silent.disconnecting)
        self.assertFalse(transport.disconnecting)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Stopping(SocketCase):
    def test_live_connections_are_told_and_closed(self) -> None:
        """Stopping cancels what runs, says so, and waits for the connections to go."""
        protocol, transport = self.connect()
        protocol.dataReceived(b'{"op":"wait"}\n')
        stopped = self.service.stopService()
        self.assertEqual(self.answers(transport)[0]["error"]["code"], "unavailable")
        self.assertTrue(transport.disconnecting)
        self.assertNoResult(stopped)
        protocol.connectionLost(Failure(ConnectionDone()))
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_client_that_does_not_leave_is_aborted(self) -> None:
        """After a few seconds a connection that lingers is cut."""
        protocol, transport = self.connect()
        stopped = self.service.stopService()
        self.clock.advance(linesocket.STOP_SECONDS)
        self.assertTrue(transport.aborted)
        protocol.connectionLost(Failure(ConnectionDone()))
        self.successResultOf(stopped)


class Places(SynchronousTestCase):
    def test_a_path_that_is_too_long_is_told(self) -> None:
        """A path beyond what the system takes is refused with its length and a way out."""
        path = os.path.join(os.path.abspath(self.mktemp()), "x" * 100, "admin.sock")
        error = self.assertRaises(ConfigError, linesocket.prepare_place, path)
        self.assertIn("shorter state directory", str(error))

    def test_a_file_that_is_no_socket_stays(self) -> None:
        """Something else under the socket's name is left alone and told."""
        path = self.mktemp()
        with open(path, "w"):
            pass
        self.assertRaises(ConfigError, linesocket.prepare_place, path)
        self.assertTrue(os.path.exists(path))

    def test_a_dead_socket_is_removed_a_live_one_is_not(self) -> None:
        """A socket that nobody listens on makes room; one that answers is refused."""
        above = tempfile.mkdtemp(prefix="cx", dir="/tmp")
        self.addCleanup(shutil.rmtree, above)
        path = os.path.join(above, "admin.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(0)
            self.assertRaises(ConfigError, linesocket.prepare_place, path)
            with socket.socket(socket.AF_UNIX) as client:
                # A full backlog is somebody, too. The probe above may fill it already.
                client.setblocking(False)
                client.connect_ex(path)
                self.assertRaises(ConfigError, linesocket.prepare_place, path)
        linesocket.prepare_place(path)
        self.assertFalse(os.path.exists(path))
