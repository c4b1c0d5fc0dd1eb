"""A real systemd-journald that is nobody's pid 1: in a mount namespace of its own, with a
scratch directory for /run, so that its socket and files are seen from outside too."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from unittest import TestCase

from twisted.trial.unittest import SkipTest

from tests.integration.peers import REQUIRE, need

PROGRAM = "/lib/systemd/systemd-journald"
MACHINE = "0123456789abcdef0123456789abcdef"
START_SECONDS = 20.0
SCRIPT = """
set -e
mount --bind "$1/run" /run
if [ -e /etc/machine-id ]; then mount --bind "$1/machine-id" /etc/machine-id; fi
exec "$2"
"""


class Journald:
    """A journald with small files; `options` are lines of its `[Journal]`."""

    def __init__(self, test: TestCase, *options: str) -> None:
        self.journalctl = need("journalctl")
        unshare = need("unshare")
        if not os.path.exists(PROGRAM) or os.geteuid() != 0:
            if os.environ.get(REQUIRE) == "1":
                raise AssertionError(f"{PROGRAM} and root are needed, and {REQUIRE}=1")
            raise SkipTest(f"{PROGRAM} and root are needed")
        self.root = tempfile.mkdtemp(prefix="cxj", dir="/tmp")
        test.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        run = os.path.join(self.root, "run")
        for place in ("systemd/journald.conf.d", "log/journal"):
            os.makedirs(os.path.join(run, place))
        with open(os.path.join(self.root, "machine-id"), "w") as file:
            file.write(MACHINE + "\n")
        with open(os.path.join(run, "systemd/journald.conf.d/test.conf"), "w") as file:
            fixed = (
                "Storage=volatile", "RateLimitIntervalSec=0", "RateLimitBurst=0", "ReadKMsg=no",
                "Audit=no", "ForwardToSyslog=no", "ForwardToWall=no", "ForwardToConsole=no",
                "ForwardToKMsg=no",
            )  # fmt: skip
            file.write("\n".join(("[Journal]", *fixed, *options, "")))
        self.directory = os.path.join(run, "log/journal")
        self.devlog = os.path.join(run, "systemd/journal/dev-log")
        self._socket = os.path.join(run, "systemd/journal/socket")
        self._command = [unshare, "--mount", "sh", "-c", SCRIPT, "sh", self.root, PROGRAM]
        self.process: subprocess.Popen[bytes] | None = None
        test.addCleanup(self.stop)
        self.start()

    def start(self) -> None:
        """Start it and wait until it takes messages."""
        if os.path.exists(self._socket):
            os.unlink(self._socket)
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + START_SECONDS
        while not (os.path.exists(self._socket) and os.listdir(self.directory)):
            if self.process.poll() is not None:
                raise AssertionError(f"journald ended with {self.process.returncode}")
            if time.monotonic() > end:
                raise AssertionError("journald does not start")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def rotate(self) -> None:
        """Tell it to begin a new file."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR2)

    def connect(self) -> socket.socket:
        """A socket for entries in the journal's own form."""
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.connect(self._socket)
        return sender

    def write(self, first: int, end: int) -> None:
        """Write the messages `n FIRST` to `n END-1`."""
        with self.connect() as sender:
            for number in range(first, end):
                sender.send(b"MESSAGE=n %d\nPRIORITY=5\nSYSLOG_IDENTIFIER=numbers\n" % number)

    def send(self, **fields: bytes) -> None:
        """Write one entry, whatever bytes are in it."""
        parts = [
            b"%b\n%b%b\n" % (n.encode(), len(v).to_bytes(8, "little"), v) for n, v in fields.items()
        ]
        with self.connect() as sender:
            sender.send(b"".join(parts))

    def ctl(self, *arguments: str) -> bytes:
        """Run journalctl on its files."""
        return subprocess.run(
            [self.journalctl, f"--directory={self.directory}", "--quiet", *arguments],
            check=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout  # fmt: skip
