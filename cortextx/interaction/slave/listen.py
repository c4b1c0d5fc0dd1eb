"""The slave's Unix socket: born with its mode, and the kernel's word on who connects (I15)."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import Any

from twisted.internet import tcp, unix
from twisted.internet.protocol import ServerFactory
from twisted.python.failure import Failure

from cortextx.errors import ConfigError
from cortextx.interfaces.sessions import Peer

MAX_SOCKET_PATH = 107
"""The longest path of a Unix socket, in bytes (Linux's sun_path without its NUL)."""
BACKLOG = 512


def peer_of(transport: Any) -> Peer:
    """Who is at the other end (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    raw = transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = struct.unpack("3i", raw)
    return Peer(uid, gid, pid)


class SlavePort(unix.Port):
    """A listening socket of the mode given from its first moment on.

    Linux takes a socket file's mode from the unbound socket, so that there is no
    moment between bind and chmod. `group` is who may connect beside its owner.
    """

    def __init__(
        self, path: str, factory: ServerFactory, reactor: Any, mode: int, group: int | None
    ) -> None:
        super().__init__(os.fsencode(path), factory, BACKLOG, mode, reactor)
        self._path = path
        self._group = group

    def createInternetSocket(self) -> socket.socket:
        made: socket.socket = super().createInternetSocket()
        os.fchmod(made.fileno(), self.mode if self._group is None else 0o600)
        return made

    def startListening(self) -> None:
        super().startListening()
        if self._group is not None:
            os.chown(self._path, -1, self._group)
            os.chmod(self._path, self.mode)

    def set_mode(self, mode: int) -> None:
        """Change the mode of the socket that is there."""
        self.mode = mode
        os.chmod(self._path, mode)

    def connectionLost(self, reason: Failure) -> None:
        if os.path.lexists(self._path):
            super().connectionLost(reason)
        else:
            tcp.Port.connectionLost(self, reason)


def prepare_place(path: str, *, is_open: bool) -> None:
    """Make the socket's directory and see that the name is free; raises ConfigError.

    The directory is 0700, or 0711 where others may come in (`is_open`).
    """
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        expected = f"at most {MAX_SOCKET_PATH} bytes, not {length}: choose a shorter path"
        raise ConfigError(path, "the socket's path", expected)
    directory = os.path.dirname(path) or "."
    try:
        if not os.path.isdir(directory):
            os.makedirs(directory, mode=0o700)
            os.chmod(directory, 0o711 if is_open else 0o700)
        elif is_open and os.stat(directory).st_uid == os.geteuid():
            os.chmod(directory, os.stat(directory).st_mode | 0o011)  # noqa: S103 - to pass, not to list
    except OSError as error:
        expected = f"a directory that can be made ({error.strerror})"
        raise ConfigError(directory, "the socket's directory", expected) from None
    _refuse_live(path)


def _refuse_live(path: str) -> None:
    """Remove a dead process's socket; raise ConfigError if anything else is at `path`."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(path, "the socket", "a free name, but a file of another kind is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            # A full backlog (EAGAIN) or one we may not touch (EACCES): somebody is there.
            pass
    raise ConfigError(path, "the socket", "a free name, but another process answers there")
