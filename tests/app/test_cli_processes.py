"""Which process runs on a state directory, and whether it is ours to stop."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli import processes
from cortextx.app.cli.processes import Place, running_pid, start_time, started_here
from cortextx.app.statedir import StateDir


class Running(SynchronousTestCase):
    """A lock says who runs; a note says who started it."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.state = StateDir(folder)
        self.place = Place(folder, "cortex-server")

    def test_nobody(self) -> None:
        """Without a directory, a lock file or a holder, nothing runs."""
        self.assertIsNone(running_pid(self.place))
        self.state.prepare()
        self.state.lock("cortex-server")
        self.state.unlock("cortex-server")
        self.assertIsNone(running_pid(self.place))

    def test_a_holder(self) -> None:
        """The pid of whoever holds the lock is found, and looking does not take it away."""
        self.state.prepare()
        self.state.lock("cortex-server")
        self.addCleanup(self.state.unlock, "cortex-server")
        for _ in range(2):
            self.assertEqual(running_pid(self.place), os.getpid())

    def test_a_dead_holder(self) -> None:
        """A pid that is left in the file by a killed process counts for nothing."""
        self.state.prepare()
        Path(self.place.in_run("lock")).write_text(f"{os.getpid()}\n")
        self.assertIsNone(running_pid(self.place))

    def test_whose(self) -> None:
        """The note must name the pid and its start time: a pid comes again."""
        self.state.prepare()
        me = os.getpid()
        self.assertFalse(started_here(self.place, me))
        note = Path(self.place.in_run("started"))
        note.write_text(f"{me} {start_time(me)}\n")
        self.assertTrue(started_here(self.place, me))
        note.write_text(f"{me} 1\n")
        self.assertFalse(started_here(self.place, me))
        processes.forget(self.place)
        processes.forget(self.place)
        self.assertFalse(note.exists())

    def test_last_words_are_of_the_last_start(self) -> None:
        """What an earlier process wrote is not told; of a rotated log all is."""
        log = Path(self.place.log)
        log.parent.mkdir()
        log.write_text("of an earlier one\n")
        self.patch(processes, "_log_began", {self.place.log: log.stat().st_size})
        with log.open("a") as file:
            file.write("of this one\n")
        self.assertEqual(processes.last_words(self.place).split(), ["of", "this", "one"])
        log.write_text("rotated\n")
        self.assertIn("rotated", processes.last_words(self.place))

    def test_last_words(self) -> None:
        """The end of the log and of the output is told, however long they are."""
        log = Path(self.place.log)
        log.parent.mkdir()
        log.write_text("x\n" * 100_000 + "the reason\n")
        self.assertIn("the reason", processes.last_words(self.place))
        self.assertLess(len(processes.last_words(self.place)), 1000)
