"""Lines are cut from a stream within a bound, in linear work, however it is chunked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.framing import LineFramer
from cortextx.errors import FrameTooLong, RemoteProtocolError

KIB = 1024


def outcome(limit: int, chunks: list[bytes]) -> tuple[list[bytes], bool, int]:
    """Feed chunks; return all lines, whether it failed, and the bytes pending."""
    framer = LineFramer(limit)
    lines: list[bytes] = []
    for chunk in chunks:
        try:
            lines.extend(framer.feed(chunk))
        except FrameTooLong as fault:
            lines.extend(fault.lines)
    return lines, framer.failed, framer.pending


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Cut a stream into chunks of the given sizes, the rest as the last one."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(stream[start : start + size])
        start += size
    return [*chunks, stream[start:]]


streams = st.lists(st.sampled_from([b"\n", b"a", b"\r", b"bcd", b"123456", b"\xff\x00"])).map(
    b"".join
)


class Work:
    """How many bytes were searched and copied."""

    def __init__(self) -> None:
        self.bytes = 0


def counting(work: Work) -> tuple[type[bytes], type[bytearray]]:
    """Kinds of bytes and of a buffer that count the bytes which each call goes over."""

    class Chunk(bytes):
        def find(self, *args):
            work.bytes += len(self)
            return bytes.find(self, *args)

        def split(self, *args):
            work.bytes += len(self)
            return bytes.split(self, *args)

    class Buffer(bytearray):
        def __iadd__(self, other):
            work.bytes += len(other)
            return bytearray.__iadd__(self, other)

        def __bytes__(self):
            work.bytes += len(self)
            return bytes(memoryview(self))

        def find(self, *args):
            work.bytes += len(self) - (args[1] if len(args) > 1 else 0)
            return bytearray.find(self, *args)

    return Chunk, Buffer


class LineFramerTests(SynchronousTestCase):
    def test_lines_come_without_their_newline_and_in_order(self) -> None:
        framer = LineFramer(10)
        self.assertEqual(framer.feed(b"one\n\ntwo\r\nth"), [b"one", b"", b"two\r"])
        self.assertEqual(framer.pending, 2)
        self.assertEqual(framer.feed(b"ree\n"), [b"three"])
        self.assertEqual(framer.pending, 0)

    @settings(max_examples=200, deadline=None)
    @given(streams, st.lists(st.integers(0, 9)), st.integers(1, 8))
    def test_any_chunking_gives_the_same_lines_and_fault(
        self, stream: bytes, sizes: list[int], limit: int
    ) -> None:
        whole = outcome(limit, [stream])
        self.assertEqual(outcome(limit, cut(stream, sizes)), whole)
        self.assertEqual(outcome(limit, [bytes([byte]) for byte in stream]), whole)

    @settings(max_examples=100, deadline=None)
    @given(streams, st.integers(1, 8))
    def test_the_lines_are_those_of_the_stream_up_to_the_first_too_long(
        self, stream: bytes, limit: int
    ) -> None:
        *complete, rest = stream.split(b"\n")
        expected = []
        failed = False
        for line in complete:
            failed = len(line) + 1 > limit
            if failed:
                break
            expected.append(line)
        failed = failed or len(rest) + 1 > limit
        self.assertEqual(outcome(limit, [stream])[:2], (expected, failed))

    def test_the_limit_counts_the_newline(self) -> None:
        """256 KiB with the newline pass, one byte more does not."""
        limit = 256 * KIB
        self.assertEqual(len(LineFramer(limit).feed(b"x" * (limit - 1) + b"\n")), 1)
        self.assertRaises(FrameTooLong, LineFramer(limit).feed, b"x" * limit + b"\n")

    def test_a_flood_without_newline_ends_at_the_limit(self) -> None:
        """A peer that never sends a newline costs at most `limit` bytes (B34)."""
        framer = LineFramer(100)
        framer.feed(b"x" * 99)
        fault = self.assertRaises(FrameTooLong, framer.feed, b"x")
        self.assertEqual((fault.limit, framer.pending, framer.failed), (100, 0, True))

    def test_lines_before_the_fault_come_with_it(self) -> None:
        framer = LineFramer(4)
        framer.feed(b"o")
        fault = self.assertRaises(FrameTooLong, framer.feed, b"ne\ntwo\nthree\nfor\n")
        self.assertEqual(fault.lines, [b"one", b"two"])

    def test_nothing_is_resynchronised_after_a_fault(self) -> None:
        """The framer is dead after its first error (I22)."""
        framer = LineFramer(4)
        self.assertRaises(FrameTooLong, framer.feed, b"too long\n")
        self.assertEqual(framer.feed(b"ok\n"), [])
        self.assertEqual(framer.pending, 0)
        framer.close()

    def test_an_end_inside_a_line_is_a_fault(self) -> None:
        framer = LineFramer(10)
        framer.feed(b"one\ntw")
        self.assertRaises(RemoteProtocolError, framer.close)
        self.assertEqual((framer.pending, framer.failed), (0, True))
        self.assertEqual(framer.feed(b"o\n"), [])

    def test_an_end_between_lines_is_none(self) -> None:
        framer = LineFramer(10)
        framer.feed(b"one\n")
        framer.close()
        self.assertFalse(framer.failed)

    def test_work_is_linear_in_the_bytes_however_they_come(self) -> None:
        """A 256 KiB line, byte by byte or in chunks, costs a few passes over its bytes."""
        line = b"x" * (256 * KIB - 1) + b"\n"
        for size in (1, 100, 65_536):
            work = Work()
            chunk_type, buffer_type = counting(work)
            framer = LineFramer(256 * KIB)
            framer._held = buffer_type()
            lines = []
            for start in range(0, len(line), size):
                lines.extend(framer.feed(chunk_type(line[start : start + size])))
            self.assertEqual(lines, [line[:-1]])
            self.assertLess(work.bytes, 5 * len(line))
            self.assertGreaterEqual(work.bytes, len(line))

    def test_work_is_linear_for_many_lines_in_one_chunk(self) -> None:
        work = Work()
        chunk_type, buffer_type = counting(work)
        framer = LineFramer(1000)
        framer._held = buffer_type()
        stream = b"some line\n" * 30_000
        self.assertEqual(len(framer.feed(chunk_type(stream))), 30_000)
        self.assertLess(work.bytes, 5 * len(stream))
