"""What a runtime puts out decodes once it is mended, and says so (I40)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import jsontext
from cortextx.core.mending import mend_text, mend_value


class MendTextTests(SynchronousTestCase):
    def test_good_text_is_left_alone(self) -> None:
        for text in ("", "plain", "é", "\U0001f600", "\ufffd"):
            self.assertEqual(mend_text(text), (text, False))

    def test_lone_surrogates_become_replacement_characters(self) -> None:
        self.assertEqual(mend_text("a\ud800b\udfff"), ("a\ufffdb\ufffd", True))
        self.assertEqual(mend_text("\udc00\ud800"), ("\ufffd\ufffd", True))

    def test_a_pair_becomes_its_character_and_is_no_fault(self) -> None:
        self.assertEqual(mend_text("\ud83d\ude00"), ("\U0001f600", False))
        self.assertEqual(mend_text("\ud83d\ud83d\ude00"), ("\ufffd\U0001f600", True))

    @settings(max_examples=100)
    @given(st.lists(st.sampled_from(["a", "é", "\ud800", "\udbff", "\udc00", "\udfff"])))
    def test_whatever_comes_out_can_be_sent(self, parts: list[str]) -> None:
        jsontext.encode(mend_text("".join(parts))[0])


class MendValueTests(SynchronousTestCase):
    def test_good_json_is_left_as_it_was_written(self) -> None:
        for text in (b' {"a": 1.50}', b'"\\ud83d\\ude00"', b'"\\\\ud800"'):
            self.assertEqual(mend_value(text), (Raw(text), False))

    def test_lone_surrogates_and_bad_bytes_are_replaced_where_they_stand(self) -> None:
        for text, value in [
            (b'{"a":"x\\ud800y","b":1}', {"a": "x\ufffdy", "b": 1}),
            (b'["\\ud83d\\ud83d\\ude00"]', ["\ufffd\U0001f600"]),
            (b'["\\\\\\udc00"]', ["\\\ufffd"]),
            (b'["\xff"]', ["\ufffd"]),
        ]:
            mended, changed = mend_value(text)
            self.assertEqual(jsontext.decode(mended), value)
            self.assertTrue(changed)

    def test_what_cannot_be_mended_becomes_a_string(self) -> None:
        for text in (b"1e400", b"[" * 101 + b"]" * 101, b"[" * 50_000, b"no json", b""):
            mended, changed = mend_value(text)
            self.assertEqual(jsontext.decode(mended), text.decode())
            self.assertTrue(changed)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from(list(b'{}[]",:\\ud8c0eE19.-n \xff\xed\xa0\x80'))).map(bytes))
    def test_whatever_comes_out_decodes(self, text: bytes) -> None:
        jsontext.check_value(mend_value(text)[0])
