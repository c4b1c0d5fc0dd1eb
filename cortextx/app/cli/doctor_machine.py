"""What `cortextx doctor` looks at below the processes: files, disk, clock, libraries."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator

from cortextx.app.cli.findings import Finding, note, ok, wrong
from cortextx.app.cli.invocation import Invocation

GIB = 1_073_741_824
FEW_BYTES, FEWEST_BYTES = GIB, GIB // 8
FEWEST_FILES = 1000
BUILT = 1_750_000_000
"""Seconds: a clock before that (June 2025) is wrong for certain."""
PRIVATE = ("run", "server", "agent", "log", os.path.join("server", "tls"))
SECRETS = (
    os.path.join("agent", "token"),
    os.path.join("server", "store.db"),
    os.path.join("server", "tls", "ca.key"),
    os.path.join("server", "tls", "server.key"),
)
TIME_ERROR = 5
"""What adjtimex answers while nothing keeps the clock right."""


def state_directory(invocation: Invocation) -> Iterator[Finding]:
    """It is there, ours, and what is secret in it is private."""
    about, path = "state directory", invocation.state_dir
    try:
        found = os.stat(path)
    except FileNotFoundError:
        hint = "name the right one with --state-dir, or begin with `cortextx up`"
        yield wrong(about, f"{path} is not there", hint)
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield wrong(
            about, f"{path} belongs to {_user(found.st_uid)}, and we may not use it",
            "run this as that user, or as root",
        )  # fmt: skip
        return
    if stat.S_IMODE(found.st_mode) & 0o022:
        yield wrong(about, f"others may write to {path}", f"chmod go= {path}")
    elif stat.S_IMODE(found.st_mode) & 0o055:
        # What is secret lies in directories of its own, which are looked at below.
        said = f"others may look into {path}: at the configuration, and what is kept there"
        yield note(about, said, f"chmod go= {path}")
    bad = False
    for name in (*PRIVATE, *SECRETS):
        at = os.path.join(path, name)
        try:
            inner = os.lstat(at)
        except OSError:
            continue
        if stat.S_IMODE(inner.st_mode) & 0o077:
            bad = True
            yield wrong(about, f"{at} is not for its owner only", f"chmod go= {at}")
        if inner.st_uid != found.st_uid:
            bad = True
            yield wrong(
                about,
                f"{at} belongs to {_user(inner.st_uid)}, the directory to {_user(found.st_uid)}",
                f"chown -R {_user(found.st_uid)} {path}",
            )
    if not bad:
        yield ok(about, f"{path}, of {_user(found.st_uid)}")


def disk(invocation: Invocation) -> Iterator[Finding]:
    """There is room for what comes."""
    path = invocation.state_dir
    if not os.path.isdir(path):
        return
    free = shutil.disk_usage(path).free
    held = os.statvfs(path)
    said = f"{free / GIB:.1f} GiB free at {path}"
    hint = "make room, or set keep_days or max_mib in [store] of the server's configuration"
    if free < FEWEST_BYTES:
        yield wrong("disk", said, hint)
    elif free < FEW_BYTES:
        yield note("disk", said, hint)
    else:
        yield ok("disk", said)
    if held.f_files and held.f_favail < FEWEST_FILES:
        yield wrong("disk", f"only {held.f_favail} more files fit (inodes)", "remove files")


def clock(invocation: Invocation) -> Iterator[Finding]:
    """It is set, and something keeps it right."""
    if invocation.now() < BUILT:
        yield wrong("clock", "it is years behind", "set it, and let NTP keep it right")
    elif _unsynchronised():
        hint = "let chrony or systemd-timesyncd keep it right: entries carry its times"
        yield note("clock", "the system says that nothing keeps it right", hint)
    else:
        yield ok("clock", "set")


def libraries(invocation: Invocation) -> Iterator[Finding]:
    """What the services run on is there, and fast."""
    import sqlite3

    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 35):
        yield wrong("SQLite", f"{version} is too old", "use a Python with SQLite 3.35 or later")
    else:
        try:
            sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE t USING fts5(x)")
            yield ok("SQLite", f"{version}, with full-text search")
        except sqlite3.Error:
            yield wrong(
                "SQLite", f"{version} has no full-text search (FTS5)", "use a Python that has it"
            )
    # In a process of its own: it costs memory and time that no command should cost.
    asked = "from autobahn.websocket import USES_NVX; print(USES_NVX)"
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", asked],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield wrong("Autobahn", "it did not load within a minute")
        return
    answer = done.stdout.strip()
    if answer == "True":
        yield ok("Autobahn", "with its native code (NVX)")
    elif answer == "False":
        yield wrong(
            "Autobahn", "its native code (NVX) is off: a few MB/s are the most",
            "install a wheel of autobahn that has it, and do not set AUTOBAHN_USE_NVX=0",
        )  # fmt: skip
    else:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        yield wrong("Autobahn", f"it cannot be loaded: {last}", "install cortextx anew")


def _unsynchronised() -> bool:
    """What the kernel says of the clock; False where it says nothing. Changes nothing."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return False
    # A struct timex of zeros asks for no change; 512 bytes hold it on every platform.
    return bool(ask(ctypes.create_string_buffer(512)) == TIME_ERROR)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


LOOKS = (state_directory, disk, clock, libraries)
