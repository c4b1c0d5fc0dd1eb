"""The mailbox of a session: claims, runs, commands, cancel, recovery."""

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
    Notify,
    Rejected,
    RequestApproval,
    ToolCall,
)
from cortextx.interaction import data
from cortextx.interaction.faults import Code
from cortextx.interaction.slave.actions import (
    Append,
    CancelRun,
    Claimed,
    Fail,
    Known,
    PauseRun,
    Publish,
    Refuse,
    Resolve,
    ResumeRun,
    Send,
    StartRun,
    StatusAsked,
)
from cortextx.interaction.slave.lines import data_of, read_line
from tests.interaction.slave.mailbox import Mailbox, an_input

ASK = RequestApproval("rm", Raw(b'{"path":"/"}'))


def facts(box: Mailbox) -> list[str]:
    """The log as words."""
    words = []
    for text in box.log:
        line = read_line(text)
        content = json.loads(bytes(line.event.data))
        what = content.get("type") or content.get("status") or ""
        more = content.get("state") or content.get("text", "")[:20]
        words.append(":".join(word for word in (line.kind, what, more) if word))
    return words


def codes(actions: list[Any]) -> list[str]:
    """The refusals among actions."""
    return [action.error.code for action in actions if isinstance(action, Refuse)]


def only(actions: list[Any], kind: type) -> list[Any]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


