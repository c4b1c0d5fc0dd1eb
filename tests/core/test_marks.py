"""What a host says of itself, read from the metadata of its own entries (F37)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.marks import Lost, SourceGap, read_mark, split
from cortextx.fleet.agent import reports
from cortextx.fleet.agent.buffer_state import Loss

RANGES = st.tuples(st.integers(1, 60), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1]))


class ReadingTests(SynchronousTestCase):
    def test_what_an_agent_reports_is_understood(self) -> None:
        """The two sides agree on the form, though neither imports the other."""
        bodies, _ = reports.losses_reported([Loss(1, 3, 9, 7, "evicted", "full")], 0)
        start = bodies[0].index(b'"metadata":') + len(b'"metadata":')
        self.assertEqual(read_mark(bodies[0][start:-1]), Lost(3, 9, "evicted", "full"))

    def test_a_gap_of_a_source_has_no_seqs(self) -> None:
        mark = read_mark('{"cortextx":{"gap":{"source":"file:/a","unread_bytes":"12"}}}')
        assert isinstance(mark, SourceGap)
        self.assertEqual((mark.source, mark.detail), ("file:/a", "12 bytes unread"))

    def test_a_gap_says_why_and_how_much(self) -> None:
        """What an agent reports of a source is understood: its reason and what is known."""
        body = reports.gap_reported(
            "custom:dev", "kernel_dropped", 0, count=3, unread_bytes=12, detail="full queue"
        )
        mark = read_mark(body[body.index(b'"metadata":') + 11 : -1])
        assert isinstance(mark, SourceGap)
        self.assertEqual((mark.source, mark.reason), ("custom:dev", "kernel_dropped"))
        self.assertEqual(mark.detail, "12 bytes unread, 3 entries, full queue")
        body = reports.limited_reported("noisy", 9, 0)
        mark = read_mark(body[body.index(b'"metadata":') + 11 : -1])
        assert isinstance(mark, SourceGap)
        self.assertEqual((mark.source, mark.reason, mark.count), ("rule:noisy", "rate_limited", 9))

    def test_anything_else_says_nothing(self) -> None:
        lost = '{"cortextx":{"lost":%s}}'
        odd: list[Any] = [None, "", b"", "{}", "null", "[]", "{", b"\xff", "[" * 5000,
               '{"cortextx":{}}', '{"cortextx":[]}', lost % "1",
               lost % '{"first":0,"last":1,"reason":"x"}',
               lost % '{"first":2,"last":1,"reason":"x"}',
               lost % '{"first":1,"last":9223372036854775808,"reason":"x"}',
               lost % '{"first":1,"last":1}']  # fmt: skip
        for metadata in odd:
            self.assertIsNone(read_mark(metadata), metadata)


class SplitTests(SynchronousTestCase):
    @given(RANGES, RANGES)
    @settings(max_examples=200, deadline=None)
    def test_the_parts_are_the_gap_and_what_is_explained_is_the_loss(
        self, gap: tuple[int, int], lost: tuple[int, int]
    ) -> None:
        parts = split(gap, lost)
        seqs = [seq for first, last, _ in parts for seq in range(first, last + 1)]
        self.assertEqual(sorted(seqs), list(range(gap[0], gap[1] + 1)))
        explained = {s for first, last, yes in parts if yes for s in range(first, last + 1)}
        both = set(range(gap[0], gap[1] + 1)) & set(range(lost[0], lost[1] + 1))
        self.assertEqual(explained, both)
