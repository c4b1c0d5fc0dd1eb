"""Commands that a run put to its origin: what may be asked, and who may answer (PURE; B10–B14)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec
from blake3 import blake3
from msgspec import UNSET

from cortextx.core.exchange import (
    Accepted,
    Command,
    Invoke,
    Notify,
    Rejected,
    RequestApproval,
    RequestInput,
    Result,
    is_identifier,
)
from cortextx.core.jsontext import encode
from cortextx.core.mending import mend_text, mend_value
from cortextx.errors import LocalProtocolError
from cortextx.interaction import data
from cortextx.interaction.faults import Code
from cortextx.interaction.parts import DATA_BYTES
from cortextx.interaction.slave.actions import AnswerGiven, Refuse
from cortextx.interaction.slave.lines import Ids

REMEMBERED = 256
"""Commands of a session whose answers are known, so that they may be repeated."""


@dataclass(slots=True, eq=False)
class Pending:
    """A command that waits for its answer until `deadline`."""

    ids: Ids
    effect_id: str | None
    token: object
    deadline: float

    @property
    def command_id(self) -> str:
        """Its id."""
        return self.ids.command_id or ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """How a command ended: whose it was, what was answered, and whether in time."""

    asker: int
    ids: Ids
    effect_id: str | None
    digest: bytes
    expired: bool


class Resolutions:
    """The newest commands that were resolved."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Resolved] = OrderedDict()

    def note(self, asker: int, pending: Pending, result: Result, reason: str | None) -> None:
        """Remember how a command of `asker` ended; the oldest is forgotten."""
        self._known[pending.command_id] = Resolved(
            asker, pending.ids, pending.effect_id, digest_of(result), reason == "expired"
        )
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def find(self, command_id: str | None) -> Resolved | None:
        """One that is remembered."""
        return self._known.get(command_id or "")


def refused_answer(
    item: AnswerGiven, asker: int | None, command: Pending | Resolved
) -> Refuse | None:
    """Why an answer to this command, which `asker` was sent, is refused; or None (I31)."""
    ids = item.ids
    if asker != item.asker:
        message = "only the attachment that the command was sent to may answer it"
        return Refuse.of(item.asker, Code.FORBIDDEN, message, ids)
    if ids != command.ids:
        return unknown(item)
    if item.effect_id is not None and item.effect_id != command.effect_id:
        message = "the command has another effect_id"
        return Refuse.of(item.asker, Code.COMMAND_CONFLICT, message, ids)
    return None


def late_answer(item: AnswerGiven, resolved: Resolved) -> Refuse | None:
    """What a further answer to a resolved command is told: nothing if it is the same."""
    refused = refused_answer(item, resolved.asker, resolved)
    if refused is not None:
        return refused
    if resolved.expired:
        return Refuse.of(item.asker, Code.UNKNOWN_COMMAND, "it has expired", item.ids)
    if digest_of(item.result) != resolved.digest:
        message = "it was resolved already, in another way"
        return Refuse.of(item.asker, Code.COMMAND_CONFLICT, message, item.ids)
    return None


def unknown(item: AnswerGiven) -> Refuse:
    """There is no such command."""
    return Refuse.of(item.asker, Code.UNKNOWN_COMMAND, "no such command is open", item.ids)


def content_of(command: Command, effect_id: str | None) -> data.Command:
    """What is sent of a command (I40); raises LocalProtocolError if no frame can say it."""
    if effect_id is not None and not is_identifier(mend_text(effect_id)[0]):
        raise LocalProtocolError("the effect_id is none")
    try:
        content = data.Command(_mended(command), effect_id)
        if len(encode(content)) <= DATA_BYTES:
            return content
    except ValueError:
        raise LocalProtocolError("the command is none") from None
    raise LocalProtocolError("the command is too long")


def fact_of(pending: Pending, result: Result, reason: str | None) -> data.CommandResolved:
    """The fact of how it ended; `reason` is ours where nobody answered."""
    state = {Accepted: "accepted", Rejected: "rejected"}.get(type(result), "value")
    return data.CommandResolved(
        pending.command_id, pending.effect_id, state, UNSET if reason is None else reason
    )


def digest_of(result: Result) -> bytes:
    """What tells one answer from another, whatever its white space is."""
    value = msgspec.json.decode(encode(result))
    return blake3(msgspec.json.encode(value, order="deterministic")).digest(length=16)


def _mended(command: Command) -> Command:
    match command:
        case RequestApproval(tool, arguments):
            return RequestApproval(mend_text(tool)[0], mend_value(bytes(arguments))[0])
        case Invoke(name, payload):
            return Invoke(mend_text(name)[0], mend_value(bytes(payload))[0])
        case RequestInput(prompt):
            return RequestInput(mend_text(prompt)[0])
        case Notify(level, text):
            return Notify(mend_text(level)[0], mend_text(text)[0])
