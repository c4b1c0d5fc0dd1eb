"""What the agent's control socket answers: ping, status, retry.

Each op is a coroutine as `cortextx.app.linesocket` wants it. Nothing here
tells a token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cortextx.app.linesocket import OpError, Rows
from cortextx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cortextx.app.linesocket import Op
    from cortextx.fleet.agent.service import AgentService


class AgentOps:
    """The ops on one agent; `agent` raises OpError while there is none."""

    def __init__(self, agent: Callable[[], AgentService], version: str) -> None:
        self._agent = agent
        self._version = version

    def ops(self) -> dict[str, Op]:
        """By name."""
        return {"ping": self.ping, "status": self.status, "retry": self.retry}

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


def _no_arguments(args: dict[str, Any]) -> None:
    if args:
        raise OpError("bad_request", "this op takes no arguments")
