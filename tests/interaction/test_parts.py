"""Nothing is too long to say: it is said in parts that fit (I33, I40)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.jsontext import encode
from cortextx.errors import LocalProtocolError
from cortextx.interaction import data, v1, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.parts import DATA_BYTES, DATA_BYTES_BOTH, split, split_text

WIDEST = Correlation(*['"' * 128] * 4)
"""Ids that take the most bytes of a frame."""

awkward = st.text(st.sampled_from('a"\\\n\x00\x1f/é€😀u0'), max_size=200)


class SplitTextTests(SynchronousTestCase):
    @settings(max_examples=200)
    @given(awkward, st.integers(6, 40))
    def test_pieces_fit_are_whole_characters_and_make_up_the_text(
        self, text: str, room: int
    ) -> None:
        pieces = split_text(text, room)
        self.assertEqual("".join(pieces), text)
        for piece in pieces:
            self.assertLessEqual(len(encode(piece)) - 2, room)
        # No piece is cut more than the longest character before its end.
        for piece in pieces[:-1]:
            self.assertGreater(len(encode(piece)) - 2, room - 6)

    def test_an_empty_text_is_one_piece_and_no_room_is_our_fault(self) -> None:
        self.assertEqual(split_text("", 6), [""])
        self.assertRaises(LocalProtocolError, split_text, "a", 5)


class SplitTests(SynchronousTestCase):
    def test_what_fits_is_one_event_without_marks(self) -> None:
        for what in (data.Delta("t"), data.Message("assistant", "x" * 200_000)):
            self.assertEqual(split(what), [what])

    def test_each_part_fits_a_v2_frame_whatever_its_ids_and_characters(self) -> None:
        for char in ("a", "é", "\x00", "\\", "😀"):
            text = char * (700_000 // len(char.encode()))
            parts = split(data.Message("assistant", text))
            self.assertEqual([part.part for part in parts], list(range(1, len(parts) + 1)))
            self.assertEqual({part.parts for part in parts}, {len(parts)})
            self.assertEqual("".join(part.text for part in parts), text)
            for part in parts:
                line = v2.encode(data.build(part, WIDEST, session_seq=v2.MAX_SEQ))
                self.assertLessEqual(len(line), MAX_FRAME_BYTES)
                self.assertGreater(len(encode(parts[0])), DATA_BYTES - 100)

    def test_each_part_fits_a_v1_line_of_both_forms(self) -> None:
        for char in ("a", "\x00"):
            for part in split(data.Message("assistant", char * 300_000), DATA_BYTES_BOTH):
                event = x.Message("\x01" * 256, "\x01" * 256, part.role, part.text)
                line = v1.encode_event(event, "both", v2.MAX_SEQ)
                self.assertLessEqual(len(line), MAX_FRAME_BYTES)

    def test_a_role_that_leaves_no_room_is_our_fault(self) -> None:
        self.assertRaises(LocalProtocolError, split, data.Message("r" * MAX_FRAME_BYTES, "t"))
