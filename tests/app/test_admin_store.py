"""The admin socket's op server.backup: progress, one at a time, ended with its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.admin_store import StoreOps
from cortextx.app.linesocket import OpError
from cortextx.errors import StoreError
from cortextx.stores.sqlite_backup import BackupMade, CopyDamaged

MADE = BackupMade("/b/x.db", 10, 3, 1, 7)


class Pool:
    """A thread pool whose work is done when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[bool, Any], None], Callable[[], Any]]] = []

    def callInThreadWithCallback(
        self, told: Callable[[bool, Any], None], work: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        self.work.append((told, lambda: work(*args, **kw)))

    def run(self) -> None:
        told, work = self.work.pop(0)
        try:
            result = work()
        except Exception:
            from twisted.python.failure import Failure

            told(False, Failure())
        else:
            told(True, result)


class ThreadedClock(Clock):
    """A Clock with a pool, which calls back at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    def getThreadPool(self) -> Pool:
        return self.pool

    def callFromThread(self, work: Callable[..., Any], *args: Any) -> None:
        work(*args)


class Backup(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = ThreadedClock()
        self.error: Exception | None = None
        self.carry_on: Callable[[float], bool] | None = None
        self.copied: list[tuple[str, str]] = []
        self.rows: list[Any] = []
        self.ops = StoreOps(self.clock, lambda: None, "/s/store.db", self.copy).ops()  # type: ignore[arg-type,return-value]

    def copy(self, path: str, target: str, carry_on: Callable[[float], bool]) -> BackupMade:
        self.copied.append((path, target))
        self.going_on = carry_on(0.5)
        if self.error is not None:
            raise self.error
        return MADE

    def begin(self, path: str = "/b/x.db") -> Deferred[Any]:
        async def rows(some: Any) -> None:
            self.rows += some

        return Deferred.fromCoroutine(self.ops["server.backup"]({"path": path}, rows))

    def test_done(self) -> None:
        """The end tells what was made."""
        asking = self.begin()
        self.assertNoResult(asking)
        self.clock.pool.run()
        end = self.successResultOf(asking)
        self.assertEqual((end["entries"], end["newest_entry_id"]), (3, 7))
        self.assertEqual(self.copied, [("/s/store.db", "/b/x.db")])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_progress(self) -> None:
        """A copy that takes long says every second how far it is."""
        asking = self.begin()
        self.clock.pump([1.0, 1.0])
        self.assertEqual(self.rows, [{"done": 0.0}, {"done": 0.0}])
        self.clock.pool.run()
        self.successResultOf(asking)

    def test_one_at_a_time(self) -> None:
        """A second backup is refused until the first has ended."""
        asking = self.begin()
        error = self.failureResultOf(self.begin(), OpError).value
        self.assertEqual(error.code, "busy")
        self.clock.pool.run()
        self.successResultOf(asking)
        asking = self.begin()
        self.clock.pool.run()
        self.successResultOf(asking)

    def test_the_client_goes(self) -> None:
        """Then the copy is given up at its next look, and no timer is left."""
        asking = self.begin()
        asking.cancel()
        self.failureResultOf(asking, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.pool.run()
        self.assertFalse(self.going_on)

    def test_a_damaged_copy(self) -> None:
        """It is no success: what is wrong is told, where the copy is, and what to do."""
        self.error = CopyDamaged("/b/x.db.damaged", ("segment 3: 2 entries are damaged", "more"))
        asking = self.begin()
        self.clock.pool.run()
        error = self.failureResultOf(asking, OpError).value
        self.assertEqual(error.code, "damaged")
        for part in ("segment 3", "1 faults more", "/b/x.db.damaged"):
            self.assertIn(part, str(error))
        self.assertIn("restore FILE", str(error.hint))

    def test_refusals(self) -> None:
        """A relative path is refused; what the copy raises is the op's error."""
        error = self.failureResultOf(self.begin("x.db"), OpError).value
        self.assertEqual(error.code, "bad_request")
        self.error = StoreError("x is there already")
        asking = self.begin()
        self.clock.pool.run()
        self.failureResultOf(asking, StoreError)
