"""Streamed chat answers, taken apart; and what a model is told."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Message
from cortextx.errors import RemoteProtocolError
from cortextx.runtimes.chat import (
    INTERRUPTED,
    MAX_CALLS,
    Answer,
    AnswerReader,
    Call,
    Offer,
    Talk,
    failure_words,
    is_object,
)
from tests.runtimes.fakes import run_request


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    """An event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def call_part(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    id = more.pop("id", None)
    return {"index": index, "id": id, "function": {"arguments": arguments, **more}}


DONE = b"data: [DONE]\n\n"


class ReadTests(SynchronousTestCase):
    def read(self, *pieces: bytes, max_bytes: int = 1000) -> Answer:
        reader = AnswerReader(max_bytes)
        self.texts = [text for piece in pieces for text in reader.feed(piece)]
        self.ended = reader.ended
        return reader.finish()

    def test_text_comes_in_pieces_and_whole(self) -> None:
        stream = [chunk(role="assistant", content=""), chunk(content="é"), chunk(content="b")]
        answer = self.read(*stream, chunk("stop"), DONE)
        self.assertEqual(answer, Answer("éb", [], "stop"))
        self.assertEqual(self.texts, ["é", "b"])
        self.assertTrue(self.ended)

    def test_cut_anywhere_the_answer_is_the_same(self) -> None:
        parts = [call_part(0, '{"a"', id="c", name="n"), call_part(0, ":1}")]
        stream = b": a comment\r\nevent: x\r\n" + chunk(content="é\n")
        stream += b"".join(chunk(tool_calls=[part]) for part in parts) + chunk("tool_calls") + DONE
        whole = self.read(stream)
        self.assertEqual(whole, Answer("é\n", [Call("c", "n", Raw(b'{"a":1}'))], "tool_calls"))
        for cut in range(len(stream)):
            self.assertEqual(self.read(stream[:cut], stream[cut:]), whole)
        self.assertEqual(self.read(*[bytes([byte]) for byte in stream]), whole)

    def test_calls_side_by_side_keep_apart(self) -> None:
        parts = [
            call_part(1, '{"b":', id="two", name="b"),
            call_part(0, '{"a":', id="one", name="a"),
            call_part(1, "2}"),
            call_part(0, "1}"),
        ]
        answer = self.read(*[chunk(tool_calls=[part]) for part in parts], chunk("tool_calls"))
        self.assertEqual(
            answer.calls, [Call("one", "a", Raw(b'{"a":1}')), Call("two", "b", Raw(b'{"b":2}'))]
        )

    def test_a_call_without_arguments_has_none(self) -> None:
        answer = self.read(
            chunk("tool_calls", tool_calls=[{"index": 0, "function": {"name": "n"}}])
        )
        self.assertEqual(answer.calls, [Call("call-0", "n", Raw(b"{}"))])

    def test_calls_have_ids_of_their_own_that_can_be_sent(self) -> None:
        ids = ["same", "same", "", "x" * 129, "a\nb"]
        parts = [call_part(place, "{}", id=id, name="n") for place, id in enumerate(ids)]
        answer = self.read(chunk("tool_calls", tool_calls=parts))
        self.assertEqual(
            [call.id for call in answer.calls],
            ["same", "call-1-again", "call-2", "call-3", "call-4"],
        )

    def test_an_answer_without_a_finish_reason_is_broken(self) -> None:
        for stream in (b"", chunk(content="a"), chunk(content="a") + DONE):
            self.assertRaises(RemoteProtocolError, self.read, stream)

    def test_what_is_no_such_stream_is_refused(self) -> None:
        for stream in (
            b"data: {\n\n",
            b"data: []\n\n",
            b'data: {"choices":1}\n\n',
            b'data: {"error":{"message":"full"}}\n\n',
            b"data: " + b"x" * 1024 * 1024,
            chunk(tool_calls=[call_part(index, "") for index in range(MAX_CALLS + 1)]),
        ):
            self.assertRaises(RemoteProtocolError, self.read, stream)

    def test_an_answer_is_bounded(self) -> None:
        self.read(chunk("stop", content="x" * 10), max_bytes=10)
        self.assertRaises(
            RemoteProtocolError, self.read, chunk("stop", content="é" * 6), max_bytes=10
        )
        parts = [call_part(0, "x" * 11)]
        self.assertRaises(RemoteProtocolError, self.read, chunk(tool_calls=parts), max_bytes=10)

    def test_i40_what_could_not_be_sent_is_mended(self) -> None:
        answer = self.read(
            b'data: {"choices":[{"delta":{"content":"a\\ud800\xff"},"finish_reason":"stop"}]}\n\n'
        )
        self.assertEqual(answer.text, "a\ufffd\ufffd")
        parts = [call_part(0, '{"a":1e400}', id="c", name="n")]
        [call] = self.read(chunk("tool_calls", tool_calls=parts)).calls
        self.assertFalse(is_object(call.arguments))

    def test_nothing_is_read_behind_the_end(self) -> None:
        self.assertEqual(self.read(chunk("stop", content="a"), DONE, chunk(content="b")).text, "a")

    def test_a_refusals_words_fit_a_line(self) -> None:
        for body, words in [
            (b'{"error":{"message":"a\\nb"}}', "a b"),
            (b'{"error":"a"}', "a"),
            (b'{"message":"a"}', "a"),
            (b"<html>", ""),
            (b"", ""),
        ]:
            self.assertEqual(failure_words(body), words)
        self.assertEqual(len(failure_words(b'{"message":"%s"}' % (b"x" * 600))), 500)


class TalkTests(SynchronousTestCase):
    def test_history_comes_before_the_input_without_what_is_no_speech(self) -> None:
        history = [
            Message("q", "r", "user", "a"),
            Message("q", "r", "tool", "b"),
            Message("q", "r", "assistant", "c"),
        ]
        talk = Talk(run_request("d", history=history), "s", [])
        self.assertEqual(
            json.loads(talk.body("m", {"temperature": 0})),
            {
                "model": "m",
                "stream": True,
                "temperature": 0,
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "c"},
                    {"role": "user", "content": "d"},
                ],
            },
        )

    def test_b26_a_run_after_an_interrupted_one_says_so(self) -> None:
        for system, words in [(None, INTERRUPTED), ("s", f"s\n\n{INTERRUPTED}")]:
            talk = Talk(run_request(interrupted=True), system, [])
            first = json.loads(talk.body("m", {}))["messages"][0]
            self.assertEqual(first, {"role": "system", "content": words})

    def test_an_answers_calls_and_what_they_returned_go_on(self) -> None:
        talk = Talk(run_request(), None, [Offer(name="n", description="d", parameters={})])
        call = Call("c", "n", Raw(b'{"a":1}'))
        talk.answered(Answer("", [call], "tool_calls"))
        talk.returned(call, "out")
        body = json.loads(talk.body("m", {}))
        function = {"name": "n", "description": "d", "parameters": {}}
        self.assertEqual(body["tools"], [{"type": "function", "function": function}])
        made = {"id": "c", "type": "function", "function": {"name": "n", "arguments": '{"a":1}'}}
        self.assertEqual(
            body["messages"][1:],
            [
                {"role": "assistant", "content": None, "tool_calls": [made]},
                {"role": "tool", "tool_call_id": "c", "content": "out"},
            ],
        )
