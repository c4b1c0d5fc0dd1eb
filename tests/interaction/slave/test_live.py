"""An open session: its journal, its mailbox while disks are slow, its runs, its end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from cortextx.core.exchange import Message, RequestApproval
from cortextx.errors import SessionLocked, StoreError, StoreFull
from cortextx.interaction.data import Error
from cortextx.interaction.slave.actions import CancelAsked, Facts, Refuse, StatusAsked, Told
from cortextx.interaction.slave.lines import read_line
from cortextx.interaction.slave.live import Agent, LiveSession, LiveSettings, settings_of
from cortextx.interaction.slave.recent import Recent
from cortextx.interaction.slave.session import SessionMachine
from cortextx.interfaces.sessions import (
    IAgentRuntime,
    IRun,
    ISessionJournal,
    JournalPage,
    JournalState,
    RunOutcome,
    RunRequest,
    RunSink,
    SessionKey,
)
from tests.interaction.slave.mailbox import KEY, WALL, Mailbox, an_input


class Pool(Clock):
    """A clock whose one thread works when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: deque[Callable[[], None]] = deque()

    def getThreadPool(self) -> Pool:
        return self

    def callInThreadWithCallback(
        self, told: Callable[[bool, Any], None], work: Callable[..., Any], *args: Any, **more: Any
    ) -> None:
        def job() -> None:
            try:
                told(True, work(*args, **more))
            except Exception:
                told(False, Failure())

        self.jobs.append(job)

    def callFromThread(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)

    def work(self) -> None:
        """Do one thing in the thread."""
        self.jobs.popleft()()


@implementer(ISessionJournal)
class Journal:
    """A journal in memory; appends wait for `sync` if it `holds`."""

    def __init__(self, key: SessionKey, lines: Sequence[bytes] = ()) -> None:
        self.key = key
        self.lines = list(lines)
        self.holds = False
        self.waiting: deque[tuple[Sequence[bytes], Deferred[None]]] = deque()
        self.failure: Exception | None = None
        self.calls: list[str] = []

    def open(self) -> Deferred[JournalState]:
        self.calls.append("open")
        return fail(self.failure) if self.failure else succeed(JournalState(1, len(self.lines)))

    def append(self, first: int, lines: Sequence[bytes]) -> Deferred[None]:
        self.calls.append("append")
        done: Deferred[None] = Deferred()
        self.waiting.append((lines, done))
        if not self.holds:
            self.sync()
        return done

    def sync(self) -> None:
        """One group is on disk, or is not."""
        lines, done = self.waiting.popleft()
        if self.failure is not None:
            done.errback(self.failure)
        else:
            self.lines += lines
            done.callback(None)

    def read(self, after: int, max_lines: int, max_bytes: int) -> Deferred[JournalPage]:
        return succeed(JournalPage(after + 1, self.lines[after : after + max_lines]))

    def close(self) -> Deferred[None]:
        self.calls.append("close")
        return succeed(None)


@implementer(IRun)
class Run:
    """A run that does what the test does."""

    def __init__(self, request: RunRequest, sink: RunSink) -> None:
        self.request = request
        self.sink = sink
        self.done: Deferred[RunOutcome] = Deferred()
        self.calls: list[str] = []

    def cancel(self, grace: float) -> None:
        self.calls.append(f"cancel {grace:g}")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@implementer(IAgentRuntime)
class Runtime:
    """Notes what it is told."""

    name = "script"
    history_bytes = 0

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.cleared: list[Sequence[str]] = []
        self.clearing: Deferred[None] = succeed(None)

    def run(self, request: RunRequest, sink: RunSink) -> Run:
        self.runs.append(Run(request, sink))
        return self.runs[-1]

    def clear(self, key: SessionKey, runs: Sequence[str]) -> Deferred[None]:
        self.cleared.append(runs)
        return self.clearing

    def stop(self) -> Deferred[None]:
        return succeed(None)


