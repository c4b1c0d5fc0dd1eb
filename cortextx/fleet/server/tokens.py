"""Who may connect: the life of a token, as decisions over a host's row (PURE; F5–F8, F29).

A row's hashes mean, by its state:

- `never_connected`: `token_hash` is a one-time token's, good until
  `token_expires_at` and for one hello. `token_hash_prev`, on a row that was
  issued again, is what the host still works with; good until the one-time token
  is spent (or until `prev_expires_at`, where that token had been told to expire).
- `active`, `disconnected`: `token_hash` is the long-lived token's, without an end
  unless `token_expires_at` says one. `token_hash_prev` is the token it replaced:
  while `prev_expires_at` lies ahead a hello with it gets another fresh token, as
  the reply with the first may be lost; afterwards it is known for diagnosis only.
- `revoked`: no hashes.

Nothing here is logged, and no value with a token in it shows one (F23).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Any
from uuid import UUID

from blake3 import blake3

from cortextx.core.jsontext import encode
from cortextx.fleet.contract import ROTATION_GRACE, CloseCode, Code, HelloParams
from cortextx.interfaces.fleet import Candidates, HostRecord

TOKEN_BYTES = 32
"""Random bytes of a token (F6); base64url without padding, 43 characters."""
_NO_HASH = bytes(32)


class Mint:
    """Makes tokens and session ids out of random bytes (`secrets.token_bytes`)."""

    __slots__ = ("_random",)

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random

    def token(self) -> str:
        """A new token."""
        return urlsafe_b64encode(self._random(TOKEN_BYTES)).rstrip(b"=").decode()

    def session_id(self) -> str:
        """A new session id, a random UUID."""
        return str(UUID(bytes=self._random(16), version=4))


def hash_token(token: str) -> bytes:
    """The BLAKE3 hash of a token, 32 bytes: all that is ever stored of it (F23)."""
    return blake3(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """`rotation_grace`: seconds for which a replaced token gets another fresh one (F7)."""

    rotation_grace: float = ROTATION_GRACE


@dataclass(frozen=True, slots=True)
class Accepted:
    """The hello is good. `rotated_token` is what the host must use from now on."""

    host_id: str
    accepted_seq: int
    session_id: str
    rotated_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The hello is refused; `reason` is for the operator, `data` for the wire."""

    code: Code
    reason: str
    close_code: CloseCode
    data: Mapping[str, Any] | None = None


Verdict = Accepted | Refused

AUTH_FAILED = Refused(
    Code.AUTH_FAILED,
    "unknown host or wrong token",
    CloseCode.AUTH_FAILED,
    {"reason": "token_hash_mismatch"},
)
"""One answer for an unknown host, a wrong token and a one-time token past its time (F5)."""
REVOKED = Refused(Code.TOKEN_REVOKED, "revoked", CloseCode.TOKEN_REVOKED)
ROTATION_REQUIRED = Refused(
    Code.TOKEN_ROTATION_REQUIRED,
    "the token was replaced or has expired",
    CloseCode.AUTH_FAILED,
    {"reason": "token_replaced"},
)


def judge_hello(
    candidates: Candidates,
    hello: HelloParams,
    wall: int,
    policy: TokenPolicy,
    mint: Mint,
    remote_address: str | None = None,
) -> tuple[Verdict, HostRecord | None]:
    """Decide on a hello whose versions are right; answers the verdict and the row to write.

    `wall` is µs since the epoch. Used as `decide` of `IHostRegistry.judge`, so it
    may run again for the same hello. The work is the same whether the host is
    known or not (F5).
    """
    sent = hash_token(hello.token)
    owner, unbound = candidates.owner, candidates.unbound
    token: str | None = None
    current = _matches(None if owner is None else owner.token_hash, sent)
    previous = _matches(None if owner is None else owner.token_hash_prev, sent)
    claimed = _matches(None if unbound is None else unbound.token_hash, sent)
    if owner is None:
        if unbound is None or not claimed or not _may_enrol(unbound, wall):
            return AUTH_FAILED, None
        row, token = _enrolled(unbound, mint)
    elif owner.state == "revoked" or (owner.token_hash is None and owner.token_hash_prev is None):
        return REVOKED, None
    elif current and owner.state == "never_connected":
        if not _may_enrol(owner, wall):
            return AUTH_FAILED, None
        row, token = _enrolled(owner, mint)
    elif current:
        if _past(owner.token_expires_at, wall):
            return ROTATION_REQUIRED, None
        row, token = _current(owner, wall, policy, mint)
    elif previous and owner.state == "never_connected":
        # Issued again, and the new token is not spent yet.
        if _past(owner.prev_expires_at, wall):
            return ROTATION_REQUIRED, None
        row = owner
    elif previous:
        if owner.prev_expires_at is None or _past(owner.prev_expires_at, wall):
            return ROTATION_REQUIRED, None
        row, token = _replaced_again(owner, wall, policy, mint)
    else:
        return AUTH_FAILED, None
    row = _connected(row, hello, wall, mint, remote_address)
    assert row.session_id is not None
    return Accepted(hello.host_id, row.accepted_seq, row.session_id, token), row


