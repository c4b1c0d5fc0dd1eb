"""Our decoders agree with the handed vectors, row by row (I42)."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.framing import LineFramer
from cortextx.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from cortextx.interaction import v1, v2
from cortextx.interaction.conformance import Abi, Row, judge, read_row
from cortextx.interaction.faults import MAX_FRAME_BYTES

VECTORS = Path(__file__).parent.parent / "vectors"
COUNTS: dict[Abi, tuple[int, int, int]] = {
    "interaction-v2": (124, 317, 22),
    "interaction-v1": (110, 175, 71),
}
"""Rows that are ok, to be rejected, and left open, in each file."""

LONGER_WITH_NULLS = 128
"""Bytes by which a line may grow when what it leaves out is written out."""


def rows(abi: Abi) -> list[Row]:
    lines = (VECTORS / f"{abi}.jsonl").read_bytes().splitlines()
    return [read_row(line, f"{abi} line {n}") for n, line in enumerate(lines, 1)]


class VectorTests(SynchronousTestCase):
    def test_every_row_with_a_verdict_agrees(self) -> None:
        """The table: one entry in the message for each row that differs."""
        for abi, counts in COUNTS.items():
            table = rows(abi)
            found = tuple(sum(r.verdict == v for r in table) for v in ("ok", "reject", "any"))
            self.assertEqual(found, counts)
            differ = [
                f"{row.id}: {row.verdict} {judged.reason}"
                for row in table
                if not (judged := judge(abi, row.line)).agrees(row.verdict)
            ]
            self.assertEqual(differ, [], abi)

    def test_what_is_accepted_is_the_same_after_encoding(self) -> None:
        for row in rows("interaction-v2"):
            if judge("interaction-v2", row.line).accepted:
                frame = v2.decode(row.line)
                if len(row.line) < MAX_FRAME_BYTES - LONGER_WITH_NULLS or row.line[-2:] == b" \n":
                    self.assertEqual(v2.decode(v2.encode(frame)), frame, row.id)
        for row in rows("interaction-v1"):
            if judge("interaction-v1", row.line).accepted:
                value = v1.decode(row.line)
                if len(row.line) < MAX_FRAME_BYTES - LONGER_WITH_NULLS:
                    self.assertEqual(v1.decode(encoded(value)), value, row.id)

    def test_a_stream_of_rows_is_cut_alike_whole_and_byte_by_byte(self) -> None:
        """LineFramer and `parse` accept what `decode` accepts, however it arrives."""
        for row in rows("interaction-v2") + rows("interaction-v1"):
            abi: Abi = "interaction-v2" if b"/v2" in row.line[:40] else "interaction-v1"
            if row.line.count(b"\n") == 1 and row.line.endswith(b"\n"):
                accepted = judge(abi, row.line).accepted
                self.assertEqual(streamed(abi, row.line, len(row.line)), accepted, row.id)
                step = 1 if len(row.line) < 2000 else 10_007
                self.assertEqual(streamed(abi, row.line, step), accepted, row.id)


class RowTests(SynchronousTestCase):
    def test_a_generated_row_is_checked_against_its_length_and_digest(self) -> None:
        text = b'{"id":"g","gen":{"prefix":"a","repeat":"b","count":2,"suffix":"c","len":%d}}'
        self.assertEqual(read_row(text % 4).line, b"abbc")
        self.assertRaises(ConfigError, read_row, text % 5)
        wrong = (text % 4).replace(b'"len":4', b'"sha256":"00"')
        self.assertRaises(ConfigError, read_row, wrong)

    def test_what_is_no_row_is_refused_by_place(self) -> None:
        for text in [
            b"{}",
            b'{"id":"a"}',
            b'{"id":"a","frame_b64":"?"}',
            b'{"id":"a","frame_b64":"","verdict":"maybe"}',
            b'{"id":"a","gen":{"prefix":"","repeat":"aa","count":9999999999,"suffix":""}}',
        ]:
            error = self.assertRaises(ConfigError, read_row, text, "line 3")
            self.assertEqual(error.where, "line 3")

    def test_a_row_that_is_left_open_agrees_with_any_judgement(self) -> None:
        for line in (b"", b"x\n"):
            judged = judge("interaction-v2", line)
            self.assertFalse(judged.accepted)
            self.assertTrue(judged.agrees("any"))
            self.assertFalse(judged.agrees("ok"))


def encoded(value: v1.Request | v1.Event) -> bytes:
    if isinstance(value, v1.Request):
        return v1.encode_request(value)
    return v1.encode_event(value, "framed")


def streamed(abi: Abi, line: bytes, step: int) -> bool:
    framer = LineFramer(MAX_FRAME_BYTES)
    parse = v2.parse if abi == "interaction-v2" else v1.parse
    try:
        texts = [
            text for at in range(0, len(line), step) for text in framer.feed(line[at : at + step])
        ]
        framer.close()
        for text in texts:
            parse(text)
    except RemoteProtocolError:
        return False
    except LocalProtocolError:
        raise AssertionError("a peer's fault was taken for ours") from None
    return True