class Ear:
    """A Reader that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def session_opened(self, asker: int, first: int, head: int) -> None:
        self.heard.append(("opened", first, head))

    def session_failed(self, asker: int, error: Error) -> None:
        self.heard.append(("failed", error.code))

    def head_moved(self, asker: int, head: int) -> None:
        self.heard.append(("head", head))

    def told(self, told: Told) -> None:
        self.heard.append(told)

    @property
    def refusals(self) -> list[str]:
        """The codes of refusals."""
        return [told.error.code for told in self.heard if isinstance(told, Refuse)]


class LiveCase(SynchronousTestCase):
    """A session with a journal, a runtime and a reader."""

    def make(self, log: Sequence[bytes] = (), key: SessionKey = KEY, **more: Any) -> LiveSession:
        """A session, not started."""
        self.reactor = Pool()
        self.journal = Journal(key, log)
        self.runtime = Runtime()
        self.ear = Ear()
        self.elsewhere: set[str] = set()
        self.root = os.path.realpath(self.mktemp())
        os.makedirs(self.root)
        agent = Agent(self.runtime, self.root)
        settings = LiveSettings(idle_seconds=60.0, approval_seconds=600.0, cancel_grace=0.5)
        ids = iter(range(len(log) + 1, 10_000))
        bounds = settings_of(agent, settings, **more)
        return LiveSession(
            self.reactor,
            key,
            lambda key: self.journal,
            agent,
            settings,
            machine=SessionMachine(key, bounds, lambda: f"{next(ids):04x}", lambda: WALL),
            elsewhere=lambda session, request: request in self.elsewhere,
        )

    def opened(self, log: Sequence[bytes] = (), **more: Any) -> LiveSession:
        """A session that a reader (asker 1) has joined."""
        session = self.make(log, **more)
        session.start()
        session.join(1, self.ear)
        return session

    def kinds(self) -> list[str]:
        """The log."""
        return [read_line(line).kind for line in self.journal.lines]


class OpeningTests(LiveCase):
    """B16, B25, B28, I13, I14."""

    def test_recovery_is_durable_before_anybody_is_let_in(self) -> None:
        """The dead slave's runs are cleared first, then their ends are on disk, then the
        reader is told (v2: receipt-bound orphan cleanup)."""
        box = Mailbox()
        box.input("a")
        session = self.make(box.log)
        self.runtime.clearing = Deferred()
        self.journal.holds = True
        session.start()
        session.join(1, self.ear)
        self.assertEqual(self.runtime.cleared, [(box.started()[0],)])
        self.assertEqual(self.journal.calls, ["open"])
        self.runtime.clearing.callback(None)
        self.assertEqual(self.journal.calls, ["open", "append"])
        self.assertEqual(self.ear.heard, [])
        self.journal.sync()
        self.assertEqual(self.ear.heard, [("opened", 1, len(box.log) + 1)])
        self.assertEqual(self.kinds()[-1], "done")

    def test_a_session_that_cannot_be_had_is_told_by_its_code(self) -> None:
        """Locked, damaged, or with a line that is none of ours."""
        for failure, log, code in (
            (SessionLocked("pid 7"), (), "session_locked"),
            (StoreError("torn"), (), "session_io"),
            (None, (b'{"a":1}',), "session_io"),
        ):
            session = self.make(log)
            self.journal.failure = failure
            session.join(1, self.ear)
            session.start()
            session.join(2, self.ear)
            self.assertEqual(self.ear.heard, [("failed", code)] * 2)
            self.assertTrue(session.closed.called)
            self.assertEqual(self.journal.calls, ["open", "close"])
            self.flushLoggedErrors()

    def test_want_of_room_is_no_damage_and_may_be_tried_again_I13(self) -> None:
        """When the session is opened, and when a fact finds no room."""
        errors: list[Error] = []
        for is_open in (False, True):
            session = self.make()
            self.ear.session_failed = lambda asker, error: errors.append(error)  # type: ignore[method-assign]
            if is_open:
                session.start()
            self.journal.failure = StoreFull("the disk is full")
            if not is_open:
                session.start()
            session.join(1, self.ear)
            session.deliver(an_input())
            self.flushLoggedErrors()
        self.assertEqual([(e.code, e.retryable) for e in errors], [("session_io", True)] * 2)

    def test_the_next_one_waits_for_the_lock_of_the_one_before_B19(self) -> None:
        """A journal is opened once its predecessor is closed."""
        session = self.make()
        before: Deferred[None] = Deferred()
        session.start(before)
        session.join(1, self.ear)
        self.assertEqual(self.journal.calls, [])
        before.callback(None)
        self.assertEqual(self.ear.heard, [("opened", 1, 0)])


class MailboxTests(LiveCase):
    """I16, I19, I21, I27."""

    def test_no_disk_is_waited_for_I19(self) -> None:
        """With facts on their way to the disk, a status is answered; no run began."""
        session = self.opened()
        self.journal.holds = True
        session.deliver(an_input("r1"))
        session.deliver(StatusAsked(1, "s"))
        self.assertEqual(self.ear.heard[-1].content.status, "active")
        self.assertEqual(self.runtime.runs, [])
        self.journal.sync()
        self.assertEqual(len(self.runtime.runs), 1)

    def test_inputs_keep_their_order_while_a_place_is_looked_at_I27(self) -> None:
        """The second waits for the first; both run where they may."""
        session = self.opened()
        session.deliver(an_input("r1", cwd=self.root))
        session.deliver(an_input("r2"))
        self.assertEqual(self.journal.lines, [])
        self.reactor.work()
        requests = [read_line(line).correlation.request_id for line in self.journal.lines]
        self.assertEqual(requests, ["r1", "r1", "r2", "r2"])
        self.assertEqual(self.runtime.runs[0].request.cwd, self.root)

    def test_a_place_outside_is_refused_and_nothing_is_claimed_I27_S1(self) -> None:
        """And the next input goes on."""
        session = self.opened()
        session.deliver(an_input("r1", cwd="/"))
        session.deliver(an_input("r2"))
        self.reactor.work()
        self.assertEqual(self.ear.refusals, ["forbidden"])
        self.assertFalse(session.machine.knows("r1"))
        self.assertTrue(session.machine.knows("r2"))

    def test_what_waits_for_a_disk_is_bounded_I16(self) -> None:
        """Beyond the bound the answer is busy, at once."""
        session = self.opened(max_pending_requests=2)
        for n in range(5):
            session.deliver(an_input(f"r{n}", cwd=self.root))
        self.assertEqual(self.ear.refusals, ["busy"] * 3)

    def test_who_leaves_while_a_disk_is_asked_put_nothing_in(self) -> None:
        """A run without an origin from its first moment would wait for nobody."""
        session = self.opened()
        session.deliver(an_input("r1", cwd=self.root))
        session.leave(1)
        self.reactor.work()
        self.assertEqual(self.journal.lines, [])

    def test_who_half_closed_while_a_disk_was_asked_cannot_answer_I35(self) -> None:
        """Its run goes on, and its commands fail closed."""
        session = self.opened()
        session.deliver(an_input("r1", cwd=self.root))
        session.mute(1)
        self.reactor.work()
        (run,) = self.runtime.runs
        answer = run.sink.command(RequestApproval("t", Raw(b"{}")), None)
        self.assertEqual(self.successResultOf(answer).reason, "origin_lost")  # type: ignore[union-attr]

    def test_a_request_id_of_another_session_conflicts_I21(self) -> None:
        """For inputs and for cancels."""
        session = self.opened()
        self.elsewhere = {"r1", "c1"}
        session.deliver(an_input("r1"))
        session.deliver(CancelAsked(1, "c1", "run-1", b"x" * 32, 1000))
        self.assertEqual(self.ear.refusals, ["request_conflict"] * 2)


class RunTests(LiveCase):
    """Runs and their ends."""

    def begin(self) -> tuple[LiveSession, Run]:
        """A session with a run."""
        session = self.opened()
        session.deliver(an_input("r1"))
        return session, self.runtime.runs[0]

    def test_a_run_that_fails_inside_ends_as_an_error(self) -> None:
        """Its one terminal fact says so, and the next run begins."""
        session, run = self.begin()
        session.deliver(an_input("r2"))
        run.done.errback(RuntimeError("bug"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertIn(
            b'"status":"error"',
            next(line for line in self.journal.lines if read_line(line).kind == "done"),
        )
        self.assertEqual(len(self.runtime.runs), 2)

    def test_a_cancel_comes_to_the_run_with_its_grace_B23(self) -> None:
        """Once its claim is durable."""
        session, run = self.begin()
        self.journal.holds = True
        session.deliver(CancelAsked(1, "c1", run.request.run, b"x" * 32, 1000))
        self.assertEqual(run.calls, [])
        self.journal.sync()
        self.assertEqual(run.calls, ["cancel 0.5"])

    def test_an_approval_expires_by_the_clock_I39(self) -> None:
        """After ten minutes, and not before."""
        _, run = self.begin()
        answer = run.sink.command(RequestApproval("t", Raw(b"{}")), None)
        self.reactor.advance(599.0)
        self.assertNoResult(answer)
        self.reactor.advance(1.0)
        self.assertEqual(self.successResultOf(answer).reason, "expired")  # type: ignore[union-attr]

    def test_a_disk_that_takes_no_more_ends_the_session_I13(self) -> None:
        """Nothing is published, the run is ended, the lock is released, readers are told."""
        session, run = self.begin()
        heard = len(self.ear.heard)
        self.journal.failure = StoreError("disk")
        run.sink.emitted(Message("r1", run.request.run, "assistant", "x"))
        self.assertEqual(self.ear.heard[heard:], [("failed", "session_io")])
        self.assertIn("cancel 0.5", run.calls)
        self.assertTrue(session.closed.called)
        answer = run.sink.command(RequestApproval("t", Raw(b"{}")), None)
        self.assertEqual(self.successResultOf(answer).reason, "session_io")  # type: ignore[union-attr]
        self.flushLoggedErrors()


class HeadsTests(LiveCase):
    """Readers are told of a group of facts once or twice, and of all of them."""

    def test_a_group_is_told_at_once_and_at_the_end_of_the_turn(self) -> None:
        """Ten facts in one turn wake a reader twice; the next turn's first wakes it at once."""
        session = self.opened()
        session.deliver(an_input("r1"))
        self.reactor.advance(0)
        self.ear.heard.clear()
        (run,) = self.runtime.runs
        for _ in range(10):
            run.sink.emitted(Message("r1", run.request.run, "assistant", "x"))
        head = session.machine.durable
        self.assertEqual(self.ear.heard, [("head", head - 9)])
        self.reactor.advance(0)
        self.assertEqual(self.ear.heard, [("head", head - 9), ("head", head)])

    def test_what_is_durable_is_told_before_the_end_of_the_session_I12(self) -> None:
        """Facts of the turn in which the disk took no more are not kept back."""
        session = self.opened()
        session.deliver(an_input("r1"))
        (run,) = self.runtime.runs
        self.journal.holds = True
        for _ in range(3):
            run.sink.emitted(Message("r1", run.request.run, "assistant", "x"))
        self.ear.heard.clear()
        self.journal.sync()
        self.journal.sync()
        durable = session.machine.durable
        self.journal.failure = StoreError("disk")
        self.journal.sync()
        told = [each for each in self.ear.heard if isinstance(each, tuple)]
        self.assertEqual(told[-2:], [("head", durable), ("failed", "session_io")])
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.flushLoggedErrors()


