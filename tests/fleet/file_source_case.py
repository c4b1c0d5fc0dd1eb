"""What the tests of the file source share: a real directory, threads that are none, a Clock."""

from __future__ import annotations

import os
import tempfile
from shutil import rmtree

import msgspec
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreFull
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.file import FileSource
from cortextx.fleet.agent.sources.file_settings import FileSettings
from cortextx.fleet.contract import LogEntry


class Pool:
    """A thread pool that runs its work at once."""

    def callInThreadWithCallback(self, done, work, *args, **kw) -> None:
        try:
            result = work(*args, **kw)
        except BaseException:
            done(False, Failure())
        else:
            done(True, result)


class ThreadlessClock(Clock):
    """A Clock that answers what `deferToThreadPool` asks of a reactor."""

    def getThreadPool(self) -> Pool:
        return Pool()

    def callFromThread(self, work, *args, **kw) -> None:
        work(*args, **kw)


class FileSourceCase(SynchronousTestCase):
    """A directory for logs, a buffer in memory, and sources between them."""

    def setUp(self) -> None:
        self.place = tempfile.mkdtemp()
        self.addCleanup(rmtree, self.place)
        self.logs = os.path.join(self.place, "logs")
        os.mkdir(self.logs)
        self.clock = ThreadlessClock()
        self.kept: dict[str, bytes] = {}
        self.bodies: list[bytes] = []
        self.puts: list[int] = []
        self.waiting: list[Deferred] | None = None
        self.refuse = False
        self.compose = encode_body

    def put(self, bodies, checkpoints, can_wait=True) -> Deferred:
        if self.refuse:
            return fail(StoreFull("no room"))
        self.bodies += bodies
        self.puts.append(len(bodies))
        for key, value in checkpoints.items():
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value
        if self.waiting is None:
            return succeed(None)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def source(self, pattern: str = "*.log", **settings) -> FileSource:
        settings.setdefault("paths", [os.path.join(self.logs, pattern)])
        source = FileSource(
            self.clock,
            "s",
            FileSettings(**settings),
            self.put,
            lambda: self.kept,
            compose=self.compose,
            wall=lambda: 1e9,
        )
        self.addCleanup(source.stop)
        return source

    def write(self, name: str, data: bytes) -> str:
        path = os.path.join(self.logs, name)
        with open(path, "ab") as file:
            file.write(data)
        return path

    def entries(self) -> list[LogEntry]:
        return [msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry) for body in self.bodies]

    def messages(self) -> list[str]:
        return [entry.message for entry in self.entries()]

    def pass_time(self, seconds: int = 3) -> None:
        self.clock.pump([0.5] * (2 * seconds))
