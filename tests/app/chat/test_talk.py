"""A conversation: what is shown, sent, asked and answered, without a terminal."""

from __future__ import annotations

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.chat.acts import (
    Act,
    Answer,
    AskStatus,
    AttachTo,
    CancelRun,
    Export,
    Leave,
    ListSessions,
    Say,
    Show,
)
from cortextx.app.chat.talk import DENIED, Talk
from cortextx.core import exchange
from cortextx.core.exchange import Invoke, Notify, Rejected, RequestApproval, RequestInput, Value
from cortextx.interaction import data
from cortextx.interaction.master.events import (
    Attached,
    CommandLost,
    Content,
    Detached,
    Disconnected,
    Event,
)

APPROVAL = RequestApproval("rm", Raw(b'{"path":"/x"}'))


class TalkCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk()
        self.acts: list[Act] = []

    def typed(self, *lines: str) -> list[Act]:
        """What these lines make happen, one after the other."""
        acts = [act for line in lines for act in self.talk.typed(line)]
        self.acts += acts
        return acts

    def tell(self, *contents: Content, run: str = "r1", own: bool = True) -> list[Act]:
        """What these events of a run make happen."""
        acts: list[Act] = []
        for content in contents:
            command_id = "c1" if isinstance(content, data.Command) else None
            acts += self.talk.happened(Event(content, 1, "q", run, command_id, is_own=own))
        self.acts += acts
        return acts

    def ask(self, command: exchange.Command, command_id: str, run: str = "r1") -> list[Act]:
        event = Event(data.Command(command), None, "q", run, command_id, is_own=True)
        return self.talk.happened(event)

    def shown(self, acts: list[Act], *styles: str) -> str:
        """The text of what is shown, of these styles or of any."""
        return "".join(
            act.text
            for act in acts
            if isinstance(act, Show) and (not styles or act.style in styles)
        )

    def others(self, acts: list[Act]) -> list[object]:
        """What is not shown but done; an answer as the command's id and the result."""
        return [
            (act.asked.command_id, act.result) if isinstance(act, Answer) else act
            for act in acts
            if not isinstance(act, Show)
        ]


class Saying(TalkCase):
    def test_words_are_sent_as_they_are(self) -> None:
        self.assertEqual(self.typed("hello\nworld"), [Say("hello\nworld")])
        self.assertEqual(self.typed("//help"), [Say("/help")])
        self.assertEqual(self.typed("", "  \n"), [])

    def test_an_observer_says_nothing(self) -> None:
        self.talk.may_act = False
        self.assertEqual(self.others(self.typed("hello", "/cancel")), [])
        self.assertIn("observes", self.shown(self.acts))

    def test_a_run_is_busy_until_it_is_done(self) -> None:
        self.typed("hello")
        self.assertTrue(self.talk.is_busy)
        self.tell(data.Accepted(), data.Started("m"), data.Done("completed"))
        self.assertFalse(self.talk.is_busy)
        self.assertEqual(self.talk.status, "completed")

    def test_anothers_run_does_not_end_ours(self) -> None:
        self.typed("hello")
        self.tell(data.Accepted(), data.Done("error"), run="r0", own=False)
        self.assertTrue(self.talk.is_busy)
        self.assertIsNone(self.talk.status)

    def test_a_refusal_ends_the_waiting(self) -> None:
        self.typed("hello")
        self.assertIn("busy now", self.shown(self.talk.refused("busy now")))
        self.assertEqual((self.talk.is_busy, self.talk.status), (False, "error"))


