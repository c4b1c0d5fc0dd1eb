"""Finds and ends what a run left alive, by the receipt that its processes carry.

A receipt is an environment variable that every process of a run inherits, whatever
group or session it moved to. It derives from the session and the run, so that
recovery can compute it from the log alone (v2, "receipt-bound orphan cleanup").
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from cortextx.core.jsontext import encode
from cortextx.interfaces.sessions import SessionKey

RECEIPT_VARIABLE = "CORTEXTX_RECEIPT"
WITHIN = 1.0
"""Seconds after which processes that do not go are given up; the log tells of them."""
_PAUSE = 0.01

_log = Logger()


def receipt_of(key: SessionKey, run: str) -> str:
    """The receipt of a run: 32 hexadecimal digits."""
    names = [key.agent, key.scope, key.owner, key.space, key.session, run]
    return hashlib.blake2b(encode(names), digest_size=16).hexdigest()


class Remains:
    """Ends what is left of runs, on the reactor's thread pool."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def end(self, receipts: Sequence[str]) -> Deferred[None]:
        """Kill all processes with these receipts; fires when they are gone. Never fails."""
        pool = self._reactor.getThreadPool()
        ended = deferToThreadPool(self._reactor, pool, end_remains, receipts)
        return ended.addCallbacks(_tell_left, _tell_failure)


def _tell_left(left: int) -> None:
    if left:
        _log.warn("{left} processes of a run that ended do not go", left=left)


def _tell_failure(failure: object) -> None:
    _log.failure("looking for what a run left alive", failure)  # type: ignore[arg-type]


def end_remains(receipts: Sequence[str], within: float = WITHIN) -> int:
    """Kill all processes with these receipts, until none is left or `within` s have gone.

    Answers how many are left. Blocks.
    """
    marks = {f"{RECEIPT_VARIABLE}={receipt}".encode() for receipt in receipts}
    end = time.monotonic() + within
    while True:
        found = 0
        for pid in _processes():
            found += _kill_marked(pid, marks)
        if not found or time.monotonic() >= end:
            return found
        time.sleep(_PAUSE)


def _processes() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name)


def _kill_marked(pid: int, marks: Collection[bytes]) -> bool:
    if not _is_marked(pid, marks):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(pid)
        try:
            # The number may have gone to another process before it was pinned here.
            if _is_marked(pid, marks):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def _is_marked(pid: int, marks: Collection[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    # A process that is dead but not reaped has no environment any more.
    return any(mark in environment for mark in marks) and not set(marks).isdisjoint(
        environment.split(b"\0")
    )
