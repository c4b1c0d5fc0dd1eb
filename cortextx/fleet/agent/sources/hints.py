"""What the kernel says of changes in the directories of logs: a hint, and nothing more.

A hint only makes the next look at the disk come at once; what that look finds is the
truth, and it comes at its interval without any hint. So no event is read for what it says,
none can be lost that matters, and where the kernel gives no more watches nothing but
time is lost. A watch is on a directory, not on a file: thousands of files cost one.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from zope.interface import implementer

from cortextx.fleet.agent.sources.actions import Scan

_MASK = 0x2 | 0x40 | 0x80 | 0x100 | 0x01000000
"""IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_ONLYDIR."""
_READ = 65_536
_READS = 64
"""Reads that take more than the kernel's queue of events can hold."""


def inotify() -> Any:
    """The C library, whose inotify calls set errno. Raises OSError where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return libc


@implementer(IReadDescriptor)
class Hints:
    """Calls `changed` once after `listen`, when something happened in a watched directory.

    `watch` and `drain` are called in the thread of a look at the disk, while this rests.
    """

    def __init__(self, reactor: Any, changed: Callable[[], None], limit: int) -> None:
        self._reactor = reactor
        self._changed = changed
        self._limit = limit
        self._libc: Any = None
        self._descriptor = -1
        self._watches: set[int] = set()
        self.why: str | None = None
        """Why not all directories are watched."""

    @property
    def watched(self) -> int:
        """Directories."""
        return len(self._watches)

    def open(self) -> None:
        """Begin; where that cannot be, `why` says it."""
        if not IReactorFDSet.providedBy(self._reactor):
            self.why = "this reactor hears of no descriptors"
            return
        try:
            self._libc = inotify()
            self._descriptor = self._checked(
                self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify"
            )
        except OSError as error:
            self.why = f"inotify: {error.strerror}"

    def close(self) -> None:
        """End it; the kernel forgets the watches."""
        self.rest()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._watches.clear()

    def listen(self) -> None:
        """Call `changed` at the next event, or that which has come meanwhile."""
        if self._watches:
            self._reactor.addReader(self)

    def rest(self) -> None:
        """Hear nothing until `listen`."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)

    def drain(self) -> None:
        """Leave out what has come until now."""
        try:
            for _ in range(_READS if self._descriptor >= 0 else 0):
                if len(os.read(self._descriptor, _READ)) < _READ // 2:
                    return
        except BlockingIOError:
            pass

    def watch(self, roots: Iterable[str], found: Scan) -> None:
        """Watch the directories of the files that a look has found: the roots of the globs,
        then those with most files. A directory that is watched already stays so."""
        if self._descriptor < 0:
            return
        counts = Counter(found.calm_in)
        counts.update(os.path.dirname(seen.real) for seen in found.files if seen.matched)
        wanted = dict.fromkeys(roots) | dict.fromkeys(path for path, _ in counts.most_common())
        watches: set[int] = set()
        self.why = None
        for path in list(wanted)[: self._limit]:
            try:
                encoded = os.fsencode(path)
                watches.add(
                    self._checked(
                        self._libc.inotify_add_watch(self._descriptor, encoded, _MASK), path
                    )
                )
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self.why = "the kernel gives no more watches (fs.inotify.max_user_watches)"
                    break
        else:
            if len(wanted) > self._limit:
                self.why = f"{len(wanted)} directories are more than are watched"
        for watch in self._watches - watches:
            self._libc.inotify_rm_watch(self._descriptor, watch)
        self._watches = watches

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), what)
        return result

    # -- IReadDescriptor ---------------------------------------------------------------

    def fileno(self) -> int:
        """See IFileDescriptor."""
        return self._descriptor

    def logPrefix(self) -> str:
        """See ILoggingContext."""
        return "hints"

    def connectionLost(self, reason: Any) -> None:
        """See IFileDescriptor; the reactor ends."""

    def doRead(self) -> None:
        """Something happened: what, the next look shall see."""
        self.rest()
        self._changed()
