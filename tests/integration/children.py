"""What is left of processes, and a pause that lets the reactor run."""

from __future__ import annotations

from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater


def alive(pid: int) -> bool:
    """Whether a process runs (a dead one that nobody reaped does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def after(seconds: float) -> Deferred[None]:
    """Fires in that many seconds."""
    return deferLater(reactor, seconds, lambda: None)


def marked(receipt: str) -> list[int]:
    """The processes that carry a receipt."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if receipt.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
