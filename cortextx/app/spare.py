"""Keeping the agent's process small: its budget is 60 MB of resident memory.

Twisted and Autobahn bring along what an agent has no use for: OpenSSL where its server
is reached in the clear, and WAMP. Each is left out here while the rest is imported; what
needs OpenSSL afterwards, as a syslog listener with TLS does, can import it still. Figures
are in bench/README.md.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

UNUSED = ("click", "cbor2", "msgpack", "ujson", "flatbuffers")
"""What Autobahn imports if it is there, and the agent never needs."""
TLS = "OpenSSL"
"""What Twisted and Autobahn do without where it is not there; some 12 MB."""
WEBSOCKET = "autobahn.twisted.websocket"
_BARE = ("autobahn.twisted", "autobahn.wamp")
"""Packages whose own `__init__` would import WAMP."""
_WAMP = "autobahn.wamp.websocket"
_WAMP_BASES = (
    "WampWebSocketServerProtocol",
    "WampWebSocketClientProtocol",
    "WampWebSocketServerFactory",
    "WampWebSocketClientFactory",
)
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


def import_websocket() -> None:
    """Import Autobahn's WebSocket without its WAMP, which costs 2 MB.

    A release of Autobahn that is put together otherwise is imported as a whole.
    """
    if WEBSOCKET in sys.modules:
        return
    before = set(sys.modules)
    try:
        with absent(*UNUSED):
            _leave_out_wamp()
            import_module(WEBSOCKET)
    except Exception:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "autobahn":
                del sys.modules[name]
        with absent(*UNUSED):
            import_module(WEBSOCKET)


def _leave_out_wamp() -> None:
    top = import_module("autobahn")
    for name in _BARE:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [os.path.join(top.__path__[0], name.rpartition(".")[2])]
            sys.modules[name] = package
            setattr(top, name.rpartition(".")[2], package)
    if _WAMP not in sys.modules:
        wamp: Any = ModuleType(_WAMP)
        for base in _WAMP_BASES:
            setattr(wamp, base, type(base, (), {}))
        sys.modules[_WAMP] = wamp
        setattr(sys.modules["autobahn.wamp"], "websocket", wamp)  # noqa: B010


def share_one_heap() -> None:
    """Have glibc give all threads one arena; each of its own costs about half a megabyte.

    Threads here rarely allocate at the same time. Elsewhere than on glibc nothing
    happens.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return


def sweep() -> None:
    """Give back what starting left behind: a megabyte that nothing else would look for soon."""
    gc.collect()
    give_back()


def give_back() -> None:
    """Give free memory back to the system: after a backlog there may be some MB of it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
