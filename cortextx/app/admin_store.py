"""The admin socket's op on the store's file: an online backup (F39).

It is copied by a thread, from a snapshot, while the writer goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from cortextx.app.admin import _Args
from cortextx.app.linesocket import Op, OpError, Rows, arguments
from cortextx.fleet.server.service import FleetServer
from cortextx.stores.sqlite_backup import BackupMade, CopyDamaged, backup

PROGRESS_SECONDS = 1.0
"""How often an answer says how far the copy is: one that takes long is not silent."""
AFTER_DAMAGE = (
    "`cortextx server verify` lists all that is wrong with the server's own database; keep the"
    " backups from before, of which `cortextx server restore FILE` puts one in its place"
)


class BackupArgs(_Args, frozen=True):
    """`server.backup`: the absolute path of a file that is not there yet."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class StoreOps:
    """The op over one server's database at `path`."""

    def __init__(
        self,
        reactor: Any,
        fleet: Callable[[], FleetServer],
        path: str,
        copy: Callable[..., BackupMade] = backup,
    ) -> None:
        self._reactor = reactor
        self._fleet = fleet
        self._path = path
        self._copy = copy
        self._copying = False

    def ops(self) -> dict[str, Op]:
        """By the names of the admin protocol."""
        return {"server.backup": self.backup}

    async def backup(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Copy the database; rows tell the part that is done, the end what was made.

        A client that goes away ends it, and nothing is left of the copy.
        """
        asked = arguments(args, BackupArgs)
        self._fleet()
        if not os.path.isabs(asked.path):
            raise OpError("bad_request", "`path` must be an absolute path")
        if self._copying:
            raise OpError("busy", "a backup is being made already", "try again when it is done")
        part, wanted = 0.0, True

        def carry_on(done: float) -> bool:
            nonlocal part
            part = done
            return wanted

        self._copying = True
        came: list[BackupMade | Failure] = []
        pauses: list[Deferred[None]] = []

        def ended(result: BackupMade | Failure) -> None:
            self._copying = False
            came.append(result)
            for pause in list(pauses):
                pause.callback(None)

        copying = deferToThreadPool(
            self._reactor, self._reactor.getThreadPool(), self._copy,
            self._path, asked.path, carry_on,
        )  # fmt: skip
        copying.addBoth(ended)
        try:
            while not came:
                await self._pause(pauses)
                if not came:
                    await rows([{"done": round(part, 3)}])
        finally:
            # A thread that still copies goes on until it asks; then it removes what it made.
            wanted = False
        made = came[0]
        if isinstance(made, Failure) and isinstance(made.value, CopyDamaged):
            raise OpError("damaged", str(made.value), AFTER_DAMAGE)
        if isinstance(made, Failure):
            made.raiseException()
        assert isinstance(made, BackupMade)
        return {
            "path": made.path,
            "size": made.size,
            "entries": made.entries,
            "hosts": made.hosts,
            "newest_entry_id": made.head,
        }

    async def _pause(self, pauses: list[Deferred[None]]) -> None:
        """Return after a while, or once the pause in the list is called back."""
        pause: Deferred[None] = Deferred()
        pauses.append(pause)
        timer = self._reactor.callLater(PROGRESS_SECONDS, pause.callback, None)
        try:
            await pause
        finally:
            pauses.remove(pause)
            if timer.active():
                timer.cancel()
