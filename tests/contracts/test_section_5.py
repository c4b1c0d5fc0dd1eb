"""§5: every error code and close code: its number, its name, and what brings it about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import capturedLogs

from cortextx.errors import StoreFull
from cortextx.fleet.contract import CloseCode, Code
from cortextx.interfaces.fleet import Appended, LogBatch
from cortextx.stores.memory import MemoryStore
from tests import wire
from tests.contracts import examples, schemas
from tests.contracts.served import HOST_ID, ContractCase
from tests.wire import BINARY, CLOSE, TEXT, frame


class Trouble(MemoryStore):
    """A store that fails or waits when it is told to."""

    fault: Exception | None = None
    waiting: list[tuple[Deferred[Any], Sequence[LogBatch]]] | None = None

    def append(self, batches: Sequence[LogBatch]) -> Deferred[list[Appended]]:
        if self.fault is not None:
            return fail(self.fault)
        if self.waiting is not None:
            done: Deferred[list[Appended]] = Deferred()
            self.waiting.append((done, batches))
            return done
        return super().append(batches)

    def go_on(self) -> None:
        """Carry out what waits."""
        waiting, self.waiting = self.waiting or [], None
        for done, batches in waiting:
            super().append(batches).chainDeferred(done)


class Numbers(ContractCase):
    def test_s5_codes_and_names(self) -> None:
        """The codes are those of the table, with its names; none is used twice."""
        self.assertEqual({int(code): code.title for code in Code}, schemas.TITLES)

    def test_s5_close_codes(self) -> None:
        """The close codes are those of the table."""
        self.assertEqual({code.name: int(code) for code in CloseCode}, schemas.CLOSE_CODES)


class Codes(ContractCase):
    """What brings each code about; `ended` where the connection ends with it."""

    def first(self, payload: bytes, code: int, close: int) -> None:
        """A first message that is refused."""
        peer = self.socket()
        peer.asked[1] = "agent.hello"
        peer.text(payload)
        [error] = self.ended(peer, close)
        self.assertEqual(self.refusal(error.json), code)

    def hello(self, token: str, **changes: Any) -> bytes:
        return wire.json.dumps(wire.hello(token, **changes)).encode()

    def test_s5_32700(self) -> None:
        """ParseError: no JSON; a null id; the session lives once it is authenticated."""
        self.first(b"{", -32700, 4001)
        peer = self.joined()
        for payload in (b"{", b"{]", b'"\\ud800"', b"[" * 500):
            peer.text(payload)
            [answer] = peer.messages()
            self.assertEqual((answer["id"], self.refusal(answer)), (None, -32700), payload)

    def test_s5_bottomless_nesting_is_answered(self) -> None:
        """Arrays and objects as deep as a message can hold get an error, wherever they stand."""
        peer = self.joined()
        for depth in (101, 1_100, 100_000):
            for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
                entry = wire.json.dumps(examples.ENTRY | {"metadata": {"a": "@"}}).encode()
                for place in (
                    b"@",
                    b'{"jsonrpc":"2.0","id":5,"method":"logs.push","params":@}',
                    b'{"jsonrpc":"2.0","id":@,"method":"logs.push","params":{}}',
                    b'{"jsonrpc":"2.0","id":5,"method":"logs.push","params":'
                    b'{"seq_start":1,"entries":[%b]}}' % entry.replace(b'"@"', b"@"),
                ):
                    payload = place.replace(b"@", deep)
                    if len(payload) > 1_000_000:
                        continue
                    peer.asked[5] = "logs.push"
                    peer.text(payload)
                    codes = [self.refusal(m) for m in peer.messages()]
                    self.assertEqual(len(codes), 1)
                    self.assertIn(codes[0], (-32700, -32600, -32602), payload[:60])
        self.assertEqual(self.stored(), [])

    def test_s5_32600(self) -> None:
        """InvalidRequest: an array, another version of JSON-RPC, no method, an odd id."""
        self.first(b"[]", -32600, 4001)
        peer = self.joined()
        for message in (
            [], 5, "x", None, {}, {"jsonrpc": "2.0"}, {"method": "logs.push", "id": 1},
            {"jsonrpc": "1.0", "method": "logs.push", "id": 1}, {"jsonrpc": 2.0, "method": "x"},
            {"jsonrpc": "2.0", "id": 1, "method": 5}, {"jsonrpc": "2.0", "id": True, "method": "x"},
            {"jsonrpc": "2.0", "id": [1], "method": "logs.push"}, {"jsonrpc": "2.0", "id": 1},
        ):  # fmt: skip
            peer.say(message)
            self.assertEqual([self.refusal(m) for m in peer.messages()], [-32600], message)

    def test_s5_32601(self) -> None:
        """MethodNotFound: a method that is none of the agent's."""
        self.assertEqual(self.refusal(self.joined().ask("no.such", {})), -32601)

    def test_s5_32602(self) -> None:
        """InvalidParams: a shape that the schema does not have, with the field."""
        self.first(self.hello("x"), -32602, 4001)
        answer = self.joined().push(1, severity="loud")
        self.assertEqual(self.refusal(answer), -32602)
        self.assertIn("severity", answer["error"]["data"]["field"])

    def test_s5_32603(self) -> None:
        """InternalError: a store that fails; nothing of what it said is told."""
        self.store.__class__ = Trouble
        peer = self.joined()
        self.store.fault = RuntimeError("the password is x")  # type: ignore[attr-defined]
        with capturedLogs():
            answer = peer.push(1)
        self.flushLoggedErrors(RuntimeError)
        self.assertEqual(self.refusal(answer), -32603)
        self.assertNotIn("password", str(answer))

    def test_s5_32000(self) -> None:
        """AuthRequired: another message than the hello first; 4001."""
        self.first(
            wire.json.dumps(wire.request(1, "logs.push", examples.PUSH)).encode(), -32000, 4001
        )

    def test_s5_32001(self) -> None:
        """AuthFailed: no such token; 4001."""
        self.first(self.hello("x" * 43), -32001, 4001)

    def test_s5_32002(self) -> None:
        """TokenRevoked: a revoked host; 4002."""
        token = self.enrolled()
        self.result(self.fleet.revoke(HOST_ID))
        self.first(self.hello(token), -32002, 4002)

    def test_s5_32003(self) -> None:
        """AgentVersionUnsupported: another protocol version; 4001."""
        self.first(self.hello("x" * 43, protocol_version=2), -32003, 4001)

    def test_s5_32004(self) -> None:
        """UnknownHost: a push whose host has been forgotten (F5)."""
        peer = self.joined()
        self.successResultOf(self.store.forget(HOST_ID))
        self.assertEqual(self.refusal(peer.push(1)), -32004)

    def test_s5_32005(self) -> None:
        """TokenRotationRequired: the replaced token after its grace; 4001 (F7)."""
        token = self.enrolled()
        self.result(self.fleet.rotate(HOST_ID, False, None))
        self.greeted(token)
        self.clock.advance(301.0)
        self.first(self.hello(token), -32005, 4001)

    def test_s5_32008(self) -> None:
        """PayloadTooLarge: more than the cap of entries, before any other fault (F9)."""
        peer = self.joined()
        answer = peer.ask("logs.push", {"seq_start": "x", "entries": [5] * 1001, "more": 1})
        self.assertEqual(self.refusal(answer), -32008)

    def test_s5_32020_and_32007(self) -> None:
        """Backpressure where the queue is nearly full, BufferOverflow where it is full; both
        say how long to wait, and nothing of them is stored."""
        self.store.__class__ = Trouble
        peer = self.joined()
        self.store.waiting = []  # type: ignore[attr-defined]
        table = self.fleet.settings.server
        self.assertEqual(self.fleet.gauge.reserve(table.ingest_soft_bytes - 100), "ok")
        answer = peer.push(1)
        self.assertEqual(self.refusal(answer), -32020)
        self.assertGreaterEqual(answer["error"]["data"]["retry_after_ms"], 0)
        self.fleet.gauge.release(table.ingest_soft_bytes - 100)
        others = table.ingest_hard_bytes - 100
        self.assertEqual(self.fleet.gauge.reserve(others, beyond_soft=True), "ok")
        answer = peer.push(1)
        self.assertEqual(self.refusal(answer), -32007)
        self.store.go_on()  # type: ignore[attr-defined]
        self.assertEqual(self.stored(), [])

    def test_s5_32020_a_full_disk(self) -> None:
        """A full disk is Backpressure too, and the push is taken once there is room."""
        self.store.__class__ = Trouble
        peer = self.joined()
        self.store.fault = StoreFull("no space")  # type: ignore[attr-defined]
        answer = peer.push(1)
        self.assertEqual(self.refusal(answer), -32020)
        self.assertGreaterEqual(answer["error"]["data"]["retry_after_ms"], 1000)
        self.store.fault = None  # type: ignore[attr-defined]
        self.assertEqual(peer.push(1)["result"]["up_to_seq"], 1)


