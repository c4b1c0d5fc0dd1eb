"""What a v1 request asks of a session: the claim to attach, and the mailbox items (PURE)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from cortextx.core.exchange import Scope
from cortextx.core.jsontext import encode
from cortextx.interaction import v1
from cortextx.interaction.claims import claim
from cortextx.interaction.names import v2_identifier, v2_name
from cortextx.interaction.slave.actions import CancelAsked, InputAsked
from cortextx.interaction.slave.requests import DEFAULT_SPACE
from cortextx.interfaces.sessions import AttachClaim, Mode, Peer, SessionKey

LOOKS: Sequence[frozenset[str]] = (frozenset({"observe"}),)
"""What resume and status need."""
RUNS: Sequence[frozenset[str]] = (
    frozenset({"input", "observe", "command_result", "invoke"}),
    frozenset({"input", "observe", "command_result"}),
    frozenset({"input", "observe"}),
)
"""What an input needs, and what it had better have: the first that is allowed counts."""


def attach_claim(
    agent: str, scope: Scope, session: str, capabilities: frozenset[str]
) -> AttachClaim:
    """The claim that a request stands for, as v1 knows no attach."""
    mode: Mode = "interact" if "input" in capabilities else "observe"
    return AttachClaim(
        agent=agent,
        scope=scope,
        session=v2_name(session),
        mode=mode,
        capabilities=capabilities,
        space=DEFAULT_SPACE if scope == "shared" else None,
    )


def input_asked(
    request: v1.Input, asker: int, key: SessionKey, peer: Peer, capabilities: frozenset[str]
) -> InputAsked:
    """The mailbox item of an input."""
    event = request.event
    given = isinstance(event, Raw) and bytes(event).strip() != b"null"
    said: dict[str, object] = {"text": request.input, "workspace": request.workspace}
    if given:
        said["event"] = event
    return InputAsked(
        asker=asker,
        request_id=v2_identifier(request.request_id),
        claim=claim(
            "input", session=key.session, scope=key.scope, cwd=request.cwd, data=encode(said)
        ),
        text=request.input,
        owner=peer.uid if key.owner is None else key.owner,
        uid=peer.uid,
        origin=request.origin,
        event=event.copy() if given else None,  # type: ignore[union-attr]
        cwd=request.cwd,
        workspace=request.workspace,
        answers="command_result" in capabilities,
        invokes="invoke" in capabilities,
    )


def cancel_asked(request: v1.Cancel, asker: int, key: SessionKey, peer: Peer) -> CancelAsked:
    """The mailbox item of a cancel."""
    digest = claim(
        "cancel",
        session=key.session,
        scope=key.scope,
        cwd=None,
        data=b"{}",
        run=request.run,
    )
    return CancelAsked(asker, v2_identifier(request.request_id), request.run, digest, peer.uid)