class RestTests(LiveCase):
    """I14, I18: sessions that nobody uses."""

    def test_an_idle_session_is_unloaded_and_its_lock_released_I14(self) -> None:
        """After its time without a reader; a reader in time keeps it."""
        session = self.opened()
        session.leave(1)
        self.reactor.advance(59.0)
        session.join(2, self.ear)
        self.reactor.advance(100.0)
        self.assertFalse(session.is_closing)
        session.leave(2)
        self.reactor.advance(60.0)
        self.assertTrue(session.closed.called)
        self.assertEqual(self.journal.calls, ["open", "close"])

    def test_a_session_with_a_run_is_not_unloaded(self) -> None:
        """It rests once the run is over."""
        session = self.opened()
        session.deliver(an_input("r1"))
        session.leave(1)
        self.reactor.advance(1000.0)
        self.assertFalse(session.is_closing)
        self.runtime.runs[0].done.callback(RunOutcome("completed"))
        self.reactor.advance(60.0)
        self.assertTrue(session.is_closing)

    def test_a_temp_session_lives_as_long_as_the_process_I18(self) -> None:
        """There is nothing to load it from again; an empty one is no loss."""
        key = SessionKey(agent="echo", scope="temp", session="t", owner=1000)
        session = self.opened(key=key)
        session.leave(1)
        self.assertTrue(session.is_at_rest)
        session.join(1, self.ear)
        session.deliver(an_input("r1"))
        self.runtime.runs[0].done.callback(RunOutcome("completed"))
        session.leave(1)
        self.reactor.advance(1e6)
        self.assertFalse(session.is_closing)


