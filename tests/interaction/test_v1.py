"""v1 frames, and event lines that framed and flat readers both understand."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.flatlines import decode_flat
from cortextx.core.framing import LineFramer
from cortextx.errors import LocalProtocolError
from cortextx.interaction import v1
from cortextx.interaction.faults import (
    MAX_FRAME_BYTES,
    FramingFault,
    IllegalFrame,
    RequestFault,
)
from tests.interaction.examples import events, requests

DONE = x.RunDone("r", "x", "completed")

LINES: list[tuple[v1.Request, bytes]] = [
    (
        v1.Input("web-1", "default", "private", "hello", x.Origin("web")),
        b'{"type":"input","request_id":"web-1","session":"default","scope":"private",'
        b'"input":"hello","origin":{"transport":"web","endpoint":null,"identity":null,'
        b'"conversation":null,"thread":null,"metadata":{}},"cwd":null,"workspace":null}',
    ),
    (
        v1.Resume("r", "default", "41"),
        b'{"type":"resume","request_id":"r","session":"default","after":"41"}',
    ),
    (v1.Status("r", "s"), b'{"type":"status","request_id":"r","session":"s"}'),
    (v1.Cancel("r", "x"), b'{"type":"cancel","request_id":"r","run":"x"}'),
    (
        v1.CommandResult("r", "s", "c", x.Accepted()),
        b'{"type":"command_result","request_id":"r","session":"s","command_id":"c",'
        b'"result":{"type":"accepted"}}',
    ),
]


def framed(direction: str, value: bytes) -> bytes:
    return b'{"abi":"cortexfs.interaction/v1","payload":{"direction":"%s","value":%s}}\n' % (
        direction.encode(),
        value,
    )


class RequestTests(SynchronousTestCase):
    def test_every_request_has_its_line_and_back(self) -> None:
        for request, value in LINES:
            self.assertEqual(v1.encode_request(request), framed("request", value))
            self.assertEqual(v1.decode_request(framed("request", value)), request)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(requests, min_size=1, max_size=3), st.integers(1, 300))
    def test_any_request_comes_back_however_it_is_cut(
        self, sent: list[v1.Request], piece: int
    ) -> None:
        stream = b"".join(map(v1.encode_request, sent))
        for step in (len(stream), piece, 1):
            framer = LineFramer(MAX_FRAME_BYTES)
            got = [
                v1.parse(text)
                for at in range(0, len(stream), step)
                for text in framer.feed(stream[at : at + step])
            ]
            self.assertEqual(got, sent)

    def test_an_event_is_no_request(self) -> None:
        line = v1.encode_event(DONE, "framed")
        fault = self.assertRaises(RequestFault, v1.decode_request, line)
        self.assertEqual(fault.request_id, "r")

    def test_an_agent_may_be_named(self) -> None:
        """I24."""
        line = framed("request", b'{"type":"status","request_id":"r","session":"s","agent":"a"}')
        self.assertEqual(v1.decode(line), v1.Status("r", "s", "a"))

    def test_a_request_that_is_refused_tells_its_id_where_it_is_one(self) -> None:
        for value, request_id in [
            (b'{"type":"status","request_id":"r","session":5}', "r"),
            (b'{"type":"frobnicate","request_id":"r"}', "r"),
            (b'{"type":"status","request_id":"","session":"s"}', None),
            (b'{"type":"status","request_id":7,"session":"s"}', None),
            (b'{"type":"status","session":"s"}', None),
            (b"[]", None),
        ]:
            fault = self.assertRaises(RequestFault, v1.decode, framed("request", value))
            self.assertEqual(fault.request_id, request_id)
            self.assertEqual(fault.errno, "EINVAL")

    def test_an_event_object_is_measured_in_its_compact_form(self) -> None:
        value = LINES[0][1][:-1] + b',"event":{"a":%s"%s"}}'
        fits = value % (b" " * 1000, b"x" * (65_536 - len(b'{"a":""}')))
        self.assertIsInstance(v1.decode(framed("request", fits)), v1.Input)
        longer = value % (b"", b"x" * (65_537 - len(b'{"a":""}')))
        self.assertRaises(RequestFault, v1.decode, framed("request", longer))

    def test_a_request_of_ours_is_checked(self) -> None:
        self.assertRaises(IllegalFrame, v1.Status, "", "s")
        self.assertRaises(IllegalFrame, v1.Resume, "r", "s", "\x00")
        long_path = v1.Input("r", "s", "private", "i", x.Origin("t"), cwd="/" + "a" * 256)
        self.assertRaises(LocalProtocolError, v1.encode_request, long_path)


class EventTests(SynchronousTestCase):
    def test_a_line_of_both_forms_has_the_envelope_beside_the_flat_members(self) -> None:
        """I6, I26."""
        self.assertEqual(
            v1.encode_event(DONE, session_seq=9),
            b'{"abi":"cortexfs.interaction/v1","payload":{"direction":"event","value":'
            b'{"type":"done","request_id":"r","run":"x","status":"completed"}},'
            b'"type":"done","run":"x","status":"completed","session_seq":9}\n',
        )
        self.assertEqual(
            v1.encode_event(DONE, "flat"), b'{"type":"done","run":"x","status":"completed"}\n'
        )
        self.assertNotIn(b'"status":"completed","', v1.encode_event(DONE, "framed"))

    @settings(max_examples=150, deadline=None)
    @given(events, st.none() | st.integers(1, 2**63))
    def test_any_event_is_read_alike_by_framed_flat_and_our_readers(
        self, event: x.Event, seq: int | None
    ) -> None:
        both = v1.encode_event(event, session_seq=seq)
        self.assertEqual(v1.decode(both), event)
        self.assertEqual(v1.decode(v1.encode_event(event, "framed", seq)), event)
        flat = decode_flat(both, event.request_id)
        self.assertEqual(flat, decode_flat(v1.encode_event(event, "flat"), event.request_id))
        for form in ("both", "framed"):
            line = v1.encode_event(event, form, seq)  # type: ignore[arg-type]
            self.assertEqual(v1.decode_reply(line, event.request_id), v1.Reply(event, seq))
        reply = v1.decode_reply(v1.encode_event(event, "flat", seq), event.request_id)
        if isinstance(event, x.RunDone | x.Delta | x.Message | x.RunStarted | x.SessionStatus):
            self.assertEqual(reply, v1.Reply(event, seq))

    def test_a_reader_skips_flat_lines_that_it_does_not_know(self) -> None:
        self.assertIsNone(v1.decode_reply(b'{"type":"pong"}\n', "r"))

    def test_an_answer_to_another_request_is_refused(self) -> None:
        for form in ("both", "framed"):
            line = v1.encode_event(DONE, form)  # type: ignore[arg-type]
            self.assertRaises(RequestFault, v1.decode_reply, line, "other")
        line = b'{"type":"done","run":"x","status":"ok","request_id":"r"}\n'
        self.assertRaises(RequestFault, v1.decode_reply, line, "other")
        self.assertRaises(RequestFault, v1.decode_reply, framed("request", LINES[3][1]), "r")
        self.assertRaises(FramingFault, v1.decode_reply, b"{\n", "r")
        self.assertRaises(FramingFault, v1.decode_reply, b'{"type":"done"}', "r")

    def test_done_and_a_final_error_end_a_stream(self) -> None:
        self.assertTrue(v1.ends_stream(DONE))
        for retryable in (True, False):
            failure = x.Failure("r", code="EIO", message="m", retryable=retryable)
            self.assertEqual(v1.ends_stream(failure), not retryable)
        self.assertFalse(v1.ends_stream(x.Delta("r", "x", "t")))

    def test_a_newline_in_kept_text_is_not_sent_and_a_long_line_neither(self) -> None:
        command = x.CommandIssued("r", "x", "c", x.Invoke("n", Raw(b"[\n1]")))
        line = v1.encode_event(command)
        self.assertEqual(line.count(b"\n"), 1)
        self.assertEqual(msgspec.json.decode(line)["payload"]["value"]["command"]["payload"], [1])
        long = x.Delta("r", "x", "a" * (MAX_FRAME_BYTES // 2))
        self.assertRaises(LocalProtocolError, v1.encode_event, long)
        v1.encode_event(long, "flat")


class AnswerTests(SynchronousTestCase):
    def test_a_fault_is_answered_in_a_frame_where_the_id_is_known(self) -> None:
        line = v1.answer_fault(RequestFault("$.x", "y", "r"))
        failure = x.Failure("r", code="EINVAL", message="$.x: expected y", retryable=False)
        self.assertEqual(v1.decode(line), failure)
        flat = v1.answer_fault(RequestFault("$.x", "y"), "framed")
        self.assertEqual(
            flat,
            b'{"type":"error","run":null,"code":"EINVAL","message":"$.x: expected y",'
            b'"recoverable":false}\n',
        )

    def test_a_long_line_has_a_name_of_its_own(self) -> None:
        fault = self.assertRaises(FramingFault, v1.decode, b" " * MAX_FRAME_BYTES + b"\n")
        self.assertIn(b'"code":"EMSGSIZE"', v1.answer_fault(fault))
