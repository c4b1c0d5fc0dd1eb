"""What `cortextx doctor` looks at of the server's database: whether it can be read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from cortextx.app.cli.faults import FOUND, OK
from cortextx.app.cli.findings import Finding, note, ok, wrong
from cortextx.app.cli.invocation import Invocation
from cortextx.app.statedir import StateDir
from cortextx.app.store_made import MARK

VERIFY_SECONDS = 10.0
"""How long the look at the database may take: of a big one it sees a part in that."""
RESTORE = "`cortextx server restore FILE` puts a backup in its place"


class _Verified(msgspec.Struct):
    entries: int
    hosts: int
    faults: list[str]


def database(invocation: Invocation) -> Iterator[Finding]:
    """Its structure is sound, as far as can be seen in some seconds."""
    directory = StateDir(invocation.state_dir)
    path = directory.join("server", "store.db")
    if not os.path.exists(path) or not os.path.getsize(path):
        if os.path.exists(directory.join("server", MARK)):
            yield wrong("database", f"{path} was there, and is gone", RESTORE)
        return
    # In a process of its own: SQLite cannot be interrupted while it looks at one table.
    asked = ("--state-dir", directory.path, "server", "verify", "--quick", "--json")
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "cortextx.app.cli", *asked],
            capture_output=True, timeout=VERIFY_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"nothing wrong in the first {VERIFY_SECONDS:.0f} s of looking at it"
        yield note("database", said, "`cortextx server verify` looks at all of it")
        return
    if done.returncode not in (OK, FOUND):
        said = done.stderr.decode("utf-8", "replace").strip().removeprefix("cortextx: ")
        yield wrong("database", said.partition("\n")[0] or "it cannot be looked at", RESTORE)
        return
    found = msgspec.json.decode(done.stdout, type=_Verified)
    for fault in found.faults[:3]:
        yield wrong("database", f"{path}: {fault}", RESTORE)
    if not found.faults:
        yield ok("database", f"{found.entries} entries of {found.hosts} hosts, structure sound")


LOOKS = (database,)
