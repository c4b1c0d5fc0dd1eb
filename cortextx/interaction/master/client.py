"""A master over a Unix socket: attach to sessions, say things, and read what happens.

    async with Master(reactor, "/run/user/1000/cortextx/slave.sock") as master:
        session = await master.attach("echo")
        run = await session.input("hello")
        async for event in session: ...

All of it is for coroutines under Twisted. A lost connection is made anew by itself;
`Disconnected` and `Attached` events tell of it. An event counts as dealt with, and is
acknowledged, when the next one is asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from cortextx.core.backoff import FullJitter
from cortextx.core.exchange import Origin, Scope
from cortextx.interaction import data
from cortextx.interaction.master.actions import ATTACH
from cortextx.interaction.master.adapter import Adapter
from cortextx.interaction.master.effects import EffectRecord, MemoryEffects
from cortextx.interaction.master.events import Place
from cortextx.interaction.master.peer import peer_uid
from cortextx.interaction.master.session import Run as Run
from cortextx.interaction.master.session import Session as Session
from cortextx.interaction.v2 import Capability
from cortextx.interfaces.sessions import Mode

OURS = Origin("cortextx")


class Master:
    """See the module.

    `slave_uids` are the UIDs that the slave may run as: by default our own and root.
    `effects` is where side effects are recorded (`FileEffects` for ones that must not
    happen twice over restarts); `origin` goes with every input that names no other.
    """

    def __init__(
        self,
        reactor: Any,
        path: str,
        *,
        origin: Origin = OURS,
        master_id: str = "cortextx",
        slave_uids: Collection[int] | None = None,
        effects: EffectRecord | None = None,
        backoff: FullJitter | None = None,
        mint: Callable[[], str] = lambda: secrets.token_hex(8),
        uid_of: Callable[[Any], int] = peer_uid,
    ) -> None:
        self.origin = origin
        self._adapter = Adapter(
            reactor,
            path,
            master_id=master_id,
            slave_uids=slave_uids,
            effects=MemoryEffects() if effects is None else effects,
            backoff=backoff,
            mint=mint,
            uid_of=uid_of,
        )

    async def __aenter__(self) -> Master:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """Whether a slave has welcomed us and is there."""
        return self._adapter.machine.state == "open"

    @property
    def limits(self) -> data.Limits:
        """What the slave lets one connection use."""
        return self._adapter.machine.limits

    def connect(self) -> Deferred[None]:
        """See whether a slave is there; fails with SlaveUnavailable at the first no.

        It need not be called: `attach` connects, and goes on trying.
        """
        return self._adapter.connect()

    def attach(
        self,
        agent: str,
        session: str = "default",
        *,
        after: int | None = None,
        mode: Mode = "interact",
        scope: Scope = "private",
        space: str | None = None,
        owner: int | None = None,
        capabilities: Sequence[Capability] = (),
    ) -> Deferred[Session]:
        """Attach to a session; fails with SessionRefused where the slave says no.

        `after`: replay what came after this seq, 0 for all; None for what comes now.
        Without a slave it waits for one.
        """
        place = Place(
            agent=agent,
            session=session,
            scope=scope,
            space=space,
            owner=owner,
            mode=mode,
            capabilities=tuple(capabilities),
            after=after,
        )
        adapter = self._adapter
        key, actions = adapter.machine.attach(place, adapter.now)
        made = Session(adapter, key, place, self.origin)
        adapter.wakers[key] = made.wake
        attached = adapter.wait(key, ATTACH)
        adapter.do(actions)

        def refused(failure: Failure) -> Failure:
            adapter.wakers.pop(key, None)
            adapter.do(adapter.machine.detach(key))
            return failure

        attached.addCallbacks(lambda _: made, refused)
        return attached  # type: ignore[return-value]  # the callback made it one

    def close(self) -> Deferred[None]:
        """Detach from everything and close the connection; runs go on in the slave."""
        self._adapter.do(self._adapter.machine.close())
        return self._adapter.closed()
