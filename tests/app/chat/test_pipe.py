"""A conversation in a pipe: what lines of stdin do, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.chat.acts import Act, Answer, AskStatus, CancelRun, Leave, Say, Show
from cortextx.app.chat.pipe import NOBODY, JsonView, PipeTalk, TextView
from cortextx.app.chat.view import row
from cortextx.app.cli.faults import FAILED, OK
from cortextx.core.exchange import Accepted, Rejected, RequestApproval, Value
from cortextx.interaction import data
from cortextx.interaction.master.events import Attached, CommandLost, Event

APPROVAL = data.Command(RequestApproval("rm", Raw(b'{"path":"/x"}')), "e1")


def event(content: object, command_id: str | None = None) -> Event:
    """An event of a run of our own."""
    return Event(content, 7, "q", "r1", command_id, is_own=True)  # type: ignore[arg-type]


class JsonTalkTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = PipeTalk(may_act=True, as_json=True)

    def refused(self, acts: list[Act]) -> bool:
        return [type(act) for act in acts] == [Show] and acts[0].style == "error"  # type: ignore[union-attr]

    def test_lines_are_words_and_objects_say_what_to_do(self) -> None:
        self.assertEqual(self.talk.said("/help me"), [Say("/help me")])
        self.assertEqual(self.talk.said('{"input": "{}"}'), [Say("{}")])
        self.assertEqual(self.talk.said('{"status": true}'), [AskStatus()])
        self.assertEqual(self.talk.said("  "), [])
        self.talk.happened(event(data.Accepted()))
        self.assertEqual(self.talk.said('{"cancel": true}'), [CancelRun("r1")])
        self.assertEqual(self.talk.code, OK)

    def test_a_command_is_answered_once_with_what_is_given(self) -> None:
        for given, result in (
            ("", Accepted()),
            (', "reject": "no"', Rejected("no")),
            (', "value": {"a": 1}', Value(Raw(b'{"a": 1}'))),
            (', "value": null', Value(Raw(b"null"))),
        ):
            asked = event(APPROVAL, "c1")
            self.assertEqual(self.talk.happened(asked), [])
            self.assertEqual(self.talk.said(f'{{"answer": "c1"{given}}}'), [Answer(asked, result)])
            self.assertIsNone(self.talk.question)
            self.assertTrue(self.refused(self.talk.said('{"answer": "c1"}')))

    def test_a_command_that_is_closed_cannot_be_answered(self) -> None:
        for end in (
            data.CommandResolved("c1", None, "rejected", "expired"),
            CommandLost("c1"),
            data.Done("cancelled"),
        ):
            self.talk.happened(event(APPROVAL, "c1"))
            self.talk.happened(event(end))
            self.assertTrue(self.refused(self.talk.said('{"answer": "c1"}')), end)

    def test_what_is_no_order_is_refused_and_the_code_tells(self) -> None:
        for line in ("{", '{"input": 1}', '{"inptu": "x"}', "{}", '{"input":"x","cancel":true}',
                     '{"cancel": true}', '{"a":' + "[" * 100_000, '{"input": "\ud800'):  # fmt: skip
            talk = PipeTalk(may_act=True, as_json=True)
            self.assertTrue(self.refused(talk.said(line)), line[:20])
            self.assertEqual(talk.code, FAILED, line[:20])

    def test_it_ends_with_the_last_run_after_stdin(self) -> None:
        self.talk.said("one")
        self.talk.said("two")
        self.assertEqual(self.talk.stdin_ended(), [])
        self.assertEqual(self.talk.happened(event(data.Done("completed"))), [])
        self.assertEqual(self.talk.happened(event(data.Done("completed"))), [Leave()])
        self.assertEqual(self.talk.code, OK)

    def test_without_anything_said_it_ends_with_stdin(self) -> None:
        self.assertEqual(self.talk.stdin_ended(), [Leave()])

    def test_what_is_replayed_comes_before_the_end(self) -> None:
        self.talk.happened(Event(Attached(1, 2, False)))
        self.assertEqual(self.talk.stdin_ended(), [])
        self.assertEqual(self.talk.happened(Event(data.Accepted(), 1, "q", "r")), [])
        self.assertEqual(self.talk.happened(Event(data.Done("completed"), 2, "q", "r")), [Leave()])
        talk = PipeTalk(may_act=True, as_json=True)
        talk.happened(Event(Attached(6, 5, False)))
        self.assertEqual(talk.stdin_ended(), [Leave()])

    def test_nobody_is_asked_after_stdin(self) -> None:
        self.talk.said("one")
        first, second = event(APPROVAL, "c1"), event(APPROVAL, "c2")
        self.talk.happened(first)
        no = Rejected(NOBODY)
        self.assertEqual(self.talk.stdin_ended(), [Answer(first, no)])
        self.assertEqual(self.talk.happened(second), [Answer(second, no)])

    def test_a_run_that_fails_or_never_was_is_told_by_the_code(self) -> None:
        self.talk.said("one")
        self.talk.stdin_ended()
        self.assertEqual(self.talk.refused("busy")[-1], Leave())
        self.assertEqual(self.talk.code, FAILED)
        for status in ("cancelled", "error", "interrupted"):
            talk = PipeTalk(may_act=True, as_json=True)
            talk.said("one")
            talk.happened(event(data.Done(status)))  # type: ignore[arg-type]
            self.assertEqual(talk.code, FAILED)

    def test_control_c_cancels_and_leaves(self) -> None:
        self.talk.said("one")
        self.talk.happened(event(data.Accepted()))
        self.assertIn(CancelRun("r1"), self.talk.interrupted())
        self.talk.happened(event(data.Done("cancelled")))
        self.assertEqual(self.talk.interrupted(), [Leave()])

    def test_anothers_failure_is_none_of_ours(self) -> None:
        self.talk.happened(Event(data.Done("error"), 1, "q", "r9"))
        self.assertEqual(self.talk.code, OK)


class ViewTests(SynchronousTestCase):
    def test_rows_have_what_an_event_tells(self) -> None:
        told = json.loads(_printed(lambda: JsonView().told(event(APPROVAL, "c1")))[0])
        self.assertEqual(told["event"], "command")
        self.assertEqual((told["seq"], told["run_id"], told["command_id"]), (7, "r1", "c1"))
        self.assertEqual(told["data"]["command"]["arguments"], {"path": "/x"})
        self.assertEqual(told["data"]["effect_id"], "e1")
        self.assertEqual(row(Event(Attached(1, 0, False)))["event"], "attached")

    def test_the_answer_alone_is_on_stdout(self) -> None:
        def show() -> None:
            view = TextView()
            for style in ("answer", "user", "note", "error", "ask", "tool"):
                view.show(Show(f"{style}\x1b\n", style))  # type: ignore[arg-type]

        out, err = _printed(show)
        self.assertEqual(out, "answer\x1b\n")  # no terminal: byte for byte
        self.assertEqual(err.split(), ["note\\e", "error\\e", "ask\\e", "tool\\e"])


def _printed(call: object) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        call()  # type: ignore[operator]
    return out.getvalue(), err.getvalue()
