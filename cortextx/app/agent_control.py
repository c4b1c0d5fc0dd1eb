"""What the agent's control socket answers about the agent, its buffer and its probes.

Each op is a coroutine as `cortextx.app.linesocket` wants it. Nothing here
tells a token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from cortextx.app.linesocket import OpError, Rows, arguments
from cortextx.errors import ConfigError
from cortextx.fleet.agent import buffer_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from cortextx.app.linesocket import Op
    from cortextx.fleet.agent.service import AgentService


class QuarantineArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """What `buffer.quarantine` takes."""

    acknowledge: bool = False
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ProbeArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """What `probe.reset` takes."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]


class AgentOps:
    """The ops on one agent; `agent` raises OpError while there is none."""

    def __init__(self, agent: Callable[[], AgentService], version: str) -> None:
        self._agent = agent
        self._version = version

    def ops(self) -> dict[str, Op]:
        """By name."""
        return {
            "ping": self.ping,
            "status": self.status,
            "retry": self.retry,
            "buffer.inspect": self.inspect,
            "buffer.verify": self.verify,
            "buffer.quarantine": self.quarantine,
            "probe.reset": self.reset_probe,
        }

    async def ping(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """Whether the process answers."""
        _no_arguments(args)
        return {"plugin": "cortex-agent", "version": self._version, "pid": os.getpid()}

    async def status(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """One row: how the agent is."""
        _no_arguments(args)
        await rows([await self._agent().status()])
        return {}

    async def retry(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """Make one attempt to connect now, with the token as it is stored (F34).

        The end's `connected` says that the agent is, so that there is nothing to attempt.
        """
        _no_arguments(args)
        agent = self._agent()
        connected = bool((await agent.status()).get("connected"))
        try:
            agent.retry()
        except ConfigError as error:
            if error.field == "token":
                said = "there is no token to try with: this host was revoked, or never enrolled"
                hint = "`cortextx agent enroll`, with an invitation; the agent takes it at once"
                raise OpError("not_enrolled", said, hint) from None
            hint = "the agent runs with an older enrolment: restart it, to take the new one"
            raise OpError("not_enrolled", str(error), hint) from None
        return {"connected": connected}

    async def inspect(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """One row: what the buffer's directory holds, and how far the agent has got; its
        state file is written now and then only."""
        _no_arguments(args)
        buffer = self._agent().buffer
        found = await buffer.ask(lambda opened: opened.look(buffer_view.inspect))
        live = {"acked": buffer.acked, "last": buffer.last, "backlog": buffer.depth}
        await rows([{**found, "live": live}])
        return {}

    async def verify(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """One row a segment: whether every block of it is good. What is sent and stored
        goes on in between; a segment that was dropped meanwhile is passed over."""
        _no_arguments(args)
        buffer = self._agent().buffer
        for segment in await buffer.ask(lambda opened: opened.look(buffer_view.segments)):
            row = await buffer.ask(
                lambda opened, segment=segment: opened.look(  # type: ignore[misc]
                    lambda disk: buffer_view.verify_if_there(disk, segment)
                )
            )
            if row is not None:
                await rows([row])
        return {}

    async def quarantine(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """What was set apart; with `acknowledge` it is marked as seen after that (A37)."""
        asked = arguments(args, QuarantineArgs)
        buffer = self._agent().buffer
        found = await buffer.ask(
            lambda opened: opened.look(lambda disk: buffer_view.set_apart(disk, asked.limit))
        )
        await rows(found)
        if not asked.acknowledge:
            return {"acknowledged": []}
        kept = await buffer.ask(lambda opened: opened.look(buffer_view.acknowledge))
        return {"acknowledged": kept}

    async def reset_probe(self, args: dict[str, Any], rows: Rows) -> Mapping[str, Any]:
        """Offer a disabled probe again (A61)."""
        asked = arguments(args, ProbeArgs)
        try:
            self._agent().reset_probe(asked.name)
        except OSError as error:
            raise OpError("failed", f"that cannot be kept: {error.strerror}") from None
        return {}


def _no_arguments(args: dict[str, Any]) -> None:
    if args:
        raise OpError("bad_request", "this op takes no arguments")
