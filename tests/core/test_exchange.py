"""Commands, results, origins and events have the shapes that deployed peers use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange, jsontext
from cortextx.core.exchange import Origin
from cortextx.core.jsontext import Decoder
from cortextx.errors import JsonShapeError, JsonSyntaxError

ORIGIN: Decoder[Origin] = Decoder(Origin)

EVENTS = [
    (
        exchange.RunAccepted("r1", "default", "run1"),
        b'{"type":"accepted","request_id":"r1","session":"default","run":"run1"}',
    ),
    (
        exchange.RunStarted("r1", "run1"),
        b'{"type":"started","request_id":"r1","run":"run1","model":null}',
    ),
    (
        exchange.Delta("r1", "run1", "t"),
        b'{"type":"delta","request_id":"r1","run":"run1","text":"t"}',
    ),
    (
        exchange.Message("r1", "run1", "assistant", "t"),
        b'{"type":"message","request_id":"r1","run":"run1","role":"assistant","text":"t"}',
    ),
    (
        exchange.ToolCall("r1", "run1", "k1", "ls", "requested"),
        b'{"type":"tool","request_id":"r1","run":"run1","call_id":"k1","name":"ls",'
        b'"state":"requested"}',
    ),
    (
        exchange.CommandIssued("r1", "run1", "c1", exchange.RequestInput("?")),
        b'{"type":"command","request_id":"r1","run":"run1","command_id":"c1",'
        b'"command":{"type":"request_input","prompt":"?"}}',
    ),
    (
        exchange.SessionStatus("r1", "default", "idle", None, 2**32 - 1),
        b'{"type":"status","request_id":"r1","session":"default","status":"idle","phase":null,'
        b'"step":4294967295}',
    ),
    (
        exchange.Failure("r1", code="EIO", message="m", retryable=False),
        b'{"type":"error","request_id":"r1","run":null,"code":"EIO","message":"m",'
        b'"retryable":false}',
    ),
    (
        exchange.RunDone("r1", "run1", "completed"),
        b'{"type":"done","request_id":"r1","run":"run1","status":"completed"}',
    ),
]
COMMANDS = [
    (exchange.RequestInput("?"), b'{"type":"request_input","prompt":"?"}'),
    (
        exchange.RequestApproval("sh", Raw(b'{"cmd": "ls"}')),
        b'{"type":"request_approval","tool":"sh","arguments":{"cmd": "ls"}}',
    ),
    (exchange.Notify("info", "t"), b'{"type":"notify","level":"info","text":"t"}'),
    (
        exchange.Invoke("open", Raw(b"null")),
        b'{"type":"invoke","name":"open","payload":null}',
    ),
]
RESULTS = [
    (exchange.Accepted(), b'{"type":"accepted"}'),
    (exchange.Rejected("no"), b'{"type":"rejected","reason":"no"}'),
    (exchange.Value(Raw(b"[1, 2]")), b'{"type":"value","payload":[1, 2]}'),
]


class ShapeTests(SynchronousTestCase):
    """Encoding and decoding stand side by side, and member order is the contract's."""

    def test_values_have_their_text_and_back(self) -> None:
        for pairs, decode in [
            (EVENTS, exchange.decode_event),
            (COMMANDS, exchange.decode_command),
            (RESULTS, exchange.decode_result),
        ]:
            for value, text in pairs:
                self.assertEqual(jsontext.encode(value), text)
                self.assertEqual(decode(text), value)

    def test_members_that_are_not_declared_are_ignored(self) -> None:
        for value, text in EVENTS:
            more = text[:-1] + b',"x_unknown":{"a":[1]}}'
            self.assertEqual(exchange.decode_event(more), value)

    def test_the_tag_may_come_last(self) -> None:
        event = exchange.decode_event(b'{"request_id":"r","run":"x","status":"ok","type":"done"}')
        self.assertEqual(event, exchange.RunDone("r", "x", "ok"))

    def test_a_missing_or_mistyped_member_is_refused(self) -> None:
        for text in [
            b'{"type":"delta","request_id":"r1","run":"run1"}',
            b'{"type":"delta","request_id":5,"run":"run1","text":"t"}',
            b'{"type":"delta","run":"run1","text":"t"}',
            b'{"type":"status","request_id":"r1","session":"s","status":"idle","step":true}',
            b'{"type":"status","request_id":"r1","session":"s","status":"i","step":4294967296}',
            b'{"type":"error","request_id":"r1","code":"EIO","message":"m","retryable":1}',
            b'{"type":"nope","request_id":"r1"}',
            b'{"request_id":"r1","run":"run1","status":"ok"}',
        ]:
            self.assertRaises(JsonShapeError, exchange.decode_event, text)

    def test_a_result_needs_what_its_type_says(self) -> None:
        for text in [b"{}", b"null", b'"accepted"', b'{"type":"rejected"}', b'{"type":"maybe"}']:
            self.assertRaises(JsonShapeError, exchange.decode_result, text)

    def test_a_choice_is_for_channels_only(self) -> None:
        text = b'{"type":"request_choice","question":"q","choices":[{"id":"a","label":"A"}]}'
        channel: Decoder[exchange.ChannelCommand] = Decoder(exchange.ChannelCommand)
        expected = exchange.RequestChoice("q", [exchange.Choice("a", "A")], False)
        self.assertEqual(channel.decode(text), expected)
        self.assertRaises(JsonShapeError, exchange.decode_command, text)

    def test_kept_text_is_checked_too(self) -> None:
        """An opaque value is refused where a strict decoder would refuse it (I40)."""
        for payload in (b'"\\ud800 and more"', b'"\xff"', b"[" * 101 + b"]" * 101):
            text = b'{"type":"invoke","name":"n","payload":%s}' % payload
            self.assertRaises(JsonSyntaxError, exchange.decode_command, text)
        text = b'{"type":"value","payload":1e400}'
        self.assertRaises(JsonShapeError, exchange.decode_result, text)


