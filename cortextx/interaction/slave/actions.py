"""What the slave's machines ask of their adapters, and what they hand each other (PURE).

An asker is a number that stands for one attachment or one v1 connection in this
process; it is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Raw

from cortextx.core.exchange import Origin, Result
from cortextx.errors import JsonError, SessionLocked, StoreError, StoreFull
from cortextx.interaction.data import Data, Error
from cortextx.interaction.faults import Code
from cortextx.interaction.slave.lines import Ids
from cortextx.interfaces.sessions import RunRequest, SessionKey

# What a master asks of a session.


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAsked:
    """Run this. `claim` is the digest of I10; `cwd` as it was given (I27)."""

    asker: int
    request_id: str
    claim: bytes
    text: str = field(repr=False)
    owner: int
    uid: int
    origin: Origin
    event: Raw | None = None
    cwd: str | None = None
    workspace: str | None = None
    answers: bool = True
    invokes: bool = True


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """End this run (I8)."""

    asker: int
    request_id: str
    run_id: str
    claim: bytes
    uid: int


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The answer to a command (I31)."""

    asker: int
    ids: Ids
    result: Result
    effect_id: str | None = None


@dataclass(frozen=True, slots=True)
class StatusAsked:
    """Say how the session is doing."""

    asker: int
    request_id: str


Item = InputAsked | CancelAsked | AnswerGiven | StatusAsked

# What a session tells an asker.


@dataclass(frozen=True, slots=True)
class Send:
    """Live content, to be sent once the asker has had the fact `behind`.

    `droppable` may be dropped when the asker is slow.
    """

    asker: int
    content: Data
    ids: Ids
    behind: int = 0
    droppable: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """A request is refused. `errno` says it to v1 clients, where the code's own would not."""

    asker: int
    error: Error
    ids: Ids
    errno: str | None = None

    @classmethod
    def of(cls, asker: int, code: Code, message: str, ids: Ids, errno: str | None = None) -> Refuse:
        """With one of our codes."""
        return cls(asker, Error.of(code, message), ids, errno)


def conflict(asker: int, ids: Ids) -> Refuse:
    """The request id stands for something else (I10, I21)."""
    message = "the request_id was used for another request"
    return Refuse.of(asker, Code.REQUEST_CONFLICT, message, ids)


def log_failed(asker: int, ids: Ids) -> Refuse:
    """Nothing more can be written (I13)."""
    return Refuse.of(asker, Code.SESSION_IO, "the session's log cannot be used", ids)


def error_of(reason: BaseException | None) -> Error:
    """What masters are told of a session that cannot be had, or goes away (I13, I14)."""
    match reason:
        case SessionLocked():
            return Error.of(Code.SESSION_LOCKED, str(reason))
        case StoreFull():
            # No fault of the log's: the same may go well as soon as there is room.
            return Error(Code.SESSION_IO.value, "there is no room for the session's log", True)
        case StoreError() | JsonError():
            return Error.of(Code.SESSION_IO, "the session's log cannot be used")
        case _:
            return Error.of(Code.INTERNAL, "the session failed inside the slave")


@dataclass(frozen=True, slots=True)
class Known:
    """The request was claimed before, or names a finished run: where its answers are.

    `accepted` and `done` are seqs of durable facts, or 0.
    """

    asker: int
    request_id: str
    run_id: str
    accepted: int
    done: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The request was accepted, with this run; its facts will follow once durable."""

    asker: int
    request_id: str
    run_id: str


Told = Send | Refuse | Known | Claimed

# What a session asks of its adapter.


@dataclass(frozen=True, slots=True)
class Append:
    """Make these lines durable, then say `appended` or `append_failed`."""

    first: int
    lines: Sequence[bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Publish:
    """All facts up to `head` are durable."""

    head: int


@dataclass(frozen=True, slots=True)
class StartRun:
    """Begin this run."""

    request: RunRequest


@dataclass(frozen=True, slots=True)
class CancelRun:
    """End this run, within the time allowed."""

    run_id: str


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Hold its output back."""

    run_id: str


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Let its output come."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Resolve:
    """Give a run the answer to its command; `token` is what it was asked with."""

    token: object
    result: Result


@dataclass(frozen=True, slots=True)
class ClearRuns:
    """End what is left of these runs of a dead slave, then say `cleared`."""

    runs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fail:
    """The session cannot go on: tell its askers, and close it."""

    error: Error


SessionAction = (
    Append
    | Publish
    | StartRun
    | CancelRun
    | PauseRun
    | ResumeRun
    | Resolve
    | ClearRuns
    | Fail
    | Told
)

# What a connection asks of its adapter.


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Join this session as `asker`: answer `session_opened` or `session_failed`."""

    asker: int
    key: SessionKey


@dataclass(frozen=True, slots=True)
class LeaveSession:
    """The asker is gone."""

    asker: int


@dataclass(frozen=True, slots=True)
class Mute:
    """The asker can give no more answers, and goes on reading (I35)."""

    asker: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Put this into the session's mailbox."""

    asker: int
    item: Item


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Read on behind `after`, up to both bounds; answer `page_read`."""

    asker: int
    after: int
    max_lines: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the facts with these seqs, wherever they are; answer `fetched`."""

    asker: int
    seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, after what is to be sent, or at once."""

    reason: str
    abort: bool = False


ConnectionAction = OpenSession | LeaveSession | Mute | Deliver | ReadPage | Fetch | Close


@dataclass(frozen=True, slots=True)
class Facts:
    """Durable facts from `first` on: their lines, and what frames are made of."""

    first: int
    lines: Sequence[bytes] = field(repr=False)
    tails: Sequence[bytes] = field(repr=False)
