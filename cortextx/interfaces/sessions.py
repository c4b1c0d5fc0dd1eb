"""The roles of the session plane: a session's log, what it runs, who may attach.

These are the seams between the session slave and what it is put together with;
the slave itself (mailbox, claims, attachments) is `interaction.slave`. Times are
integers, microseconds since 1970-01-01T00:00:00Z, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from msgspec import Raw
    from twisted.internet.defer import Deferred

    from cortextx.core.exchange import Command, Delta, Message, Result, RunStatus, Scope, ToolCall

Mode = Literal["observe", "interact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """Which session: the canonical names that path and lock derive from (I14).

    `owner` is the UID that a private or temp session belongs to, `space` the name
    of a shared session's space; the other one is None.
    """

    agent: str
    scope: Scope
    session: str
    owner: int | None = None
    space: str | None = None


@dataclass(frozen=True, slots=True)
class JournalState:
    """What an opened journal holds: the seqs from `first` to `head`.

    `head` is 0 and `first` 1 for an empty one; `first` is above 1 once retention
    has taken the oldest (I38).
    """

    first: int
    head: int


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Lines in seq order, without newlines; the first has seq `first`."""

    first: int
    lines: Sequence[bytes] = field(repr=False)


class ISessionJournal(Interface):
    """The durable log of one session, and its only source of truth (I36).

    A line is JSON text without a newline. The journal gives seqs no meaning: line
    n of the log has seq n, and it checks that what is appended follows the head.
    """

    key: SessionKey = Attribute("Which session this is.")

    def open() -> Deferred[JournalState]:
        """Take the session's lock and prove the log, its tail included (I13, I14).

        The lock is held before anything is read. Fails with StoreError when another
        slave holds it (session_locked; the message names the holder), or when the
        log cannot be proved (session_io; it names file and offset). Nothing is ever
        cut or guessed here.
        """

    def append(first: int, lines: Sequence[bytes]) -> Deferred[None]:
        """Append lines with the seqs from `first` on; fires once they are on disk (I12).

        Calls may overlap: they become durable in the order of the calls, many in
        one sync. A failed write leaves the log as it was and fails with StoreFull
        or StoreError; after a failed sync every call fails (session_io, I13), and
        nothing of that group was published.
        """

    def read(after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        """Read durable lines with a seq above `after`, up to both bounds.

        At least one line where there is one. A page whose `first` is beyond
        `after + 1` shows what retention took (`gap`, I9). Empty at the head.
        """

    def close() -> Deferred[None]:
        """Finish what was appended, and release the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run is to do. `owner` is the UID it runs for (S1).

    `cwd` and `workspace` are absolute and were checked against the agent's root
    (I27); `event` is the input's bounded object, or None. `interrupted` says that
    the session's last run ended unproved, so that its calls may have had effects.
    `history` holds the session's newest messages from before this input, oldest
    first: whole ones whose texts come to at most the runtime's `history_bytes`.
    """

    key: SessionKey
    run: str
    request_id: str
    text: str
    owner: int
    cwd: str
    workspace: str
    event: Raw | None = None
    interrupted: bool = False
    history: Sequence[Message] = ()


class RunSink(Protocol):
    """Where a run's runtime says what happens, in order, until its outcome."""

    def started(self, model: str | None) -> None:
        """Note that the run executes now."""

    def emitted(self, event: Delta | Message | ToolCall) -> None:
        """Note output: deltas are live only, messages and tool calls durable (I20)."""

    def command(self, command: Command, effect_id: str | None) -> Deferred[Result]:
        """Ask the run's origin, and fire with its answer.

        Fires with a Rejected when the origin goes, the time is up, or the run is
        cancelled (I11, I39); it never fails.
        """


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended; `message` says why for any status but completed."""

    status: RunStatus
    message: str | None = None


class IRun(Interface):
    """One run in progress."""

    done: Deferred[RunOutcome] = Attribute(
        "Fires once, after the last output, when nothing of the run is left alive."
    )

    def cancel(grace: float) -> None:
        """End the run: kindly, and after `grace` seconds by force (B23)."""

    def pause() -> None:
        """Hold back output, as its readers are slow."""

    def resume() -> None:
        """Go on after `pause`."""


class IAgentRuntime(Interface):
    """What a session runs: echo, a child process, a model."""

    name: str = Attribute("The runtime's name in the configuration.")
    history_bytes: int = Attribute("Bytes of history that a run is to be given; 0 for none.")

    def run(request: RunRequest, sink: RunSink) -> IRun:
        """Begin a run. It never raises: a run that cannot start has that outcome."""

    def clear(key: SessionKey, runs: Sequence[str]) -> Deferred[None]:
        """End what a slave that died left alive of these runs of its own.

        Asked under the session's lock, before recovery writes their `done`: the run
        in the log is the receipt that its processes carry. Never fails.
        """

    def stop() -> Deferred[None]:
        """End all runs; fires when none is left."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a Unix socket, told by the kernel (SO_PEERCRED, I15)."""

    uid: int
    gid: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachClaim:
    """What a peer wants. `owner` is the UID that it claims to act for, or None (I15)."""

    agent: str
    scope: Scope
    session: str
    mode: Mode
    capabilities: frozenset[str]
    space: str | None = None
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The attachment is allowed: to this session, exactly as claimed."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class Denied:
    """It is not: `code` is one of I7 (`forbidden`, `unknown_agent`), `message` for people."""

    code: str
    message: str


class IPeerPolicy(Interface):
    """Who may connect, and attach to what (I15). Answers at once, from memory."""

    generation: int = Attribute(
        "Grows with every change of the rules: attachments are judged anew then."
    )

    def may_connect(peer: Peer) -> bool:
        """Whether any rule lets this peer in at all."""

    def judge(peer: Peer, claim: AttachClaim) -> Granted | Denied:
        """Decide on an attachment; nothing is granted beyond or below the claim.

        Asked again before a durable delivery once `generation` has changed.
        """
