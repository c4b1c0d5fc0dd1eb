"""Flat lines of deployed peers are read as events, and events written as flat lines (I6)."""

from __future__ import annotations

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.flatlines import FLAT_TYPES, decode_flat, encode_flat, flat_members
from cortextx.errors import JsonError, JsonShapeError, JsonSyntaxError
from tests.core.test_exchange import EVENTS

LINES: list[tuple[bytes, x.Event]] = [
    (b'{"type":"start","run":"1","model":"m"}', x.RunStarted("r", "1", "m")),
    (b'{"type":"start","run":"1"}', x.RunStarted("r", "1")),
    (b'{"type":"delta","run":"1","text":"t"}', x.Delta("r", "1", "t")),
    (
        b'{"type":"message","run":"1","role":"user","content":"t"}',
        x.Message("r", "1", "user", "t"),
    ),
    (
        b'{"type":"message","run":"1","role":"user","content":[{"text":"a"},{"url":1},'
        b'{"text":"b"}]}',
        x.Message("r", "1", "user", "ab"),
    ),
    (
        b'{"type":"tool_call","run":"1","id":"k","name":"ls"}',
        x.ToolCall("r", "1", "k", "ls", "requested"),
    ),
    (
        b'{"type":"tool_call","run":"1","tool_call_id":"k","name":"ls"}',
        x.ToolCall("r", "1", "k", "ls", "requested"),
    ),
    (
        b'{"type":"status","session":"s","status":"idle","phase":null,"step":3}',
        x.SessionStatus("r", "s", "idle", None, 3),
    ),
    (
        b'{"type":"approval_request","run":"1","id":"c","name":"sh","args":{"a": 1}}',
        x.CommandIssued("r", "1", "c", x.RequestApproval("sh", Raw(b'{"a": 1}'))),
    ),
    (
        b'{"type":"error","code":"EINVAL","message":"m","recoverable":true}',
        x.Failure("r", code="EINVAL", message="m", retryable=True),
    ),
    (
        b'{"type":"error","message":"m"}',
        x.Failure("r", code="EIO", message="m", retryable=False),
    ),
    (b'{"type":"done","run":"1","status":"ok"}', x.RunDone("r", "1", "ok")),
]


class DecodeFlatTests(SynchronousTestCase):
    def test_each_line_stands_for_its_event(self) -> None:
        for line, event in LINES:
            self.assertEqual(decode_flat(line, "r"), event)

    def test_every_known_type_is_covered_here(self) -> None:
        seen = {line.split(b'"')[3].decode() for line, _ in LINES}
        self.assertEqual(seen, FLAT_TYPES)

    def test_other_types_are_skipped_whatever_they_hold(self) -> None:
        for line in (b'{"type":"ping","run":5}', b'{"type":"tool","state":[]}'):
            self.assertIsNone(decode_flat(line, "r"))

    def test_members_of_other_types_do_not_matter(self) -> None:
        line = b'{"type":"delta","run":"1","text":"t","id":5,"content":null,"session_seq":4}'
        self.assertEqual(decode_flat(line, "r"), x.Delta("r", "1", "t"))

    def test_a_request_id_must_be_the_requests(self) -> None:
        line = b'{"type":"done","run":"1","status":"ok","request_id":"%s"}'
        self.assertEqual(decode_flat(line % b"r", "r"), x.RunDone("r", "1", "ok"))
        error = self.assertRaises(JsonShapeError, decode_flat, line % b"other", "r")
        self.assertEqual(error.field, "$.request_id")

    def test_what_is_missing_or_mistyped_is_refused_by_name(self) -> None:
        for line, field in [
            (b'{"run":"1"}', "$.type"),
            (b'{"type":5}', "$.type"),
            (b"[]", "$"),
            (b'{"type":"delta","run":"1"}', "$.text"),
            (b'{"type":"message","run":"1","role":"user","content":5}', "$.content"),
            (b'{"type":"tool_call","run":"1","name":"ls"}', "$.id"),
            (b'{"type":"done","run":"","status":"ok"}', "$"),
        ]:
            error = self.assertRaises(JsonShapeError, decode_flat, line, "r")
            self.assertEqual(error.field, field)

    def test_bad_text_is_refused(self) -> None:
        for line in (b"", b'{"type":"x","a":"\xff"}', b'{"type":"delta"'):
            self.assertRaises(JsonSyntaxError, decode_flat, line, "r")

    def test_any_cut_line_is_an_error_and_nothing_else(self) -> None:
        for line, _ in LINES:
            for end in range(len(line)):
                self.assertRaises(JsonError, decode_flat, line[:end], "r")


class EncodeFlatTests(SynchronousTestCase):
    def test_what_flat_readers_know_comes_back_as_it_was(self) -> None:
        for _, event in LINES:
            self.assertEqual(decode_flat(encode_flat(event), "r"), event)

    def test_what_they_do_not_know_they_skip(self) -> None:
        for event in (
            x.RunAccepted("r", "s", "1"),
            x.ToolCall("r", "1", "k", "ls", "completed"),
            x.CommandIssued("r", "1", "c", x.Notify("info", "t")),
        ):
            self.assertIsNone(decode_flat(encode_flat(event), "r"))

    def test_the_type_comes_first_and_no_request_id(self) -> None:
        for event, _ in EVENTS:
            members = flat_members(event)
            self.assertEqual(next(iter(members)), "type")
            self.assertNotIn("request_id", members)
