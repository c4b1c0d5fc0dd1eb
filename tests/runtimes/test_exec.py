"""The exec runtime with a child that the test plays."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from cortextx.core.exchange import Accepted, Delta, RequestInput
from cortextx.interfaces.sessions import IAgentRuntime, IRun, RunOutcome
from cortextx.runtimes.exec import (
    CANCELLED,
    LINGER_SECONDS,
    MAX_PENDING,
    MAX_UNREAD_BYTES,
    STARTED_SECONDS,
    ExecRun,
    ExecRuntime,
)
from cortextx.runtimes.processes import Ended
from cortextx.runtimes.remains import receipt_of
from cortextx.runtimes.settings import ExecSettings
from tests.runtimes.fakes import KEY, FakeChild, RecordingSink, run_request


class FakeRemains:
    """Takes down which receipts are to be ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end(self, receipts: Any) -> Deferred[None]:
        self.ended += receipts
        return succeed(None)


class ExecCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.children: list[FakeChild] = []
        self.remains = FakeRemains()

    def runtime(self, **settings: Any) -> ExecRuntime:
        def spawn(*arguments: Any) -> FakeChild:
            self.children.append(FakeChild(*arguments))
            return self.children[-1]

        values = {"command": ["agent"]} | settings
        remains: Any = self.remains
        child: Any = spawn
        environ = {"PATH": "/secret", "WANTED": "1"}
        return ExecRuntime(
            self.clock, ExecSettings(**values), environ=environ, remains=remains, spawn=child
        )

    def begin(self, sink: RecordingSink | None = None, **settings: Any) -> ExecRun:
        self.sink = sink or RecordingSink()
        self.ran = self.runtime(**settings)
        self.run_ = self.ran.run(run_request(), self.sink)
        self.clock.advance(0)
        self.child = self.children[-1]
        return self.run_

    def write(self, *lines: str) -> None:
        self.child.receiver.output_came("".join(line + "\n" for line in lines).encode())

    def end(self, ended: Ended | None = None) -> RunOutcome:
        self.child.ended.callback(ended or Ended(code=0))
        return self.successResultOf(self.run_.done)

    def answers(self) -> list[Any]:
        return [json.loads(line) for line in self.child.written.splitlines()[1:]]