class FactsTests(LiveCase):
    """Facts from memory and from the journal."""

    def test_recent_facts_are_given_within_both_bounds(self) -> None:
        """At least one; None for what is not kept any more or not there yet."""
        box = Mailbox()
        for name in "abcd":
            box.input(name)
        lines = box.log
        recent = Recent(8000)
        recent.keep(1, lines)
        page = recent.page(0, 100, 1)
        assert page is not None
        self.assertEqual((page.first, list(page.lines)), (1, lines[:1]))
        self.assertEqual(len(recent.page(2, 3, 10_000).lines), 3)  # type: ignore[union-attr]
        self.assertIsNone(recent.page(len(lines), 1, 1))
        recent.keep(len(lines) + 1, lines * 3)
        self.assertIsNone(recent.page(0, 1, 1))

    def test_readers_that_ask_alike_share_an_answer_until_more_is_durable(self) -> None:
        box = Mailbox()
        box.input("a")
        recent = Recent()
        recent.keep(1, box.log)
        page = recent.page(0, 100, 100_000)
        self.assertIs(recent.page(0, 100, 100_000), page)
        self.assertIsNot(recent.page(1, 100, 100_000), page)
        recent.keep(len(box.log) + 1, box.log)
        self.assertEqual(list(recent.page(0, 100, 100_000).lines), box.log * 2)  # type: ignore[union-attr]

    def test_facts_that_retention_carried_on_are_found_I38(self) -> None:
        """A claim's facts answer a retry as long as the session lives."""
        box = Mailbox()
        box.input("a")
        box.end(box.started()[0])
        first, last = box.log[0], box.log[-1]
        kept = last[:-1] + b',"x":{"carried":[%s]}}' % first
        session = self.opened(box.log)
        self.journal.read = (  # type: ignore[method-assign]
            lambda after, lines, size: succeed(JournalPage(4, [kept] if after < 4 else []))
        )
        found: list[Facts] = []
        Deferred.fromCoroutine(session.fetch([1, 4])).addCallback(found.append)
        self.assertEqual([read_line(line).session_seq for line in found[0].lines], [1, 4])
