"""The `echo` runtime: words with pauses, an approval first, and an end at any time."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Message, Rejected, RequestApproval, ToolCall
from cortextx.interfaces.sessions import IAgentRuntime, IRun, RunOutcome
from cortextx.runtimes.echo import EchoRun, EchoRuntime, EchoSettings
from tests.runtimes.fakes import RecordingSink, run_request


class EchoCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.sink = RecordingSink(lambda command: None)

    def begin(self, text: str = "one two", **settings: Any) -> EchoRun:
        self.runtime = EchoRuntime(self.clock, EchoSettings(**settings))
        return self.runtime.run(run_request(text=text), self.sink)

    def texts(self, kind: type) -> list[str]:
        return [event.text for event in self.sink.said if isinstance(event, kind)]

    def wait(self, seconds: float = 0.0, steps: int = 10) -> None:
        self.clock.pump([seconds / steps] * steps)


class Speaking(EchoCase):
    def test_words_and_then_the_whole(self) -> None:
        """A delta a word, nothing lost between them, then one message, then the end."""
        for text in ("one two", " a\n b  c ", "word", "", "   "):
            self.setUp()
            run = self.begin(text)
            self.wait()
            self.assertEqual("".join(self.texts(Delta)), text)
            self.assertEqual(self.texts(Message), [text])
            self.assertEqual(self.successResultOf(run.done), RunOutcome("completed"))
        self.assertTrue(IAgentRuntime.providedBy(self.runtime) and IRun.providedBy(run))

    def test_the_delay_is_between_words(self) -> None:
        """A second each, as configured."""
        self.begin("one two three", delay=1.0)
        for words in range(1, 4):
            self.clock.advance(1.0)
            self.assertEqual(len(self.texts(Delta)), words)

    def test_paused_it_says_nothing(self) -> None:
        """And goes on where it was."""
        run = self.begin("one two", delay=1.0)
        self.clock.advance(1.0)
        run.pause()
        self.clock.advance(100.0)
        self.assertEqual(self.texts(Delta), ["one "])
        run.resume()
        self.wait(5.0)
        self.assertEqual(self.texts(Delta), ["one ", "two"])


class Asking(EchoCase):
    def test_it_asks_first(self) -> None:
        """With `approve` nothing is said before a yes."""
        run = self.begin(approve=True)
        self.wait(10.0)
        asked = [said[0] for said in self.sink.said if isinstance(said, tuple)]
        self.assertIsInstance(asked[-1], RequestApproval)
        self.assertEqual(self.texts(Delta), [])
        self.sink.open[0].callback(Accepted())
        self.wait()
        self.assertEqual(self.texts(Message), ["one two"])
        self.assertEqual(self.successResultOf(run.done).status, "completed")

    def test_a_no_is_told(self) -> None:
        """The words are not said, and the run is not an error."""
        run = self.begin(approve=True)
        self.sink.open[0].callback(Rejected("not now"))
        self.assertEqual(self.texts(Message), ["I may not say that: not now"])
        self.assertEqual(self.successResultOf(run.done), RunOutcome("completed"))
        states = [event.state for event in self.sink.said if isinstance(event, ToolCall)]
        self.assertEqual(states, ["requested", "rejected"])


class Ending(EchoCase):
    def test_cancelled_it_says_no_more(self) -> None:
        """Whether it speaks, waits or asks; a late answer changes nothing."""
        for settings in ({"delay": 5.0}, {"approve": True}):
            self.setUp()
            run = self.begin(**settings)
            run.cancel(1.0)
            self.assertEqual(self.successResultOf(run.done).status, "cancelled")
            run.cancel(1.0)
            for answer in self.sink.open:
                answer.callback(Accepted())
            self.wait(60.0)
            self.assertEqual(self.texts(Message), [])
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stop_ends_all(self) -> None:
        """It fires once none is left."""
        run = self.begin(delay=5.0)
        other = self.runtime.run(run_request(), self.sink)
        self.successResultOf(self.runtime.stop())
        for each in (run, other):
            self.assertEqual(self.successResultOf(each.done).status, "cancelled")
        self.successResultOf(self.runtime.stop())

    def test_settings(self) -> None:
        """A pause is a number of seconds up to an hour."""
        for delay in (-1.0, 3601.0, float("nan")):
            self.assertRaises(ValueError, EchoSettings, delay=delay)
