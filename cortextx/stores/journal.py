"""Sessions' logs as files: journals on shared threads, with group commit (I12–I14, I19).

What others use of the journals (all of it on the reactor's thread):

    journals = FileJournals(reactor, state_root)
    journals.start()                      # threads; `stop()` fires once all is closed
    journal = journals.journal(key)       # an ISessionJournal, closed; temp sessions too
    state = await journal.open()          # SessionLocked(holder), SessionDamaged(path, offset)
    await journal.append(state.head + 1, [b'{"session_seq":1,…}'])
    page = await journal.read(after=0, max_lines=256, max_bytes=262_144)
    await journal.retain(keep_bytes=…)    # I38; `journal.size` tells the bytes
    await journal.close()

Each journal is opened once. A line that is appended must be a JSON object whose
top-level `session_seq` is its seq, or LocalProtocolError; nothing is written then.
While a file journal has lines in its tail cache, reads of them answer at once.

The derived files and the index follow by themselves, `derive_after` seconds after a
change and when the journal is closed; that they cannot be written is logged, no more.

A failed append fails all that were called after it and before its failure was
told; what comes next must follow the durable head again, as `journal.head` says.
After SessionDamaged from an append the journal is only good for `close`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.errors import LocalProtocolError, SessionDamaged, StoreClosed
from cortextx.interfaces.sessions import ISessionJournal, JournalPage, JournalState, SessionKey
from cortextx.stores.journal_deriving import DERIVE_AFTER, Deriving, DerivingReactor
from cortextx.stores.journal_disk import LOG
from cortextx.stores.journal_lanes import Append, Channel, Lanes, Work
from cortextx.stores.journal_log import Log
from cortextx.stores.journal_memory import MemoryJournal
from cortextx.stores.journal_retention import retain
from cortextx.stores.journal_tail import CACHE_BYTES, Caches, Tail
from cortextx.stores.session_directory import SessionDirectory
from cortextx.stores.session_paths import SessionRoot

T = TypeVar("T")

GROUPS_IN_FLIGHT = 2
"""Groups of one session that are with the threads; what is appended meanwhile gathers."""
GROUP_BYTES = 262_144
"""A group takes no further append beyond this."""


@implementer(ISessionJournal)
class FileJournal:
    """The journal of one private or shared session; see the module and ISessionJournal."""

    log = Logger()

    def __init__(
        self,
        key: SessionKey,
        log: Log,
        lanes: Lanes,
        caches: Caches,
        on_closed: Callable[[FileJournal], None],
        deriving: Deriving | None = None,
    ) -> None:
        self.key = key
        self._on_closed = on_closed
        self.path = log.path
        self._log = log
        self._lanes = lanes
        self._channel = Channel(log)
        self._tail = Tail(caches)
        self._next = 0  # the seq that the next append has to begin with; 0: not open
        self._unsent = 0  # the first seq that the threads do not have yet
        self._waiting: deque[tuple[Sequence[bytes], Deferred[None]]] = deque()
        self._flying = 0
        self._epoch = 0
        self._state = JournalState(1, 0)
        self._deriving = deriving
        self._damage: SessionDamaged | None = None
        self._closed: Deferred[None] | None = None

    @property
    def head(self) -> int:
        """The newest durable seq."""
        return self._state.head

    @property
    def first(self) -> int:
        """The oldest retained seq."""
        return self._state.first

    @property
    def size(self) -> int:
        """Durable bytes of the log."""
        return self._log.size

    def open(self) -> Deferred[JournalState]:
        """See ISessionJournal."""

        def opened(state: JournalState) -> JournalState:
            self._state = state
            self._next = self._unsent = state.head + 1
            if self._log.taken_back:
                self.log.warn(
                    "{path}: {size} bytes of an append that a kill cut short were taken back",
                    path=self.path,
                    size=self._log.taken_back,
                )
            return state

        return self._work(Log.open).addCallbacks(opened, self._released)

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        """See ISessionJournal."""
        if not self._next or self._closed is not None:
            return fail(StoreClosed("the session's log is not open"))
        if first != self._next:
            return fail(LocalProtocolError(f"expected seq {self._next} to follow, not {first}"))
        if not lines:
            return succeed(None)
        self._next += len(lines)
        done: Deferred[None] = Deferred()
        self._waiting.append((lines, done))
        if self._flying < GROUPS_IN_FLIGHT:
            self._send()
        return done

    def _send(self) -> None:
        """Hand what waits to the threads, as one group of bounded size."""
        group: list[bytes] = []
        calls: list[Deferred[None]] = []
        size = 0
        while self._waiting and size < GROUP_BYTES:
            lines, done = self._waiting.popleft()
            group.extend(lines)
            calls.append(done)
            size += sum(map(len, lines))
        first, self._unsent = self._unsent, self._unsent + len(group)
        self._flying += 1
        epoch = self._epoch

        def answered(_: None, error: Exception | None) -> None:
            self._flying -= 1
            if error is not None:
                self._failed(error, epoch, calls)
                return
            self._state = JournalState(self._state.first, first + len(group) - 1)
            self._tail.add(first, group)
            if self._deriving is not None:
                self._deriving.changed()
            for done in calls:
                done.callback(None)
            self._go_on()

        self._lanes.submit(self._channel, Append(first, group, size, epoch, answered))

    def _go_on(self) -> None:
        if self._waiting and self._flying < GROUPS_IN_FLIGHT:
            self._send()

    def _failed(self, error: Exception, epoch: int, calls: list[Deferred[None]]) -> None:
        if isinstance(error, SessionDamaged):
            self._damage = error
        if epoch == self._epoch:
            self._epoch += 1
            calls = [*calls, *(done for _, done in self._waiting)]
            self._waiting.clear()
            self._next = self._unsent = self.head + 1
        for done in calls:
            done.errback(Failure(error))
        self._go_on()

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        """See ISessionJournal."""
        if not self._next or self._closed is not None:
            return fail(StoreClosed("the session's log is not open"))
        if self._damage is not None:
            return fail(self._damage)
        page = self._tail.page(after, max_lines, max_bytes)
        if page is None and after >= self.head:
            page = JournalPage(after + 1, ())
        if page is not None:
            return succeed(page)
        done: Deferred[JournalPage] = Deferred()
        self._lanes.read(lambda: self._log.read(after, max_lines, max_bytes), _answer(done))
        return done

    def retain(self, keep_bytes: int) -> Deferred[JournalState]:
        """Drop the oldest lines until about `keep_bytes` are left, as far as may be (I38).

        What belongs to an unfinished run stays, and so does the newest line; claims
        move to the lines that stay. Fires with what is retained.
        """

        def retained(state: JournalState) -> JournalState:
            self._state = JournalState(state.first, self._state.head)
            self._tail.clear()
            return state

        return self._work(lambda log: retain(log, keep_bytes)).addCallback(retained)

    def close(self) -> Deferred[None]:
        """See ISessionJournal. A second call fires with the first."""
        answer: Deferred[None] = Deferred()
        if self._closed is None:
            self._closed = Deferred()
            self._tail.clear()
            self._finished().addCallback(lambda _: self._work(Log.close, long=False)).chainDeferred(
                self._closed
            )
            self._closed.addBoth(self._released)
        self._closed.addBoth(_tell, answer)
        return answer

    def _finished(self) -> Deferred[None]:
        """Fires when all is durable, and the derived files tell it."""
        durable: Deferred[None] = self._work(lambda log: None, long=False)
        if self._deriving is not None:
            deriving = self._deriving
            durable.addCallback(lambda _: deriving.finish())
        return durable

    def _released(self, result: T) -> T:
        self._on_closed(self)
        return result

    def _work(self, call: Callable[[Log], T], long: bool = True) -> Deferred[T]:
        while self._waiting:
            self._send()
        done: Deferred[T] = Deferred()
        self._lanes.submit(self._channel, Work(call, long, _answer(done)))
        return done


class FileJournals:
    """All journals of one state root, and their threads; see the module."""

    def __init__(
        self,
        reactor: DerivingReactor,
        root: str,
        *,
        lanes: Lanes | None = None,
        cache: int = CACHE_BYTES,
        derive_after: float | None = DERIVE_AFTER,
    ) -> None:
        """`root` need not be there yet; `cache` bounds all tail caches together, in bytes.

        Without `derive_after` (seconds) nothing is derived.
        """
        self._reactor = reactor
        self._derive_after = derive_after
        self.root = SessionRoot.at(root)
        self._lanes = Lanes(reactor) if lanes is None else lanes
        self._caches = Caches(cache)
        self._open: set[FileJournal] = set()
        self._temps: dict[SessionKey, MemoryJournal] = {}

    def start(self) -> None:
        """Start the threads."""
        self._lanes.start()

    def journal(self, key: SessionKey) -> FileJournal | MemoryJournal:
        """A journal to be opened; raises UnknownName or StoreError where there can be none.

        A temp session's is the same one each time, so that it lives as long as the
        process (I18).
        """
        if key.scope == "temp":
            return self._temps.setdefault(key, MemoryJournal(key))
        path = f"{self.root.directory(key)}/{LOG}"
        log = Log(lambda: SessionDirectory(self.root, key), path)
        deriving = None
        if self._derive_after is not None:
            index = self.root.index(key)
            deriving = Deriving(self._reactor, self._lanes, log, key, index, self._derive_after)
        journal = FileJournal(key, log, self._lanes, self._caches, self._open.discard, deriving)
        self._open.add(journal)
        return journal

    def stop(self) -> Deferred[None]:
        """Close all journals, then end the threads."""
        closing = [journal.close() for journal in self._open]
        done: Deferred[None] = DeferredList(closing).addCallback(lambda _: self._lanes.stop())
        return done


def _answer(done: Deferred[Any]) -> Callable[[Any, Exception | None], None]:
    def answered(value: Any, error: Exception | None) -> None:
        if error is None:
            done.callback(value)
        else:
            done.errback(Failure(error))

    return answered


def _tell(result: Any, answer: Deferred[None]) -> Any:
    if isinstance(result, Failure):
        answer.errback(result)
        return None
    answer.callback(None)
    return result
