"""For programs that an `exec` agent runs: read the request, say what happens.

    from cortextx.runtimes import child

    @child.main
    def answer(run: child.Run) -> None:
        for word in run.input.split():
            run.delta(word + " ")
        if run.approve("shell", {"command": "date"}):
            ...
        run.message("It is late.")

It needs the standard library only, and may be copied into a program of its own.
Standard output belongs to the protocol: within `main`, `print` goes to standard
error, and so to the slave's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO


class Refused(Exception):
    """What was asked was refused; the text is the reason."""


class Run:
    """One run: what is asked for, and the ways to answer.

    `input` is the user's text. `history` is the session's earlier messages, each
    with `role` and `content`, the newest last. `interrupted` says that the run
    before this one ended unproved: what it did may have had effects. `request` is
    all of the envelope.
    """

    def __init__(self, request: Mapping[str, Any], source: TextIO, sink: TextIO) -> None:
        self.request = request
        self.input: str = request["input"]
        self.run: str = request["run"]
        self.session: str = request["session"]
        self.cwd: str = request["cwd"]
        self.workspace: str = request["workspace"]
        self.history: list[dict[str, str]] = request.get("history", [])
        self.interrupted: bool = request.get("interrupted", False)
        self.event: dict[str, Any] | None = request.get("event")
        self._source = source
        self._sink = sink
        self._asked = 0

    def start(self, model: str | None = None) -> None:
        """Say that the work begins, and with which model."""
        self.say("start", model=model)

    def delta(self, text: str) -> None:
        """Show a piece of text at once; it is not kept."""
        self.say("delta", text=text)

    def message(self, text: str, role: str = "assistant") -> None:
        """Add a whole message to the session."""
        self.say("message", role=role, content=text)

    def tool(self, call_id: str, name: str, state: str) -> None:
        """Tell how a tool call is: requested, running, completed, failed, …"""
        self.say("tool", call_id=call_id, name=name, state=state)

    def approve(self, tool: str, arguments: Any) -> bool:
        """Ask whether a tool may run; waits, and answers False for any refusal."""
        try:
            self.command({"type": "request_approval", "tool": tool, "arguments": arguments})
        except Refused:
            return False
        return True

    def ask(self, prompt: str) -> Any:
        """Ask the user for words, and wait for them. Raises Refused."""
        return self.command({"type": "request_input", "prompt": prompt})

    def notify(self, text: str, level: str = "info") -> None:
        """Tell the user something; waits until it is shown. Raises Refused."""
        self.command({"type": "notify", "level": level, "text": text})

    def invoke(self, name: str, payload: Any, effect_id: str | None = None) -> Any:
        """Have the frontend do something, once for an `effect_id`. Raises Refused."""
        return self.command({"type": "invoke", "name": name, "payload": payload}, effect_id)

    def command(self, command: Mapping[str, Any], effect_id: str | None = None) -> Any:
        """Ask the run's origin, and wait: answers its value, None where it only accepts.

        Raises Refused; and EOFError when there is nobody left to answer.
        """
        self._asked += 1
        command_id = f"c{self._asked}"
        more = {} if effect_id is None else {"effect_id": effect_id}
        self.say("command", command_id=command_id, command=command, **more)
        while True:
            line = self._source.readline()
            if not line:
                raise EOFError("the slave answers no more")
            answer = json.loads(line)
            if answer.get("command_id") == command_id:
                break
        result = answer["result"]
        if result["type"] == "rejected":
            raise Refused(result["reason"])
        return result.get("payload")

    def error(self, message: str, code: str = "EIO", recoverable: bool = False) -> None:
        """Tell of an error; one that is not recoverable makes the run fail."""
        self.say("error", code=code, message=message, recoverable=recoverable)

    def done(self, status: str = "completed") -> None:
        """Say that the run is over; `main` does it where the function just returns."""
        self.say("done", status=status)

    def say(self, type: str, **members: Any) -> None:
        """Write one line of the protocol."""
        line = json.dumps({"type": type, "run": self.run, **members}, separators=(",", ":"))
        self._sink.write(line + "\n")
        self._sink.flush()


def main(function: Callable[[Run], object]) -> Callable[[Run], object]:
    """Run the function for the request on standard input, when it is a program's own.

    An exception makes the run fail: its type is told, its traceback is logged.
    """
    if function.__module__ == "__main__":
        sys.exit(serve(function))
    return function


def serve(function: Callable[[Run], object]) -> int:
    """Read the request, call the function, say how it ended; answers the exit code."""
    # A descriptor of its own, so that no library's print and no child's output ends up
    # among the lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    source = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    line = source.readline()
    if not line.endswith("\n"):
        sys.stderr.write("expected one request line on standard input\n")
        return 2
    run = Run(json.loads(line), source, out)
    try:
        function(run)
    except BrokenPipeError:
        return 1
    except Exception as error:
        with contextlib.suppress(OSError):
            run.error(f"the agent failed ({type(error).__name__})")
            run.done("error")
        raise
    with contextlib.suppress(BrokenPipeError):
        run.done()
    return 0
