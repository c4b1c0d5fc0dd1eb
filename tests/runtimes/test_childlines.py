"""What an exec child may say, and what it is told."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import (
    Accepted,
    Delta,
    Invoke,
    Message,
    Rejected,
    RequestApproval,
    RequestInput,
    ToolCall,
)
from cortextx.core.flatlines import encode_flat
from cortextx.errors import JsonError
from cortextx.interfaces.sessions import RunOutcome
from cortextx.runtimes.childlines import (
    MAX_COMMAND_BYTES,
    Asked,
    Began,
    Erred,
    Finished,
    answer,
    envelope,
    read_line,
)
from tests.runtimes.fakes import run_request

REQUEST = run_request()
IDS = ("q-1", "run-1")


def said(line: str | bytes) -> Any:
    return read_line(line if isinstance(line, bytes) else line.encode(), REQUEST)[0]


class ReadLineTests(SynchronousTestCase):
    def test_every_line_of_the_protocol_stands_for_what_it_says(self) -> None:
        for line, meaning in [
            ('{"type":"start","model":"m"}', Began("m")),
            ('{"type":"start","run":"run-1","request_id":"q-1"}', Began(None)),
            ('{"type":"delta","text":"a"}', Delta(*IDS, "a")),
            ('{"type":"message","content":"a"}', Message(*IDS, "assistant", "a")),
            ('{"type":"message","role":"r","text":"a"}', Message(*IDS, "r", "a")),
            (
                '{"type":"message","role":"r","content":[{"text":"a"},{"x":1},{"text":"b"}]}',
                Message(*IDS, "r", "ab"),
            ),
            ('{"type":"tool_call","id":"1","name":"n"}', ToolCall(*IDS, "1", "n", "requested")),
            (
                '{"type":"tool_call","tool_call_id":"1","name":"n"}',
                ToolCall(*IDS, "1", "n", "requested"),
            ),
            (
                '{"type":"tool","call_id":"1","name":"n","state":"failed"}',
                ToolCall(*IDS, "1", "n", "failed"),
            ),
            (
                '{"type":"approval_request","id":"a","name":"n","args":{"x":1}}',
                Asked("a", RequestApproval("n", Raw(b'{"x":1}'))),
            ),
            (
                '{"type":"command","command_id":"a","command":{"type":"request_input",'
                '"prompt":"?"}}',
                Asked("a", RequestInput("?")),
            ),
            (
                '{"type":"command","command_id":"a","effect_id":"e","command":{"type":"invoke",'
                '"name":"n","payload":1}}',
                Asked("a", Invoke("n", Raw(b"1")), "e"),
            ),
            ('{"type":"error","code":"EIO","message":"m"}', Erred("EIO: m", recoverable=False)),
            ('{"type":"error","recoverable":true}', Erred("it told of an error", True)),
            ('{"type":"done"}', Finished(RunOutcome("completed"))),
            ('{"type":"done","status":"ok"}', Finished(RunOutcome("completed"))),
            (
                '{"type":"done","status":"cancelled"}',
                Finished(RunOutcome("cancelled", "the child gave up")),
            ),
            (
                '{"type":"done","status":"error","message":"m"}',
                Finished(RunOutcome("error", "m")),
            ),
            (
                '{"type":"done","status":"odd"}',
                Finished(RunOutcome("error", "the child says 'odd'")),
            ),
        ]:
            with self.subTest(line):
                self.assertEqual(said(line), meaning)

    def test_an_effect_that_has_no_id_gets_a_stable_one(self) -> None:
        line = (
            '{"type":"command","command_id":"a","command":{"type":"invoke","name":"n","payload":1}}'
        )
        self.assertEqual(said(line).effect_id, "run-1-a")
        self.assertEqual(said(line), said(line))

    def test_what_flat_peers_write_is_understood(self) -> None:
        for event in (
            Delta(*IDS, "é"),
            Message(*IDS, "assistant", "m"),
            ToolCall(*IDS, "1", "n", "requested"),
            ToolCall(*IDS, "1", "n", "done"),
        ):
            self.assertEqual(said(encode_flat(event)), event)

    def test_a_line_means_the_same_however_it_is_written(self) -> None:
        """What is read at once, and what takes the long way round, is one event."""
        for at_once, around in (
            ('{"type":"delta","text":"a [1] é"}', '{"text":"a [1] \\u00e9","type":"delta"}'),
            ('{"type":"message","text":"a\\n"}', ' {"type":"message","x":{},"text":"a\\n"}'),
        ):
            self.assertEqual(read_line(at_once.encode(), REQUEST)[1], False)
            self.assertEqual(said(at_once), said(around))
        bad = b'{"type":"delta","text":"\xff"}'
        self.assertEqual(read_line(bad, REQUEST), (Delta(*IDS, "\ufffd"), True))

    def test_other_text_and_unknown_types_are_skipped(self) -> None:
        for line in (
            "",
            "Loading…",
            "[1]",
            '"x"',
            '{"type":"status","session":"s"}',
            '{"type":"x"}',
        ):
            self.assertIsNone(said(line))

    def test_a_broken_line_of_the_protocol_is_a_fault(self) -> None:
        for line in (
            "{",
            "{} {}",
            "{}",
            '{"type":1}',
            '{"type":"delta"}',
            '{"type":"delta","text":1}',
            '{"type":"delta","text":"a","run":"another"}',
            '{"type":"delta","text":"a","request_id":"another"}',
            '{"type":"message"}',
            '{"type":"message","role":"","text":"a"}',
            '{"type":"message","role":"%s","text":"a"}' % ("r" * 65),
            '{"type":"tool_call","name":"n"}',
            '{"type":"tool_call","id":"","name":"n"}',
            '{"type":"tool","call_id":"%s","name":"n","state":"s"}' % ("c" * 129),
            '{"type":"approval_request","id":"a\\u0000","name":"n"}',
            '{"type":"command","command_id":"a","command":{"type":"run"}}',
            '{"type":"delta","text":"a","x":%s}' % ("[" * 101 + "]" * 101),
            '{"type":"approval_request","id":"a","name":"n","args":"%s"}'
            % ("x" * MAX_COMMAND_BYTES),
        ):
            with self.subTest(line[:80]):
                self.assertRaises(JsonError, said, line)

    def test_i40_what_could_not_be_sent_is_mended_and_told(self) -> None:
        for line, text in [
            (b'{"type":"delta","text":"a\xffb"}', "a\ufffdb"),
            (b'{"type":"delta","text":"a\\ud800b"}', "a\ufffdb"),
            (b'{"type":"delta","text":"\\ud83d\\ude00"}', "\U0001f600"),
        ]:
            heard, mended = read_line(line, REQUEST)
            self.assertEqual(heard, Delta(*IDS, text))
            self.assertEqual(mended, "\ufffd" in text)


class WriteTests(SynchronousTestCase):
    def test_the_envelope_is_one_line_with_all_of_the_request(self) -> None:
        request = run_request(
            "two\nlines",
            event=Raw(b'{"a":1}'),
            interrupted=True,
            history=[Message("q0", "r0", "user", "é")],
        )
        line = envelope(request)
        self.assertEqual(line.count(b"\n"), 1)
        self.assertTrue(line.endswith(b"\n"))
        self.assertEqual(
            json.loads(line),
            {
                "type": "input",
                "run": "run-1",
                "request_id": "q-1",
                "agent": "helper",
                "scope": "private",
                "session": "default",
                "owner": request.owner,
                "cwd": "/tmp",
                "workspace": "/",
                "interrupted": True,
                "input": "two\nlines",
                "event": {"a": 1},
                "history": [{"role": "user", "content": "é"}],
            },
        )
        self.assertNotIn("event", json.loads(envelope(REQUEST)))

    def test_an_answer_names_the_childs_own_id(self) -> None:
        self.assertEqual(
            answer("a", Rejected("no")),
            b'{"type":"command_result","command_id":"a",'
            b'"result":{"type":"rejected","reason":"no"}}\n',
        )
        self.assertEqual(json.loads(answer("a", Accepted()))["result"], {"type": "accepted"})
