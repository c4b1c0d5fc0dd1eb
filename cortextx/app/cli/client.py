"""A client of the sockets that a server and an agent keep below the state directory.

One line out, `{"op": …, "args": {…}}`; lines back: `{"row": {…}}` any number of
times, then `{"end": {…}}` or `{"error": {"code", "message", "hint"}}` (F39).
It blocks and needs no Twisted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Generator, Iterator, Mapping
from types import TracebackType
from typing import Any

import msgspec

from cortextx.app.cli.faults import Fault, NotReachable, Refused
from cortextx.app.config import state_dir
from cortextx.errors import ConfigError

ANSWER_SECONDS = 30.0
"""The longest wait for the next bytes of an answer that does not follow a log."""
MAX_ANSWER_LINE = 64 * 1024 * 1024
"""More bytes than that without a newline are no answer of ours."""

Row = dict[str, Any]


class _Answer(msgspec.Struct, frozen=True):
    row: Row | None = None
    end: Row | None = None
    error: Row | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class Client:
    """A connection to one socket; a context manager."""

    def __init__(self, connected: socket.socket, what: str, start_with: str) -> None:
        """Over a connected socket; `what` is at its other end, `start_with` begins it again."""
        connected.settimeout(ANSWER_SECONDS)
        self._patience = ANSWER_SECONDS
        self._socket = connected
        self._what = what
        self._start_with = start_with

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; what is being answered is abandoned."""
        self._socket.close()

    def allow(self, seconds: float) -> None:
        """Wait so long for the next bytes of an answer, where one may take longer than usual."""
        self._patience = max(ANSWER_SECONDS, seconds)
        self._socket.settimeout(self._patience)

    def call(self, op: str, **args: Any) -> tuple[list[Row], Row]:
        """Ask, and read the whole answer: its rows and its end."""
        rows: list[Row] = []
        answers = self.stream(op, **args)
        while True:
            try:
                rows.append(next(answers))
            except StopIteration as stop:
                return rows, stop.value

    def one(self, op: str, **args: Any) -> Row:
        """Ask for one thing: the row of the answer, or else its end."""
        rows, end = self.call(op, **args)
        return rows[0] if rows else end

    def stream(self, op: str, *, follow: bool = False, **args: Any) -> Generator[Row, None, Row]:
        """Ask, and give each row as it comes; the generator's value is the end.

        With `follow` the answer may pause for ever. Raises Refused for an error
        that was answered, NotReachable when the other side goes away.
        """
        if follow:
            args["follow"] = True
            self._socket.settimeout(None)
        self._send({"op": op, "args": {k: v for k, v in args.items() if v is not None}})
        for line in self._lines():
            try:
                answer = _decode(line)
            except msgspec.MsgspecError:
                raise Fault(f"the {self._what} answered something else than it should") from None
            if answer.row is not None:
                yield answer.row
            elif answer.error is not None:
                raise _refusal(answer.error)
            else:
                return answer.end or {}
        raise NotReachable(f"the {self._what} went away while it answered", self._start_with)

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(msgspec.json.encode(request) + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            # It may have said why before it hung up: reading tells.
            return

    def _lines(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                data = self._socket.recv(262_144)
            except TimeoutError:
                raise Fault(
                    f"the {self._what} did not answer within {self._patience:.0f} s",
                    "its log may say why",
                ) from None
            except OSError:
                data = b""
            if not data:
                return
            if b"\n" not in data:
                parts.append(data)
                size += len(data)
                if size > MAX_ANSWER_LINE:
                    raise Fault(f"the {self._what} sent an endless line")
                continue
            parts.append(data)
            lines = b"".join(parts).split(b"\n")
            rest = lines.pop()
            parts, size = [rest], len(rest)
            yield from lines


def _refusal(error: Row) -> Refused:
    hint = error.get("hint")
    return Refused(
        str(error.get("code", "internal")),
        str(error.get("message", "it failed")),
        None if hint is None else str(hint),
    )


def _connect(path: str, what: str, start_with: str) -> Client:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(ANSWER_SECONDS)
    try:
        connected.connect(path)
    except PermissionError:
        connected.close()
        raise Fault(
            f"{path} belongs to another user"
            if _can_be_seen(path)
            else f"{os.path.dirname(os.path.dirname(path))} cannot be looked into:"
            " Permission denied",
            "run this as the user that runs the service, or as root",
        ) from None
    except OSError as error:
        connected.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            message = f"no {what} runs on {os.path.dirname(os.path.dirname(path))}"
        else:
            message = f"the {what} cannot be reached at {path}: {error.strerror or error}"
        raise NotReachable(message, start_with) from None
    return Client(connected, what, start_with)


def _can_be_seen(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


def server_client(directory: str) -> Client:
    """Connect to the server whose state is in `directory`; raises NotReachable."""
    return _connect(
        os.path.join(directory, "run", "admin.sock"),
        "server",
        f"start one with `{calling(directory)} up`, or name its directory with --state-dir",
    )


def agent_client(directory: str) -> Client:
    """Connect to the agent whose state is in `directory`; raises NotReachable."""
    return _connect(
        os.path.join(directory, "run", "agent.sock"),
        "agent",
        f"start it with `{calling(directory)} up`, or name its directory with --state-dir",
    )


def calling(directory: str) -> str:
    """How to call this program for a state directory, as somebody can type it."""
    beside = sys.argv[0]
    program = "cortextx"
    if os.path.basename(beside) == program:
        found = shutil.which(program)
        if found is None or os.path.realpath(found) != os.path.realpath(beside):
            program = shlex.quote(beside)
    try:
        own = state_dir(None, os.environ)
    except ConfigError:
        own = ""
    return program if own == directory else f"{program} --state-dir {shlex.quote(directory)}"
