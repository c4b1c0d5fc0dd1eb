"""The state directory: everything that a process of ours writes lies below it.

One process a plugin works in a state directory at a time; a lock of the
operating system says so, not a file's presence, and a dead process leaves none
behind. `run/<plugin>.address` exists exactly while the process accepts
connections. Nothing here imports Twisted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from cortextx.errors import ConfigError


class StateDir:
    """The directories and small files below `path`; making one touches no disk.

    `cortextx.app.config.state_dir` finds the path from option, environment and
    defaults.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._locks: dict[str, int] = {}

    def join(self, *parts: str) -> str:
        """A path below the state directory."""
        return os.path.join(self.path, *parts)

    @property
    def run(self) -> str:
        """Where sockets, locks and addresses are."""
        return self.join("run")

    @property
    def admin_socket(self) -> str:
        """The server's admin socket (F39)."""
        return self.join("run", "admin.sock")

    @property
    def agent_socket(self) -> str:
        """The agent's control socket."""
        return self.join("run", "agent.sock")

    def config_file(self, plugin: str) -> str:
        """Where a plugin's configuration is looked for when none is named."""
        return self.join(f"{plugin}.toml")

    def address_file(self, plugin: str) -> str:
        """Where a plugin's actual address stands once it accepts connections."""
        return self.join("run", f"{plugin}.address")

    def prepare(self, *names: str) -> None:
        """Make the state directory, `run/` and the directories `names`, all 0700.

        Those below the state directory are made private even if they were there
        before; the state directory itself, which may be somebody's choice, is not.
        Raises ConfigError if that cannot be done.
        """
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            for name in ("run", *names):
                made = self.join(name)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(made, 0o700)
                found = os.stat(made)
                if not stat.S_ISDIR(found.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), made)
                if stat.S_IMODE(found.st_mode) & 0o077:
                    os.chmod(made, 0o700)
        except OSError as error:
            where = error.filename or self.path
            expected = f"a directory that can be used and made private ({error.strerror})"
            raise ConfigError(str(where), "state directory", expected) from None

    def check(self) -> None:
        """Raise ConfigError where `prepare` would fail as far as one can see; touch nothing."""
        at, below = self.path, self.run
        for path in (below, at):
            if os.path.lexists(path) and not os.path.isdir(path):
                raise ConfigError(path, "state directory", "a directory, not a file")
        while not os.path.lexists(at):
            at = os.path.dirname(at)
        if not os.path.isdir(at):
            raise ConfigError(self.path, "state directory", f"a place below a directory, not {at}")
        if not os.access(at, os.W_OK | os.X_OK):
            expected = "a directory that this user may write to"
            if at != self.path:
                expected = f"one that can be made: this user may not write to {at}"
            raise ConfigError(self.path, "state directory", expected)

    def lock(self, plugin: str) -> None:
        """Take the lock of `plugin` until `unlock` or the end of this process.

        Raises ConfigError if another process has it.
        """
        path = self.join("run", f"{plugin}.lock")
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                path, "lock", f"a file that can be opened ({error.strerror})"
            ) from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(held, 32, 0).decode("ascii", "replace").strip()
            os.close(held)
            who = f"process {holder}" if holder.isdigit() else "another process"
            expected = f"a state directory of its own: {who} runs {plugin} in this one"
            raise ConfigError(self.path, plugin, expected) from None
        # Who holds it is for people; on a full disk the lock holds all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(held, 0)
            os.pwrite(held, b"%d\n" % os.getpid(), 0)
        self._locks[plugin] = held

    def unlock(self, plugin: str) -> None:
        """Give the lock back; nothing happens if we do not hold it.

        The file stays: removing it would let two processes lock two files.
        """
        held = self._locks.pop(plugin, None)
        if held is not None:
            os.ftruncate(held, 0)
            os.close(held)

    def write_address(self, plugin: str, address: str) -> None:
        """Publish where the plugin accepts connections: whole or not at all.

        Raises OSError, as where the disk is full.
        """
        path = self.address_file(plugin)
        beside = f"{path}.new"
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(made, "w", encoding="utf-8") as file:
            file.write(f"{address}\n")
        os.rename(beside, path)

    def remove_address(self, plugin: str) -> None:
        """Take the address back; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address_file(plugin))
