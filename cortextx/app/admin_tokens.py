"""Ops of the admin socket about the HTTP API's tokens and the audit of acts (S8).

`audited` records what is done by other ops too: whoever may use the admin
socket is this machine's own user, or root, and is called `local`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from cortextx.app.admin import _Args
from cortextx.app.linesocket import Op, Rows, arguments
from cortextx.fleet.server.service import FleetServer
from cortextx.interfaces.fleet_records import Role
from cortextx.web.tokens import Expiry, TokenName, act_row, add_token, token_row

ACTOR = "local"
AUDITED = frozenset(
    {
        "agent.issue",
        "agent.rotate",
        "agent.revoke",
        "agent.forget",
        "config.set",
        "config.push",
        "group.set",
        "probe.run",
        "server.backup",
        "server.reload",
        "token.add",
        "token.revoke",
    }
)
"""Ops that are administrative acts."""
_SUBJECTS = ("host", "name", "group")


class TokenAddArgs(_Args, frozen=True):
    """`token.add`; `expires_in` in seconds."""

    name: TokenName
    role: Role
    expires_in: Expiry | None = None


class TokenArgs(_Args, frozen=True):
    """`token.revoke`."""

    name: TokenName


class ActArgs(_Args, frozen=True):
    """`acts`: of one subject, of one actor, before an id."""

    subject: str | None = None
    actor: str | None = None
    before: int | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NoArgs(_Args, frozen=True):
    """For ops that take none."""


class TokenOps:
    """The ops. `random` gives secret bytes for a new token."""

    def __init__(self, fleet: Callable[[], FleetServer], random: Callable[[int], bytes]) -> None:
        self._fleet = fleet
        self._random = random

    def ops(self) -> dict[str, Op]:
        """By the names of the admin protocol."""
        return {
            "token.add": self.add,
            "token.list": self.list_tokens,
            "token.revoke": self.revoke,
            "acts": self.acts,
        }

    async def add(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Make a token; it is told this once."""
        asked = arguments(args, TokenAddArgs)
        fleet = self._fleet()
        store: Any = fleet.store
        made, token = await add_token(
            store, self._random, asked.name, asked.role, asked.expires_in, fleet.wall()
        )
        return {**token_row(made), "token": token}

    async def list_tokens(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """All tokens, revoked ones too; never the tokens themselves."""
        arguments(args, NoArgs)
        store: Any = self._fleet().store
        found = await store.list_tokens()
        await rows(token_row(token) for token in found)
        return {"count": len(found)}

    async def revoke(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Let a token be good no more."""
        asked = arguments(args, TokenArgs)
        fleet = self._fleet()
        store: Any = fleet.store
        return token_row(await store.revoke_token(asked.name, fleet.wall()))

    async def acts(self, args: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Administrative acts, the newest first."""
        asked = arguments(args, ActArgs)
        store: Any = self._fleet().store
        found = await store.acts(asked.subject, asked.actor, asked.before, asked.limit)
        await rows(act_row(act) for act in found)
        return {"next": found[-1].id if len(found) == asked.limit else None}


def audited(ops: Mapping[str, Op], fleet: Callable[[], FleetServer]) -> dict[str, Op]:
    """The same ops; those that are acts are recorded once they were carried out."""
    return {name: _audited(name, op, fleet) if name in AUDITED else op for name, op in ops.items()}


def _audited(name: str, op: Op, fleet: Callable[[], FleetServer]) -> Op:
    async def recorded(args: dict[str, Any], rows: Rows) -> Mapping[str, Any] | None:
        end = await op(args, rows)
        subject = next((str(args[key]) for key in _SUBJECTS if args.get(key)), "server")
        if end is not None and isinstance(end.get("host_id"), str):
            subject = end["host_id"]
        await fleet().record_act(ACTOR, name, subject, dict(args))
        return end

    return recorded
