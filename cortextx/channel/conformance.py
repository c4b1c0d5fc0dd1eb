"""What our channel code answers to a vector (PURE).

A frame vector is a raw line and whether it must be taken; a route vector is a
message or an event, and the names that deployed hosts derive from it. Reading the
rows and comparing is the caller's.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from cortextx.channel.faults import FrameFault
from cortextx.channel.frames import decode_line
from cortextx.channel.route import (
    BadRoute,
    Naming,
    RouteKey,
    event_id,
    is_channel,
    is_conversation,
)
from cortextx.channel.values import IncomingEvent
from cortextx.core import jsontext
from cortextx.core.oddforms import TolerantDecoder
from cortextx.errors import JsonError

Answer = dict[str, str | bool]


class MessageInput(Struct, frozen=True):
    """Where a message is; the parts need not be ones that a frame may carry."""

    channel: str
    conversation: str
    message_id: str
    sender: str
    thread: str | None = None
    reply_to: str | None = None


class _Names(Struct):
    agent: str
    prefix: str
    event: Raw = Raw()


def judge(line: bytes) -> str:
    """Give a line to the decoder; the answer is why it is refused, "" if it is not."""
    try:
        decode_line(line)
    except FrameFault as fault:
        return str(fault)
    return ""


def route(given: bytes) -> Answer | None:
    """The names for the input of a route vector; None where prefix or agent is invalid.

    Raises JsonError for a text that is no such input.
    """
    names = jsontext.decode(given, _Names)
    try:
        plain = Naming(names.agent, names.prefix)
        isolated = Naming(names.agent, names.prefix, isolated=True)
    except BadRoute:
        return None
    event = bytes(names.event)
    if event:
        return _event_answer(event, plain, isolated)
    return _message_answer(jsontext.decode(given, MessageInput), plain, isolated)


def _message_answer(message: MessageInput, plain: Naming, isolated: Naming) -> Answer:
    key, own = plain.key_for(message, message.sender), isolated.key_for(message, message.sender)
    return {
        "channel_id_valid": is_channel(message.channel),
        "conversation_id_valid": is_conversation(message.conversation),
        "session_for": plain.session(_place(key)),
        "session_for_message": plain.session(key),
        "request_id_for": plain.request_id(key, message.message_id),
        "isolated_session_for_message": isolated.session(own),
        "isolated_request_id_for": isolated.request_id(own, message.message_id),
    }


def _event_answer(given: bytes, plain: Naming, isolated: Naming) -> Answer:
    try:
        event = _events.decode(given)
        key, own = plain.key_for_event(event), isolated.key_for_event(event)
    except (JsonError, BadRoute):
        return {"valid": False}
    return {
        "valid": True,
        "event_id": event_id(event),
        "session_for": plain.session(_place(key)),
        "session_for_event": plain.session(key),
        "request_id_for_event": plain.request_id_for_event(key, event),
        "isolated_session_for_event": isolated.session(own),
        "isolated_request_id_for_event": isolated.request_id_for_event(own, event),
    }


def _place(key: RouteKey) -> RouteKey:
    """The key without its sender."""
    return RouteKey(key.channel, key.conversation, key.thread)


_events: TolerantDecoder[IncomingEvent] = TolerantDecoder(IncomingEvent)