class Showing(TalkCase):
    def test_what_streams_is_shown_once(self) -> None:
        acts = self.tell(
            data.Delta("one "), data.Delta("two"), data.Message("assistant", "one two")
        )
        self.assertEqual(self.shown(acts), "one two\n")

    def test_a_message_without_its_deltas_is_shown_whole(self) -> None:
        acts = self.tell(data.Message("assistant", "one two"), own=False)
        self.assertEqual(self.shown(acts), "one two\n")

    def test_a_lost_end_of_the_deltas_is_made_up_for(self) -> None:
        acts = self.tell(data.Delta("one "), data.Message("assistant", "one two"))
        self.assertEqual(self.shown(acts), "one two\n")

    def test_a_hole_in_the_deltas_shows_the_message_anew(self) -> None:
        acts = self.tell(data.Delta("one "), data.Delta("three"))
        acts += self.tell(data.Message("assistant", "one two three"))
        self.assertEqual(self.shown(acts), "one three\none two three\n")

    def test_parts_are_one_text(self) -> None:
        # I33
        acts = self.tell(data.Delta("ab"), data.Delta("cd"))
        acts += self.tell(data.Message("assistant", "abc", 1, 2))
        acts += self.tell(data.Message("assistant", "d", 2, 2))
        self.assertEqual(self.shown(acts), "abcd\n")
        acts = self.tell(
            data.Message("user", "x", 1, 2), data.Message("user", "y", 2, 2), own=False
        )
        self.assertEqual(self.shown(acts), "user: xy\n")

    def test_own_words_are_not_repeated_and_others_are_shown(self) -> None:
        # I37
        words = data.Message("user", "hi")
        self.assertEqual(self.tell(words), [])
        self.assertEqual(self.shown(self.tell(words, own=False)), "user: hi\n")

    def test_what_breaks_in_begins_a_new_line(self) -> None:
        self.tell(data.Delta("one"))
        acts = self.tell(data.Tool("t", "ls", "requested"))
        self.assertEqual(self.shown(acts), "\nls: requested\n")

    def test_an_end_that_is_none_of_success_is_told_with_its_reason(self) -> None:
        for status in ("cancelled", "error", "interrupted"):
            done = data.Done(status, data.Error("internal", "no luck", False))  # type: ignore[arg-type]
            self.assertIn(f"{status}: no luck", self.shown(self.tell(done)))

    def test_the_connections_fate_is_told(self) -> None:
        acts = self.tell(Disconnected("reset"), Attached(1, 0, True), data.Gap(1, 4, "retention"))
        acts += self.tell(Detached("forbidden", "not yours"))
        text = self.shown(acts)
        for part in ("reset", "is back", "1 to 4", "retention", "not yours (forbidden)"):
            self.assertIn(part, text)
        self.assertEqual(self.tell(Attached(1, 0, False), data.Opaque("new")), [])


class Asking(TalkCase):
    def test_an_approval_takes_the_next_line(self) -> None:
        text = self.shown(self.ask(APPROVAL, "c1"), "ask")
        self.assertIn('may rm run? {"path":"/x"}', text)
        self.assertEqual(self.others(self.typed("maybe")), [])
        self.assertEqual(self.others(self.typed("Yes")), [("c1", exchange.Accepted())])
        self.assertIsNone(self.talk.question)

    def test_no_is_a_rejection(self) -> None:
        self.ask(APPROVAL, "c1")
        self.assertEqual(self.others(self.typed("n")), [("c1", Rejected(DENIED))])

    def test_all_is_for_this_tool_in_this_run(self) -> None:
        yes = exchange.Accepted()
        self.ask(APPROVAL, "c1")
        self.assertEqual(self.others(self.typed("a")), [("c1", yes)])
        self.assertEqual(self.others(self.ask(APPROVAL, "c2")), [("c2", yes)])
        self.assertEqual(self.others(self.ask(RequestApproval("ls", Raw(b"{}")), "c3")), [])
        self.typed("n")
        self.tell(data.Done("completed"))
        self.assertEqual(self.others(self.ask(APPROVAL, "c4", "r2")), [])
        assert self.talk.question is not None

    def test_questions_wait_for_their_turn(self) -> None:
        self.ask(APPROVAL, "c1")
        self.assertEqual(self.ask(APPROVAL, "c2"), [])
        self.assertEqual(self.ask(APPROVAL, "c2"), [])  # the same one again
        acts = self.typed("a")
        yes = exchange.Accepted()
        self.assertEqual(self.others(acts), [("c1", yes), ("c2", yes)])

    def test_a_question_for_words_gets_them(self) -> None:
        self.assertIn("your name?", self.shown(self.ask(RequestInput("your name?"), "c1"), "ask"))
        self.assertEqual(
            self.others(self.typed('say "hi"')), [("c1", Value(Raw(b'"say \\"hi\\""')))]
        )

    def test_commands_work_while_a_question_waits(self) -> None:
        self.ask(APPROVAL, "c1")
        self.assertEqual(self.typed("/cancel"), [CancelRun("r1")])
        self.assertIsNotNone(self.talk.question)

    def test_a_question_closes_with_its_command_run_or_connection(self) -> None:
        # B10, B11, I11, I39
        resolved = data.CommandResolved("c1", None, "rejected", "expired")
        for end in (resolved, CommandLost("c1"), data.Done("cancelled")):
            self.ask(APPROVAL, "c1")
            self.assertIn("the question is closed", self.shown(self.tell(end)))
            self.assertIsNone(self.talk.question)
            self.assertIsInstance(self.typed("y")[0], Say)

    def test_how_anothers_question_ended_is_shown(self) -> None:
        acts = self.tell(data.CommandResolved("c9", None, "accepted"), own=False)
        self.assertEqual(self.shown(acts, "tool"), "request accepted\n")

    def test_what_a_terminal_cannot_do_is_refused_and_a_notice_shown(self) -> None:
        acts = self.ask(Invoke("open", Raw(b"{}")), "c1")
        self.assertEqual(self.others(acts), [("c1", Rejected("a terminal has no open"))])
        self.assertEqual(self.shown(self.ask(Notify("warn", "hot"), "c2")), "warn: hot\n")