class IdentifierTests(SynchronousTestCase):
    def test_v2_counts_bytes_and_refuses_control_characters(self) -> None:
        """1 to 128 bytes of UTF-8, no C0, DEL or C1 (I2)."""
        for text in ("a", "a" * 128, "é" * 64, "a b", "\u200b", "\u2028", "../x"):
            self.assertTrue(exchange.is_identifier(text), repr(text))
        for text in ("", "a" * 129, "é" * 64 + "a", "a\x00b", "\n", "\x7f", "a\x85b", "\x9f"):
            self.assertFalse(exchange.is_identifier(text), repr(text))

    def test_v1_takes_twice_the_length_and_all_but_nul(self) -> None:
        """I25: such identifiers are served."""
        for text in ("a", "é" * 128, "a\nb", "\x7f"):
            self.assertTrue(exchange.is_v1_identifier(text), repr(text))
        for text in ("", "a" * 257, "é" * 128 + "a", "a\x00b"):
            self.assertFalse(exchange.is_v1_identifier(text), repr(text))

    def test_an_event_names_the_identifier_at_fault(self) -> None:
        text = b'{"type":"done","request_id":"r","run":"","status":"ok"}'
        error = self.assertRaises(JsonShapeError, exchange.decode_event, text)
        self.assertEqual(error.expected, "run of 1 to 256 bytes without NUL")

    @settings(max_examples=100)
    @given(st.text(max_size=140))
    def test_what_v2_takes_v1_takes(self, text: str) -> None:
        if exchange.is_identifier(text):
            self.assertTrue(exchange.is_v1_identifier(text))


class OriginTests(SynchronousTestCase):
    def test_only_the_transport_is_required(self) -> None:
        self.assertEqual(ORIGIN.decode(b'{"transport":"web"}'), Origin("web"))
        for text in (b"{}", b'{"transport":""}', b'{"transport":null}', b"null"):
            self.assertRaises(JsonShapeError, ORIGIN.decode, text)

    def test_metadata_is_bounded_text(self) -> None:
        fits = b'{"transport":"x","metadata":{"k":"%s"}}' % (b"a" * 65_535)
        self.assertEqual(len(ORIGIN.decode(fits).metadata["k"]), 65_535)
        self.assertRaises(JsonShapeError, ORIGIN.decode, fits.replace(b'"k"', b'"kk"'))
        for metadata in (b"null", b'{"a":1}', b"[]"):
            text = b'{"transport":"x","metadata":%s}' % metadata
            self.assertRaises(JsonShapeError, ORIGIN.decode, text)

    def test_v2_is_strict_about_the_parts_and_not_the_metadata(self) -> None:
        """I2 holds for the five parts; v1 peers may send longer ones."""
        self.assertTrue(Origin("x", "tty1", "uid:1", metadata={"": "a\x00" * 200}).strict)
        for wrong in ("", "a" * 129, "a\x00b", "a\x85b"):
            self.assertFalse(Origin("x", identity=wrong).strict)
            self.assertFalse(Origin("x", thread=wrong).strict)