class RunTests(SynchronousTestCase):
    """From an input to its end."""

    def test_the_facts_of_a_run_in_order_I37(self) -> None:
        """accepted, the user's words, started, output, done."""
        box = Mailbox()
        box.input("r1", "hello")
        (run,) = box.started()
        box.emit(run, Delta("r", run, "he"), Message("r", run, "assistant", "hello"))
        box.end(run)
        self.assertEqual(
            facts(box),
            ["accepted", "event:message:hello", "started", "event:message:hello", "done:completed"],
        )

    def test_nothing_is_published_or_begun_before_it_is_durable_I12(self) -> None:
        """Neither a run nor a publication precedes the disk (B17)."""
        box = Mailbox(holds=True)
        actions = box.input()
        self.assertEqual(only(actions, StartRun) + only(actions, Publish), [])
        actions = box.release()
        self.assertEqual([type(a) for a in actions[:2]], [Publish, StartRun])

    def test_runs_go_one_at_a_time_in_the_order_of_acceptance_I29(self) -> None:
        """The next run begins when the one before it is done."""
        box = Mailbox()
        for name in ("a", "b", "c"):
            box.input(name)
        self.assertEqual(len(box.started()), 1)
        box.end(box.started()[-1])
        self.assertEqual(len(box.started()), 2)
        box.end(box.started()[-1], "error", "no")
        box.end(box.started()[-1])
        requests = [a.request.request_id for a in box.actions if isinstance(a, StartRun)]
        self.assertEqual(requests, ["a", "b", "c"])

    def test_a_repeated_request_runs_nothing_I10_B17(self) -> None:
        """An identical retry is told where its answers are; another payload conflicts."""
        box = Mailbox()
        box.input("r1", "x")
        again = box.input("r1", "x", asker=9)
        self.assertEqual([(a.accepted, a.done) for a in only(again, Known)], [(1, 0)])
        box.end(box.started()[0])
        for machine in (box, Mailbox(box.log)):
            again = machine.input("r1", "x")
            (known,) = only(again, Known)
            self.assertEqual((known.accepted, known.done), (1, len(box.log)))
            self.assertEqual(only(again, StartRun), [])
            self.assertEqual(codes(machine.input("r1", "other")), ["request_conflict"])

    def test_a_full_mailbox_claims_nothing_v2(self) -> None:
        """Beyond the bound the answer is busy, and the id stays free."""
        box = Mailbox(max_pending_requests=2)
        box.input("a")
        box.input("b")
        self.assertEqual(codes(box.input("c")), ["busy"])
        self.assertEqual(codes(box.input("d", asker=2)), [])
        box.end(box.started()[0])
        self.assertEqual(codes(box.input("c")), [])

    def test_output_beyond_a_frame_is_split_I33(self) -> None:
        """The parts of a message say everything."""
        box = Mailbox()
        box.input()
        (run,) = box.started()
        text = "ü" * 200_000
        box.emit(run, Message("r", run, "assistant", text))
        parts = [data_of(line) for line in box.log[3:]]
        self.assertEqual("".join(part.text for part in parts), text)  # type: ignore[union-attr]
        self.assertGreater(len(parts), 3)

    def test_lone_surrogates_are_replaced_and_flagged_I40_B35(self) -> None:
        """What a runtime puts out decodes, whatever it was."""
        box = Mailbox()
        box.input()
        (run,) = box.started()
        box.emit(
            run,
            Message("r", run, "assistant", "a\ud800b"),
            ToolCall("r", run, "\udfff", "n", "requested"),
        )
        self.assertEqual(data_of(box.log[3]), data.Message("assistant", "a\ufffdb"))
        beside = read_line(box.log[3]).x
        assert beside is not None
        self.assertTrue(beside.mended)

    def test_deltas_go_to_the_origin_only(self) -> None:
        """A delta is for the asker of the input, behind the facts before it."""
        box = Mailbox()
        box.input(asker=5)
        (run,) = box.started()
        (sent,) = only(box.emit(run, Delta("r", run, "x")), Send)
        self.assertEqual((sent.asker, sent.behind, sent.droppable), (5, 3, True))
        box.do(box.machine.asker_left(5))
        self.assertEqual(only(box.emit(run, Delta("r", run, "x")), Send), [])

    def test_a_run_is_held_while_the_disk_is_slow_I19(self) -> None:
        """Beyond some bytes on their way the runtime is paused, and resumed later."""
        box = Mailbox(pause_bytes=10_000)
        box.input()
        (run,) = box.started()
        box.holds = True
        actions = [a for _ in range(8) for a in box.emit(run, Message("r", run, "a", "x" * 2000))]
        self.assertEqual(only(actions, PauseRun), [PauseRun(run)])
        self.assertEqual(only(box.release(), ResumeRun), [ResumeRun(run)])

    def test_a_run_knows_its_history_but_not_what_came_after_it(self) -> None:
        """The words of requests that wait are not part of an earlier run's history."""
        box = Mailbox()
        box.input("a", "one")
        box.input("b", "two")
        box.input("c", "three")
        first = box.started()[0]
        box.emit(first, Message("r", first, "assistant", "uno"))
        box.end(first)
        request = only(box.actions, StartRun)[1].request
        self.assertEqual(
            [(m.role, m.text) for m in request.history], [("user", "one"), ("assistant", "uno")]
        )

    def test_the_status_says_what_goes_on(self) -> None:
        """idle, running, waiting."""
        box = Mailbox()

        def status() -> tuple[str, str | None]:
            (sent,) = only(box.do(box.machine.status_asked(StatusAsked(1, "s"))), Send)
            return sent.content.status, sent.content.phase

        self.assertEqual(status(), ("idle", None))
        box.input()
        self.assertEqual(status(), ("active", "running"))
        box.ask(box.started()[0], ASK)
        self.assertEqual(status(), ("active", "waiting"))

    def test_a_failed_append_ends_everything_and_says_nothing_more_I13(self) -> None:
        """No fact of the group is published; the run is ended, the session given up."""
        box = Mailbox()
        box.input()
        (run,) = box.started()
        box.ask(run, ASK)
        box.holds = True
        box.emit(run, Message("r", run, "assistant", "x"))
        actions = box.do(box.machine.append_failed(Code.SESSION_IO, "full"))
        self.assertEqual([type(a) for a in actions], [Resolve, CancelRun, Fail])
        self.assertEqual(box.machine.append_failed(Code.SESSION_IO, "full"), [])
        self.assertEqual(box.emit(run, Message("r", run, "assistant", "x")), [])


