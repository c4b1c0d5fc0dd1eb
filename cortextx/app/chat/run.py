"""One conversation from its connection to its end, and the reactor around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from cortextx.app.chat.files import LocalFiles
from cortextx.app.chat.pipe import JsonView, PipeTalk, TextView, converse
from cortextx.app.chat.room import HISTORY, Room
from cortextx.app.chat.room import Where as Where
from cortextx.app.chat.talk import Talk
from cortextx.app.cli.faults import INTERRUPTED, NotReachable
from cortextx.core.exchange import Origin
from cortextx.errors import SlaveUnavailable
from cortextx.interaction.master.client import Master


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the command line asks for.

    `socket` is the slave's, `slave_uids` whom it may run as, `start` what to do if it
    is not there, `root` where the sessions' files are. `look` is who shows it.
    """

    where: Where
    socket: str
    slave_uids: Collection[int]
    start: str
    root: str
    cwd: str | None
    look: str
    """terminal, text or json"""


def run(conversation: Conversation) -> int:
    """Have it; answers the exit code. Raises Fault."""
    if conversation.look == "terminal":
        from twisted.internet import asyncioreactor

        asyncioreactor.install()
    return drive(lambda reactor: _connected(reactor, conversation))


async def _connected(reactor: Any, asked: Conversation) -> int:
    origin = Origin("terminal")
    async with Master(
        reactor, asked.socket, origin=origin, master_id="terminal", slave_uids=asked.slave_uids
    ) as master:
        try:
            await master.connect()
        except SlaveUnavailable as fault:
            hint = _what_to_do(str(fault), asked)
            raise NotReachable(f"no slave answers: {fault}", hint) from None
        return await _talk(reactor, master, asked)


def _what_to_do(fault: str, asked: Conversation) -> str:
    if "runs as UID" in fault:
        return "if you trust whom it runs as with your words, say --slave-user USER"
    if "Permission denied" in fault:
        return "it belongs to another user: a rule in its policy file would let you in"
    return asked.start


async def _talk(reactor: Any, master: Master, asked: Conversation) -> int:
    where, files = asked.where, LocalFiles(asked.root)
    may_act = where.mode == "interact"
    if asked.look == "terminal":
        from cortextx.app.chat.terminal import Terminal, history_file

        talk = Talk(may_act=may_act)
        colour = not os.environ.get("NO_COLOR")
        terminal = Terminal(talk, history_file(os.environ), colour=colour)
        room = Room(master, talk, terminal, files, cwd=asked.cwd)
        await room.enter(where, history=HISTORY)
        return await terminal.converse(room)
    as_json = asked.look == "json"
    piped = PipeTalk(may_act=may_act, as_json=as_json)
    view = JsonView() if as_json else TextView()
    room = Room(master, piped, view, files, cwd=asked.cwd)
    await room.enter(where)
    return await converse(reactor, room, piped, view, as_json=as_json)


def drive(main: Callable[[Any], Coroutine[Any, Any, int]]) -> int:
    """Run the reactor until `main` is done; answers its exit code, raises what it raises.

    A signal that stops the reactor cancels it first, so that it can tidy up.
    """
    from twisted.internet import reactor as installed

    reactor: Any = installed
    outcome: list[Any] = []
    stopping: list[bool] = []

    def begin() -> None:
        work = Deferred.fromCoroutine(main(reactor))
        over: Deferred[None] = Deferred()

        def ended(result: Any) -> None:
            outcome.append(result)
            over.callback(None)
            if not stopping:
                reactor.stop()

        def stop() -> Deferred[None]:
            stopping.append(True)
            work.cancel()
            return over

        reactor.addSystemEventTrigger("before", "shutdown", stop)
        work.addBoth(ended)

    reactor.callWhenRunning(begin)
    reactor.run()
    result = outcome[0] if outcome else INTERRUPTED
    if not isinstance(result, Failure):
        return int(result)
    if result.check(CancelledError):
        return INTERRUPTED
    assert result.value is not None
    raise result.value
