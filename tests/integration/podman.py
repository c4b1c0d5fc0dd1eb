"""Real podman with a service of the Docker API, in a mount namespace of its own.

The namespace has a bare cgroup2 mount, for crun refuses a hybrid one; containers have no
cgroups and no network, and an image made of a static busybox.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from unittest import TestCase

from twisted.trial.unittest import SkipTest

from tests.integration.peers import need

SCRIPT = """
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t tmpfs none /sys/fs/cgroup 2>/dev/null
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
exec "$@"
"""
TOOLS = ("sh", "echo", "sleep", "head", "tr", "cat")


class Podman:
    """One podman with its own storage, and its API on `socket`."""

    def __init__(self, test: TestCase) -> None:
        self._program = need("podman")
        busybox, self._unshare = need("busybox"), need("unshare")
        if os.geteuid() != 0:
            raise SkipTest("podman is tested as root only")
        self.place = tempfile.mkdtemp(prefix="cxp", dir="/tmp")
        test.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.socket = os.path.join(self.place, "api.sock")
        self._service: subprocess.Popen[bytes] | None = None
        test.addCleanup(self.stop)
        image = os.path.join(self.place, "image")
        os.makedirs(os.path.join(image, "bin"))
        shutil.copy(busybox, os.path.join(image, "bin", "busybox"))
        for tool in TOOLS:
            os.symlink("busybox", os.path.join(image, "bin", tool))
        archive = shutil.make_archive(os.path.join(self.place, "image"), "tar", image)
        self._call("import", archive, "small")
        try:
            self.run("trial", "echo works", detach=False)
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode(errors="replace").strip()[-300:]
            raise SkipTest(f"podman cannot run containers here: {why}") from None
        self._call("rm", "trial")
        self._service = subprocess.Popen(
            self._line("system", "service", "-t", "0", f"unix://{self.socket}"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + 20
        while not os.path.exists(self.socket):
            if time.monotonic() > end:
                raise AssertionError("podman's service does not start")
            time.sleep(0.05)

    def run(self, name: str, script: str, detach: bool = True) -> str:
        """Run a container with a shell script; answers its id."""
        options = (
            "--name", name, "--net=none", "--cgroups=disabled", "--log-driver=k8s-file",
            "--ulimit=nofile=512:512", "--ulimit=nproc=512:512",
        )  # fmt: skip
        how = ("-d",) if detach else ()
        return self._call("run", *how, *options, "small", "/bin/sh", "-c", script).strip()

    def start(self, name: str) -> None:
        """Start a container that has stopped."""
        self._call("start", name)

    def rename(self, old: str, new: str) -> None:
        """Rename a container."""
        self._call("rename", old, new)

    def stop(self) -> None:
        """Remove all containers and end the service."""
        with contextlib.suppress(subprocess.SubprocessError):
            self._call("rm", "-f", "-t", "0", "-a")
        service, self._service = self._service, None
        if service is not None:
            service.terminate()
            service.wait(10)

    def _line(self, *arguments: str) -> list[str]:
        storage = [
            "--root", os.path.join(self.place, "root"),
            "--runroot", os.path.join(self.place, "run"),
            "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file",
            "--tmpdir", os.path.join(self.place, "tmp"), "--runtime=crun",
        ]  # fmt: skip
        inside = ["sh", "-c", SCRIPT, "sh", self._program, *storage, *arguments]
        return [self._unshare, "--mount", *inside]

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(
            self._line(*arguments), check=True, timeout=60, capture_output=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout.decode()
