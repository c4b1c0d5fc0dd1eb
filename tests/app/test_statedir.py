"""The state directory: private directories, one process a plugin, the address file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.statedir import StateDir
from cortextx.errors import ConfigError

HOLD = """
import sys
from cortextx.app.statedir import StateDir
place = StateDir(sys.argv[1])
place.prepare()
place.lock("cortex-server")
print("held", flush=True)
sys.stdin.read()
"""


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


class Directories(SynchronousTestCase):
    def test_they_are_private(self) -> None:
        """The state directory, run/ and what is asked for are 0700, whatever the umask."""
        before = os.umask(0)
        try:
            place = StateDir(os.path.join(self.mktemp(), "deep", "state"))
            place.prepare("server")
        finally:
            os.umask(before)
        for path in (place.path, place.run, place.join("server")):
            self.assertEqual(mode(path), 0o700, path)

    def test_an_open_one_is_closed(self) -> None:
        """A directory of ours that others could read is made private; the state
        directory itself, which may be anything, is left as it is."""
        place = StateDir(self.mktemp())
        os.makedirs(place.run)
        for path in (place.path, place.run):
            os.chmod(path, 0o755)
        place.prepare()
        self.assertEqual(mode(place.run), 0o700)
        self.assertEqual(mode(place.path), 0o755)

    def test_a_file_in_the_way_is_told(self) -> None:
        """Where a file stands in the way, the error names it."""
        path = self.mktemp()
        with open(path, "w"):
            pass
        error = self.assertRaises(ConfigError, StateDir(path).prepare)
        self.assertIn(path, str(error))

    def test_making_one_touches_nothing(self) -> None:
        """A StateDir that is not prepared makes nothing on disk."""
        path = self.mktemp()
        StateDir(path)
        self.assertFalse(os.path.exists(path))


class Checks(SynchronousTestCase):
    def test_what_cannot_be_used_is_told_beforehand(self) -> None:
        """`check` refuses a file in the way, above or below, and a directory that this user
        may not write to; it accepts what can be made, and makes nothing."""
        top = self.mktemp()
        StateDir(os.path.join(top, "deep", "state")).check()
        self.assertFalse(os.path.exists(top))
        os.makedirs(top)
        StateDir(top).check()
        with open(os.path.join(top, "run"), "w"):
            pass
        for path in (top, os.path.join(top, "run"), os.path.join(top, "run", "x")):
            error = self.assertRaises(ConfigError, StateDir(path).check)
            self.assertIn(os.path.join(top, "run"), str(error))
        # Root may write anywhere, so the question is answered for it here.
        self.patch(os, "access", lambda path, how: False)
        error = self.assertRaises(ConfigError, StateDir(os.path.join(top, "new", "x")).check)
        self.assertIn(f"may not write to {os.path.abspath(top)}", str(error))


class Locks(SynchronousTestCase):
    def setUp(self) -> None:
        self.place = StateDir(self.mktemp())
        self.place.prepare()

    def test_a_second_process_is_refused(self) -> None:
        """While one process holds the lock another gets an error that names it, and once
        it is gone, however it went, the lock is free."""
        other = subprocess.Popen(
            [sys.executable, "-c", HOLD, self.place.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        assert other.stdout is not None and other.stdin is not None
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.stdin.close)
        self.assertEqual(other.stdout.readline(), b"held\n")
        error = self.assertRaises(ConfigError, self.place.lock, "cortex-server")
        self.assertIn(f"process {other.pid}", str(error))
        self.place.lock("cortex-agent")
        other.kill()
        other.wait()
        self.place.lock("cortex-server")

    def test_it_is_not_inherited(self) -> None:
        """The lock's descriptor is closed in what this process starts."""
        self.place.lock("cortex-server")
        for descriptor in self.place._locks.values():
            self.assertFalse(os.get_inheritable(descriptor))

    def test_it_can_be_given_back(self) -> None:
        """After `unlock` another may take it."""
        self.place.lock("cortex-server")
        self.place.unlock("cortex-server")
        another = StateDir(self.place.path)
        another.lock("cortex-server")
        another.unlock("cortex-server")


class Addresses(SynchronousTestCase):
    def test_it_is_written_whole_and_removed(self) -> None:
        """The address stands in its file, private, without leftovers beside it; removing
        it twice is no error."""
        place = StateDir(self.mktemp())
        place.prepare()
        place.write_address("cortex-server", "127.0.0.1:1")
        place.write_address("cortex-server", "127.0.0.1:8600")
        path = place.address_file("cortex-server")
        with open(path) as file:
            self.assertEqual(file.read(), "127.0.0.1:8600\n")
        self.assertEqual(mode(path), 0o600)
        self.assertEqual(os.listdir(place.run), ["cortex-server.address"])
        place.remove_address("cortex-server")
        place.remove_address("cortex-server")
        self.assertEqual(os.listdir(place.run), [])
