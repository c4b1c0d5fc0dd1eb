"""The JSON border lets in what is declared, and says what is wrong without repeating it."""

from __future__ import annotations

import gc
import json
import sys
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import jsontext
from cortextx.core.jsontext import Decoder
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError, LocalProtocolError


class Item(Struct, forbid_unknown_fields=True):
    """An entry as on the wire, small."""

    ts: Annotated[datetime, Meta(tz=True)] | None = None
    level: Literal["low", "high"] = "low"
    count: Annotated[int, Meta(ge=0, le=10)] = 0
    note: Annotated[str, Meta(max_length=3)] | None = None
    ratio: float = 0.0
    kept: Raw = Raw(b"null")


class Batch(Struct):
    """A frame of entries; open to further members."""

    entries: list[Item]
    labels: dict[str, int] = {}


DECODER: Decoder[Batch] = Decoder(Batch)


class ShapeErrorTests(SynchronousTestCase):
    """Each fault of shape has the path of the field and its expectation in words."""

    def check(self, text: str, field: str, expected: str) -> None:
        error = self.assertRaises(JsonShapeError, DECODER.decode, text.encode())
        self.assertEqual((error.field, error.expected), (field, expected))

    def test_the_path_leads_to_the_value(self) -> None:
        entries = '{"ts":"2026-01-01T00:00:00Z"},' * 3
        self.check(
            '{"entries":[' + entries + '{"ts":"yesterday"}]}',
            "$.entries[3].ts",
            "an RFC 3339 date-time",
        )

    def test_expectations_are_words(self) -> None:
        for member, expected in [
            ('"ts":"2026-01-01T00:00:00"', "an RFC 3339 date-time with an offset"),
            ('"ts":5', "an RFC 3339 date-time or null"),
            ('"level":5', "a string"),
            ('"count":"1"', "an integer"),
            ('"count":1.5', "an integer"),
            ('"count":11', "an integer <= 10"),
            ('"note":"long"', "a string of length <= 3"),
            ('"note":[]', "a string or null"),
            ('"ratio":true', "a number"),
            ('"ratio":1e400', "a number in range"),
        ]:
            field = member.split(":")[0].strip('"')
            self.check('{"entries":[{' + member + "}]}", f"$.entries[0].{field}", expected)

    def test_a_missing_member_is_named(self) -> None:
        self.check("{}", "$.entries", "a value (the member is required)")

    def test_the_wrong_kind_of_top_level_value_is_at_the_root(self) -> None:
        self.check("[]", "$", "an object")

    def test_a_members_name_in_an_open_object_is_not_repeated(self) -> None:
        self.check('{"entries":[],"labels":{"secret":"x"}}', "$.labels[...]", "an integer")

    def test_the_peers_words_are_never_repeated(self) -> None:
        """Unknown names and wrong values of a peer stay out of errors (F23)."""
        for member in ['"level":"s3cret"', '"s3cret":1', '"ts":"s3cret"', '"note":"s3cret"']:
            text = '{"entries":[{' + member + "}]}"
            error = self.assertRaises(JsonShapeError, DECODER.decode, text.encode())
            self.assertNotIn("s3cret", str(error))
            self.assertTrue(error.field.startswith("$.entries[0]"), error.field)
            self.assertIsNone(error.__cause__)
            self.assertTrue(error.__suppress_context__)

    def test_a_name_that_looks_like_a_path_is_bounded(self) -> None:
        name = "x` - at `$." + "a" * 10_000
        text = json.dumps({"entries": [{name: 1}]}).encode()
        error = self.assertRaises(JsonShapeError, DECODER.decode, text)
        self.assertLess(len(str(error)), 300)

    def test_a_check_of_ours_speaks_for_itself(self) -> None:
        class Even(Struct):
            value: int

            def __post_init__(self) -> None:
                if self.value % 2:
                    raise ValueError("expected an even integer")

        error = self.assertRaises(
            JsonShapeError, Decoder(list[Even]).decode, b'[{"value":2},{"value":3}]'
        )
        self.assertEqual((error.field, error.expected), ("$[1]", "an even integer"))


BAD_TEXTS = [
    b"",
    b"  ",
    b"{",
    b"nul",
    b"{} x",
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"[NaN]",
    b"01",
    b"1.",
    b"+1",
    b"'a'",
    b'{"a":1,}',
    b'"\x00"',
    b'"\n"',
    b'"\\x41"',
]
BAD_UNICODE = [
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\\ud800"',
    b'"\\udc00 and more text"',
    b'"\\ud800\\u0041 and more text"',
    b'"\\ud83d\\ud83d\\ude00 and more"',
    b'{"\\ud800 and more text":1}',
]


