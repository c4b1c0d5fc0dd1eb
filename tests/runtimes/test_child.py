"""The small SDK for exec children, against what the runtime reads and writes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange
from cortextx.core.exchange import Delta, Message, ToolCall
from cortextx.interfaces.sessions import RunOutcome
from cortextx.runtimes import child
from cortextx.runtimes.childlines import Asked, Began, Erred, Finished, answer, envelope, read_line
from tests.runtimes.fakes import run_request

IDS = ("q-1", "run-1")


class ChildTests(SynchronousTestCase):
    def run_with(self, *answers: bytes) -> child.Run:
        self.out = io.StringIO()
        source = io.StringIO(b"".join(answers).decode())
        self.request = run_request("hi", history=[Message("q", "r", "user", "before")])
        return child.Run(json.loads(envelope(self.request)), source, self.out)

    def heard(self) -> Sequence[Any]:
        lines = self.out.getvalue().splitlines()
        return [read_line(line.encode(), self.request)[0] for line in lines]

    def test_what_is_said_is_what_the_runtime_hears(self) -> None:
        run = self.run_with()
        self.assertEqual(
            (run.input, run.run, run.session, run.cwd), ("hi", "run-1", "default", "/tmp")
        )
        self.assertEqual(run.history, [{"role": "user", "content": "before"}])
        run.start("m")
        run.delta("é\n")
        run.message("m")
        run.tool("1", "n", "running")
        run.error("bad", recoverable=True)
        run.done()
        self.assertEqual(
            self.heard(),
            [
                Began("m"),
                Delta(*IDS, "é\n"),
                Message(*IDS, "assistant", "m"),
                ToolCall(*IDS, "1", "n", "running"),
                Erred("EIO: bad", recoverable=True),
                Finished(RunOutcome("completed")),
            ],
        )

    def test_asking_waits_for_the_answer_to_what_was_asked(self) -> None:
        run = self.run_with(
            answer("another", exchange.Accepted()),
            answer("c1", exchange.Accepted()),
            answer("c2", exchange.Rejected("no")),
            answer("c3", exchange.Value(Raw(b'"words"'))),
            answer("c4", exchange.Accepted()),
            answer("c5", exchange.Rejected("full")),
        )
        self.assertTrue(run.approve("shell", {"a": 1}))
        self.assertFalse(run.approve("shell", {"a": 2}))
        self.assertEqual(run.ask("?"), "words")
        run.notify("n")
        refused = self.assertRaises(child.Refused, run.invoke, "open", {}, "e")
        self.assertEqual(str(refused), "full")
        self.assertRaises(EOFError, run.ask, "nobody?")
        heard = self.heard()
        self.assertEqual([asked.id for asked in heard], [f"c{number}" for number in range(1, 7)])
        self.assertEqual(heard[4], Asked("c5", exchange.Invoke("open", Raw(b"{}")), "e"))
        self.assertEqual(heard[3].command, exchange.Notify("info", "n"))

    def test_a_function_of_another_module_is_left_alone(self) -> None:
        self.assertIs(child.main(child.serve), child.serve)  # type: ignore[arg-type]
