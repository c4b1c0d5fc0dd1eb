"""The model runtime's conversation, with an endpoint and tools that the test plays."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from cortextx.core.exchange import Accepted, Rejected, RequestApproval, Value
from cortextx.interfaces.sessions import IAgentRuntime, IRun, RunOutcome
from cortextx.runtimes.chat import Answer, Call
from cortextx.runtimes.endpoint import EndpointFault
from cortextx.runtimes.model import CANCELLED, ModelRun, ModelRuntime
from cortextx.runtimes.processes import Ended
from cortextx.runtimes.settings import ModelSettings, ToolSettings
from tests.runtimes.fakes import FakeChild, RecordingSink, run_request

CALL = Call("c1", "shell", Raw(b'{"command":"date"}'))


class FakeAsking:
    """One question; the test gives its answer."""

    def __init__(self, body: bytes, key: str | None, text_came: Callable[[str], None]) -> None:
        self.body = json.loads(body)
        self.key = key
        self.answer: Deferred[Answer] = Deferred()
        self.text = ""
        self.asked: list[str] = []
        self._text_came = text_came

    def say(self, text: str) -> None:
        self.text += text
        self._text_came(text)

    def finish(self, *calls: Call, finish: str = "stop") -> None:
        self.answer.callback(Answer(self.text, calls, finish))

    def end(self) -> None:
        self.asked.append("end")
        if not self.answer.called:
            self.answer.errback(EndpointFault("it was cancelled"))

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")


class FakeEndpoint:
    """Takes questions down."""

    url = "http://h"

    def __init__(self) -> None:
        self.asked: list[FakeAsking] = []

    def ask(self, body: bytes, key: str | None, text_came: Callable[[str], None]) -> FakeAsking:
        self.asked.append(FakeAsking(body, key, text_came))
        return self.asked[-1]

    def close(self) -> Deferred[None]:
        return succeed(None)


class ModelCase(SynchronousTestCase):
    def begin(self, sink: RecordingSink | None = None, **settings: Any) -> ModelRun:
        self.clock = Clock()
        self.endpoint: Any = FakeEndpoint()
        self.children: list[FakeChild] = []
        self.sink = sink or RecordingSink()

        def spawn(*arguments: Any) -> FakeChild:
            self.children.append(FakeChild(*arguments))
            return self.children[-1]

        child: Any = spawn
        tool = ToolSettings(command=["sh"], description="Run a command", env={"A": "1"})
        values: dict[str, Any] = {"url": "http://h", "model": "m", "tools": {"shell": tool}}
        self.runtime = ModelRuntime(
            self.clock,
            ModelSettings(**(values | settings)),
            environ={"KEY": "k"},
            endpoint=self.endpoint,
            spawn=child,
        )
        self.model_run = self.runtime.run(run_request(), self.sink)
        self.assertEqual(self.sink.said, [])
        self.clock.advance(0)
        return self.model_run

    @property
    def asking(self) -> FakeAsking:
        asking: FakeAsking = self.endpoint.asked[-1]
        return asking

    def outcome(self) -> RunOutcome:
        outcome = self.successResultOf(self.model_run.done)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        return outcome

    def told(self) -> Any:
        """What the model was told last."""
        return self.asking.body["messages"][-1]["content"]


class AnswerTests(ModelCase):
    def test_it_plays_its_role(self) -> None:
        run = self.begin()
        self.assertTrue(verifyObject(IAgentRuntime, self.runtime))
        self.assertTrue(verifyObject(IRun, run))

    def test_an_answer_is_shown_and_kept(self) -> None:
        self.begin(api_key_env="KEY")
        self.asking.say("a")
        self.asking.say("b")
        self.asking.finish()
        self.assertEqual(self.outcome(), RunOutcome("completed"))
        self.assertEqual(self.sink.said[0], ("started", "m"))
        self.assertEqual((self.sink.deltas, self.sink.messages), ("ab", [("assistant", "ab")]))
        self.assertEqual(self.asking.key, "k")

    def test_an_answer_that_was_cut_is_kept_and_an_error(self) -> None:
        self.begin()
        self.asking.say("a")
        self.asking.finish(CALL, finish="length")
        self.assertEqual(self.outcome(), RunOutcome("error", "the answer was cut (length)"))
        self.assertEqual(self.sink.messages, [("assistant", "a")])
        self.assertEqual(self.children, [])

    def test_a_fault_of_the_endpoint_is_told(self) -> None:
        self.begin()
        self.asking.say("a")
        self.asking.answer.errback(EndpointFault("why"))
        self.assertEqual(self.outcome(), RunOutcome("error", "the model: why"))
        self.assertEqual(self.sink.messages, [("assistant", "a")])

    def test_a_key_that_is_not_there_asks_nothing(self) -> None:
        self.begin(api_key_env="ABSENT")
        self.assertEqual(self.outcome(), RunOutcome("error", "the model's key cannot be read"))
        self.assertEqual(self.endpoint.asked, [])

    def test_a_bug_of_ours_is_internal(self) -> None:
        self.begin()
        self.asking.answer.errback(RuntimeError("a bug"))
        self.assertEqual(self.outcome(), RunOutcome("error", "internal"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_pause_reaches_the_answer_also_one_that_is_asked_for_later(self) -> None:
        run = self.begin()
        run.pause()
        run.resume()
        self.assertEqual(self.asking.asked, ["pause", "resume"])
        run.pause()
        self.asking.finish(Call("c", "no-such", Raw(b"{}")))
        self.assertEqual(self.asking.asked, ["pause"])


class ToolTests(ModelCase):
    def test_a_tool_runs_after_its_approval_and_its_output_goes_back(self) -> None:
        self.begin(RecordingSink(lambda command: None))
        self.asking.finish(CALL)
        self.assertEqual(self.sink.said[-1], (RequestApproval("shell", CALL.arguments), None))
        self.assertEqual(self.children, [])
        self.sink.open[0].callback(Accepted())
        [child] = self.children
        self.assertEqual(child.written, b'{"command":"date"}\n')
        self.assertEqual(child.asked, ["start", "close_input"])
        self.assertEqual((child.launch.command, child.launch.environment), (["sh"], {"A": "1"}))
        child.receiver.output_came(b"out\xff")
        child.ended.callback(Ended(code=0))
        self.assertEqual(self.told(), "out\ufffd")
        states = [state for *_, state in self.sink.tools]
        self.assertEqual(states, ["requested", "running", "completed"])
        self.asking.finish()
        self.assertEqual(self.outcome(), RunOutcome("completed"))

    def test_only_an_approval_is_one(self) -> None:
        for answer in (Rejected("no"), Rejected(""), Value(Raw(b"true"))):
            self.begin(RecordingSink(lambda command, answer=answer: answer))
            self.asking.finish(CALL)
            self.assertEqual(self.children, [])
            self.assertIn("[the call was refused: ", self.told())
            self.assertEqual([state for *_, state in self.sink.tools], ["requested", "rejected"])

    def test_what_cannot_run_is_not_asked_for(self) -> None:
        for call in (
            Call("c", "other", Raw(b"{}")),
            Call("c", "shell", Raw(b'"text"')),
            Call("c", "shell", Raw(b'{"a":"%s"}' % (b"x" * 100_000))),
        ):
            self.begin(RecordingSink(lambda command: self.fail("asked")))
            self.asking.finish(call)
            self.assertIn("[the call was refused: ", self.told())

    def test_calls_run_one_after_the_other(self) -> None:
        self.begin()
        self.asking.finish(CALL, Call("c2", "shell", Raw(b"{}")))
        self.assertEqual(len(self.children), 1)
        self.children[0].ended.callback(Ended(code=3))
        self.assertEqual(len(self.children), 2)
        self.children[1].ended.callback(Ended(code=0))
        roles = [message["role"] for message in self.asking.body["messages"]]
        self.assertEqual(roles, ["user", "assistant", "tool", "tool"])
        failed = self.asking.body["messages"][2]["content"]
        self.assertEqual(failed, "\n[the tool failed: it ended with code 3]")

    def test_a_tool_is_bounded_in_time_and_output(self) -> None:
        self.begin()
        self.asking.finish(CALL)
        self.clock.advance(60.0)
        self.assertEqual(self.children[0].asked[-1], ("end", 1.0))
        self.children[0].ended.callback(Ended(signal=15))
        self.assertIn("the time is up", self.told())

        self.begin()
        self.asking.finish(CALL)
        self.children[0].receiver.output_came(b"x" * 100_000)
        self.assertEqual(self.children[0].asked[-1], ("end", 0.0))
        self.children[0].ended.callback(Ended(signal=9))
        self.assertIn("its output is too long", self.told())
        self.assertLess(len(self.told()), 70_000)

    def test_calls_without_an_end_are_ended(self) -> None:
        self.begin(RecordingSink(lambda command: Rejected("no")), max_rounds=3)
        for _ in range(3):
            self.asking.finish(CALL)
        self.assertIn("max_rounds", self.outcome().message or "")


class EndingTests(ModelCase):
    def test_b23_cancel_ends_an_answer_and_keeps_what_was_shown(self) -> None:
        run = self.begin()
        self.asking.say("a")
        run.cancel(1.0)
        self.assertEqual(self.outcome(), CANCELLED)
        self.assertEqual(self.sink.messages, [("assistant", "a")])

    def test_b10_cancel_ends_an_approval_and_a_late_yes_runs_nothing(self) -> None:
        run = self.begin(RecordingSink(lambda command: None))
        self.asking.finish(CALL)
        run.cancel(1.0)
        self.assertEqual(self.outcome(), CANCELLED)
        said = len(self.sink.said)
        self.sink.open[0].callback(Accepted())
        self.assertEqual((self.children, len(self.sink.said)), ([], said))

    def test_b23_cancel_waits_until_a_tool_is_gone_and_asks_no_more(self) -> None:
        run = self.begin()
        self.asking.finish(CALL)
        run.cancel(0.7)
        self.assertEqual(self.children[0].asked[-1], ("end", 0.7))
        self.assertNoResult(run.done)
        self.children[0].ended.callback(Ended(signal=15))
        self.assertEqual(self.outcome(), CANCELLED)
        self.assertEqual(len(self.endpoint.asked), 1)
        self.assertEqual(self.sink.tools[-1], ("c1", "shell", "failed"))

    def test_cancel_from_within_a_delta_is_heeded(self) -> None:
        run = self.begin()
        self.sink.heard = lambda said: run.cancel(1.0) if self.sink.deltas == "a" else None
        self.asking.say("a")
        self.assertEqual(self.outcome(), CANCELLED)

    def test_time_is_up_for_all_of_it(self) -> None:
        self.begin(timeout=5.0)
        self.clock.advance(5.0)
        self.assertEqual(self.outcome(), RunOutcome("error", "the time is up"))

    def test_runs_beyond_the_limit_wait_and_stop_ends_them_all(self) -> None:
        self.begin(max_runs=1)
        second = self.runtime.run(run_request(run="run-2"), RecordingSink())
        self.assertEqual(len(self.endpoint.asked), 1)
        stopped = self.runtime.stop()
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual(self.successResultOf(second.done), CANCELLED)
        self.assertEqual(self.outcome(), CANCELLED)
