"""The programs in docs/runtimes.md, run as they are printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec import Raw
from twisted.internet import reactor

from cortextx.core.exchange import Accepted, Rejected, RequestApproval, RequestInput, Value
from cortextx.interfaces.sessions import RunOutcome
from cortextx.runtimes.exec import ExecRuntime
from cortextx.runtimes.settings import ExecSettings
from tests.integration.test_exec import ExecCase
from tests.runtimes.fakes import RecordingSink, run_request

DOCS = Path(__file__).parents[2] / "docs" / "runtimes.md"


def printed(language: str) -> str:
    """The one program in this language."""
    [program] = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(program)


class PrintedTests(ExecCase):
    async def test_the_python_program_asks_and_answers(self) -> None:
        def answer(command: Any) -> Any:
            if isinstance(command, RequestInput):
                return Value(Raw(b'"Ada"'))
            self.assertEqual(command, RequestApproval("clock", Raw(b'{"for":"Ada"}')))
            return Accepted()

        program = printed("python")
        sink = RecordingSink(answer)
        self.assertEqual(
            await self.runtime(program).run(run_request(), sink).done, RunOutcome("completed")
        )
        [(_, text)] = sink.messages
        self.assertRegex(text, r"\A\d\d:\d\d, Ada\.\Z")
        self.assertEqual(sink.deltas, "One moment … ")

    async def test_the_shell_program_heeds_both_answers(self) -> None:
        runtime = ExecRuntime(reactor, ExecSettings(command=["/bin/sh", "-c", printed("sh")]))
        for answer, words in [(Accepted(), r"\A\d{4}\Z"), (Rejected("no"), r"\AThen not\.\Z")]:
            sink = RecordingSink(lambda command, answer=answer: answer)
            outcome = await runtime.run(run_request(), sink).done
            self.assertEqual(outcome, RunOutcome("completed"))
            self.assertRegex(sink.messages[0][1], words)
