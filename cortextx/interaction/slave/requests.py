"""From a master's frames to what a session is asked (PURE)."""

from __future__ import annotations

from msgspec import Raw

from cortextx.core.exchange import Origin
from cortextx.interaction import data
from cortextx.interaction.claims import claim
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.slave.actions import CancelAsked, InputAsked
from cortextx.interaction.slave.attachments import Attachment
from cortextx.interaction.slave.lines import Ids
from cortextx.interaction.v2 import Frame
from cortextx.interfaces.sessions import AttachClaim, Peer

DEFAULT_SPACE = "default"
"""The space of a shared session whose attach names none."""


def wanted(frame: Frame, place: data.Attach) -> AttachClaim:
    """What an attach asks for; the frame is one, so that it has a mode and a session."""
    body = frame.event
    assert body.mode is not None and body.session is not None
    return AttachClaim(
        agent=place.agent,
        scope=place.scope,
        session=body.session,
        mode=body.mode,
        capabilities=frozenset(body.capabilities),
        space=place.space or DEFAULT_SPACE if place.scope == "shared" else None,
        owner=place.owner,
    )


def input_asked(
    attachment: Attachment, peer: Peer, frame: Frame, content: data.Input
) -> InputAsked:
    """An input, with its claim (I10): the working directory counts as it was given."""
    event = content.event
    absent = not isinstance(event, Raw) or bytes(event).strip() == b"null"
    key = attachment.key
    return InputAsked(
        asker=attachment.asker,
        request_id=frame.correlation.request_id or "",
        claim=claim(
            "input",
            session=key.session,
            scope=key.scope,
            cwd=content.cwd,
            data=frame.event.data,
        ),
        text=content.text,
        owner=key.owner if key.owner is not None else peer.uid,
        uid=peer.uid,
        origin=frame.event.origin or Origin("unknown"),
        event=None if absent else event.copy(),  # type: ignore[union-attr]
        cwd=content.cwd,
        workspace=content.workspace,
        answers="command_result" in attachment.capabilities,
        invokes="invoke" in attachment.capabilities,
    )


def cancel_asked(attachment: Attachment, peer: Peer, frame: Frame) -> CancelAsked:
    """A cancel, with a claim of its own (I8)."""
    ids = frame.correlation
    run_id = ids.run_id or ""
    digest = claim(
        "cancel",
        session=attachment.key.session,
        scope=attachment.key.scope,
        cwd=None,
        data=frame.event.data,
        run=run_id,
    )
    return CancelAsked(attachment.asker, ids.request_id or "", run_id, digest, peer.uid)


def ids_of(correlation: Correlation) -> Ids:
    """The part of a frame's ids that belongs to the session."""
    return Ids(correlation.request_id, correlation.run_id, correlation.command_id)
