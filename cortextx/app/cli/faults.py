"""What a command says when it cannot do its work, and the exit code that goes with it."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_REACHABLE = 3
NOT_FOUND = 4
FOUND = 5
"""A look at something found that not all is well there."""
INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    it failed; stderr says why
  2    wrong usage or a wrong value
  3    the server, agent or host cannot be reached; stderr says what to do
  4    no such host or session
  5    audit, doctor, verify or conformance found that something is wrong or missing
  130  interrupted (^C)"""

_BY_ERROR = {
    "not_found": NOT_FOUND,
    "bad_request": USAGE,
    "unavailable": NOT_REACHABLE,
    "not_connected": NOT_REACHABLE,
}


class Fault(Exception):
    """A command ends here: what is wrong, what to do next, and its exit code."""

    def __init__(self, message: str, hint: str | None = None, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class NotReachable(Fault):
    """Nobody answers at a socket, or whoever did went away."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint, NOT_REACHABLE)


class Refused(Fault):
    """The other side answered with an error; `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint, _BY_ERROR.get(code, FAILED))
        self.code = code
