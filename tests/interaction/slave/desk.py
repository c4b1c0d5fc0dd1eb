"""A slave without a socket: the service, echo agents, journals in memory, and string transports."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.slave.live import Agent, LiveSettings
from cortextx.interaction.slave.policy import Rule, RulePolicy
from cortextx.interaction.slave.protocol import SlaveProtocol
from cortextx.interaction.slave.service import SlaveService, SlaveSettings
from cortextx.interfaces.sessions import Peer, SessionKey
from cortextx.runtimes.echo import EchoRuntime, EchoSettings
from cortextx.stores.journal_memory import MemoryJournal

ME = Peer(1000, 1000, 42)
HELLO = v2.encode(
    data.build(data.Hello((v2.ABI,)), Correlation("c"), capabilities=("input", "observe"))
)


class Desk:
    """See the module. Time stands still until `clock` is advanced."""

    def __init__(
        self, *rules: Rule, delay: float = 0.0, approve: bool = False, **settings: Any
    ) -> None:
        self.clock = Clock()
        self.journals: dict[SessionKey, MemoryJournal] = {}
        self.opened: list[SessionKey] = []
        runtime = EchoRuntime(self.clock, EchoSettings(delay=delay, approve=approve))
        agents = {"echo": Agent(runtime), "other": Agent(runtime)}
        self.service = SlaveService(
            self.clock,
            "/nowhere",
            agents,
            self.journal,
            RulePolicy(1000, agents, rules),
            SlaveSettings(**({"live": LiveSettings(idle_seconds=60.0)} | settings)),
            wall=lambda: 1_700_000_000_000_000,
        )

    def journal(self, key: SessionKey) -> MemoryJournal:
        """The session's journal, the same one each time."""
        self.opened.append(key)
        return self.journals.setdefault(key, MemoryJournal(key))

    def call(self, peer: Peer = ME) -> Wire:
        """A new connection."""
        return Wire(self, peer)

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass, in small steps."""
        for _ in range(20):
            self.clock.advance(seconds / 20)


class Wire:
    """The client's end of a connection."""

    def __init__(self, desk: Desk, peer: Peer) -> None:
        self.protocol = SlaveProtocol(desk.service, lambda transport: peer)
        self.transport = StringTransport()
        self.protocol.makeConnection(self.transport)

    def say(self, *lines: bytes | dict[str, Any]) -> list[dict[str, Any]]:
        """Send lines; answers what came back."""
        for line in lines:
            raw = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            self.protocol.dataReceived(raw)
        return self.read()

    def read(self) -> list[dict[str, Any]]:
        """What came since."""
        lines = self.raw().splitlines()
        return [json.loads(line) for line in lines]

    def raw(self) -> bytes:
        """The bytes that came since."""
        got: bytes = self.transport.value()
        self.transport.clear()
        return got

    @property
    def is_closed(self) -> bool:
        """Whether the slave closed the connection."""
        return bool(self.transport.disconnecting)

    @property
    def is_aborted(self) -> bool:
        """Whether it closed it without waiting."""
        return bool(self.transport.disconnected or getattr(self.transport, "aborting", False))

    def hang_up(self) -> None:
        """End the connection from this side."""
        self.protocol.connectionLost(Failure(ConnectionDone()))


def attach(session: str = "default", after: int | None = None, agent: str = "echo") -> bytes:
    """An attach frame, on attachment `a`."""
    return v2.encode(
        data.build(
            data.Attach(agent, "private", after_session_seq=after),
            Correlation("c", "a"),
            mode="interact",
            session=session,
            capabilities=("input", "observe", "cancel", "command_result", "replay", "status"),
        )
    )