class Interrupting(TalkCase):
    def test_the_first_cancels_and_the_second_leaves(self) -> None:
        self.typed("hello")
        self.tell(data.Accepted())
        self.assertEqual(self.others(self.talk.interrupted()), [CancelRun("r1")])
        self.assertEqual(self.talk.interrupted(), [Leave()])

    def test_words_that_are_not_a_run_yet_are_cancelled_when_they_are(self) -> None:
        self.typed("hello")
        self.assertEqual(self.others(self.talk.interrupted()), [])
        self.assertEqual(self.others(self.tell(data.Accepted(), data.Started(None))),
                         [CancelRun("r1")])  # fmt: skip

    def test_without_a_run_of_ours_it_cancels_nothing(self) -> None:
        self.tell(data.Accepted(), own=False)
        self.assertEqual(self.others(self.talk.interrupted()), [])
        self.assertEqual(self.talk.interrupted(), [Leave()])

    def test_what_is_typed_or_done_between_makes_it_the_first_again(self) -> None:
        self.talk.interrupted()
        self.typed("hello")
        self.assertNotEqual(self.talk.interrupted(), [Leave()])
        self.tell(data.Done("cancelled"))
        self.assertNotEqual(self.talk.interrupted(), [Leave()])

    def test_the_run_that_executes_is_cancelled_and_not_one_that_waits(self) -> None:
        # I29
        self.tell(data.Accepted(), run="r1")
        self.tell(data.Accepted(), run="r2")
        self.assertEqual(self.others(self.talk.interrupted()), [CancelRun("r1")])
        self.tell(data.Done("cancelled"), run="r1")
        self.assertEqual(self.typed("/cancel"), [CancelRun("r2")])

    def test_a_run_that_began_before_can_be_cancelled(self) -> None:
        self.tell(data.Message("assistant", "x"), run="r0", own=False)
        self.assertEqual(self.typed("/cancel"), [CancelRun("r0")])
        self.tell(data.Done("cancelled"), run="r0", own=False)
        self.assertEqual(self.shown(self.typed("/cancel")), "nothing runs\n")


class Commanding(TalkCase):
    def test_what_commands_ask_for(self) -> None:
        for text, act in (
            ("/status", AskStatus()),
            ("/sessions", ListSessions()),
            ("/attach notes", AttachTo(None, "notes")),
            ("/attach echo/notes", AttachTo("echo", "notes")),
            ("/resume", AttachTo(None, None, 0)),
            ("/resume 41", AttachTo(None, None, 41)),
            ("/export x.jsonl", Export("events", "x.jsonl")),
            ("/export x.md", Export("markdown", "x.md")),
            ("/export messages x", Export("messages", "x")),
            ("/quit", Leave()),
        ):
            self.assertEqual(self.typed(text), [act])

    def test_a_slip_sends_nothing_and_says_so(self) -> None:
        for text in ("/", "/nothing", "/attach", "/attach a/b/c", "/attach ..", "/resume x",
                     "/export", "/export pdf x", "/status now"):  # fmt: skip
            acts = self.typed(text)
            self.assertEqual(self.others(acts), [], text)
            self.assertNotEqual(self.shown(acts, "error"), "", text)

    def test_help_names_every_command(self) -> None:
        text = self.shown(self.typed("/help"))
        for name in ("sessions", "attach", "status", "cancel", "resume", "export", "quit"):
            self.assertIn(f"/{name}", text)