class RunTests(ExecCase):
    def test_it_plays_its_role(self) -> None:
        run = self.begin()
        self.assertTrue(verifyObject(IAgentRuntime, self.ran))
        self.assertTrue(verifyObject(IRun, run))

    def test_a_sink_hears_nothing_before_its_run_is_known(self) -> None:
        sink = RecordingSink()
        self.runtime().run(run_request(), sink)
        self.assertEqual(self.children[0].asked, [])
        self.assertEqual(sink.said, [])

    def test_the_child_gets_what_it_is_to_know_and_no_more(self) -> None:
        self.begin(env={"MINE": "2"}, pass_env=["WANTED", "ABSENT"])
        launch = self.child.launch
        self.assertEqual(launch.receipt, receipt_of(KEY, "run-1"))
        self.assertEqual((launch.command, launch.cwd, launch.root), (["agent"], "/tmp", "/"))
        self.assertEqual(
            launch.environment,
            {
                "MINE": "2",
                "WANTED": "1",
                "CORTEXTX_AGENT": "helper",
                "CORTEXTX_SESSION": "default",
                "CORTEXTX_RUN": "run-1",
            },
        )
        self.assertEqual(json.loads(self.child.written)["input"], "hi")

    def test_output_comes_in_order_and_then_the_outcome(self) -> None:
        run = self.begin()
        self.write('{"type":"start","model":"m"}', '{"type":"delta","text":"a"}')
        self.write('{"type":"message","content":"a"}', '{"type":"done"}')
        self.assertEqual(self.child.asked, ["start", "close_input"])
        self.assertNoResult(run.done)
        self.assertEqual(self.end(), RunOutcome("completed"))
        self.assertEqual(self.sink.said[0], ("started", "m"))
        self.assertEqual(self.sink.deltas, "a")
        self.assertEqual(self.sink.messages, [("assistant", "a")])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cut_anywhere_the_output_is_the_same(self) -> None:
        text = '{"type":"delta","text":"é"}\n{"type":"done"}\n'.encode()
        for cut in range(len(text)):
            self.begin()
            self.child.receiver.output_came(text[:cut])
            self.child.receiver.output_came(text[cut:])
            self.assertEqual(self.end(), RunOutcome("completed"))
            self.assertEqual(self.sink.deltas, "é")

    def test_a_silent_child_counts_as_started_soon(self) -> None:
        self.begin()
        self.clock.advance(STARTED_SECONDS)
        self.write('{"type":"start","model":"m"}')
        self.assertEqual(self.sink.said, [("started", None)])

    def test_nothing_counts_after_done(self) -> None:
        self.begin()
        self.write('{"type":"done"}', '{"type":"delta","text":"late"}', "{broken")
        self.assertEqual(self.end(), RunOutcome("completed"))
        self.assertEqual(self.sink.deltas, "")

    def test_a_child_that_stays_after_done_is_ended(self) -> None:
        self.begin()
        self.write('{"type":"done"}')
        self.clock.advance(LINGER_SECONDS)
        self.assertEqual(self.child.asked[-1], ("end", 1.0))
        self.assertEqual(self.end(Ended(signal=15)), RunOutcome("completed"))

    def test_an_end_without_done_is_an_error(self) -> None:
        for ended, words in [
            (Ended(code=0), "it ended with code 0"),
            (Ended(code=None, signal=9), "it was ended by signal 9"),
            (Ended(refusal="command: no"), "it could not be started (command: no)"),
        ]:
            self.begin()
            outcome = self.end(ended)
            self.assertEqual(outcome.status, "error")
            self.assertIn(words, outcome.message or "")

    def test_an_error_that_is_told_is_the_outcomes_message(self) -> None:
        for last in ((), ('{"type":"done","status":"error"}',)):
            self.begin()
            self.write('{"type":"error","message":"m"}', *last)
            self.assertEqual(self.end(), RunOutcome("error", "m"))

    def test_an_error_that_is_recoverable_is_none_of_the_outcome(self) -> None:
        self.begin()
        self.write('{"type":"error","message":"m","recoverable":true}', '{"type":"done"}')
        self.assertEqual(self.end(), RunOutcome("completed"))

    def test_a_fault_ends_the_child_and_names_the_line(self) -> None:
        self.begin()
        self.write("noise", '{"type":"delta","text":"a"}', '{"type":"delta"}')
        self.write('{"type":"delta","text":"late"}')
        self.assertEqual(self.child.asked[-1], ("end", 0.0))
        outcome = self.end(Ended(signal=9))
        self.assertIn("line 3 of the child: $.text", outcome.message or "")
        self.assertEqual(self.sink.deltas, "a")

    def test_output_is_bounded_by_line_and_in_all(self) -> None:
        self.begin(max_line_bytes=100)
        self.write('{"type":"delta","text":"a"}', "x" * 100)
        self.assertIn("longer than 100 bytes", self.end(Ended(signal=9)).message or "")
        self.assertEqual(self.sink.deltas, "a")
        self.begin(max_output_bytes=50)
        self.write(*['{"type":"delta","text":"a"}'] * 3)
        self.assertIn("max_output_bytes", self.end(Ended(signal=9)).message or "")

    def test_a_bug_of_ours_leaves_no_child_behind(self) -> None:
        self.begin()

        def fail(said: Any) -> None:
            raise RuntimeError("a bug")

        self.sink.heard = fail
        self.write('{"type":"delta","text":"a"}')
        self.assertEqual(self.child.asked[-1], ("end", 0.0))
        self.assertEqual(self.end(Ended(signal=9)), RunOutcome("error", "internal"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_pause_holds_what_has_come_already(self) -> None:
        run = self.begin()
        self.sink.heard = lambda said: run.pause() if isinstance(said, Delta) else None
        self.write('{"type":"delta","text":"a"}', '{"type":"delta","text":"b"}', '{"type":"done"}')
        self.assertEqual(self.sink.deltas, "a")
        self.child.ended.callback(Ended(code=0))
        self.assertNoResult(run.done)
        run.resume()
        self.assertEqual(self.sink.deltas, "ab")
        run.resume()
        self.assertEqual(self.successResultOf(run.done), RunOutcome("completed"))


class AskingTests(ExecCase):
    ask = '{"type":"command","command_id":"%s","command":{"type":"request_input","prompt":"?"}}'

    def test_an_answer_goes_back_under_the_childs_id(self) -> None:
        self.begin(RecordingSink(lambda command: None))
        self.write(self.ask % "a", self.ask % "b")
        self.sink.open[1].callback(Accepted())
        self.assertEqual([line["command_id"] for line in self.answers()], ["b"])
        self.assertEqual(self.sink.said[1:], [(RequestInput("?"), None)] * 2)

    def test_what_is_pending_is_bounded_and_not_asked_twice(self) -> None:
        self.begin(RecordingSink(lambda command: None))
        self.write(self.ask % "c0", self.ask % "c0")
        self.write(*[self.ask % f"c{number}" for number in range(1, MAX_PENDING + 2)])
        self.assertEqual(len(self.sink.open), MAX_PENDING)
        self.assertEqual(
            [line["command_id"] for line in self.answers()],
            ["c0", f"c{MAX_PENDING}", f"c{MAX_PENDING + 1}"],
        )

    def test_a_child_that_reads_no_answers_is_ended(self) -> None:
        self.begin()
        self.child.input_is_full = True
        count = MAX_UNREAD_BYTES // 50
        self.write(*[self.ask % number for number in range(count)])
        self.assertEqual(self.child.asked[-1], ("end", 0.0))
        self.assertLess(len(self.child.written), MAX_UNREAD_BYTES + 1000)

    def test_a_late_answer_goes_nowhere(self) -> None:
        self.begin(RecordingSink(lambda command: None))
        self.write(self.ask % "a", '{"type":"done"}')
        self.end()
        self.sink.reject_open()
        self.assertEqual(self.answers(), [])


class AnyOrderTests(ExecCase):
    """Whatever happens in whatever order, a run ends once, and says nothing after it."""

    lines = (
        '{"type":"delta","text":"%d"}',
        '{"type":"approval_request","id":"%d","name":"n"}',
        '{"type":"error","message":"%d"}',
        '{"type":"done"}',
        "noise %d",
        '{"type":"delta"}',
    )

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(
            st.sampled_from(["line", "pause", "resume", "cancel", "end", "time", "answer"])
            | st.integers(0, 5),
            max_size=30,
        )
    )
    def test_a_run_ends_once_and_says_nothing_after_it(self, steps: list[Any]) -> None:
        self.children = []
        self.clock = Clock()
        run = self.begin(RecordingSink(lambda command: None))
        said_at_end: list[int] = []
        run.done.addCallback(lambda _outcome: said_at_end.append(len(self.sink.said)))
        for number, step in enumerate(steps):
            match step:
                case int() if not self.child.ended.called:
                    line = self.lines[step]
                    self.write(line % number if "%d" in line else line)
                case "pause":
                    run.pause()
                case "resume":
                    run.resume()
                case "cancel":
                    run.cancel(1.0)
                case "time":
                    self.clock.advance(2.0)
                case "answer":
                    self.sink.reject_open()
                case "end" if not self.child.ended.called:
                    self.child.ended.callback(Ended(code=0))
        if not self.child.ended.called:
            self.child.ended.callback(Ended(code=0))
        run.resume()
        self.clock.advance(10_000)
        self.sink.reject_open()
        self.assertEqual(said_at_end, [len(self.sink.said)])
        texts = [int(said.text) for said in self.sink.said if isinstance(said, Delta)]
        self.assertEqual(texts, sorted(texts))


class EndingTests(ExecCase):
    def test_b23_a_cancelled_run_is_cancelled_whatever_the_child_says_then(self) -> None:
        run = self.begin()
        run.cancel(0.7)
        self.assertEqual(self.child.asked[-1], ("end", 0.7))
        self.write('{"type":"error","message":"m"}', '{"type":"done"}')
        self.assertNoResult(run.done)
        self.assertEqual(self.end(Ended(signal=15)), CANCELLED)

    def test_b23_slow_readers_do_not_hold_up_a_cancel(self) -> None:
        for before in (True, False):
            run = self.begin()
            if before:
                run.pause()
            run.cancel(0.7)
            if not before:
                run.pause()
            self.assertNotIn("pause", self.child.asked[-1:])
            self.write(*['{"type":"delta","text":"a"}'] * 3)
            self.assertEqual(self.end(Ended(signal=15)), CANCELLED)
            self.assertEqual(self.sink.deltas, "")

    def test_a_pause_before_the_child_is_there_reaches_it(self) -> None:
        self.begin(max_runs=1)
        second = self.ran.run(run_request(run="run-2"), RecordingSink())
        second.pause()
        self.end()
        self.assertEqual(self.children[1].asked, ["pause"])

    def test_a_run_that_is_done_cannot_be_cancelled_any_more(self) -> None:
        run = self.begin()
        self.write('{"type":"done"}')
        run.cancel(0.7)
        self.assertEqual(self.end(), RunOutcome("completed"))

    def test_a_run_that_is_cancelled_before_its_child_starts_starts_none(self) -> None:
        run = self.runtime().run(run_request(), RecordingSink())
        run.cancel(1.0)
        self.clock.advance(0)
        self.assertEqual(self.children[0].asked, [("end", 1.0)])
        self.assertEqual(self.successResultOf(run.done), CANCELLED)

    def test_runs_beyond_the_limit_wait_for_a_slot(self) -> None:
        self.begin(max_runs=1)
        second = self.ran.run(run_request(run="run-2"), RecordingSink())
        third = self.ran.run(run_request(run="run-3"), RecordingSink())
        self.assertEqual(len(self.children), 1)
        second.cancel(1.0)
        self.clock.advance(0)
        self.assertEqual(self.successResultOf(second.done), CANCELLED)
        self.write('{"type":"done"}')
        self.end()
        self.assertEqual(len(self.children), 2)
        self.assertNoResult(third.done)

    def test_stop_waits_until_no_run_is_left(self) -> None:
        self.begin(max_runs=1)
        self.ran.run(run_request(run="run-2"), RecordingSink())
        stopped = self.ran.stop()
        self.assertNoResult(stopped)
        self.end(Ended(signal=15))
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual(len(self.children), 1)

    def test_time_is_up(self) -> None:
        self.begin(timeout=5.0)
        self.clock.advance(5.0)
        self.assertEqual(self.end(Ended(signal=15)), RunOutcome("error", "the time is up"))

    def test_clear_asks_for_the_receipts_of_the_runs(self) -> None:
        self.successResultOf(self.runtime().clear(KEY, ["a", "b"]))
        self.assertEqual(self.remains.ended, [receipt_of(KEY, "a"), receipt_of(KEY, "b")])
        self.assertEqual(len({receipt_of(KEY, "a"), receipt_of(KEY, "b")}), 2)