class SyntaxErrorTests(SynchronousTestCase):
    def test_what_is_not_json_is_a_syntax_error(self) -> None:
        for text in BAD_TEXTS + BAD_UNICODE:
            self.assertRaises(JsonSyntaxError, jsontext.decode, text)

    def test_bad_unicode_is_found_wherever_it_stands(self) -> None:
        """In kept text, in skipped members and in names as well as in fields (F16)."""
        for text in BAD_UNICODE:
            for frame in (
                b'{"entries":[{"note":%s}]}',
                b'{"entries":[{"kept":%s}]}',
                b'{"entries":[{"kept":[{"a":%s}]}]}',
                b'{"entries":[],"ignored":%s}',
                b'{"entries":[],"ignored":{"a":[%s]}}',
            ):
                self.assertRaises(JsonSyntaxError, DECODER.decode, frame % text)
        self.assertRaises(JsonSyntaxError, DECODER.decode, b'{"entries":[],"\xff":1}')

    def test_a_whole_pair_of_surrogates_is_a_character(self) -> None:
        self.assertEqual(jsontext.decode(b'"\\ud83d\\ude00"'), "\U0001f600")

    def test_syntax_comes_before_shape(self) -> None:
        """A text with both faults is malformed, also where the shape's comes first (F9)."""
        for tail in (b"", b"]}x", b',{"a":NaN}]}', b',"\\ud800 and more text"]}'):
            self.assertRaises(JsonSyntaxError, DECODER.decode, b'{"entries":[5' + tail)
        self.assertRaises(JsonShapeError, DECODER.decode, b'{"entries":[5]}')

    def test_deep_nesting_is_an_error_and_no_crash(self) -> None:
        # Python 3.13 lets native code go 10,000 deep, where 3.11 stops at 1,000.
        for levels in (20_000, 100_000):
            for text in (b"[" * levels, b"[" * levels + b"]" * levels, b'{"a":' * levels):
                self.assertRaises(JsonSyntaxError, jsontext.decode, text)
                self.assertRaises(JsonSyntaxError, DECODER.decode, b'{"entries":' + text)
                self.assertRaises(JsonSyntaxError, DECODER.decode, b'{"x":' + text)

    def test_numbers_beyond_range_are_faults_of_shape(self) -> None:
        for text in (b"1e400", b"-1e400", b"1" * 5000):
            error = self.assertRaises(JsonShapeError, jsontext.decode, text)
            self.assertEqual(error.expected, "a number in range")

    def test_the_position_is_given_where_it_is_known(self) -> None:
        error = self.assertRaises(JsonSyntaxError, jsontext.decode, b'{"a" 1}')
        self.assertIn("byte 5", error.expected)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.sampled_from(list(b'{}[]",:\\u0d8-1eE.tn \xff\xc3\xa9\x00'))).map(bytes))
    def test_no_other_error_ever_leaves(self, text: bytes) -> None:
        for decoder in (DECODER, Decoder(Raw), Decoder()):
            try:
                decoder.decode(text)
            except JsonError as error:
                self.assertTrue(error.field.startswith("$"))


class DecodeTests(SynchronousTestCase):
    def test_of_repeated_names_the_last_wins(self) -> None:
        self.assertEqual(jsontext.decode(b'{"a":1,"a":2}'), {"a": 2})
        frame = b'{"entries":[{"count":1,"count":2}]}'
        self.assertEqual(DECODER.decode(frame).entries[0].count, 2)

    def test_bytes_views_and_kept_values_all_decode(self) -> None:
        for data in (b'["\xc3\xa9"]', memoryview(b'["\xc3\xa9"]'), Raw(b'["\xc3\xa9"]')):
            self.assertEqual(jsontext.decode(data, list[str]), ["é"])
            self.assertEqual(jsontext.decode_text(data), '["é"]')

    def test_kept_text_is_kept_as_it_was(self) -> None:
        frame = b'{"entries":[{"kept": {"b":1.50, "a" : 1e2}}]}'
        self.assertEqual(bytes(DECODER.decode(frame).entries[0].kept), b'{"b":1.50, "a" : 1e2}')

    def test_the_hot_path_runs_no_python_for_an_entry(self) -> None:
        """A frame of 1000 entries calls as many Python functions as one of one."""

        def calls(count: int) -> int:
            frame = b'{"entries":[' + b",".join([b'{"count":1,"kept":{"a":1}}'] * count) + b"]}"
            seen = 0

            def profile(frame: object, event: str, arg: object) -> None:
                nonlocal seen
                seen += event in ("call", "c_call")

            previous = sys.getprofile()
            gc.disable()  # a collection may call back, whatever is measured
            sys.setprofile(profile)
            try:
                DECODER.decode(frame)
            finally:
                sys.setprofile(previous)
                gc.enable()
            return seen

        self.assertEqual(calls(1000), calls(1))

    @settings(max_examples=100, deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        )
    )
    def test_what_is_encoded_decodes_to_itself(self, value: Any) -> None:
        if value in (float("inf"), float("-inf")) or "Infinity" in json.dumps(value):
            return
        self.assertEqual(jsontext.decode(jsontext.encode(value)), value)


