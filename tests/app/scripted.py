"""The command line in this process, with scripted sockets in place of a server and an agent."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from cortextx.app.cli.client import Client
from cortextx.app.cli.faults import NotReachable
from cortextx.app.cli.invocation import Invocation
from cortextx.app.cli.main import run


@dataclass
class Answer:
    """What one request gets: its rows, and then an end or an error to raise."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None


class ScriptedClient(Client):
    """Answers by a list, in order, and remembers what it was asked."""

    def __init__(self, script: list[Answer | None], asked: list[tuple[str, dict[str, Any]]]):
        self._script = script
        self._asked = asked

    def close(self) -> None:
        pass

    def allow(self, seconds: float) -> None:
        pass

    def stream(
        self, op: str, *, follow: bool = False, **args: Any
    ) -> Generator[dict[str, Any], None, dict[str, Any]]:
        if follow:
            args["follow"] = True
        self._asked.append((op, {k: v for k, v in args.items() if v is not None}))
        answer = self._script.pop(0)
        assert answer is not None
        yield from answer.rows
        if answer.error is not None:
            raise answer.error
        return answer.end


@dataclass
class Outcome:
    """What a command printed and answered."""

    code: int
    out: str
    err: str


class Scripted:
    """A command line whose server and agent follow `script`; None stands for nobody there."""

    def __init__(self, *script: Answer | None, directory: str = "/nonexistent") -> None:
        self.directory = directory
        self.script = list(script)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.slept: list[float] = []

    def _connect(self, directory: str) -> Client:
        if self.script and self.script[0] is None:
            self.script.pop(0)
            raise NotReachable(f"no server runs on {directory}", "start one")
        return ScriptedClient(self.script, self.asked)

    def __call__(self, *args: str, stdin: str = "") -> Outcome:
        """Run `cortextx ARGS`."""
        out, err = io.StringIO(), io.StringIO()
        invocation = Invocation(
            connect_server=self._connect,
            connect_agent=self._connect,
            now=lambda: 1_800_000_000.0,
            sleep=self.slept.append,
        )
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            replaced_stdin(stdin),
        ):
            code = run(["--state-dir", self.directory, *args], obj=invocation)
        return Outcome(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def replaced_stdin(text: str) -> Generator[None, None, None]:
    """Let standard input be `text`, which is no terminal."""
    import sys

    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before
