"""The routes about the server itself: its state, API tokens, the audit of acts (S8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from cortextx.fleet.server.status import status_row
from cortextx.interfaces.fleet_records import Role
from cortextx.web import answers
from cortextx.web.routes import Body, Call, Params, Route
from cortextx.web.sources import Sources
from cortextx.web.tokens import Expiry, TokenName, act_row, add_token, token_row


class ActParams(Params, frozen=True):
    """Which acts; `before` is the `next` of the page before."""

    subject: str | None = None
    actor: str | None = None
    before: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NewTokenBody(Body, frozen=True):
    """A token to be made; `expires_in` in seconds."""

    name: TokenName
    role: Role
    expires_in: Expiry | None = None


class AdminRoutes:
    """What an admin sees and does, and who one is."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._store = sources.store

    def routes(self) -> Sequence[Route]:
        """All of them."""
        return (
            Route(
                method="GET",
                path="/whoami",
                role="viewer",
                name="whoami",
                run=self.whoami,
                answer=answers.Who,
                text="The name and role of the request's token.",
            ),
            Route(
                method="GET",
                path="/status",
                role="viewer",
                name="status",
                run=self.status,
                answer=answers.Status,
                text="How the server is.",
            ),
            Route(
                method="GET",
                path="/audit",
                role="admin",
                name="acts",
                run=self.acts,
                params=ActParams,
                answer=answers.Acts,
                text="Who did what: administrative acts, the newest first.",
            ),
            Route(
                method="GET",
                path="/tokens",
                role="admin",
                name="list_tokens",
                run=self.list_tokens,
                answer=answers.Tokens,
                text="All tokens, revoked ones too.",
            ),
            Route(
                method="POST",
                path="/tokens",
                role="admin",
                name="add_token",
                run=self.add_token,
                body=NewTokenBody,
                answer=answers.NewToken,
                status=201,
                text="Make a token. It is told in the answer, and never again.",
            ),
            Route(
                method="DELETE",
                path="/tokens/{name}",
                role="admin",
                name="revoke_token",
                run=self.revoke_token,
                answer=answers.Token,
                text="Let a token be good no more.",
            ),
        )

    async def whoami(self, call: Call) -> Any:
        """Who asks."""
        return {"name": call.principal.name, "role": call.principal.role}

    async def status(self, call: Call) -> Any:
        """How the server is."""
        return await status_row(self._sources.fleet, self._sources.started_at)

    async def acts(self, call: Call) -> Any:
        """Administrative acts."""
        params: ActParams = call.params
        found = await self._store.acts(params.subject, params.actor, params.before, params.limit)
        more = found[-1].id if len(found) == params.limit else None
        return {"acts": [act_row(act) for act in found], "next": more}

    async def list_tokens(self, call: Call) -> Any:
        """All tokens."""
        return {"tokens": [token_row(token) for token in await self._store.list_tokens()]}

    async def add_token(self, call: Call) -> Any:
        """Make one."""
        body: NewTokenBody = call.body
        made, token = await add_token(
            self._store,
            self._sources.random,
            body.name,
            body.role,
            body.expires_in,
            self._sources.wall(),
        )
        await self._sources.record(call, "token.add", made.name, {"role": made.role})
        return {**token_row(made), "token": token}

    async def revoke_token(self, call: Call) -> Any:
        """Revoke one."""
        token = await self._store.revoke_token(call.names["name"], self._sources.wall())
        await self._sources.record(call, "token.revoke", token.name, {})
        return token_row(token)