class CommandTests(SynchronousTestCase):
    """Approvals and other commands (B10–B14)."""

    def begin(self, **more: float) -> tuple[Mailbox, str]:
        """A mailbox whose run has asked for an approval."""
        box = Mailbox(**more)
        box.input(asker=1)
        (run,) = box.started()
        box.ask(run, ASK, "effect")
        return box, run

    def resolved(self, box: Mailbox) -> list[Any]:
        """The answers that the run got."""
        return [action.result for action in box.actions if isinstance(action, Resolve)]

    def test_the_origin_is_asked_and_answers_once_B13(self) -> None:
        """The first answer counts; the same again changes nothing, another conflicts."""
        box, run = self.begin()
        (sent,) = [a for a in box.actions if isinstance(a, Send)]
        self.assertEqual(sent.ids.command_id, f"{run}.1")
        self.assertFalse(sent.droppable)
        box.answer(run, f"{run}.1")
        self.assertEqual(self.resolved(box), [Accepted()])
        self.assertEqual(box.answer(run, f"{run}.1"), [])
        self.assertEqual(codes(box.answer(run, f"{run}.1", Rejected("no"))), ["command_conflict"])
        self.assertEqual(self.resolved(box), [Accepted()])
        self.assertEqual(facts(box)[-1], "event:command:accepted")

    def test_the_answer_is_durable_before_the_run_has_it_B11(self) -> None:
        """A resolution is a fact first."""
        box, run = self.begin()
        box.holds = True
        actions = box.answer(run, f"{run}.1")
        self.assertEqual([type(a) for a in actions], [Append])
        self.assertEqual([type(a) for a in box.release()], [Publish, Resolve])

    def test_nobody_else_may_answer_I31_B14(self) -> None:
        """Another attachment is refused, before and after the resolution."""
        box, run = self.begin()
        self.assertEqual(codes(box.answer(run, f"{run}.1", asker=2)), ["forbidden"])
        box.answer(run, f"{run}.1")
        self.assertEqual(codes(box.answer(run, f"{run}.1", asker=2)), ["forbidden"])
        self.assertEqual(codes(box.answer(run, f"{run}.9")), ["unknown_command"])

    def test_another_effect_is_a_conflict(self) -> None:
        """effect_id belongs to the command."""
        box, run = self.begin()
        self.assertEqual(codes(box.answer(run, f"{run}.1", effect="x")), ["command_conflict"])
        self.assertEqual(codes(box.answer(run, f"{run}.1", effect="effect")), [])

    def test_a_resolved_command_is_the_same_only_with_its_effect_and_run(self) -> None:
        """A late answer for another effect conflicts; for another run it names no command."""
        box, run = self.begin()
        box.answer(run, f"{run}.1", effect="effect")
        self.assertEqual(codes(box.answer(run, f"{run}.1", effect="x")), ["command_conflict"])
        self.assertEqual(codes(box.answer("run-x", f"{run}.1")), ["unknown_command"])
        self.assertEqual(codes(box.answer(run, f"{run}.1", request_id="z")), ["unknown_command"])
        self.assertEqual(box.answer(run, f"{run}.1", effect="effect"), [])

    def test_an_effect_id_that_is_none_is_rejected_I40(self) -> None:
        """The command fails closed, and the log decodes."""
        for effect in ("", "x" * 129, "a\nb", "\ud800"):
            box = Mailbox()
            box.input()
            (run,) = box.started()
            box.ask(run, ASK, effect)
            self.assertEqual([type(r) for r in self.resolved(box)], [Rejected], effect)
            self.assertEqual(facts(box)[-1], "event:command:rejected")

    def test_a_lost_origin_fails_closed_I11(self) -> None:
        """What is pending is rejected, as is what comes later, and the run goes on."""
        box, run = self.begin()
        box.do(box.machine.asker_left(1))
        box.ask(run, ASK)
        self.assertEqual(self.resolved(box), [Rejected("origin_lost")] * 2)
        reason = json.loads(box.log[-1])["event"]["data"]["reason"]
        self.assertEqual(reason, "origin_lost")
        box.end(run)
        self.assertEqual(facts(box)[-1], "done:completed")

    def test_approvals_expire_I39(self) -> None:
        """After its time a command is rejected for good; a late answer is unknown."""
        box, run = self.begin(approval_seconds=60.0)
        self.assertEqual(box.machine.deadline, 60.0)
        box.do(box.machine.time_passed(59.9))
        self.assertEqual(self.resolved(box), [])
        box.do(box.machine.time_passed(60.0))
        self.assertEqual(self.resolved(box), [Rejected("expired")])
        self.assertIn(b'"reason":"expired"', box.log[-1])
        self.assertEqual(codes(box.answer(run, f"{run}.1")), ["unknown_command"])

    def test_an_approval_dies_with_its_run_B10(self) -> None:
        """Cancelled or ended: a late yes is refused, and nothing runs."""
        box, run = self.begin()
        box.cancel(run)
        self.assertEqual(self.resolved(box), [Rejected("cancelled")])
        self.assertEqual(codes(box.answer(run, f"{run}.1")), ["command_conflict"])
        box.end(run, "cancelled")
        self.assertEqual(codes(box.answer(run, f"{run}.1")), ["command_conflict"])

    def test_a_notice_waits_for_nobody(self) -> None:
        """It is sent, and the run goes on at once."""
        box, run = self.begin()
        box.ask(run, Notify("info", "x"))
        self.assertEqual(self.resolved(box), [Accepted()])

    def test_pending_commands_are_bounded_I16(self) -> None:
        """Beyond the bound a command is rejected, not queued."""
        box, run = self.begin(max_pending_commands=2)
        box.ask(run, ASK)
        box.ask(run, ASK)
        self.assertEqual(self.resolved(box), [Rejected("limit_exceeded")])

    def test_an_origin_without_the_capability_is_not_asked(self) -> None:
        """An attachment that cannot answer fails closed at once."""
        box = Mailbox()
        item = an_input(answers=False, invokes=False)  # type: ignore[arg-type]
        box.do(box.machine.input_asked(item))
        (run,) = box.started()
        box.ask(run, ASK)
        box.ask(run, Invoke("x", Raw(b"{}")))
        self.assertEqual([type(r) for r in self.resolved(box)], [Rejected, Rejected])

    def test_a_command_that_no_frame_holds_is_rejected(self) -> None:
        """It cannot be cut, so it fails closed."""
        box, run = self.begin()
        box.ask(run, RequestApproval("rm", Raw(b'"%s"' % (b"x" * 300_000))))
        self.assertEqual([type(r) for r in self.resolved(box)], [Rejected])