def rotation_asked(record: HostRecord, expires_at: int | None = None) -> HostRecord:
    """`agent rotate`: the next hello gets a fresh token (F7).

    Until then the old one stays good, or until `expires_at` (µs) where it is
    compromised. A host that has yet to enrol gets a fresh token anyway.
    """
    if record.state == "revoked":
        return record
    if record.state == "never_connected":
        return replace(record, prev_expires_at=_earlier(record.prev_expires_at, expires_at))
    grace_end = record.prev_expires_at
    return replace(
        record,
        rotation_pending=True,
        token_expires_at=_earlier(record.token_expires_at, expires_at),
        prev_expires_at=None if grace_end is None else _earlier(grace_end, expires_at),
    )


def revoked(record: HostRecord) -> HostRecord:
    """`agent revoke`: no token of this host is good any more (F8)."""
    return replace(
        record,
        state="revoked",
        token_hash=None,
        token_expires_at=None,
        token_hash_prev=None,
        prev_expires_at=None,
        rotation_pending=False,
    )


def _matches(stored: bytes | None, sent: bytes) -> bool:
    """Compare in constant time; an absent hash costs as much (F5, F23)."""
    same = compare_digest(stored or _NO_HASH, sent)
    return same and stored is not None


def _past(limit: int | None, wall: int) -> bool:
    return limit is not None and wall >= limit


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _may_enrol(record: HostRecord, wall: int) -> bool:
    return record.state == "never_connected" and not _past(record.token_expires_at, wall)


def _enrolled(record: HostRecord, mint: Mint) -> tuple[HostRecord, str]:
    """Spend the one-time token: no grace, the fresh token is all there is (§3.5, F29)."""
    token = mint.token()
    row = replace(
        record,
        state="active",
        token_hash=hash_token(token),
        token_expires_at=None,
        token_hash_prev=None,
        prev_expires_at=None,
        rotation_pending=False,
    )
    return row, token


def _current(
    record: HostRecord, wall: int, policy: TokenPolicy, mint: Mint
) -> tuple[HostRecord, str | None]:
    """A hello with the token in force: it ends a grace, and delivers a rotation (F7)."""
    if not record.rotation_pending:
        return replace(record, state="active", prev_expires_at=None), None
    token = mint.token()
    grace_end = wall + round(policy.rotation_grace * 1e6)
    row = replace(
        record,
        state="active",
        token_hash=hash_token(token),
        token_expires_at=None,
        token_hash_prev=record.token_hash,
        prev_expires_at=_earlier(grace_end, record.token_expires_at),
        rotation_pending=False,
    )
    return row, token


def _replaced_again(
    record: HostRecord, wall: int, policy: TokenPolicy, mint: Mint
) -> tuple[HostRecord, str]:
    """A hello with the replaced token within its grace: the reply was lost (F7).

    The grace runs from this delivery on, unless the last one was already cut
    short: then the old token had been told to expire, and still does.
    """
    token = mint.token()
    grace = round(policy.rotation_grace * 1e6)
    granted = (record.prev_expires_at or 0) - (record.last_handshake or 0)
    row = replace(
        record,
        state="active",
        token_hash=hash_token(token),
        token_expires_at=None,
        prev_expires_at=record.prev_expires_at if granted < grace else wall + grace,
        rotation_pending=False,
    )
    return row, token


def _connected(
    record: HostRecord, hello: HelloParams, wall: int, mint: Mint, remote_address: str | None
) -> HostRecord:
    return replace(
        record,
        host_id=hello.host_id,
        session_id=mint.session_id(),
        hostname=hello.hostname,
        agent_version=hello.agent_version,
        platform=encode(hello.platform).decode(),
        capabilities=encode(hello.capabilities).decode(),
        remote_address=remote_address,
        last_handshake=wall,
        last_seen=wall,
    )
