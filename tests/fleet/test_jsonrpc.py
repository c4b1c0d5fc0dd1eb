"""Envelopes of the fleet protocol: what is accepted, and which code a fault gets (F9, F30)."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import JsonShapeError
from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import Code, Heartbeat
from cortextx.fleet.jsonrpc import EnvelopeError, Notification, Request, Response, parse


class ParseTests(SynchronousTestCase):
    def refused(self, payload: bytes) -> tuple[Code, object]:
        fault = self.assertRaises(EnvelopeError, parse, payload)
        return fault.code, fault.id

    def test_a_request_keeps_its_params_as_text(self) -> None:
        message = parse(b'{"jsonrpc":"2.0","id":7,"method":"logs.push","params":{"a": [1]}}')
        assert isinstance(message, Request)
        self.assertEqual((message.id, message.method), (7, "logs.push"))
        self.assertEqual(bytes(message.params), b'{"a": [1]}')

    def test_an_id_is_echoed_as_it_came(self) -> None:
        """F30: a string or a number, whatever its size."""
        for text in (b'"a\\u0000b"', b'""', b"0", b"-3", b"1.5", b"123456789012345678901234567890"):
            message = parse(b'{"jsonrpc":"2.0","id":%s,"method":"m"}' % text)
            assert isinstance(message, Request)
            answer = json.loads(jsonrpc.result(message.id, {}))
            self.assertEqual(answer["id"], json.loads(text))

    def test_without_an_id_it_is_a_notification(self) -> None:
        message = parse(b'{"jsonrpc":"2.0","method":"agent.heartbeat","params":{}}')
        assert isinstance(message, Notification)
        self.assertEqual(message.method, "agent.heartbeat")

    def test_members_that_nobody_named_are_ignored(self) -> None:
        self.assertIsInstance(parse(b'{"jsonrpc":"2.0","id":1,"method":"m","x":{"y":1}}'), Request)

    def test_responses(self) -> None:
        good = parse(b'{"jsonrpc":"2.0","id":1,"result":null}')
        assert isinstance(good, Response)
        self.assertEqual((good.id, bytes(good.result or b""), good.error), (1, b"null", None))
        bad = parse(b'{"jsonrpc":"2.0","id":"x","error":{"code":-32010,"message":"m","data":[]}}')
        assert isinstance(bad, Response) and bad.error is not None
        self.assertEqual((bad.id, bad.error.code, bytes(bad.error.data)), ("x", -32010, b"[]"))
        lost = parse(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"ParseError"}}')
        assert isinstance(lost, Response) and lost.error is not None
        self.assertEqual((lost.id, lost.error.code), (None, -32700))

    def test_what_is_not_json_is_a_parse_error_without_an_id(self) -> None:
        """F9, F16: truncated, trailing, NaN, lone surrogates, bad UTF-8, a BOM, deep nesting."""
        for payload in (
            b"",
            b"{",
            b'{"jsonrpc":"2.0","id":1,"method":"m"} x',
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}',
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\ud800"}}',
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xff"}}',
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\x00"}}',
            b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}',
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":'
            + b"[" * 20_000
            + b"]" * 20_000
            + b"}",
            b'{"jsonrpc":"1.0","id":1,"method":"m","params":{]}',
            b"[1,2",
        ):
            self.assertEqual(self.refused(payload), (Code.PARSE_ERROR, None), payload[:60])

    def test_a_wrong_envelope_is_an_invalid_request(self) -> None:
        """F9, F30: with the id where one can be told."""
        for payload, id in (
            (b"[]", None),
            (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', None),
            (b"5", None),
            (b"null", None),
            (b'"x"', None),
            (b"{}", None),
            (b'{"id":1,"method":"m"}', 1),
            (b'{"jsonrpc":2.0,"id":1,"method":"m"}', 1),
            (b'{"jsonrpc":"1.0","id":"q","method":"m"}', "q"),
            (b'{"jsonrpc":"2.0","id":null,"method":"m"}', None),
            (b'{"jsonrpc":"2.0","id":true,"method":"m"}', None),
            (b'{"jsonrpc":"2.0","id":[1],"method":"m"}', None),
            (b'{"jsonrpc":"2.0","id":1e400,"method":"m"}', None),
            (b'{"jsonrpc":"2.0","id":1,"method":5}', 1),
            (b'{"jsonrpc":"2.0","id":1}', 1),
            (b'{"jsonrpc":"2.0"}', None),
            (b'{"jsonrpc":"2.0","id":1,"method":"m","result":1}', 1),
            (b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}', 1),
            (b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}', 1),
            (b'{"jsonrpc":"2.0","id":null,"result":1}', None),
            (b'{"jsonrpc":"2.0","error":{"code":1,"message":""}}', None),
        ):
            self.assertEqual(self.refused(payload), (Code.INVALID_REQUEST, id), payload)

    def test_a_wrong_envelope_tells_its_method_where_it_can(self) -> None:
        fault = self.assertRaises(
            EnvelopeError, parse, b'{"jsonrpc":"2.0","id":null,"method":"logs.push"}'
        )
        self.assertEqual(fault.method, "logs.push")

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=60))
    def test_any_bytes_give_a_message_or_an_envelope_error(self, noise: bytes) -> None:
        for payload in (noise, b'{"jsonrpc":"2.0","id":' + noise + b',"method":"m"}'):
            with contextlib.suppress(EnvelopeError):
                parse(payload)


class EncodeTests(SynchronousTestCase):
    def test_what_is_encoded_is_parsed_again(self) -> None:
        sent = parse(jsonrpc.request("a", "m", Raw(b'{"x":1}')))
        assert isinstance(sent, Request)
        self.assertEqual((sent.id, bytes(sent.params)), ("a", b'{"x":1}'))
        self.assertIsInstance(parse(jsonrpc.notification("n", {})), Notification)

    def test_text_is_not_ascii_escaped(self) -> None:
        self.assertIn("ü".encode(), jsonrpc.result(1, {"a": "ü"}))

    def test_an_error_says_the_codes_title_and_nothing_else(self) -> None:
        self.assertEqual(
            json.loads(jsonrpc.error(None, Code.BACKPRESSURE)),
            {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32020, "message": "Backpressure"},
            },
        )


class DecodeParamsTests(SynchronousTestCase):
    def test_a_fault_names_its_field(self) -> None:
        raw = Raw(b'{"ts":"2026-01-01T00:00:00Z","queue_depth":-1,"buffer_bytes":0}')
        fault = self.assertRaises(JsonShapeError, jsonrpc.decode_params, raw, Heartbeat)
        self.assertEqual(fault.field, "$.queue_depth")

    def test_missing_params_are_a_fault_of_shape(self) -> None:
        self.assertRaises(JsonShapeError, jsonrpc.decode_params, jsonrpc.NO_PARAMS, Heartbeat)

    def test_no_secret_shows_in_a_repr(self) -> None:
        """F23."""
        message = parse(b'{"jsonrpc":"2.0","id":1,"method":"agent.hello","params":{"token":"s3"}}')
        self.assertNotIn("s3", repr(message))
