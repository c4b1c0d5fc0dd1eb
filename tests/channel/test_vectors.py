"""Every vector of the channel socket and of its routes agrees."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from cortextx.channel import conformance
from cortextx.channel.faults import FrameFault
from cortextx.channel.frames import MAX_FRAME_BYTES, Frame, decode, decode_line, encode
from cortextx.core.framing import LineFramer
from cortextx.errors import FrameTooLong, RemoteProtocolError
from tests.channel.rows import frame_rows, read_rows

ROWS = frame_rows()


def read_stream(data: bytes, step: int) -> tuple[list[Frame], str]:
    """What a stream cut into pieces of `step` bytes gives: frames, and the fault that ends it."""
    framer = LineFramer(MAX_FRAME_BYTES)
    frames: list[Frame] = []
    try:
        for start in range(0, len(data), step):
            frames += map(decode, framer.feed(data[start : start + step]))
        framer.close()
    except FrameFault as fault:
        return frames, fault.field
    except (FrameTooLong, RemoteProtocolError) as fault:
        return frames, str(fault)
    return frames, ""


class FrameVectorTests(SynchronousTestCase):
    def test_the_vectors_are_all_there(self) -> None:
        self.assertEqual(len(ROWS), 462)
        self.assertEqual(sum(row.verdict != "any" for row in ROWS), 415)

    def test_every_row_agrees(self) -> None:
        """The decoder takes what a row says is ok and refuses what it says is not."""
        wrong = []
        for row in ROWS:
            reason = conformance.judge(row.line)
            if row.verdict != "any" and (reason == "") != (row.verdict == "ok"):
                wrong.append((row.id, row.verdict, reason))
        self.assertEqual(wrong, [])

    def test_what_is_taken_is_encoded_and_taken_again(self) -> None:
        for row in ROWS:
            if conformance.judge(row.line) == "":
                frame = decode_line(row.line)
                self.assertEqual(decode_line(encode(frame)), frame, row.id)

    def test_a_canonical_row_is_what_we_send(self) -> None:
        """Deployed peers' own lines come out of the encoder byte for byte."""
        own = [row for row in ROWS if row.id.startswith(("body-st", "body-c", "body-r", "body-h"))]
        self.assertGreater(len(own), 5)
        for row in own:
            self.assertEqual(encode(decode_line(row.line)), row.line, row.id)
        same = sum(encode(decode_line(row.line)) == row.line for row in ROWS if row.verdict == "ok")
        self.assertGreater(same, 90)

    def test_a_stream_gives_the_same_whole_and_byte_by_byte(self) -> None:
        for row in ROWS:
            frames, fault = read_stream(row.line, max(1, len(row.line)))
            self.assertEqual(read_stream(row.line, 1), (frames, fault), row.id)
            accepted = len(frames) == 1 and fault == ""
            self.assertEqual(accepted, conformance.judge(row.line) == "", row.id)

    def test_many_frames_in_one_stream_come_in_order(self) -> None:
        lines = [row.line for row in ROWS if row.verdict == "ok"]
        frames, fault = read_stream(b"".join(lines), 4099)
        self.assertEqual((frames, fault), ([decode_line(line) for line in lines], ""))


class RouteVectorTests(SynchronousTestCase):
    def test_every_row_agrees(self) -> None:
        """The same names as deployed hosts', with and without identity isolation (C4)."""
        rows = list(read_rows("route.jsonl"))
        self.assertEqual(len(rows), 25)
        for row in rows:
            expected = None if row.get("verdict") == "reject" else row["result"]
            given = json.dumps(row["input"]).encode()
            self.assertEqual(conformance.route(given), expected, row["id"])