class CancelTests(SynchronousTestCase):
    """Cancel (I8, I30, B22, B23)."""

    def test_the_claim_is_durable_before_the_kill_I36(self) -> None:
        """A status line with the claim comes first, then the run is ended."""
        box = Mailbox()
        box.input()
        (run,) = box.started()
        box.holds = True
        self.assertEqual(only(box.cancel(run), CancelRun), [])
        line = read_line(box.held[0].lines[0])
        assert line.x is not None
        self.assertEqual((line.kind, line.x.request_id, line.x.run), ("status", "c1", run))
        self.assertEqual(line.correlation.request_id, "r1")
        self.assertEqual(only(box.release(), CancelRun), [CancelRun(run)])
        box.holds = False
        self.assertEqual(box.emit(run, Delta("r", run, "late")), [])
        box.end(run, "completed")
        self.assertEqual(facts(box)[-1], "done:cancelled")
        self.assertEqual(box.emit(run, Message("r", run, "a", "later")), [])

    def test_a_queued_run_is_cancelled_without_a_start(self) -> None:
        """It ends at once; the others are untouched."""
        box = Mailbox()
        box.input("a")
        box.input("b")
        queued = read_line(box.log[3]).correlation.run_id or ""
        box.cancel(queued)
        self.assertEqual(facts(box)[-2:], ["status:active", "done:cancelled"])
        box.end(box.started()[0])
        self.assertEqual(len(box.started()), 1)

    def test_a_finished_run_answers_with_its_done_B22(self) -> None:
        """Nothing is written, and the next run is untouched."""
        box = Mailbox()
        box.input("a")
        (first,) = box.started()
        box.end(first)
        box.input("b")
        before = list(box.log)
        (known,) = only(box.cancel(first), Known)
        self.assertEqual(known.done, 4)
        self.assertEqual(box.log, before)

    def test_a_repeated_cancel_and_a_foreign_run(self) -> None:
        """The same cancel again kills nothing anew; an unknown run is told."""
        box = Mailbox()
        box.input("a")
        (run,) = box.started()
        box.cancel(run)
        again = box.cancel(run)
        self.assertEqual([type(a) for a in again], [Known])
        self.assertEqual(codes(box.cancel("run-x", "c2")), ["unknown_run"])
        self.assertEqual(codes(box.cancel(run, "a")), ["request_conflict"])
        self.assertEqual(codes(box.input("c1")), ["request_conflict"])

    def test_a_repeated_cancel_names_the_run_s_own_request_I8(self) -> None:
        """So that a canceller who sees nothing else sees the end of what it cancels."""
        box = Mailbox()
        box.input("a")
        (run,) = box.started()
        for _ in range(2):
            (told,) = [a for a in box.cancel(run, asker=7) if isinstance(a, Claimed | Known)]
            self.assertEqual((told.request_id, told.run_id), ("a", run))

    def test_a_cancel_of_a_run_whose_end_is_on_its_way_waits_for_it_I8(self) -> None:
        """The answer comes once the end is durable, with its seq."""
        box = Mailbox()
        box.input("a")
        (run,) = box.started()
        box.holds = True
        box.end(run)
        self.assertEqual(only(box.cancel(run), Known), [])
        (known,) = only(box.release(), Known)
        self.assertEqual(known.done, len(box.log))