class Closes(ContractCase):
    def test_s5_1000(self) -> None:
        """A normal end: the host closes, and is answered with 1000."""
        peer = self.joined()
        peer.send(frame(CLOSE, b"\x03\xe8final_seq=0"))
        self.ended(peer, 1000)

    def test_s5_1003(self) -> None:
        """A binary frame."""
        peer = self.joined()
        peer.send(frame(BINARY, b"x"))
        self.ended(peer, 1003)

    def test_s5_1007(self) -> None:
        """Text that is not UTF-8 (F9)."""
        peer = self.joined()
        peer.send(frame(TEXT, b"\xff"))
        self.ended(peer, 1007)

    def test_s5_1009(self) -> None:
        """A message beyond 1 MiB."""
        peer = self.joined()
        peer.send(frame(TEXT, b" " * 1_048_577))
        self.ended(peer, 1009)

    def test_s5_1011(self) -> None:
        """Missed pongs; a fault of the server itself too."""
        peer = self.joined()
        for _ in range(3):
            self.clock.advance(20.0)
        peer.frames()
        self.clock.advance(20.0)
        self.ended(peer, 1011)

    def test_s5_4000(self) -> None:
        """No hello in five seconds."""
        peer = self.socket()
        self.clock.advance(5.0)
        self.ended(peer, 4000)

    def test_s5_4001_and_4002_are_codes_with_their_errors(self) -> None:
        """4001 goes with every refused hello but -32002's, which has 4002."""
        token = self.enrolled()
        peer = self.socket()
        peer.say(wire.hello("x" * 43))
        self.ended(peer, 4001)
        self.result(self.fleet.revoke(HOST_ID))
        peer = self.socket()
        peer.say(wire.hello(token))
        self.ended(peer, 4002)
