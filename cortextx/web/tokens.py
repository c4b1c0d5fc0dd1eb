"""Tokens of the HTTP API: how they are made and shown (S8).

The token is told once, when it is made; only its BLAKE3 hash is stored (F23).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from cortextx.fleet.server.rows import moment
from cortextx.fleet.server.tokens import hash_token
from cortextx.interfaces.fleet_records import ApiToken, AuditAct, IApiTokens, Role

PREFIX = "ctx_"
"""So that a token is known for one where it should not be."""
TOKEN_BYTES = 32
MAX_EXPIRY = 10 * 366 * 86_400.0

TokenName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w.@-]*\Z")]
Expiry = Annotated[float, Meta(gt=0, le=MAX_EXPIRY)]
"""Seconds."""


async def add_token(
    store: IApiTokens,
    random: Callable[[int], bytes],
    name: str,
    role: Role,
    expires_in: float | None,
    now: int,
) -> tuple[ApiToken, str]:
    """Make a token; fails with NameTaken. `random` gives that many secret bytes."""
    token = PREFIX + base64.urlsafe_b64encode(random(TOKEN_BYTES)).rstrip(b"=").decode()
    expires_at = None if expires_in is None else now + round(expires_in * 1e6)
    return await store.add_token(name, role, hash_token(token), now, expires_at), token


def token_row(token: ApiToken) -> dict[str, Any]:
    """A token as it is shown: without its hash."""
    return {
        "name": token.name,
        "role": token.role,
        "created_at": moment(token.created_at),
        "expires_at": moment(token.expires_at),
        "revoked_at": moment(token.revoked_at),
        "last_used_at": moment(token.last_used_at),
    }


def act_row(act: AuditAct) -> dict[str, Any]:
    """An administrative act as it is shown."""
    return {
        "id": act.id,
        "at": moment(act.at),
        "actor": act.actor,
        "act": act.act,
        "subject": act.subject,
        "details": dict(act.details),
    }
