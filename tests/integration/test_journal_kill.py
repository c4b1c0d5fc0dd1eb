"""Session logs and real processes: kill -9, a full disk, two slaves on one root (I12–I14)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import SynchronousTestCase, TestCase

from cortextx.errors import SessionDamaged, SessionLocked, StoreFull
from cortextx.interfaces.sessions import JournalState
from cortextx.stores.journal import FileJournals
from cortextx.stores.journal_disk import LOG
from cortextx.stores.journal_log import Log
from cortextx.stores.session_directory import SessionDirectory
from cortextx.stores.session_paths import SessionRoot
from tests.integration.test_disk_full import fill_up, small_disk
from tests.stores.journal_suite import KEY, lines

STEPS = """
import os, signal, sys
from cortextx.stores import session_directory
from cortextx.stores.journal_log import Log
from cortextx.stores.session_paths import SessionRoot
from tests.stores.journal_suite import KEY, lines

left = int(sys.argv[2])

def failing(call, half):
    def step(*args):
        global left
        left -= 1
        if left == 0:
            if half and hasattr(args[0], "_descriptor"):
                data = b"".join(args[2])
                os.pwrite(args[0]._descriptor, data[: len(data) // 2], args[1])
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args)
    return step

for owner, name in (
    (session_directory.RealFile, "write_at"), (session_directory.RealFile, "sync"),
    (session_directory.SessionDirectory, "create"), (session_directory.SessionDirectory, "rename"),
    (session_directory.SessionDirectory, "sync_directory"),
):
    setattr(owner, name, failing(getattr(owner, name), name == "write_at"))

root = SessionRoot.at(sys.argv[1])
log = Log(lambda: session_directory.SessionDirectory(root, KEY), "log")
log.open()
for first, count in ((1, 1), (2, 5), (7, 2)):
    log.append(first, lines(first, count))
    print(log.state.head, flush=True)
log.rewrite(3, lambda seq, line: line)
log.append(9, lines(9, 1))
print(9, flush=True)
"""

FLOOD = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from cortextx.stores.journal import FileJournals
from tests.stores.journal_suite import KEY, lines

async def fill(reactor):
    journals = FileJournals(reactor, sys.argv[1])
    journals.start()
    journal = journals.journal(KEY)
    state = await journal.open()
    print("open", state.head, flush=True)
    waiting, first = [], state.head + 1
    while True:
        waiting.append(journal.append(first, lines(first, 7, "y" * 60)))
        first += 7
        if len(waiting) >= 20:
            await waiting.pop(0)
            print(journal.head, flush=True)

react(lambda reactor: Deferred.fromCoroutine(fill(reactor)))
"""


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    )


class StepTests(SynchronousTestCase):
    def test_kill_at_every_step_of_an_append_and_a_rewrite_loses_nothing_promised(self) -> None:
        outcomes = set()
        for step in range(1, 40):
            with tempfile.TemporaryDirectory() as place:
                process = child(STEPS, place, str(step))
                said = process.communicate(timeout=20)[0].split()
                promised = int(said[-1]) if said else 0
                root = SessionRoot.at(place)
                log = Log(lambda root=root: SessionDirectory(root, KEY), "log")  # type: ignore[misc]
                try:
                    state = log.open()
                except SessionDamaged as fault:
                    outcomes.add("damaged")  # half a group was written; what came before is whole
                    with open(f"{root.directory(KEY)}/{LOG}", "rb") as file:
                        whole = file.read(fault.offset).splitlines()
                    last = json.loads(whole[-1])["session_seq"] if whole else 0
                    self.assertGreaterEqual(last, promised)
                else:
                    outcomes.add("opened")
                    self.assertGreaterEqual(state.head, promised)
                    page = log.read(0, 100, 10**6)
                    self.assertEqual(list(page.lines), lines(state.first, len(page.lines)))
                    log.append(state.head + 1, lines(state.head + 1, 1))
                    log.close()
                if process.returncode == 0:
                    break
        self.assertEqual(process.returncode, 0)  # the last round met no fail point
        self.assertEqual(outcomes, {"damaged", "opened"})


class FloodTests(SynchronousTestCase):
    def test_what_was_reported_durable_is_there_after_kill(self) -> None:
        chance = random.Random(5)
        place = tempfile.mkdtemp()
        head = 0
        for _ in range(6):
            process = child(FLOOD, place)
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline().split(), ["open", str(head)])
            process.stdout.readline()
            time.sleep(chance.random() / 4)
            process.send_signal(signal.SIGKILL)
            promised = int(process.communicate(timeout=20)[0].split()[-1])
            log = Log(lambda: SessionDirectory(SessionRoot.at(place), KEY), "log")
            head = log.open().head
            self.assertGreaterEqual(head, promised)
            after = 0
            while (page := log.read(after, 5000, 2**20)).lines:
                self.assertEqual(list(page.lines), lines(after + 1, len(page.lines), "y" * 60))
                after += len(page.lines)
            self.assertEqual(after, head)
            log.close()

    def test_b28_a_second_slave_is_refused_at_once_and_told_who_holds_it(self) -> None:
        # B28
        place = tempfile.mkdtemp()
        process = child(FLOOD, place)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            log = Log(lambda: SessionDirectory(SessionRoot.at(place), KEY), "log")
            begun = time.monotonic()
            fault = self.assertRaises(SessionLocked, log.open)
            self.assertLess(time.monotonic() - begun, 1)
            self.assertIn(f"process {process.pid}", fault.holder)
        finally:
            process.kill()
            process.communicate(timeout=20)
        log.open()
        log.close()


class FullDiskTests(TestCase):
    timeout = 60

    async def test_a_full_disk_takes_nothing_in_part_and_room_lets_it_go_on(self) -> None:
        place = os.path.join(tempfile.mkdtemp(), "small")
        small_disk(self, place, 4)
        journals = FileJournals(reactor, os.path.join(place, "sessions"))
        journals.start()
        self.addCleanup(journals.stop)
        journal = journals.journal(KEY)
        await journal.open()
        await journal.append(1, lines(1, 100))
        ballast = os.path.join(place, "ballast")
        fill_up(ballast, 100_000)
        with self.assertRaises(StoreFull):
            first = journal.head + 1
            while True:
                await journal.append(first, lines(first, 500, "y" * 100))
                first += 500
        head = journal.head
        self.assertEqual(journal.size, os.stat(journal.path).st_size)
        os.unlink(ballast)
        await journal.append(head + 1, lines(head + 1, 500))
        await journal.close()
        again = journals.journal(KEY)
        self.assertEqual(await again.open(), JournalState(1, head + 500))


class ThreadTests(TestCase):
    timeout = 60

    async def test_many_sessions_on_real_threads_keep_their_order(self) -> None:
        journals = FileJournals(reactor, tempfile.mkdtemp())
        journals.start()
        self.addCleanup(journals.stop)

        async def driven(name: str) -> None:
            journal = journals.journal(replace(KEY, session=name))
            await journal.open()
            appends = [journal.append(at, lines(at, 5, name)) for at in range(1, 500, 5)]
            reads = [journal.read(at, 10, 10_000) for at in range(0, 500, 50)]
            await gatherResults(appends)
            for read in reads:
                await read
            seen: list[bytes] = []
            while (page := await journal.read(len(seen), 64, 10_000)).lines:
                seen.extend(page.lines)
            self.assertEqual(seen, lines(1, 500, name))
            await journal.close()

        await gatherResults([Deferred.fromCoroutine(driven(f"s{at}")) for at in range(40)])
