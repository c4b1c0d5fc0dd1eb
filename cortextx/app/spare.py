"""Keeping the agent's process small: its budget is 60 MB of resident memory.

Autobahn brings along what an agent never uses: WAMP's serialisers and coloured
terminal output, each optional to it. Where they are installed for others, they
would cost this process some 2 MB.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

UNUSED = ("click", "cbor2", "msgpack", "ujson", "flatbuffers")
"""What Autobahn imports if it is there, and the agent never needs."""
_M_ARENA_MAX = -8


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """While this lasts, modules that are not imported yet appear not to be installed."""
    hidden = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    for name in hidden:
        modules[name] = None
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def share_one_heap() -> None:
    """Have glibc give all threads one arena; each of its own costs about half a megabyte.

    Threads here rarely allocate at the same time. Elsewhere than on glibc nothing
    happens.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return


def give_back() -> None:
    """Give free memory back to the system: after a backlog there may be some MB of it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
