"""One v1 request: what goes out, and what of the answers is believed."""

from __future__ import annotations

import msgspec
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import (
    Accepted,
    CommandIssued,
    Delta,
    Failure,
    Message,
    Notify,
    Origin,
    RequestApproval,
    RunAccepted,
    RunDone,
    RunStarted,
    SessionStatus,
)
from cortextx.errors import SessionRefused
from cortextx.interaction import flat, v1
from cortextx.interaction.master.once import Exchange
from cortextx.interaction.v1 import Form, Reply

INPUT = v1.Input("r1", "default", "private", "hi", Origin("test"))
STORY = (
    (RunAccepted("r1", "default", "u"), 1),
    (RunStarted("r1", "u", "m"), 2),
    (Delta("r1", "u", "a"), None),
    (Message("r1", "u", "assistant", "ab"), 3),
    (RunDone("r1", "u", "completed"), 4),
)


def lines(form: Form = "both") -> bytes:
    """A whole stream."""
    return b"".join(v1.encode_event(event, form, seq) for event, seq in STORY)


class ExchangeTests(SynchronousTestCase):
    def started(self, request: object = INPUT, **more: object) -> Exchange:
        """A request that was sent."""
        exchange = Exchange(request, **more)  # type: ignore[arg-type]
        self.line = exchange.started(0.0)
        return exchange

    def test_a_framed_request_is_one_line(self) -> None:
        """v1: one frame, one request."""
        self.started()
        self.assertEqual(v1.decode_request(self.line), INPUT)

    def test_every_form_of_answers_is_read(self) -> None:
        """I6: a client of ours reads framed, flat and both, whole and byte by byte."""
        for form in ("both", "framed", "flat"):
            for size in (1, 7, 100_000):
                exchange = self.started()
                text = lines(form)
                replies: list[Reply] = []
                for at in range(0, len(text), size):
                    replies += exchange.data_received(text[at : at + size], 0.0)
                expected = [event for event, _ in STORY]
                if form == "flat":
                    expected = expected[1:]  # nobody knows a flat line for it
                self.assertEqual([reply.event for reply in replies], expected)
                self.assertTrue(exchange.is_over)
                self.assertIsNone(exchange.why_broken)

    def test_the_seqs_of_durable_events_are_told(self) -> None:
        """I26: session_seq is what a later resume begins after."""
        found = self.started().data_received(lines(), 0.0)
        self.assertEqual([reply.session_seq for reply in found], [1, 2, None, 3, 4])

    def test_a_stream_that_ends_early_is_broken(self) -> None:
        """v1: without done or a final error it is broken, and a client says so."""
        exchange = self.started()
        exchange.data_received(v1.encode_event(STORY[0][0]), 0.0)
        exchange.peer_lost()
        self.assertEqual(exchange.why_broken, "the stream ends without an answer")

    def test_an_error_that_may_pass_does_not_end_it(self) -> None:
        """v1: only an error that is not retryable ends an input's stream."""
        exchange = self.started()
        failure = Failure("r1", run="u", code="EAGAIN", message="x", retryable=True)
        exchange.data_received(v1.encode_event(failure), 0.0)
        self.assertFalse(exchange.is_over)
        final = msgspec.structs.replace(failure, retryable=False)
        exchange.data_received(v1.encode_event(final), 0.0)
        self.assertTrue(exchange.is_over)
        self.assertIsNone(exchange.why_broken)

    def test_another_requests_events_are_not_believed(self) -> None:
        """v1: every event carries the request's id."""
        exchange = self.started()
        exchange.data_received(v1.encode_event(RunDone("other", "u", "completed")), 0.0)
        self.assertIsNotNone(exchange.why_broken)

    def test_types_that_no_client_knows_are_skipped(self) -> None:
        """The flat lines: any other type is skipped."""
        exchange = self.started()
        found = exchange.data_received(b'{"type":"novel","x":1}\n' + lines("flat"), 0.0)
        self.assertEqual(len(found), 4)

    def test_a_silence_ends_it(self) -> None:
        """A client gives up after 30 s of silence."""
        exchange = self.started()
        exchange.data_received(v1.encode_event(STORY[0][0]), 20.0)
        exchange.time_passed(49.0)
        self.assertFalse(exchange.is_over)
        exchange.time_passed(50.0)
        self.assertEqual(exchange.why_broken, "the slave was silent for 30 s")

    def test_a_user_who_thinks_is_no_silence_of_the_slaves(self) -> None:
        """While a command waits for our answer nothing is expected to come."""
        exchange = self.started()
        command = CommandIssued("r1", "u", "c1", RequestApproval("rm", Raw(b"{}")))
        exchange.data_received(v1.encode_event(command), 0.0)
        self.assertIsNone(exchange.deadline)
        answer = v1.decode_request(exchange.answer("c1", Accepted()))
        self.assertEqual(answer, v1.CommandResult("r1", "default", "c1", Accepted()))
        self.assertIsNotNone(exchange.deadline)
        self.assertRaises(SessionRefused, exchange.answer, "c1", Accepted())

    def test_a_notice_is_no_question(self) -> None:
        """Nothing waits for an answer to it."""
        exchange = self.started()
        command = CommandIssued("r1", "u", "c1", Notify("info", "x"))
        exchange.data_received(v1.encode_event(command), 0.0)
        self.assertIsNotNone(exchange.deadline)

    def test_a_response_has_an_end(self) -> None:
        """A client gives up after 4 MiB of response, as it comes."""
        exchange = self.started(max_bytes=1000)
        delta = v1.encode_event(Delta("r1", "u", "x" * 400))
        exchange.data_received(delta, 0.0)
        exchange.data_received(delta, 0.0)
        self.assertEqual(exchange.why_broken, "the slave sent more than a response may be long")

    def test_a_flood_without_a_newline_is_cut(self) -> None:
        """v1: a line has at most 256 KiB."""
        exchange = self.started()
        exchange.data_received(b"x" * (256 * 1024), 0.0)
        self.assertEqual(exchange.why_broken, "the slave sent a line that is too long")

    def test_a_status_ends_with_its_answer_and_a_resume_with_the_stream(self) -> None:
        """v1: a connection is one request; a resume replays many runs."""
        status = self.started(v1.Status("r1", "default"))
        status.data_received(v1.encode_event(SessionStatus("r1", "default", "idle")), 0.0)
        self.assertTrue(status.is_over)
        resume = self.started(v1.Resume("r1", "default", "2"))
        self.assertEqual(len(resume.data_received(lines() + lines(), 0.0)), 10)
        self.assertFalse(resume.is_over)
        resume.peer_lost()
        self.assertIsNone(resume.why_broken)

    def test_flat_requests_are_those_of_deployed_peers(self) -> None:
        """The flat lines: op, and the members that such a peer reads."""
        self.started(form="flat")
        sent = flat.parse(self.line[:-1])
        assert isinstance(sent, flat.Send)
        self.assertEqual((sent.id, sent.session, sent.input), ("r1", "default", "hi"))
        self.started(v1.Cancel("r1", "run-1"), form="flat")
        self.assertEqual(flat.parse(self.line[:-1]), flat.Cancel(id="run-1"))
        self.started(v1.Resume("r1", "s", "7"), form="flat")
        self.assertEqual(flat.parse(self.line[:-1]), flat.Resume(session="s", after="7"))

    def test_a_flat_request_without_an_id_takes_that_of_its_answers(self) -> None:
        """A slave that writes both gives it one; it may not change then."""
        exchange = self.started(v1.Resume("r1", "default"), form="flat")
        first = v1.encode_event(RunDone("given", "u", "completed"))
        other = v1.encode_event(RunDone("other", "u", "completed"))
        self.assertEqual(len(exchange.data_received(first, 0.0)), 1)
        exchange.data_received(other, 0.0)
        self.assertIsNotNone(exchange.why_broken)
