"""What a server process asks of the operating system when it starts."""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import socket
import sys
import time
from typing import Any

from twisted.logger import Logger
from twisted.python import usage

_log = Logger()

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD = 32 * 1_048_576
"""The most that glibc takes on 64 bits."""
TRIM_THRESHOLD = 64 * 1_048_576
SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread keeps Python's lock while others want it."""

MISCONFIGURED = 2
"""The exit code where the configuration is at fault; 1 is for all else that keeps from starting."""
OTHER_FILES = 256
"""Open files beside connections: the store's, logs, libraries."""


def raise_file_limit() -> None:
    """Allow as many open files as the hard limit does: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warn("at most {soft} files can be open: {why}", soft=soft, why=error)


def warn_if_few_files(connections: int) -> None:
    """Say that fewer connections than are allowed can be open, for each is a file."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and most < connections + OTHER_FILES:
        _log.warn(
            "max_connections is {wanted}, but at most {most} files can be open: raise the limit"
            " (LimitNOFILE in the systemd unit), or lower max_connections",
            wanted=connections,
            most=most,
        )


def tune_memory() -> None:
    """Keep glibc from mapping and unmapping memory for every big frame.

    Measured: four times the rate for frames of 300 KiB. Elsewhere than on glibc
    nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def share_the_lock() -> None:
    """Let threads have Python's lock sooner than after the usual 5 ms.

    The store's threads need it for a moment between statements. Measured beside
    a busy reactor: twice the rate of small transactions, and the reactor loses
    less than a tenth.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)


def keep_steady_time(reactor: Any) -> None:
    """Have the reactor's clock go on evenly when the machine's clock is set (A46).

    Twisted takes the time of day. Set back by an hour, that would hold up every timer
    for an hour; set forward, every peer would seem to have been silent for as long.
    """
    before, reactor.seconds = reactor.seconds, time.monotonic
    shift = time.monotonic() - before()
    for call in reactor.getDelayedCalls():
        call.time += shift
        call.seconds = time.monotonic


def warn_if_slow() -> None:
    """Say loudly that Autobahn's native code is off: frames then cost forty times as much."""
    from autobahn.websocket import USES_NVX

    if not USES_NVX:
        _log.error(
            "Autobahn runs without its native code (NVX): WebSocket traffic is limited to a few"
            " MB/s. Install a wheel of autobahn that has it, and do not set AUTOBAHN_USE_NVX=0."
        )


def tell_systemd(state: str) -> None:
    """Tell the service manager how we are (`READY=1`); without one nothing happens.

    Only units of `Type=notify` ask for it, by naming a socket in NOTIFY_SOCKET.
    """
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.setblocking(False)
            to.sendto(state.encode(), name.replace("@", "\0", 1) if name[0] == "@" else name)
    except OSError as error:
        _log.warn("the service manager could not be told {state}: {why}", state=state, why=error)


def end_process(plugin: str, reactor: Any, message: str) -> None:
    """Stop the reactor, and have the process end with exit code 1 and `message` on stderr."""
    print(f"{plugin}: {message}", file=sys.stderr, flush=True)

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    # twistd has no way to be told an exit code: its own clean-up runs, then this.
    atexit.register(leave)
    reactor.callWhenRunning(reactor.stop)


def misconfigured(plugin: str, error: Exception, options: usage.Options) -> usage.UsageError:
    """What an Options of ours raises for a wrong setting.

    twistd would print all of its own options, and the error below them; below
    twistd this ends the process instead, with the error alone on stderr and exit
    code 2, as the command line does for a wrong value (raises SystemExit).
    """
    if options.parent is None:
        return usage.UsageError(str(error))
    print(f"{plugin}: {error}", file=sys.stderr, flush=True)
    raise SystemExit(MISCONFIGURED)
