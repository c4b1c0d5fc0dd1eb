"""Flat requests of deployed peers: one JSON object with `op` (PURE; v1, "flat lines").

They are read only; the events that answer them are `core.flatlines`.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from cortextx.core.exchange import Origin, Scope, is_v1_identifier
from cortextx.core.jsontext import Decoder, check_object
from cortextx.errors import JsonError
from cortextx.interaction import v1
from cortextx.interaction.faults import MAX_DEPTH, IllegalFrame, RequestFault

FLAT_ORIGIN = Origin("flat")
"""Where an input comes from that says nothing of its origin."""

DEFAULT_SESSION = "default"

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]+\Z", max_length=256)]
"""An id or session of a flat request."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Send(Struct, frozen=True, tag_field="op", tag="send", kw_only=True):
    """Run the session's agent with these words."""

    id: Name | None = None
    session: Name | None = None
    scope: Scope | None = None
    cwd: str | None = None
    workspace: str | None = None
    input: str
    agent: Name | UnsetType = UNSET

    def __post_init__(self) -> None:
        if "\x00" in self.input:
            raise IllegalFrame("expected input without NUL")
        for path in (self.cwd, self.workspace):
            if path is not None and not is_plain_path(path):
                raise IllegalFrame("expected an absolute path without .. and control characters")


class Resume(Struct, frozen=True, tag_field="op", tag="resume", kw_only=True):
    """Replay what the session recorded after this event."""

    id: Name | None = None
    session: Name | None = None
    after: str | None = None
    agent: Name | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.after is not None and not is_v1_identifier(self.after):
            raise IllegalFrame("expected after of 1 to 256 bytes without NUL")


class Status(Struct, frozen=True, tag_field="op", tag="status", kw_only=True):
    """Say how the session is doing."""

    id: Name | None = None
    session: Name | None = None
    agent: Name | UnsetType = UNSET


class Cancel(Struct, frozen=True, tag_field="op", tag="cancel", kw_only=True):
    """Cancel the run `id`."""

    id: Name
    agent: Name | UnsetType = UNSET


class Ping(Struct, frozen=True, tag_field="op", tag="ping"):
    """Say that you are there."""


FlatRequest = Send | Resume | Status | Cancel | Ping

PONG = b'{"type":"pong"}\n'
"""The answer to a ping; clients skip its type."""

_requests: Decoder[FlatRequest] = Decoder(FlatRequest)


def parse(text: bytes) -> FlatRequest:
    """Read a flat request, without its newline; raises RequestFault (EINVAL)."""
    try:
        check_object(text, MAX_DEPTH)
        return _requests.decode(text, utf8_checked=True)
    except JsonError as fault:
        raise RequestFault(fault.field, fault.expected) from None


def as_request(flat: Send | Resume | Status | Cancel, fresh_id: str) -> v1.Request:
    """The v1 request that a flat one means; `fresh_id` is its id if it has none."""
    match flat:
        case Send():
            return v1.Input(
                flat.id or fresh_id,
                flat.session or DEFAULT_SESSION,
                flat.scope or "private",
                flat.input,
                FLAT_ORIGIN,
                cwd=flat.cwd,
                workspace=flat.workspace,
                agent=flat.agent,
            )
        case Resume():
            return v1.Resume(
                flat.id or fresh_id, flat.session or DEFAULT_SESSION, flat.after, flat.agent
            )
        case Status():
            return v1.Status(flat.id or fresh_id, flat.session or DEFAULT_SESSION, flat.agent)
        case Cancel():
            return v1.Cancel(fresh_id, flat.id, flat.agent)


def is_plain_path(path: str) -> bool:
    """Whether `path` is absolute, without `..` as a part and control characters."""
    return path.startswith("/") and ".." not in path.split("/") and not _CONTROL.search(path)