class RecoveryTests(SynchronousTestCase):
    """After kill -9 (I13, B25, B26)."""

    def test_open_calls_and_runs_end_as_interrupted_B25_B26(self) -> None:
        """One end for each open call and run; the next run is told of it."""
        box = Mailbox()
        box.input("a")
        (run,) = box.started()
        box.emit(run, ToolCall("r", run, "t1", "rm", "requested"))
        box.emit(run, ToolCall("r", run, "t2", "ls", "requested"))
        box.emit(run, ToolCall("r", run, "t2", "ls", "completed"))
        box.input("b")
        again = Mailbox(box.log)
        self.assertEqual(
            facts(again)[len(box.log) :],
            ["event:tool:interrupted", "done:interrupted", "done:interrupted"],
        )
        again.input("c")
        (begun,) = only(again.actions, StartRun)
        self.assertTrue(begun.request.interrupted)
        again.end(begun.request.run)
        again.input("d")
        self.assertFalse(only(again.actions, StartRun)[1].request.interrupted)

    def test_a_retry_after_the_crash_gets_the_interrupted_end(self) -> None:
        """Nothing is run from guesswork."""
        box = Mailbox()
        box.input("a", "x")
        again = Mailbox(box.log)
        (known,) = only(again.input("a", "x"), Known)
        self.assertEqual((known.accepted, known.done), (1, len(again.log)))
        self.assertEqual(again.started(), [])

    def test_a_run_is_told_of_the_crash_until_one_completes_B26(self) -> None:
        """A run that was cancelled before it did anything does not hide the crash."""
        box = Mailbox()
        box.input("a")
        again = Mailbox(box.log)
        again.input("b")
        again.cancel(again.started()[0])
        again.end(again.started()[0], "cancelled")
        again.input("c")
        self.assertTrue(only(again.actions, StartRun)[1].request.interrupted)
        third = Mailbox(again.log)
        third.input("d")
        self.assertTrue(only(third.actions, StartRun)[0].request.interrupted)


class FailedTests(SynchronousTestCase):
    """After the log took no more (I13)."""

    def test_whatever_is_asked_is_refused_and_nothing_is_written(self) -> None:
        """Inputs, cancels and answers get session_io."""
        box = Mailbox()
        box.input()
        (run,) = box.started()
        box.ask(run, ASK)
        box.do(box.machine.append_failed(Code.SESSION_IO, "full"))
        before = list(box.log)
        asked = [*box.input("r2"), *box.cancel(run), *box.answer(run, f"{run}.1")]
        self.assertEqual(codes(asked), ["session_io"] * 3)
        box.end(run)
        self.assertEqual(box.log, before)
