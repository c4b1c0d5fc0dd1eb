"""The odd forms of deployed peers mean the same as the plain ones (I42)."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonShapeError, JsonSyntaxError

Mode = Literal["observe", "interact"]


class Attach(Struct):
    """A shape with words out of a list, and with another shape in it."""

    modes: tuple[Mode, ...]
    mode: Mode | None = None
    origin: x.Origin | None = None


class TolerantDecoderTests(SynchronousTestCase):
    def test_an_array_in_field_order_is_the_object(self) -> None:
        events: TolerantDecoder[x.Event] = TolerantDecoder(x.Event)
        self.assertEqual(
            events.decode(b'["status","r1","default","idle",null,0]'),
            x.SessionStatus("r1", "default", "idle", None, 0),
        )
        self.assertEqual(
            events.decode(b'["error","r1",null,"EIO","m",false]'),
            x.Failure("r1", code="EIO", message="m", retryable=False),
        )
        results: TolerantDecoder[x.Result] = TolerantDecoder(x.Result)
        self.assertEqual(results.decode(b'["accepted"]'), x.Accepted())
        self.assertEqual(results.decode(b'["value",{"a":1}]'), x.Value(Raw(b'{"a":1}')))

    def test_only_trailing_fields_with_a_value_of_their_own_may_be_left_out(self) -> None:
        origins: TolerantDecoder[x.Origin] = TolerantDecoder(x.Origin)
        self.assertEqual(origins.decode(b'["stdio",null,null,null,null]'), x.Origin("stdio"))
        for text in (b"[]", b'["x",null,null,null,null,{},1]', b'[["x"]]', b"[5]", b'["x",null]'):
            self.assertRaises(JsonShapeError, origins.decode, text)

    def test_a_word_may_be_an_object_of_one_key(self) -> None:
        attaches: TolerantDecoder[Attach] = TolerantDecoder(Attach)
        text = (
            b'{"modes":[{"observe":null},"interact"],"mode":{"interact":null},'
            b'"origin":["x",null,null,null,null]}'
        )
        self.assertEqual(
            attaches.decode(text), Attach(("observe", "interact"), "interact", x.Origin("x"))
        )
        for word in (b'{"interact":1}', b'{"other":null}', b'{"interact":null,"observe":null}'):
            self.assertRaises(JsonShapeError, attaches.decode, b'{"modes":[],"mode":%s}' % word)

    def test_plain_text_is_decoded_plainly_and_keeps_its_kept_text(self) -> None:
        results: TolerantDecoder[x.Result] = TolerantDecoder(x.Result)
        value = results.decode(b'{"type":"value","payload":{"a": 1.50}}')
        self.assertEqual(value, x.Value(Raw(b'{"a": 1.50}')))

    def test_bad_text_stays_bad(self) -> None:
        results: TolerantDecoder[x.Result] = TolerantDecoder(x.Result)
        self.assertRaises(JsonSyntaxError, results.decode, b'["accepted"')
        for text in (b'"accepted"', b"null", b'["maybe"]', b'["rejected"]'):
            self.assertRaises(JsonShapeError, results.decode, text)