class ConvertTests(SynchronousTestCase):
    def test_values_are_checked_as_decoded_ones_are(self) -> None:
        """What is parsed already gets a type, or the same error with the path of its fault."""
        self.assertEqual(jsontext.convert({"a": ["1"]}, dict[str, list[str]]), {"a": ["1"]})
        error = self.assertRaises(
            JsonShapeError, jsontext.convert, {"a": [1]}, dict[str, list[str]]
        )
        self.assertEqual(error.expected, "a string")


class EncodeTests(SynchronousTestCase):
    def test_text_goes_out_as_utf8(self) -> None:
        self.assertEqual(jsontext.encode({"a": "é"}), '{"a":"é"}'.encode())

    def test_what_json_cannot_say_is_our_fault(self) -> None:
        deep: list[Any] = []
        for _ in range(20_000):
            deep = [deep]
        for value in ("\ud800", {"\ud800": 1}, object(), deep):
            error = self.assertRaises(LocalProtocolError, jsontext.encode, value)
            self.assertNotIn("\ud800", str(error))
        while deep:
            deep = deep[0]


class KeptValueTests(SynchronousTestCase):
    def test_brackets_in_a_string_are_no_nesting(self) -> None:
        """A string full of brackets has no depth, alone or in an object."""
        for text in (b'"' + b"[" * 500 + b'"', b'{"a":"' + b"]{" * 500 + b'"}'):
            jsontext.check_value(text)

    """What is kept as text is checked as strictly as what is decoded."""

    def test_an_object_passes_and_nothing_else(self) -> None:
        jsontext.check_object(Raw(b' {"a":[1]} '))
        for text in (b"[]", b"null", b'"{}"', b"1"):
            jsontext.check_value(Raw(text))
            self.assertRaises(JsonShapeError, jsontext.check_object, Raw(text))

    def test_bad_text_is_refused(self) -> None:
        for text in BAD_TEXTS + BAD_UNICODE:
            self.assertRaises(JsonSyntaxError, jsontext.check_value, text)
            self.assertRaises(JsonSyntaxError, jsontext.check_object, b'{"a":%s}' % text)

    def test_numbers_out_of_range_are_refused(self) -> None:
        self.assertRaises(JsonShapeError, jsontext.check_object, Raw(b'{"a":1e400}'))

    def test_a_hundred_levels_pass_and_one_more_does_not(self) -> None:
        """Brackets inside strings, and many values side by side, are no depth (I40)."""
        wide = b",".join([b'{"a":["[[\\"{"]}'] * 200)
        for fill in (b"1", b'"' + b"[" * 300 + b'"', b'"\\"[[[["'):
            deepest = b'{"a":[' * 50 + fill + b"]}" * 50
            jsontext.check_value(deepest)
            self.assertRaises(JsonSyntaxError, jsontext.check_value, b"[%s]" % deepest)
        jsontext.check_value(b"[%s]" % wide)
        self.assertRaises(JsonSyntaxError, jsontext.check_value, b"[" * 99 + wide + b"]" * 99)
        jsontext.check_value(b"[" * 98 + wide + b"]" * 98)

    @settings(max_examples=100, deadline=None)
    @given(
        st.recursive(
            st.integers(0, 9) | st.text(alphabet='[]{}"\\a', max_size=5),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=4)
            ),
            max_leaves=30,
        ),
        st.integers(1, 6),
    )
    @example("{" * 200, 1)
    def test_depth_is_that_of_the_value(self, value: Any, limit: int) -> None:
        def depth(value: Any) -> int:
            if isinstance(value, dict):
                value = list(value.values())
            return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

        text = msgspec.json.encode(value)
        if depth(value) > limit:
            self.assertRaises(JsonSyntaxError, jsontext.check_depth, text, limit)
        else:
            jsontext.check_depth(text, limit)
